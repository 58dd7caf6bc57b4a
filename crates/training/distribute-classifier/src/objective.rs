//! The one forward pass that training, validation and evaluation share.

use burn::tensor::{Bool, Int, activation};
use distribute_core::{Policy, Result, Tensor};
use distribute_data::{
    AverageLoss, binary_crossentropy, mean_squared_error, scale_regularization_loss,
    sparse_categorical_crossentropy,
};
use distribute_fit::{Objective, StepContext};
use distribute_keras::{Head, Loss, Mode, Model};

use crate::batches::Batch;
use crate::names::LossName;

/// Loss and accuracy of one replica's batch, computed in the policy's type.
///
/// The loss is divided by the constant global batch size, so what is learned does not depend on
/// the number of replicas, nor on what fills a batch up: that weighs nothing. What the
/// model ends with decides the loss, see [`Loss`].
pub fn objective(
    policy: Policy,
    loss: LossName,
) -> impl Fn(&StepContext<'_>, &Model, Batch) -> Result<Objective> + Clone + Send + Sync {
    move |ctx, model, batch| forward(policy, loss, ctx, model, batch)
}

fn forward(
    policy: Policy,
    asked: LossName,
    ctx: &StepContext<'_>,
    model: &Model,
    ((input, labels), weights): Batch,
) -> Result<Objective> {
    // In a pass that all replicas make together, a replica without examples computes with none.
    let is_together = ctx.is_training() && model.is_synchronized();
    if input.dims()[0] == 0 && !is_together {
        return empty(ctx, model, input);
    }
    let mut rng = ctx.rng();
    let mut mode = if ctx.is_training() {
        Mode::training(ctx, &mut rng).weighted(weights.clone())
    } else {
        Mode::Inference
    };
    // Numbers of words are none to compute with.
    let input = if model.takes_tokens() {
        input
    } else {
        policy.cast(input)
    };
    let logits = policy.output(policy.model(model)?.logits(input, &mut mode)?);
    let kind = model.head().loss(logits.dims()[1]);
    let (own, predicted) = losses(kind, logits.clone(), labels.clone());
    let per_example = match asked {
        LossName::CrossEntropy => own,
        of_differences => differences(of_differences, model.head(), kind, logits, labels.clone()),
    };
    let loss = AverageLoss::new()
        .weights(weights.clone())
        .of(ctx, per_example)?;
    let objective = Objective::new(loss).examples(weights.clone().sum());
    let objective = objective.measure("accuracy", &right, &predicted, &labels, Some(&weights))?;
    regularized(ctx, model, objective)
}

/// Whether each class is predicted, as a metric.
fn right(predicted: &Tensor<1, Int>, labels: &Tensor<1, Int>) -> Tensor<1> {
    predicted.clone().equal(labels.clone()).float()
}

/// The loss and the predicted class of every example.
fn losses(loss: Loss, logits: Tensor<2>, labels: Tensor<1, Int>) -> (Tensor<1>, Tensor<1, Int>) {
    let [examples, outputs] = logits.dims();
    let predicted = match loss {
        Loss::Binary => logits.clone().greater_elem(0.0).int(),
        Loss::BinaryPerClass | Loss::Categorical => logits.clone().argmax(1),
    };
    let column = labels.clone().reshape([examples, 1]);
    let per_example = match loss {
        Loss::Binary => binary_crossentropy(logits, column),
        Loss::BinaryPerClass => binary_crossentropy(logits, one_hot(column, outputs)),
        Loss::Categorical => sparse_categorical_crossentropy(logits, labels),
    };
    (per_example, predicted.reshape([examples]))
}

/// The mean of the squares, or of the absolute values, of the differences between what the model
/// returns and the class as zeros and a one (of one output: as 0 or 1).
fn differences(
    asked: LossName,
    head: Head,
    kind: Loss,
    logits: Tensor<2>,
    labels: Tensor<1, Int>,
) -> Tensor<1> {
    let [examples, outputs] = logits.dims();
    let column = labels.reshape([examples, 1]);
    let wanted = match kind {
        Loss::Binary => column.float(),
        Loss::BinaryPerClass | Loss::Categorical => one_hot(column, outputs).float(),
    };
    let returned = match head {
        Head::Softmax => activation::softmax(logits, 1),
        Head::Sigmoid => activation::sigmoid(logits),
        Head::Linear => logits,
    };
    match asked {
        LossName::Mae => (returned - wanted).abs().mean_dim(1).reshape([examples]),
        _ => mean_squared_error(returned, wanted),
    }
}

