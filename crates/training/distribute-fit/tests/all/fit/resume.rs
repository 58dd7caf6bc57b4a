//! Checkpoints: a run that is interrupted anywhere and resumed ends as one that was not
//! interrupted.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use burn::lr_scheduler::composed::ComposedLrSchedulerConfig;
use burn::lr_scheduler::cosine::CosineAnnealingLrSchedulerConfig;
use burn::lr_scheduler::exponential::ExponentialLrSchedulerConfig;
use burn::lr_scheduler::linear::LinearLrSchedulerConfig;
use burn::lr_scheduler::module_lr_scheduler::{ModuleLrScheduler, ModuleLrSchedulerConfig};
use burn::lr_scheduler::noam::NoamLrSchedulerConfig;
use burn::module::{Initializer, Module, ParamGroup};
use burn::nn::{BatchNorm, BatchNormConfig, Linear, LinearConfig};
use burn::tensor::{Device, Tensor};
use distribute_core::checkpoint::{Checkpoint, Entry, list, load, load_latest};
use distribute_core::{
    Adam, BatchSource, Batches, DefaultStrategy, Error, LossScale, Mirrored, MirroredStrategy,
    MovingAverage, Result, RmsProp, StrategyExt, TrainState,
};
use distribute_fit::callbacks::{
    ApplyAverages, Direction, EarlyStopping, HistoryFile, Interrupt, LearningRateScheduler,
    ModelCheckpoint, ReduceLrOnPlateau,
};
use distribute_fit::{
    Callback, Control, EpochRecord, Fit, History, Objective, Outcome, Position, StepContext,
    averaged_weights, best_weights, restore, restore_weights, snapshot,
};
use rstest::rstest;

use crate::common::{
    BATCHES, Batch, GLOBAL_BATCH, Mlp, Points, everything, new_state, objective, squared_error,
};

const EPOCHS: usize = 4;

/// Sets the flag after a number of events: batches and validation batches.
struct After {
    events: usize,
    flag: Arc<AtomicBool>,
}

impl After {
    fn count(&mut self) -> Result<()> {
        self.events = self.events.saturating_sub(1);
        if self.events == 0 {
            self.flag.store(true, Ordering::Relaxed);
        }
        Ok(())
    }
}

impl Callback for After {
    fn on_batch_end(&mut self, _: &mut Control<'_>) -> Result<()> {
        self.count()
    }

    fn on_validation_batch_end(&mut self, _: &mut Control<'_>) -> Result<()> {
        self.count()
    }
}

fn newest(directory: &Path) -> Checkpoint {
    load_latest(directory).unwrap().found.unwrap().1
}

/// One process' part of a run: with a schedule, a history file and early stopping, which must all
/// go on where they were.
fn part(
    strategy: &MirroredStrategy,
    directory: &Path,
    checkpoint: Option<Checkpoint>,
    interrupt_after: Option<usize>,
) -> (History, Mirrored<TrainState<Mlp>>) {
    let data = Points::new(strategy);
    let mut state = new_state(strategy);
    let interrupt = Interrupt::default();
    let after = After {
        events: interrupt_after.unwrap_or(usize::MAX),
        flag: interrupt.flag(),
    };
    let fit = Fit::new(strategy)
        .epochs(EPOCHS)
        .seed(7)
        .resume_from(checkpoint)
        .callback(
            ModelCheckpoint::new(directory.join("checkpoints"))
                .unwrap()
                .keep(2),
        )
        .callback(LearningRateScheduler::per_step(|_, rate| rate * 0.99))
        .callback(
            EarlyStopping::new("val_loss")
                .patience(2)
                .restore_best(true),
        )
        .callback(HistoryFile::json_lines(directory.join("history.jsonl")))
        .callback(HistoryFile::csv(directory.join("history.csv")))
        .callback(after)
        .callback(interrupt);
    let history = fit
        .run_with_validation(&mut state, &data, &data, objective)
        .unwrap();
    (history, state)
}

