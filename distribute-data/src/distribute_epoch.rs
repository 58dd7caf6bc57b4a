//! One pass over a distributed dataset.

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;

use distribute_core::{Device, PerReplica, Result};

use crate::prefetch::Prefetch;
use crate::{Dataset, DistributedDataset, Position, split};

/// The batches of one epoch, one component per local replica.
///
/// Dropping it early stops its thread and waits until the batch in the making is done.
pub struct Epoch<B> {
    items: Prefetch<PerReplica<B>>,
    position: Position,
    remaining: usize,
}

impl<B: Send + 'static> Epoch<B> {
    pub(crate) fn start<D: Dataset<Batch = B>>(
        from: &DistributedDataset<D>,
        epoch: usize,
        skip: usize,
    ) -> Self {
        let batches = from.batches_per_epoch();
        let producer = Producer {
            from: from.clone(),
            order: Order::Unknown(from.seed(), epoch as u64),
            next: skip,
            end: batches,
        };
        Self {
            items: Prefetch::new(producer, from.prefetch()),
            position: Position { epoch, batch: skip },
            remaining: batches.saturating_sub(skip),
        }
    }
}

impl<B> Epoch<B> {
    /// The position of the batch that comes next, for
    /// [`DistributedDataset::resume`]. Batches that are prefetched do not count as read.
    pub fn position(&self) -> Position {
        self.position
    }
}

impl<B> Iterator for Epoch<B> {
    type Item = Result<PerReplica<B>>;

    fn next(&mut self) -> Option<Self::Item> {
        let item = self.items.next();
        match &item {
            Some(Ok(_)) => {
                self.position.batch += 1;
                self.remaining = self.remaining.saturating_sub(1);
            }
            Some(Err(_)) | None => self.remaining = 0,
        }
        item
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        // An error may end the epoch early.
        (usize::from(self.remaining > 0), Some(self.remaining))
    }
}

impl<B> fmt::Debug for Epoch<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Epoch")
            .field("position", &self.position)
            .field("remaining", &self.remaining)
            .finish_non_exhaustive()
    }
}

/// The order of the examples, worked out on the thread that needs it.
enum Order {
    Unknown(Option<u64>, u64),
    AsIs,
    Shuffled(Vec<usize>),
}

struct Producer<D> {
    from: DistributedDataset<D>,
    order: Order,
    next: usize,
    end: usize,
}

impl<D: Dataset> Producer<D> {
    /// The batch of one replica.
    fn batch(&self, part: Range<usize>, device: &Device) -> Result<D::Batch> {
        let dataset = &*self.from.dataset;
        let own: Cow<'_, [usize]> = match &self.order {
            Order::Shuffled(order) => Cow::Borrowed(&order[part]),
            _ => Cow::Owned(part.collect()),
        };
        let Some(rows) = self.from.rows() else {
            return dataset.batch(&own, device);
        };
        let examples = own.len();
        let mut indices = own.into_owned();
        let filler = indices.first().copied();
        indices.resize(rows, filler.unwrap_or_else(|| self.filler()));
        dataset.padded_batch(&indices, examples, device)
    }

    /// An example that this worker can read, to fill batches up with that have none of their own.
    fn filler(&self) -> usize {
        match &self.order {
            Order::Shuffled(order) => order.first().copied().unwrap_or(0),
            _ => 0,
        }
    }
}

impl<D: Dataset> Iterator for Producer<D> {
    type Item = Result<PerReplica<D::Batch>>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.next >= self.end {
            return None;
        }
        if let Order::Unknown(seed, epoch) = self.order {
            self.order = match (&self.from.own, seed) {
                (Some(own), seed) => Order::Shuffled(own.order(seed, epoch)),
                (None, Some(seed)) => {
                    Order::Shuffled(split::shuffled(self.from.len(), seed, epoch))
                }
                (None, None) => Order::AsIs,
            };
        }
        let parts = self.from.parts(self.next);
        self.next += 1;
        let replicas = self.from.replicas.iter();
        let batches = replicas
            .zip(parts)
            .map(|((_, device), part)| self.batch(part, device));
        Some(batches.collect::<Result<Vec<_>>>().map(PerReplica::new))
    }
}
