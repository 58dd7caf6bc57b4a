//! The callback of one worker fails: all save together before the run ends.

use std::path::Path;
use std::time::Duration;

use distribute_core::checkpoint::{Checkpoint, load_latest};
use distribute_core::{Error, MultiWorkerMirroredStrategy, Result};
use distribute_fit::callbacks::ModelCheckpoint;
use distribute_fit::{Callback, Control, EpochRecord, Fit, History, Outcome};
use rstest::rstest;
use tempfile::TempDir;

use crate::common::{BATCHES, Points, everything, new_state, objective};
use crate::multi_worker::group::{Between, SHARED_MEMORY, THREADS, try_workers, workers};

const EPOCHS: usize = 3;

type Weights = Vec<(String, Vec<f32>)>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum At {
    EpochBegin,
    BatchEnd,
    ValidationBatchEnd,
    EpochEnd,
    TrainEnd,
}

/// Fails on some workers after a number of events of one kind, and names the event.
struct Fails {
    workers: &'static [usize],
    at: At,
    left: usize,
    calls_after: usize,
}

impl Fails {
    fn new(workers: &'static [usize], at: At, left: usize) -> Self {
        Self {
            workers,
            at,
            left,
            calls_after: 0,
        }
    }

    fn check(&mut self, at: At, run: &mut Control<'_>) -> Result<()> {
        let own = run.strategy().workers().map_or(0, |group| group.index());
        if at != self.at || !self.workers.contains(&own) {
            return Ok(());
        }
        assert_eq!(self.calls_after, 0, "called again after its error");
        self.left -= 1;
        if self.left == 0 {
            self.calls_after += 1;
            return Err(Error::step(format!("worker {own} has no {at:?} today")));
        }
        Ok(())
    }
}

impl Callback for Fails {
    fn on_epoch_begin(&mut self, run: &mut Control<'_>) -> Result<()> {
        self.check(At::EpochBegin, run)
    }

    fn on_batch_end(&mut self, run: &mut Control<'_>) -> Result<()> {
        self.check(At::BatchEnd, run)
    }

    fn on_validation_batch_end(&mut self, run: &mut Control<'_>) -> Result<()> {
        self.check(At::ValidationBatchEnd, run)
    }

    fn on_epoch_end(&mut self, _: &EpochRecord, run: &mut Control<'_>) -> Result<()> {
        self.check(At::EpochEnd, run)
    }

    fn on_train_end(&mut self, _: &Outcome, run: &mut Control<'_>) -> Result<()> {
        self.check(At::TrainEnd, run)
    }
}

/// Trains on a worker, with these callbacks and one that only saves at the end.
fn train<'a>(
    strategy: &'a MultiWorkerMirroredStrategy,
    directory: &Path,
    checkpoint: Option<Checkpoint>,
    callback: impl Callback + 'a,
) -> Result<(History, Weights)> {
    let data = Points::new(strategy);
    let mut state = new_state(strategy);
    let saver = ModelCheckpoint::with_workers(strategy, directory)?;
    let history = Fit::new(strategy)
        .epochs(EPOCHS)
        .seed(3)
        .resume_from(checkpoint)
        .callback(callback)
        .callback(saver.every(Duration::from_secs(3600)))
        .run_with_validation(&mut state, &data, &data, objective)?;
    Ok((history, everything(state.primary()?)))
}

struct Nothing;

impl Callback for Nothing {}

/// The errors of two workers, and the step that was saved.
fn failed(
    between: Between,
    failing: &'static [usize],
    at: At,
    left: usize,
) -> (Vec<Error>, TempDir) {
    let directory = TempDir::new().unwrap();
    let path = directory.path().to_path_buf();
    let outcomes = try_workers(between, &[1, 2], move |strategy| {
        train(&strategy, &path, None, Fails::new(failing, at, left)).map(drop)
    });
    let errors = outcomes.into_iter().map(Result::unwrap_err);
    (errors.collect(), directory)
}

fn saved(directory: &TempDir) -> Option<Checkpoint> {
    let found = load_latest(directory.path()).unwrap().found;
    found.map(|(_, checkpoint)| checkpoint)
}

const EPOCH: u64 = BATCHES as u64;

