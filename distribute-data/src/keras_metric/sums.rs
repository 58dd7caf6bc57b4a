//! The sums of a batch, on its device.

use burn::tensor::{Bool, Tensor};

use super::curve;
use super::kind::{Average, Kind, Score, Threshold};
use crate::loss::LossFunction;

/// A score at most this far from 0 is no answer.
const NO_ANSWER: f64 = 1e-9;

pub(super) fn of(
    kind: &Kind,
    predicted: Tensor<2>,
    labels: Tensor<2>,
    weights: Option<&Tensor<1>>,
) -> Tensor<1> {
    assert_eq!(
        predicted.dims(),
        labels.dims(),
        "predictions and labels of a metric differ in shape"
    );
    let examples = predicted.dims()[0];
    let weights = match weights {
        Some(weights) => weights.clone(),
        None => Tensor::ones([examples], &predicted.device()),
    };
    let weights = weights.cast(predicted.dtype()).reshape([examples, 1]);
    let labels = labels.cast(predicted.dtype());
    let mean = |values: Tensor<2>| mean(values, weights.clone());
    match *kind {
        Kind::Accuracy if predicted.dims()[1] > 1 => mean(same_largest(predicted, labels)),
        Kind::Accuracy => mean(same_side(predicted, labels, 0.5)),
        Kind::BinaryAccuracy { threshold } => mean(same_side(predicted, labels, threshold)),
        Kind::CategoricalAccuracy => mean(same_largest(predicted, labels)),
        Kind::TopK { k } => mean(among_largest(predicted, labels, k)),
        Kind::Auc(area) => curve::sums(&area, predicted, labels, weights),
        Kind::Precision(of)
        | Kind::Recall(of)
        | Kind::TruePositives(of)
        | Kind::TrueNegatives(of)
        | Kind::FalsePositives(of)
        | Kind::FalseNegatives(of) => confusion(of, predicted, labels, weights),
        Kind::FScore(score) => f_score(score, predicted, labels, weights),
        Kind::RootMeanSquaredError => {
            let losses = LossFunction::MeanSquaredError.of(predicted, labels);
            mean(losses.reshape([examples, 1]))
        }
        Kind::R2 => regression(predicted, labels, weights),
        Kind::CosineSimilarity => {
            let losses = LossFunction::CosineSimilarity.of(predicted, labels);
            mean(losses.neg().reshape([examples, 1]))
        }
        Kind::Loss(loss) => mean(loss.of(predicted, labels).reshape([examples, 1])),
    }
}

/// The weighted sum of the examples' values, and the sum of the weights.
fn mean(values: Tensor<2>, weights: Tensor<2>) -> Tensor<1> {
    let sum = (values * weights.clone()).sum();
    Tensor::cat(vec![sum, weights.sum()], 0)
}

/// 1 where the largest prediction is where the label is largest; of equal ones the first counts.
fn same_largest(predicted: Tensor<2>, labels: Tensor<2>) -> Tensor<2> {
    predicted.argmax(1).equal(labels.argmax(1)).float()
}

/// The mean of each example's answers that are on the label's side of a threshold.
fn same_side(predicted: Tensor<2>, labels: Tensor<2>, threshold: f64) -> Tensor<2> {
    let answers = predicted.greater_elem(threshold).float();
    let dtype = labels.dtype();
    answers.cast(dtype).equal(labels).float().mean_dim(1)
}

/// 1 where fewer than `k` predictions are larger than that of the label (Keras: `in_top_k`).
fn among_largest(predicted: Tensor<2>, labels: Tensor<2>, k: usize) -> Tensor<2> {
    let own = predicted.clone().gather(1, labels.argmax(1));
    let shape = predicted.shape();
    let is_finite = predicted.clone().sum_dim(1).is_finite();
    let larger = predicted.greater(own.expand(shape)).int().sum_dim(1);
    larger.lower_elem(k as i64).bool_and(is_finite).float()
}

fn complement(values: Tensor<2>) -> Tensor<2> {
    values.neg().add_scalar(1.0)
}

fn as_float(values: Tensor<2, Bool>, like: &Tensor<2>) -> Tensor<2> {
    values.float().cast(like.dtype())
}

/// True positives, false positives, false negatives and true negatives of all classes or of one.
fn confusion(
    of: Threshold,
    predicted: Tensor<2>,
    labels: Tensor<2>,
    weights: Tensor<2>,
) -> Tensor<1> {
    let column = |values: Tensor<2>| match of.class {
        // A class that is not there has no example.
        Some(class) if class < values.dims()[1] => values.narrow(1, class, 1),
        Some(_) => values.narrow(1, 0, 1).mul_scalar(0.0),
        None => values,
    };
    let (predicted, labels) = (column(predicted), column(labels));
    let yes = as_float(labels.clone().not_equal_elem(0), &labels);
    let answer = as_float(predicted.greater_elem(of.above), &labels);
    counts(answer, yes, weights, true)
}

/// The weighted counts of answers by the truth: of all columns together, or of each.
fn counts(answer: Tensor<2>, yes: Tensor<2>, weights: Tensor<2>, together: bool) -> Tensor<1> {
    let sum = |values: Tensor<2>| {
        let values = values * weights.clone();
        if together {
            values.sum()
        } else {
            values.sum_dim(0).flatten::<1>(0, 1)
        }
    };
    let (no_answer, no) = (complement(answer.clone()), complement(yes.clone()));
    let all = vec![
        sum(answer.clone() * yes.clone()),
        sum(answer * no.clone()),
        sum(no_answer.clone() * yes),
        sum(no_answer * no),
    ];
    Tensor::cat(all, 0)
}

fn f_score(score: Score, predicted: Tensor<2>, labels: Tensor<2>, weights: Tensor<2>) -> Tensor<1> {
    let answer = match score.threshold {
        Some(threshold) => predicted.greater_elem(threshold),
        None => {
            let largest = predicted.clone().max_dim(1).expand(predicted.shape());
            let is_answer = predicted.clone().abs().greater_elem(NO_ANSWER);
            predicted.greater_equal(largest).bool_and(is_answer)
        }
    };
    let answer = as_float(answer, &labels);
    counts(answer, labels, weights, score.average == Average::Micro)
}

/// Of each output: the labels, their squares, the squared differences, and the examples.
fn regression(predicted: Tensor<2>, labels: Tensor<2>, weights: Tensor<2>) -> Tensor<1> {
    let error = labels.clone() - predicted;
    let sum = |values: Tensor<2>| {
        let sums = (values * weights.clone()).sum_dim(0);
        sums.flatten::<1>(0, 1)
    };
    let all = vec![
        sum(labels.clone()),
        sum(labels.clone() * labels.clone()),
        sum(error.clone() * error),
        sum(labels.ones_like()),
    ];
    Tensor::cat(all, 0)
}
