//! A source of a pipeline as a dataset.

use std::fmt;

use distribute_core::{Device, Nest, Result};
use distribute_pipeline::Source;

use crate::Dataset;

/// The elements of a [`Source`] of `distribute-pipeline` as the examples of a dataset, and a
/// function that makes a batch of some of them on a device. Only the examples of the own replicas
/// are read, by their indices, on the threads of [`Batching`](crate::Batching): a run that is
/// resumed reads nothing again, with any number of workers. Every epoch of the dataset is an epoch
/// of the source, with its own order and random numbers.
///
/// ```
/// use distribute_core::prelude::*;
/// use distribute_data::prelude::*;
/// use distribute_pipeline::{Source, range};
///
/// let scaled = range(0..10).map(|x| x as f32 / 10.0).cache().shuffle(42);
/// let data = SourceDataset::new(scaled, |rows: &[f32], device: &Device| {
///     Ok(Tensor::<1>::from_floats(rows, device))
/// });
/// let strategy = MirroredStrategy::builder().replicas(2).build()?;
/// let train = strategy.distribute_dataset(data, Batching::global(4))?;
/// let mut sum = 0.0;
/// for batch in &train {
///     let sums = strategy.run(batch?, |_, rows| Ok(rows.sum()))?;
///     sum += strategy.reduce(ReduceOp::Sum, sums)?.into_scalar::<f32>();
/// }
/// assert!((sum - 4.5).abs() < 1e-6);
/// # Ok::<(), distribute_core::Error>(())
/// ```
#[derive(Clone)]
#[must_use]
pub struct SourceDataset<S, F> {
    source: S,
    make: F,
}

impl<S, F> SourceDataset<S, F> {
    /// `make` gets elements of `source` and the device of the batch.
    pub fn new<B>(source: S, make: F) -> Self
    where
        S: Source + 'static,
        F: Fn(&[S::Item], &Device) -> Result<B> + Send + Sync + 'static,
        B: Nest + Send + 'static,
    {
        Self { source, make }
    }

    /// The source.
    pub fn source(&self) -> &S {
        &self.source
    }
}

impl<S, F, B> Dataset for SourceDataset<S, F>
where
    S: Source + 'static,
    F: Fn(&[S::Item], &Device) -> Result<B> + Send + Sync + 'static,
    B: Nest + Send + 'static,
{
    type Batch = B;

    /// A source without end has as many as can be counted: read a part of it with
    /// [`Batching::steps_per_epoch`](crate::Batching::steps_per_epoch) and without a shuffle of the
    /// batching.
    fn len(&self) -> usize {
        usize::try_from(self.source.len()).unwrap_or(usize::MAX)
    }

    fn batch(&self, indices: &[usize], device: &Device) -> Result<B> {
        self.batch_in_epoch(0, indices, device)
    }

    fn batch_in_epoch(&self, epoch: usize, indices: &[usize], device: &Device) -> Result<B> {
        let items = indices
            .iter()
            .map(|index| self.source.get_in_epoch(epoch as u64, *index as u64));
        let items = items.collect::<Result<Vec<_>, _>>()?;
        (self.make)(&items, device)
    }
}

impl<S, F> fmt::Debug for SourceDataset<S, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SourceDataset").finish_non_exhaustive()
    }
}
