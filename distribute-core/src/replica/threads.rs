//! The replicas of one process, each on a thread of its own.

use std::sync::{Arc, Mutex};

use burn::tensor::TensorData;
use distribute_collectives::{
    CollectiveError, Communicator, CommunicatorExt, InProcessCommunicator, ReduceOp,
};

use super::link::{Link, OnPack};
use crate::Result;
use crate::cross_device::{CrossDeviceOps, by_type};
use crate::sync::lock;

/// One replica's end of the group of its process.
pub(crate) struct Threads {
    pub(super) communicator: Mutex<Box<InProcessCommunicator>>,
    cross_device_ops: Arc<dyn CrossDeviceOps>,
}

impl Threads {
    pub(crate) fn new(
        communicator: Box<InProcessCommunicator>,
        cross_device_ops: Arc<dyn CrossDeviceOps>,
    ) -> Self {
        Self {
            communicator: Mutex::new(communicator),
            cross_device_ops,
        }
    }
}

impl Link for Threads {
    fn all_reduce(&self, op: ReduceOp, buffers: &mut [TensorData]) -> Result<()> {
        let (ops, mut communicator) = (&self.cross_device_ops, lock(&self.communicator));
        by_type(&mut [buffers], |buffers| {
            ops.all_reduce(communicator.as_mut(), op, buffers)
        })
    }

    fn sum_in_packs(&self, mut buffers: Vec<TensorData>, on_pack: OnPack<'_>) -> Result<()> {
        self.all_reduce(ReduceOp::Sum, &mut buffers)?;
        on_pack(0..buffers.len(), buffers)
    }

    fn reduce(&self, buffers: &mut [TensorData]) -> Result<()> {
        let mut communicator = lock(&self.communicator);
        by_type(&mut [buffers], |buffers| {
            Ok(communicator.reduce(ReduceOp::Sum, 0, buffers)?)
        })
    }

    fn all_gather(&self, mine: &[i64]) -> Result<Vec<Vec<i64>>> {
        let all = lock(&self.communicator).all_gather(mine)?;
        Ok(all.iter().map(<[i64]>::to_vec).collect())
    }

    fn barrier(&self) -> Result<(), CollectiveError> {
        lock(&self.communicator).barrier()
    }

    fn abort(&self, reason: &str) {
        lock(&self.communicator).abort(reason);
    }
}
