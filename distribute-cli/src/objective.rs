//! The one forward pass that training, validation and evaluation share.

use burn::tensor::Int;
use distribute_cli::model::{Mode, Sequential};
use distribute_core::fit::{Objective, StepContext};
use distribute_core::{Result, Tensor};
use distribute_data::{
    binary_crossentropy, compute_average_loss, scale_regularization_loss,
    sparse_categorical_crossentropy,
};

use crate::data::Batch;

/// Loss and accuracy of one replica's batch.
///
/// The loss is divided by the constant global batch size, so what is learned does not depend on
/// the number of replicas, nor on what fills a batch up: that weighs nothing. A model with one
/// output says yes or no; others choose a class.
pub(crate) fn objective(
    ctx: &StepContext<'_>,
    model: &Sequential,
    ((input, labels), weights): Batch,
) -> Result<Objective> {
    if input.dims()[0] == 0 {
        return empty(ctx, model, input);
    }
    let mut rng = ctx.rng();
    let mut mode = match ctx.is_training() {
        true => Mode::Training(&mut rng),
        false => Mode::Inference,
    };
    let logits = model.logits(input, &mut mode);
    let (per_example, predicted) = losses(logits, labels.clone());
    let correct = (predicted.equal(labels).float() * weights.clone()).sum();
    let examples = weights.clone().sum();
    let global_batch = ctx.global_batch_size();
    let loss = compute_average_loss(ctx, per_example, Some(weights.into()), global_batch)?;
    let objective = Objective::new(loss).examples(examples.clone());
    let objective = objective.metric("accuracy", correct, examples);
    regularized(ctx, model, objective)
}

/// The loss and the predicted class of every example.
fn losses(logits: Tensor<2>, labels: Tensor<1, Int>) -> (Tensor<1>, Tensor<1, Int>) {
    let [examples, outputs] = logits.dims();
    if outputs == 1 {
        let predicted = logits.clone().greater_elem(0.0).int().reshape([examples]);
        let targets = labels.reshape([examples, 1]);
        return (binary_crossentropy(logits, targets), predicted);
    }
    let predicted = logits.clone().argmax(1).reshape([examples]);
    (sparse_categorical_crossentropy(logits, labels), predicted)
}

fn regularized(
    ctx: &StepContext<'_>,
    model: &Sequential,
    objective: Objective,
) -> Result<Objective> {
    Ok(match model.regularization_loss() {
        Some(loss) => objective.regularization(scale_regularization_loss(ctx, loss)?),
        None => objective,
    })
}

/// A replica whose batch is empty still takes part: its loss is 0, with gradients of 0, and its
/// share of the regularization counts.
fn empty(ctx: &StepContext<'_>, model: &Sequential, input: Tensor<2>) -> Result<Objective> {
    let zero = model.zero_loss(&input.device());
    let objective = Objective::new(zero.clone()).examples(zero.clone());
    let objective = objective.metric("accuracy", zero.clone(), zero);
    regularized(ctx, model, objective)
}
