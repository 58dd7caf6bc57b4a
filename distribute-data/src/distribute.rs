//! Global batches of a dataset, cut over the replicas of a strategy.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use distribute_core::{Device, Error, InputContext, PerReplica, Result, Strategy, WorkerGroup};
use serde::{Deserialize, Serialize};

use crate::auto_shard::AutoShardPolicy;
use crate::dataset::no_weights;
use crate::distribute_epoch::LastOrder;
use crate::worker_agreement::{AgreedSizes, agree_on_sizes};
use crate::worker_shard::{WorkerLayout, WorkerShard};
use crate::{Dataset, DistributedFunction, Epoch, split};

/// How examples become batches.
///
/// ```
/// use distribute_data::Batching;
///
/// let batching = Batching::global(64).shuffle(42).drop_remainder(true).prefetch(4);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Batching {
    size: BatchSize,
    seed: Option<u64>,
    drop_remainder: bool,
    pad_remainder: bool,
    allow_empty: bool,
    prefetch: usize,
    auto_shard: AutoShardPolicy,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BatchSize {
    Global(usize),
    PerReplica(usize),
}

impl Batching {
    /// Steps of `examples` over all replicas together: the same training with any number of
    /// replicas.
    pub fn global(examples: usize) -> Self {
        Self::new(BatchSize::Global(examples))
    }

    /// Steps of `examples` on every replica: the global batch grows with their number.
    pub fn per_replica(examples: usize) -> Self {
        Self::new(BatchSize::PerReplica(examples))
    }

    fn new(size: BatchSize) -> Self {
        Self {
            size,
            seed: None,
            drop_remainder: false,
            pad_remainder: false,
            allow_empty: false,
            prefetch: 2,
            auto_shard: AutoShardPolicy::Auto,
        }
    }

    /// Another order in every epoch, see [`split::shuffled`](crate::split::shuffled). Without
    /// it, examples come in the dataset's order.
    pub fn shuffle(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// Leaves out the last global batch of an epoch if it is short (not by default). With
    /// [`shuffle`](Self::shuffle) that are other examples in every epoch.
    pub fn drop_remainder(mut self, drop: bool) -> Self {
        self.drop_remainder = drop;
        self
    }

    /// Gives every replica batches of one size, for steps that are compiled for fixed shapes (not
    /// by default): the largest global batch of an epoch divided by the replicas, rounded up.
    ///
    /// Each replica gets the examples that it would get without, and where these are too few
    /// (the short last batch, or a size that does not divide evenly) others behind them that
    /// weigh nothing: copies of examples of the dataset, so that they are as harmless in the model
    /// as any. The batches must carry weights, see [`Weighted`](crate::Weighted). What a model
    /// computes *across* the examples of a batch (batch normalization) sees the copies too.
    ///
    /// The number of batches stays the same, and [`drop_remainder`](Self::drop_remainder) still
    /// leaves the last one out.
    pub fn pad_remainder(mut self, pad: bool) -> Self {
        self.pad_remainder = pad;
        self
    }

    /// Accepts a dataset without examples, whose epochs have no batches, as TensorFlow does. It is
    /// an error otherwise, because it is mostly a wrong path or filter.
    pub fn allow_empty(mut self, allow: bool) -> Self {
        self.allow_empty = allow;
        self
    }

    /// How many global batches a background thread may hold ready, 2 by default. With 0 there is
    /// no thread and every batch is made when it is asked for.
    pub fn prefetch(mut self, batches: usize) -> Self {
        self.prefetch = batches;
        self
    }

    /// How several workers divide the dataset (TensorFlow: `options.auto_shard_policy`).
    ///
    /// - DATA: every worker takes its replicas' parts of each global batch, so the batches do not
    ///   depend on the number of workers.
    /// - FILE: every worker reads files of its own ([`Dataset::files`]) and cuts its own stream.
    /// - OFF: every worker reads everything.
    /// - AUTO, the default: FILE for datasets that say which files they are read from (none of
    ///   this crate's readers does: they hold everything in memory), else DATA.
    ///
    /// Under FILE and OFF a worker shuffles its own stream. All workers make the same number of
    /// steps, under every policy: one that has fewer examples, because of its files or because it
    /// was given a shorter dataset, ends with empty batches. Losses and gradients of empty batches
    /// are zeros.
    pub fn auto_shard(mut self, policy: AutoShardPolicy) -> Self {
        self.auto_shard = policy;
        self
    }

    pub(crate) fn drops_remainder(&self) -> bool {
        self.drop_remainder
    }

    /// What all workers must set alike, by name. Streams of their own may be shuffled as they like.
    fn settings(&self, global_batch_size: usize, is_shared: bool) -> Vec<(String, String)> {
        let seed = match (is_shared, self.seed) {
            (false, _) => "its own".to_string(),
            (true, None) => "none".to_string(),
            (true, Some(seed)) => seed.to_string(),
        };
        let settings = [
            ("the global batch size", global_batch_size.to_string()),
            ("the auto-shard policy", format!("{:?}", self.auto_shard)),
            ("the seed of the shuffle", seed),
            ("drop_remainder", self.drop_remainder.to_string()),
            ("pad_remainder", self.pad_remainder.to_string()),
        ];
        settings.map(|(name, value)| (name.into(), value)).into()
    }

    fn global_size(&self, replicas: usize) -> Result<usize> {
        let size = match self.size {
            BatchSize::Global(examples) => Some(examples),
            BatchSize::PerReplica(examples) => examples.checked_mul(replicas),
        };
        match size {
            Some(0) => Err(Error::invalid(
                "the batch size is 0; pass at least 1 example",
            )),
            Some(size) => Ok(size),
            None => Err(Error::invalid(format!(
                "the batch size is too large for {replicas} replicas"
            ))),
        }
    }
}

/// Where an input pipeline is: what a checkpoint keeps to go on with the same batches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Position {
    /// The epoch, from 0.
    pub epoch: usize,
    /// The global batch of that epoch that comes next, from 0.
    pub batch: usize,
}