/// One process' part of a run that follows a scheduler of burn.
fn part_by_burn(
    scheduler: &ModuleLrScheduler,
    checkpoint: Option<Checkpoint>,
    directory: &Path,
    interrupt_after: Option<usize>,
) -> (History, Mirrored<TrainState<Mlp>>) {
    let strategy = MirroredStrategy::builder().replicas(2).build().unwrap();
    let mut state = new_state(&strategy);
    let interrupt = Interrupt::default();
    let after = After {
        events: interrupt_after.unwrap_or(usize::MAX),
        flag: interrupt.flag(),
    };
    let fit = Fit::new(&strategy)
        .epochs(3)
        .resume_from(checkpoint)
        .callback(LearningRateScheduler::of_burn(scheduler.clone()).unwrap())
        .callback(ModelCheckpoint::new(directory).unwrap())
        .callback(after)
        .callback(interrupt);
    let data = Points::new(&strategy);
    let history = fit.run(&mut state, &data, objective).unwrap();
    (history, state)
}

#[test]
fn a_scheduler_of_burn_goes_on_where_it_was() {
    let noam = NoamLrSchedulerConfig::new(0.1).with_warmup_steps(5);
    let cosine = CosineAnnealingLrSchedulerConfig::new(0.1, 3 * BATCHES);
    let composed = ComposedLrSchedulerConfig::new()
        .exponential(ExponentialLrSchedulerConfig::new(0.1, 0.9))
        .linear(LinearLrSchedulerConfig::new(1.0, 0.5, 2 * BATCHES));
    let schedulers = [noam.init(), cosine.init(), composed.init()];
    for scheduler in schedulers.map(Result::unwrap) {
        let whole = tempfile::tempdir().unwrap();
        let (expected, expected_state) = part_by_burn(&scheduler, None, whole.path(), None);
        let mut burns = scheduler.clone();
        let mut last_of_epoch = || (0..BATCHES).map(|_| burns.step().base()).last().unwrap();
        for epoch in &expected.epochs {
            assert_eq!(epoch.learning_rate, last_of_epoch());
        }
        for events in [1, BATCHES - 1, BATCHES, 2 * BATCHES + 3] {
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path();
            part_by_burn(&scheduler, None, path, Some(events));
            let (resumed, state) = part_by_burn(&scheduler, Some(newest(path)), path, None);
            let rate = |history: &History| history.epochs.last().unwrap().learning_rate;
            assert_eq!(rate(&resumed), rate(&expected), "after {events}");
            let values = [&state, &expected_state].map(|it| everything(it.primary().unwrap()));
            assert_eq!(values[0], values[1], "after {events}");
        }
    }
    let linear = || LinearLrSchedulerConfig::new(0.1, 0.01, 9);
    let groups = ModuleLrSchedulerConfig::new(linear().into());
    let groups = groups
        .with_group(ParamGroup::all(), linear())
        .init()
        .unwrap();
    let error = LearningRateScheduler::of_burn(groups)
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("with `BurnOptimizer::rate_factor`"),
        "{error}"
    );
}

