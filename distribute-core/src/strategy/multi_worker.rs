//! Synchronous training over several processes, on one machine or many.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use distribute_collectives::control::security::Security;
use distribute_collectives::{
    Communicator, GroupOptions, Interruption, Order, ProcessGroupOptions, ProcessTransport,
};

use super::layout::{Layout, replicas_on};
use super::replica_threads::{ReplicaThreads, ReplicaThreadsBuilder};
use super::{Replica, ReplicaStep, Strategy, StrategyId, handle_of};
use crate::cluster::{Cluster, ProcessEnvironment, TaskType, detect};
use crate::communication::{CommunicationImplementation, CommunicationOptions};
use crate::device::{Joined, with_handle};
use crate::device_reduce::DevicePlan;
use crate::macros::setters;
use crate::workers::shares::replica_range;
use crate::{DeviceReducers, Error, LogicalDevice, Result, WorkerGroup};

/// One or more replicas in each of several worker processes; every replica has a copy of every
/// variable, and gradients are summed over all replicas of all workers before each update
/// (TensorFlow: `tf.distribute.MultiWorkerMirroredStrategy`).
///
/// Every worker runs the same program. The cluster comes from `TF_CONFIG` or from what SLURM,
/// Kubernetes, Open MPI or torchrun set (see [`cluster`](crate::cluster)); without any of them the
/// process is the only worker and the strategy does what [`MirroredStrategy`] does. An evaluator is
/// a cluster of its own, as in TensorFlow.
///
/// What happens on all workers together, so that all must make the call: building the strategy,
/// [`scope`](crate::StrategyExt::scope) (the chief's initial values go to all workers), variables,
/// `reduce`, `gather`, metrics' results, reading summed variables, and in a step what happens on
/// all replicas. `run` itself and `local_results` concern one worker.
///
/// Order of a reduction, in a step and outside of one: the canonical one, a
/// [tree](distribute_collectives::tree) over all replicas. It depends on the number of replicas
/// alone: 8 replicas in one process, in 2 workers of 4 or in workers of 5, 2 and 1 give the same
/// bits, over every transport, whichever algorithm the links were found best for. Workers whose
/// numbers of replicas are equal powers of two exchange the bytes of a ring; what others do is in
/// [`Terms`](distribute_collectives::Terms). With the implementation RING the sums of the workers
/// are added as a ring adds them, unless [`order`](MultiWorkerMirroredStrategyBuilder::order) says
/// otherwise; NCCL between GPUs has an order of its own.
///
/// When a worker fails, the others' running and later calls end with an error that names it;
/// start all workers again from the last checkpoint (`distribute-cli launch` does).
///
/// ```
/// use distribute_core::{MultiWorkerMirroredStrategy, Strategy};
///
/// // Without a cluster in the environment: the only worker.
/// let strategy = MultiWorkerMirroredStrategy::builder().replicas(2).build()?;
/// assert_eq!(strategy.num_replicas_in_sync(), 2);
/// assert!(strategy.is_chief());
/// # Ok::<(), distribute_core::Error>(())
/// ```
///
/// [`MirroredStrategy`]: crate::MirroredStrategy
#[derive(Debug, Clone)]
#[must_use]
pub struct MultiWorkerMirroredStrategy {
    threads: Arc<ReplicaThreads>,
    id: StrategyId,
    workers: Option<WorkerGroup>,
    cluster: Option<Cluster>,
    /// How gradients on devices are reduced between workers, in words.
    inter_worker: Option<String>,
}

impl MultiWorkerMirroredStrategy {
    /// One replica in this worker, in the cluster that the environment describes.
    ///
    /// # Errors
    /// The errors of [`MultiWorkerMirroredStrategyBuilder::build`].
    pub fn new() -> Result<Self> {
        Self::builder().build()
    }

    /// Chooses devices, cluster and options.
    pub fn builder() -> MultiWorkerMirroredStrategyBuilder {
        MultiWorkerMirroredStrategyBuilder::default()
    }

    /// The cluster, if there is one.
    pub fn cluster(&self) -> Option<&Cluster> {
        self.cluster.as_ref()
    }

    /// Whether this worker writes what is written once: checkpoints, logs
    /// (TensorFlow: `extended.should_checkpoint`).
    pub fn is_chief(&self) -> bool {
        self.workers.as_ref().is_none_or(WorkerGroup::is_chief)
    }
}

/// Options of a [`MultiWorkerMirroredStrategy`].
#[derive(Debug, Default)]
#[must_use]
pub struct MultiWorkerMirroredStrategyBuilder {
    layout: Option<Layout>,
    total_replicas: Option<usize>,
    threads: ReplicaThreadsBuilder,
    cluster: Option<Option<Cluster>>,
    communicator: Option<CustomCommunicator>,
    communication: CommunicationOptions,
    order: Option<Order>,
    transport: ProcessTransport,
    security: Security,
    generation: u64,
    flight_records: Option<PathBuf>,
    rendezvous_timeout: Option<Duration>,
    own_host: Option<String>,
    link_memory: Option<PathBuf>,
    interruption: Interruption,
    silence: Option<Duration>,
    timeout: Option<Duration>,
    reducers: Option<Arc<dyn DeviceReducers>>,
}

