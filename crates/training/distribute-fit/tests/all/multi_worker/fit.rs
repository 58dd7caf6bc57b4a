//! `fit` with several workers: all train, stop, save and resume together.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use distribute_core::checkpoint::{Checkpoint, list, load_latest};
use distribute_core::{
    Adam, BatchSource, Batches, Configuration, Error, MirroredStrategy,
    MultiWorkerMirroredStrategy, Result, Sgd, Strategy, StrategyExt, TrainState,
};
use distribute_fit::callbacks::{Interrupt, ModelCheckpoint};
use distribute_fit::{Callback, Control, EpochRecord, Fit, History, Outcome, evaluate};
use rstest::rstest;
use tempfile::TempDir;

use crate::common::{BATCHES, Batch, Mlp, Points, everything, new_state, objective};
use crate::multi_worker::group::{Between, SHARED_MEMORY, THREADS, try_workers, workers};

const EPOCHS: usize = 3;

type Weights = Vec<(String, Vec<f32>)>;

/// Epoch losses and accuracies, as bits.
fn curve(history: &History) -> Vec<(usize, Vec<(String, u64)>)> {
    let logs = |record: &EpochRecord| {
        let named = record.logs.iter();
        named
            .map(|(name, value)| (name.to_string(), value.to_bits()))
            .collect()
    };
    history
        .epochs
        .iter()
        .map(|record| (record.epoch, logs(record)))
        .collect()
}

/// Trains with validation and returns all that must be equal.
fn run<'a, S: Strategy>(
    strategy: &'a S,
    checkpoint: Option<Checkpoint>,
    callbacks: Vec<Box<dyn Callback + 'a>>,
) -> Result<(History, Weights)> {
    let data = Points::new(strategy);
    let mut state = new_state(strategy);
    let mut fit = Fit::new(strategy)
        .epochs(EPOCHS)
        .seed(3)
        .resume_from(checkpoint);
    for callback in callbacks {
        fit = fit.callback(BoxedCallback(callback));
    }
    let history = fit.run_with_validation(&mut state, &data, &data, objective)?;
    Ok((history, everything(state.primary().unwrap())))
}

/// Lets a boxed callback be one.
struct BoxedCallback<'a>(Box<dyn Callback + 'a>);

impl Callback for BoxedCallback<'_> {
    fn on_train_begin(&mut self, run: &mut Control<'_>) -> Result<()> {
        self.0.on_train_begin(run)
    }

    fn on_batch_end(&mut self, run: &mut Control<'_>) -> Result<()> {
        self.0.on_batch_end(run)
    }

    fn on_validation_batch_end(&mut self, run: &mut Control<'_>) -> Result<()> {
        self.0.on_validation_batch_end(run)
    }

    fn on_epoch_end(&mut self, record: &EpochRecord, run: &mut Control<'_>) -> Result<()> {
        self.0.on_epoch_end(record, run)
    }

    fn on_train_end(&mut self, outcome: &Outcome, run: &mut Control<'_>) -> Result<()> {
        self.0.on_train_end(outcome, run)
    }

    fn saves(&self) -> bool {
        self.0.saves()
    }
}

/// Looks at the logs at moments of its own, and acts after a number of batches.
struct After<F> {
    batches: usize,
    act: F,
}

impl<F: FnMut(&mut Control<'_>) -> Result<()>> Callback for After<F> {
    fn on_batch_end(&mut self, run: &mut Control<'_>) -> Result<()> {
        self.batches = self.batches.wrapping_sub(1);
        if self.batches == 0 {
            assert!(run.logs()?.loss().is_finite());
            (self.act)(run)?;
        }
        Ok(())
    }
}

fn index(strategy: &MultiWorkerMirroredStrategy) -> usize {
    strategy.workers().unwrap().index()
}