#[test]
fn interrupted_anywhere_and_resumed_is_the_same_run_bit_for_bit() {
    let strategy = MirroredStrategy::builder().replicas(2).build().unwrap();
    let whole = tempfile::tempdir().unwrap();
    let (_, expected) = part(&strategy, whole.path(), None, None);
    // In the first batches, in the middle, at the last batch of an epoch, while validating.
    for events in [
        1,
        4,
        BATCHES,
        BATCHES + 1,
        2 * BATCHES,
        2 * BATCHES + 3,
        3 * BATCHES + 2,
    ] {
        let directory = tempfile::tempdir().unwrap();
        let (history, _) = part(&strategy, directory.path(), None, Some(events));
        assert_eq!(history.outcome, Outcome::Interrupted);
        let checkpoint = newest(&directory.path().join("checkpoints"));
        let position = Position {
            epoch: checkpoint.metadata.epoch as usize,
            batches: checkpoint.metadata.batches_into_epoch as usize,
        };
        assert_eq!(position, history.position);
        let (_, resumed) = part(&strategy, directory.path(), Some(checkpoint), None);
        for copy in resumed.values().unwrap() {
            assert_eq!(
                everything(copy),
                everything(expected.primary().unwrap()),
                "after {events}"
            );
        }
        assert_eq!(
            resumed.primary().unwrap().learning_rate(),
            expected.primary().unwrap().learning_rate()
        );
        for file in ["history.jsonl", "history.csv"] {
            let read = |root: &Path| fs::read_to_string(root.join(file)).unwrap();
            assert_eq!(read(directory.path()), read(whole.path()), "after {events}");
        }
    }
}

/// A run of two epochs with a loss scale, in which two batches of each are skipped.
fn scaled_part(
    directory: &Path,
    checkpoint: Option<Checkpoint>,
    interrupt_after: Option<usize>,
) -> Mirrored<TrainState<Mlp>> {
    let strategy = MirroredStrategy::builder().replicas(2).build().unwrap();
    let scale = LossScale::dynamic().initial(64.0).unwrap();
    let scale = scale.growth_steps(3).unwrap();
    let state = strategy
        .scope(|device| TrainState::new(Mlp::new(device), Adam::new(0.02)).with_loss_scale(scale));
    let mut state = state.unwrap();
    let interrupt = Interrupt::default();
    let after = After {
        events: interrupt_after.unwrap_or(usize::MAX),
        flag: interrupt.flag(),
    };
    let objective = |ctx: &StepContext<'_>, model: &Mlp, (x, y): Batch| {
        let examples = x.dims()[0];
        ctx.loss_is_scaled();
        let loss = squared_error(model.forward(x), y, GLOBAL_BATCH);
        let is_bad = [1, 4].contains(&ctx.batch()) && ctx.replica_id() == 1;
        let factor = if is_bad { f64::INFINITY } else { 1.0 };
        Ok(Objective::new(loss.mul_scalar(factor)).examples(examples))
    };
    let data = Points::new(&strategy);
    let fit = Fit::new(&strategy)
        .epochs(2)
        .resume_from(checkpoint)
        .callback(ModelCheckpoint::new(directory).unwrap())
        .callback(after)
        .callback(interrupt);
    fit.run(&mut state, &data, objective).unwrap();
    state
}

#[test]
fn a_loss_scale_goes_on_where_it_was() {
    let whole = tempfile::tempdir().unwrap();
    let expected = scaled_part(whole.path(), None, None);
    let expected = expected.primary().unwrap();
    let scale = expected.loss_scale();
    assert_eq!((expected.step(), scale.skipped_steps()), (8, 4));
    for events in 1..2 * BATCHES {
        let directory = tempfile::tempdir().unwrap();
        scaled_part(directory.path(), None, Some(events));
        let resumed = scaled_part(directory.path(), Some(newest(directory.path())), None);
        for copy in resumed.values().unwrap() {
            assert_eq!(everything(copy), everything(expected), "after {events}");
            assert_eq!(copy.loss_scale(), scale, "after {events}");
        }
    }
}

/// A run from a checkpoint's weights alone begins with the first epoch.
#[test]
fn restored_weights_come_without_the_loss_scale() {
    let directory = tempfile::tempdir().unwrap();
    let mut state = scaled_part(directory.path(), None, None);
    let checkpoint = snapshot(state.primary().unwrap()).unwrap();
    restore(&mut state, &checkpoint).unwrap();
    assert_eq!(state.primary().unwrap().loss_scale().skipped_steps(), 4);
    restore_weights(&mut state, &checkpoint).unwrap();
    let state = state.primary().unwrap();
    let (step, scale) = (state.step(), state.loss_scale());
    assert_eq!((step, scale.scale(), scale.skipped_steps()), (0, 64.0, 0));
}

