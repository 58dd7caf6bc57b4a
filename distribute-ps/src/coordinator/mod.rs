//! The coordinator: schedules closures on workers and waits for them.
//!
//! A *closure* is one scheduled call of a registered step. [`ClusterCoordinator`] keeps a queue of
//! them and one connection to each worker, over which it sends one closure after the other.
//!
//! # Errors of closures
//!
//! As in TensorFlow, a closure's error surfaces at the next [`schedule`], [`join`] or [`done`],
//! and is cleared by that. Until then the other closures go on. The call that surfaces it cancels
//! those that wait, asks those that run to stop, and returns when nothing runs any more: the
//! cancelled ones' [`fetch`] gives [`PsError::Cancelled`], that of finished ones their results,
//! and that of failed ones their own errors. Only the first of several errors surfaces. A panic of
//! a step is an error of its closure.
//!
//! A closure that runs stops where it looks ([`WorkerContext::check_cancelled`], or at its next
//! update of variables). One that does not stop within
//! [`cancel_timeout`](CoordinatorOptions::cancel_timeout) counts as cancelled; its worker gets
//! nothing to do until it has ended, and the servers refuse what it still sends.
//!
//! # Lost workers
//!
//! A worker whose process ends, or that gives no sign of life for about 4 s, is lost. No call
//! returns an error because of that: its closure goes to the front of the queue and runs again on
//! another worker, with the same id, so that the updates which it had made already are not applied
//! a second time (TensorFlow's are). A worker that comes back is used again, with new iterators
//! and resources.
//!
//! A worker whose step runs on after it was cancelled, or beyond
//! [`step_timeout`](CoordinatorOptions::step_timeout), gets nothing else to do before it has ended.
//!
//! A lost parameter server is [`PsError::Unavailable`]: the coordinator asks all of them once a
//! second, and at once when a worker says that it does not reach one. If they answer, it is the
//! link of that worker that is broken: its closure runs on another worker, and it gets nothing to
//! do until it reaches all servers again. Only a server that does not answer the coordinator itself
//! ends the job.
//!
//! What the coordinator's process did not get to compute (it was stopped, or the machine has many
//! times more work than processors) is not counted in any of these waits. The times that callers
//! give ([`join_timeout`](ClusterCoordinator::join_timeout),
//! [`fetch_timeout`](RemoteValue::fetch_timeout)) pass as on a clock on the wall.
//!
//! # A lost coordinator
//!
//! Workers and servers notice within about 4 s that the coordinator's process has ended, that it
//! hangs or that the network is cut. They wait
//! [`orphan_timeout`](crate::WorkerOptions::orphan_timeout) for another one, with which a new run
//! begins: programs resume from their last checkpoint. Then they end with
//! [`PsError::CoordinatorLost`]. A coordinator that was only stopped for a while goes on.
//!
//! # Back-pressure
//!
//! [`schedule`] waits while [`max_queued`](CoordinatorOptions::max_queued) closures wait.
//!
//! [`schedule`]: ClusterCoordinator::schedule
//! [`join`]: ClusterCoordinator::join
//! [`done`]: ClusterCoordinator::done
//! [`fetch`]: RemoteValue::fetch
//! [`WorkerContext::check_cancelled`]: crate::WorkerContext::check_cancelled

mod dial;
mod link;
mod options;
mod queue;
mod remote_value;
mod runtime;
mod scheduler;
mod server_notice;
mod tables;

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use distribute_core::collectives::InterruptionListener;
use serde::Serialize;
use serde::de::DeserializeOwned;

pub use options::CoordinatorOptions;
pub use remote_value::RemoteValue;
pub use scheduler::WorkerStatus;
pub use tables::Table;

use crate::client::VariableClient;
use crate::error::{PsError, Result};
use crate::strategy::ParameterServerStrategy;
use crate::update::{RunId, RunOptions};
use crate::value;
use crate::worker::{PerWorkerDataset, SharedValue, SharedValues, StepRegistry};
use runtime::Runtime;

