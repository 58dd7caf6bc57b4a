//! The one forward pass that training, validation and evaluation share.

use burn::tensor::{Bool, FloatDType, Int, activation};
use distribute_core::{Policy, Result, Tensor};
use distribute_data::{
    AverageLoss, KerasMetric, LossFunction, binary_crossentropy, mean_squared_error,
    scale_regularization_loss, sparse_categorical_crossentropy,
};
use distribute_fit::{Objective, StepContext};
use distribute_keras::{Head, Loss, Mode, Model};

use crate::batches::{Answers, Batch};
use crate::loss_name::LossName;
use crate::measured::{Measured, MeasuredOutput};

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
    let given = policy
        .model(model)?
        .outputs_all(model.split_inputs(input)?, &mut mode)?;
    let counts = match targets.weights {
        Some(own) => own * weights.clone(),
        None => weights.clone(),
    };
    let compared: Vec<Compared<'_>> = measured
        .outputs
        .iter()
        .zip(model.heads())
        .zip(given.logits)
        .map(|((output, head), logits)| {
            Compared::of(output, head, policy.output(logits), &targets.answers)
        })
        .collect();
    let losses: Vec<Tensor<1>> = compared.iter().map(Compared::losses).collect();
    let scaled = losses.iter().zip(&compared).map(|(losses, compared)| {
        let weight = compared.output.weight;
        weight.map_or(losses.clone(), |weight| losses.clone().mul_scalar(weight))
    });
    // In the order of the model's outputs.
    let sum = scaled.reduce(|sum, losses| sum + losses);
    let sum = sum.unwrap_or_else(|| weights.zeros_like());
    let loss = AverageLoss::new().weights(counts.clone()).of(ctx, sum)?;
    let examples = weights.clone().sum();
    let mut objective = Objective::new(loss).examples(examples.clone());
    for (compared, losses) in compared.iter().zip(losses) {
        if compared.output.name.is_some() {
            let sum = (losses.detach() * counts.clone()).sum();
            let name = compared.output.logged("loss");
            objective = objective.metric(name, sum, examples.clone());
        }
        objective = compared.measured(objective, model, &weights, &counts)?;
    }
    // As in Keras, the examples' own weights do not count here.
    let activity = given.activity_losses.map(|of_examples| {
        let average = AverageLoss::new().weights(weights);
        average.of(ctx, of_examples)
    });
    regularized(ctx, model, activity.transpose()?, objective)
}

/// What an output gives for a batch, and what it is compared with: a row for each example, or for
/// each place of an example's image or sequence.
struct Compared<'a> {
    output: &'a MeasuredOutput,
    head: Head,
    logits: Tensor<2>,
    answers: Answers,
    examples: usize,
}

impl<'a> Compared<'a> {
    fn of(output: &'a MeasuredOutput, head: Head, logits: Tensor<2>, answers: &Answers) -> Self {
        let [examples, values] = logits.dims();
        let Some(place) = output.target else {
            return Self {
                output,
                head,
                logits,
                answers: answers.clone(),
                examples,
            };
        };
        let rows = examples * (values / output.outputs.max(1));
        let own = match answers {
            Answers::Values(values) => values.clone().narrow(1, place.first, place.width),
            Answers::Classes(labels) => labels.clone().reshape([examples, 1]).float(),
        };
        let answers = if place.is_class {
            Answers::Classes(own.reshape([rows]).int())
        } else {
            Answers::Values(own.reshape([rows, output.outputs]))
        };
        Self {
            output,
            head,
            logits: logits.reshape([rows, output.outputs]),
            answers,
            examples,
        }
    }

    /// The loss of every example: the mean over its places.
    fn losses(&self) -> Tensor<1> {
        let (head, logits) = (self.head, self.logits.clone());
        let outputs = logits.dims()[1];
        let losses = match (&self.answers, self.output.loss) {
            (Answers::Classes(labels), asked) if !matches!(asked, LossName::Keras { .. }) => {
                of_classes(asked, head, logits, labels.clone())
            }
            (answers, asked) => of_function(asked, head, logits, dense(answers, outputs)),
        };
        let rows = losses.dims()[0];
        if rows == self.examples {
            return losses;
        }
        let places = rows / self.examples.max(1);
        let by_example = losses.reshape([self.examples, places]);
        by_example.mean_dim(1).reshape([self.examples])
    }