#[test]
fn every_steps_saves_within_epochs_and_keeps_the_newest() {
    let directory = tempfile::tempdir().unwrap();
    let strategy = DefaultStrategy::new();
    let data = Points::new(&strategy);
    let mut state = new_state(&strategy);
    let mut checkpoints = ModelCheckpoint::new(directory.path())
        .unwrap()
        .every_steps(4)
        .keep(3)
        .model_name("mlp")
        .extra("dataset", "points");
    let fit = Fit::new(&strategy)
        .epochs(3)
        .seed(3)
        .callback(&mut checkpoints);
    fit.run(&mut state, &data, objective).unwrap();
    let steps: Vec<u64> = list(directory.path())
        .unwrap()
        .iter()
        .map(|e| e.step)
        .collect();
    // 4, 8, 12, 16 and the end, 18.
    assert_eq!(steps, [12, 16, 18]);
    assert_eq!(checkpoints.last_saved().unwrap().entry.step, 18);
    let newest = newest(directory.path());
    assert_eq!(newest.metadata.model.name, "mlp");
    assert_eq!(newest.metadata.extra["dataset"], "points");
    assert_eq!((newest.metadata.seed, newest.metadata.epoch), (3, 3));
    assert_eq!(newest.metadata.optimizer.name, "adam");

    let mut restored = new_state(&strategy);
    restore(&mut restored, &newest).unwrap();
    assert_eq!(
        everything(restored.primary().unwrap()),
        everything(state.primary().unwrap())
    );
    assert_eq!(restored.primary().unwrap().step(), 18);
    assert_eq!(snapshot(restored.primary().unwrap()).unwrap().tensors, {
        let mut tensors = newest.tensors;
        tensors.retain(|name, _| !name.starts_with("callback/"));
        tensors
    });
}

#[test]
fn a_finished_run_that_is_resumed_saves_nothing_again() {
    let parent = tempfile::tempdir().unwrap();
    let strategy = DefaultStrategy::new();
    let data = Points::new(&strategy);
    let names = |directory: &Path| -> Vec<String> {
        let name = |entry: Entry| {
            entry
                .path
                .file_name()
                .unwrap()
                .to_str()
                .unwrap()
                .to_string()
        };
        list(directory).unwrap().into_iter().map(name).collect()
    };
    let run = |directory: &Path, epochs: usize, checkpoint: Option<Checkpoint>| {
        let mut state = new_state(&strategy);
        let checkpoints = ModelCheckpoint::new(directory).unwrap();
        let fit = Fit::new(&strategy).epochs(epochs).seed(3);
        let fit = fit.resume_from(checkpoint).callback(checkpoints);
        fit.run(&mut state, &data, objective).unwrap();
    };
    let first = parent.path().join("first");
    run(&first, 1, None);
    run(&first, 1, Some(newest(&first)));
    assert_eq!(names(&first), ["step-00000006"], "no step-00000006-r1");
    // In another directory the same checkpoint is saved, and a longer run saves more.
    let second = parent.path().join("second");
    run(&second, 1, Some(newest(&first)));
    assert_eq!(names(&second), ["step-00000006"]);
    run(&second, 2, Some(newest(&first)));
    assert_eq!(names(&second), ["step-00000006", "step-00000012"]);
}

