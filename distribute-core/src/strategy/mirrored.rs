//! Synchronous training on all devices of one machine.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use super::replica_threads::{ReplicaThreads, ReplicaThreadsBuilder};
use super::{Replica, ReplicaStep, Strategy, StrategyId};
use crate::cross_device::CrossDeviceOps;
use crate::device_reduce::DevicePlan;
use crate::{DeviceReducers, Error, LogicalDevice, Result};

/// One replica per device of this machine; every replica has a copy of every variable, and
/// gradients are summed over the replicas before each update
/// (TensorFlow: `tf.distribute.MirroredStrategy`).
///
/// ```
/// use distribute_core::{MirroredStrategy, Strategy};
///
/// let strategy = MirroredStrategy::builder().replicas(2).build()?;
/// println!("Number of devices: {}", strategy.num_replicas_in_sync());
/// # Ok::<(), distribute_core::Error>(())
/// ```
#[derive(Debug, Clone)]
#[must_use]
pub struct MirroredStrategy {
    threads: Arc<ReplicaThreads>,
    id: StrategyId,
}

impl MirroredStrategy {
    /// One replica per CPU core that this process may use.
    ///
    /// # Errors
    /// If the threads cannot be started.
    pub fn new() -> Result<Self> {
        Self::builder().build()
    }

    /// Chooses devices and options.
    pub fn builder() -> MirroredStrategyBuilder {
        MirroredStrategyBuilder::default()
    }

    /// The cross-device ops in use.
    pub fn cross_device_ops(&self) -> &dyn CrossDeviceOps {
        self.threads.cross_device_ops()
    }
}

/// Options of a [`MirroredStrategy`].
#[derive(Debug, Clone, Default)]
#[must_use]
pub struct MirroredStrategyBuilder {
    /// All CPU cores by default.
    devices: Option<Vec<LogicalDevice>>,
    reducers: Option<Arc<dyn DeviceReducers>>,
    threads: ReplicaThreadsBuilder,
}

impl MirroredStrategyBuilder {
    /// `count` replicas on the logical devices `cpu:0`, `cpu:1`, ...; more than cores is allowed
    /// and slow.
    pub fn replicas(mut self, count: usize) -> Self {
        self.devices = Some((0..count).map(LogicalDevice::cpu).collect());
        self
    }

    /// One replica on each of these devices, in this order. An empty list means all CPU cores.
    pub fn devices(mut self, devices: impl IntoIterator<Item = LogicalDevice>) -> Self {
        let devices: Vec<_> = devices.into_iter().collect();
        self.devices = (!devices.is_empty()).then_some(devices);
        self
    }

    /// How gradients are summed over the replicas; [`DirectAllReduce`](crate::DirectAllReduce) by
    /// default.
    pub fn cross_device_ops(mut self, ops: impl CrossDeviceOps + 'static) -> Self {
        self.threads = self.threads.cross_device_ops(Arc::new(ops));
        self
    }

    /// Reducers of one's own for gradients in the memory of devices. Not used where the
    /// [cross-device ops](Self::cross_device_ops) want them in host memory.
    pub fn device_reducers(mut self, reducers: impl DeviceReducers + 'static) -> Self {
        self.reducers = Some(Arc::new(reducers));
        self
    }

    /// How long a replica waits for the others, in a cross-replica call or at the end of a step,
    /// before it reports which one is missing; 5 minutes by default. Longer than the difference
    /// between the fastest and the slowest replica of a step.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.threads = self.threads.timeout(timeout);
        self
    }

    /// Starts the replicas' threads.
    ///
    /// # Errors
    /// If there are 0 replicas or a device is named twice, or the threads cannot be started;
    /// [`BackendUnavailable`](distribute_collectives::CollectiveError::BackendUnavailable) for a
    /// device that is not there, and for a way of reduction asked for by name that cannot be used.
    pub fn build(self) -> Result<MirroredStrategy> {
        let devices = distinct_or_all(self.devices)?;
        let id = StrategyId::new("mirrored", devices.len());
        let threads = self.threads;
        let wanted = threads.cross_device_ops.device_reduction();
        let plan = DevicePlan::new(wanted, self.reducers, &devices, threads.timeout)?;
        let threads = threads.devices(plan).build(replicas_on(0, &devices))?;
        let threads = Arc::new(threads);
        Ok(MirroredStrategy { threads, id })
    }
}

/// The devices themselves, or all CPU cores if there are none.
///
/// # Errors
/// If the list is empty, or a device is named twice or is not there.
pub(super) fn distinct_or_all(devices: Option<Vec<LogicalDevice>>) -> Result<Vec<LogicalDevice>> {
    let Some(devices) = devices else {
        return Ok(LogicalDevice::all_cpus());
    };
    if devices.is_empty() {
        let none = "a strategy needs at least 1 replica; leave the number out for all cores";
        return Err(Error::invalid(none));
    }
    let distinct: BTreeSet<_> = devices.iter().collect();
    if distinct.len() < devices.len() {
        let names: Vec<_> = devices.iter().map(ToString::to_string).collect();
        return Err(Error::invalid(format!(
            "a device may be named once only in `devices`, got {}",
            names.join(", ")
        )));
    }
    devices.iter().try_for_each(|device| device.check())?;
    Ok(devices)
}

/// One replica per device, numbered in order from `first`.
pub(super) fn replicas_on(first: usize, devices: &[LogicalDevice]) -> Vec<Replica> {
    let devices = (first..).zip(devices);
    devices
        .map(|(id, device)| Replica::new(id, *device))
        .collect()
}

impl Strategy for MirroredStrategy {
    fn replicas(&self) -> &[Replica] {
        self.threads.replicas()
    }

    fn id(&self) -> StrategyId {
        self.id.clone()
    }

    fn handle(&self) -> Arc<dyn Strategy> {
        Arc::new(self.clone())
    }

    fn device_reduction(&self) -> Vec<&str> {
        self.threads.device_reduction().into_iter().collect()
    }

    fn run_replicas(&self, step: ReplicaStep<'_>) -> Result<()> {
        self.threads.run(&self.handle(), step)
    }
}
