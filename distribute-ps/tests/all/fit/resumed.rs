//! Interrupted runs go on.

use std::path::Path;
use std::sync::Arc;

use distribute_core::checkpoint;
use distribute_fit::callbacks::ModelCheckpoint;
use distribute_fit::{Callback, Control, Fit, History, Outcome, Position};

use super::cluster::{Cluster, Job};
use super::data::{BATCHES, objective};
use crate::within_limit;

/// Stops after this many batches of the run.
struct StopAfter(usize);

impl Callback for StopAfter {
    fn on_batch_end(&mut self, run: &mut Control<'_>) -> distribute_core::Result<()> {
        self.0 = self.0.saturating_sub(1);
        if self.0 == 0 {
            run.stop(Outcome::Interrupted);
        }
        Ok(())
    }
}

/// A run of three epochs on new servers, from the newest checkpoint of the directory if there is
/// one.
fn run(directory: &Path, workers: usize, stop_after: usize) -> (History, checkpoint::Checkpoint) {
    let job = Job::new(Arc::new(objective));
    let cluster = Cluster::start(&job, workers);
    let coordinator = &cluster.coordinator;
    let newest = checkpoint::load_latest(directory).unwrap().found;
    let fit = Fit::new(coordinator.strategy().unwrap())
        .epochs(3)
        .resume_from(newest.map(|(_, checkpoint)| checkpoint))
        .callback(StopAfter(stop_after))
        .callback(ModelCheckpoint::new(directory).unwrap().every_steps(4));
    let history = coordinator.fit(&job.training, fit).unwrap();
    let newest = checkpoint::load_latest(directory).unwrap().found.unwrap();
    (history, newest.1)
}

#[test]
fn with_one_worker_a_resumed_run_has_the_bits_of_one_that_was_never_interrupted() {
    within_limit(|| {
        let whole = tempfile::tempdir().unwrap();
        let (expected, trained) = run(whole.path(), 1, usize::MAX);
        for stop_after in [1, 6, BATCHES, BATCHES + 3] {
            let parts = tempfile::tempdir().unwrap();
            let (first, saved) = run(parts.path(), 1, stop_after);
            assert_eq!(first.outcome, Outcome::Interrupted);
            // What was scheduled by then is done, and counts.
            let done = first.position.epoch * BATCHES + first.position.batches;
            assert!((stop_after..stop_after + 3).contains(&done), "{done}");
            assert_eq!(saved.metadata.step, done as u64);
            let (rest, found) = run(parts.path(), 1, usize::MAX);
            assert_eq!(found.tensors, trained.tensors);
            assert_eq!(found.metadata.step, trained.metadata.step);
            let last = |history: &History| history.last_logs();
            assert_eq!(last(&rest), last(&expected));
        }
    });
}

/// A slow worker holds one batch back while the others go on with later ones, up to the end of the
/// epoch: what is done when the run stops is anything from what it was asked for to all of that.
#[test]
fn with_several_workers_it_goes_on_at_the_first_batch_that_was_not_done() {
    within_limit(|| {
        for stop_after in [BATCHES + 4, 2 * BATCHES] {
            let directory = tempfile::tempdir().unwrap();
            let (first, saved) = run(directory.path(), 3, stop_after);
            assert_eq!(first.outcome, Outcome::Interrupted);
            let Position { epoch, batches } = first.position;
            let done = epoch * BATCHES + batches;
            assert!((stop_after..=2 * BATCHES).contains(&done), "{done}");
            assert_eq!(saved.metadata.step, done as u64);
            let (rest, trained) = run(directory.path(), 2, usize::MAX);
            assert_eq!(rest.outcome, Outcome::Completed);
            assert_eq!(trained.metadata.step, 3 * BATCHES as u64);
            // The last batch of an epoch has 4 examples.
            let before: usize = epoch * 84 + (batches * 8).min(84);
            let after: u64 = rest.epochs.iter().map(|record| record.examples).sum();
            assert_eq!(before as u64 + after, 3 * 84);
        }
    });
}