#[rstest]
#[case::before(true)]
#[case::after(false)]
fn best_only_saves_when_it_got_better(#[case] direction_first: bool) {
    let directory = tempfile::tempdir().unwrap();
    let strategy = DefaultStrategy::new();
    let data = Points::new(&strategy);
    let mut state = new_state(&strategy);
    let best = ModelCheckpoint::new(directory.path()).unwrap();
    let best = if direction_first {
        best.direction(Direction::Max).best_only("loss")
    } else {
        best.best_only("loss").direction(Direction::Max)
    };
    let fit = Fit::new(&strategy).epochs(3).callback(best);
    let history = fit.run(&mut state, &data, objective).unwrap();
    assert!(history.epochs[2].logs.loss() < history.epochs[0].logs.loss());
    let steps: Vec<u64> = list(directory.path())
        .unwrap()
        .iter()
        .map(|e| e.step)
        .collect();
    assert_eq!(
        steps,
        [BATCHES as u64],
        "the loss was largest after the first epoch"
    );
}

#[test]
fn a_checkpoint_of_another_run_is_refused() {
    let strategy = DefaultStrategy::new();
    let data = Points::new(&strategy);
    let directory = tempfile::tempdir().unwrap();
    let mut state = new_state(&strategy);
    let checkpoints = ModelCheckpoint::new(directory.path()).unwrap();
    let fit = Fit::new(&strategy).callback(checkpoints);
    fit.run(&mut state, &data, objective).unwrap();
    let good = newest(directory.path());
    let attempt = |seed: u64, data: &Points<'_, DefaultStrategy>, checkpoint: Checkpoint| {
        let mut state = new_state(&strategy);
        let before = everything(state.primary().unwrap());
        let fit = Fit::new(&strategy)
            .epochs(2)
            .seed(seed)
            .resume_from(checkpoint);
        let error = fit.run(&mut state, data, objective).unwrap_err();
        assert_eq!(
            everything(state.primary().unwrap()),
            before,
            "nothing is changed"
        );
        error
    };
    insta::assert_snapshot!(attempt(1, &data, good.clone()), @"cannot resume from this checkpoint: its run had the seed 0 and this one has 1: use the same seed");
    let other = Points {
        global_batch: 4,
        ..Points::new(&strategy)
    };
    insta::assert_snapshot!(attempt(0, &other, good.clone()), @"cannot resume from this checkpoint: its run had 8 examples in a global batch and this one has 4: use the same global batch size");
    let mut changed = good.clone();
    changed.metadata.optimizer.name = "sgd".to_string();
    insta::assert_snapshot!(attempt(0, &data, changed), @"cannot resume from this checkpoint: it was trained with sgd and this run uses adam: use the same optimizer");
    let mut changed = good.clone();
    changed.metadata.extra.clear();
    insta::assert_snapshot!(attempt(0, &data, changed), @"cannot resume from this checkpoint: it was not written during `fit`; use `restore` for its weights");
    let mut changed = good.clone();
    changed.tensors.remove("model/hidden.bias");
    insta::assert_snapshot!(attempt(0, &data, changed), @"received incompatible tensor nothing when attempting to restore model/hidden.bias with shape [8] and dtype f32; 1 missing and 0 unexpected tensors in the checkpoint: build the model (and optimizer) that was saved");
    let mut changed = good;
    let slot = changed
        .tensors
        .keys()
        .find(|name| name.starts_with("optimizer/"))
        .cloned();
    changed.tensors.insert(
        slot.unwrap(),
        distribute_core::TensorData::from([0.0_f32; 3]),
    );
    let error = attempt(0, &data, changed).to_string();
    assert!(
        error.contains("does not belong to the parameter"),
        "{error}"
    );
}

#[test]
fn a_directory_that_cannot_be_written_is_found_at_once() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("file"), "").unwrap();
    let error = ModelCheckpoint::new(directory.path().join("file/checkpoints")).unwrap_err();
    assert!(matches!(error, Error::Checkpoint(_)), "{error:?}");
}

/// Loses the checkpoint directory in the middle of a run.
struct Lose<'a>(&'a Path);

impl Callback for Lose<'_> {
    fn on_epoch_end(&mut self, record: &EpochRecord, _: &mut Control<'_>) -> Result<()> {
        if record.epoch == 1 {
            // Renamed at once, because a save may be running.
            fs::rename(self.0, self.0.with_extension("gone")).map_err(Error::step)?;
            fs::write(self.0, "not a directory").map_err(Error::step)?;
        }
        Ok(())
    }
}

