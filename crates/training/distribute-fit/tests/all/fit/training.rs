//! The loop itself: the same numbers as by hand, under every strategy.

use burn::tensor::Tensor;
use distribute_core::{
    BatchSource, Batches, CentralStorageStrategy, DefaultStrategy, Error, MirroredStrategy,
    OneDeviceStrategy, Result, Strategy,
};
use distribute_fit::{Fit, Mode, Objective, Outcome, Position, StepContext, evaluate, predict};

use crate::common::{
    BATCHES, Batch, EXAMPLES, GLOBAL_BATCH, Mlp, Points, assert_close, by_hand, everything,
    new_state, objective, squared_error,
};

fn strategies() -> Vec<Box<dyn Strategy>> {
    let mirrored = |replicas| {
        MirroredStrategy::builder()
            .replicas(replicas)
            .build()
            .unwrap()
    };
    vec![
        Box::new(DefaultStrategy::new()),
        Box::new(OneDeviceStrategy::new("cpu:0".parse().unwrap()).unwrap()),
        Box::new(mirrored(1)),
        Box::new(mirrored(2)),
        Box::new(mirrored(4)),
        Box::new(CentralStorageStrategy::with_replicas(2).unwrap()),
    ]
}

#[test]
fn fit_is_the_hand_written_loop_bit_for_bit() {
    for strategy in strategies() {
        let strategy = &*strategy;
        let mut expected = new_state(strategy);
        let losses = by_hand(strategy, &mut expected, 3);
        let mut state = new_state(strategy);
        let data = Points::new(strategy);
        let fit = Fit::new(strategy).epochs(3);
        let history = fit.run(&mut state, &data, objective).unwrap();
        assert_eq!(
            everything(state.primary().unwrap()),
            everything(expected.primary().unwrap())
        );
        for copy in state.values().unwrap() {
            assert_eq!(everything(copy), everything(state.primary().unwrap()));
        }
        let reported: Vec<f64> = history.epochs.iter().map(|e| e.logs.loss()).collect();
        assert_eq!(reported, losses, "{strategy:?}");
        assert_eq!(history.outcome, Outcome::Completed);
        assert_eq!(
            history.position,
            Position {
                epoch: 3,
                batches: 0
            }
        );
        assert_eq!(state.primary().unwrap().step(), 3 * BATCHES as u64);
        assert_eq!(history.epochs[2].examples, EXAMPLES as u64);
    }
}

#[test]
fn all_strategies_and_replica_counts_agree() {
    let mut first = None;
    for strategy in strategies() {
        let mut state = new_state(&*strategy);
        let data = Points::new(&*strategy);
        let validation = Points {
            shuffle: false,
            ..Points::new(&*strategy)
        };
        let fit = Fit::new(&*strategy).epochs(20);
        let history = fit
            .run_with_validation(&mut state, &data, &validation, objective)
            .unwrap();
        let logs = history.last_logs();
        assert!(logs.get("val_accuracy").unwrap() > 0.9, "it learns: {logs}");
        let state = state.into_primary().unwrap();
        let (reference, expected) = first.get_or_insert((state.clone(), logs.clone()));
        assert_close(reference, &state, 1e-4);
        for ((name, a), (_, b)) in expected.iter().zip(logs.iter()) {
            assert!(
                (a - b).abs() < 1e-5,
                "{name}: {a} and {b} under {strategy:?}"
            );
        }
    }
}

/// What one pass over all rows at once gives: (mean squared error, accuracy).
fn single_pass(model: &Mlp) -> (f64, f64) {
    let strategy = DefaultStrategy::new();
    let all = Points {
        global_batch: EXAMPLES,
        shuffle: false,
        ..Points::new(&strategy)
    };
    let (x, y) = all
        .epoch(0, 0)
        .unwrap()
        .next()
        .unwrap()
        .unwrap()
        .into_values()
        .remove(0);
    let predicted = model.forward(x);
    let right = predicted
        .clone()
        .greater_elem(0.5)
        .equal(y.clone().greater_elem(0.5));
    let loss: f32 = squared_error(predicted, y, EXAMPLES).into_scalar();
    let accuracy: f32 = right.float().mean().into_scalar();
    (f64::from(loss), f64::from(accuracy))
}

