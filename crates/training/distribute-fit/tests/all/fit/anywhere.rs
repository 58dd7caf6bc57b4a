//! Training that is interrupted anywhere, also between two micro-batches and with losses that are
//! not finite, leaves a checkpoint from which the rest of the training is the same.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use distribute_core::checkpoint::{Checkpoint, list, load_latest};
use distribute_core::{
    Adam, DefaultStrategy, Mirrored, MirroredStrategy, Result, Sgd, Strategy, StrategyExt,
    TrainState,
};
use distribute_fit::callbacks::{
    Direction, EarlyStopping, Interrupt, LearningRateScheduler, ModelCheckpoint, TerminateOnNan,
};
use distribute_fit::{Callback, Control, Fit, History, Objective, Outcome, StepContext};
use rstest::rstest;

use crate::common::{BATCHES, Batch, Mlp, Points, everything, objective};

fn newest(directory: &Path) -> Checkpoint {
    load_latest(directory).unwrap().found.unwrap().1
}

/// Sets the flag after a number of batches, of training and of validation.
struct After(usize, Arc<AtomicBool>);

impl After {
    fn count(&mut self) {
        self.0 = self.0.wrapping_sub(1);
        if self.0 == 0 {
            self.1.store(true, Ordering::Relaxed);
        }
    }
}

impl Callback for After {
    fn on_batch_end(&mut self, _: &mut Control<'_>) -> Result<()> {
        self.count();
        Ok(())
    }

    fn on_validation_batch_end(&mut self, _: &mut Control<'_>) -> Result<()> {
        self.count();
        Ok(())
    }
}

fn new_state<S: Strategy>(strategy: &S, micro_batches: usize) -> Mirrored<TrainState<Mlp>> {
    let build =
        |device: &_| TrainState::new(Mlp::new(device), Adam::new(0.02)).accumulate(micro_batches);
    strategy.scope(build).unwrap()
}

const EPOCHS: usize = 3;

/// One process' part of a run that accumulates.
fn part<S: Strategy>(
    strategy: &S,
    micro_batches: usize,
    directory: &Path,
    checkpoint: Option<Checkpoint>,
    events: usize,
) -> (History, Mirrored<TrainState<Mlp>>) {
    let data = Points::new(strategy);
    let mut state = new_state(strategy, micro_batches);
    let interrupt = Interrupt::default();
    let fit = Fit::new(strategy)
        .epochs(EPOCHS)
        .seed(7)
        .resume_from(checkpoint)
        .callback(ModelCheckpoint::new(directory).unwrap().every_epochs(100))
        .callback(LearningRateScheduler::per_step(|_, rate| rate * 0.9))
        .callback(After(events, interrupt.flag()))
        .callback(interrupt);
    let history = fit
        .run_with_validation(&mut state, &data, &data, objective)
        .unwrap();
    (history, state)
}

/// Losses, accuracies and learning rates as bits.
fn curve(history: &History) -> Vec<Vec<u64>> {
    let records = history.epochs.iter();
    let bits = records.map(|record| {
        let logs = record.logs.iter().map(|(_, value)| value.to_bits());
        logs.chain([record.learning_rate.to_bits(), record.step])
            .collect()
    });
    bits.collect()
}

#[rstest]
fn interrupted_after_any_micro_batch_the_rest_is_the_same(
    #[values(2, 4, 100)] micro_batches: usize,
    #[values(1, 2)] replicas: usize,
) {
    let strategy = MirroredStrategy::builder().replicas(replicas);
    let strategy = strategy.build().unwrap();
    let whole = tempfile::tempdir().unwrap();
    let (expected, last) = part(&strategy, micro_batches, whole.path(), None, 0);
    assert_eq!(expected.outcome, Outcome::Completed);
    for events in 1..2 * EPOCHS * BATCHES {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        let (history, _) = part(&strategy, micro_batches, path, None, events);
        assert_eq!(history.outcome, Outcome::Interrupted);
        let checkpoint = newest(path);
        let batches = checkpoint.metadata.batches_into_epoch as usize;
        assert_eq!(history.position.batches, batches, "after {events}");
        // At once: not at the next update.
        let of_epoch = events % (2 * BATCHES);
        let expected_batches = of_epoch.min(BATCHES);
        assert!(
            batches == expected_batches || of_epoch == 0,
            "{events}: {batches}"
        );
        let (rest, state) = part(&strategy, micro_batches, path, Some(checkpoint), 0);
        let what = format!("{micro_batches} micro-batches, after {events}");
        assert_eq!(
            everything(state.primary().unwrap()),
            everything(last.primary().unwrap()),
            "{what}"
        );
        let seen = expected.epochs.len() - rest.epochs.len();
        assert_eq!(curve(&rest), curve(&expected)[seen..], "{what}");
        // What waits at the end is saved, too.
        let (a, b) = (newest(path), newest(whole.path()));
        assert_eq!(a.tensors, b.tensors, "{what}");
        assert_eq!(a.metadata.extra, b.metadata.extra, "{what}");
    }
}

