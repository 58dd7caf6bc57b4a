//! Areas under curves (Keras: `AUC` with evenly spaced thresholds).

use burn::tensor::{Int, Tensor};

use super::kind::{Area, Curve};

/// For each threshold the true and then the false positives: of all columns together, or of one
/// column after the other.
///
/// A prediction is above threshold `i` if its bucket is `i` or more, which Keras' arithmetic
/// decides: `ceil(prediction * (thresholds - 1)) - 1`.
pub(super) fn sums(
    area: &Area,
    predicted: Tensor<2>,
    labels: Tensor<2>,
    weights: Tensor<2>,
) -> Tensor<1> {
    let [examples, outputs] = predicted.dims();
    let weights = weights.expand([examples, outputs]);
    let columns = if area.multi_label { outputs } else { 1 };
    let all = |values: Tensor<2>| {
        let values = if area.multi_label {
            values.transpose()
        } else {
            values
        };
        values.reshape([columns, examples * outputs / columns.max(1), 1])
    };
    let last = area.thresholds.saturating_sub(1);
    let buckets = predicted.clamp(0.0, 1.0).mul_scalar(last as f64).ceil();
    let buckets = all(buckets.sub_scalar(1.0).clamp_min(0.0));
    let yes = labels
        .clone()
        .not_equal_elem(0)
        .float()
        .cast(labels.dtype());
    let no = yes.clone().neg().add_scalar(1.0);
    let (yes, no) = (all(yes * weights.clone()), all(no * weights));
    let thresholds = numbers(area.thresholds, &labels).reshape([1, 1, area.thresholds]);
    let shape = [columns, buckets.dims()[1], area.thresholds];
    let above = buckets
        .expand(shape)
        .greater_equal(thresholds.expand(shape));
    let above = above.float().cast(labels.dtype());
    let count = |values: Tensor<3>| (values.expand(shape) * above.clone()).sum_dim(1);
    let counts = Tensor::cat(vec![count(yes), count(no)], 1);
    counts.reshape([columns * 2 * area.thresholds])
}

/// The area, or the mean of the areas of all columns.
pub(super) fn area(area: &Area, sums: &[f64]) -> f64 {
    let columns = sums.chunks_exact(2 * area.thresholds);
    let count = columns.len().max(1);
    let areas = columns.map(|column| {
        let (yes, no) = column.split_at(area.thresholds);
        match area.curve {
            Curve::Roc => roc(yes, no),
            Curve::Pr => precision_recall(yes, no),
        }
    });
    areas.sum::<f64>() / count as f64
}

/// 0 where nothing is divided.
pub(super) fn divided(value: f64, by: f64) -> f64 {
    if by == 0.0 { 0.0 } else { value / by }
}

/// The trapezoids between true positives over all and false positives over all.
fn roc(yes: &[f64], no: &[f64]) -> f64 {
    let (all_yes, all_no) = (yes[0], no[0]);
    let pairs = yes.windows(2).zip(no.windows(2));
    let parts = pairs.map(|(yes, no)| {
        let width = divided(no[0], all_no) - divided(no[1], all_no);
        width * (divided(yes[0], all_yes) + divided(yes[1], all_yes)) / 2.0
    });
    parts.sum()
}

/// Between two points the precision is interpolated as Davis and Goadrich do ("The relationship
/// between Precision-Recall and ROC curves", 2006).
fn precision_recall(yes: &[f64], no: &[f64]) -> f64 {
    let all_yes = yes[0];
    let pairs = yes.windows(2).zip(no.windows(2));
    let parts = pairs.map(|(yes, no)| {
        let (first, second) = (yes[0] + no[0], yes[1] + no[1]);
        let more = yes[0] - yes[1];
        let slope = divided(more, (first - second).max(0.0));
        let intercept = yes[1] - slope * second;
        let ratio = if first > 0.0 && second > 0.0 {
            first / second
        } else {
            1.0
        };
        divided(slope * (more + intercept * ratio.ln()), all_yes)
    });
    parts.sum()
}

/// The numbers from 0 on, as floats like those of `like`.
fn numbers(count: usize, like: &Tensor<2>) -> Tensor<1> {
    let numbers = Tensor::<1, Int>::arange(0..count as i64, &like.device());
    numbers.float().cast(like.dtype())
}