/// Schedules closures on workers and waits for them (TensorFlow:
/// `tf.distribute.coordinator.ClusterCoordinator`).
///
/// All methods may be called from several threads. See [`coordinator`](self) for what happens when
/// steps fail and workers or servers are lost.
///
/// Dropping it cancels what has not run and ends its threads; the workers then wait for another
/// coordinator. [`finish`](Self::finish) ends them too.
pub struct ClusterCoordinator {
    registry: Arc<StepRegistry>,
    scheduler: Arc<scheduler::Scheduler>,
    strategy: Option<ParameterServerStrategy>,
    /// What the program registered with variables on the servers.
    values: SharedValues,
    runtime: Runtime,
    _listening: InterruptionListener,
}

impl ClusterCoordinator {
    /// Connects to the parameter servers, which begin a new run, and to workers, until one of
    /// these is there. Those that come later are used from then on.
    ///
    /// Addresses are `host:port`, in the order of the cluster. Without servers there are no
    /// variables.
    ///
    /// # Errors
    /// [`PsError::NoWorkers`] if none has come within
    /// [`connect_timeout`](CoordinatorOptions::connect_timeout), [`PsError::Refused`] if one is
    /// there but has another token, version or program, [`PsError::Core`] with
    /// [`DifferentConfigurations`](distribute_core::Error::DifferentConfigurations) if it has
    /// another configuration, [`PsError::InvalidArgument`] without workers, and the errors of
    /// [`VariableClient::connect`].
    pub fn connect<W: AsRef<str>, S: AsRef<str>>(
        workers: &[W],
        parameter_servers: &[S],
        registry: Arc<StepRegistry>,
        options: CoordinatorOptions,
    ) -> Result<Self> {
        let texts = |list: &[&str]| list.iter().map(|&text| text.to_string()).collect();
        let workers: Vec<&str> = workers.iter().map(AsRef::as_ref).collect();
        let servers: Vec<&str> = parameter_servers.iter().map(AsRef::as_ref).collect();
        if workers.is_empty() {
            return Err(PsError::invalid(
                "a coordinator needs at least one worker; list them in the cluster as `worker`",
            ));
        }
        let run = RunId::random()?;
        let strategy = if servers.is_empty() {
            None
        } else {
            Some(strategy(&servers, run, &options)?)
        };
        let values = match &strategy {
            Some(strategy) => registry.make_shared(strategy)?,
            None => SharedValues::new(),
        };
        let steps = registry.step_names().map(str::to_string).collect();
        let scheduler = Arc::new(scheduler::Scheduler::new(
            run,
            options,
            texts(&workers),
            texts(&servers),
            steps,
            registry.settings().clone(),
        ));
        let variables = strategy
            .as_ref()
            .map(|strategy| strategy.variables().clone());
        let runtime = Runtime::start(&scheduler, variables)?;
        // For the whole life: workers may all go later.
        let woken = Arc::downgrade(&scheduler);
        let listening = scheduler.options.interruption.on_raise(move || {
            if let Some(scheduler) = woken.upgrade() {
                scheduler.wake();
            }
        });
        let coordinator = Self {
            registry,
            scheduler,
            strategy,
            values,
            runtime,
            _listening: listening,
        };
        match coordinator.scheduler.wait_for_worker() {
            Ok(()) => Ok(coordinator),
            Err(error) => Err(coordinator.refused(error)),
        }
    }

    /// Without a worker: another coordinator may have more luck, unless the job itself is wrong.
    fn refused(self, error: PsError) -> PsError {
        let is_wrong = matches!(&error, PsError::Core(core)
            if matches!(**core, distribute_core::Error::DifferentConfigurations { .. }));
        if is_wrong && let Err(at_end) = self.end(error.to_string()) {
            tracing::warn!(error = %at_end, "the servers were not told that the job ends");
        }
        error
    }

