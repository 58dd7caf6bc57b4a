//! One pass over a distributed dataset.

use std::borrow::Cow;
use std::fmt;
use std::iter::StepBy;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock, PoisonError};

use distribute_core::{Device, Nest, PerReplica, Result, WorkerGroup};
use distribute_error::panic_text;

use crate::order::Order;
use crate::prefetch::Prefetch;
use crate::{DataError, Dataset, DistributedDataset, Position, split};

/// The batches of one epoch, one component per local replica.
///
/// A batch that cannot be read is the last item, an error. It ends the running and the next call
/// of all other workers too, with an error that names this worker and the reason: they would wait
/// for it.
///
/// Dropping it early stops its threads and waits until the batches in the making are done.
#[must_use]
pub struct Epoch<B> {
    /// The batches of the local replicas, one replica after the other.
    parts: Prefetch<B>,
    local_replicas: usize,
    global_batch_size: usize,
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
        let local_replicas = from.replicas.len();
        let order = Arc::new(OnceLock::new());
        let units = skip.saturating_mul(local_replicas)..batches.saturating_mul(local_replicas);
        let threads = from
            .batching
            .num_parallel_calls
            .clamp(1, units.len().max(1));
        let reader = |first: usize| PartReader {
            from: from.clone(),
            epoch,
            order: Arc::clone(&order),
            units: (units.start + first..units.end).step_by(threads),
        };
        // A queue takes memory for what it has room for, filled or not.
        let ahead = from.batching.parts_ahead(local_replicas);
        let parts = match ahead.min(units.len().max(1)) {
            0 => Prefetch::new(reader(0), 0),
            ahead => Prefetch::in_turn((0..threads).map(reader).collect(), ahead),
        };
        Self {
            parts,
            local_replicas,
            global_batch_size: from.global_batch_size(),
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
        if self.remaining == 0 {
            self.parts.stop();
            return None;
        }
        let parts: Result<Vec<B>> = self.parts.by_ref().take(self.local_replicas).collect();
        match &parts {
            Ok(_) => {
                self.position.batch += 1;
                self.remaining -= 1;
            }
            Err(error) => {
                self.remaining = 0;
                if let Some(others) = &self.others {
                    others.abort(&error.to_string());
                }
            }
        }
        Some(parts.map(|parts| PerReplica::new(parts).of_global_batch(self.global_batch_size)))
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

/// Makes the batches of some parts of an epoch, which are counted one replica after the other and
/// one global batch after the other.
struct PartReader<D> {
    from: DistributedDataset<D>,
    epoch: usize,
    /// Worked out by the first thread that needs it.
    order: Arc<OnceLock<Order>>,
    /// The parts of this reader.
    units: StepBy<Range<usize>>,
}

impl<D: Dataset> DistributedDataset<D> {
    /// The next epoch, as `for batch in &train` reads it (burn: `DataLoader::iter`): each call is
    /// another epoch, in an order of its own.
    ///
    /// ```
    /// use distribute_core::{DefaultStrategy, Device};
    /// use distribute_data::{Batching, FnDataset, StrategyDataExt};
    ///
    /// let numbers = FnDataset::new(5, |indices: &[usize], _: &Device| Ok(indices.to_vec()));
    /// let train = DefaultStrategy::new().distribute_dataset(numbers, Batching::global(2))?;
    /// assert_eq!(train.iter().count(), 3);
    /// # Ok::<(), distribute_core::Error>(())
    /// ```
    pub fn iter(&self) -> Epoch<D::Batch> {
        self.into_iter()
    }

    /// The batches of one epoch, made on background threads that end with the iterator.
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
    /// The errors of [`Dataset::batch`].
    pub fn batch_at(&self, position: Position) -> Result<Option<PerReplica<D::Batch>>> {
        if position.batch >= self.batches_per_epoch() {
            return Ok(None);
        }
        let order = self.kept_order(position.epoch);
        self.global_batch(&order, position).map(Some)
    }

    /// The part of a global batch that a replica of any worker reads, by its id, made on this
    /// thread and on this device. `None` where other workers read examples that are not here, and
    /// after the last batch.
    ///
    /// # Errors
    /// The errors of [`Dataset::batch`].
    pub(crate) fn part_of(
        &self,
        position: Position,
        replica: usize,
        device: &Device,
    ) -> Result<Option<D::Batch>> {
        let is_there = position.batch < self.batches_per_epoch() && replica < self.num_replicas;
        if self.shard.is_some() || !self.parts_are_ids || !is_there {
            return Ok(None);
        }
        let order = self.kept_order(position.epoch);
        let range = self.range_of(position.batch, replica);
        let epoch = position.epoch;
        self.part((epoch, &order), replica, range, device).map(Some)
    }

    /// The order of an epoch, which is kept until that of another one is asked for.
    fn kept_order(&self, epoch: usize) -> Arc<Order> {
        let mut last = self
            .last_order
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        match &*last {
            Some((known, order)) if *known == epoch => Arc::clone(order),
            _ => {
                let order = Arc::new(self.order(epoch));
                *last = Some((epoch, Arc::clone(&order)));
                order
            }
        }
    }

    fn order(&self, epoch: usize) -> Order {
        match (&self.shard, self.batching.seed) {
            (Some(shard), seed) => Order::Listed(shard.order(seed, epoch)),
            (None, None) if self.batching.reads_once() => Order::AsIs,
            (None, seed) => Order::Listed(split::stream(self.len(), seed, self.read(), epoch)),
        }
    }

    /// The batches of all local replicas.
    fn global_batch(&self, order: &Order, at: Position) -> Result<PerReplica<D::Batch>> {
        let replicas = self.replicas.iter().zip(self.parts(at.batch));
        let order = (at.epoch, order);
        let batches =
            replicas.map(|((part, device), range)| self.part(order, *part, range, device));
        let batches = PerReplica::new(batches.collect::<Result<Vec<_>>>()?);
        Ok(batches.of_global_batch(self.global_batch_size()))
    }

    /// The batch of one part of a global batch, whose examples are at `range` of the epoch's order.
    fn part(
        &self,
        (epoch, order): (usize, &Order),
        part: usize,
        range: Range<usize>,
        device: &Device,
    ) -> Result<D::Batch> {
        let indices = self.indices(order, range);
        caught(part, &indices, || {
            self.replica_batch(epoch, order, &indices, device)
        })
    }

    /// The examples of a part of the order.
    fn indices<'a>(&self, order: &'a Order, part: Range<usize>) -> Cow<'a, [usize]> {
        match order {
            Order::Listed(order) => Cow::Borrowed(&order[part]),
            Order::AsIs => Cow::Owned(part.collect()),
        }
    }