/// A dataset whose global batches are cut over the replicas of a strategy
/// (TensorFlow: `tf.distribute.DistributedDataset`).
///
/// Every global batch, the short last one too, is cut with
/// [`split::replica_range`](crate::split::replica_range); a replica may get an empty batch. The
/// examples of every global batch depend on the dataset and the [`Batching`] alone, never on the
/// number of replicas or workers (unless the batch size was given per replica, or
/// [`Batching::auto_shard`] gives the workers streams of their own).
pub struct DistributedDataset<D> {
    pub(crate) dataset: Arc<D>,
    /// Which part of every global batch each replica of this process gets, and its device.
    pub(crate) replicas: Arc<[(usize, Device)]>,
    pub(crate) num_replicas: usize,
    pub(crate) global_batch_size: usize,
    pub(crate) batching: Batching,
    /// What this worker reads, where the workers do not share the global batches.
    pub(crate) shard: Option<Arc<WorkerShard>>,
    agreed: AgreedSizes,
    /// The other workers, which wait in every step for this one, if there are any.
    pub(crate) others: Option<WorkerGroup>,
    pub(crate) last_order: Arc<LastOrder>,
    /// The epoch that the next iteration reads.
    next_epoch: Arc<AtomicUsize>,
}

impl<D: Dataset> DistributedDataset<D> {
    pub(crate) fn new<S: Strategy + ?Sized>(
        strategy: &S,
        dataset: D,
        batching: Batching,
    ) -> Result<Self> {
        let num_replicas = strategy.num_replicas_in_sync();
        let prepared = prepare(strategy, &dataset, &batching);
        let workers = strategy.workers();
        let (settings, shard) = match prepared {
            Ok((shard, global_batch_size)) => {
                let settings = batching.settings(global_batch_size, shard.is_none());
                (settings, Ok((shard, global_batch_size)))
            }
            Err(error) => (Vec::new(), Err(error)),
        };
        let numbers = match &shard {
            Ok((shard, size)) => Ok(local_sizes(
                shard.as_ref(),
                &batching,
                dataset.len(),
                (*size, num_replicas),
            )),
            Err(error) => Err(error.clone()),
        };
        let agreed = agree_on_sizes(workers, numbers, settings)?;
        let (shard, global_batch_size) = shard?;
        Ok(Self {
            shard: shard.map(Arc::new),
            agreed,
            others: workers.filter(|group| group.num_workers() > 1).cloned(),
            last_order: Arc::default(),
            next_epoch: Arc::default(),
            dataset: Arc::new(dataset),
            replicas: parts_of_replicas(strategy),
            num_replicas,
            global_batch_size,
            batching,
        })
    }