#[test]
fn a_save_that_fails_in_the_background_ends_the_run() {
    let parent = tempfile::tempdir().unwrap();
    let directory = parent.path().join("checkpoints");
    let strategy = DefaultStrategy::new();
    let data = Points::new(&strategy);
    let mut state = new_state(&strategy);
    let checkpoints = ModelCheckpoint::new(&directory).unwrap();
    let fit = Fit::new(&strategy)
        .epochs(5)
        .callback(checkpoints)
        .callback(Lose(&directory));
    let error = fit.run(&mut state, &data, objective).unwrap_err();
    assert!(matches!(error, Error::Checkpoint(_)), "{error:?}");
    assert!(error.to_string().contains("checkpoints"), "{error}");
}

/// A part of a run whose rate falls after each epoch, and that ends with the averages as weights.
fn averaged_part(
    strategy: &MirroredStrategy,
    directory: &Path,
    checkpoint: Option<Checkpoint>,
    interrupt_after: Option<usize>,
) -> (History, Mirrored<TrainState<Mlp>>) {
    let data = Points::new(strategy);
    let mut state = strategy
        .scope(|device| {
            let optimizer = RmsProp::new(0.01).momentum(0.5);
            let averaged = MovingAverage::of(optimizer, 0.9).unwrap();
            TrainState::new(Mlp::new(device), averaged)
        })
        .unwrap();
    let interrupt = Interrupt::default();
    let after = After {
        events: interrupt_after.unwrap_or(usize::MAX),
        flag: interrupt.flag(),
    };
    // No value counts as an improvement.
    let plateau = ReduceLrOnPlateau::new("val_loss").factor(0.5).patience(1);
    let history = Fit::new(strategy)
        .epochs(EPOCHS)
        .seed(7)
        .resume_from(checkpoint)
        .callback(ModelCheckpoint::new(directory).unwrap())
        .callback(plateau.min_delta(1e6))
        .callback(ApplyAverages)
        .callback(after)
        .callback(interrupt)
        .run_with_validation(&mut state, &data, &data, objective)
        .unwrap();
    (history, state)
}

#[test]
fn averages_and_plateaus_go_on_where_they_were() {
    let strategy = MirroredStrategy::builder().replicas(2).build().unwrap();
    let whole = tempfile::tempdir().unwrap();
    let (history, expected) = averaged_part(&strategy, whole.path(), None, None);
    let rates: Vec<f64> = history.epochs.iter().map(|it| it.learning_rate).collect();
    // The first value is the best one; each further epoch reduces the rate of the next.
    assert_eq!(rates, [0.01, 0.01, 0.005, 0.0025]);
    let last = newest(whole.path());
    let ended = expected.primary().unwrap().to_tensors().unwrap();
    let averages = averaged_weights(last.clone()).unwrap().tensors;
    let weight = "model/hidden.weight";
    assert_eq!(averages[weight], ended[weight]);
    assert_ne!(last.tensors[weight], ended[weight]);
    for events in [3, BATCHES, 2 * BATCHES + 3] {
        let directory = tempfile::tempdir().unwrap();
        let (history, _) = averaged_part(&strategy, directory.path(), None, Some(events));
        assert_eq!(history.outcome, Outcome::Interrupted);
        let checkpoint = newest(directory.path());
        let (_, resumed) = averaged_part(&strategy, directory.path(), Some(checkpoint), None);
        let resumed = everything(resumed.primary().unwrap());
        assert_eq!(resumed, everything(expected.primary().unwrap()), "{events}");
    }
}

