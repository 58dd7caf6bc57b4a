//! Workers with other connections and options, and of a cluster.

use std::sync::mpsc;

use distribute_core::collectives::ProcessTransport;
use distribute_core::{MultiWorkerMirroredStrategy, MultiWorkerMirroredStrategyBuilder, Result};

use crate::multi_worker::group::{Between, LIMIT, cluster, free_addresses, try_workers_with};

pub const GRPC: Between = Between(Some(ProcessTransport::Grpc), 60.0);
/// Threads that give up soon.
pub const LATE: Between = Between(None, 0.3);

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

/// Workers that meet at the addresses of a cluster, with what the strategy itself chooses.
pub fn workers_of_cluster<T: Send + 'static>(
    count: usize,
    transport: ProcessTransport,
    program: impl Fn(MultiWorkerMirroredStrategy) -> Result<T> + Send + Clone + 'static,
) -> Vec<T> {
    let addresses = free_addresses(count);
    let (done, results) = mpsc::channel();
    for index in 0..count {
        let (done, program) = (done.clone(), program.clone());
        let cluster = cluster(&addresses, index);
        std::thread::spawn(move || {
            let builder = MultiWorkerMirroredStrategy::builder().cluster(cluster);
            let strategy = builder.transport(transport).build();
            let _ = done.send((index, strategy.and_then(program)));
        });
    }
    let mut outcomes: Vec<_> = (0..count)
        .map(|_| {
            results
                .recv_timeout(LIMIT)
                .expect("a worker hangs or panicked")
        })
        .collect();
    outcomes.sort_by_key(|(index, _)| *index);
    outcomes
        .into_iter()
        .map(|(_, outcome)| outcome.unwrap())
        .collect()
}
