//! Workers as threads of a test.

use std::sync::mpsc;
use std::time::Duration;

use distribute_core::MultiWorkerMirroredStrategy;
use distribute_core::collectives::{GroupOptions, in_process};

/// A hang fails, and is not waited for.
const LIMIT: Duration = Duration::from_secs(60);

/// Runs a program on workers with these numbers of replicas.
pub fn workers<T: Send + 'static>(
    replicas: &[usize],
    program: impl Fn(MultiWorkerMirroredStrategy) -> T + Send + Clone + 'static,
) -> Vec<T> {
    let (done, results) = mpsc::channel();
    let group = in_process(replicas.len(), GroupOptions::default()).unwrap();
    for (index, endpoint) in group.into_iter().enumerate() {
        let (done, program, count) = (done.clone(), program.clone(), replicas[index]);
        std::thread::spawn(move || {
            let builder = MultiWorkerMirroredStrategy::builder().replicas(count);
            let strategy = builder.communicator(Box::new(endpoint)).build().unwrap();
            let _ = done.send((index, program(strategy)));
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
