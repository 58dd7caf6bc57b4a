//! Examples as batches for a model.

use burn::tensor::Int;
use distribute_core::{Device, Nest, Result, Tensor, TensorData};
use distribute_data::{Dataset, Weighted};
use distribute_readers::Examples;

/// One replica's batch: `[n, values]` with the targets, and 1 for each example, 0 for what only
/// fills the batch up.
pub type Batch = <Data as Dataset>::Batch;

/// What is trained on and measured.
pub type Data = Weighted<Classified>;

/// Examples as batches for a model, which gives them their shape.
#[derive(Debug, Clone)]
pub struct Classified {
    examples: Examples,
    values: usize,
}

impl Classified {
    /// These examples with weights.
    pub fn weighted(examples: Examples) -> Data {
        let values = examples.feature_shape().iter().product();
        Weighted::new(Self { examples, values })
    }
}

/// What the model is to answer on a batch, and how much each example counts in the loss.
#[derive(Debug, Clone, Nest)]
pub struct Targets {
    /// The answers.
    pub answers: Answers,
    /// The weights `[n]` of the examples (Keras: `sample_weight`), if they have some.
    pub weights: Option<Tensor<1>>,
}

/// What the model is to answer.
#[derive(Debug, Clone, Nest)]
pub enum Answers {
    /// The class of each example, `[n]`.
    Classes(Tensor<1, Int>),
    /// The values of each example, `[n, outputs]`.
    Values(Tensor<2>),
}

impl Dataset for Classified {
    type Batch = (Tensor<2>, Targets);

    fn len(&self) -> usize {
        self.examples.len()
    }

    fn batch(&self, indices: &[usize], device: &Device) -> Result<Self::Batch> {
        let count = indices.len();
        let values = self.examples.features_f32(indices)?;
        let values = TensorData::new(values, [count, self.values]);
        let weights = if self.examples.is_weighted() {
            let weights = TensorData::new(self.examples.weights_f32(indices)?, [count]);
            Some(Tensor::from_data(weights, device))
        } else {
            None
        };
        let targets = Targets {
            answers: self.answers(indices, device)?,
            weights,
        };
        Ok((Tensor::from_data(values, device), targets))
    }
}

impl Classified {
    fn answers(&self, indices: &[usize], device: &Device) -> Result<Answers> {
        let count = indices.len();
        if self.examples.is_labelled() && self.examples.classes().is_none() {
            let values = self.examples.labels_f32(indices)?;
            let width: usize = self.examples.label_shape().iter().product();
            let values = TensorData::new(values, [count, width]);
            return Ok(Answers::Values(Tensor::from_data(values, device)));
        }
        let labels = if self.examples.is_labelled() {
            self.examples.labels_i64(indices)?
        } else {
            // Nothing looks at them.
            vec![0; count]
        };
        let labels = TensorData::new(labels, [count]);
        Ok(Answers::Classes(Tensor::from_data(labels, device)))
    }
}

/// Replicas' batches are never larger than this by default.
const MAX_BATCH_SIZE: usize = 64;
/// The least number of steps of an epoch by default, so that small data sets train well too.
const MIN_STEPS: usize = 20;

/// How many examples a replica takes in a step: the largest power of two up to 64 that gives an
/// epoch at least 20 steps.
pub fn default_batch_size(examples: usize, replicas: usize) -> usize {
    let most = (examples / (MIN_STEPS * replicas.max(1))).clamp(1, MAX_BATCH_SIZE);
    1 << most.ilog2()
}

#[cfg(test)]
mod tests {
    use super::default_batch_size;

    #[test]
    fn the_default_batch_leaves_enough_steps() {
        assert_eq!(default_batch_size(1_438, 2), 32);
        assert_eq!(default_batch_size(1_438, 64), 1);
        assert_eq!(default_batch_size(60_000, 2), 64);
        assert_eq!(default_batch_size(5, 2), 1);
    }
}
