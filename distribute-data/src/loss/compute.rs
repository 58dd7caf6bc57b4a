//! The arithmetic of Keras' losses.

use burn::tensor::{Tensor, activation};

use super::function::LossFunction;

/// What a probability is kept away from 0 and 1 by (Keras: `backend.epsilon()`).
pub(super) const EPSILON: f64 = 1e-7;

/// What `LossFunction::of` gives, with the last axis kept as one element.
pub(super) fn compute<const D: usize>(
    loss: &LossFunction,
    predicted: Tensor<D>,
    targets: Tensor<D>,
) -> Tensor<D> {
    use LossFunction as L;
    let last = D - 1;
    let targets = targets.cast(predicted.dtype());
    match *loss {
        L::MeanSquaredError => square(predicted - targets).mean_dim(last),
        L::MeanAbsoluteError => (predicted - targets).abs().mean_dim(last),
        L::MeanAbsolutePercentageError => percentage(predicted, targets).mean_dim(last),
        L::MeanSquaredLogarithmicError => {
            square(logarithm(predicted) - logarithm(targets)).mean_dim(last)
        }
        L::Huber { delta } => huber(predicted - targets, delta).mean_dim(last),
        L::LogCosh => log_cosh(predicted - targets).mean_dim(last),
        L::Hinge => hinge(predicted, targets).mean_dim(last),
        L::SquaredHinge => square(hinge(predicted, targets)).mean_dim(last),
        L::CategoricalHinge => categorical_hinge(predicted, targets),
        L::KlDivergence => divergence(predicted, targets).sum_dim(last),
        L::Poisson => poisson(predicted, targets).mean_dim(last),
        L::CosineSimilarity => (normalized(targets) * normalized(predicted))
            .sum_dim(last)
            .neg(),
        L::BinaryCrossentropy {
            from_logits: logits,
            label_smoothing,
        } => {
            let targets = smoothed(targets, label_smoothing, 0.5);
            binary(predicted, targets, logits).mean_dim(last)
        }
        L::CategoricalCrossentropy {
            from_logits: logits,
            label_smoothing,
        } => categorical(predicted, smoothed_evenly(targets, label_smoothing), logits),
        L::SparseCategoricalCrossentropy {
            from_logits: logits,
        } => sparse(predicted, targets, logits),
        L::BinaryFocalCrossentropy {
            apply_class_balancing,
            alpha,
            gamma,
            from_logits,
            label_smoothing,
        } => {
            let targets = smoothed(targets, label_smoothing, 0.5);
            let terms = binary_focal(predicted, targets.clone(), from_logits, gamma);
            let alpha = apply_class_balancing.then_some(alpha);
            balanced(terms, targets, alpha).mean_dim(last)
        }
        L::CategoricalFocalCrossentropy {
            alpha,
            gamma,
            from_logits,
            label_smoothing,
        } => {
            let targets = smoothed_evenly(targets, label_smoothing);
            categorical_focal(predicted, targets, from_logits, gamma).mul_scalar(alpha)
        }
    }
}

fn square<const D: usize>(values: Tensor<D>) -> Tensor<D> {
    values.clone() * values
}

/// One minus the values.
fn complement<const D: usize>(values: Tensor<D>) -> Tensor<D> {
    values.neg().add_scalar(1.0)
}

fn percentage<const D: usize>(predicted: Tensor<D>, targets: Tensor<D>) -> Tensor<D> {
    let size = targets.clone().abs().clamp_min(EPSILON);
    ((targets - predicted) / size).abs().mul_scalar(100.0)
}

/// The logarithm of one more than a value that is not negative.
fn logarithm<const D: usize>(values: Tensor<D>) -> Tensor<D> {
    values.clamp_min(EPSILON).add_scalar(1.0).log()
}

/// Half the square up to `delta`, then a line.
fn huber<const D: usize>(error: Tensor<D>, delta: f64) -> Tensor<D> {
    let size = error.clone().abs();
    let is_line = size.clone().greater_elem(delta);
    let line = size.mul_scalar(delta).sub_scalar(0.5 * delta * delta);
    square(error).mul_scalar(0.5).mask_where(is_line, line)
}

fn log_cosh<const D: usize>(error: Tensor<D>) -> Tensor<D> {
    let terms = error.clone() + softplus(error.mul_scalar(-2.0));
    terms.sub_scalar(std::f64::consts::LN_2)
}

/// `ln(1 + exp(x))`: no `exp` of a positive number.
fn softplus<const D: usize>(values: Tensor<D>) -> Tensor<D> {
    let negative = values.clone().lower_elem(0);
    let positive_part = values.clone().mask_fill(negative.clone(), 0);
    let minus_absolute = values.clone().neg().mask_where(negative, values);
    positive_part + minus_absolute.exp().log1p()
}

/// `max(1 - target * prediction, 0)`. Targets that are all 0 or 1 become -1 and 1 without a wait
/// for the device.
fn hinge<const D: usize>(predicted: Tensor<D>, targets: Tensor<D>) -> Tensor<D> {
    let ones = targets.clone().equal_elem(1);
    let is_class = targets.clone().equal_elem(0).bool_or(ones);
    let all = is_class.all().unsqueeze::<D>().expand(targets.shape());
    let signed = targets.clone().mul_scalar(2.0).sub_scalar(1.0);
    let targets = targets.mask_where(all, signed);
    complement(targets * predicted).clamp_min(0.0)
}