    /// Schedules a call of a registered step on any worker, and returns at once if there is room
    /// in the queue.
    ///
    /// `arguments` is a serde value or a tuple of them, tensors as
    /// [`HostTensor`](crate::HostTensor). Whether they are what the step takes is checked here
    /// (as TensorFlow's tracing does).
    ///
    /// # Errors
    /// The error of a closure that was scheduled before: this one is not scheduled then.
    /// [`PsError::Unregistered`], [`PsError::WrongArguments`], [`PsError::RemoteValueArgument`],
    /// [`PsError::InvalidArgument`] for arguments beyond
    /// [`max_message_bytes`](CoordinatorOptions::max_message_bytes), [`PsError::Deadline`] if the
    /// queue was full for [`schedule_timeout`](CoordinatorOptions::schedule_timeout) while no
    /// closure ended, [`PsError::NoWorkers`], [`PsError::Stopped`].
    pub fn schedule<A: Serialize>(&self, step: &str, arguments: A) -> Result<RemoteValue> {
        let registered = self.registry.find(step)?;
        let bytes = value::encode(&arguments).map_err(|reason| {
            let step = step.to_string();
            // A text, because serde's errors of a value are nothing else.
            if reason.contains(remote_value::AS_ARGUMENT) {
                PsError::RemoteValueArgument { step }
            } else {
                PsError::invalid(format!(
                    "the arguments of step `{step}` cannot be sent: {reason}"
                ))
            }
        })?;
        registered.check::<A>(step, &bytes)?;
        let limit = self.scheduler.options.max_message_bytes;
        if bytes.len() > limit {
            return Err(PsError::invalid(format!(
                "the arguments of step `{step}` have {} bytes, the limit is {limit}; let the \
                 worker read them, or raise `CoordinatorOptions::max_message_bytes` and \
                 `WorkerOptions::max_message_bytes`",
                bytes.len()
            )));
        }
        self.scheduler.schedule(step, bytes.into())
    }

    /// Waits until everything that was scheduled before this call has ended (TensorFlow: `join`).
    ///
    /// # Errors
    /// The first error of a closure: everything else was cancelled then, nothing runs any more,
    /// and the error is cleared. [`PsError::Unavailable`] for a lost parameter server,
    /// [`PsError::NoWorkers`] if there was no worker for
    /// [`worker_recovery_timeout`](CoordinatorOptions::worker_recovery_timeout).
    pub fn join(&self) -> Result<()> {
        self.scheduler.join(None)
    }

    /// [`join`](Self::join), but for so long at most.
    ///
    /// # Errors
    /// As `join`, and [`PsError::Deadline`]: nothing is cancelled then.
    pub fn join_timeout(&self, timeout: Duration) -> Result<()> {
        self.scheduler.join(Some(timeout))
    }

    /// Whether everything that was scheduled has ended (TensorFlow: `done`). Blocks only to
    /// surface an error.
    ///
    /// # Errors
    /// As [`join`](Self::join).
    pub fn done(&self) -> Result<bool> {
        self.scheduler.done()
    }

