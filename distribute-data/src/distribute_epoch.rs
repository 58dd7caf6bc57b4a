//! One pass over a distributed dataset.

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use distribute_core::{Device, PerReplica, Result, WorkerGroup};

use crate::order::Order;
use crate::prefetch::Prefetch;
use crate::{Dataset, DistributedDataset, Position, split};

/// The batches of one epoch, one component per local replica.
///
/// A batch that cannot be read is the last item, an error. It ends the running and the next call
/// of all other workers too, with an error that names this worker and the reason: they would wait
/// for it.
///
/// Dropping it early stops its thread and waits until the batch in the making is done.
#[must_use]
pub struct Epoch<B> {
    items: Prefetch<PerReplica<B>>,
    position: Position,
    remaining: usize,
    /// The other workers, which wait in every step for this one.
    others: Option<WorkerGroup>,
}

impl<B: Send + 'static> Epoch<B> {
    fn start<D: Dataset<Batch = B>>(
        from: &DistributedDataset<D>,
        epoch: usize,
        skip: usize,
    ) -> Self {
        let batches = from.batches_per_epoch();
        let producer = Producer {
            from: from.clone(),
            epoch,
            order: None,
            next: skip,
            end: batches,
        };
        Self {
            items: Prefetch::new(producer, from.batching.prefetch),
            position: Position { epoch, batch: skip },
            remaining: batches.saturating_sub(skip),
            others: from.others.clone(),
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
            Some(Err(error)) => {
                self.remaining = 0;
                if let Some(others) = &self.others {
                    others.abort(&error.to_string());
                }
            }
            None => self.remaining = 0,
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

struct Producer<D> {
    from: DistributedDataset<D>,
    epoch: usize,
    /// Worked out on the thread that needs it.
    order: Option<Order>,
    next: usize,
    end: usize,
}

impl<D: Dataset> DistributedDataset<D> {
    /// The batches of one epoch, made on a background thread that ends with the iterator.
    ///
    /// The same number gives the same batches in the same order each time, so that a run can be
    /// repeated and resumed: count up, or iterate over the dataset itself (`for batch in &train`),
    /// which reads another epoch each time.
    ///
    /// An error or a panic in [`Dataset::batch`] comes out as the last item.
    pub fn epoch(&self, epoch: usize) -> Epoch<D::Batch> {
        self.epoch_from(epoch, 0)
    }

    /// [`epoch`](Self::epoch) without its first `batches_to_skip` batches, which are not read:
    /// the rest of an interrupted epoch, in the same order.
    pub fn epoch_from(&self, epoch: usize, batches_to_skip: usize) -> Epoch<D::Batch> {
        Epoch::start(self, epoch, batches_to_skip)
    }

    /// Goes on where [`Epoch::position`] was taken. The next iteration over the dataset itself
    /// reads the epoch after that one.
    pub fn resume(&self, position: Position) -> Epoch<D::Batch> {
        let next = position.epoch.saturating_add(1);
        self.next_epoch.store(next, Ordering::Relaxed);
        self.epoch_from(position.epoch, position.batch)
    }

    /// One batch by its place; `None` after the last one of its epoch. It is made on this thread,
    /// without reading others. The order of the last epoch that was asked for is kept, so ask
    /// epoch by epoch.
    ///
    /// # Errors
    /// Those of [`Dataset::batch`].
    pub fn batch_at(&self, position: Position) -> Result<Option<PerReplica<D::Batch>>> {
        if position.batch >= self.batches_per_epoch() {
            return Ok(None);
        }
        let order = {
            let mut last = self
                .last_order
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            match &*last {
                Some((epoch, order)) if *epoch == position.epoch => Arc::clone(order),
                _ => {
                    let order = Arc::new(self.order(position.epoch));
                    *last = Some((position.epoch, Arc::clone(&order)));
                    order
                }
            }
        };
        self.global_batch(&order, position.batch).map(Some)
    }

    fn order(&self, epoch: usize) -> Order {
        match (&self.shard, self.batching.seed) {
            (Some(shard), seed) => Order::Listed(shard.order(seed, epoch)),
            (None, None) if self.batching.reads_once() => Order::AsIs,
            (None, seed) => Order::Listed(split::stream(self.len(), seed, self.read(), epoch)),
        }
    }

    /// The batches of all local replicas.
    fn global_batch(&self, order: &Order, batch: usize) -> Result<PerReplica<D::Batch>> {
        let replicas = self.replicas.iter().zip(self.parts(batch));
        let batches = replicas.map(|((_, device), part)| self.replica_batch(order, part, device));
        let batches = PerReplica::new(batches.collect::<Result<Vec<_>>>()?);
        Ok(batches.of_global_batch(self.global_batch_size()))
    }

    /// The batch of one replica.
    fn replica_batch(
        &self,
        order: &Order,
        part: Range<usize>,
        device: &Device,
    ) -> Result<D::Batch> {
        let own: Cow<'_, [usize]> = match order {
            Order::Listed(order) => Cow::Borrowed(&order[part]),
            Order::AsIs => Cow::Owned(part.collect()),
        };
        let Some(rows) = self.rows() else {
            return self.dataset.batch(&own, device);
        };
        let examples = own.len();
        let mut indices = own.into_owned();
        let filler = indices.first().copied();
        indices.resize(rows, filler.unwrap_or_else(|| filler_of(order)));
        self.dataset.padded_batch(&indices, examples, device)
    }
}

/// The next epoch: 0 the first time, then 1, and so on, so that a shuffled dataset comes in another
/// order each time (TensorFlow: every iteration over a dataset shuffles anew). Clones count
/// together.
///
/// ```
/// use distribute_core::{Device, DefaultStrategy};
/// use distribute_data::{Batching, FnDataset, StrategyDataExt};
///
/// let numbers = FnDataset::new(6, |indices: &[usize], _: &Device| Ok(indices.to_vec()));
/// let batching = Batching::global(6).shuffle(1);
/// let train = DefaultStrategy::new().distribute_dataset(numbers, batching)?;
/// let mut orders = Vec::new();
/// for _epoch in 0..2 {
///     for batch in &train {
///         orders.push(batch?.into_values());
///     }
/// }
/// assert_ne!(orders[0], orders[1]);
/// # Ok::<(), distribute_core::Error>(())
/// ```
impl<D: Dataset> IntoIterator for &DistributedDataset<D> {
    type Item = Result<PerReplica<D::Batch>>;
    type IntoIter = Epoch<D::Batch>;

    fn into_iter(self) -> Epoch<D::Batch> {
        self.epoch(self.next_epoch.fetch_add(1, Ordering::Relaxed))
    }
}

/// An example that this worker can read, to fill batches up with that have none of their own.
fn filler_of(order: &Order) -> usize {
    match order {
        Order::Listed(order) => order.first().copied().unwrap_or(0),
        Order::AsIs => 0,
    }
}

impl<D: Dataset> Iterator for Producer<D> {
    type Item = Result<PerReplica<D::Batch>>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.next >= self.end {
            return None;
        }
        let order = self.order.take();
        let order = order.unwrap_or_else(|| self.from.order(self.epoch));
        let batch = self.from.global_batch(&order, self.next);
        self.order = Some(order);
        self.next += 1;
        Some(batch)
    }
}
