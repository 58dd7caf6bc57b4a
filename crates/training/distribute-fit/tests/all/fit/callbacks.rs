//! What callbacks see and can do.

use std::cell::RefCell;
use std::io::{self, Write};
use std::rc::Rc;

use distribute_core::checkpoint::load_latest;
use distribute_core::{DefaultStrategy, Error, MirroredStrategy, Result};
use distribute_fit::callbacks::{
    Direction, EarlyStopping, Interrupt, LearningRateScheduler, ModelCheckpoint, ProgressBar,
    ReduceLrOnPlateau, TerminateOnNan,
};
use distribute_fit::{
    Callback, Control, EpochRecord, Fit, Objective, Outcome, Position, StepContext,
};

use crate::common::{BATCHES, Batch, Mlp, Points, everything, new_state, objective};

/// Writes down which method was called, and when.
#[derive(Default)]
struct Diary(Vec<String>);

impl Diary {
    fn note(&mut self, what: &str, run: &mut Control<'_>) -> Result<()> {
        let Position { epoch, batches } = run.progress().position;
        self.0.push(format!("{what} {epoch}.{batches}"));
        Ok(())
    }
}

impl Callback for Diary {
    fn on_train_begin(&mut self, run: &mut Control<'_>) -> Result<()> {
        self.note("train begin", run)
    }

    fn on_epoch_begin(&mut self, run: &mut Control<'_>) -> Result<()> {
        self.note("epoch begin", run)
    }

    fn on_batch_end(&mut self, run: &mut Control<'_>) -> Result<()> {
        self.note("batch", run)
    }

    fn on_validation_batch_end(&mut self, run: &mut Control<'_>) -> Result<()> {
        let done = run.progress().validation_batches;
        self.note(&format!("validation {done} at"), run)
    }

    fn on_epoch_end(&mut self, record: &EpochRecord, run: &mut Control<'_>) -> Result<()> {
        self.note(&format!("epoch end ({})", record.epoch), run)
    }

    fn on_train_end(&mut self, outcome: &Outcome, run: &mut Control<'_>) -> Result<()> {
        self.note(&format!("train end, {outcome:?}"), run)
    }
}

#[test]
fn callbacks_are_called_around_the_steps() {
    let strategy = DefaultStrategy::new();
    let mut state = new_state(&strategy);
    let data = Points {
        examples: 12,
        ..Points::new(&strategy)
    };
    let mut diary = Diary::default();
    let fit = Fit::new(&strategy)
        .epochs(2)
        .max_steps(3)
        .callback(&mut diary);
    fit.run_with_validation(&mut state, &data, &data, objective)
        .unwrap();
    insta::assert_snapshot!(diary.0.join("\n"));
}

