//! The high-level loop: training, validation, evaluation and prediction.

use std::path::Path;

use burn::prelude::*;
use distribute_core::checkpoint::{Checkpoint, load_latest};
use distribute_core::metric::SparseCategoricalAccuracy;
use distribute_core::{
    Adam, Mirrored, MirroredStrategy, Replicate, Result, Strategy, StrategyExt, TrainState, dropout,
};
use distribute_data::{
    AverageLoss, Batching, Digits, StrategyDataExt, Weighted, sparse_categorical_crossentropy,
};
use distribute_fit::callbacks::ModelCheckpoint;
use distribute_fit::{
    Callback, Control, Fit, Logs, Objective, Outcome, StepContext, evaluate, predict,
};

use crate::strategy::models::Cnn;
use crate::strategy::support::{strategy, within};

type Batch = ((Tensor<4>, Tensor<1, Int>), Tensor<1>);

fn objective(
    ctx: &StepContext<'_>,
    model: &Cnn,
    ((images, labels), weights): Batch,
) -> Result<Objective> {
    let logits = model.forward(images);
    let per_example = sparse_categorical_crossentropy(logits.clone(), labels.clone());
    let loss = AverageLoss::new()
        .weights(weights.clone())
        .of(ctx, per_example)?;
    let objective = Objective::new(loss).examples(weights.clone().sum());
    let metric = &SparseCategoricalAccuracy;
    objective.measure("accuracy", metric, &logits, &labels, Some(&weights))
}

/// Short last batches, filled up where the shapes are fixed.
fn fitted<S: Strategy>(
    strategy: &S,
    state: &mut Mirrored<TrainState<Cnn>>,
) -> (Vec<f64>, Logs, Vec<f32>) {
    let digits = Digits::open().unwrap();
    let pad = strategy.tracer().is_some();
    let batching = Batching::global(64).shuffle(1).pad_remainder(pad);
    let train = Weighted::new(digits.train().unwrap());
    let train = strategy.distribute_dataset(train, batching).unwrap();
    let batching = Batching::global(60).pad_remainder(pad);
    let test = Weighted::new(digits.test().unwrap());
    let test = strategy.distribute_dataset(test, batching).unwrap();
    let history = Fit::new(strategy)
        .epochs(2)
        .run_with_validation(state, &train, &test, objective)
        .unwrap();
    let losses = history
        .epochs
        .iter()
        .map(|epoch| epoch.logs.loss())
        .collect();
    let report = evaluate(strategy, state, &test, objective).unwrap();
    let predicted = predict(strategy, state, &test, |_, model, batch: Batch| {
        Ok(model.forward(batch.0.0))
    });
    let predicted = predicted.unwrap().into_data().try_to_vec::<f32>().unwrap();
    (losses, report.logs, predicted)
}

#[test]
fn fit_validates_evaluates_and_predicts_as_on_the_cpu() {
    within(600, || {
        let Some(tpu) = strategy(2) else {
            return;
        };
        let cpu = MirroredStrategy::builder().replicas(2).build().unwrap();
        let model = Cnn::new(&Device::flex().autodiff());
        let state = TrainState::new(model, Adam::new(2e-3));
        let mut on_tpu = tpu.scope(|device| state.replicate(device)).unwrap();
        let mut on_cpu = cpu.scope(|device| state.replicate(device)).unwrap();
        let (found, logs, rows) = fitted(&tpu, &mut on_tpu);
        let (expected, expected_logs, expected_rows) = fitted(&cpu, &mut on_cpu);
        for (found, expected) in found.iter().zip(&expected) {
            assert!(
                (found - expected).abs() < 1e-3,
                "{found}, expected {expected}"
            );
        }
        assert!((logs.loss() - expected_logs.loss()).abs() < 1e-3);
        assert_eq!(rows.len(), expected_rows.len());
        assert_eq!(rows.len(), 359 * 10);
        let far = |(found, expected): &(&f32, &f32)| (*found - *expected).abs() > 1e-2;
        assert_eq!(rows.iter().zip(&expected_rows).filter(far).count(), 0);
        // Train, validate, evaluate and predict; `evaluate` is a step of its own.
        let statistics = tpu.statistics();
        assert!(statistics.programs <= 4, "{statistics:?}");
        assert_eq!(
            on_tpu.host_metadata().step(),
            on_cpu.primary().unwrap().step()
        );
    });
}

