//! What is reported of losses, whatever they were divided by.

use std::sync::Arc;

use burn::tensor::Tensor;
use distribute_core::{Error, Result};
use distribute_data::{AverageLoss, average_loss};
use distribute_fit::{Fit, Objective, StepContext};

use super::cluster::{Cluster, Job};
use super::data::{Batch, Mlp, TEST, TRAIN, objective, points};
use crate::within_limit;

/// The part of the points of each class that is 1, which the objectives here have as their loss.
fn mean_label(range: std::ops::Range<usize>) -> f64 {
    use distribute_data::Dataset;
    let all: Vec<usize> = (0..range.len()).collect();
    let (_, y) = points(range)
        .batch(&all, &distribute_core::Device::flex())
        .unwrap();
    f64::from(y.mean().into_scalar::<f32>())
}

/// A loss of each example that does not change while the model trains: its label.
fn labels(model: &Mlp, (x, y): Batch) -> Tensor<1> {
    let nothing = model.forward(x).mul_scalar(0.0);
    (nothing + y).squeeze_dim(1)
}

#[test]
fn the_reported_loss_is_the_mean_over_the_examples() {
    within_limit(|| {
        let averages = [
            AverageLoss::new(),
            AverageLoss::new().own_batch(),
            AverageLoss::new().global_batch_size(8),
            AverageLoss::new().global_batch_size(3),
        ];
        for average in averages {
            for workers in [1, 2] {
                let of_job = average.clone();
                let job = Job::new(Arc::new(
                    move |ctx: &StepContext<'_>, model: &Mlp, batch: Batch| {
                        let examples = batch.0.dims()[0];
                        let loss = of_job.clone().of(ctx, labels(model, batch))?;
                        Ok(Objective::new(loss).examples(examples))
                    },
                ));
                let cluster = Cluster::start(&job, workers);
                let coordinator = &cluster.coordinator;
                let fit = Fit::new(coordinator.strategy().unwrap()).epochs(1);
                let history = coordinator.fit(&job.training, fit).unwrap();
                let logs = history.last_logs();
                let found = [logs.loss(), logs.get("val_loss").unwrap()];
                // The last batches have 4 of 8 examples.
                for (found, expected) in found.into_iter().zip([TRAIN, TEST].map(mean_label)) {
                    let close = (found - expected).abs() < 1e-5;
                    assert!(
                        close,
                        "{average:?}, {workers}: {found}, expected {expected}"
                    );
                }
            }
        }
    });
}

#[test]
fn a_loss_that_is_reduced_already_is_refused() {
    within_limit(|| {
        let job = Job::new(Arc::new(
            |ctx: &StepContext<'_>, model: &Mlp, batch: Batch| {
                let loss = labels(model, batch).mean();
                Ok(Objective::new(average_loss(ctx, loss)?).examples(8))
            },
        ));
        let cluster = Cluster::start(&job, 1);
        let fit = Fit::new(cluster.coordinator.strategy().unwrap());
        let text = cluster
            .coordinator
            .fit(&job.training, fit)
            .unwrap_err()
            .to_string();
        assert!(
            text.contains("the replica's batch has 8 examples"),
            "{text}"
        );
    });
}

/// What is reported when the training examples' metric and loss are `value` from batch 4 on.
fn with(value: f64) -> Result<distribute_fit::History> {
    let job = Job::new(Arc::new(
        move |ctx: &StepContext<'_>, model: &Mlp, batch: Batch| {
            let from_4 = ctx.is_training() && ctx.batch() >= 4;
            let value = if from_4 { value } else { 1.0 };
            let given = objective(ctx, model, batch)?;
            // Gradients stay finite: what is added does not depend on the weights.
            let term = Tensor::<1>::full([1], value, ctx.device());
            let found = Tensor::<1>::full([1], value, ctx.device());
            Ok(given.regularization(term).metric("odd", found, 1.0))
        },
    ));
    let cluster = Cluster::start(&job, 2);
    let coordinator = &cluster.coordinator;
    let fit = Fit::new(coordinator.strategy().unwrap()).epochs(2);
    coordinator.fit(&job.training, fit).map_err(Error::step)
}

#[test]
fn a_loss_and_a_metric_that_are_not_finite_are_reported_as_they_are() {
    within_limit(|| {
        for value in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            let history = with(value).unwrap();
            assert_eq!(history.epochs.len(), 2);
            for record in &history.epochs {
                for name in ["loss", "odd"] {
                    let found = record.logs.get(name).unwrap();
                    assert_eq!(found.to_string(), value.to_string(), "{name}");
                    let test = record.logs.get(&format!("val_{name}")).unwrap();
                    assert!(test.is_finite(), "val_{name} is {test}");
                }
            }
        }
    });
}