/// A run that stops early after its fourth epoch: the loss falls and the callback is told that
/// larger is better, so that the first epoch that counts stays the best.
fn stopping_part(
    strategy: &MirroredStrategy,
    saver: ModelCheckpoint,
    checkpoint: Option<Checkpoint>,
    patience: usize,
) -> (History, Mirrored<TrainState<Mlp>>) {
    let data = Points::new(strategy);
    let mut state = new_state(strategy);
    let stopping = EarlyStopping::new("val_loss")
        .direction(Direction::Max)
        .patience(patience)
        .start_from_epoch(1)
        .restore_best(true);
    let history = Fit::new(strategy)
        .epochs(8)
        .seed(7)
        .resume_from(checkpoint)
        .callback(saver)
        .callback(stopping)
        .run_with_validation(&mut state, &data, &data, objective)
        .unwrap();
    (history, state)
}

/// A run that is killed after any save and resumed, also after the save of the epoch that has
/// stopped it.
#[rstest]
#[case::after_every_step(true)]
#[case::after_every_epoch(false)]
fn killed_after_any_save_it_stops_as_early_with_the_best_parameters(#[case] every_step: bool) {
    let strategy = MirroredStrategy::builder().replicas(2).build().unwrap();
    let whole = tempfile::tempdir().unwrap();
    let saver = |directory: &Path| {
        let saver = ModelCheckpoint::new(directory).unwrap();
        if every_step {
            saver.every_steps(1)
        } else {
            saver
        }
    };
    let (history, expected) = stopping_part(&strategy, saver(whole.path()), None, 2);
    assert_eq!(history.position.epoch, 4);
    let best = history.epochs[1].logs.get("val_loss").unwrap();
    assert!(
        matches!(&history.outcome, Outcome::EarlyStopped { best_epoch: 1, best: found, .. }
            if *found == best),
        "{:?}",
        history.outcome
    );
    let expected = everything(expected.primary().unwrap());
    let saves = list(whole.path()).unwrap();
    assert!(saves.len() >= 4, "{saves:?}");
    for save in &saves {
        let (checkpoint, other) = (load(&save.path).unwrap(), tempfile::tempdir().unwrap());
        let resumed = stopping_part(&strategy, saver(other.path()), Some(checkpoint), 2);
        assert_eq!(resumed.0.outcome, history.outcome, "{save:?}");
        assert_eq!(resumed.0.position, history.position, "{save:?}");
        for copy in resumed.1.values().unwrap() {
            assert_eq!(everything(copy), expected, "{save:?}");
        }
    }
    // The weights at the end can be read from the last checkpoint.
    let last = newest(whole.path());
    let weight = "model/hidden.weight";
    let value = |name: &str, checkpoint: &Checkpoint| {
        checkpoint.tensors[name].iter::<f32>().collect::<Vec<_>>()
    };
    let ended = expected.iter().find(|(name, _)| name == weight).unwrap();
    assert_ne!(value(weight, &last), ended.1);
    assert_eq!(value(weight, &best_weights(last.clone())), ended.1);
    // With more patience it goes on.
    let other = tempfile::tempdir().unwrap();
    let (history, _) = stopping_part(&strategy, saver(other.path()), Some(last), 3);
    assert_eq!(history.position.epoch, 5);
}

/// A model whose replicas have running statistics of their own.
#[derive(Module, Debug)]
struct Normalized {
    hidden: Linear,
    norm: BatchNorm,
    output: Linear,
}

impl Normalized {
    fn new(device: &Device) -> Self {
        let layer = |inputs, outputs| {
            let initializer = Initializer::Constant { value: 0.3 };
            LinearConfig::new(inputs, outputs)
                .with_initializer(initializer)
                .init(device)
        };
        Self {
            hidden: layer(2, 4),
            norm: BatchNormConfig::new(4).init(device),
            output: layer(4, 1),
        }
    }

    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        let hidden = self.norm.forward(self.hidden.forward(x));
        self.output.forward(hidden)
    }
}

type Trained = Mirrored<TrainState<Normalized>>;

