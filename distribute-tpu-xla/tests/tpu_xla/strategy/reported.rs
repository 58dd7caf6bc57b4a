//! What `fit` and `evaluate` report of compiled steps is the mean over the examples, whatever the
//! loss was divided by.

use burn::module::Param;
use burn::nn::{Linear, LinearConfig};
use burn::prelude::*;
use distribute_core::{PerReplica, Result, Sgd, Strategy, StrategyExt, TensorData, TrainState};
use distribute_data::loss::{MeanSquaredError, Reduction};
use distribute_data::{
    AverageLoss, Batching, FnDataset, StrategyDataExt, Weighted, average_loss, mean_squared_error,
};
use distribute_fit::{Fit, Objective, StepContext, evaluate};

use crate::strategy::support::{strategy, within};

/// How a loss is divided.
#[derive(Debug, Clone, Copy, PartialEq)]
enum By {
    /// By the batch that there is (TensorFlow's default).
    Default,
    Seven,
    MeanOverReplicas,
}

/// The loss of an epoch and of an evaluation of examples with the losses 0, 1, 2, ...
fn reported<S: Strategy>(strategy: &S, count: usize, batching: Batching, by: By) -> [f64; 2] {
    let numbers = FnDataset::new(count, |indices: &[usize], device: &Device| {
        let x: Vec<f32> = indices.iter().map(|i| (*i as f32).sqrt()).collect();
        let x = TensorData::new(x, [indices.len(), 1]);
        Ok(Tensor::<2>::from_data(x, device))
    });
    let data = strategy.distribute_dataset(Weighted::new(numbers), batching);
    let data = data.unwrap();
    let build = |device: &Device| {
        let mut model = LinearConfig::new(1, 1).with_bias(false).init(device);
        model.weight = Param::from_tensor(Tensor::ones([1, 1], device));
        TrainState::new(model, Sgd::new(0.0))
    };
    let mut state = strategy.scope(build).unwrap();
    let objective = |ctx: &StepContext<'_>, model: &Linear, batch: (Tensor<2>, Tensor<1>)| {
        let (x, weights) = batch;
        let predicted = model.forward(x);
        let targets = predicted.zeros_like();
        let losses = mean_squared_error(predicted.clone(), targets.clone());
        let weighted = weights.clone();
        let loss = match by {
            By::Default => AverageLoss::new()
                .weights(weighted)
                .own_batch()
                .of(ctx, losses)?,
            By::Seven => AverageLoss::new()
                .weights(weighted)
                .global_batch_size(7)
                .of(ctx, losses)?,
            By::MeanOverReplicas => {
                let loss = MeanSquaredError::new(Reduction::MeanOverReplicas);
                loss.call(predicted, targets)?.reduced()?
            }
        };
        Ok(Objective::new(loss).examples(weights.sum()))
    };
    let fit = Fit::new(strategy).epochs(1);
    let history = fit.run(&mut state, &data, objective).unwrap();
    let found = evaluate(strategy, &state, &data, objective).unwrap();
    [history.last_logs().loss(), found.logs.loss()]
}

#[test]
fn compiled_steps_report_the_mean_over_the_examples() {
    within(300, || {
        let Some(tpu) = strategy(2) else {
            return;
        };
        for by in [By::Default, By::Seven, By::MeanOverReplicas] {
            // A batch of 4 that is short by 3 and filled up, and one of 2 that has its own program.
            for (count, pad) in [(9, true), (10, false)] {
                if pad && by == By::MeanOverReplicas {
                    continue;
                }
                let batching = Batching::global(4).pad_remainder(pad);
                let expected = (count - 1) as f64 / 2.0;
                for found in reported(&tpu, count, batching, by) {
                    assert!(
                        (found - expected).abs() < 1e-4,
                        "{by:?}, padded: {pad}: {found}, expected {expected}"
                    );
                }
            }
        }
    });
}

/// What a compiled step says that averages these losses of its four examples.
fn refused(
    average: impl Fn(&distribute_core::ReplicaContext, Tensor<1>) -> Result<Tensor<1>> + Sync,
) {
    let Some(tpu) = strategy(2) else {
        return;
    };
    let batch = || PerReplica::new(vec![Tensor::<2>::ones([4, 3], &Device::flex()); 2]);
    let outcome = tpu.run(batch(), |ctx, x| average(ctx, x.mean_dim(1).squeeze_dim(1)));
    let text = outcome.unwrap_err().to_string();
    assert!(
        text.contains("the replica's batch has 4 examples"),
        "{text}"
    );
    // What was refused is not kept: the next step is compiled and runs.
    let summed = tpu.run(batch(), |ctx, x| {
        average_loss(ctx, x.mean_dim(1).squeeze_dim::<1>(1))
    });
    let parts = summed.unwrap().into_values().into_iter();
    let parts: Vec<f32> = parts.map(Tensor::into_scalar).collect();
    assert_eq!(parts, [0.5, 0.5]);
}

#[test]
fn a_compiled_step_refuses_a_loss_that_is_reduced_already() {
    within(120, || {
        refused(|ctx, losses| average_loss(ctx, losses.mean()));
        refused(|ctx, losses| {
            AverageLoss::new()
                .global_batch_size(8)
                .of(ctx, losses.sum())
        });
        refused(|ctx, losses| average_loss(ctx, losses.repeat_dim(0, 3)));
    });
}
