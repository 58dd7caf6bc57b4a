//! A cluster of threads: workers and a coordinator on loopback ports.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use distribute_ps::{
    ClusterCoordinator, CoordinatorOptions, PsError, Result, StepRegistry, WorkerOptions,
    WorkerServer, WorkerStopper,
};

/// The longest time that anything in these tests may take.
pub const LIMIT: Duration = Duration::from_secs(300);
pub const NO_SERVERS: [&str; 0] = [];

/// A worker on a thread.
pub struct Worker {
    pub address: String,
    pub stopper: WorkerStopper,
    thread: Option<JoinHandle<Result<()>>>,
}

impl Worker {
    pub fn start(registry: &Arc<StepRegistry>) -> Self {
        Self::start_at("127.0.0.1:0", registry, WorkerOptions::default())
    }

    pub fn start_at(address: &str, registry: &Arc<StepRegistry>, options: WorkerOptions) -> Self {
        let server = WorkerServer::bind(address, registry.clone(), options).unwrap();
        let (address, stopper) = (server.address().to_string(), server.stopper());
        let thread = std::thread::spawn(move || server.serve());
        Self {
            address,
            stopper,
            thread: Some(thread),
        }
    }

    /// How `serve` ended, which must be soon.
    pub fn end(mut self) -> Result<()> {
        let thread = self.thread.take().unwrap();
        eventually("the worker ends", || thread.is_finished());
        thread.join().unwrap()
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.stopper.stop();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Workers and a coordinator that have the same steps. The coordinator is dropped first.
pub struct Cluster {
    pub coordinator: ClusterCoordinator,
    pub workers: Vec<Worker>,
}

impl Cluster {
    pub fn new(workers: usize, register: impl FnOnce(&mut StepRegistry)) -> Self {
        Self::with_options(workers, register, CoordinatorOptions::default())
    }

    pub fn with_options(
        workers: usize,
        register: impl FnOnce(&mut StepRegistry),
        options: CoordinatorOptions,
    ) -> Self {
        Self::with_servers(workers, &[], register, options)
    }

    pub fn with_servers(
        workers: usize,
        servers: &[String],
        register: impl FnOnce(&mut StepRegistry),
        options: CoordinatorOptions,
    ) -> Self {
        let mut registry = StepRegistry::new();
        register(&mut registry);
        let registry = Arc::new(registry);
        let workers: Vec<Worker> = (0..workers).map(|_| Worker::start(&registry)).collect();
        let addresses: Vec<&str> = workers.iter().map(|it| it.address.as_str()).collect();
        let coordinator =
            ClusterCoordinator::connect(&addresses, servers, registry, options).unwrap();
        Self {
            coordinator,
            workers,
        }
    }
}

/// Asks again and again until it is so; fails after [`LIMIT`].
#[track_caller]
pub fn eventually(what: &str, mut is: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is() {
        assert!(begun.elapsed() < LIMIT, "{what}: not within {LIMIT:?}");
        // Asking less often, not waiting for something to be over.
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The step's own error, and which worker and step the message names.
#[track_caller]
pub fn failed(error: &PsError, step: &str) -> PsError {
    let PsError::Closure { step: named, .. } = error else {
        panic!("no error of a closure: {error}");
    };
    assert_eq!(named, step);
    let text = error.to_string();
    assert!(
        text.contains("on worker ") && text.contains("closure "),
        "{text}"
    );
    error.root_cause().clone()
}