#[rstest]
#[case(At::EpochBegin, 2, EPOCH)]
// All workers get the error together with the gradients of the next update.
#[case(At::BatchEnd, 1, 2)]
#[case(At::BatchEnd, BATCHES, EPOCH)]
#[case(At::ValidationBatchEnd, 1, EPOCH)]
#[case(At::EpochEnd, 1, EPOCH)]
#[case(At::EpochEnd, EPOCHS, EPOCHS as u64 * EPOCH)]
#[case(At::TrainEnd, 1, EPOCHS as u64 * EPOCH)]
fn all_save_before_the_error_of_one_ends_the_run(
    #[values(&[0], &[1])] failing: &'static [usize],
    #[case] at: At,
    #[case] left: usize,
    #[case] step: u64,
) {
    let (errors, directory) = if at == At::TrainEnd {
        // At the end of training the callbacks that save are called first, so the save is done.
        let directory = TempDir::new().unwrap();
        let path = directory.path().to_path_buf();
        let outcomes = try_workers(THREADS, &[1, 2], move |strategy| {
            train(&strategy, &path, None, Fails::new(failing, at, left)).map(drop)
        });
        let errors = outcomes.into_iter().filter_map(Result::err);
        (errors.collect::<Vec<_>>(), directory)
    } else {
        failed(THREADS, failing, at, left)
    };
    let own = format!("worker {} has no {at:?} today", failing[0]);
    let owns = errors.iter().filter(|error| error.to_string() == own);
    assert_eq!(owns.count(), 1, "{errors:?}");
    for other in errors.iter().filter(|error| error.to_string() != own) {
        let text = other.to_string();
        let wanted = format!("a callback of rank {} failed: {own}", failing[0]);
        assert!(text.contains(&wanted) || at == At::TrainEnd, "{text}");
        assert!(matches!(other, Error::Stopped { .. }) || at == At::TrainEnd);
    }
    assert_eq!(saved(&directory).unwrap().metadata.step, step);
}

#[test]
fn what_was_saved_goes_on_as_if_nothing_had_been() {
    let (errors, directory) = failed(SHARED_MEMORY, &[1], At::BatchEnd, BATCHES + 1);
    assert!(
        errors[1].to_string().contains("worker 1 has no"),
        "{errors:?}"
    );
    let whole = TempDir::new().unwrap();
    let all = |directory: &TempDir| {
        let (path, checkpoint) = (directory.path().to_path_buf(), saved(directory));
        workers(THREADS, &[1, 2], move |strategy| {
            Ok(train(&strategy, &path, checkpoint.clone(), Nothing)?.1)
        })
    };
    assert_eq!(all(&directory), all(&whole));
}

#[test]
fn callbacks_that_fail_on_all_workers_say_so_each_for_its_own() {
    let (errors, directory) = failed(THREADS, &[0, 1], At::EpochEnd, 2);
    for (worker, error) in errors.iter().enumerate() {
        let own = format!("worker {worker} has no EpochEnd today");
        assert_eq!(error.to_string(), own);
    }
    assert_eq!(saved(&directory).unwrap().metadata.step, 2 * EPOCH);
}

/// Changes the learning rate on all workers; on one of them it fails instead.
#[derive(Clone)]
struct Schedule;

impl Callback for Schedule {
    fn on_epoch_end(&mut self, _: &EpochRecord, run: &mut Control<'_>) -> Result<()> {
        if run
            .strategy()
            .workers()
            .is_some_and(|group| group.index() == 1)
        {
            return Err(Error::step("no rate today"));
        }
        run.set_learning_rate(0.5);
        Ok(())
    }
}

/// Ends the training on one worker because its loss is not finite; fails on the other.
#[derive(Clone)]
struct Useless;

impl Callback for Useless {
    fn on_batch_end(&mut self, run: &mut Control<'_>) -> Result<()> {
        let step = run.progress().step;
        match run.strategy().workers().map(|group| group.index()) {
            Some(0) => run.stop(Outcome::NotFinite { step }),
            _ => return Err(Error::step("no numbers today")),
        }
        Ok(())
    }
}

/// Loses the group on one worker.
#[derive(Clone)]
struct Leaves;

impl Callback for Leaves {
    fn on_batch_end(&mut self, run: &mut Control<'_>) -> Result<()> {
        let group = run.strategy().workers().cloned();
        let group = group.filter(|group| group.index() == 1);
        group.map_or(Ok(()), |group| {
            group.abort("gone");
            group.barrier()
        })
    }
}

fn errors_with(callback: impl Callback + Send + Clone + 'static) -> (Vec<String>, Option<u64>) {
    let directory = TempDir::new().unwrap();
    let path = directory.path().to_path_buf();
    let outcomes = try_workers(THREADS, &[1, 1], move |strategy| {
        train(&strategy, &path, None, callback.clone()).map(drop)
    });
    let errors = outcomes.into_iter().map(|it| it.unwrap_err().to_string());
    let errors = errors.collect();
    (errors, saved(&directory).map(|it| it.metadata.step))
}

#[test]
fn a_failed_callback_is_the_cause_and_not_what_it_left_undone() {
    let (errors, step) = errors_with(Schedule);
    assert_eq!(errors[1], "no rate today");
    assert!(
        errors[0].contains("rank 1 failed: no rate today"),
        "{errors:?}"
    );
    assert_eq!(step, Some(EPOCH));
}

#[test]
fn nothing_is_saved_of_what_is_useless_or_of_a_group_that_is_gone() {
    let (errors, step) = errors_with(Useless);
    assert!(errors[1].contains("no numbers today"), "{errors:?}");
    assert_eq!(step, None);
    let (errors, step) = errors_with(Leaves);
    assert!(
        errors.iter().all(|error| error.contains("gone")),
        "{errors:?}"
    );
    assert_eq!(step, None);
}
