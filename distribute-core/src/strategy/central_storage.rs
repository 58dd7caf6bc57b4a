//! One copy of every variable in host memory, computation on all devices.

use std::sync::Arc;

use super::mirrored::{distinct_or_all, replicas_on};
use super::replica_threads::ReplicaThreads;
use super::{Replica, ReplicaStep, Strategy, StrategyId, VariablePlacement};
use crate::cross_device::ReductionToOneDevice;
use crate::{LogicalDevice, Result};

/// Variables are stored once, in host memory, and one update is applied to them; every replica
/// computes gradients from handles of that one copy
/// (TensorFlow: `tf.distribute.experimental.CentralStorageStrategy`).
///
/// Compared with [`MirroredStrategy`](crate::MirroredStrategy), weights and optimizer slots take
/// memory once instead of once per replica, and the update runs once instead of once per
/// replica; in exchange it does not run in parallel.
#[derive(Debug, Clone)]
#[must_use]
pub struct CentralStorageStrategy {
    threads: Arc<ReplicaThreads>,
    id: StrategyId,
}

impl CentralStorageStrategy {
    /// Replicas on these devices; an empty list means all CPU cores.
    ///
    /// # Errors
    /// If a device is named twice, or the threads cannot be started.
    pub fn new(devices: impl IntoIterator<Item = LogicalDevice>) -> Result<Self> {
        let devices: Vec<_> = devices.into_iter().collect();
        Self::on((!devices.is_empty()).then_some(devices))
    }

    /// `count` replicas on `cpu:0`, `cpu:1`, ...
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn with_replicas(count: usize) -> Result<Self> {
        Self::on(Some((0..count).map(LogicalDevice::cpu).collect()))
    }

    fn on(devices: Option<Vec<LogicalDevice>>) -> Result<Self> {
        let devices = distinct_or_all(devices)?;
        let threads = ReplicaThreads::builder()
            .variable_placement(VariablePlacement::Central)
            .cross_device_ops(Arc::new(ReductionToOneDevice::default()))
            .build(replicas_on(0, &devices))?;
        let id = StrategyId::new("central-storage", devices.len());
        Ok(Self {
            threads: Arc::new(threads),
            id,
        })
    }
}

impl Strategy for CentralStorageStrategy {
    fn replicas(&self) -> &[Replica] {
        self.threads.replicas()
    }

    fn id(&self) -> StrategyId {
        self.id.clone()
    }

    fn handle(&self) -> Arc<dyn Strategy> {
        Arc::new(self.clone())
    }

    fn variable_placement(&self) -> VariablePlacement {
        VariablePlacement::Central
    }

    fn run_replicas(&self, step: ReplicaStep<'_>) -> Result<()> {
        self.threads.run(&self.handle(), step)
    }
}
