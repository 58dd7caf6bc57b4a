//! One pass over a distributed dataset.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use distribute_core::{Device, PerReplica, Result};

use crate::own_stream::OwnStream;
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
            dataset: Arc::clone(&from.dataset),
            replicas: Arc::clone(&from.replicas),
            num_replicas: from.num_replicas,
            global_batch_size: from.global_batch_size,
            order: Order::Unknown(from.seed(), epoch as u64),
            own: from.own.clone(),
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
    dataset: Arc<D>,
    replicas: Arc<[(usize, Device)]>,
    num_replicas: usize,
    global_batch_size: usize,
    order: Order,
    own: Option<Arc<OwnStream>>,
    next: usize,
    end: usize,
}

impl<D> Producer<D> {
    /// Where in the order the batch of each local replica lies.
    fn parts(&self, examples: usize) -> Vec<Range<usize>> {
        if let Some(own) = &self.own {
            return own.ranges(self.next);
        }
        let start = self.next * self.global_batch_size;
        let size = self.global_batch_size.min(examples - start);
        let parts = self.replicas.iter().map(|(part, _)| {
            let part = split::replica_range(size, self.num_replicas, *part);
            start + part.start..start + part.end
        });
        parts.collect()
    }
}

impl<D: Dataset> Iterator for Producer<D> {
    type Item = Result<PerReplica<D::Batch>>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.next >= self.end {
            return None;
        }
        let examples = self.dataset.len();
        if let Order::Unknown(seed, epoch) = self.order {
            self.order = match (&self.own, seed) {
                (Some(own), seed) => Order::Shuffled(own.order(seed, epoch)),
                (None, Some(seed)) => Order::Shuffled(split::shuffled(examples, seed, epoch)),
                (None, None) => Order::AsIs,
            };
        }
        let parts = self.parts(examples);
        self.next += 1;
        let batches =
            self.replicas
                .iter()
                .zip(parts)
                .map(|((_, device), part)| match &self.order {
                    Order::Shuffled(order) => self.dataset.batch(&order[part], device),
                    _ => self.dataset.batch(&part.collect::<Vec<_>>(), device),
                });
        Some(batches.collect::<Result<Vec<_>>>().map(PerReplica::new))
    }
}