    /// The number of examples.
    pub fn len(&self) -> usize {
        self.dataset.len()
    }

    /// Whether there are no examples, which [`Batching::allow_empty`] allows.
    pub fn is_empty(&self) -> bool {
        self.dataset.is_empty()
    }

    /// The dataset.
    pub fn dataset(&self) -> &D {
        &self.dataset
    }

    /// The examples of one step over all replicas; the last batch of an epoch may have fewer. What
    /// [`Batching::pad_remainder`] adds is not counted.
    pub fn global_batch_size(&self) -> usize {
        self.global_batch_size
    }

    /// The steps of one epoch, the same on all workers.
    pub fn batches_per_epoch(&self) -> usize {
        self.agreed.steps
    }

    /// The examples of each replica's batch where all have equally many
    /// ([`Batching::pad_remainder`]).
    pub(crate) fn rows(&self) -> Option<usize> {
        self.batching.pad_remainder.then_some(self.agreed.rows)
    }

    /// Where in the order of an epoch the examples of each local replica lie.
    pub(crate) fn parts(&self, batch: usize) -> Vec<Range<usize>> {
        if let Some(shard) = &self.shard {
            return shard.ranges(batch);
        }
        // Of this worker's own dataset: another worker's may have more batches.
        let examples = match self.batching.drop_remainder {
            true => self.len() - self.len() % self.global_batch_size,
            false => self.len(),
        };
        let start = batch.saturating_mul(self.global_batch_size).min(examples);
        let size = self.global_batch_size.min(examples - start);
        let parts = self.replicas.iter().map(|(part, _)| {
            let part = split::replica_range(size, self.num_replicas, *part);
            start + part.start..start + part.end
        });
        parts.collect()
    }

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

    pub(crate) fn seed(&self) -> Option<u64> {
        self.batching.seed
    }

    pub(crate) fn prefetch(&self) -> usize {
        self.batching.prefetch
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

/// Shares the dataset.
impl<D> Clone for DistributedDataset<D> {
    fn clone(&self) -> Self {
        Self {
            dataset: Arc::clone(&self.dataset),
            replicas: Arc::clone(&self.replicas),
            num_replicas: self.num_replicas,
            global_batch_size: self.global_batch_size,
            batching: self.batching,
            shard: self.shard.clone(),
            agreed: self.agreed,
            others: self.others.clone(),
            last_order: Arc::clone(&self.last_order),
            next_epoch: Arc::clone(&self.next_epoch),
        }
    }
}

impl<D> fmt::Debug for DistributedDataset<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DistributedDataset")
            .field("num_replicas", &self.num_replicas)
            .field("global_batch_size", &self.global_batch_size)
            .field("batching", &self.batching)
            .finish_non_exhaustive()
    }
}

/// What this worker reads, if the workers do not share the global batches, and the size of those.
fn prepare<S: Strategy + ?Sized, D: Dataset>(
    strategy: &S,
    dataset: &D,
    batching: &Batching,
) -> Result<(Option<WorkerShard>, usize)> {
    let global_batch = batching.global_size(strategy.num_replicas_in_sync())?;
    if dataset.is_empty() && !batching.allow_empty {
        return Err(Error::invalid(
            "the dataset is empty: there is nothing to distribute; check where it comes from, \
             or pass `.allow_empty(true)`",
        ));
    }
    if batching.pad_remainder && !dataset.is_weighted() {
        return Err(no_weights());
    }
    let context = strategy.input_context();
    if batching.pad_remainder && dataset.is_empty() && context.num_input_pipelines > 1 {
        return Err(Error::invalid(
            "pad_remainder: this worker has no example to fill batches up with; give every worker \
             at least one",
        ));
    }
    let layout = WorkerLayout {
        worker: context.input_pipeline_id,
        workers: context.num_input_pipelines,
        local_replicas: strategy.replicas().len(),
        is_equal: has_equal_workers(strategy),
        global_batch,
    };
    let shard = WorkerShard::new(batching.auto_shard, dataset, batching, layout)?;
    Ok((shard, global_batch))
}