    /// Adds the metrics: by examples, and by the weights of the examples.
    fn measured(
        &self,
        objective: Objective,
        model: &Model,
        weights: &Tensor<1>,
        counts: &Tensor<1>,
    ) -> Result<Objective> {
        let (head, output) = (self.head, self.output);
        let of_rows = |weights: &Tensor<1>| {
            let places = self.logits.dims()[0] / self.examples.max(1);
            match places {
                1 => weights.clone(),
                places => {
                    let column = weights.clone().reshape([self.examples, 1]);
                    column.repeat_dim(1, places).reshape([-1])
                }
            }
        };
        let mut objective = objective;
        let only_accuracy = output.is_of_accuracy(head);
        if let (Answers::Classes(labels), true) = (&self.answers, only_accuracy) {
            let kind = head.loss(self.logits.dims()[1]);
            let predicted = most_likely(kind, self.logits.clone());
            let name = output.logged("accuracy");
            let weights = of_rows(weights);
            objective = objective.measure(name, &right, &predicted, labels, Some(&weights))?;
            if output.weighted_metrics.is_empty() {
                return Ok(objective);
            }
        }
        let returned = match &self.answers {
            Answers::Classes(_) if output.is_of_logits(head) => {
                probabilities(model, head, self.logits.clone())
            }
            _ => returned(head, self.logits.clone()),
        };
        let returned = returned.detach().cast(FloatDType::F32);
        let wanted = dense(&self.answers, self.logits.dims()[1]);
        let sums = |metric: &KerasMetric, weights: &Tensor<1>| {
            metric.sums(returned.clone(), wanted.clone(), Some(weights))
        };
        let is_measured = matches!(self.answers, Answers::Classes(_)) && only_accuracy;
        let metrics = output.metrics.iter().filter(|_| !is_measured);
        let rows = of_rows(weights);
        for metric in metrics {
            let name = output.logged(metric.name());
            objective = objective.totals_as(name, *metric, sums(metric, &rows));
        }
        let rows = of_rows(counts);
        for metric in &output.weighted_metrics {
            let name = output.logged_weighted(metric);
            objective = objective.totals_as(name, *metric, sums(metric, &rows));
        }
        Ok(objective)
    }
}

/// What the numbers of an output say of every class.
fn probabilities(model: &Model, head: Head, logits: Tensor<2>) -> Tensor<2> {
    if model.heads().count() == 1 {
        return model.probabilities(logits);
    }
    match head.loss(logits.dims()[1]) {
        Loss::Binary | Loss::BinaryPerClass => activation::sigmoid(logits),
        Loss::Categorical => activation::softmax(logits, 1),
    }
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

/// Adds the losses on weights, and on what layers give.
fn regularized(
    ctx: &StepContext<'_>,
    model: &Model,
    activity: Option<Tensor<1>>,
    objective: Objective,
) -> Result<Objective> {
    let of_weights = model.regularization_loss();
    let of_weights = of_weights.map(|loss| scale_regularization_loss(ctx, loss));
    let both = of_weights.transpose()?.into_iter().chain(activity);
    Ok(match both.reduce(|sum, loss| sum + loss) {
        Some(loss) => objective.regularization(loss),
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
    let mut objective = Objective::new(zero.clone()).examples(zero.clone());
    for (output, head) in measured.outputs.iter().zip(model.heads()) {
        if output.name.is_some() {
            objective = objective.metric(output.logged("loss"), zero.clone(), zero.clone());
        }
        let is_class = match output.target {
            Some(place) => place.is_class,
            None => matches!(answers, Answers::Classes(_)),
        };
        let is_measured = is_class && output.is_of_accuracy(head);
        if is_measured {
            let name = output.logged("accuracy");
            objective = objective.metric(name, zero.clone(), zero.clone());
        }
        let metrics = output.metrics.iter().filter(|_| !is_measured);
        let metrics = metrics.map(|metric| (output.logged(metric.name()), metric));
        let weighted = output.weighted_metrics.iter();
        let weighted = weighted.map(|metric| (output.logged_weighted(metric), metric));
        for (name, metric) in metrics.chain(weighted) {
            let sums = Tensor::zeros([metric.count(output.outputs)], &input.device());
            objective = objective.totals_as(name, *metric, sums);
        }
    }
    // The same values as on the other replicas, whose examples have losses on outputs.
    let activity = model.has_activity_losses().then_some(zero);
    regularized(ctx, model, activity, objective)
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
