//! The one forward pass that training, validation and evaluation share.

use burn::tensor::{Bool, FloatDType, Int, activation};
use distribute_core::{Policy, Result, Tensor};
use distribute_data::{
    AverageLoss, LossFunction, binary_crossentropy, mean_squared_error, scale_regularization_loss,
    sparse_categorical_crossentropy,
};
use distribute_fit::{Objective, StepContext};
use distribute_keras::{Head, Loss, Mode, Model};

use crate::batches::{Answers, Batch};
use crate::loss_name::LossName;
use crate::measured::Measured;

/// Loss and accuracy of one replica's batch, computed in the policy's type.
///
/// The loss is divided by the constant global batch size, so what is learned does not depend on
/// the number of replicas, nor on what fills a batch up: that weighs nothing. What the
/// model ends with decides the loss, see [`Loss`].
pub fn objective(
    policy: Policy,
    measured: impl Into<Measured>,
) -> impl Fn(&StepContext<'_>, &Model, Batch) -> Result<Objective> + Clone + Send + Sync {
    let measured = measured.into();
    move |ctx, model, batch| forward(policy, &measured, ctx, model, batch)
}

fn forward(
    policy: Policy,
    measured: &Measured,
    ctx: &StepContext<'_>,
    model: &Model,
    ((input, targets), weights): Batch,
) -> Result<Objective> {
    // In a pass that all replicas make together, a replica without examples computes with none.
    let is_together = ctx.is_training() && model.is_synchronized();
    if input.dims()[0] == 0 && !is_together {
        return empty(ctx, model, measured, &targets.answers, input);
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
    let counts = match targets.weights {
        Some(own) => own * weights.clone(),
        None => weights.clone(),
    };
    let average = |ctx, per_example| AverageLoss::new().weights(counts).of(ctx, per_example);
    let examples = weights.clone().sum();
    let (head, outputs) = (model.head(), logits.dims()[1]);
    let per_example = match (&targets.answers, measured.loss) {
        (Answers::Classes(labels), asked) if !matches!(asked, LossName::Keras { .. }) => {
            of_classes(asked, head, logits.clone(), labels.clone())
        }
        (answers, asked) => of_function(asked, head, logits.clone(), dense(answers, outputs)),
    };
    let objective = Objective::new(average(ctx, per_example)?).examples(examples);
    let objective = match &targets.answers {
        Answers::Classes(labels) if measured.is_of_accuracy(head) => {
            let predicted = most_likely(head.loss(outputs), logits);
            objective.measure("accuracy", &right, &predicted, labels, Some(&weights))?
        }
        answers => {
            let returned = match answers {
                Answers::Classes(_) if measured.is_of_logits(head) => model.probabilities(logits),
                _ => returned(head, logits),
            };
            let wanted = dense(answers, outputs);
            measures(objective, measured, &returned, &wanted, &weights)
        }
    };
    regularized(ctx, model, objective)
}

/// The loss of every example between outputs and classes.
fn of_classes(asked: LossName, head: Head, logits: Tensor<2>, labels: Tensor<1, Int>) -> Tensor<1> {
    let kind = head.loss(logits.dims()[1]);
    match asked {
        LossName::CrossEntropy => crossentropy(kind, logits, labels),
        of_differences => differences(of_differences, head, kind, logits, labels),
    }
}

/// The targets as values: of classes zeros and a one, of one output 0 or 1.
fn dense(answers: &Answers, outputs: usize) -> Tensor<2> {
    match answers {
        Answers::Values(values) => values.clone(),
        Answers::Classes(labels) => {
            let column = labels.clone().reshape([labels.dims()[0], 1]);
            if outputs == 1 {
                column.float()
            } else {
                one_hot(column, outputs).float()
            }
        }
    }
}

/// Adds the metrics, computed in f32.
fn measures(
    objective: Objective,
    measured: &Measured,
    returned: &Tensor<2>,
    wanted: &Tensor<2>,
    weights: &Tensor<1>,
) -> Objective {
    let returned = returned.clone().detach().cast(FloatDType::F32);
    let metrics = measured.metrics.iter();
    metrics.fold(objective, |objective, metric| {
        let sums = metric.sums(returned.clone(), wanted.clone(), Some(weights));
        objective.totals(*metric, sums)
    })
}

/// The loss of every example by a function of Keras, of the logits where the model's head allows
/// it.
fn of_function(asked: LossName, head: Head, logits: Tensor<2>, wanted: Tensor<2>) -> Tensor<1> {
    let (function, said) = match asked {
        LossName::CrossEntropy => (of_head(head, logits.dims()[1]), Some(true)),
        LossName::Keras {
            function,
            from_logits,
        } => (function, from_logits),
        other => (
            other.function().unwrap_or(LossFunction::MeanSquaredError),
            None,
        ),
    };
    let own = match function {
        LossFunction::BinaryCrossentropy { .. } | LossFunction::BinaryFocalCrossentropy { .. } => {
            Head::Sigmoid
        }
        _ => Head::Softmax,
    };
    if function.from_logits().is_none() {
        return function.of(returned(head, logits), wanted);
    }
    let is_focal = matches!(
        function,
        LossFunction::BinaryFocalCrossentropy { .. }
            | LossFunction::CategoricalFocalCrossentropy { .. }
    );
    let (predicted, is_logits) = match head {
        Head::Linear => (logits, said.unwrap_or(true)),
        // Keras takes the numbers before either for either cross-entropy.
        head if head == own || !is_focal => (logits, true),
        other => (returned(other, logits), said.unwrap_or(false)),
    };
    let function = function.with_option("from_logits", &is_logits.to_string());
    function.map_or_else(
        // It has the option.
        |_| predicted.clone().sum_dim(1).flatten::<1>(0, 1),
        |function| function.of(predicted.clone(), wanted),
    )
}

/// The cross-entropy that belongs to a head.
fn of_head(head: Head, outputs: usize) -> LossFunction {
    match head.loss(outputs) {
        Loss::Binary | Loss::BinaryPerClass => LossFunction::BinaryCrossentropy {
            from_logits: true,
            label_smoothing: 0.0,
        },
        Loss::Categorical => LossFunction::CategoricalCrossentropy {
            from_logits: true,
            label_smoothing: 0.0,
        },
    }
}

/// What the model returns.
fn returned(head: Head, logits: Tensor<2>) -> Tensor<2> {
    match head {
        Head::Softmax => activation::softmax(logits, 1),
        Head::Sigmoid => activation::sigmoid(logits),
        Head::Linear => logits,
    }
}

/// Whether each class is predicted, as a metric.
fn right(predicted: &Tensor<1, Int>, labels: &Tensor<1, Int>) -> Tensor<1> {
    predicted.clone().equal(labels.clone()).float()
}

/// The predicted class of every example.
fn most_likely(loss: Loss, logits: Tensor<2>) -> Tensor<1, Int> {
    let examples = logits.dims()[0];
    let predicted = match loss {
        Loss::Binary => logits.greater_elem(0.0).int(),
        Loss::BinaryPerClass | Loss::Categorical => logits.argmax(1),
    };
    predicted.reshape([examples])
}

/// The cross-entropy of every example.
fn crossentropy(loss: Loss, logits: Tensor<2>, labels: Tensor<1, Int>) -> Tensor<1> {
    let [examples, outputs] = logits.dims();
    let column = labels.clone().reshape([examples, 1]);
    match loss {
        Loss::Binary => binary_crossentropy(logits, column),
        Loss::BinaryPerClass => binary_crossentropy(logits, one_hot(column, outputs)),
        Loss::Categorical => sparse_categorical_crossentropy(logits, labels),
    }
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
    let returned = returned(head, logits);
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
fn empty(
    ctx: &StepContext<'_>,
    model: &Model,
    measured: &Measured,
    answers: &Answers,
    input: Tensor<2>,
) -> Result<Objective> {
    let zero = model.zero_loss(&input.device());
    ctx.loss_is_scaled();
    let objective = Objective::new(zero.clone()).examples(zero.clone());
    let objective = match answers {
        Answers::Classes(_) if measured.is_of_accuracy(model.head()) => {
            objective.metric("accuracy", zero.clone(), zero)
        }
        _ => {
            let outputs = measured.outputs;
            let metrics = measured.metrics.iter();
            metrics.fold(objective, |objective, metric| {
                let sums = Tensor::zeros([metric.count(outputs)], &input.device());
                objective.totals(*metric, sums)
            })
        }
    };
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
        let loss = crossentropy(Loss::BinaryPerClass, logits.clone(), labels);
        let predicted = most_likely(Loss::BinaryPerClass, logits);
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