/// The steps of an epoch and the rows of padded batches, as far as this worker knows; `sizes` are
/// the global batch size and the number of replicas.
fn local_sizes(
    shard: Option<&WorkerShard>,
    batching: &Batching,
    examples: usize,
    (global_batch, replicas): (usize, usize),
) -> AgreedSizes {
    let share = |examples: usize| examples.div_ceil(replicas.max(1));
    match shard {
        Some(shard) => AgreedSizes {
            steps: shard.steps(),
            rows: shard.most_examples().min(share(global_batch)),
        },
        None => AgreedSizes {
            steps: match batching.drop_remainder {
                true => examples / global_batch,
                false => examples.div_ceil(global_batch),
            },
            rows: share(global_batch.min(examples)),
        },
    }
}

/// The parts of a global batch that this process' replicas get. As under TensorFlow's policy DATA
/// the workers take the parts in turn: worker `i` of `n` gets the parts `i`, `i + n`, ...
fn parts_of_replicas<S: Strategy + ?Sized>(strategy: &S) -> Arc<[(usize, Device)]> {
    let replicas = strategy.replicas();
    let context = strategy.input_context();
    let workers = context.num_input_pipelines;
    let equal_workers = has_equal_workers(strategy);
    let parts = replicas.iter().enumerate().map(|(local, replica)| {
        let part = if equal_workers {
            local * workers + context.input_pipeline_id
        } else {
            replica.id
        };
        (part, replica.device.clone())
    });
    parts.collect()
}

/// Whether all workers have equally many replicas.
pub(crate) fn has_equal_workers<S: Strategy + ?Sized>(strategy: &S) -> bool {
    match strategy.workers() {
        Some(workers) => workers.has_equal_workers(),
        None => {
            let workers = strategy.input_context().num_input_pipelines;
            workers * strategy.replicas().len() == strategy.num_replicas_in_sync()
        }
    }
}

/// What every strategy can do with data.
pub trait StrategyDataExt: Strategy {
    /// Distributes a dataset over the replicas
    /// (TensorFlow: `experimental_distribute_dataset`).
    ///
    /// Over several workers every process calls this, and reads its replicas' parts of each global
    /// batch alone, or what [`Batching::auto_shard`] says. The workers tell each other how many
    /// steps they have, and all make as many as the one with most: a worker whose dataset is
    /// shorter gets empty batches at the end. Blocks until all workers have called it.
    ///
    /// # Errors
    /// For a batch size of 0, for an empty dataset, for a policy that the dataset does not allow,
    /// and for padding without weights, on all workers if it happens on one; for workers that cut
    /// their data in different ways.
    fn distribute_dataset<D: Dataset>(
        &self,
        dataset: D,
        batching: Batching,
    ) -> Result<DistributedDataset<D>> {
        DistributedDataset::new(self, dataset, batching)
    }

    /// Distributes the batches of input pipelines of your own
    /// (TensorFlow: `distribute_datasets_from_function`): each replica takes one batch as it is
    /// produced, so the function makes batches of the size for one replica.
    ///
    /// The function is called at every [`epoch`](DistributedFunction::epoch). The tensors must be
    /// on the replicas' device, `strategy.replicas()[i].device`. Over several workers the
    /// pipelines may end after different numbers of steps, see
    /// [`epoch`](DistributedFunction::epoch).
    ///
    /// ```
    /// use distribute_core::{InputContext, MirroredStrategy, TensorData};
    /// use distribute_data::StrategyDataExt;
    ///
    /// let strategy = MirroredStrategy::builder().replicas(2).build()?;
    /// let distributed = strategy.distribute_datasets_from_function(|context: InputContext| {
    ///     let size = context.per_replica_batch_size(4)?;
    ///     Ok((0..3).map(move |_| Ok(TensorData::new(vec![1.0_f32; size], [size]))))
    /// });
    /// let mut sizes = Vec::new();
    /// for step in distributed.epoch()? {
    ///     sizes.push(step?.map(|batch| batch.shape().to_vec()[0]).into_values());
    /// }
    /// assert_eq!(sizes, [[2, 2], [2, 0]]);
    /// # Ok::<(), distribute_core::Error>(())
    /// ```
    fn distribute_datasets_from_function<F, I>(&self, function: F) -> DistributedFunction<F>
    where
        F: Fn(InputContext) -> Result<I>,
    {
        DistributedFunction::new(self, function)
    }
}

impl<S: Strategy + ?Sized> StrategyDataExt for S {}
