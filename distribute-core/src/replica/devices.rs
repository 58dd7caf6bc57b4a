//! Replicas whose gradients are reduced in the memory of their devices; all other values go through
//! host memory.

use std::sync::{Arc, Mutex};

use burn::tensor::{Device, Tensor, TensorData};
use distribute_collectives::ReduceOp;

use super::differentiable::Differentiable;
use super::host::HostPeers;
use super::local_exchange::LocalExchange;
use super::log::Log;
use super::peers::{OnReduced, Peers};
use super::turns::{Turn, pause};
use crate::sync::lock;
use crate::{DeviceReducer, Error, Gradients, Nest, Result};

/// One replica of several, with its ends of what reduces on devices.
pub(crate) struct Devices {
    host: HostPeers,
    device: Device,
    num_replicas: usize,
    /// With the replicas of this process.
    local: Option<Mutex<Box<dyn DeviceReducer>>>,
}

impl Devices {
    pub(crate) fn new(
        host: HostPeers,
        device: &Device,
        num_replicas: usize,
        local: Option<Box<dyn DeviceReducer>>,
    ) -> Self {
        Self {
            host,
            device: device.clone().without_autodiff(),
            num_replicas,
            local: local.map(Mutex::new),
        }
    }

    /// Whether gradients are reduced in the memory of the devices; the same on all replicas.
    fn reduces(&self) -> bool {
        match self.host.workers() {
            // NCCL does not round, and adds in an order of its own: the bits would depend on how
            // the replicas lie in workers.
            Some(workers) if workers.options().wire.is_some() => false,
            Some(workers) if self.host.num_local == 1 => workers.has_device_reducer(),
            _ => self.local.is_some(),
        }
    }

    /// Sums flattened tensors: over the replicas of the process, by replica 0 over the workers, and
    /// back to the replicas.
    fn sum(&self, mut tensors: Vec<Tensor<1>>) -> Result<Vec<Tensor<1>>> {
        let _paused = pause(self.host.turn());
        if let Some(local) = &self.local {
            tensors = lock(local).all_reduce(ReduceOp::Sum, tensors)?;
        }
        let Some(workers) = self.host.workers() else {
            return Ok(tensors);
        };
        if self.host.local_id == 0 {
            tensors = workers.sum_tensors(tensors)?;
        }
        match &self.local {
            Some(local) => lock(local).broadcast(0, tensors),
            None => Ok(tensors),
        }
    }
}

/// Calls that go through host memory.
macro_rules! through_host {
    ($(fn $name:ident(&self $(, $arg:ident: $type:ty)*) $(-> $out:ty)?;)*) => {$(
        fn $name(&self $(, $arg: $type)*) $(-> $out)? {
            self.host.$name($($arg),*)
        }
    )*};
}

impl Peers for Devices {
    /// First the replicas tell each other through the host which gradients they have, so that a
    /// replica that does not come is found before the devices begin.
    fn all_reduce_gradients(&self, op: ReduceOp, gradients: &mut Gradients) -> Result<()> {
        if !self.reduces() {
            return self.host.all_reduce_gradients(op, gradients);
        }
        gradients.refuse_rows("a reduction over replicas")?;
        let mut buffer = [gradients.flags(&self.host.signals())];
        let host = &self.host;
        host.waiting().all_reduce(ReduceOp::Sum, &mut buffer)?;
        let mut flags = gradients.read_flags(&buffer[0])?;
        self.host.receive(&flags.take_signals());
        let mut sums = self.sum(gradients.take_tensors(&flags, &self.device)?)?;
        if op == ReduceOp::Mean {
            let replicas = self.num_replicas as f64;
            let means = sums.into_iter().map(|sum| sum.div_scalar(replicas));
            sums = means.collect();
        }
        gradients.put_tensors(sums, &flags);
        Ok(())
    }

    fn sum_gradients(&self, gradients: &mut Gradients, on_reduced: OnReduced<'_>) -> Result<()> {
        if !self.reduces() {
            return self.host.sum_gradients(gradients, on_reduced);
        }
        self.all_reduce_gradients(ReduceOp::Sum, gradients)?;
        on_reduced(0..gradients.len(), gradients)
    }

    fn keeps_gradients(&self) -> bool {
        self.reduces()
    }

    fn stop_others(&self, cause: &Error) {
        if let Some(local) = &self.local {
            lock(local).abort(&cause.to_string());
        }
        self.host.stop_others(cause);
    }

    through_host! {
        fn all_reduce(&self, op: ReduceOp, value: &mut dyn Nest) -> Result<()>;
        fn all_gather(&self, value: &mut dyn Nest, axis: i64) -> Result<()>;
        fn broadcast(&self, value: &mut dyn Nest, root: usize) -> Result<()>;
        fn all_reduce_tensor(&self, op: ReduceOp, tensor: &mut dyn Differentiable) -> Result<()>;
        fn reduce_gradients(&self, gradients: &mut Gradients) -> Result<()>;
        fn local_exchange(
            &self,
            op: &'static str,
            detail: i64
        ) -> Result<Option<Arc<LocalExchange>>>;
        fn gather_numbers(&self, mine: &[i64]) -> Result<Vec<Vec<i64>>>;
        fn begin_log(&self);
        fn take_log(&self) -> Log;
        fn take_initial_value(&self, initial: &mut TensorData) -> Result<()>;
        fn turn(&self) -> Option<&Turn>;
        fn check_backward(&self) -> Result<()>;
        fn begin_run(&self);
        fn finish_run(&self, id: usize) -> Result<()>;
    }
}
