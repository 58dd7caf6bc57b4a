//! Servers, workers and a coordinator as threads of this process.

use std::sync::Arc;
use std::thread::JoinHandle;

use burn::module::Module;
use distribute_core::{Adam, Device, Result, TrainState};
use distribute_data::{Batching, StrategyDataExt};
use distribute_fit::{Objective, StepContext};
use distribute_ps::{
    ClusterCoordinator, CoordinatorOptions, ParameterServer, ServerOptions, SharedState,
    StepRegistry, Training, TrainingData, WorkerOptions, WorkerServer, WorkerStopper,
};

use super::data::{Batch, Mlp, TEST, TRAIN, points};

/// The objective of a model on the points.
pub type Objectively<M = Mlp> =
    dyn Fn(&StepContext<'_>, &M, Batch) -> Result<Objective> + Send + Sync;

/// What is trained with: a model on the points, batches of 8.
pub struct Job<M: Module + 'static = Mlp> {
    pub registry: Arc<StepRegistry>,
    pub state: SharedState<TrainState<M>>,
    pub training: Training<M, Batch>,
}

impl Job {
    pub fn new(objective: Arc<Objectively>) -> Self {
        Self::with(objective, |state| state)
    }

    pub fn with(
        objective: Arc<Objectively>,
        change: fn(TrainState<Mlp>) -> TrainState<Mlp>,
    ) -> Self {
        Self::of(objective, move |device| {
            change(TrainState::new(Mlp::new(device), Adam::new(0.02)))
        })
    }
}

impl<M: Module + Sync + 'static> Job<M> {
    pub fn of(
        objective: Arc<Objectively<M>>,
        build: impl Fn(&Device) -> TrainState<M> + Send + Sync + 'static,
    ) -> Self {
        let mut registry = StepRegistry::new();
        let state = registry.state("model", build).unwrap();
        let training = registry.training(
            "points",
            &state,
            |strategy| {
                let batching = Batching::global(8);
                let train = strategy.distribute_dataset(points(TRAIN), batching.shuffle(7))?;
                let test = strategy.distribute_dataset(points(TEST), batching)?;
                Ok(TrainingData::new(train).validation(test))
            },
            move |ctx: &StepContext<'_>, model: &M, batch| objective(ctx, model, batch),
        );
        Self {
            training: training.unwrap(),
            state,
            registry: Arc::new(registry),
        }
    }
}

/// A worker on a thread.
pub struct Worker {
    address: String,
    pub stopper: WorkerStopper,
    thread: Option<JoinHandle<distribute_ps::Result<()>>>,
}

impl Worker {
    fn start(registry: &Arc<StepRegistry>, worker: usize) -> Self {
        let mut options = WorkerOptions::default();
        options.worker = Some(worker);
        let server = WorkerServer::bind("127.0.0.1:0", registry.clone(), options).unwrap();
        Self {
            address: server.address().to_string(),
            stopper: server.stopper(),
            thread: Some(std::thread::spawn(move || server.serve())),
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.stopper.stop();
        if let Some(thread) = self.thread.take() {
            let _ended_somehow = thread.join();
        }
    }
}

/// The coordinator is dropped first, then the workers.
pub struct Cluster {
    pub coordinator: ClusterCoordinator,
    pub workers: Vec<Worker>,
    pub servers: Vec<ParameterServer>,
}

impl Cluster {
    pub fn start(job: &Job, workers: usize) -> Self {
        Self::with(job, workers, CoordinatorOptions::default())
    }

    pub fn with(job: &Job, workers: usize, options: CoordinatorOptions) -> Self {
        Self::of(&job.registry, workers, options)
    }

    /// Of steps and states of a test's own.
    pub fn of(registry: &Arc<StepRegistry>, workers: usize, options: CoordinatorOptions) -> Self {
        let bind = |server| {
            let mut options = ServerOptions::default();
            options.server = Some(server);
            ParameterServer::bind("127.0.0.1:0", options).unwrap()
        };
        let servers: Vec<ParameterServer> = (0..2).map(bind).collect();
        let of_servers: Vec<String> = servers.iter().map(|it| it.address().to_string()).collect();
        let start = |worker| Worker::start(registry, worker);
        let workers: Vec<Worker> = (0..workers).map(start).collect();
        let of_workers: Vec<&str> = workers.iter().map(|it| it.address.as_str()).collect();
        let registry = registry.clone();
        let coordinator =
            ClusterCoordinator::connect(&of_workers, &of_servers, registry, options).unwrap();
        Self {
            coordinator,
            workers,
            servers,
        }
    }
}