/// Two epochs, or as many steps; saves into the directory at the end.
fn train_normalized(
    strategy: &MirroredStrategy,
    directory: &Path,
    from: Option<Checkpoint>,
    steps: Option<u64>,
) -> Trained {
    let mut data = Points::new(strategy);
    // Every replica has examples in each batch.
    data.examples = 40;
    let new = |device: &Device| TrainState::new(Normalized::new(device), Adam::new(0.02));
    let mut state = strategy.scope(new).unwrap();
    let objective = |ctx: &StepContext<'_>, model: &Normalized, (x, y): Batch| {
        let (examples, size) = (x.dims()[0], ctx.global_batch_size()?.unwrap_or(1));
        ctx.loss_is_scaled();
        let loss = squared_error(model.forward(x), y, size);
        Ok(Objective::new(loss).examples(examples))
    };
    Fit::new(strategy)
        .epochs(2)
        .max_steps(steps)
        .resume_from(from)
        .callback(ModelCheckpoint::new(directory).unwrap())
        .run(&mut state, &data, objective)
        .unwrap();
    state
}

fn numbers(state: &Trained) -> Vec<Vec<f32>> {
    let own = state.own_tensors(&[0, 1, 2, 3]).unwrap().into_iter();
    let values = own.map(|own| own.into_values());
    let values = values.map(|all| all.flat_map(|data| data.try_into_vec::<f32>().unwrap()));
    values.map(Iterator::collect).collect()
}

#[test]
fn each_replica_goes_on_with_its_own_running_statistics() {
    let strategy = MirroredStrategy::builder().replicas(4).build().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let train = |name: &str, from, steps| {
        train_normalized(&strategy, &folder.path().join(name), from, steps)
    };
    let whole = train("whole", None, None);
    train("parts", None, Some(7));
    let saved = newest(&folder.path().join("parts"));
    let resumed = train("parts", Some(saved.clone()), None);
    let expected = numbers(&whole);
    assert_ne!(expected[0], expected[1]);
    assert_eq!(numbers(&resumed), expected);
    let tensors = |state: &Trained| state.primary().unwrap().to_tensors().unwrap();
    assert_eq!(tensors(&resumed), tensors(&whole));
    // Other replicas go on with the mean.
    let strategy = MirroredStrategy::builder().replicas(2).build().unwrap();
    train_normalized(&strategy, &folder.path().join("parts"), Some(saved), None);
}

/// Gives a number of batches, then an error.
struct Torn<'a>(Points<'a, DefaultStrategy>, usize);

impl BatchSource for Torn<'_> {
    type Batch = Batch;

    fn batches_per_epoch(&self) -> Option<usize> {
        self.0.batches_per_epoch()
    }

    fn global_batch_size(&self) -> Option<usize> {
        self.0.global_batch_size()
    }

    fn epoch(&self, epoch: usize, skip: usize) -> Result<Batches<'_, Batch>> {
        let whole = self.0.epoch(epoch, skip)?.take(self.1.saturating_sub(skip));
        let torn = std::iter::once_with(|| Err(Error::step("the file ends here")));
        Ok(Box::new(whole.chain(torn)))
    }
}

#[test]
fn what_was_trained_is_saved_before_an_error_of_the_data_ends_the_run() {
    let directory = tempfile::tempdir().unwrap();
    let strategy = DefaultStrategy::new();
    let mut state = new_state(&strategy);
    let saver = ModelCheckpoint::new(directory.path()).unwrap();
    let torn = Torn(Points::new(&strategy), 3);
    let fit = Fit::new(&strategy).callback(saver);
    let error = fit.run(&mut state, &torn, objective).unwrap_err();
    assert_eq!(error.to_string(), "the file ends here");
    let (_, saved) = load_latest(directory.path()).unwrap().found.unwrap();
    assert_eq!(
        (saved.metadata.step, saved.metadata.batches_into_epoch),
        (3, 3)
    );
}
