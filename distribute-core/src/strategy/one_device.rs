//! Everything on one named device.

use std::sync::Arc;

use super::{Replica, ReplicaStep, Strategy, StrategyId, handle_of, run_on_calling_thread};
use crate::{LogicalDevice, Result};

/// One replica on one chosen device (TensorFlow: `tf.distribute.OneDeviceStrategy`).
///
/// The step runs on the calling thread. Use it to try a distributed program on one device: input
/// goes through the same distribution code, and loss scaling follows the same rules.
#[derive(Debug, Clone)]
#[must_use]
pub struct OneDeviceStrategy {
    replicas: Arc<[Replica; 1]>,
    id: StrategyId,
}

impl OneDeviceStrategy {
    /// A strategy on this device.
    ///
    /// # Errors
    /// [`BackendUnavailable`](distribute_collectives::CollectiveError::BackendUnavailable) for a
    /// device that is not there.
    pub fn new(device: LogicalDevice) -> Result<Self> {
        device.check()?;
        let replicas = Arc::new([Replica::new(0, device)]);
        Ok(Self {
            replicas,
            id: StrategyId::new("one-device", 1),
        })
    }

    /// The strategy with [gradient checkpointing](Replica::gradient_checkpointing).
    pub fn gradient_checkpointing(mut self) -> Self {
        let [replica] = &*self.replicas;
        self.replicas = Arc::new([replica.clone().gradient_checkpointing()]);
        self
    }
}

impl Strategy for OneDeviceStrategy {
    handle_of!(self: &*self.replicas, step => {
        run_on_calling_thread(self.handle(), &self.replicas[0], step)
    });

    fn distributes_variables(&self) -> bool {
        false
    }
}
