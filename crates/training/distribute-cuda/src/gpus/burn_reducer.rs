//! burn's own collective, the alternative to NCCL through this library.

use std::sync::Arc;

use burn::tensor::distributed::{ReduceOperation, all_reduce};
use burn::tensor::{Device, Tensor};
use distribute_core::{DeviceReducer, DeviceReducers, Error, LogicalDevice, ReduceOp, Result};

/// Reducers over burn's collective, which is NCCL in burn's own streams.
///
/// The order of the work is burn's: nothing has to wait for the device before, and an operation is
/// only begun when a call returns. It compares no calls and knows no deadline: a replica that does
/// not come is found by the exchange through the host that goes before, and one that is lost after
/// that makes the others wait.
#[derive(Debug, Clone, Copy)]
pub(super) struct BurnReducers;

struct BurnReducer {
    devices: Arc<[Device]>,
}

impl DeviceReducers for BurnReducers {
    fn connect(&self, devices: &[LogicalDevice], _: u64) -> Result<Vec<Box<dyn DeviceReducer>>> {
        // burn panics in the first step otherwise.
        super::presence::check_library("nccl")?;
        let all: Arc<[Device]> = devices.iter().map(|device| device.burn_device()).collect();
        let reducers = devices.iter().map(|_| {
            let devices = Arc::clone(&all);
            Box::new(BurnReducer { devices }) as Box<dyn DeviceReducer>
        });
        Ok(reducers.collect())
    }
}

impl DeviceReducer for BurnReducer {
    fn all_reduce(&mut self, op: ReduceOp, tensors: Vec<Tensor<1>>) -> Result<Vec<Tensor<1>>> {
        let operation = match op {
            ReduceOp::Sum => ReduceOperation::Sum,
            ReduceOp::Mean => ReduceOperation::Mean,
            other => {
                return Err(Error::invalid(format!("burn's collective has no {other}")));
            }
        };
        let begun: Vec<_> = tensors
            .into_iter()
            .map(|tensor| all_reduce(tensor, operation, self.devices.to_vec()))
            .collect();
        Ok(begun.into_iter().map(|tensor| tensor.resolve()).collect())
    }

    fn broadcast(&mut self, _: usize, _: Vec<Tensor<1>>) -> Result<Vec<Tensor<1>>> {
        Err(Error::invalid(
            "burn's collective is for one process: use NCCL with several workers",
        ))
    }

    fn abort(&self, reason: &str) {
        tracing::warn!("burn's collective cannot be ended from outside ({reason})");
    }

    fn describe(&self) -> String {
        format!("burn's collective between {} GPUs", self.devices.len())
    }
}