/// The beats that must all fail to come before a worker counts as lost.
const HEARTBEATS: u32 = 6;

/// How much longer the replicas of a worker wait for each other than workers do.
const MARGIN: Duration = Duration::from_secs(30);

/// A communicator of the caller's.
struct CustomCommunicator(Box<dyn Communicator>);

impl fmt::Debug for CustomCommunicator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0.describe())
    }
}

impl MultiWorkerMirroredStrategyBuilder {
    setters! { self;
        /// `count` replicas in this worker, on the logical devices `cpu:0`, `cpu:1`, ...; 1 by
        /// default, and not one for each core as under a [`MirroredStrategy`]: several workers may
        /// share the cores of a machine, and a job has the same replicas, and so the same bits,
        /// whichever machines it runs on. Workers may have different numbers. With more of them
        /// than [cores](Self::cores), neighbours share a core and take turns.
        ///
        /// [`MirroredStrategy`]: crate::MirroredStrategy
        replicas(count: usize) =>
            layout = Some(self.layout().with_devices(Layout::replicas(count)));

        /// A replica of this worker on each of these devices, in this order.
        devices(devices: impl IntoIterator<Item = LogicalDevice>) =>
            layout = Some(self.layout().with_devices(Layout::on(devices)));

        /// `count` replicas on each device of this worker, where they take turns as under a
        /// [`MirroredStrategy`]. Workers may have different numbers.
        ///
        /// [`MirroredStrategy`]: crate::MirroredStrategy
        replicas_per_device(count: usize) => layout = Some(self.layout().per_device(count));

        /// How many replicas on CPUs compute at once in this worker: on all cores that the process
        /// may use by default.
        cores(cores: usize) => threads = self.threads.cores(cores);

        /// This many replicas in the whole job, however many workers there are: this worker holds
        /// the replicas of [`replica_range`], on its first [devices](Self::devices), else on
        /// `cpu:0`, `cpu:1`, ...
        ///
        /// The number is chosen once, so that a job can go on with fewer or more workers: global
        /// batch, replica ids and what depends on them stay as they were. A process without a
        /// cluster, and an evaluator, is the only worker. It takes the place of
        /// [`replicas`](Self::replicas).
        total_replicas(total: usize) => total_replicas = Some(total);

        /// The cluster and this process' place in it; `None` for the only worker. By default what
        /// [`detect`] finds in the environment.
        cluster(cluster: impl Into<Option<Cluster>>) => cluster = Some(cluster.into());

        /// A group of one's own between the workers instead of connections to the addresses of
        /// the cluster: its ranks are the workers. Make it with [`Order::Canonical`] where it has
        /// other algorithms too.
        communicator(own: Box<dyn Communicator>) => communicator = Some(CustomCommunicator(own));

        /// TensorFlow's options: the size of packs, the deadline of an exchange, the
        /// implementation; and what gradients [travel as](CommunicationOptions::wire).
        ///
        /// Gradients of GPUs: AUTO uses NCCL where all workers can, and otherwise (two workers on
        /// one GPU, no NCCL) goes through host memory, by what carries other values; the reason is
        /// told ([`device_reduction`](Strategy::device_reduction)). NCCL is an error where one
        /// worker cannot. RING goes through host memory.
        communication_options(options: CommunicationOptions) => communication = options;

        /// In which order the sums of workers are combined in host memory: canonical by default,
        /// and with the implementation RING as a ring does. [`Order::Canonical`] with RING gives
        /// the bits of the default with the chunks of a ring. A
        /// [communicator](Self::communicator) of one's own has its order already.
        order(order: Order) => order = Some(order);

        /// Reducers of one's own for gradients in the memory of devices, such as NCCL on memory of
        /// one's own (`NcclReducers`, feature `nccl`), instead of those that the GPUs come
        /// with.
        device_reducers(own: impl DeviceReducers + 'static) => reducers = Some(Arc::new(own));

        /// What carries the bytes between workers: shared memory where workers share a host and
        /// gRPC elsewhere by default.
        transport(transport: ProcessTransport) => transport = transport;

        /// Token and certificates; needed as soon as an address is not a loopback one.
        security(security: Security) => security = security;

        /// The index of this start of the job, from 0: workers of different starts do not join.
        generation(generation: u64) => generation = generation;

        /// Where each worker writes its last operations when one fails, for `distribute-cli blame`.
        flight_records(directory: impl Into<PathBuf>) => flight_records = Some(directory.into());

        /// A file of this worker alone that outlives it, where it remembers what the links to the
        /// others cost: after a restart on the same hosts they are not measured again. `launch`
        /// keeps one in memory, by the name in `DISTRIBUTE_LINK_MEMORY`.
        link_memory(path: impl Into<PathBuf>) => link_memory = Some(path.into());

        /// How long to wait for the other workers at the start; 1 minute by default.
        rendezvous_timeout(timeout: Duration) => rendezvous_timeout = Some(timeout);

        /// The name or IP address of this host for the other workers, where the cluster says only
        /// where worker 0 is (torchrun, Open MPI): by default the address from which this host
        /// reaches worker 0. With certificates that of this host must be for it.
        own_host(host: impl Into<Option<String>>) => own_host = host.into();

        /// What ends waits for the other workers before their time, such as a signal; nothing by
        /// default. The error is [`CollectiveError::Interrupted`], on all workers. In a loop of
        /// one's own, [hold](Interruption::hold) it once there is something to lose and use
        /// [`WorkerGroup::request_stop`]; `Fit` holds it from its first step on, so that then only
        /// waits end for a worker that gives no sign of life for a second.
        ///
        /// [`CollectiveError::Interrupted`]: distribute_collectives::CollectiveError::Interrupted
        interruption(interruption: Interruption) => interruption = interruption;

        /// After how long without a sign of life a worker counts as lost: stopped, or cut off; 3
        /// seconds by default, at least 6 ms. Longer where the network may pause.
        heartbeat_timeout(silence: Duration) =>
            silence = Some(silence.max(Duration::from_millis(6)));

        /// How long a replica waits for the others of this worker; 5 minutes by default, for each
        /// of those that take turns. For other workers it is the timeout of the
        /// [communication options](Self::communication_options), or else the same: it must be
        /// longer than all turns of a step of the worker that has the most replicas on a device.
        timeout(timeout: Duration) => timeout = Some(timeout);
    }

    /// [Gradient checkpointing](Replica::gradient_checkpointing) on all replicas.
    pub fn gradient_checkpointing(mut self) -> Self {
        self.threads = self.threads.gradient_checkpointing();
        self
    }

    /// Meets the other workers and starts this worker's replicas. Blocks until all workers are
    /// there.
    ///
    /// # Errors
    /// If there are 0 replicas or a device is named twice, or threads cannot be started;
    /// [`Error::TooFewReplicas`], [`Error::TooFewDevices`] and [`Error::DifferentTotals`] if the
    /// [number of all replicas](Self::total_replicas) does not fit the workers;
    /// [`Error::Cluster`] if the environment describes a cluster wrongly, or a launcher has started
    /// several processes and does not say enough; [`Error::Collective`] if
    /// an address cannot be used or a worker does not come (it is named).
    pub fn build(mut self) -> Result<MultiWorkerMirroredStrategy> {
        let cluster = match self.cluster.take() {
            Some(given) => given,
            None if self.communicator.is_some() => None,
            None => Cluster::resolve(&*detect(ProcessEnvironment).resolver)?,
        };
        let devices = self.own_devices(cluster.as_ref())?;
        let joined = self.join_workers(cluster.as_ref(), &devices)?;
        let (communicator, shared) = joined.unzip();
        let workers = communicator
            .map(|group| WorkerGroup::new(group, devices.len(), self.communication))
            .transpose()?
            .map(|workers| workers.interrupted_by(self.interruption.clone()));
        if let Some(workers) = &workers {
            workers.or_abort(self.check_total(workers.num_replicas()))?;
        }
        let first = workers.as_ref().map_or(0, WorkerGroup::first_replica);
        let count = workers
            .as_ref()
            .map_or(devices.len(), WorkerGroup::num_replicas);
        // Replicas wait for the one that speaks with other workers; who is missing there is to be
        // named, not that one.
        let own = self.own_timeout();
        let between_workers = self.communication.timeout.unwrap_or_default();
        let timeout = match &workers {
            Some(_) => own.max(between_workers).saturating_add(MARGIN),
            None => own,
        };
        let wanted = self.communication.implementation.into();
        let plan = DevicePlan::new(wanted, self.reducers.clone(), &devices, timeout)?;
        let threads = (self.threads)
            .timeout(timeout)
            .workers(workers.clone())
            .devices(plan.clone())
            .build(replicas_on(first, &devices))?;
        let threads = Arc::new(threads);
        let inter_worker = match &workers {
            Some(workers) if cfg!(feature = "nccl") => {
                let (shared, options) = (shared.flatten(), self.communication);
                workers.or_abort(plan.join_workers(workers, shared, &devices, options))?
            }
            _ => None,
        };
        Ok(MultiWorkerMirroredStrategy {
            threads,
            id: StrategyId::new("multi-worker", count),
            workers,
            cluster,
            inter_worker,
        })
    }

    /// What was asked for, or one replica on `cpu:0`.
    fn layout(&self) -> Layout {
        let one = || Layout::on([LogicalDevice::cpu(0)]);
        self.layout.clone().unwrap_or_else(one)
    }

    /// How long its replicas wait for each other.
    fn own_timeout(&self) -> Duration {
        self.timeout.unwrap_or(Duration::from_secs(300))
    }

    /// The devices of this worker's replicas.
    fn own_devices(&self, cluster: Option<&Cluster>) -> Result<Vec<LogicalDevice>> {
        let Some(total) = self.total_replicas else {
            return self.layout().devices();
        };
        let (workers, worker) = match (&self.communicator, cluster) {
            (Some(CustomCommunicator(group)), _) => (group.world_size(), group.rank()),
            (None, Some(cluster)) if cluster.task_type() != TaskType::Evaluator => {
                (cluster.worker_count(), cluster.rank().unwrap_or(0))
            }
            (None, _) => (1, 0),
        };
        let replicas = replica_range(total, workers, worker)?.len();
        let Some(layout) = &self.layout else {
            return Layout::replicas(replicas).devices();
        };
        let mut devices = layout.devices()?;
        if devices.len() < replicas {
            let devices = devices.len();
            return Err(Error::TooFewDevices { replicas, devices });
        }
        devices.truncate(replicas);
        Ok(devices)
    }

    /// Finds workers that were told another number of replicas.
    fn check_total(&self, found: usize) -> Result<()> {
        match self.total_replicas {
            Some(own) if own != found => Err(Error::DifferentTotals { own, found }),
            _ => Ok(()),
        }
    }

    /// The group of the workers; `None` for the only one.
    fn join_workers(
        &mut self,
        cluster: Option<&Cluster>,
        devices: &[LogicalDevice],
    ) -> Result<Option<Joined>> {
        if let Some(CustomCommunicator(communicator)) = self.communicator.take() {
            let several = communicator.world_size() > 1;
            return Ok(several.then_some((communicator, None)));
        }
        let Some(cluster) = cluster else {
            return Ok(None);
        };
        let addresses = match cluster.task_type() {
            TaskType::Evaluator => return Ok(None),
            TaskType::ParameterServer => {
                return Err(Error::invalid(
                    "this process is a parameter server (ps) of its cluster, which trains \
                     nothing: multi-worker training uses the tasks chief and worker",
                ));
            }
            _ => cluster.workers(),
        };
        let Some(rank) = cluster.rank().filter(|_| addresses.len() > 1) else {
            return Ok(None);
        };
        let group = GroupOptions::default()
            .name("workers")
            .generation(self.generation)
            .timeout(self.own_timeout());
        let mut communication = self.communication;
        let is_nccl = communication.implementation == CommunicationImplementation::Nccl;
        let mut gpus = devices.iter().filter_map(|device| device.gpu_index());
        if is_nccl && (self.reducers.is_some() || gpus.next().is_some()) {
            // For gradients; everything else goes through the host.
            communication.implementation = CommunicationImplementation::Auto;
        }
        let order = self.order.unwrap_or(match communication.implementation {
            // After a restart the replicas may be on other hosts, in other processes: all have to
            // give the same bits.
            CommunicationImplementation::Auto => Order::Canonical,
            _ => Order::Fast,
        });
        let group = communication.apply(group.order(order))?;
        let silence = self.silence.unwrap_or(Duration::from_secs(3));
        let rendezvous = self.rendezvous_timeout.unwrap_or(Duration::from_secs(60));
        let mut options = ProcessGroupOptions::partly_listed(rank, addresses)
            .own_host(self.own_host.take())
            .own_port(cluster.own_port().unwrap_or(0))
            .group(group)
            .transport(self.transport)
            .security(std::mem::take(&mut self.security))
            .heartbeat(silence / HEARTBEATS, HEARTBEATS)
            .rendezvous_timeout(rendezvous)
            .interruption(self.interruption.clone());
        if let Some(directory) = self.flight_records.take() {
            options = options.flight_records(directory);
        }
        if let Some(path) = self.link_memory.take() {
            options = options.link_memory(path);
        }
        let communicator = options.bind()?.meet()?;
        Ok(Some(with_handle(communicator)))
    }
}

impl Strategy for MultiWorkerMirroredStrategy {
    handle_of!(self: self.threads.replicas(), step => self.threads.run(&self.handle(), step));

    fn workers(&self) -> Option<&WorkerGroup> {
        self.workers.as_ref()
    }

    fn device_reduction(&self) -> Vec<&str> {
        let local = self.threads.device_reduction().into_iter();
        local.chain(self.inter_worker.as_deref()).collect()
    }
}