    /// Waits until one of these closures has ended, and says which: the first in this order.
    ///
    /// # Errors
    /// As [`join`](Self::join); [`PsError::InvalidArgument`] without closures.
    pub fn wait_any<'a>(
        &self,
        values: impl IntoIterator<Item = &'a RemoteValue> + Clone,
    ) -> Result<usize> {
        self.scheduler.wait_any(values)
    }

    /// Waits for the results of closures, in this order (TensorFlow: `fetch`).
    ///
    /// # Errors
    /// The errors of the first [`RemoteValue::fetch`] that fails.
    pub fn fetch<'a, R: DeserializeOwned>(
        &self,
        values: impl IntoIterator<Item = &'a RemoteValue>,
    ) -> Result<Vec<R>> {
        values.into_iter().map(RemoteValue::fetch).collect()
    }

    /// Begins the dataset again: closures that are scheduled from now on read from a new iterator
    /// on each worker (TensorFlow: `iter` of what `create_per_worker_dataset` returned). The first
    /// iterators need no call; they are made when a step asks for an element.
    ///
    /// # Errors
    /// The errors of closures that were scheduled before, as in [`schedule`](Self::schedule).
    pub fn create_per_worker_dataset<B>(&self, dataset: &PerWorkerDataset<B>) -> Result<()> {
        self.scheduler.renew_dataset(dataset.name())
    }

    /// The variables on the parameter servers.
    ///
    /// # Errors
    /// [`PsError::InvalidArgument`] if this coordinator has no servers.
    pub fn variables(&self) -> Result<&VariableClient> {
        self.strategy().map(ParameterServerStrategy::variables)
    }

    /// The strategy whose scope makes variables on the parameter servers.
    ///
    /// # Errors
    /// [`PsError::InvalidArgument`] if this coordinator has no servers.
    pub fn strategy(&self) -> Result<&ParameterServerStrategy> {
        let none = || PsError::invalid("this coordinator has no parameter servers");
        self.strategy.as_ref().ok_or_else(none)
    }

    /// Calls `body` with the coordinator's copy of a registered value: to evaluate a state, to
    /// save and restore it.
    ///
    /// # Errors
    /// The errors of `body`; [`PsError::InvalidArgument`] if it was not registered with this
    /// coordinator, there are no servers, or `body` itself asks for the value again.
    pub fn with<T: Send + 'static, R>(
        &self,
        value: &SharedValue<T>,
        body: impl FnOnce(&mut T) -> distribute_core::Result<R>,
    ) -> Result<R> {
        let name = value.name();
        let unknown = || PsError::invalid(format!("this coordinator has no value `{name}`"));
        let place = self.values.get(name).ok_or_else(unknown)?.lock();
        let mut place = place.try_borrow_mut().map_err(|_| {
            PsError::invalid(format!(
                "`with` of `{name}` within `with` of `{name}`: use the value that is there"
            ))
        })?;
        let value = place.downcast_mut().ok_or_else(unknown)?;
        Ok(body(value)?)
    }

    /// The identity of this run.
    pub fn run_id(&self) -> RunId {
        self.scheduler.run
    }

    /// The rules that the parameter servers follow in this run.
    pub fn run_options(&self) -> RunOptions {
        self.scheduler.options.run
    }

    /// The number of workers of the cluster, connected or not.
    pub fn num_workers(&self) -> usize {
        self.scheduler.addresses.len()
    }

    /// What is known of each worker.
    pub fn worker_statuses(&self) -> Vec<WorkerStatus> {
        self.scheduler.worker_statuses()
    }

    /// How many closures have ended, for progress.
    pub fn closures_ended(&self) -> u64 {
        self.scheduler.ended()
    }

    /// Ends the job: cancels what has not run, and ends workers and parameter servers that serve
    /// until the coordinator is done.
    ///
    /// # Errors
    /// The errors of [`VariableClient::shut_servers_down`].
    pub fn finish(self) -> Result<()> {
        self.end(String::new())
    }

    /// [`finish`](Self::finish), telling the workers why the job ends early.
    pub(crate) fn end(mut self, failure: String) -> Result<()> {
        self.scheduler.stop(failure);
        self.runtime.join();
        match &self.strategy {
            Some(strategy) => strategy.variables().shut_servers_down(),
            None => Ok(()),
        }
    }
}

/// The pause before a server that has another coordinator is asked again.
const PAUSE: Duration = Duration::from_millis(200);

/// Begins the run on the servers.
fn strategy(
    servers: &[&str],
    run: RunId,
    options: &CoordinatorOptions,
) -> Result<ParameterServerStrategy> {
    let mut client = options.client.clone();
    client.security = options.security.clone();
    client.interruption = options.interruption.clone();
    let client = VariableClient::connect(servers, client)?;
    let begun = Instant::now();
    // A coordinator that was cut off or killed with its host is noticed after a while only.
    let gone_after = 2 * (options.keepalive_interval + options.keepalive_timeout);
    loop {
        match client.attach(run, options.run) {
            Ok(()) => break,
            Err(PsError::OtherRun { reason, .. }) if options.interruption.is_raised() => {
                return Err(PsError::Interrupted {
                    task: "the coordinator".to_string(),
                    what: format!("its parameter servers ({reason})"),
                    waited: begun.elapsed(),
                });
            }
            Err(PsError::OtherRun { .. }) if begun.elapsed() < gone_after => {
                std::thread::sleep(PAUSE);
            }
            Err(error) => return Err(error),
        }
    }
    ParameterServerStrategy::coordinator(client, run, options.partitioner.clone())
}

impl Drop for ClusterCoordinator {
    fn drop(&mut self) {
        self.scheduler.abandon();
    }
}

impl fmt::Debug for ClusterCoordinator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClusterCoordinator")
            .field("run", &self.scheduler.run)
            .field("workers", &self.worker_statuses())
            .field("closures_ended", &self.closures_ended())
            .finish_non_exhaustive()
    }
}
