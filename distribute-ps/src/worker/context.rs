//! What a step sees of its worker.

use std::any::Any;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use distribute_core::InputContext;
use distribute_core::collectives::Interruption;

use super::resource::Resource;
use crate::client::{ClientOptions, VariableClient};
use crate::error::{PsError, Result};
use crate::strategy::{ClosureGuard, ParameterServerStrategy, UpdateSource};
use crate::update::{RunId, UpdateId};

/// Values by their registered names.
type Resources = BTreeMap<Arc<str>, Option<Box<dyn Any + Send>>>;

/// Runs a step on encoded arguments, for its encoded result.
pub(super) type Call = dyn Fn(&WorkerContext, &[u8]) -> Result<Vec<u8>> + Send + Sync;
/// Builds a resource.
pub(super) type Build = dyn Fn(&WorkerContext) -> Result<Box<dyn Any + Send>> + Send + Sync;

/// What a program has registered, by name.
pub(super) trait Registered: Send + Sync {
    /// What runs a step.
    ///
    /// # Errors
    /// [`PsError::Unregistered`].
    fn runner(&self, name: &str) -> Result<&Call>;

    /// What builds a resource.
    ///
    /// # Errors
    /// [`PsError::Unregistered`].
    fn builder(&self, name: &str) -> Result<&Build>;
}

/// How long a worker waits for parameter servers that its coordinator is connected to.
const SERVERS_TIMEOUT: Duration = Duration::from_secs(3);

/// What belongs to one coordinator's run on a worker. A worker that gets another coordinator makes
/// a new one.
pub(super) struct RunSession {
    pub(super) registry: Arc<dyn Registered>,
    pub(super) run: RunId,
    pub(super) worker: usize,
    pub(super) workers: usize,
    pub(super) parameter_servers: Vec<String>,
    pub(super) client: ClientOptions,
    /// The most bytes of a result that the coordinator takes.
    pub(super) result_max_bytes: usize,
    variables: OnceLock<VariableClient>,
    strategy: OnceLock<ParameterServerStrategy>,
    /// What [`WorkerContext::resource`] has built; a value is absent while a step holds it.
    resources: Mutex<Resources>,
}

impl RunSession {
    pub(super) fn new(
        registry: Arc<dyn Registered>,
        run: RunId,
        (worker, workers): (usize, usize),
        parameter_servers: Vec<String>,
        (client, result_max_bytes): (ClientOptions, usize),
    ) -> Self {
        Self {
            registry,
            run,
            worker,
            workers,
            parameter_servers,
            client,
            result_max_bytes,
            variables: OnceLock::new(),
            strategy: OnceLock::new(),
            resources: Mutex::default(),
        }
    }

    fn resources(&self) -> MutexGuard<'_, Resources> {
        // Only whole entries change under the lock.
        self.resources
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a step sees: which closure it is, its worker, the worker's variables, resources and
/// datasets. One per call of a step.
pub struct WorkerContext {
    session: Arc<RunSession>,
    closure: u64,
    step: Arc<str>,
    datasets: BTreeMap<String, u64>,
    cancelled: Arc<AtomicBool>,
    updates: Arc<AtomicU32>,
    /// What the strategy does belongs to this closure.
    within: OnceLock<ClosureGuard>,
}

impl WorkerContext {
    pub(super) fn new(
        session: Arc<RunSession>,
        closure: u64,
        step: Arc<str>,
        datasets: BTreeMap<String, u64>,
        cancelled: Arc<AtomicBool>,
    ) -> Self {
        Self {
            session,
            closure,
            step,
            datasets,
            cancelled,
            updates: Arc::default(),
            within: OnceLock::new(),
        }
    }

    /// This worker's index in the cluster, from 0.
    pub fn worker_index(&self) -> usize {
        self.session.worker
    }

    /// The number of workers of the cluster.
    pub fn num_workers(&self) -> usize {
        self.session.workers
    }

    /// The id of the scheduled closure: 1 for the first of a run. The same when it runs again.
    pub fn closure_id(&self) -> u64 {
        self.closure
    }

    /// The registered name of the step.
    pub fn step(&self) -> &str {
        &self.step
    }

    /// The coordinator's run.
    pub fn run_id(&self) -> RunId {
        self.session.run
    }

    /// What a dataset function is told: one input pipeline per worker, one replica
    /// (TensorFlow's `InputContext`).
    pub fn input_context(&self) -> InputContext {
        InputContext {
            num_input_pipelines: self.session.workers,
            input_pipeline_id: self.session.worker,
            num_replicas_in_sync: 1,
        }
    }

    /// Whether the coordinator wants this closure to stop, because another one failed or because
    /// it believes this worker to be lost. What the step still computes is of no use then.
    pub fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
    }

    /// For long steps: returns early where the closure is to stop.
    ///
    /// # Errors
    /// [`PsError::Cancelled`] if it is.
    pub fn check_cancelled(&self) -> Result<()> {
        match self.is_cancelled() {
            true => Err(PsError::Cancelled),
            false => Ok(()),
        }
    }

