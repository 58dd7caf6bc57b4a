//! Workers as threads.

use std::net::TcpListener;
use std::sync::mpsc;
use std::time::Duration;

use distribute_core::cluster::{Cluster, ClusterSpec, SimpleResolver};
use distribute_core::collectives::{
    Communicator, GroupOptions, ProcessTransport, in_process, loopback,
};
use distribute_core::{MultiWorkerMirroredStrategy, MultiWorkerMirroredStrategyBuilder, Result};

/// How long a test may take: a hang fails, and is not waited for.
pub const LIMIT: Duration = Duration::from_secs(120);

/// What connects the workers of a test: connections as between processes, or threads; and for how
/// many seconds they wait for each other.
#[derive(Debug, Clone, Copy)]
pub struct Between(pub Option<ProcessTransport>, pub f64);

pub const THREADS: Between = Between(None, 60.0);
pub const SHARED_MEMORY: Between = Between(Some(ProcessTransport::SharedMemory), 60.0);

fn endpoints(between: Between, workers: usize) -> Vec<Box<dyn Communicator>> {
    let Between(transport, seconds) = between;
    let options = GroupOptions::default().timeout(Duration::from_secs_f64(seconds));
    match transport {
        None => {
            let group = in_process(workers, options).unwrap().into_iter();
            group.map(|endpoint| Box::new(endpoint) as _).collect()
        }
        Some(transport) => {
            let group = loopback(workers, options, transport).unwrap().into_iter();
            group.map(|endpoint| Box::new(endpoint) as _).collect()
        }
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
    let outcomes = try_workers(between, replicas, program);
    outcomes.into_iter().map(Result::unwrap).collect()
}

/// A cluster of these workers, as worker `index` of it sees it.
pub fn cluster(addresses: &[String], index: usize) -> Cluster {
    let spec = ClusterSpec::new([("worker", addresses.to_vec())]).unwrap();
    let resolver = SimpleResolver::new(spec)
        .task_type("worker")
        .task_id(index as i64);
    Cluster::resolve(&resolver).unwrap().unwrap()
}

/// Addresses without a listener.
pub fn free_addresses(count: usize) -> Vec<String> {
    let listeners: Vec<_> = (0..count)
        .map(|_| TcpListener::bind("127.0.0.1:0").unwrap())
        .collect();
    let addresses = listeners
        .iter()
        .map(|listener| listener.local_addr().unwrap());
    addresses.map(|address| address.to_string()).collect()
}