#[test]
fn a_learning_rate_schedule_compiles_once() {
    within(120, || {
        let Some(tpu) = strategy(1) else {
            return;
        };
        let build = |device: &Device| TrainState::new(Cnn::new(device), Adam::new(1e-3));
        let mut state = tpu.scope(build).unwrap();
        let ones = || {
            let device = Device::flex();
            let x = Tensor::<4>::ones([4, 1, 8, 8], &device);
            distribute_core::PerReplica::new(vec![(x, Tensor::<1, Int>::zeros([4], &device))])
        };
        for number in 0..5 {
            state.set_learning_rate(1e-3 / f64::from(number + 1));
            tpu.run((&mut state, ones()), |ctx, (state, (x, y))| {
                let x = dropout(x, 0.1, &mut ctx.rng(1, state.step()));
                let loss = sparse_categorical_crossentropy(state.model.forward(x), y).sum();
                ctx.loss_is_scaled();
                let gradients = ctx.gradient(&loss, &state.model)?;
                state.apply_gradients(ctx, gradients)?;
                Ok(loss)
            })
            .unwrap();
        }
        assert_eq!(tpu.statistics().programs, 1);
        assert_eq!(tpu.statistics().hits, 4);
        assert_eq!(state.primary().unwrap().learning_rate(), 1e-3 / 5.0);
    });
}

/// Interrupts after this many batches.
struct After(usize);

impl Callback for After {
    fn on_batch_end(&mut self, run: &mut Control<'_>) -> Result<()> {
        self.0 = self.0.wrapping_sub(1);
        if self.0 == 0 {
            run.stop(Outcome::Interrupted);
        }
        Ok(())
    }
}

#[test]
fn interrupted_between_micro_batches_the_rest_is_the_same() {
    within(600, || {
        let Some(tpu) = strategy(2) else {
            return;
        };
        let digits = Digits::open().unwrap();
        let batching = Batching::global(256).shuffle(1).pad_remainder(true);
        let train = Weighted::new(digits.train().unwrap());
        let train = tpu.distribute_dataset(train, batching).unwrap();
        let model = Cnn::new(&Device::flex().autodiff());
        let run = |directory: &Path, checkpoint: Option<Checkpoint>, batches: usize| {
            let build = |device: &Device| {
                TrainState::new(model.clone().fork(device), Adam::new(2e-3)).accumulate(4)
            };
            let mut state = tpu.scope(build).unwrap();
            let fit = Fit::new(&tpu)
                .epochs(2)
                .resume_from(checkpoint)
                .callback(ModelCheckpoint::new(directory).unwrap().every_epochs(9))
                .callback(After(batches));
            let history = fit.run(&mut state, &train, objective).unwrap();
            let (_, last) = load_latest(directory).unwrap().found.unwrap();
            (history.last_logs(), last)
        };
        let whole = tempfile::tempdir().unwrap();
        let (expected_logs, expected) = run(whole.path(), None, 0);
        assert_eq!(expected.metadata.step, 3, "12 micro-batches");
        for batches in [3, 6] {
            let directory = tempfile::tempdir().unwrap();
            let (_, checkpoint) = run(directory.path(), None, batches);
            let of = |replica: usize| {
                let prefix = format!("accumulated/{replica}/");
                let own = checkpoint.tensors.iter();
                let own = own.filter_map(|(name, data)| {
                    Some((name.strip_prefix(&prefix)?.to_string(), data.clone()))
                });
                own.collect::<Vec<_>>()
            };
            assert!(!of(0).is_empty() && of(0).len() == of(1).len());
            assert_ne!(of(0), of(1), "each replica has its own");
            let (logs, found) = run(directory.path(), Some(checkpoint), 0);
            assert_eq!(found.tensors, expected.tensors, "after {batches}");
            assert_eq!(logs, expected_logs, "after {batches}");
        }
    });
}
