//! Batches that say how much each example counts: [`Weighted`].

use std::ops::Range;

use burn::tensor::Tensor;
use distribute_core::{Device, Result, TensorData};

use crate::Dataset;

/// Another dataset whose batches are `(batch, weights)`: weights of `[n]` in `f32`, 1 for every
/// example and 0 for what [`Batching::pad_remainder`] fills batches up with.
///
/// With the weights as `sample_weight` of a loss and of metrics, and the *constant* global batch
/// size as the divisor, a padded batch gives the numbers of the short one. The same step serves
/// batches that are not padded, whose weights are all 1.
///
/// ```
/// use distribute_core::{MirroredStrategy, ReduceOp, StrategyExt};
/// use distribute_data::{Batching, Digits, StrategyDataExt, Weighted};
///
/// let strategy = MirroredStrategy::builder().replicas(2).build()?;
/// let test = Weighted::new(Digits::open()?.test()?); // 359 examples
/// let batching = Batching::global(64).pad_remainder(true);
/// let test = strategy.distribute_dataset(test, batching)?;
/// let mut examples = 0.0;
/// for batch in test.epoch(0) {
///     let counts = strategy.run(batch?, |_ctx, ((images, _labels), weights)| {
///         assert_eq!(images.dims()[0], 32);
///         Ok(weights.sum())
///     })?;
///     examples += strategy.reduce(ReduceOp::Sum, counts)?.into_scalar::<f32>();
/// }
/// assert_eq!(examples, 359.0);
/// # Ok::<(), distribute_core::Error>(())
/// ```
///
/// [`Batching::pad_remainder`]: crate::Batching::pad_remainder
#[derive(Debug, Clone)]
#[must_use]
pub struct Weighted<D> {
    dataset: D,
}

impl<D: Dataset> Weighted<D> {
    /// This dataset with weights.
    pub fn new(dataset: D) -> Self {
        Self { dataset }
    }

    /// The dataset without them.
    pub fn into_inner(self) -> D {
        self.dataset
    }
}

impl<D: Dataset> Dataset for Weighted<D> {
    type Batch = (D::Batch, Tensor<1>);

    fn len(&self) -> usize {
        self.dataset.len()
    }

    fn files(&self) -> Option<Vec<Range<usize>>> {
        self.dataset.files()
    }

    fn has_shard_hint(&self) -> bool {
        self.dataset.has_shard_hint()
    }

    fn batch(&self, indices: &[usize], device: &Device) -> Result<Self::Batch> {
        self.batch_in_epoch(0, indices, device)
    }

    fn batch_in_epoch(
        &self,
        epoch: usize,
        indices: &[usize],
        device: &Device,
    ) -> Result<Self::Batch> {
        self.padded_batch(epoch, indices, indices.len(), device)
    }

    fn is_weighted(&self) -> bool {
        true
    }

    fn padded_batch(
        &self,
        epoch: usize,
        indices: &[usize],
        examples: usize,
        device: &Device,
    ) -> Result<Self::Batch> {
        let mut weights = vec![1.0_f32; examples.min(indices.len())];
        weights.resize(indices.len(), 0.0);
        let weights = TensorData::new(weights, [indices.len()]);
        Ok((
            self.dataset.batch_in_epoch(epoch, indices, device)?,
            Tensor::from_data(weights, device),
        ))
    }
}
