//! Everything to one replica, and the result back to all.

use distribute_collectives::{Buffer, Communicator, ReduceOp};

use super::{CrossDeviceOps, divide_for, sum_for};
use crate::Result;

/// Reduces on one replica's device and copies the result to the others
/// (TensorFlow: `tf.distribute.ReductionToOneDevice`).
///
/// Order: that of [`DirectAllReduce`](super::DirectAllReduce). The reducing replica reads `N - 1`
/// buffers and the others read one, so for large buffers it is slower than that, whose replicas
/// share the work.
#[derive(Debug, Clone, Copy, Default)]
pub struct ReductionToOneDevice {
    /// The replica that reduces; replica 0 by default.
    pub reduce_to: usize,
}

impl CrossDeviceOps for ReductionToOneDevice {
    fn name(&self) -> &str {
        "reduction-to-one-device"
    }

    fn all_reduce(
        &self,
        communicator: &mut dyn Communicator,
        op: ReduceOp,
        buffers: &mut [Buffer<'_>],
    ) -> Result<()> {
        communicator.reduce(sum_for(op), self.reduce_to, buffers)?;
        communicator.broadcast(self.reduce_to, buffers)?;
        divide_for(op, communicator.world_size(), buffers);
        Ok(())
    }
}