#[test]
fn workers_train_as_the_replicas_of_one_process_do() {
    let mirrored = MirroredStrategy::builder().replicas(3).build().unwrap();
    let (history, expected) = run(&mirrored, None, Vec::new()).unwrap();
    let all = workers(THREADS, &[2, 1], |strategy| {
        // Only one worker looks at the logs.
        let look = After {
            batches: 2 + index(&strategy),
            act: |_: &mut Control<'_>| Ok(()),
        };
        let mut callbacks: Vec<Box<dyn Callback>> = Vec::new();
        if index(&strategy) == 1 {
            callbacks.push(Box::new(look));
        }
        let (history, weights) = run(&strategy, None, callbacks)?;
        Ok((curve(&history), weights))
    });
    assert_eq!(all[0], all[1]);
    assert_eq!(
        all[0].0,
        curve(&history),
        "losses and accuracies over all workers"
    );
    assert_eq!(all[0].1, expected, "the same sums in the same order");
}

/// What a worker sees of the epoch's loss after every batch, and at its end.
#[derive(Default)]
struct Losses {
    own: Vec<f64>,
    epoch: f64,
}

impl Callback for Losses {
    fn on_batch_end(&mut self, run: &mut Control<'_>) -> Result<()> {
        let loss = run.logs()?.loss();
        assert_eq!(run.logs()?.loss(), loss, "asked twice");
        self.own.push(loss);
        Ok(())
    }

    fn on_epoch_end(&mut self, record: &EpochRecord, _: &mut Control<'_>) -> Result<()> {
        self.epoch = record.logs.loss();
        Ok(())
    }
}

#[test]
fn each_worker_sees_its_own_part_of_the_loss_after_every_batch() {
    let all = workers(THREADS, &[2, 1], |strategy| {
        let mut losses = Losses::default();
        let mut state = new_state(&strategy);
        let fit = Fit::new(&strategy).callback(&mut losses);
        fit.run(&mut state, &Points::new(&strategy), objective)?;
        Ok((losses.own, losses.epoch))
    });
    let (first, second) = (&all[0].0, &all[1].0);
    let (before, last) = (BATCHES - 2, BATCHES - 1);
    // Of 5 batches of 8 the replicas get 3, 3 and 2, of the last one, of 4, they get 3, 1 and none.
    let mean = (first[last] * 34.0 + second[last] * 10.0) / 44.0;
    assert!((mean - all[0].1).abs() < 1e-6, "{mean} and {}", all[0].1);
    assert_eq!(all[0].1, all[1].1);
    assert_ne!(first[last], first[before]);
    assert_eq!(
        second[last], second[before],
        "it has none of the last batch"
    );
}

#[rstest]
#[case(THREADS)]
#[case(SHARED_MEMORY)]
fn one_interrupted_worker_stops_and_saves_all_after_the_same_step(#[case] between: Between) {
    let uninterrupted = workers(between, &[1, 1, 1], |strategy| {
        let (history, weights) = run(&strategy, None, Vec::new())?;
        Ok((curve(&history), weights))
    });
    for (who, batches) in [(0, 1), (2, 4), (1, BATCHES), (2, BATCHES + 1)] {
        let directory = TempDir::new().unwrap();
        let path = directory.path().to_path_buf();
        let at = path.clone();
        let parts = workers(between, &[1, 1, 1], move |strategy| {
            let flag = Arc::new(AtomicBool::new(false));
            let mut callbacks: Vec<Box<dyn Callback>> = Vec::new();
            if index(&strategy) == who {
                let raised = Arc::clone(&flag);
                let act = move |_: &mut Control<'_>| {
                    raised.store(true, Ordering::Relaxed);
                    Ok(())
                };
                callbacks.push(Box::new(After { batches, act }));
            }
            callbacks.push(Box::new(Interrupt::new(flag)));
            let saver = ModelCheckpoint::with_workers(&strategy, &at)?.every_epochs(100);
            callbacks.push(Box::new(saver));
            let (history, weights) = run(&strategy, None, callbacks)?;
            assert_eq!(history.outcome, Outcome::Interrupted);
            Ok((history.position, weights))
        });
        assert_eq!(parts[0], parts[1], "all stopped after the same step");
        assert_eq!(parts[0], parts[2], "all stopped after the same step");
        assert_eq!(list(&path).unwrap().len(), 1, "the chief saved once");
        let resumed = workers(between, &[1, 1, 1], move |strategy| {
            let checkpoint = load_latest(&path).map(|newest| newest.found.unwrap().1);
            let (history, weights) = run(&strategy, Some(checkpoint.unwrap()), Vec::new())?;
            Ok((curve(&history), weights))
        });
        for (resumed, whole) in resumed.iter().zip(&uninterrupted) {
            assert!(!resumed.0.is_empty() && resumed.0.len() >= whole.0.len() - 1);
            assert_eq!(
                resumed.1, whole.1,
                "the weights of a run that was not interrupted"
            );
            let rest = &whole.0[whole.0.len() - resumed.0.len()..];
            assert_eq!(resumed.0, rest, "and its losses");
        }
    }
}

