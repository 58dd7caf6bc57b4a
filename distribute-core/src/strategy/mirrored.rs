//! Synchronous training on all devices of one machine.

use std::sync::Arc;
use std::time::Duration;

use super::layout::{Layout, replicas_on};
use super::replica_threads::{ReplicaThreads, ReplicaThreadsBuilder};
use super::{Replica, ReplicaStep, Strategy, StrategyId, handle_of};
use crate::cross_device::CrossDeviceOps;
use crate::device_reduce::DevicePlan;
use crate::macros::setters;
use crate::{DeviceReducers, LogicalDevice, Result};

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
    layout: Layout,
    reducers: Option<Arc<dyn DeviceReducers>>,
    threads: ReplicaThreadsBuilder,
}

impl MirroredStrategyBuilder {
    setters! { self;
        /// `count` replicas on the logical devices `cpu:0`, `cpu:1`, ... With more of them than
        /// [cores](Self::cores), neighbours share a core and compute one after the other, as
        /// [`replicas_per_device`](Self::replicas_per_device) says.
        replicas(count: usize) => layout = self.layout.with_devices(Layout::replicas(count));

        /// A replica on each of these devices, in this order. An empty list means all CPU cores.
        devices(devices: impl IntoIterator<Item = LogicalDevice>) =>
            layout = self.layout.with_devices(Layout::on_any(devices));

        /// `count` replicas on each device instead of one: the replicas of the first device
        /// have the lowest ids. With [`replicas`](Self::replicas) it divides their number.
        ///
        /// The replicas of a device have their own ids, random streams, parts of the batch and
        /// running statistics, as if each had a device of its own, and give the same bits. They
        /// compute one after the other: one runs until it waits for other replicas (its gradients
        /// are reduced, say, or a synchronized normalization in the middle of its forward pass) and
        /// is suspended there until all have come. So the memory of the device holds the
        /// activations of one replica between two such calls, the gradients of all of them during a
        /// reduction, and one copy of weights and slots once they were updated: the update is
        /// computed once per device.
        ///
        /// TensorFlow divides a device by `tf.config.set_logical_device_configuration`; its logical
        /// devices each reserve a part of the memory and compute at the same time.
        ///
        /// A step must not wait for another replica in any other way than by calls of its context:
        /// the other one may not have begun. It must not give one copy of a mirrored model other
        /// weights than the others before the update either, or those on its device get them too.
        replicas_per_device(count: usize) => layout = self.layout.per_device(count);

        /// How many replicas on CPUs compute at once: on all cores that this process may use by
        /// default.
        cores(cores: usize) => threads = self.threads.cores(cores);

        /// How gradients are summed over the replicas; [`DirectAllReduce`](crate::DirectAllReduce)
        /// by default.
        cross_device_ops(ops: impl CrossDeviceOps + 'static) =>
            threads = self.threads.cross_device_ops(Arc::new(ops));

        /// Reducers of one's own for gradients in the memory of devices. Not used where the
        /// [cross-device ops](Self::cross_device_ops) want them in host memory.
        device_reducers(own: impl DeviceReducers + 'static) => reducers = Some(Arc::new(own));

        /// How long a replica waits for the others, in a cross-replica call or at the end of a
        /// step, before it reports which one is missing; 5 minutes by default. Longer than the
        /// difference between the fastest and the slowest replica of a step. Where several replicas
        /// take turns it is the time of each of them.
        timeout(timeout: Duration) => threads = self.threads.timeout(timeout);
    }

    /// [Gradient checkpointing](Replica::gradient_checkpointing) on all replicas.
    pub fn gradient_checkpointing(mut self) -> Self {
        self.threads = self.threads.gradient_checkpointing();
        self
    }

    /// Starts the replicas' threads.
    ///
    /// # Errors
    /// If there are 0 replicas, their number is not a multiple of those
    /// [per device](Self::replicas_per_device), a device is named twice, or the threads cannot be
    /// started;
    /// [`BackendUnavailable`](distribute_collectives::CollectiveError::BackendUnavailable) for a
    /// device that is not there, and for a way of reduction asked for by name that cannot be
    /// used.
    pub fn build(self) -> Result<MirroredStrategy> {
        let devices = self.layout.devices()?;
        let id = StrategyId::new("mirrored", devices.len());
        let threads = self.threads;
        let wanted = threads.cross_device_ops.device_reduction();
        let plan = DevicePlan::new(wanted, self.reducers, &devices, threads.timeout)?;
        let threads = threads.devices(plan).build(replicas_on(0, &devices))?;
        let threads = Arc::new(threads);
        Ok(MirroredStrategy { threads, id })
    }
}

impl Strategy for MirroredStrategy {
    handle_of!(self: self.threads.replicas(), step => self.threads.run(&self.handle(), step));

    fn device_reduction(&self) -> Vec<&str> {
        self.threads.device_reduction().into_iter().collect()
    }
}