fn categorical_hinge<const D: usize>(predicted: Tensor<D>, targets: Tensor<D>) -> Tensor<D> {
    let others = complement(targets.clone()) * predicted.clone();
    let own = (targets * predicted).sum_dim(D - 1);
    let margin = others.max_dim(D - 1) - own;
    margin.add_scalar(1.0).clamp_min(0.0)
}

fn divergence<const D: usize>(predicted: Tensor<D>, targets: Tensor<D>) -> Tensor<D> {
    let kept = |values: Tensor<D>| values.clamp(EPSILON, 1.0);
    let (targets, predicted) = (kept(targets), kept(predicted));
    targets.clone() * (targets / predicted).log()
}

fn poisson<const D: usize>(predicted: Tensor<D>, targets: Tensor<D>) -> Tensor<D> {
    let logarithm = predicted.clone().add_scalar(EPSILON).log();
    predicted - targets * logarithm
}

/// Rows of length 1; what is 0 stays.
fn normalized<const D: usize>(values: Tensor<D>) -> Tensor<D> {
    let length = square(values.clone()).sum_dim(D - 1).sqrt();
    values * length.recip().clamp_max(1.0 / EPSILON)
}

/// Targets of which a part is replaced by what all would be if they were alike.
fn smoothed<const D: usize>(targets: Tensor<D>, smoothing: f64, alike: f64) -> Tensor<D> {
    if smoothing == 0.0 {
        return targets;
    }
    let kept = targets.mul_scalar(1.0 - smoothing);
    kept.add_scalar(smoothing * alike)
}

fn smoothed_evenly<const D: usize>(targets: Tensor<D>, smoothing: f64) -> Tensor<D> {
    let alike = 1.0 / targets.dims()[D - 1].max(1) as f64;
    smoothed(targets, smoothing, alike)
}

/// A probability as Keras keeps it away from 0 and 1.
fn within<const D: usize>(probabilities: Tensor<D>) -> Tensor<D> {
    probabilities.clamp(EPSILON, 1.0 - EPSILON)
}

fn divided_by_sum<const D: usize>(values: Tensor<D>) -> Tensor<D> {
    let sum = values.clone().sum_dim(D - 1);
    values / sum
}

fn binary<const D: usize>(predicted: Tensor<D>, targets: Tensor<D>, logits: bool) -> Tensor<D> {
    if logits {
        return sigmoid_crossentropy(predicted, targets);
    }
    let kept = within(predicted);
    let others = complement(targets.clone()) * complement(kept.clone()).log();
    (targets * kept.log() + others).neg()
}

fn binary_focal<const D: usize>(
    predicted: Tensor<D>,
    targets: Tensor<D>,
    logits: bool,
    gamma: f64,
) -> Tensor<D> {
    let entropy = binary(predicted.clone(), targets.clone(), logits);
    let yes = if logits {
        activation::sigmoid(predicted)
    } else {
        predicted
    };
    let no = complement(targets.clone()) * complement(yes.clone());
    complement(targets * yes + no).powf_scalar(gamma) * entropy
}

/// Terms times `alpha` where the target is 1, and `1 - alpha` where it is 0.
fn balanced<const D: usize>(terms: Tensor<D>, targets: Tensor<D>, alpha: Option<f64>) -> Tensor<D> {
    let Some(alpha) = alpha else {
        return terms;
    };
    let others = complement(targets.clone()).mul_scalar(1.0 - alpha);
    (targets.mul_scalar(alpha) + others) * terms
}

fn categorical<const D: usize>(
    predicted: Tensor<D>,
    targets: Tensor<D>,
    logits: bool,
) -> Tensor<D> {
    let logarithms = if logits {
        activation::log_softmax(predicted, D - 1)
    } else {
        within(divided_by_sum(predicted)).log()
    };
    (targets * logarithms).sum_dim(D - 1).neg()
}

/// As [`categorical`], with the probabilities divided by their sum at the end.
fn sparse<const D: usize>(predicted: Tensor<D>, targets: Tensor<D>, logits: bool) -> Tensor<D> {
    let logarithms = if logits {
        predicted
    } else {
        within(predicted).log()
    };
    categorical(logarithms, targets, true)
}

fn categorical_focal<const D: usize>(
    predicted: Tensor<D>,
    targets: Tensor<D>,
    logits: bool,
    gamma: f64,
) -> Tensor<D> {
    let probabilities = if logits {
        activation::softmax(predicted, D - 1)
    } else {
        predicted
    };
    let kept = within(divided_by_sum(probabilities));
    let factor = complement(kept.clone()).powf_scalar(gamma);
    (targets * kept.log() * factor).sum_dim(D - 1).neg()
}

/// `max(x, 0) - x * z + ln(1 + exp(-|x|))`: no `exp` of a positive number, and the right
/// derivative at 0 (TensorFlow: `sigmoid_cross_entropy_with_logits`).
pub(super) fn sigmoid_crossentropy<const D: usize>(
    logits: Tensor<D>,
    labels: Tensor<D>,
) -> Tensor<D> {
    let negative = logits.clone().lower_elem(0);
    let positive_part = logits.clone().mask_fill(negative.clone(), 0);
    let minus_absolute = logits.clone().neg().mask_where(negative, logits.clone());
    positive_part - logits * labels + minus_absolute.exp().log1p()
}