    /// The batch of one replica.
    fn replica_batch(
        &self,
        epoch: usize,
        order: &Order,
        own: &[usize],
        device: &Device,
    ) -> Result<D::Batch> {
        let Some(rows) = self.rows() else {
            return match own {
                [] if !self.dataset.is_empty() => self.empty_batch(filler_of(order), device),
                _ => self.dataset.batch_in_epoch(epoch, own, device),
            };
        };
        let examples = own.len();
        let mut indices = own.to_vec();
        let filler = indices.first().copied();
        indices.resize(rows, filler.unwrap_or_else(|| filler_of(order)));
        self.dataset.padded_batch(epoch, &indices, examples, device)
    }

    /// A batch without examples, like that of an example: what makes batches, burn's batchers for
    /// example, need not make one of nothing.
    fn empty_batch(&self, like: usize, device: &Device) -> Result<D::Batch> {
        let mut batch = self.dataset.batch(&[like], device)?;
        let emptied = batch.remove_example();
        emptied.map_err(|error| DataError::EmptyBatch {
            what: format!(
                "{error} (of a batch of the example {like}, made for a replica that has no \
                 examples in the last batch of an epoch); choose a global batch size that leaves \
                 each replica some, or pass `.drop_remainder(true)`"
            ),
        })?;
        Ok(batch)
    }
}

/// What makes the batch of a part, as an error if it panics.
fn caught<B>(part: usize, indices: &[usize], make: impl FnOnce() -> Result<B>) -> Result<B> {
    // What panicked is the user's, and shared by reference: a lock in it would be poisoned.
    catch_unwind(AssertUnwindSafe(make)).unwrap_or_else(|payload| {
        let text = panic_text(&*payload).unwrap_or("a panic without a text");
        Err(DataError::BatchPanicked {
            part,
            indices: listed(indices),
            message: text.trim_end().to_string(),
        }
        .into())
    })
}

/// The first of the indices, and how many there are.
fn listed(indices: &[usize]) -> String {
    const SHOWN: usize = 8;
    let shown: Vec<_> = indices.iter().take(SHOWN).map(usize::to_string).collect();
    match indices.len() {
        0 => "none, so a batch of one example was asked for".into(),
        SHOWN.. if indices.len() > SHOWN => {
            format!("{}, ... ({} in all)", shown.join(", "), indices.len())
        }
        _ => shown.join(", "),
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

impl<D: Dataset> Iterator for PartReader<D> {
    type Item = Result<D::Batch>;

    fn next(&mut self) -> Option<Self::Item> {
        let from = &self.from;
        let unit = self.units.next()?;
        let (batch, local) = (unit / from.replicas.len(), unit % from.replicas.len());
        let (part, device) = from.replicas.get(local)?;
        let range = from.parts(batch).into_iter().nth(local)?;
        let order = self.order.get_or_init(|| from.order(self.epoch));
        Some(from.part((self.epoch, order), *part, range, device))
    }
}