#[test]
fn evaluation_with_short_and_empty_batches_equals_a_single_pass() {
    for strategy in strategies() {
        let state = new_state(&*strategy);
        // With 4 replicas of 3 examples the last batch (8 of 12) leaves one replica empty.
        for global_batch in [GLOBAL_BATCH, 12, 40, EXAMPLES] {
            let data = Points {
                global_batch,
                ..Points::new(&*strategy)
            };
            let report = evaluate(&*strategy, &state, &data, objective).unwrap();
            let (loss, accuracy) = single_pass(&state.primary().unwrap().model);
            assert!(
                (report.logs.loss() - loss).abs() < 1e-6,
                "{strategy:?} {global_batch}"
            );
            assert!((report.logs.get("accuracy").unwrap() - accuracy).abs() < 1e-6);
            assert_eq!(report.examples, EXAMPLES as u64);
        }
    }
}

#[test]
fn predictions_come_in_the_order_of_the_source() {
    for strategy in strategies() {
        let state = new_state(&*strategy);
        let data = Points {
            shuffle: false,
            ..Points::new(&*strategy)
        };
        let forward = |ctx: &StepContext<'_>, model: &Mlp, (x, _): Batch| {
            assert_eq!(ctx.mode(), Mode::Predict);
            Ok((x.clone(), model.forward(x)))
        };
        let (x, y): (Tensor<2>, Tensor<2>) = predict(&*strategy, &state, &data, forward).unwrap();
        assert_eq!((x.dims(), y.dims()), ([EXAMPLES, 2], [EXAMPLES, 1]));
        let rows: Vec<f32> = x.into_data().iter::<f32>().collect();
        let expected: Vec<f32> = (0..EXAMPLES)
            .flat_map(|index| Points::<DefaultStrategy>::row(index).0)
            .collect();
        assert_eq!(rows, expected, "{strategy:?}");
    }
}

#[test]
fn the_objective_is_told_what_the_pass_is_for() {
    let strategy = DefaultStrategy::new();
    let mut state = new_state(&strategy);
    let data = Points::new(&strategy);
    let watching = |ctx: &StepContext<'_>, model: &Mlp, batch: Batch| {
        let tracked = model.forward(batch.0.clone()).is_require_grad()
            || model.forward(batch.0.clone()).is_autodiff();
        assert_eq!(ctx.is_training(), ctx.mode() == Mode::Train);
        let given = objective(ctx, model, batch)?;
        Ok(given
            .metric("training", u32::from(ctx.is_training()), 1)
            .metric("tracked", u32::from(tracked && ctx.is_training()), 1))
    };
    let history = Fit::new(&strategy)
        .run_with_validation(&mut state, &data, &data, watching)
        .unwrap();
    let logs = history.last_logs();
    let found: Vec<_> = ["training", "tracked", "val_training"]
        .iter()
        .map(|name| logs.get(name).unwrap())
        .collect();
    assert_eq!(found, [1.0, 1.0, 0.0]);
}

#[test]
fn regularization_is_reported_exactly_with_a_short_batch() {
    let strategy = MirroredStrategy::builder().replicas(2).build().unwrap();
    let mut state = new_state(&strategy);
    let data = Points::new(&strategy);
    let penalized = |ctx: &StepContext<'_>, model: &Mlp, batch: Batch| {
        let given = objective(ctx, model, batch)?;
        let half = Tensor::from_floats([0.25], ctx.device());
        Ok(given.regularization(half))
    };
    let history = Fit::new(&strategy)
        .run(&mut state, &data, penalized)
        .unwrap();
    let mut plain = new_state(&strategy);
    let losses = by_hand(&strategy, &mut plain, 1);
    let loss = history.last_logs().loss();
    assert!((loss - losses[0] - 0.5).abs() < 1e-7, "{loss} {losses:?}");
    assert_eq!(
        everything(state.primary().unwrap()),
        everything(plain.primary().unwrap())
    );
}

