//! How often predictions are right.

use burn::tensor::{Int, Tensor, TensorData};

use super::metric;
use super::sums::Sums;
use crate::{Error, Leaf, Result, VariableContext};

metric! {
    /// The share of examples whose largest score is at the label
    /// (Keras: `tf.keras.metrics.SparseCategoricalAccuracy`). Labels are class numbers.
    SparseCategoricalAccuracy {}, "sparse_categorical_accuracy", total => total.mean()
}

metric! {
    /// The share of examples whose largest score is where the one-hot label is largest
    /// (Keras: `tf.keras.metrics.CategoricalAccuracy`).
    CategoricalAccuracy {}, "categorical_accuracy", total => total.mean()
}

metric! {
    /// The share of values that are on the label's side of a threshold
    /// (Keras: `tf.keras.metrics.BinaryAccuracy`). Labels are 0 and 1.
    #[must_use]
    BinaryAccuracy { threshold: f64 = 0.5 }, "binary_accuracy", total => total.mean()
}

/// The updates of a metric that compares labels and scores of these types, as `$matches` does.
macro_rules! updates {
    (
        $(#[$meta:meta])*
        $type:ty, $self:ident => $matches:expr;
        [$($dimensions:tt)+] $labels:ty, $scores:ty
    ) => {
        impl $type {
            $(#[$meta])*
            pub fn update_state<$($dimensions)+>(
                &$self,
                context: &(impl VariableContext + ?Sized),
                labels: &$labels,
                scores: &$scores,
            ) -> Result<()> {
                $self.sums.compare(context, labels, scores, None, $matches)
            }

            /// [`update_state`](Self::update_state) with a weight for every example, or one for
            /// all.
            ///
            /// # Errors
            /// Also if the weights do not fit.
            pub fn update_state_weighted<$($dimensions)+>(
                &$self,
                context: &(impl VariableContext + ?Sized),
                labels: &$labels,
                scores: &$scores,
                mut weights: impl Leaf,
            ) -> Result<()> {
                $self.sums.compare(context, labels, scores, Some(&mut weights), $matches)
            }
        }
    };
}

updates! {
    /// Compares a batch: labels of shape `[batch, ...]` (or with a last dimension of 1)
    /// and scores (logits or probabilities) of shape `[batch, ..., classes]`.
    ///
    /// An empty batch counts nothing; of equal scores the first wins.
    ///
    /// # Errors
    /// [`Error::Shape`] if the shapes do not fit, [`Error::MixedStrategies`].
    SparseCategoricalAccuracy, self => sparse_matches;
    [const L: usize, const S: usize] Tensor<L, Int>, Tensor<S>
}

updates! {
    /// Compares a batch: one-hot labels (or probabilities) and scores, both of shape
    /// `[batch, ..., classes]`.
    ///
    /// # Errors
    /// [`Error::Shape`] if the shapes differ, [`Error::MixedStrategies`].
    CategoricalAccuracy, self => one_hot_matches;
    [const D: usize] Tensor<D>, Tensor<D>
}

updates! {
    /// Compares a batch: labels 0 or 1 and scores of the same shape.
    ///
    /// # Errors
    /// [`Error::Shape`] if the shapes differ, [`Error::MixedStrategies`].
    BinaryAccuracy, self => self.matches();
    [const D: usize] Tensor<D>, Tensor<D>
}

impl BinaryAccuracy {
    /// Scores above this count as 1: 0.5, the default, for probabilities, 0 for logits. It is
    /// rounded to the type of the scores, so that a score of 0.1 is not above a threshold of 0.1.
    pub fn threshold(mut self, threshold: f64) -> Self {
        self.threshold = threshold;
        self
    }

    fn matches(&self) -> impl Fn(&TensorData, &TensorData) -> Result<TensorData> + 'static {
        let threshold = self.threshold;
        move |labels, scores| side_matches(threshold, labels, scores)
    }
}

fn side_matches(threshold: f64, labels: &TensorData, scores: &TensorData) -> Result<TensorData> {
    same_shape(labels.shape(), scores.shape())?;
    // Keras compares in the scores' type: 0.1 as `f32` is above 0.1 as `f64`.
    let threshold = as_type_of(scores, TensorData::from([threshold]))?;
    let threshold = threshold.iter::<f64>().next().unwrap_or(f64::NAN);
    let labels = as_type_of(scores, labels.clone())?;
    let pairs = labels.iter::<f64>().zip(scores.iter::<f64>());
    let side = |score: f64| if score > threshold { 1.0 } else { 0.0 };
    let matches = pairs.map(|(label, score)| label == side(score));
    Ok(as_numbers(matches, scores.shape()))
}

/// The values, rounded to the type of the scores.
fn as_type_of(scores: &TensorData, values: TensorData) -> Result<TensorData> {
    values.try_cast(scores.dtype()).map_err(Error::internal)
}

fn sparse_matches(labels: &TensorData, scores: &TensorData) -> Result<TensorData> {
    let shape = leading(scores)?;
    let wanted = labels.shape();
    let squeezed = match wanted.split_last() {
        Some((1, front)) if wanted.len() == scores.rank() => front,
        _ => &wanted[..],
    };
    same_shape(squeezed, shape)?;
    let largest = argmax(scores);
    let matches = labels.iter::<i64>().zip(largest);
    let matches = matches.map(|(label, found)| usize::try_from(label) == Ok(found));
    Ok(as_numbers(matches, shape))
}

fn one_hot_matches(labels: &TensorData, scores: &TensorData) -> Result<TensorData> {
    same_shape(labels.shape(), scores.shape())?;
    let shape = leading(scores)?;
    let matches = argmax(labels).into_iter().zip(argmax(scores));
    let matches = matches.map(|(label, found)| label == found);
    Ok(as_numbers(matches, shape))
}

/// All dimensions but the classes.
fn leading(scores: &TensorData) -> Result<&[usize]> {
    match scores.shape().split_last() {
        Some((classes, leading)) if *classes > 0 => Ok(leading),
        _ => Err(Error::invalid("accuracy: the scores have no classes")),
    }
}

/// The position of the first largest value of every row; a NaN is never the largest.
fn argmax(scores: &TensorData) -> Vec<usize> {
    let classes = scores.shape().last().copied().unwrap_or(1).max(1);
    let scores: Vec<f64> = scores.iter::<f64>().collect();
    let row = |row: &[f64]| {
        let mut best = 0;
        for (index, score) in row.iter().enumerate() {
            if *score > row[best] || row[best].is_nan() {
                best = index;
            }
        }
        best
    };
    scores.chunks_exact(classes).map(row).collect()
}

fn as_numbers(matches: impl Iterator<Item = bool>, shape: &[usize]) -> TensorData {
    let matches = matches.map(|is_match| f32::from(u8::from(is_match)));
    TensorData::new(matches.collect::<Vec<_>>(), shape.to_vec())
}

fn same_shape(labels: &[usize], scores: &[usize]) -> Result<()> {
    let op = "accuracy: labels against scores";
    match labels == scores {
        true => Ok(()),
        false => Err(Error::shape(op, scores, labels)),
    }
}