#[test]
fn micro_batches_left_over_at_the_end_go_on_in_the_next_run() {
    let strategy = MirroredStrategy::builder().replicas(2).build().unwrap();
    let data = Points {
        examples: 3 * 8,
        ..Points::new(&strategy)
    };
    let run = |epochs: usize, directory: &Path, checkpoint: Option<Checkpoint>| {
        let mut state = new_state(&strategy, 2);
        let checkpoints = ModelCheckpoint::new(directory).unwrap();
        let fit = Fit::new(&strategy).epochs(epochs).resume_from(checkpoint);
        let fit = fit.callback(checkpoints);
        let history = fit.run(&mut state, &data, objective).unwrap();
        assert_eq!(history.outcome, Outcome::Completed);
        everything(state.primary().unwrap())
    };
    let (whole, parts) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let expected = run(2, whole.path(), None);
    run(1, parts.path(), None);
    let checkpoint = newest(parts.path());
    assert_eq!(
        (checkpoint.metadata.step, checkpoint.metadata.epoch),
        (1, 1)
    );
    assert_eq!(run(2, parts.path(), Some(checkpoint)), expected);
}

#[test]
fn with_another_number_of_replicas_no_micro_batch_is_lost() {
    let train = |replicas: usize, checkpoint: Option<Checkpoint>, directory: &Path, events| {
        let strategy = MirroredStrategy::builder().replicas(replicas);
        let strategy = strategy.build().unwrap();
        let (_, state) = part(&strategy, 4, directory, checkpoint, events);
        everything(state.primary().unwrap())
    };
    let whole = tempfile::tempdir().unwrap();
    let expected = train(2, None, whole.path(), 0);
    for replicas in [1, 3, 4] {
        let directory = tempfile::tempdir().unwrap();
        train(2, None, directory.path(), 3);
        let checkpoint = newest(directory.path());
        let found = train(replicas, Some(checkpoint), directory.path(), 0);
        for ((name, found), (_, expected)) in found.iter().zip(&expected) {
            for (a, b) in found.iter().zip(expected) {
                assert!(
                    (a - b).abs() < 1e-5,
                    "{replicas}: {name}: {a}, expected {b}"
                );
            }
        }
    }
}

#[test]
fn another_number_of_micro_batches_is_refused() {
    let strategy = DefaultStrategy::new();
    let directory = tempfile::tempdir().unwrap();
    part(&strategy, 4, directory.path(), None, 3);
    let mut state = new_state(&strategy, 2);
    let fit = Fit::new(&strategy)
        .epochs(EPOCHS)
        .seed(7)
        .resume_from(newest(directory.path()));
    let error = fit
        .run(&mut state, &Points::new(&strategy), objective)
        .unwrap_err();
    insta::assert_snapshot!(error, @"cannot resume from this checkpoint: its run made an update of 4 micro-batches and this one makes one of 2: accumulate the same number");
}

/// A loss, and a metric that is infinite from the second batch on.
fn infinite_metric(ctx: &StepContext<'_>, model: &Mlp, batch: Batch) -> Result<Objective> {
    let value = match (ctx.epoch(), ctx.batch()) {
        (0, 0) => 1.0,
        (_, 3) => f64::NAN,
        _ => f64::NEG_INFINITY,
    };
    Ok(objective(ctx, model, batch)?.metric("ratio", value, 1))
}

#[test]
fn a_metric_that_is_no_number_is_resumed() {
    let strategy = DefaultStrategy::new();
    let data = Points::new(&strategy);
    for events in [1, 2, 3, 4, 5] {
        let directory = tempfile::tempdir().unwrap();
        let run = |checkpoint: Option<Checkpoint>, events: usize| {
            let mut state = new_state(&strategy, 1);
            let interrupt = Interrupt::default();
            let fit = Fit::new(&strategy).resume_from(checkpoint);
            let fit = fit.callback(ModelCheckpoint::new(directory.path()).unwrap());
            let fit = fit
                .callback(After(events, interrupt.flag()))
                .callback(interrupt);
            fit.run(&mut state, &data, infinite_metric).unwrap()
        };
        run(None, events);
        let history = run(Some(newest(directory.path())), 0);
        assert!(
            history.last_logs().get("ratio").unwrap().is_nan(),
            "{events}"
        );
        let accuracy = history.last_logs().get("accuracy").unwrap();
        assert!(accuracy > 0.0, "{events}: the rest is as it was");
    }
}

