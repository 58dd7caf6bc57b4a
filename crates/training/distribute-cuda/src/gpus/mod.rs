//! The GPUs that the CUDA driver shows, as devices of strategies.

mod burn_reducer;
#[expect(unsafe_code, reason = "each use says why it is sound")]
mod libraries;
#[expect(unsafe_code, reason = "each use says why it is sound")]
mod memory;
mod presence;
mod unfused;

use std::sync::Arc;
use std::time::Duration;

use burn::tensor::Device;
use distribute_core::collectives::nccl::NcclOptions;
use distribute_core::{
    DeviceReducers, DeviceReduction, GpuKind, LogicalDevice, NcclReducers, Result,
};

use burn_reducer::BurnReducers;
use memory::CudaMemory;

/// NVIDIA's GPUs: `cuda:0`, `cuda:1`, ..., as the CUDA driver numbers the visible ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cuda;

/// The GPU with this number. A strategy refuses one that is not there.
pub fn cuda(index: usize) -> LogicalDevice {
    LogicalDevice::Gpu(&Cuda, index)
}

/// Every GPU of this machine.
///
/// # Errors
/// [`BackendUnavailable`](distribute_core::collectives::CollectiveError::BackendUnavailable) with
/// the places that were searched, if there is no driver that works, or something else that burn's
/// CUDA backend loads is missing.
pub fn all_gpus() -> Result<Vec<LogicalDevice>> {
    Ok((0..presence::available()?).map(cuda).collect())
}

/// Reads `cuda:0` or `gpu:0`, in all of TensorFlow's spellings, and the names of CPU devices.
///
/// # Errors
/// The text is not such a name; the error says which there are.
pub fn parse(text: &str) -> Result<LogicalDevice> {
    LogicalDevice::parse(text, &[&Cuda])
}

impl GpuKind for Cuda {
    fn name(&self) -> &'static str {
        "cuda"
    }

    fn burn_device(&self, index: usize) -> Device {
        Device::cuda(index)
    }

    fn check(&self, index: usize) -> Result<()> {
        presence::check(index)
    }

    fn reducers(&self, wanted: DeviceReduction, timeout: Duration) -> Arc<dyn DeviceReducers> {
        if wanted == DeviceReduction::Burn {
            return Arc::new(BurnReducers);
        }
        let memory = |_| Box::new(CudaMemory) as _;
        Arc::new(NcclReducers::new(NcclOptions::new(0), gpu, memory).timeout(timeout))
    }
}

/// The number of the GPU, if it is one of these.
fn gpu(device: LogicalDevice) -> Option<usize> {
    match device {
        LogicalDevice::Gpu(kind, index) if kind.name() == Cuda.name() => Some(index),
        _ => None,
    }
}
