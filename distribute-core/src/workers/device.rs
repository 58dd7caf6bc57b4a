//! Gradients between workers in the memory of their devices.

use std::sync::Mutex;

use burn::tensor::Tensor;
use distribute_collectives::ReduceOp;

use super::WorkerGroup;
use crate::cross_device::as_buffers;
use crate::sync::lock;
use crate::{DeviceReducer, Error, Result};

impl WorkerGroup {
    /// Reduces gradients of this worker's replica 0 with the other workers' gradients from now on.
    /// All workers call it, or none.
    pub(crate) fn set_device_reducer(&self, reducer: Box<dyn DeviceReducer>) {
        let _first = self.shared.device.set(Mutex::new(reducer));
    }

    /// Whether gradients are reduced between workers in the memory of their devices.
    pub(crate) fn has_device_reducer(&self) -> bool {
        self.shared.device.get().is_some()
    }

    /// The sum of flattened gradients over the workers; called by replica 0 of each.
    pub(crate) fn sum_tensors(&self, tensors: Vec<Tensor<1>>) -> Result<Vec<Tensor<1>>> {
        match self.shared.device.get() {
            Some(device) => self.held_up(|| lock(device).all_reduce(ReduceOp::Sum, tensors)),
            None => self.sum_through_host(tensors),
        }
    }

    /// Copies the tensors to the host and back.
    fn sum_through_host(&self, tensors: Vec<Tensor<1>>) -> Result<Vec<Tensor<1>>> {
        let Some(device) = tensors.first().map(Tensor::device) else {
            return Ok(tensors);
        };
        let copies = tensors
            .into_iter()
            .map(|tensor| tensor.try_into_data().map_err(Error::internal));
        let mut copies = copies.collect::<Result<Vec<_>>>()?;
        let mut buffers = as_buffers(&mut copies)?;
        let options = self.options();
        options.batch_all_reduce(self.communicator().as_mut(), ReduceOp::Sum, &mut buffers)?;
        let back = copies.into_iter().map(|data| {
            let dtype = data.dtype();
            Tensor::from_data(data, (&device, dtype))
        });
        Ok(back.collect())
    }
}
