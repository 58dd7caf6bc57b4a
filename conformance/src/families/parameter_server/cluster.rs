//! The servers of a case.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use distribute_ps::partitioners::{
    FixedShardsPartitioner, MaxSizePartitioner, MinSizePartitioner, Partitioner,
};
use distribute_ps::{
    ClientOptions, ClusterCoordinator, CoordinatorOptions, ParameterServer,
    ParameterServerStrategy, PsError, RunOptions, ServerOptions, StepRegistry, WorkerOptions,
    WorkerServer, WorkerStopper,
};

use crate::case::Case;
use crate::json::{Fields, counts_in};
use crate::outcome::Failure;

/// Parameter servers and a strategy on them. The servers end with it.
pub(super) struct Servers {
    pub(super) strategy: ParameterServerStrategy,
    _servers: Vec<ParameterServer>,
}

impl From<PsError> for Failure {
    fn from(error: PsError) -> Self {
        Failure::got(format!("an error: {error}"))
    }
}

/// As many servers as the case had.
pub(super) fn servers(case: &Case) -> Result<Vec<ParameterServer>, Failure> {
    let bind = |server| {
        let mut options = ServerOptions::default();
        options.server = Some(server);
        Ok(ParameterServer::bind("127.0.0.1:0", options)?)
    };
    (0..case.tasks("ps")?).map(bind).collect()
}

impl Servers {
    pub(super) fn start(case: &Case) -> Result<Self, Failure> {
        let servers = servers(case)?;
        let addresses = servers.iter().map(|server| server.address().to_string());
        let addresses: Vec<String> = addresses.collect();
        let (client, run) = (ClientOptions::default(), RunOptions::default());
        let partitioner = partitioner(case.inputs.text("scenario")?)?;
        let strategy = ParameterServerStrategy::connect(&addresses, client, run, partitioner)?;
        Ok(Self {
            strategy,
            _servers: servers,
        })
    }
}

/// `part_fixed_3_0` and the like; other scenarios have none.
fn partitioner(scenario: &str) -> Result<Option<Arc<dyn Partitioner>>, Failure> {
    let Some(kind) = scenario.strip_prefix("part_") else {
        return Ok(None);
    };
    let [first, second] = counts_in(&kind.replace('_', " "))[..] else {
        return Err(Failure::schema(format!("unknown scenario `{scenario}`")));
    };
    Ok(Some(match kind.split('_').next() {
        Some("fixed") => Arc::new(FixedShardsPartitioner { num_shards: first }),
        Some("min") => Arc::new(MinSizePartitioner::new(first, second)?),
        Some("max") => Arc::new(MaxSizePartitioner::new(first, Some(second))?),
        _ => return Err(Failure::schema(format!("unknown scenario `{scenario}`"))),
    }))
}

/// A worker on a thread of its own.
pub(super) struct Worker {
    address: String,
    stopper: WorkerStopper,
    thread: Option<JoinHandle<()>>,
}

impl Worker {
    fn start(registry: &Arc<StepRegistry>) -> Result<Self, Failure> {
        let options = WorkerOptions::default();
        let server = WorkerServer::bind("127.0.0.1:0", Arc::clone(registry), options)?;
        let (address, stopper) = (server.address().to_string(), server.stopper());
        let thread = std::thread::spawn(move || {
            // The coordinator's end, or that of the case.
            let _ended = server.serve();
        });
        Ok(Self {
            address,
            stopper,
            thread: Some(thread),
        })
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.stopper.stop();
        if let Some(thread) = self.thread.take() {
            let _panicked = thread.join();
        }
    }
}

/// A coordinator with the workers and servers of the case. Dropped in this order.
pub(super) struct Cluster {
    pub(super) coordinator: ClusterCoordinator,
    pub(super) strategy: ParameterServerStrategy,
    pub(super) workers: Vec<Worker>,
    pub(super) servers: Vec<ParameterServer>,
}

/// How long a call may wait before the case has failed.
pub(super) const LIMIT: Duration = Duration::from_secs(60);

impl Cluster {
    pub(super) fn start(
        case: &Case,
        register: impl FnOnce(&mut StepRegistry) -> Result<(), PsError>,
    ) -> Result<Self, Failure> {
        let mut registry = StepRegistry::new();
        register(&mut registry)?;
        let registry = Arc::new(registry);
        let servers = servers(case)?;
        let workers = (0..case.tasks("worker")?).map(|_| Worker::start(&registry));
        let workers = workers.collect::<Result<Vec<_>, _>>()?;
        let addresses: Vec<&str> = workers
            .iter()
            .map(|worker| worker.address.as_str())
            .collect();
        let stored = servers.iter().map(|server| server.address().to_string());
        let stored: Vec<String> = stored.collect();
        let options = CoordinatorOptions::default();
        let coordinator = ClusterCoordinator::connect(&addresses, &stored, registry, options)?;
        let strategy = coordinator.strategy()?.clone();
        Ok(Self {
            coordinator,
            strategy,
            workers,
            servers,
        })
    }
}