#[test]
fn max_steps_ends_within_an_epoch_and_reports_the_part() {
    let strategy = DefaultStrategy::new();
    let mut state = new_state(&strategy);
    let data = Points::new(&strategy);
    let fit = Fit::new(&strategy).epochs(5).max_steps(BATCHES as u64 + 2);
    let history = fit
        .run_with_validation(&mut state, &data, &data, objective)
        .unwrap();
    assert_eq!(history.outcome, Outcome::MaxSteps);
    assert_eq!(state.primary().unwrap().step(), BATCHES as u64 + 2);
    assert_eq!(
        history.position,
        Position {
            epoch: 1,
            batches: 2
        }
    );
    assert_eq!(history.epochs.len(), 2);
    assert_eq!(history.epochs[1].examples, 2 * GLOBAL_BATCH as u64);
    assert!(history.epochs[1].logs.get("val_loss").is_some());

    let again = Fit::new(&strategy).epochs(5).max_steps(BATCHES as u64 + 2);
    let history = again.run(&mut state, &data, objective).unwrap();
    assert_eq!(
        (history.outcome, history.epochs.len()),
        (Outcome::MaxSteps, 0)
    );
}

#[test]
fn errors_of_the_data_and_the_objective_end_the_run() {
    struct Broken<'a>(Points<'a, DefaultStrategy>);
    impl BatchSource for Broken<'_> {
        type Batch = Batch;
        fn batches_per_epoch(&self) -> Option<usize> {
            None
        }
        fn global_batch_size(&self) -> Option<usize> {
            None
        }
        fn epoch(&self, epoch: usize, skip: usize) -> Result<Batches<'_, Batch>> {
            let good = self.0.epoch(epoch, skip)?.take(2);
            Ok(Box::new(
                good.chain([Err(Error::input("line 7 is not a number"))]),
            ))
        }
    }
    let strategy = DefaultStrategy::new();
    let mut state = new_state(&strategy);
    let broken = Broken(Points::new(&strategy));
    let error = Fit::new(&strategy)
        .run(&mut state, &broken, objective)
        .unwrap_err();
    assert_eq!(error.to_string(), "line 7 is not a number");
    assert_eq!(state.primary().unwrap().step(), 2);

    let failing = |_: &StepContext<'_>, _: &Mlp, _: Batch| Err(Error::step("no loss today"));
    let data = Points::new(&strategy);
    let error = Fit::new(&strategy)
        .run(&mut state, &data, failing)
        .unwrap_err();
    assert_eq!(error.root_cause().to_string(), "no loss today");

    let empty = Points {
        examples: 0,
        ..Points::new(&strategy)
    };
    let error = Fit::new(&strategy)
        .run(&mut state, &empty, objective)
        .unwrap_err();
    insta::assert_snapshot!(error, @"an epoch of the training data has no examples: check the data, or use smaller batches");
    let error = evaluate(&strategy, &state, &empty, objective).unwrap_err();
    insta::assert_snapshot!(error, @"the data has no examples: check the data, or use smaller batches");
}

#[test]
fn different_metrics_on_the_replicas_are_refused() {
    let strategy = MirroredStrategy::builder().replicas(2).build().unwrap();
    let state = new_state(&strategy);
    let data = Points::new(&strategy);
    let uneven = |ctx: &StepContext<'_>, model: &Mlp, batch: Batch| -> Result<Objective> {
        let given = objective(ctx, model, batch)?;
        Ok(match ctx.replica_id() {
            0 => given,
            _ => given.metric("extra", 1, 1),
        })
    };
    let error = evaluate(&strategy, &state, &data, uneven).unwrap_err();
    insta::assert_snapshot!(error, @r#"the objective gives the metrics ["accuracy"] on one replica and ["accuracy", "extra"] on another, or some of them on the host and some on the device: give the same on every replica, also for an empty batch"#);
}
