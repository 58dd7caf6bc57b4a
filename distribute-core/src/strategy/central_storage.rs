//! One copy of every variable in host memory, computation on all devices.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use distribute_collectives::GroupOptions;

use super::mirrored::{distinct_or_all, no_replicas, replicas_on};
use super::{InputContext, Replica, ReplicaStep, Strategy, StrategyId, VariablePlacement};
use crate::cross_device::ReductionToOneDevice;
use crate::device_reduce::DevicePlan;
use crate::strategy::engine::{Engine, EngineOptions};
use crate::{LogicalDevice, Result};

/// Variables are stored once, in host memory, and one update is applied to them; every replica
/// computes gradients from handles of that one copy
/// (TensorFlow: `tf.distribute.experimental.CentralStorageStrategy`).
///
/// Compared with [`MirroredStrategy`](crate::MirroredStrategy), weights and optimizer slots take
/// memory once instead of once per replica, and the update runs once instead of once per
/// replica; in exchange it does not run in parallel.
#[derive(Clone)]
#[must_use]
pub struct CentralStorageStrategy {
    engine: Arc<Engine>,
    id: StrategyId,
}

impl CentralStorageStrategy {
    /// Replicas on these devices; an empty list means all CPU cores.
    ///
    /// # Errors
    /// If a device is named twice, or the threads cannot be started.
    pub fn new(devices: impl IntoIterator<Item = LogicalDevice>) -> Result<Self> {
        let devices = distinct_or_all(devices.into_iter().collect())?;
        LogicalDevice::check_all(&devices)?;
        let timeout = Duration::from_secs(300);
        let options = EngineOptions {
            timeout,
            threads_per_replica: 1,
            placement: VariablePlacement::Central,
            cross_device_ops: Arc::new(ReductionToOneDevice::default()),
            group: GroupOptions::default().timeout(timeout),
            workers: None,
            devices: DevicePlan::default(),
        };
        let id = StrategyId::new("central-storage", devices.len());
        Ok(Self {
            engine: Arc::new(Engine::new(replicas_on(&devices), options)?),
            id,
        })
    }

    /// `count` replicas on `cpu:0`, `cpu:1`, ...
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn with_replicas(count: usize) -> Result<Self> {
        if count == 0 {
            return Err(no_replicas());
        }
        Self::new((0..count).map(LogicalDevice::cpu))
    }
}

impl Strategy for CentralStorageStrategy {
    fn name(&self) -> &'static str {
        "central-storage"
    }

    fn num_replicas_in_sync(&self) -> usize {
        self.engine.replicas().len()
    }

    fn replicas(&self) -> &[Replica] {
        self.engine.replicas()
    }

    fn input_context(&self) -> InputContext {
        InputContext {
            num_replicas_in_sync: self.num_replicas_in_sync(),
            ..Default::default()
        }
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
        self.engine.run(&self.handle(), step)
    }
}

impl fmt::Debug for CentralStorageStrategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CentralStorageStrategy")
            .field("replicas", &self.replicas())
            .finish()
    }
}
