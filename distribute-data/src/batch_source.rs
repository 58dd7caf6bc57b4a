//! Distributed data sets as what `fit`, `evaluate` and `predict` of `distribute-core` read from.

use distribute_core::{BatchSource, Device, InputContext, Nest, PerReplica, Result};

use crate::{Dataset, DistributedDataset, DistributedFunction, Position};

impl<D: Dataset<Batch: Nest>> BatchSource for DistributedDataset<D> {
    type Batch = D::Batch;

    fn batches_per_epoch(&self) -> Option<usize> {
        Some(DistributedDataset::batches_per_epoch(self))
    }

    fn global_batch_size(&self) -> Option<usize> {
        Some(DistributedDataset::global_batch_size(self))
    }

    fn parts(&self) -> Option<Vec<usize>> {
        Some(self.replicas.iter().map(|(part, _)| *part).collect())
    }

    fn padding(&self, batch: usize) -> Option<Vec<usize>> {
        let rows = self.rows()?;
        let parts = DistributedDataset::parts(self, batch).into_iter();
        Some(parts.map(|part| rows - part.len()).collect())
    }

    fn epoch(
        &self,
        epoch: usize,
        skip_batches: usize,
    ) -> Result<Box<dyn Iterator<Item = Result<PerReplica<D::Batch>>> + '_>> {
        Ok(Box::new(self.epoch_from(epoch, skip_batches)))
    }

    fn batch(&self, epoch: usize, batch: usize) -> Result<Option<PerReplica<D::Batch>>> {
        self.batch_at(Position { epoch, batch })
    }

    fn replica_batch(
        &self,
        epoch: usize,
        batch: usize,
        replica: usize,
        device: &Device,
    ) -> Result<Option<D::Batch>> {
        self.part_of(Position { epoch, batch }, replica, device)
    }
}

/// The function is called for every epoch and must make the same batches each time, or the epochs
/// of a run that is resumed differ from the epochs of the interrupted run. Batches have no fixed
/// size: divide losses by the examples of all replicas, or by a constant of your own.
impl<F, I, B> BatchSource for DistributedFunction<F>
where
    F: Fn(InputContext) -> Result<I>,
    I: Iterator<Item = Result<B>> + Send + 'static,
    B: Nest + Clone + Send + 'static,
{
    type Batch = B;

    fn batches_per_epoch(&self) -> Option<usize> {
        None
    }

    /// Workers whose pipelines have ended get empty batches.
    fn ends_together(&self) -> bool {
        true
    }

    fn global_batch_size(&self) -> Option<usize> {
        None
    }

    fn epoch(
        &self,
        _epoch: usize,
        skip_batches: usize,
    ) -> Result<Box<dyn Iterator<Item = Result<PerReplica<B>>> + '_>> {
        let steps = DistributedFunction::epoch(self)?;
        Ok(Box::new(steps.without_first(skip_batches)?))
    }
}

/// Each epoch is the next pass over the loader, whatever its number: a shuffled loader begins again
/// with its first order when a run is resumed.
#[cfg(feature = "dataset")]
impl<O: Nest + Clone + Send + 'static> BatchSource for crate::DistributedDataLoader<O> {
    type Batch = O;

    fn batches_per_epoch(&self) -> Option<usize> {
        None
    }

    /// Workers whose examples have ended get empty batches.
    fn ends_together(&self) -> bool {
        true
    }

    fn global_batch_size(&self) -> Option<usize> {
        None
    }

    fn epoch(
        &self,
        _epoch: usize,
        skip_batches: usize,
    ) -> Result<Box<dyn Iterator<Item = Result<PerReplica<O>>> + '_>> {
        Ok(Box::new(self.iter().without_first(skip_batches)?))
    }
}