#[test]
fn interrupted_between_micro_batches_the_rest_is_the_same() {
    let run = |strategy: &MultiWorkerMirroredStrategy, path: PathBuf, resumes: bool, batches| {
        let data = Points::new(strategy);
        let build = |device: &_| TrainState::new(Mlp::new(device), Adam::new(0.02)).accumulate(4);
        let mut state = strategy.scope(build)?;
        let checkpoint = resumes.then(|| load_latest(&path).unwrap().found.unwrap().1);
        let act = |run: &mut Control<'_>| {
            run.stop(Outcome::Interrupted);
            Ok(())
        };
        // One worker is interrupted; the others hear of it at the end of the epoch at the latest.
        let batches = if index(strategy) == 1 { batches } else { 0 };
        let fit = Fit::new(strategy)
            .epochs(EPOCHS)
            .resume_from(checkpoint)
            .callback(ModelCheckpoint::with_workers(strategy, path)?.every_epochs(100))
            .callback(After { batches, act });
        let history = fit.run(&mut state, &data, objective)?;
        let last = everything(state.primary().unwrap());
        Ok((
            history.outcome.clone(),
            history.position,
            curve(&history),
            last,
        ))
    };
    let whole = TempDir::new().unwrap();
    let path = whole.path().to_path_buf();
    let expected = workers(THREADS, &[2, 1], move |strategy| {
        run(&strategy, path.clone(), false, 0)
    });
    for batches in [1, 5, BATCHES, 2 * BATCHES - 1] {
        let directory = TempDir::new().unwrap();
        let path = directory.path().to_path_buf();
        let at = path.clone();
        let parts = workers(THREADS, &[2, 1], move |strategy| {
            run(&strategy, at.clone(), false, batches)
        });
        assert_eq!(parts[0].0, Outcome::Interrupted);
        assert_eq!(parts[0], parts[1]);
        let resumed = workers(THREADS, &[2, 1], move |strategy| {
            run(&strategy, path.clone(), true, 0)
        });
        for (resumed, whole) in resumed.iter().zip(&expected) {
            let rest = &whole.2[whole.2.len() - resumed.2.len()..];
            assert_eq!((&resumed.2[..], &resumed.3), (rest, &whole.3), "{batches}");
        }
    }
}

#[test]
fn a_wish_of_one_worker_at_the_end_of_an_epoch_stops_all_for_its_reason() {
    struct Enough;
    impl Callback for Enough {
        fn on_epoch_end(&mut self, _: &EpochRecord, run: &mut Control<'_>) -> Result<()> {
            run.stop(Outcome::Requested {
                why: "good enough".into(),
            });
            Ok(())
        }
    }
    let outcomes = workers(THREADS, &[1, 2], |strategy| {
        let mut callbacks: Vec<Box<dyn Callback>> = Vec::new();
        if index(&strategy) == 1 {
            callbacks.push(Box::new(Enough));
        }
        let (history, _) = run(&strategy, None, callbacks)?;
        Ok((history.epochs.len(), history.outcome))
    });
    let enough = Outcome::Requested {
        why: "good enough".into(),
    };
    assert_eq!(outcomes, [(1, enough.clone()), (1, enough)]);
}

