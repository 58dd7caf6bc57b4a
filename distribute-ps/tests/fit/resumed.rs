//! Interrupted runs go on.

use std::path::Path;
use std::sync::Arc;

use distribute_core::checkpoint;
use distribute_core::fit::callbacks::ModelCheckpoint;
use distribute_core::fit::{Callback, Control, Fit, History, Outcome, Position};

use crate::cluster::{Cluster, Job, within_limit};
use crate::data::{BATCHES, objective};

/// Stops after so many batches of the run.
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

#[test]
fn with_several_workers_it_goes_on_at_the_first_batch_that_was_not_done() {
    within_limit(|| {
        let directory = tempfile::tempdir().unwrap();
        // What the workers have been given by then is done as well: some batches each, and never
        // all that the epoch has left.
        let (first, saved) = run(directory.path(), 3, BATCHES + 1);
        assert_eq!(first.outcome, Outcome::Interrupted);
        let Position { epoch, batches } = first.position;
        assert_eq!(epoch, 1);
        assert!((1..BATCHES).contains(&batches), "{batches}");
        assert_eq!(saved.metadata.step, (BATCHES + batches) as u64);
        let (rest, trained) = run(directory.path(), 2, usize::MAX);
        assert_eq!(rest.outcome, Outcome::Completed);
        assert_eq!(trained.metadata.step, 3 * BATCHES as u64);
        assert_eq!(rest.epochs[0].examples, (84 - batches * 8) as u64);
    });
}
