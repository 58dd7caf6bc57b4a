//! Gradients of GPUs by a library of GPUs, by name.

use distribute_collectives::{Buffer, Communicator, ReduceOp};

use super::{CrossDeviceOps, DirectAllReduce};
use crate::{DeviceReduction, Result};

/// NCCL between GPUs, or an error that says why not (TensorFlow: `tf.distribute.NcclAllReduce`).
/// The default picks NCCL too, and goes on without where it cannot be used.
///
/// Values in host memory are reduced as [`DirectAllReduce`] does.
#[derive(Debug, Clone, Copy)]
pub struct NcclAllReduce {
    reduction: DeviceReduction,
}

impl NcclAllReduce {
    /// Over NCCL.
    pub fn new() -> Self {
        Self {
            reduction: DeviceReduction::Nccl,
        }
    }

    /// As burn's own collective has it reduced, which is NCCL as well, in burn's streams and
    /// without this library's comparison of the calls and deadlines.
    pub fn by_burn() -> Self {
        Self {
            reduction: DeviceReduction::Burn,
        }
    }
}

impl Default for NcclAllReduce {
    fn default() -> Self {
        Self::new()
    }
}

impl CrossDeviceOps for NcclAllReduce {
    fn name(&self) -> &str {
        self.reduction.name()
    }

    fn device_reduction(&self) -> DeviceReduction {
        self.reduction
    }

    fn all_reduce(
        &self,
        communicator: &mut dyn Communicator,
        op: ReduceOp,
        buffers: &mut [Buffer<'_>],
    ) -> Result<()> {
        DirectAllReduce.all_reduce(communicator, op, buffers)
    }
}
