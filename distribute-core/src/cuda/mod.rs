//! Replicas on NVIDIA GPUs, by burn's CUDA backend (feature `cuda`).

mod burn_reducer;
#[expect(unsafe_code, reason = "each use says why it is sound")]
mod libraries;
#[expect(unsafe_code, reason = "each use says why it is sound")]
mod memory;
pub(crate) mod presence;
mod unfused;

use std::time::Duration;

pub(crate) use burn_reducer::BurnReducers;
use distribute_collectives::nccl::NcclOptions;
use memory::CudaMemory;

use crate::{LogicalDevice, NcclReducers};

/// NCCL between the GPUs of this process, on burn's tensors.
pub(crate) fn nccl_reducers(timeout: Duration) -> NcclReducers {
    NcclReducers::new(NcclOptions::new(0), LogicalDevice::gpu_index, |_| {
        Box::new(CudaMemory)
    })
    .timeout(timeout)
}
