//! What a step sees of its worker.

use std::any::Any;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use distribute_core::InputContext;
use distribute_core::collectives::Interruption;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::mpsc;

use super::messages::{Attach, Execute};
use crate::client::{ClientOptions, VariableClient};
use crate::error::{PsError, Result};
use crate::strategy::{ClosureGuard, ParameterServerStrategy};
use crate::update::{RunId, UpdateId};
use crate::update_ids::UpdateSource;

/// Values by their registered names.
type Resources = BTreeMap<Arc<str>, Option<Box<dyn Any + Send>>>;

/// How long a worker waits for parameter servers that its coordinator is connected to.
const SERVERS_TIMEOUT: Duration = Duration::from_secs(4);

/// What belongs to one coordinator's run on a worker. A worker that gets another coordinator makes
/// a new one.
pub(super) struct RunSession {
    /// What its coordinator has said of itself.
    pub(super) attach: Attach,
    client: ClientOptions,
    variables: OnceLock<VariableClient>,
    strategy: OnceLock<ParameterServerStrategy>,
    /// What [`WorkerContext::resource`] has built; a value is absent while a step holds it.
    resources: Mutex<Resources>,
    /// Receives the result of the current check of the servers.
    check: Mutex<Option<mpsc::Sender<Bytes>>>,
}

impl RunSession {
    pub(super) fn new(attach: Attach, client: ClientOptions) -> Self {
        Self {
            attach,
            client,
            variables: OnceLock::new(),
            strategy: OnceLock::new(),
            resources: Mutex::default(),
            check: Mutex::default(),
        }
    }

    pub(super) fn resources(&self) -> MutexGuard<'_, Resources> {
        // Only whole entries change under the lock.
        self.resources.lock()
    }

    /// The variables on the parameter servers. Connects at the first use.
    fn variables(&self) -> Result<&VariableClient> {
        if let Some(client) = self.variables.get() {
            return Ok(client);
        }
        if self.attach.parameter_servers.is_empty() {
            return Err(PsError::invalid(
                "this coordinator has no parameter servers, so there are no variables",
            ));
        }
        let servers = &self.attach.parameter_servers;
        let mut options = self.client.clone();
        // The coordinator has found them: one that does not listen now is lost, not late.
        options.connect_timeout = options.connect_timeout.min(SERVERS_TIMEOUT);
        // A step that runs is not interrupted.
        options.interruption = Interruption::default();
        let client = VariableClient::connect(servers, options)?;
        client.join(self.attach.run)?;
        Ok(self.variables.get_or_init(|| client))
    }

    /// A coordinator asks whether the servers are reached. Whether nothing of the kind is under way
    /// yet: then [`end_check`](Self::end_check) must follow. Otherwise the check that is under
    /// way is answered to the last caller.
    pub(super) fn begin_check(&self, asks: mpsc::Sender<Bytes>) -> bool {
        self.check.lock().replace(asks).is_none()
    }

    /// The check is over; who is told of its outcome.
    pub(super) fn end_check(&self) -> Option<mpsc::Sender<Bytes>> {
        self.check.lock().take()
    }

    /// Asks all parameter servers for a sign of life. Blocks.
    pub(super) fn check_servers(&self) -> Result<()> {
        if self.attach.parameter_servers.is_empty() {
            return Ok(());
        }
        self.variables()?.reach_all(self.attach.run).map(drop)
    }
}

/// What a step sees: which closure it is, its worker, the worker's variables, resources and
/// datasets. One per call of a step.
pub struct WorkerContext {
    session: Arc<RunSession>,
    source: UpdateSource,
    step: String,
    datasets: BTreeMap<String, u64>,
    /// What the strategy does belongs to this closure.
    within: OnceLock<ClosureGuard>,
}

impl WorkerContext {
    pub(super) fn new(
        session: Arc<RunSession>,
        execute: &Execute,
        cancelled: Arc<AtomicBool>,
    ) -> Self {
        let run = session.attach.run;
        Self {
            source: UpdateSource::new(run, execute.closure, Arc::default(), cancelled),
            session,
            step: execute.step.clone(),
            datasets: execute.datasets.clone(),
            within: OnceLock::new(),
        }
    }

    pub(super) fn session(&self) -> &RunSession {
        &self.session
    }

    /// This worker's index in the cluster, from 0.
    pub fn worker_index(&self) -> usize {
        self.session.attach.worker
    }

    /// The number of workers of the cluster.
    pub fn num_workers(&self) -> usize {
        self.session.attach.workers
    }

    /// The id of the scheduled closure: 1 for the first of a run. The same when it runs again.
    pub fn closure_id(&self) -> u64 {
        self.source.closure()
    }

    /// The registered name of the step.
    pub fn step(&self) -> &str {
        &self.step
    }

    /// The coordinator's run.
    pub fn run_id(&self) -> RunId {
        self.session.attach.run
    }

    /// What a dataset function is told: one input pipeline per worker, one replica
    /// (TensorFlow's `InputContext`).
    pub fn input_context(&self) -> InputContext {
        InputContext {
            num_input_pipelines: self.session.attach.workers,
            input_pipeline_id: self.session.attach.worker,
            num_replicas_in_sync: 1,
        }
    }

    /// Whether the coordinator wants this closure to stop, because another one failed or because
    /// it believes this worker to be lost. What the step still computes is of no use then.
    pub fn is_cancelled(&self) -> bool {
        self.source.is_cancelled()
    }

    /// For long steps: returns early where the closure is to stop.
    ///
    /// # Errors
    /// [`PsError::Cancelled`] if it is.
    pub fn check_cancelled(&self) -> Result<()> {
        if self.is_cancelled() {
            Err(PsError::Cancelled)
        } else {
            Ok(())
        }
    }

    /// The identity of this closure's next update of variables: numbered in the order in which the
    /// step asks, so that a closure that runs again makes the same ids and each update is applied
    /// once.
    ///
    /// # Errors
    /// [`PsError::Cancelled`] if the closure is to stop: its updates are not wanted any more.
    pub fn next_update(&self) -> Result<UpdateId> {
        self.source.next()
    }

    /// The variables on the parameter servers. Connects at the first use.
    ///
    /// # Errors
    /// The errors of [`VariableClient::connect`], [`PsError::InvalidArgument`] if the coordinator
    /// has no parameter servers.
    pub fn variables(&self) -> Result<&VariableClient> {
        self.session.variables()
    }

    /// This worker's strategy, whose scope finds the coordinator's variables. What it updates
    /// belongs to this closure.
    ///
    /// # Errors
    /// The errors of [`variables`](Self::variables).
    pub fn strategy(&self) -> Result<&ParameterServerStrategy> {
        let session = &*self.session;
        let strategy = match session.strategy.get() {
            Some(strategy) => strategy,
            None => {
                let (client, input) = (self.variables()?.clone(), self.input_context());
                let made = ParameterServerStrategy::worker(client, session.attach.run, input)?;
                session.strategy.get_or_init(|| made)
            }
        };
        self.within
            .get_or_init(|| strategy.within_closure(self.source.clone()));
        Ok(strategy)
    }

    /// How often the coordinator had this dataset made anew.
    pub(super) fn dataset_renewals(&self, name: &str) -> u64 {
        self.datasets.get(name).copied().unwrap_or(0)
    }

    pub(super) fn wrong_arguments(&self, expected: &'static str, reason: String) -> PsError {
        PsError::WrongArguments {
            step: self.step.clone(),
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
            .field("closure", &self.closure_id())
            .finish_non_exhaustive()
    }
}
