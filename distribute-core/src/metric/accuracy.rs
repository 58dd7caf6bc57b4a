//! How often predictions are right.

use burn::tensor::{Bool, Int, Tensor, TensorData};

use super::{Metric, MetricValues};
use crate::{Error, Result};

/// The share of examples whose largest score is at the label
/// (Keras: `tf.keras.metrics.SparseCategoricalAccuracy`).
///
/// Labels are class numbers of shape `[n, ...]` (or with a last dimension of 1), scores are logits
/// or probabilities of shape `[n, ..., classes]`. Of equal scores the first wins; a NaN is never
/// the largest.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SparseCategoricalAccuracy;

impl<const S: usize, const L: usize> Metric<Tensor<S>, Tensor<L, Int>>
    for SparseCategoricalAccuracy
{
    /// # Errors
    /// [`Error::Shape`] if the shapes do not fit.
    fn values(&self, scores: &Tensor<S>, labels: &Tensor<L, Int>) -> Result<MetricValues> {
        let (all, wanted) = (scores.dims(), labels.dims());
        let shape = leading(&all)?;
        let squeezed = match wanted.split_last() {
            Some((1, front)) if L == S => front,
            _ => &wanted[..],
        };
        same_shape(squeezed, shape)?;
        let found = largest(scores);
        let labels = labels.clone().reshape(found.dims()).cast(found.dtype());
        Ok(MetricValues::new(found.equal(labels).float(), shape))
    }
}

/// The share of examples whose largest score is where the one-hot label is largest
/// (Keras: `tf.keras.metrics.CategoricalAccuracy`).
///
/// Labels (floats, integers or booleans) and scores have the shape `[n, ..., classes]`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CategoricalAccuracy;

impl CategoricalAccuracy {
    fn of<const D: usize>(scores: &Tensor<D>, labels: &Tensor<D>) -> Result<MetricValues> {
        let all = scores.dims();
        same_shape(&labels.dims(), &all)?;
        let shape = leading(&all)?;
        let values = largest(scores).equal(largest(labels)).float();
        Ok(MetricValues::new(values, shape))
    }
}

/// The share of values that are on the label's side of a threshold
/// (Keras: `tf.keras.metrics.BinaryAccuracy`).
///
/// Labels (floats, integers or booleans) are 0 or 1, scores have their shape.
#[derive(Debug, Clone, Copy, PartialEq)]
#[must_use]
pub struct BinaryAccuracy {
    threshold: f64,
}

impl Default for BinaryAccuracy {
    fn default() -> Self {
        Self { threshold: 0.5 }
    }
}

impl BinaryAccuracy {
    /// Scores above this count as 1: 0.5, the default, for probabilities, 0 for logits. It is
    /// rounded to the type of the scores, so that a score of 0.1 is not above a threshold of 0.1.
    pub fn threshold(mut self, threshold: f64) -> Self {
        self.threshold = threshold;
        self
    }

    fn of<const D: usize>(self, scores: &Tensor<D>, labels: &Tensor<D>) -> Result<MetricValues> {
        same_shape(&labels.dims(), &scores.dims())?;
        let dtype = scores.dtype();
        // Keras compares in the scores' type: 0.1 as `f32` is above 0.1 as `f64`.
        let threshold = TensorData::from([self.threshold]).try_cast(dtype);
        let threshold = threshold.map_err(Error::internal)?;
        let threshold = threshold.iter::<f64>().next().unwrap_or(f64::NAN);
        let side = scores.clone().greater_elem(threshold).float().cast(dtype);
        Ok(side.equal(labels.clone().cast(dtype)).float().into())
    }
}

/// Metrics that compare labels of these kinds as floats.
macro_rules! of_floats {
    ($($kind:ty, $labels:ident => $floats:expr);+ $(;)?) => {$(
        impl<const D: usize> Metric<Tensor<D>, Tensor<D, $kind>> for CategoricalAccuracy {
            /// # Errors
            /// [`Error::Shape`] if the shapes differ.
            fn values(
                &self,
                scores: &Tensor<D>,
                $labels: &Tensor<D, $kind>,
            ) -> Result<MetricValues> {
                Self::of(scores, &$floats)
            }
        }

        impl<const D: usize> Metric<Tensor<D>, Tensor<D, $kind>> for BinaryAccuracy {
            /// # Errors
            /// [`Error::Shape`] if the shapes differ.
            fn values(
                &self,
                scores: &Tensor<D>,
                $labels: &Tensor<D, $kind>,
            ) -> Result<MetricValues> {
                self.of(scores, &$floats)
            }
        }
    )+};
}

of_floats! {
    burn::tensor::Float, labels => labels.clone();
    Int, labels => labels.clone().float();
    Bool, labels => labels.clone().float();
}

/// All dimensions but the classes.
fn leading(scores: &[usize]) -> Result<&[usize]> {
    match scores.split_last() {
        Some((classes, leading)) if *classes > 0 => Ok(leading),
        _ => Err(Error::invalid("accuracy: the scores have no classes")),
    }
}

/// The position of the first largest value of every row; a NaN is never the largest.
fn largest<const D: usize>(scores: &Tensor<D>) -> Tensor<1, Int> {
    let numbers = scores
        .clone()
        .mask_fill(scores.clone().is_nan(), f32::NEG_INFINITY);
    let rows = numbers.dims()[..D - 1].iter().product::<usize>();
    numbers.argmax(D - 1).reshape([rows])
}

fn same_shape(labels: &[usize], scores: &[usize]) -> Result<()> {
    if labels == scores {
        return Ok(());
    }
    Err(Error::shape(
        "accuracy: labels against scores",
        scores,
        labels,
    ))
}
