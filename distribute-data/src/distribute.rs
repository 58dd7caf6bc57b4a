//! Global batches of a dataset, cut over the replicas of a strategy.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use distribute_core::{Device, Error, InputContext, Result, Strategy};
use serde::{Deserialize, Serialize};

use crate::auto_shard::AutoShardPolicy;
use crate::dataset::no_weights;
use crate::distribute_epoch::LastOrder;
use crate::own_stream::{OwnStream, Place};
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
    size: Size,
    seed: Option<u64>,
    drop_remainder: bool,
    pad_remainder: bool,
    allow_empty: bool,
    prefetch: usize,
    auto_shard: AutoShardPolicy,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Size {
    Global(usize),
    PerReplica(usize),
}

impl Batching {
    /// Steps of `examples` over all replicas together: the same training with any number of
    /// replicas.
    pub fn global(examples: usize) -> Self {
        Self::new(Size::Global(examples))
    }

    /// Steps of `examples` on every replica: the global batch grows with their number.
    pub fn per_replica(examples: usize) -> Self {
        Self::new(Size::PerReplica(examples))
    }

    fn new(size: Size) -> Self {
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

    /// Leaves out the last global batch of an epoch if it is short (not by default).
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
    /// Under FILE and OFF a worker shuffles its own stream, and one that has fewer examples ends
    /// with empty batches: all workers make the same number of steps.
    pub fn auto_shard(mut self, policy: AutoShardPolicy) -> Self {
        self.auto_shard = policy;
        self
    }

    pub(crate) fn drops_remainder(&self) -> bool {
        self.drop_remainder
    }

    fn global_size(&self, replicas: usize) -> Result<usize> {
        let size = match self.size {
            Size::Global(examples) => Some(examples),
            Size::PerReplica(examples) => examples.checked_mul(replicas),
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
    pub(crate) own: Option<Arc<OwnStream>>,
    pub(crate) last_order: Arc<LastOrder>,
}

impl<D: Dataset> DistributedDataset<D> {
    pub(crate) fn new<S: Strategy + ?Sized>(
        strategy: &S,
        dataset: D,
        batching: Batching,
    ) -> Result<Self> {
        let num_replicas = strategy.num_replicas_in_sync();
        let global_batch_size = batching.global_size(num_replicas)?;
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
        let place = Place {
            worker: context.input_pipeline_id,
            workers: context.num_input_pipelines,
            local_replicas: strategy.replicas().len(),
            is_equal: has_equal_workers(strategy),
            global_batch: global_batch_size,
        };
        let own = OwnStream::new(batching.auto_shard, &dataset, &batching, place)?;
        Ok(Self {
            own: own.map(Arc::new),
            last_order: Arc::default(),
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

    /// The steps of one epoch.
    pub fn batches_per_epoch(&self) -> usize {
        if let Some(own) = &self.own {
            return own.steps();
        }
        if self.batching.drop_remainder {
            self.len() / self.global_batch_size
        } else {
            self.len().div_ceil(self.global_batch_size)
        }
    }

    /// The examples of each replica's batch where all have equally many
    /// ([`Batching::pad_remainder`]).
    pub(crate) fn rows(&self) -> Option<usize> {
        let replicas = self.num_replicas.max(1);
        let rows = match &self.own {
            None => self.global_batch_size.min(self.len()).div_ceil(replicas),
            Some(own) => own.most().min(self.global_batch_size.div_ceil(replicas)),
        };
        self.batching.pad_remainder.then_some(rows)
    }

    /// Where in the order of an epoch the examples of each local replica lie.
    pub(crate) fn parts(&self, batch: usize) -> Vec<Range<usize>> {
        if let Some(own) = &self.own {
            return own.ranges(batch);
        }
        let examples = self.len();
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
    /// An error or a panic in [`Dataset::batch`] comes out as the last item.
    pub fn epoch(&self, epoch: usize) -> Epoch<D::Batch> {
        self.epoch_from(epoch, 0)
    }

    /// [`epoch`](Self::epoch) without its first `batches_to_skip` batches, which are not read:
    /// the rest of an interrupted epoch, in the same order.
    pub fn epoch_from(&self, epoch: usize, batches_to_skip: usize) -> Epoch<D::Batch> {
        Epoch::start(self, epoch, batches_to_skip)
    }

    /// Goes on where [`Epoch::position`] was taken.
    pub fn resume(&self, position: Position) -> Epoch<D::Batch> {
        self.epoch_from(position.epoch, position.batch)
    }

    pub(crate) fn seed(&self) -> Option<u64> {
        self.batching.seed
    }

    pub(crate) fn prefetch(&self) -> usize {
        self.batching.prefetch
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
            own: self.own.clone(),
            last_order: Arc::clone(&self.last_order),
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
    /// Over several workers every process passes the same dataset and reads its replicas' parts
    /// of each global batch alone, or what [`Batching::auto_shard`] says; all workers make the same
    /// number of steps.
    ///
    /// # Errors
    /// For a batch size of 0, for an empty dataset, for a policy that the dataset does not allow,
    /// and for padding without weights.
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
