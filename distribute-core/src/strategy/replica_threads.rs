//! How a step gets onto the replicas' threads, and what happens when one of them fails.

use std::collections::VecDeque;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use distribute_collectives::GroupOptions;
use rayon::{ThreadPool, ThreadPoolBuilder};

use super::layout::shared_devices;
use super::{Replica, ReplicaStep, Strategy, VariablePlacement};
use crate::cross_device::{CrossDeviceOps, DirectAllReduce};
use crate::device_reduce::DevicePlan;
use crate::macros::setters;
use crate::replica::{
    Alone, Devices, HostPeers, Link, LocalExchange, Peers, ReplicaCounts, Threads, Turn, Turns,
    Workers,
};
use crate::sync::{lock, panic_message, unlocked};
use crate::{Error, LogicalDevice, ReplicaContext, Result, WorkerGroup, available_cores, scope};

/// Runs a step on the calling thread, for strategies with one replica per process.
///
/// # Errors
/// The step's own, as [`Error::Replica`] or [`Error::ReplicaPanicked`].
pub fn run_on_calling_thread(
    strategy: Arc<dyn Strategy>,
    replica: &Replica,
    step: ReplicaStep<'_>,
) -> Result<()> {
    run_one(strategy, &mut ReplicaContext::alone(replica), step)
}

/// What the replica threads of one strategy need ([`ReplicaThreads::builder`]).
#[derive(Debug, Clone)]
#[must_use]
pub struct ReplicaThreadsBuilder {
    pub(super) timeout: Duration,
    placement: VariablePlacement,
    pub(super) cross_device_ops: Arc<dyn CrossDeviceOps>,
    workers: Option<WorkerGroup>,
    devices: DevicePlan,
    cores: usize,
    checkpointing: bool,
}

impl Default for ReplicaThreadsBuilder {
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(300),
            placement: VariablePlacement::Mirrored,
            cross_device_ops: Arc::new(DirectAllReduce),
            workers: None,
            devices: DevicePlan::default(),
            cores: available_cores(),
            checkpointing: false,
        }
    }
}

impl ReplicaThreadsBuilder {
    setters! { self;
        /// How long a replica may keep the others waiting, 5 minutes by default; times the number
        /// of replicas where several share a device.
        timeout(timeout: Duration) => timeout = timeout;

        /// Where training states keep their variables.
        variable_placement(placement: VariablePlacement) => placement = placement;

        /// What sums gradients over the replicas of this process.
        cross_device_ops(ops: Arc<dyn CrossDeviceOps>) => cross_device_ops = ops;

        /// The group of workers, if there are several.
        workers(workers: Option<WorkerGroup>) => workers = workers;

        /// How many replicas on CPUs compute at once; by default as many as this process has cores.
        cores(cores: usize) => cores = cores.max(1);
    }

    /// [Gradient checkpointing](Replica::gradient_checkpointing) on all replicas.
    pub fn gradient_checkpointing(mut self) -> Self {
        self.checkpointing = true;
        self
    }

    /// How gradients on devices are reduced.
    pub(crate) fn devices(mut self, devices: DevicePlan) -> Self {
        self.devices = devices;
        self
    }

    /// Starts one thread for each replica. Replicas that share a device, or the cores of the host,
    /// take turns: one of them computes at a time, while the others wait for it or for replicas of
    /// other devices.
    ///
    /// # Errors
    /// If threads cannot be started, or the devices cannot be connected.
    pub fn build(self, mut replicas: Vec<Replica>) -> Result<ReplicaThreads> {
        if self.checkpointing {
            let plain = replicas.into_iter();
            replicas = plain.map(Replica::gradient_checkpointing).collect();
        }
        let pools = replicas
            .iter()
            .map(|replica| {
                let id = replica.id;
                ThreadPoolBuilder::new()
                    .num_threads(1)
                    .thread_name(move |thread| format!("replica-{id}.{thread}"))
                    .build()
                    .map_err(|error| Error::System {
                        what: format!(
                            "cannot start threads: {error}; start fewer replicas, or raise the \
                             limit of processes (`ulimit -u`)"
                        ),
                    })
            })
            .collect::<Result<Vec<_>>>()?;
        let list = build_contexts(&replicas, &self, 0)?;
        let contexts = Mutex::new(Contexts {
            list,
            generation: 0,
        });
        Ok(ReplicaThreads {
            replicas,
            options: self,
            pools,
            contexts,
        })
    }
}