    /// The identity of this closure's next update of variables: numbered in the order in which the
    /// step asks, so that a closure that runs again makes the same ids and each update is applied
    /// once.
    ///
    /// # Errors
    /// [`PsError::Cancelled`] if the closure is to stop: its updates are not wanted any more.
    pub fn next_update(&self) -> Result<UpdateId> {
        self.check_cancelled()?;
        Ok(UpdateId {
            run: self.session.run,
            closure: self.closure,
            sequence: self.updates.fetch_add(1, Ordering::Relaxed),
        })
    }

    /// The variables on the parameter servers. Connects at the first use.
    ///
    /// # Errors
    /// Those of [`VariableClient::connect`], [`PsError::InvalidArgument`] if the coordinator has
    /// no parameter servers.
    pub fn variables(&self) -> Result<&VariableClient> {
        let session = &*self.session;
        if let Some(client) = session.variables.get() {
            return Ok(client);
        }
        if session.parameter_servers.is_empty() {
            return Err(PsError::invalid(
                "this coordinator has no parameter servers, so there are no variables",
            ));
        }
        let servers = &session.parameter_servers;
        let mut options = session.client.clone();
        // The coordinator has found them: one that does not listen now is lost, not late.
        options.connect_timeout = options.connect_timeout.min(SERVERS_TIMEOUT);
        // A step that runs is not interrupted.
        options.interruption = Interruption::default();
        let client = VariableClient::connect(servers, options)?;
        client.join(session.run)?;
        Ok(session.variables.get_or_init(|| client))
    }

    /// This worker's strategy, whose scope finds the coordinator's variables. What it updates
    /// belongs to this closure.
    ///
    /// # Errors
    /// Those of [`variables`](Self::variables).
    pub fn strategy(&self) -> Result<&ParameterServerStrategy> {
        let session = &*self.session;
        let strategy = match session.strategy.get() {
            Some(strategy) => strategy,
            None => {
                let (client, input) = (self.variables()?.clone(), self.input_context());
                let made = ParameterServerStrategy::worker(client, session.run, input)?;
                session.strategy.get_or_init(|| made)
            }
        };
        self.within.get_or_init(|| {
            let (updates, cancelled) = (self.updates.clone(), self.cancelled.clone());
            let source = UpdateSource::new(session.run, self.closure, updates, cancelled);
            strategy.within_closure(source)
        });
        Ok(strategy)
    }

    /// This worker's value of a resource, built now if this is the first use of it. A value that
    /// was held when its step panicked is built again.
    ///
    /// # Errors
    /// Those of building it; [`PsError::InvalidArgument`] if this step holds it already.
    pub fn resource<T: Send + 'static>(
        &self,
        resource: &Resource<T>,
    ) -> Result<ResourceGuard<'_, T>> {
        let name: Arc<str> = resource.name().into();
        let taken = match self.session.resources().get_mut(&name) {
            Some(value) => {
                let in_use = || PsError::invalid(format!("`{name}` is in use by this step"));
                Some(value.take().ok_or_else(in_use)?)
            }
            None => None,
        };
        let value = match taken {
            Some(value) => value,
            None => self.session.registry.builder(&name)?(self)?,
        };
        let other = |_| PsError::invalid(format!("`{name}` is a resource of another type"));
        let value = value.downcast::<T>().map_err(other)?;
        self.session.resources().insert(name.clone(), None);
        Ok(ResourceGuard {
            session: &self.session,
            name,
            value: Some(value),
        })
    }

    /// How often the coordinator had this dataset made anew.
    pub(super) fn dataset_renewals(&self, name: &str) -> u64 {
        self.datasets.get(name).copied().unwrap_or(0)
    }

    pub(super) fn wrong_arguments(&self, expected: &'static str, reason: String) -> PsError {
        PsError::WrongArguments {
            step: self.step.to_string(),
            expected: expected.to_string(),
            found: "what the coordinator sent".to_string(),
            reason,
        }
    }
}

impl fmt::Debug for WorkerContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkerContext")
            .field("worker", &self.worker_index())
            .field("step", &self.step)
            .field("closure", &self.closure)
            .finish_non_exhaustive()
    }
}

/// A resource in the hands of a step.
pub struct ResourceGuard<'a, T: Send + 'static> {
    session: &'a RunSession,
    name: Arc<str>,
    /// Absent only while it is dropped.
    value: Option<Box<T>>,
}

impl<T: Send + 'static> Deref for ResourceGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        match &self.value {
            Some(value) => value,
            None => unreachable!("it is taken by `drop` only"),
        }
    }
}

impl<T: Send + 'static> DerefMut for ResourceGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        match &mut self.value {
            Some(value) => value,
            None => unreachable!("it is taken by `drop` only"),
        }
    }
}

impl<T: Send + 'static> Drop for ResourceGuard<'_, T> {
    fn drop(&mut self) {
        let name = self.name.clone();
        let mut resources = self.session.resources();
        if std::thread::panicking() {
            // The value may be half changed.
            resources.remove(&name);
        } else if let Some(value) = self.value.take() {
            resources.insert(name, Some(value));
        }
    }
}

impl<T: Send + fmt::Debug> fmt::Debug for ResourceGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.value.fmt(f)
    }
}