#[test]
fn a_wish_given_to_the_group_stops_all() {
    let outcomes = workers(THREADS, &[1, 1], |strategy| {
        let group = strategy.workers().unwrap().clone();
        let act = move |_: &mut Control<'_>| {
            group.request_stop();
            Ok(())
        };
        let mut callbacks: Vec<Box<dyn Callback>> = Vec::new();
        if index(&strategy) == 1 {
            callbacks.push(Box::new(After { batches: 3, act }));
        }
        let (history, _) = run(&strategy, None, callbacks)?;
        Ok((history.position.batches, history.outcome))
    });
    assert_eq!(
        outcomes,
        [(4, Outcome::Interrupted), (4, Outcome::Interrupted)]
    );
}

#[test]
fn settings_that_differ_are_an_error_on_all_workers() {
    for (seed, epochs, rate, said) in [
        (
            4,
            EPOCHS,
            0.02,
            "the seed is 4 on worker 1 and 3 on the chief",
        ),
        (
            3,
            9,
            0.02,
            "the number of epochs is 9 on worker 1 and 3 on the chief",
        ),
        (
            3,
            EPOCHS,
            0.03,
            "the learning rate is 0.03 on worker 1 and 0.02 on the chief",
        ),
    ] {
        let outcomes = try_workers(THREADS, &[1, 1], move |strategy| {
            let (seed, epochs, rate) = if strategy.is_chief() {
                (3, EPOCHS, 0.02)
            } else {
                (seed, epochs, rate)
            };
            let data = Points::new(&strategy);
            let mut state =
                strategy.scope(|device| TrainState::new(Mlp::new(device), Adam::new(rate)))?;
            let fit = Fit::new(&strategy).epochs(epochs).seed(seed);
            fit.run(&mut state, &data, objective).map(drop)
        });
        for outcome in outcomes {
            let text = outcome.unwrap_err().to_string();
            assert!(text.contains(said), "{text}");
        }
    }
}

#[test]
fn another_optimizer_is_named_before_its_learning_rate() {
    let outcomes = try_workers(THREADS, &[1, 1], |strategy| {
        let data = Points::new(&strategy);
        let is_chief = strategy.is_chief();
        let mut state = strategy.scope(|device| {
            if is_chief {
                TrainState::new(Mlp::new(device), Adam::new(0.02))
            } else {
                TrainState::new(Mlp::new(device), Sgd::new(0.5))
            }
        })?;
        let fit = Fit::new(&strategy).epochs(EPOCHS).max_steps(Some(1));
        fit.run(&mut state, &data, objective).map(drop)
    });
    for outcome in outcomes {
        let text = outcome.unwrap_err().to_string();
        let said = "the optimizer is sgd on worker 1 and adam on the chief";
        assert!(text.contains(said), "{text}");
    }
}

#[test]
fn configurations_are_compared_by_name_on_all_workers() {
    let outcomes = try_workers(THREADS, &[1, 1, 1], |strategy| {
        let workers = strategy.workers().unwrap();
        let own = Configuration::new().with("--seed", Some(1));
        workers.agree_on(&own)?;
        let l2 = (workers.index() == 2).then_some(0.01);
        workers.agree_on(&own.with("--l2", l2))
    });
    for outcome in outcomes {
        let error = outcome.unwrap_err();
        assert!(
            matches!(&error, Error::DifferentConfigurations { worker: 2, .. }),
            "{error:?}"
        );
        let said = "--l2 is 0.01 on worker 2 and not given on the chief";
        assert!(error.to_string().contains(said), "{error}");
    }
}

#[test]
fn a_learning_rate_that_one_worker_changes_is_found_between_epochs() {
    let outcomes = try_workers(THREADS, &[1, 1], |strategy| {
        let act = |run: &mut Control<'_>| {
            run.set_learning_rate(0.5);
            Ok(())
        };
        let mut callbacks: Vec<Box<dyn Callback>> = Vec::new();
        if index(&strategy) == 1 {
            callbacks.push(Box::new(After { batches: 2, act }));
        }
        run(&strategy, None, callbacks)?;
        Ok(())
    });
    for outcome in outcomes {
        let text = outcome.unwrap_err().to_string();
        let said = "the learning rate is 0.5 on worker 1 and 0.02 on the chief";
        assert!(text.contains(said), "{text}");
    }
}

