//! What can be distributed: [`Dataset`].

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use distribute_core::{Device, Error, Nest, Result};

/// Examples that can be read in any order, and the batches made of them.
///
/// The distribution code decides which examples each replica gets and calls
/// [`batch`](Self::batch) with their indices and the replica's device, on a background thread.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no dataset whose batches can be cut over replicas",
    label = "not a `Dataset` of `distribute`",
    note = "of a `DataLoader` of burn, hand over the items and the batcher instead: \
            `FnDataset::new(items.len(), move |indices, device| ..)`, which calls \
            `batcher.batch` with the items of `indices`; or hand over the loader to \
            `distribute_data_loader(&*loader)` (feature `dataset`)",
    note = "a stream that makes its own batches is for `distribute_datasets_from_function`"
)]
pub trait Dataset: Send + Sync + 'static {
    /// What one replica's step receives, for example `(Tensor<4>, Tensor<1, Int>)`, a struct of
    /// your own with `#[derive(Nest)]`, or one of another crate in a
    /// [`NestWith`](distribute_core::NestWith).
    type Batch: Nest + Send + 'static;

    /// The number of examples.
    fn len(&self) -> usize;

    /// Whether there are no examples.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Which examples each file holds, for a dataset that is read from several files: the
    /// auto-shard policies FILE and AUTO give each worker files of its own then.
    fn files(&self) -> Option<Vec<Range<usize>>> {
        None
    }

    /// Whether the workers are to take every n-th example each, which needs the auto-shard policy
    /// HINT. They are not by default; [`ShardHint`](crate::ShardHint) is a dataset that says so.
    fn has_shard_hint(&self) -> bool {
        false
    }

    /// The examples `indices`, in that order, as tensors on `device`.
    ///
    /// At the end of an epoch some replicas may get no examples. Their batch is made from that of
    /// one example ([`Nest::remove_example`]), so the list is empty only if the dataset is.
    ///
    /// # Errors
    /// Whatever keeps the examples from being read; use `Error::input` for errors of your own.
    fn batch(&self, indices: &[usize], device: &Device) -> Result<Self::Batch>;

    /// As [`batch`](Self::batch), in an epoch: for datasets whose examples differ from epoch to
    /// epoch (random augmentations, [`SourceDataset`](crate::SourceDataset)). By default all epochs
    /// have the same examples.
    ///
    /// # Errors
    /// The errors of `batch`.
    fn batch_in_epoch(
        &self,
        epoch: usize,
        indices: &[usize],
        device: &Device,
    ) -> Result<Self::Batch> {
        let _ = epoch;
        self.batch(indices, device)
    }

    /// Whether batches say how much each example counts, which [`Batching::pad_remainder`] needs.
    /// They do not by default; [`Weighted`] is a dataset that does.
    ///
    /// [`Batching::pad_remainder`]: crate::Batching::pad_remainder
    /// [`Weighted`]: crate::Weighted
    fn is_weighted(&self) -> bool {
        false
    }

    /// As [`batch_in_epoch`](Self::batch_in_epoch), of `indices` of which only the first `examples`
    /// count: what is behind them fills the batch up, and the batch says that it weighs nothing.
    ///
    /// Called only if [`is_weighted`](Self::is_weighted), for every batch under
    /// [`Batching::pad_remainder`](crate::Batching::pad_remainder).
    ///
    /// # Errors
    /// The errors of `batch`; by default an error which says that the batches carry no weights.
    fn padded_batch(
        &self,
        epoch: usize,
        indices: &[usize],
        examples: usize,
        device: &Device,
    ) -> Result<Self::Batch> {
        let _ = (epoch, indices, examples, device);
        Err(no_weights())
    }
}

/// A batch can be filled up only if it says so.
pub(crate) fn no_weights() -> Error {
    Error::invalid(
        "pad_remainder fills batches up with examples that weigh nothing, but the batches of this \
         dataset carry no weights; distribute `Weighted::new(dataset)`, whose batches are \
         `(batch, weights)`",
    )
}

impl<D: Dataset + ?Sized> Dataset for Arc<D> {
    type Batch = D::Batch;

    fn len(&self) -> usize {
        (**self).len()
    }

    fn files(&self) -> Option<Vec<Range<usize>>> {
        (**self).files()
    }

    fn has_shard_hint(&self) -> bool {
        (**self).has_shard_hint()
    }

    fn batch(&self, indices: &[usize], device: &Device) -> Result<Self::Batch> {
        (**self).batch(indices, device)
    }

    fn batch_in_epoch(
        &self,
        epoch: usize,
        indices: &[usize],
        device: &Device,
    ) -> Result<Self::Batch> {
        (**self).batch_in_epoch(epoch, indices, device)
    }

    fn is_weighted(&self) -> bool {
        (**self).is_weighted()
    }

    fn padded_batch(
        &self,
        epoch: usize,
        indices: &[usize],
        examples: usize,
        device: &Device,
    ) -> Result<Self::Batch> {
        (**self).padded_batch(epoch, indices, examples, device)
    }
}

/// A dataset made of a length and a closure: the way to your own files, generators, or burn's
/// `Dataset` and `Batcher`.
///
/// ```
/// use distribute_core::{Device, Tensor, TensorData};
/// use distribute_data::{Dataset, FnDataset};
///
/// let squares = FnDataset::new(100, |indices: &[usize], device: &Device| {
///     let values: Vec<f32> = indices.iter().map(|&i| (i * i) as f32).collect();
///     Ok(Tensor::<1>::from_data(TensorData::new(values, [indices.len()]), device))
/// });
/// let batch = squares.batch(&[3, 4], &Device::flex())?;
/// assert_eq!(batch.into_data().try_to_vec::<f32>().unwrap(), [9.0, 16.0]);
/// # Ok::<(), distribute_core::Error>(())
/// ```
#[derive(Clone)]
#[must_use]
pub struct FnDataset<F> {
    len: usize,
    batch: F,
}

impl<F> FnDataset<F> {
    /// `len` examples; `batch` is called as [`Dataset::batch`] is.
    pub fn new<B>(len: usize, batch: F) -> Self
    where
        F: Fn(&[usize], &Device) -> Result<B> + Send + Sync + 'static,
        B: Nest + Send + 'static,
    {
        Self { len, batch }
    }
}

impl<F, B> Dataset for FnDataset<F>
where
    F: Fn(&[usize], &Device) -> Result<B> + Send + Sync + 'static,
    B: Nest + Send + 'static,
{
    type Batch = B;

    fn len(&self) -> usize {
        self.len
    }

    fn batch(&self, indices: &[usize], device: &Device) -> Result<B> {
        (self.batch)(indices, device)
    }
}

impl<F> fmt::Debug for FnDataset<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FnDataset")
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}