/// Whether each class is the one of the example: `[n, classes]` of `[n, 1]`.
fn one_hot(labels: Tensor<2, Int>, classes: usize) -> Tensor<2, Bool> {
    let shape = [labels.dims()[0], classes];
    let all = Tensor::<1, Int>::arange(0..classes as i64, &labels.device());
    let all = all.cast(labels.dtype()).reshape([1, classes]);
    labels.expand(shape).equal(all.expand(shape))
}

fn regularized(ctx: &StepContext<'_>, model: &Model, objective: Objective) -> Result<Objective> {
    Ok(match model.regularization_loss() {
        Some(loss) => objective.regularization(scale_regularization_loss(ctx, loss)?),
        None => objective,
    })
}

/// A replica whose batch is empty still takes part: its loss is 0, with gradients of 0, and its
/// share of the regularization counts.
fn empty(ctx: &StepContext<'_>, model: &Model, input: Tensor<2>) -> Result<Objective> {
    let zero = model.zero_loss(&input.device());
    ctx.loss_is_scaled();
    let objective = Objective::new(zero.clone()).examples(zero.clone());
    let objective = objective.metric("accuracy", zero.clone(), zero);
    regularized(ctx, model, objective)
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::tensor::Device;

    /// Keras: `mean_squared_error(one_hot(labels), probabilities)`, and the same of one output.
    #[test]
    fn differences_are_of_what_the_model_returns() {
        let device = Device::flex();
        let labels = Tensor::<1, Int>::from_data([1_i64, 0], &device);
        let logits = Tensor::<2>::from_data([[0.0_f32, 0.0], [0.0, 0.0]], &device);
        let of = |asked, head, kind, logits: &Tensor<2>| {
            let found = differences(asked, head, kind, logits.clone(), labels.clone());
            found.into_data().try_to_vec::<f32>().unwrap()
        };
        let kind = Loss::Categorical;
        assert_eq!(
            of(LossName::Mse, Head::Softmax, kind, &logits),
            [0.25, 0.25]
        );
        assert_eq!(of(LossName::Mae, Head::Softmax, kind, &logits), [0.5, 0.5]);
        assert_eq!(of(LossName::Mse, Head::Linear, kind, &logits), [0.5, 0.5]);
        let one = Tensor::<2>::from_data([[0.0_f32], [0.0]], &device);
        assert_eq!(
            of(LossName::Mse, Head::Sigmoid, Loss::Binary, &one),
            [0.25, 0.25]
        );
    }

    /// Keras: `binary_crossentropy(one_hot(labels), logits, from_logits=True)`.
    #[test]
    fn a_sigmoid_per_class_is_as_many_yes_no_questions() {
        let device = Device::flex();
        let logits = Tensor::<2>::from_data([[2.0_f32, -1.0, 0.5], [0.0, 3.0, -2.0]], &device);
        let labels = Tensor::<1, Int>::from_data([0_i64, 2], &device);
        let (loss, predicted) = losses(Loss::BinaryPerClass, logits, labels);
        let term = |x: f64, yes: bool| if yes { -x } else { x }.exp().ln_1p();
        let expected = [
            (term(2.0, true) + term(-1.0, false) + term(0.5, false)) / 3.0,
            (term(0.0, false) + term(3.0, false) + term(-2.0, true)) / 3.0,
        ];
        let loss = loss.into_data().try_to_vec::<f32>().unwrap();
        for (found, expected) in loss.iter().zip(expected) {
            assert!(
                (f64::from(*found) - expected).abs() < 1e-6,
                "{found} {expected}"
            );
        }
        let data = predicted.into_data().convert::<i64>();
        assert_eq!(data.try_to_vec::<i64>().unwrap(), [0, 1]);
    }
}