#[test]
fn a_stop_wished_after_the_last_batch_counts() {
    let outcomes = workers(THREADS, &[1, 1], |strategy| {
        let act = |run: &mut Control<'_>| {
            run.stop(Outcome::Interrupted);
            Ok(())
        };
        let mut callbacks: Vec<Box<dyn Callback>> = Vec::new();
        if index(&strategy) == 1 {
            callbacks.push(Box::new(After {
                batches: BATCHES,
                act,
            }));
        }
        let (history, _) = run(&strategy, None, callbacks)?;
        Ok((
            history.position.batches,
            history.epochs.len(),
            history.outcome,
        ))
    });
    let stopped = (BATCHES, 0, Outcome::Interrupted);
    assert_eq!(outcomes, [stopped.clone(), stopped]);
}

#[test]
fn an_error_on_one_worker_ends_the_others() {
    let outcomes = try_workers(THREADS, &[1, 1], |strategy| {
        let act = |_: &mut Control<'_>| Err(Error::invalid("the disk is full"));
        let mut callbacks: Vec<Box<dyn Callback>> = Vec::new();
        if index(&strategy) == 1 {
            callbacks.push(Box::new(After { batches: 3, act }));
        }
        run(&strategy, None, callbacks)?;
        Ok(())
    });
    let texts: Vec<_> = outcomes
        .into_iter()
        .map(|o| o.unwrap_err().to_string())
        .collect();
    assert!(
        texts[0].contains("rank 1") && texts[0].contains("the disk is full"),
        "{}",
        texts[0]
    );
    assert_eq!(texts[1], "the disk is full");
}

/// A source of batches that has different numbers of them on the workers.
struct Uneven<'a> {
    points: Points<'a, MultiWorkerMirroredStrategy>,
    batches: usize,
    /// Whether it tells its number of batches.
    counted: bool,
}

impl BatchSource for Uneven<'_> {
    type Batch = Batch;

    fn batches_per_epoch(&self) -> Option<usize> {
        self.counted.then_some(self.batches)
    }

    fn global_batch_size(&self) -> Option<usize> {
        self.points.global_batch_size()
    }

    fn epoch(&self, epoch: usize, skip: usize) -> Result<Batches<'_, Batch>> {
        let rest = self.batches.saturating_sub(skip);
        Ok(Box::new(self.points.epoch(epoch, skip)?.take(rest)))
    }
}

#[rstest]
#[case(true, "the number of batches is 4 on worker 1 and 2 on the chief")]
#[case(false, "worker 0 has no batch 2 of the epoch, worker 1 has one")]
fn a_source_of_ones_own_with_uneven_workers_is_refused(
    #[case] counted: bool,
    #[case] said: &'static str,
) {
    for evaluates in [false, true] {
        if evaluates && counted {
            continue;
        }
        let all = Arc::new(std::sync::Barrier::new(2));
        let outcomes = try_workers(THREADS, &[1, 1], move |strategy| {
            let data = Uneven {
                points: Points::new(&strategy),
                batches: [2, 4][index(&strategy)],
                counted,
            };
            let mut state = new_state(&strategy);
            let outcome = if evaluates {
                evaluate(&strategy, &state, &data, objective).map(drop)
            } else {
                let fit = Fit::new(&strategy).epochs(1);
                fit.run(&mut state, &data, objective).map(drop)
            };
            all.wait();
            outcome
        });
        for outcome in outcomes {
            let text = outcome.unwrap_err().to_string();
            assert!(text.contains(said), "{text}");
        }
    }
}

/// The steps that were saved by two workers with a checkpoint callback.
fn saved(options: fn(ModelCheckpoint) -> ModelCheckpoint) -> Vec<u64> {
    let directory = TempDir::new().unwrap();
    let path = directory.path().to_path_buf();
    workers(THREADS, &[1, 1], move |strategy| {
        let saver = options(ModelCheckpoint::with_workers(&strategy, &path)?);
        run(&strategy, None, vec![Box::new(saver)])?;
        Ok(())
    });
    assert_only_checkpoints(directory.path());
    list(directory.path())
        .unwrap()
        .iter()
        .map(|entry| entry.step)
        .collect()
}

