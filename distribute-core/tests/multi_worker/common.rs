//! Workers as threads.

use std::sync::mpsc;
use std::time::Duration;

use distribute_core::collectives::{
    Communicator, GroupOptions, ProcessTransport, in_process, loopback,
};
use distribute_core::{MultiWorkerMirroredStrategy, MultiWorkerMirroredStrategyBuilder, Result};

/// How long a test may take: a hang fails, and is not waited for.
const LIMIT: Duration = Duration::from_secs(120);

/// What connects the workers of a test.
#[derive(Debug, Clone, Copy)]
pub enum Between {
    Threads,
    SharedMemory,
    Grpc,
    /// Threads that give up soon.
    Late,
}

fn endpoints(between: Between, workers: usize) -> Vec<Box<dyn Communicator>> {
    let seconds = if let Between::Late = between {
        0.3
    } else {
        60.0
    };
    let options = GroupOptions::default().timeout(Duration::from_secs_f64(seconds));
    let processes = |transport| {
        let group = loopback(workers, options.clone(), transport).unwrap();
        let endpoints = group.into_iter();
        endpoints.map(|endpoint| Box::new(endpoint) as _).collect()
    };
    match between {
        Between::Threads | Between::Late => {
            let group = in_process(workers, options.clone()).unwrap();
            let endpoints = group.into_iter();
            endpoints.map(|endpoint| Box::new(endpoint) as _).collect()
        }
        Between::SharedMemory => processes(ProcessTransport::SharedMemory),
        Between::Grpc => processes(ProcessTransport::Grpc),
    }
}

/// Runs a program on workers with these numbers of replicas and options and returns what each
/// returned.
pub fn try_workers_with<T: Send + 'static>(
    between: Between,
    replicas: &[usize],
    program: impl Fn(MultiWorkerMirroredStrategy) -> Result<T> + Send + Clone + 'static,
    options: fn(MultiWorkerMirroredStrategyBuilder) -> MultiWorkerMirroredStrategyBuilder,
) -> Vec<Result<T>> {
    let (done, results) = mpsc::channel();
    for (index, endpoint) in endpoints(between, replicas.len()).into_iter().enumerate() {
        let (done, program, count) = (done.clone(), program.clone(), replicas[index]);
        std::thread::spawn(move || {
            let builder = MultiWorkerMirroredStrategy::builder().replicas(count);
            let strategy = options(builder).communicator(endpoint).build();
            let _ = done.send((index, strategy.and_then(program)));
        });
    }
    let mut outcomes: Vec<_> = replicas
        .iter()
        .map(|_| {
            results
                .recv_timeout(LIMIT)
                .expect("a worker hangs or panicked")
        })
        .collect();
    outcomes.sort_by_key(|(index, _)| *index);
    outcomes.into_iter().map(|(_, outcome)| outcome).collect()
}

/// Workers that may fail.
pub fn try_workers<T: Send + 'static>(
    between: Between,
    replicas: &[usize],
    program: impl Fn(MultiWorkerMirroredStrategy) -> Result<T> + Send + Clone + 'static,
) -> Vec<Result<T>> {
    try_workers_with(between, replicas, program, |builder| builder)
}

/// Workers that must succeed.
pub fn workers<T: Send + 'static>(
    between: Between,
    replicas: &[usize],
    program: impl Fn(MultiWorkerMirroredStrategy) -> Result<T> + Send + Clone + 'static,
) -> Vec<T> {
    workers_with(between, replicas, program, |builder| builder)
}

/// Workers with other options, which must succeed.
pub fn workers_with<T: Send + 'static>(
    between: Between,
    replicas: &[usize],
    program: impl Fn(MultiWorkerMirroredStrategy) -> Result<T> + Send + Clone + 'static,
    options: fn(MultiWorkerMirroredStrategyBuilder) -> MultiWorkerMirroredStrategyBuilder,
) -> Vec<T> {
    let outcomes = try_workers_with(between, replicas, program, options);
    outcomes.into_iter().map(Result::unwrap).collect()
}
