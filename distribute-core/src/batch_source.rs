//! What a training loop reads: global batches, an epoch after the other.

use std::sync::Arc;

use crate::{Device, Nest, PerReplica, Result};

/// The global batches of an epoch, one after the other.
pub type Batches<'a, B> = Box<dyn Iterator<Item = Result<PerReplica<B>>> + 'a>;

/// Where a source is that is read in one order only: a stream. A checkpoint keeps it, so that a run
/// that is resumed reads nothing again.
pub trait SourceState: Send + Sync {
    /// The state behind the first `batches` batches of an epoch; `None` if the source is elsewhere,
    /// and the batches before must be read again.
    ///
    /// # Errors
    /// If the state cannot be written: it is too large, for example.
    fn save(&self, epoch: usize, batches: usize) -> Result<Option<Vec<u8>>>;

    /// Goes where [`save`](Self::save) was called: the next call of [`BatchSource::epoch`] with
    /// these numbers goes on from there.
    ///
    /// # Errors
    /// If the state is of another source.
    fn restore(&self, epoch: usize, batches: usize, state: &[u8]) -> Result<()>;
}

/// The source of the global batches that a training loop reads: `Fit`, `evaluate` and `predict` of
/// `distribute-fit`. The distributed data set of `distribute-data` is one.
///
/// Every item holds one batch per local replica, in replica order, on the replica's device. A
/// replica's batch may be empty (zero examples) when the last global batch is short.
pub trait BatchSource {
    /// What one replica's step receives: usually a tuple of tensors.
    type Batch: Nest + Send;

    /// The number of global batches of an epoch, if known: for progress bars.
    fn batches_per_epoch(&self) -> Option<usize>;

    /// Whether the epochs of all workers have equally many batches, as they must. By default that
    /// is believed of a source that knows the number, which `Fit` compares when a run begins; of
    /// others the workers tell each other before every batch, and a source that gives one worker
    /// more batches than another is an error on all of them, not a wait.
    fn ends_together(&self) -> bool {
        self.batches_per_epoch().is_some()
    }

    /// The examples of a full global batch, over all replicas: what losses are divided by. `None`
    /// if the batches have no fixed size; every batch then counts by its examples.
    fn global_batch_size(&self) -> Option<usize>;

    /// A batch of this source, with the size of its global batch.
    fn of_global_batch(&self, batch: PerReplica<Self::Batch>) -> PerReplica<Self::Batch> {
        let known = batch.global_batch_size();
        batch.of_global_batch(self.global_batch_size().or(known))
    }

    /// Which part of every global batch each local replica reads, in replica order, counted in the
    /// order of the source; by default the replicas' ids. Decides the order of `predict`'s rows.
    fn parts(&self) -> Option<Vec<usize>> {
        None
    }

    /// How many rows at the end of each local replica's batch, in replica order, only fill it up,
    /// for the global batch `batch` (from 0) of every epoch; `None`, the default, if none do.
    /// `predict` leaves them out; an objective is told by the batch itself.
    fn padding(&self, batch: usize) -> Option<Vec<usize>> {
        let _ = batch;
        None
    }

    /// The part of one global batch that a replica reads, of any worker, read anew on this device
    /// (that of the replica that computes it again): for
    /// [`Recomputation`](crate::Recomputation). The same values as in the batch of
    /// [`epoch`](Self::epoch) that the replica is handed. `None`, the default, if this source
    /// cannot: it would be another batch, or other workers' data is not here.
    ///
    /// # Errors
    /// If the data cannot be read.
    fn replica_batch(
        &self,
        epoch: usize,
        batch: usize,
        replica: usize,
        device: &Device,
    ) -> Result<Option<Self::Batch>> {
        let _ = (epoch, batch, replica, device);
        Ok(None)
    }

    /// The batches of epoch `epoch` (from 0), without the first `skip_batches`.
    ///
    /// The same epoch must always give the same batches in the same order, else a resumed run is
    /// not the interrupted one. Skipping all batches gives an empty iterator.
    ///
    /// # Errors
    /// If the data cannot be read. Errors of single batches are items.
    fn epoch(&self, epoch: usize, skip_batches: usize) -> Result<Batches<'_, Self::Batch>>;

    /// One global batch of an epoch by its number, for steps that run in any order
    /// (`distribute_fit::RemoteTask`); `None` after the last one. The same batch as that of
    /// [`epoch`](Self::epoch), which by default is asked for it.
    ///
    /// # Errors
    /// If the data cannot be read.
    fn batch(&self, epoch: usize, batch: usize) -> Result<Option<PerReplica<Self::Batch>>> {
        self.epoch(epoch, batch)?.next().transpose()
    }

    /// What a checkpoint keeps of the source beside epoch and batch; `None`, the default, if these
    /// say all.
    fn saved_state(&self) -> Option<Arc<dyn SourceState>> {
        None
    }
}