/// The replica threads of a strategy with several replicas in this process.
///
/// Every replica has a thread pool of its own (of one thread), so a replica that waits blocks no
/// other. Replicas that share a device take turns by themselves.
pub struct ReplicaThreads {
    replicas: Vec<Replica>,
    options: ReplicaThreadsBuilder,
    pools: Vec<ThreadPool>,
    /// Of the current group; the list is empty after a failed run and rebuilt by the next one.
    contexts: Mutex<Contexts>,
}

/// The replicas' contexts, and the index of the group that they hold the endpoints of, from 0.
struct Contexts {
    list: Vec<ReplicaContext>,
    generation: u64,
}

impl ReplicaThreads {
    /// Options for threads of a strategy.
    pub fn builder() -> ReplicaThreadsBuilder {
        ReplicaThreadsBuilder::default()
    }

    /// The replicas, in order.
    pub fn replicas(&self) -> &[Replica] {
        &self.replicas
    }

    pub(super) fn cross_device_ops(&self) -> &dyn CrossDeviceOps {
        &*self.options.cross_device_ops
    }

    /// How gradients on devices are reduced, in words, where there is something to tell.
    pub(crate) fn device_reduction(&self) -> Option<&str> {
        let outcome = self.options.devices.outcome();
        outcome.map(|outcome| outcome.text.as_str())
    }

    /// Runs a step on all replicas and waits for them: [`Strategy::run_replicas`] of the strategy
    /// that they belong to. Runs of several callers follow one another.
    ///
    /// # Errors
    /// The first replica's own error; the others have been stopped by then.
    pub fn run(&self, strategy: &Arc<dyn Strategy>, step: ReplicaStep<'_>) -> Result<()> {
        let mut current = lock(&self.contexts);
        if current.list.is_empty() {
            current.generation += 1;
            current.list = build_contexts(&self.replicas, &self.options, current.generation)?;
        }
        let contexts = &mut current.list;
        contexts[0].peers().begin_run();
        let outcomes: Vec<Mutex<Result<()>>> =
            contexts.iter().map(|_| Mutex::new(Ok(()))).collect();
        let jobs = contexts
            .iter_mut()
            .zip(&outcomes)
            .map(|(ctx, outcome)| {
                let strategy = Arc::clone(strategy);
                let job = move || *lock(outcome) = run_one(strategy, ctx, step);
                Box::new(job) as Box<dyn FnOnce() + Send + '_>
            })
            .collect();
        launch_anywhere(&self.pools, jobs);
        first_cause(outcomes).inspect_err(|_| contexts.clear())
    }
}

/// One replica's part of a run.
fn run_one(
    strategy: Arc<dyn Strategy>,
    ctx: &mut ReplicaContext,
    step: ReplicaStep<'_>,
) -> Result<()> {
    let ctx = &*ctx;
    let replica = ctx.replica_id();
    let _phase = tracing::trace_span!(target: "distribute::phase", "run", replica).entered();
    // Until all that the step has made is gone.
    let _turn = ctx.peers().turn().map(Turn::hold);
    let _entered = scope::enter_step(strategy, ctx);
    let own = |error| match error {
        Error::Replica { .. } => error,
        error => Error::Replica {
            replica,
            source: Arc::new(error),
        },
    };
    let ended = catch_unwind(AssertUnwindSafe(|| step(ctx)));
    let outcome = match (ctx.check_noted(), ended) {
        // What came after it, a panic for example, is of no interest.
        (Err(noted), _) => Err(own(noted)),
        (_, Ok(outcome)) => outcome
            .and_then(|()| ctx.peers().finish_run(replica))
            .map_err(own),
        (_, Err(payload)) => Err(Error::ReplicaPanicked {
            replica,
            message: panic_message(&*payload),
        }),
    };
    outcome.inspect_err(|error| ctx.peers().stop_others(error))
}

