//! How several workers divide a dataset: TensorFlow's auto-shard policies.

use std::ops::Range;

use distribute_core::{Device, Result};

use crate::Dataset;

/// How a dataset is divided between workers (TensorFlow: `tf.data.experimental.AutoShardPolicy`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum AutoShardPolicy {
    /// [`File`](Self::File) if the dataset is read from files, else [`Data`](Self::Data).
    #[default]
    Auto,
    /// Worker `i` of `n` reads the files `i`, `i + n`, ...
    File,
    /// Every worker reads everything and keeps its parts of each global batch: worker `i` of `n`
    /// the parts `i`, `i + n`, ... where all have equally many replicas.
    Data,
    /// Every worker reads everything, and replica `r` of all gets part `r` of each global batch,
    /// whichever worker it is in. TensorFlow has no such policy.
    Replicas,
    /// Every worker reads everything and keeps it.
    Off,
    /// The dataset says itself that it is to be divided ([`ShardHint`]); one that does not is read
    /// as under [`Off`](Self::Off).
    Hint,
}

/// A dataset of which worker `i` of `n` reads the examples `i`, `i + n`, ..., as a stream of its
/// own (TensorFlow: `dataset.shard(SHARD_HINT, SHARD_HINT)`).
///
/// It needs the policy [`AutoShardPolicy::Hint`]; under any other one it is refused.
///
/// ```
/// use distribute_core::MirroredStrategy;
/// use distribute_data::{AutoShardPolicy, Batching, Digits, ShardHint, StrategyDataExt};
///
/// let strategy = MirroredStrategy::builder().replicas(2).build()?;
/// let batching = Batching::global(64).auto_shard(AutoShardPolicy::Hint);
/// let train = ShardHint::new(Digits::open()?.train()?);
/// let train = strategy.distribute_dataset(train, batching)?;
/// assert_eq!(train.batches_per_epoch(), 23); // 1438 examples, all of one worker
/// # Ok::<(), distribute_core::Error>(())
/// ```
#[derive(Debug, Clone)]
#[must_use]
pub struct ShardHint<D> {
    dataset: D,
}

impl<D: Dataset> ShardHint<D> {
    /// This dataset, to be divided example by example.
    pub fn new(dataset: D) -> Self {
        Self { dataset }
    }

    /// The dataset without the hint.
    pub fn into_inner(self) -> D {
        self.dataset
    }
}

impl<D: Dataset> Dataset for ShardHint<D> {
    type Batch = D::Batch;

    fn len(&self) -> usize {
        self.dataset.len()
    }

    fn files(&self) -> Option<Vec<Range<usize>>> {
        self.dataset.files()
    }

    fn has_shard_hint(&self) -> bool {
        true
    }

    fn batch(&self, indices: &[usize], device: &Device) -> Result<Self::Batch> {
        self.dataset.batch(indices, device)
    }

    fn batch_in_epoch(
        &self,
        epoch: usize,
        indices: &[usize],
        device: &Device,
    ) -> Result<Self::Batch> {
        self.dataset.batch_in_epoch(epoch, indices, device)
    }

    fn is_weighted(&self) -> bool {
        self.dataset.is_weighted()
    }

    fn padded_batch(
        &self,
        epoch: usize,
        indices: &[usize],
        examples: usize,
        device: &Device,
    ) -> Result<Self::Batch> {
        self.dataset.padded_batch(epoch, indices, examples, device)
    }
}