/// The loss is infinite, or minus infinity, in some epochs; weights stay finite.
struct Losses(&'static [f64]);

impl Losses {
    fn objective(&self, ctx: &StepContext<'_>, model: &Mlp, batch: Batch) -> Result<Objective> {
        let value = self.0[ctx.epoch().min(self.0.len() - 1)];
        Ok(objective(ctx, model, batch)?.metric("watched", value, 1.0))
    }
}

#[test]
fn an_infinite_best_value_is_resumed() {
    let strategy = DefaultStrategy::new();
    let data = Points::new(&strategy);
    let losses = Losses(&[f64::NEG_INFINITY, 1.0, 2.0]);
    let directory = tempfile::tempdir().unwrap();
    let (all, best) = (directory.path().join("all"), directory.path().join("best"));
    for epochs in 1..=3 {
        let checkpoint = (epochs > 1).then(|| newest(&all));
        let mut stopping = EarlyStopping::new("watched")
            .direction(Direction::Min)
            .patience(10);
        let mut state = new_state(&strategy, 1);
        let fit = Fit::new(&strategy)
            .epochs(epochs)
            .resume_from(checkpoint)
            .callback(ModelCheckpoint::new(&all).unwrap())
            .callback(
                ModelCheckpoint::new(&best)
                    .unwrap()
                    .best_only("watched")
                    .direction(Direction::Min),
            )
            .callback(&mut stopping);
        let objective =
            |ctx: &StepContext<'_>, model: &Mlp, batch| losses.objective(ctx, model, batch);
        fit.run(&mut state, &data, objective).unwrap();
        assert_eq!(stopping.best(), Some((f64::NEG_INFINITY, 0)));
    }
    let saved: Vec<u64> = list(&best)
        .unwrap()
        .iter()
        .map(|entry| entry.step)
        .collect();
    assert_eq!(saved, [BATCHES as u64], "no epoch was better");
}

#[test]
fn the_best_value_is_saved_in_its_epoch_with_micro_batches_left_over() {
    let strategy = DefaultStrategy::new();
    let data = Points::new(&strategy);
    let directory = tempfile::tempdir().unwrap();
    let losses = Losses(&[3.0, 1.0, 2.0]);
    let mut state = new_state(&strategy, 4);
    let best = ModelCheckpoint::new(directory.path())
        .unwrap()
        .best_only("watched")
        .direction(Direction::Min)
        .keep(1);
    let fit = Fit::new(&strategy).epochs(3).callback(best);
    let objective = |ctx: &StepContext<'_>, model: &Mlp, batch| losses.objective(ctx, model, batch);
    fit.run(&mut state, &data, objective).unwrap();
    let saved = newest(directory.path());
    // 12 batches are 3 updates; the third epoch makes one and a half more.
    assert_eq!((saved.metadata.step, saved.metadata.epoch), (3, 2));
}

#[test]
fn a_best_value_whose_checkpoint_was_lost_is_none() {
    let strategy = DefaultStrategy::new();
    let data = Points::new(&strategy);
    let directory = tempfile::tempdir().unwrap();
    let (all, best) = (directory.path().join("all"), directory.path().join("best"));
    let losses = Losses(&[1.0, 2.0]);
    let run = |epochs: usize, checkpoint: Option<Checkpoint>| {
        let mut state = new_state(&strategy, 1);
        let fit = Fit::new(&strategy)
            .epochs(epochs)
            .resume_from(checkpoint)
            .callback(
                ModelCheckpoint::new(&best)
                    .unwrap()
                    .best_only("watched")
                    .direction(Direction::Min),
            )
            .callback(ModelCheckpoint::new(&all).unwrap());
        let objective =
            |ctx: &StepContext<'_>, model: &Mlp, batch| losses.objective(ctx, model, batch);
        fit.run(&mut state, &data, objective).unwrap();
    };
    let steps = || -> Vec<u64> {
        list(&best)
            .unwrap()
            .iter()
            .map(|entry| entry.step)
            .collect()
    };
    run(1, None);
    assert_eq!(steps(), [6]);
    // The process was killed after it had written the newest checkpoint and while it wrote the
    // best one.
    std::fs::remove_dir_all(&list(&best).unwrap()[0].path).unwrap();
    run(2, Some(newest(&all)));
    assert_eq!(steps(), [12], "the best of those that can be had");
    // The best one counts that is in the directory, not the one that the checkpoint names from
    // which the run goes on.
    run(3, Some(newest(&all)));
    assert_eq!(steps(), [12]);
}

/// An objective whose loss is infinite at this batch, while its gradients are finite.
fn infinite_at(batch: usize) -> impl Fn(&StepContext<'_>, &Mlp, Batch) -> Result<Objective> + Sync {
    move |ctx, model, rows| {
        let given = objective(ctx, model, rows)?;
        match (ctx.epoch(), ctx.batch()) {
            (1, at) if at == batch => {
                let term = distribute_core::Tensor::from_floats([f32::INFINITY], ctx.device());
                Ok(given.regularization(term))
            }
            _ => {
                let term = distribute_core::Tensor::zeros([1], ctx.device());
                Ok(given.regularization(term))
            }
        }
    }
}

#[rstest]
#[case::at_the_end_of_an_epoch(BATCHES - 1, 100, None)]
#[case::between_two_looks(2, 100, None)]
#[case::at_once(2, 1, None)]
#[case::before_the_limit_of_steps(2, 100, Some(10))]
#[case::at_the_limit_of_steps(3, 1, Some(10))]
fn nothing_is_saved_of_an_epoch_whose_loss_is_infinite(
    #[case] batch: usize,
    #[case] every: usize,
    #[case] max_steps: Option<u64>,
    #[values(false, true)] first: bool,
) {
    let strategy = MirroredStrategy::builder().replicas(2).build().unwrap();
    let data = Points::new(&strategy);
    let directory = tempfile::tempdir().unwrap();
    let mut state = strategy
        .scope(|device| TrainState::new(Mlp::new(device), Sgd::new(0.1)))
        .unwrap();
    let fit = Fit::new(&strategy).epochs(3).max_steps(max_steps);
    let fit = fit.callback(ModelCheckpoint::new(directory.path()).unwrap());
    let stop = EarlyStopping::new("loss").direction(Direction::Min);
    let fit = if first {
        fit.callback(TerminateOnNan::every_batches(every))
            .callback(stop)
    } else {
        fit.callback(stop)
            .callback(TerminateOnNan::every_batches(every))
    };
    let history = fit.run(&mut state, &data, infinite_at(batch)).unwrap();
    assert!(
        matches!(history.outcome, Outcome::NotFinite { .. }),
        "{:?}",
        history.outcome
    );
    let saved: Vec<u64> = list(directory.path())
        .unwrap()
        .iter()
        .map(|e| e.step)
        .collect();
    assert_eq!(saved, [BATCHES as u64]);
}

#[test]
fn weights_that_are_no_numbers_end_with_the_reason_and_not_with_a_failed_save() {
    let strategy = DefaultStrategy::new();
    let data = Points::new(&strategy);
    let directory = tempfile::tempdir().unwrap();
    let mut state = new_state(&strategy, 1);
    let broken = |ctx: &StepContext<'_>, model: &Mlp, batch: Batch| {
        let given = objective(ctx, model, batch)?;
        let factor = if ctx.batch() == 2 { f64::NAN } else { 1.0 };
        let loss = given.total().mul_scalar(factor);
        Ok(Objective::new(loss).examples(1))
    };
    let fit = Fit::new(&strategy).callback(TerminateOnNan::default());
    let fit = fit.callback(
        ModelCheckpoint::new(directory.path())
            .unwrap()
            .every_steps(1),
    );
    let history = fit.run(&mut state, &data, broken).unwrap();
    assert_eq!(history.outcome, Outcome::NotFinite { step: 3 });
    assert_eq!(newest(directory.path()).metadata.step, 2);
}