fn assert_only_checkpoints(directory: &Path) {
    for entry in std::fs::read_dir(directory).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        assert!(!name.contains("probe"), "{name} was left behind");
    }
}

#[test]
fn the_chief_saves_after_steps_epochs_or_seconds() {
    assert_eq!(saved(|saver| saver.every_steps(5).keep(2)), [15, 18]);
    assert_eq!(saved(|saver| saver.every_epochs(2)), [12, 18]);
    // It is always time: the chief asks after one update, all workers agree with the next.
    assert_eq!(
        saved(|saver| saver.every(Duration::ZERO)),
        [2, 4, 6, 8, 10, 12, 14, 16, 18]
    );
    assert_eq!(saved(|saver| saver.every(Duration::from_secs(3600))), [18]);
}

#[test]
fn a_directory_that_is_not_shared_is_refused_on_all_workers() {
    let directories = [TempDir::new().unwrap(), TempDir::new().unwrap()];
    let paths: Vec<PathBuf> = directories.iter().map(|d| d.path().to_path_buf()).collect();
    let outcomes = try_workers(THREADS, &[1, 1], move |strategy| {
        ModelCheckpoint::with_workers(&strategy, &paths[index(&strategy)]).map(drop)
    });
    for outcome in outcomes {
        let error = outcome.unwrap_err();
        assert!(
            matches!(error, Error::NotShared { worker: 1, .. }),
            "{error:?}"
        );
        assert!(error.to_string().contains("do not share it"), "{error}");
    }
    assert_only_checkpoints(directories[0].path());
    // A directory that the chief cannot open is an error on all workers.
    let blocked = directories[0].path().join("file");
    std::fs::write(&blocked, "").unwrap();
    let outcomes = try_workers(THREADS, &[1, 1], move |strategy| {
        ModelCheckpoint::with_workers(&strategy, &blocked).map(drop)
    });
    for outcome in outcomes {
        assert!(outcome.is_err());
    }
}

#[test]
fn workers_that_found_different_checkpoints_do_not_resume() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().to_path_buf();
    let mirrored = MirroredStrategy::builder().replicas(2).build().unwrap();
    let saver = ModelCheckpoint::new(&path).unwrap();
    run(&mirrored, None, vec![Box::new(saver)]).unwrap();
    for found_by_chief in [true, false] {
        let path = path.clone();
        let outcomes = try_workers(THREADS, &[1, 1], move |strategy| {
            let finds = strategy.is_chief() == found_by_chief;
            let checkpoint = load_latest(&path).unwrap().found.unwrap().1;
            run(&strategy, finds.then_some(checkpoint), Vec::new())?;
            Ok(())
        });
        for outcome in outcomes {
            let text = outcome.unwrap_err().to_string();
            assert!(
                text.contains("one of step 18") && text.contains("none"),
                "{text}"
            );
            assert!(
                text.contains("do not share the checkpoint directory"),
                "{text}"
            );
        }
    }
}

#[test]
fn another_number_of_workers_continues_with_the_same_global_batches() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().to_path_buf();
    let at = path.clone();
    workers(THREADS, &[1, 1, 1], move |strategy| {
        let group = strategy.workers().unwrap().clone();
        let act = move |_: &mut Control<'_>| {
            group.request_stop();
            Ok(())
        };
        let saver = ModelCheckpoint::with_workers(&strategy, &at)?;
        run(
            &strategy,
            None,
            vec![Box::new(After { batches: 7, act }), Box::new(saver)],
        )?;
        Ok(())
    });
    let whole = workers(THREADS, &[1, 1, 1], |strategy| {
        Ok(run(&strategy, None, Vec::new())?.1)
    });
    let fewer = workers(THREADS, &[1, 1], move |strategy| {
        let checkpoint = load_latest(&path).unwrap().found.unwrap().1;
        Ok(run(&strategy, Some(checkpoint), Vec::new())?.1)
    });
    for ((name, a), (_, b)) in whole[0].iter().zip(&fewer[0]) {
        for (a, b) in a.iter().zip(b) {
            assert!((a - b).abs() <= 1e-5, "{name}: {a} {b}");
        }
    }
}