/// Fails in one of its methods.
struct Failing(&'static str);

impl Failing {
    fn check(&self, method: &'static str) -> Result<()> {
        if method == self.0 {
            Err(Error::step(format!("no {method} today")))
        } else {
            Ok(())
        }
    }
}

impl Callback for Failing {
    fn on_train_begin(&mut self, _: &mut Control<'_>) -> Result<()> {
        self.check("train begin")
    }

    fn on_epoch_begin(&mut self, _: &mut Control<'_>) -> Result<()> {
        self.check("epoch begin")
    }

    fn on_batch_end(&mut self, _: &mut Control<'_>) -> Result<()> {
        self.check("batch end")
    }

    fn on_validation_batch_end(&mut self, _: &mut Control<'_>) -> Result<()> {
        self.check("validation batch end")
    }

    fn on_epoch_end(&mut self, _: &EpochRecord, _: &mut Control<'_>) -> Result<()> {
        self.check("epoch end")
    }

    fn on_train_end(&mut self, _: &Outcome, _: &mut Control<'_>) -> Result<()> {
        self.check("train end")
    }
}

#[rstest::rstest]
#[case("train begin", 0)]
#[case("epoch begin", 0)]
#[case("batch end", 1)]
#[case("validation batch end", BATCHES as u64)]
#[case("epoch end", BATCHES as u64)]
#[case("train end", BATCHES as u64)]
fn an_error_of_a_callback_ends_the_run(#[case] method: &'static str, #[case] steps: u64) {
    let strategy = DefaultStrategy::new();
    let mut state = new_state(&strategy);
    let data = Points::new(&strategy);
    let fit = Fit::new(&strategy).callback(Failing(method));
    let error = fit
        .run_with_validation(&mut state, &data, &data, objective)
        .unwrap_err();
    assert_eq!(error.to_string(), format!("no {method} today"));
    assert_eq!(state.primary().unwrap().step(), steps);
}

/// The parameters after every epoch.
#[derive(Default)]
struct Parameters(Vec<Vec<f32>>);

impl Callback for Parameters {
    fn on_epoch_end(&mut self, _: &EpochRecord, run: &mut Control<'_>) -> Result<()> {
        let tensors = run.tensors()?.into_iter();
        let model = tensors.filter(|(name, _)| name.starts_with("model/"));
        self.0.push(
            model
                .flat_map(|(_, data)| data.iter::<f32>().collect::<Vec<_>>())
                .collect(),
        );
        Ok(())
    }
}

fn model_values(state: &distribute_core::TrainState<Mlp>) -> Vec<f32> {
    let all = everything(state).into_iter();
    all.filter(|(name, _)| name.starts_with("model/"))
        .flat_map(|(_, values)| values)
        .collect()
}

#[test]
fn early_stopping_waits_and_restores_the_best_parameters() {
    let strategy = MirroredStrategy::builder().replicas(2).build().unwrap();
    let mut state = new_state(&strategy);
    let data = Points::new(&strategy);
    let mut stopping = EarlyStopping::new("loss")
        .direction(Direction::Max) // The loss falls, so the first epoch stays the best.
        .patience(3)
        .restore_best(true);
    let mut parameters = Parameters::default();
    let fit = Fit::new(&strategy)
        .epochs(50)
        .callback(&mut parameters)
        .callback(&mut stopping);
    let history = fit.run(&mut state, &data, objective).unwrap();
    assert_eq!(history.epochs.len(), 4);
    let best = history.epochs[0].logs.loss();
    let monitor = "loss".to_string();
    assert_eq!(
        history.outcome,
        Outcome::EarlyStopped {
            monitor,
            best_epoch: 0,
            best
        }
    );
    assert_eq!(stopping.best(), Some((best, 0)));
    for copy in state.values().unwrap() {
        assert_eq!(model_values(copy), parameters.0[0]);
    }
    assert_ne!(parameters.0[0], parameters.0[3]);
    assert_eq!(state.primary().unwrap().step(), 4 * BATCHES as u64);
}

#[test]
fn early_stopping_goes_on_while_it_gets_better() {
    let strategy = DefaultStrategy::new();
    let mut state = new_state(&strategy);
    let data = Points::new(&strategy);
    let fit = Fit::new(&strategy)
        .epochs(6)
        .callback(EarlyStopping::new("loss").patience(2));
    let history = fit.run(&mut state, &data, objective).unwrap();
    assert_eq!(
        (history.outcome, history.epochs.len()),
        (Outcome::Completed, 6)
    );
}

#[test]
fn a_value_that_is_not_there_is_named_with_those_that_are() {
    let strategy = DefaultStrategy::new();
    let mut state = new_state(&strategy);
    let data = Points::new(&strategy);
    let fit = Fit::new(&strategy).callback(EarlyStopping::new("val_acc"));
    let error = fit
        .run_with_validation(&mut state, &data, &data, objective)
        .unwrap_err();
    insta::assert_snapshot!(error, @"EarlyStopping watches `val_acc`, but the logs only have `loss`, `accuracy`, `val_loss`, `val_accuracy`; did you mean `val_accuracy`?");
}

/// What is known after the first step is not said after an epoch.
#[test]
fn a_value_that_no_epoch_will_have_is_an_error_of_the_first_step() {
    let directory = tempfile::tempdir().unwrap();
    let best = || {
        let callback = ModelCheckpoint::new(directory.path()).unwrap();
        callback.best_only("my_accuracy")
    };
    for replicas in [1, 2] {
        let strategy = MirroredStrategy::builder().replicas(replicas);
        let strategy = strategy.build().unwrap();
        let data = Points::new(&strategy);
        let fit = || Fit::new(&strategy).epochs(2);
        let fits = [
            (
                fit().callback(EarlyStopping::new("val_loss")),
                false,
                "`val_loss`",
            ),
            (
                fit().callback(EarlyStopping::new("my_loss")),
                true,
                "`my_loss`",
            ),
            (
                fit().callback(ReduceLrOnPlateau::new("my_loss")),
                false,
                "`my_loss`",
            ),
            (fit().callback(best()), true, "`my_accuracy`"),
        ];
        for (fit, validates, name) in fits {
            let mut state = new_state(&strategy);
            let error = if validates {
                fit.run_with_validation(&mut state, &data, &data, objective)
            } else {
                fit.run(&mut state, &data, objective)
            };
            let error = error.unwrap_err().to_string();
            assert!(error.contains(&format!("watches {name}")), "{error}");
            assert_eq!(state.primary().unwrap().step(), 1, "{error}");
        }
    }
}

#[test]
fn nan_ends_training_and_nothing_is_saved() {
    let strategy = MirroredStrategy::builder().replicas(2).build().unwrap();
    let mut state = new_state(&strategy);
    let data = Points::new(&strategy);
    let directory = tempfile::tempdir().unwrap();
    let checkpoints = ModelCheckpoint::new(directory.path()).unwrap();
    let fit = Fit::new(&strategy)
        .epochs(3)
        .callback(checkpoints)
        .callback(TerminateOnNan::default());
    let history = fit.run(&mut state, &data, explode).unwrap();
    let step = BATCHES as u64 + 3;
    assert_eq!(history.outcome, Outcome::NotFinite { step });
    assert_eq!(history.epochs.len(), 1);
    let saved = distribute_core::checkpoint::list(directory.path()).unwrap();
    let steps: Vec<u64> = saved.iter().map(|entry| entry.step).collect();
    assert_eq!(steps, [BATCHES as u64]);
}

/// As `objective`, but the gradients of one batch are NaN.
fn explode(ctx: &StepContext<'_>, model: &Mlp, batch: Batch) -> Result<Objective> {
    let given = objective(ctx, model, batch)?;
    if (ctx.epoch(), ctx.batch()) != (1, 2) {
        return Ok(given);
    }
    let nan = given.total().mul_scalar(f32::NAN);
    Ok(given.regularization(nan))
}

#[test]
fn weights_that_are_not_finite_are_not_saved_over_good_ones() {
    let strategy = DefaultStrategy::new();
    let mut state = new_state(&strategy);
    let data = Points::new(&strategy);
    let directory = tempfile::tempdir().unwrap();
    let checkpoints = ModelCheckpoint::new(directory.path()).unwrap().keep(1);
    let fit = Fit::new(&strategy).epochs(3).callback(checkpoints);
    let error = fit.run(&mut state, &data, explode).unwrap_err();
    insta::assert_snapshot!(error, @"parameter `hidden.bias` is not finite after step 12, it was not saved: lower the learning rate or clip the gradients, and continue from an earlier checkpoint");
    let saved = distribute_core::checkpoint::list(directory.path()).unwrap();
    let steps: Vec<u64> = saved.iter().map(|entry| entry.step).collect();
    assert_eq!(steps, [BATCHES as u64]);
}

#[test]
fn schedules_set_the_rate_of_epochs_and_steps() {
    let strategy = MirroredStrategy::builder().replicas(2).build().unwrap();
    let data = Points::new(&strategy);
    let mut state = new_state(&strategy);
    let by_epoch = LearningRateScheduler::per_epoch(|epoch, rate| match epoch {
        0 => 0.01,
        _ => rate / 2.0,
    });
    let fit = Fit::new(&strategy).epochs(3).callback(by_epoch);
    let history = fit.run(&mut state, &data, objective).unwrap();
    let rates: Vec<f64> = history
        .epochs
        .iter()
        .map(|epoch| epoch.learning_rate)
        .collect();
    assert_eq!(rates, [0.01, 0.005, 0.0025]);
    assert_eq!(state.primary().unwrap().learning_rate(), 0.0025);

    let mut steps = Vec::new();
    let mut state = new_state(&strategy);
    let by_step = LearningRateScheduler::per_step(|step, _| {
        steps.push(step);
        if step < BATCHES as u64 { 0.0 } else { 0.01 }
    });
    let before = everything(state.primary().unwrap());
    let fit = Fit::new(&strategy).epochs(1).callback(by_step);
    fit.run(&mut state, &data, objective).unwrap();
    assert_eq!(steps, (0..=BATCHES as u64).collect::<Vec<_>>());
    let after = everything(state.primary().unwrap());
    for (name, values) in before {
        assert!(
            after.contains(&(name, values)),
            "a rate of 0 changes no parameter"
        );
    }

    let mut state = new_state(&strategy);
    let wrong = LearningRateScheduler::per_epoch(|_, _| f64::NAN);
    let error = Fit::new(&strategy)
        .callback(wrong)
        .run(&mut state, &data, objective);
    insta::assert_snapshot!(error.unwrap_err(), @"the learning rate schedule gives NaN for epoch 0: it must be a finite number, 0 or more");
}

#[test]
fn an_interrupt_before_the_first_step_trains_nothing() {
    let strategy = DefaultStrategy::new();
    let mut state = new_state(&strategy);
    let data = Points::new(&strategy);
    let interrupt = Interrupt::default();
    interrupt
        .flag()
        .store(true, std::sync::atomic::Ordering::Relaxed);
    let fit = Fit::new(&strategy).callback(interrupt);
    let history = fit.run(&mut state, &data, objective).unwrap();
    assert_eq!(history.outcome, Outcome::Interrupted);
    assert_eq!(history.position, Position::default());
    assert_eq!(state.primary().unwrap().step(), 0);
}

/// A writer that can be read afterwards.
#[derive(Clone, Default)]
struct Shared(Rc<RefCell<Vec<u8>>>);

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.borrow_mut().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A finished program that is started again.
#[test]
fn a_run_that_has_nothing_left_to_train_says_so() {
    let strategy = DefaultStrategy::new();
    let (mut state, data) = (new_state(&strategy), Points::new(&strategy));
    let folder = tempfile::tempdir().unwrap();
    let said = [(); 2].map(|()| {
        let found = load_latest(folder.path()).unwrap().found;
        let output = Shared::default();
        let fit = Fit::new(&strategy)
            .epochs(2)
            .resume_from(found.map(|(_, checkpoint)| checkpoint))
            .callback(ModelCheckpoint::new(folder.path()).unwrap())
            .callback(ProgressBar::plain(output.clone()));
        fit.run(&mut state, &data, objective).unwrap();
        String::from_utf8(output.0.borrow().clone()).unwrap()
    });
    let text = "nothing is left to train: all 2 epochs were done before";
    assert_eq!(said.map(|said| said.contains(text)), [false, true]);
}

#[test]
fn without_a_terminal_there_are_plain_lines() {
    let strategy = DefaultStrategy::new();
    let mut state = new_state(&strategy);
    let data = Points::new(&strategy);
    let output = Shared::default();
    let fit = Fit::new(&strategy)
        .epochs(2)
        .max_steps(9)
        .callback(ProgressBar::plain(output.clone()));
    fit.run_with_validation(&mut state, &data, &data, objective)
        .unwrap();
    let text = String::from_utf8(output.0.borrow().clone()).unwrap();
    // The last two columns are times.
    let lines: Vec<String> = text
        .lines()
        .map(|line| {
            line.split_whitespace()
                .take(5)
                .collect::<Vec<_>>()
                .join(" ")
        })
        .collect();
    insta::assert_snapshot!(lines.join("\n"));
    assert!(
        !text.contains('\u{1b}') && !text.contains('\r'),
        "no control characters: {text:?}"
    );
}
