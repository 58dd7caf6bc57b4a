//! A rank that is slower than the others is named.

use std::time::Duration;

use distribute_core::collectives::stragglers::{Cause, Standing};
use distribute_core::{BatchSource, Batches, MultiWorkerMirroredStrategy, Result, Strategy};
use distribute_fit::callbacks::TensorBoard;
use distribute_fit::{Callback, Control, Fit, History, Outcome};

use crate::common::{Batch, Points, new_state, objective};
use crate::multi_worker::group::{SHARED_MEMORY, THREADS, try_workers, workers};

/// What the slow rank waits for in each step: more than another one takes, also beside other work.
const LONGER: Duration = Duration::from_millis(20);
const OFTEN: Duration = Duration::from_millis(150);
/// Far more than are needed.
const STEPS_MAX: u64 = 5000;

/// Stops when a rank is slow.
#[derive(Default)]
struct UntilSlow(Vec<Standing>);

impl Callback for UntilSlow {
    fn on_batch_end(&mut self, run: &mut Control<'_>) -> Result<()> {
        self.0 = run.standings().to_vec();
        if self.0.iter().any(|standing| standing.is_slow) {
            let why = "a rank is slow".to_string();
            run.stop(Outcome::Requested { why });
        }
        Ok(())
    }
}

/// A source that takes its time.
struct SlowPoints<'a> {
    points: Points<'a, MultiWorkerMirroredStrategy>,
    pause: Duration,
}

impl BatchSource for SlowPoints<'_> {
    type Batch = Batch;

    fn batches_per_epoch(&self) -> Option<usize> {
        self.points.batches_per_epoch()
    }

    fn global_batch_size(&self) -> Option<usize> {
        self.points.global_batch_size()
    }

    fn epoch(&self, epoch: usize, skip_batches: usize) -> Result<Batches<'_, Batch>> {
        let batches = self.points.epoch(epoch, skip_batches)?;
        Ok(Box::new(
            batches.inspect(|_| std::thread::sleep(self.pause)),
        ))
    }
}

/// Trains until a rank is slow, with these pauses in each step and before each batch.
fn until_slow(
    strategy: &MultiWorkerMirroredStrategy,
    in_step: Duration,
    before_batch: Duration,
) -> Result<(History, Vec<Standing>)> {
    let data = SlowPoints {
        points: Points::new(strategy),
        pause: before_batch,
    };
    let mut until = UntilSlow::default();
    let history = Fit::new(strategy)
        .epochs(usize::MAX)
        .max_steps(STEPS_MAX)
        .compare_ranks(OFTEN)
        .callback(&mut until)
        .run(&mut new_state(strategy), &data, |ctx, model, batch| {
            std::thread::sleep(in_step);
            objective(ctx, model, batch)
        })?;
    Ok((history, until.0))
}

/// The pause of this worker, if it is the slow one.
fn pause_of(strategy: &MultiWorkerMirroredStrategy, slow: usize) -> Duration {
    if strategy.workers().unwrap().index() == slow {
        LONGER
    } else {
        Duration::ZERO
    }
}

fn check(found: &[(History, Vec<Standing>)], slow: usize, cause: Cause) {
    for (history, standings) in found {
        let report = history.ranks.as_ref().unwrap();
        let named: Vec<_> = report.slow.iter().map(|it| (it.rank, it.cause)).collect();
        assert_eq!(named, [(slow, cause)], "{report:?}");
        assert_eq!(standings, &found[0].1, "all workers come to one judgement");
        assert_eq!(report, found[0].0.ranks.as_ref().unwrap());
        assert!(standings[slow].ratio > 1.25, "{standings:?}");
        let share = |rank: usize| match cause {
            Cause::Data => report.shares[rank].data,
            _ => report.shares[rank].compute,
        };
        let other = usize::from(slow == 0);
        assert!(share(slow) > share(other), "{report:?}");
        let waiting = |rank: usize| report.shares[rank].waiting;
        assert!(waiting(other) > waiting(slow), "{report:?}");
        assert_eq!(report.hosts.len(), found.len());
        assert!(report.sentences().all(|it| it.contains("on host")));
    }
}

#[test]
fn a_rank_that_computes_longer_is_named_on_all_workers() {
    for (slow, replicas) in [(1, &[1, 1][..]), (0, &[1, 2, 1])] {
        let found = workers(THREADS, replicas, move |strategy| {
            let pause = pause_of(&strategy, slow);
            until_slow(&strategy, pause, Duration::ZERO)
        });
        check(&found, slow, Cause::Compute);
    }
}

#[test]
fn a_rank_that_waits_for_its_data_is_named_as_such() {
    let found = workers(SHARED_MEMORY, &[1, 1, 1], |strategy| {
        let pause = pause_of(&strategy, 2);
        until_slow(&strategy, Duration::ZERO, pause)
    });
    check(&found, 2, Cause::Data);
}

#[test]
fn tensorboard_has_the_slowest_rank() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_path_buf();
    workers(THREADS, &[1, 1], move |strategy| {
        let mut fit = Fit::new(&strategy)
            .epochs(50)
            .compare_ranks(Duration::from_millis(20));
        if strategy.workers().unwrap().is_chief() {
            fit = fit.callback(TensorBoard::new(&path)?);
        }
        fit.run(
            &mut new_state(&strategy),
            &Points::new(&strategy),
            objective,
        )
        .map(drop)
    });
    let files = std::fs::read_dir(folder.path().join("train")).unwrap();
    let mut files = files.map(|file| std::fs::read(file.unwrap().path()).unwrap());
    let tag = b"epoch_slowest_rank_ratio";
    assert!(files.any(|bytes| bytes.windows(tag.len()).any(|found| found == tag)));
}

#[test]
fn nothing_is_compared_that_is_not_to_be() {
    let found = workers(THREADS, &[1, 1], |strategy| {
        let mut until = UntilSlow::default();
        let fit = Fit::new(&strategy).epochs(5).compare_ranks(Duration::ZERO);
        let data = Points::new(&strategy);
        let mut state = new_state(&strategy);
        let history = fit.callback(&mut until).run(&mut state, &data, objective)?;
        Ok((history.ranks.is_none(), until.0.is_empty()))
    });
    assert_eq!(found, [(true, true); 2]);
}

#[test]
fn workers_that_do_not_compare_alike_are_refused() {
    let found = try_workers(THREADS, &[1, 1], |strategy| {
        let own = strategy.workers().unwrap().index() as u64;
        let fit = Fit::new(&strategy).compare_ranks(Duration::from_secs(own));
        let ended = fit.run(
            &mut new_state(&strategy),
            &Points::new(&strategy),
            objective,
        );
        ended.map(drop)
    });
    for ended in found {
        let error = ended.unwrap_err().to_string();
        assert!(error.contains("how often ranks are compared"), "{error}");
    }
}