/// The error to report: the first replica's own failure; failures that only follow from
/// another replica's are reported when there is nothing better.
fn first_cause(outcomes: Vec<Mutex<Result<()>>>) -> Result<()> {
    let errors = outcomes.into_iter().filter_map(|slot| unlocked(slot).err());
    // `min_by_key` takes the first of equals: the lowest replica.
    let cause = errors.min_by_key(Error::distance_to_cause);
    cause.map_or(Ok(()), Err)
}

/// Launches the jobs, also from a thread of a user's rayon pool: such a thread would take up
/// other work of its pool while it waits, which may be another run of this strategy and would wait
/// for this one. A thread that only waits stands in for it.
fn launch_anywhere(pools: &[ThreadPool], jobs: VecDeque<Box<dyn FnOnce() + Send + '_>>) {
    if rayon::current_thread_index().is_none() {
        return launch(pools, jobs);
    }
    std::thread::scope(|threads| {
        threads.spawn(|| launch(pools, jobs));
    });
}

/// Starts job i on pool i and returns when all have ended. `in_place_scope` keeps the borrows
/// of the jobs sound without code of our own.
fn launch<'a>(pools: &[ThreadPool], mut jobs: VecDeque<Box<dyn FnOnce() + Send + 'a>>) {
    let (Some((pool, rest)), Some(job)) = (pools.split_first(), jobs.pop_front()) else {
        return;
    };
    pool.in_place_scope(|threads| {
        threads.spawn(move |_| job());
        launch(rest, jobs);
    });
}

/// A new group and the contexts that hold its endpoints.
fn build_contexts(
    replicas: &[Replica],
    options: &ReplicaThreadsBuilder,
    generation: u64,
) -> Result<Vec<ReplicaContext>> {
    let num_local = replicas.len();
    let workers = options.workers.as_ref();
    let num_replicas = workers.map_or(num_local, WorkerGroup::num_replicas);
    let logical: Vec<LogicalDevice> = replicas.iter().map(|replica| replica.logical).collect();
    let turns = Turns::new(shared_devices(&logical, options.cores));
    // The first replica of a device waits while all others have their turns.
    let queue = turns.as_ref().map_or(1, |turns| turns.longest_queue());
    let queue = u32::try_from(queue).unwrap_or(u32::MAX);
    let timeout = options.timeout.saturating_mul(queue);
    let exchange = Arc::new(LocalExchange::new(num_local, timeout));
    let group = GroupOptions::default().timeout(timeout);
    let group = distribute_collectives::in_process(num_local, group.generation(generation))?;
    let devices = options.devices.connect(&logical, generation)?;
    let contexts = replicas.iter().zip(group).zip(devices).enumerate().map(
        |(local_id, ((replica, endpoint), reducer))| {
            let ops = Arc::clone(&options.cross_device_ops);
            let threads = Threads::new(Box::new(endpoint), ops);
            let link: Box<dyn Link> = match workers {
                None => Box::new(threads),
                Some(workers) => Box::new(Workers::new(threads, workers.clone())),
            };
            let turn = turns.as_ref().map(|turns| Turn::new(turns, local_id));
            let host = HostPeers::new(link, local_id, num_local, Arc::clone(&exchange), turn);
            let peers: Arc<dyn Peers> = if num_replicas == 1 {
                Arc::new(Alone)
            } else if reducer.is_none() && workers.is_none() {
                Arc::new(host)
            } else {
                let device = &replica.device;
                Arc::new(Devices::new(host, device, num_replicas, reducer))
            };
            ReplicaContext::new(
                replica,
                ReplicaCounts {
                    local_id,
                    num_local,
                    num_replicas,
                },
                options.placement,
                peers,
            )
        },
    );
    Ok(contexts.collect())
}

impl fmt::Debug for ReplicaThreads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReplicaThreads")
            .field("replicas", &self.replicas)
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}
