//! One copy of every variable in host memory, computation on all devices.

use std::sync::Arc;

use super::layout::{Layout, replicas_on};
use super::replica_threads::ReplicaThreads;
use super::{Replica, ReplicaStep, Strategy, StrategyId, VariablePlacement, handle_of};
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
        Self::on(&Layout::on_any(devices))
    }

    /// `count` replicas on `cpu:0`, `cpu:1`, ... With more of them than cores, neighbours share a
    /// core and take turns.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn with_replicas(count: usize) -> Result<Self> {
        Self::on(&Layout::replicas(count))
    }

    /// `count` replicas on each of these devices, where they take turns as under a
    /// [`MirroredStrategy`](crate::MirroredStrategy); an empty list means all CPU cores.
    ///
    /// # Errors
    /// As [`new`](Self::new), and for no replicas.
    pub fn with_replicas_per_device(
        devices: impl IntoIterator<Item = LogicalDevice>,
        count: usize,
    ) -> Result<Self> {
        Self::on(&Layout::on_any(devices).per_device(count))
    }

    fn on(layout: &Layout) -> Result<Self> {
        Self::of(replicas_on(0, &layout.devices()?))
    }

    /// The strategy with [gradient checkpointing](Replica::gradient_checkpointing) on all replicas.
    ///
    /// # Errors
    /// If the threads cannot be started.
    pub fn gradient_checkpointing(self) -> Result<Self> {
        let replicas = self.threads.replicas().iter().cloned();
        Self::of(replicas.map(Replica::gradient_checkpointing).collect())
    }

    fn of(replicas: Vec<Replica>) -> Result<Self> {
        let id = StrategyId::new("central-storage", replicas.len());
        let threads = ReplicaThreads::builder()
            .variable_placement(VariablePlacement::Central)
            .cross_device_ops(Arc::new(ReductionToOneDevice::default()))
            .build(replicas)?;
        Ok(Self {
            threads: Arc::new(threads),
            id,
        })
    }
}

impl Strategy for CentralStorageStrategy {
    handle_of!(self: self.threads.replicas(), step => self.threads.run(&self.handle(), step));

    fn variable_placement(&self) -> VariablePlacement {
        VariablePlacement::Central
    }
}