#[test]
fn the_learning_rate_of_an_epoch_is_that_of_its_last_step() {
    let strategy = DefaultStrategy::new();
    let data = Points::new(&strategy);
    let rates = |checkpoint: Option<Checkpoint>, events: usize, micro_batches: usize| {
        let directory = tempfile::tempdir().unwrap();
        let mut state = new_state(&strategy, micro_batches);
        let interrupt = Interrupt::default();
        let fit = Fit::new(&strategy)
            .epochs(2)
            .resume_from(checkpoint)
            .callback(LearningRateScheduler::per_step(|step, _| {
                0.001 * (step + 1) as f64
            }))
            .callback(
                ModelCheckpoint::new(directory.path())
                    .unwrap()
                    .every_steps(100),
            )
            .callback(After(events, interrupt.flag()))
            .callback(interrupt);
        let history = fit
            .run_with_validation(&mut state, &data, &data, objective)
            .unwrap();
        let rates = history.epochs.iter().map(|record| record.learning_rate);
        let last = load_latest(directory.path()).unwrap().found;
        (rates.collect::<Vec<f64>>(), last.map(|(_, last)| last))
    };
    assert_eq!(rates(None, 0, 1).0, [0.006, 0.012]);
    // 6 and 12 micro-batches are 1 and 3 updates.
    assert_eq!(rates(None, 0, 4).0, [0.001, 0.003]);
    // Interrupted while validating: the epoch's last step was made by another process.
    let checkpoint = rates(None, BATCHES + 2, 1).1.unwrap();
    assert_eq!(checkpoint.metadata.batches_into_epoch as usize, BATCHES);
    assert_eq!(rates(Some(checkpoint), 0, 1).0, [0.006, 0.012]);
}
