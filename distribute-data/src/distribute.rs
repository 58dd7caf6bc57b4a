//! Global batches of a dataset, cut over the replicas of a strategy.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use distribute_core::{Device, Error, InputContext, Nest, Result, Strategy, WorkerGroup};
use serde::{Deserialize, Serialize};

use crate::AutoShardPolicy;
use crate::dataset::no_weights;
use crate::order::LastOrder;
use crate::worker_agreement::{AgreedSizes, agree_on_sizes};
use crate::worker_shard::{WorkerLayout, WorkerShard};
use crate::{Batching, Dataset, DistributedFunction, DistributedStream, split};

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
#[must_use]
pub struct DistributedDataset<D> {
    pub(crate) dataset: Arc<D>,
    /// Which part of every global batch each replica of this process gets, and its device.
    pub(crate) replicas: Arc<[(usize, Device)]>,
    pub(crate) num_replicas: usize,
    /// Whether the part of a replica is that of its id, of every worker's replicas.
    pub(crate) parts_are_ids: bool,
    pub(crate) global_batch_size: usize,
    pub(crate) batching: Batching,
    /// What this worker reads, where the workers do not share the global batches.
    pub(crate) shard: Option<Arc<WorkerShard>>,
    agreed: AgreedSizes,
    /// The other workers, which wait in every step for this one, if there are any.
    pub(crate) others: Option<WorkerGroup>,
    pub(crate) last_order: Arc<LastOrder>,
    /// The epoch that the next iteration reads.
    pub(crate) next_epoch: Arc<AtomicUsize>,
}

impl<D: Dataset> DistributedDataset<D> {
    pub(crate) fn new<S: Strategy + ?Sized>(
        strategy: &S,
        dataset: D,
        batching: Batching,
    ) -> Result<Self> {
        let num_replicas = strategy.num_replicas_in_sync();
        let policy = batching.policy(dataset.files().is_some());
        let prepared = prepare(strategy, &dataset, &batching, policy);
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
                batching.read(dataset.len(), |steps| steps.saturating_mul(*size)),
                *size,
                num_replicas,
            )),
            Err(error) => Err(error.clone()),
        };
        let agreed = agree_on_sizes(workers, numbers, settings)?;
        let (shard, global_batch_size) = shard?;
        let is_alone = strategy.input_context().num_input_pipelines == 1;
        Ok(Self {
            parts_are_ids: policy == AutoShardPolicy::Replicas || is_alone,
            shard: shard.map(Arc::new),
            agreed,
            others: workers.filter(|group| group.num_workers() > 1).cloned(),
            last_order: Arc::default(),
            next_epoch: Arc::default(),
            dataset: Arc::new(dataset),
            replicas: parts_of_replicas(strategy, policy),
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

    /// The examples that an epoch reads, where the workers share the global batches.
    pub(crate) fn read(&self) -> usize {
        let in_steps = |steps: usize| steps.saturating_mul(self.global_batch_size);
        self.batching.read(self.len(), in_steps)
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
        let parts = self.replicas.iter();
        parts.map(|(part, _)| self.range_of(batch, *part)).collect()
    }

    /// Where the examples of a part of a global batch lie, where the workers share them.
    pub(crate) fn range_of(&self, batch: usize, part: usize) -> Range<usize> {
        // Of this worker's own dataset: another worker's may have more batches.
        let examples = self.batching.kept(self.read(), self.global_batch_size);
        let start = batch.saturating_mul(self.global_batch_size).min(examples);
        let size = self.global_batch_size.min(examples - start);
        let part = split::replica_range(size, self.num_replicas, part);
        start + part.start..start + part.end
    }
}

/// Shares the dataset.
impl<D> Clone for DistributedDataset<D> {
    fn clone(&self) -> Self {
        Self {
            dataset: Arc::clone(&self.dataset),
            replicas: Arc::clone(&self.replicas),
            num_replicas: self.num_replicas,
            parts_are_ids: self.parts_are_ids,
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
    policy: AutoShardPolicy,
) -> Result<(Option<WorkerShard>, usize)> {
    let global_batch = batching.global_size(strategy.num_replicas_in_sync())?;
    batching.check_threads()?;
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
    let shard = WorkerShard::new(policy, dataset, batching, layout)?;
    Ok((shard, global_batch))
}

/// The steps of an epoch and the rows of padded batches, as far as this worker knows; `sizes` are
/// the global batch size and the number of replicas.
fn local_sizes(
    shard: Option<&WorkerShard>,
    batching: &Batching,
    examples: usize,
    global_batch: usize,
    replicas: usize,
) -> AgreedSizes {
    let share = |examples: usize| examples.div_ceil(replicas.max(1));
    match shard {
        Some(shard) => AgreedSizes {
            steps: shard.steps(),
            rows: shard.most_examples().min(share(global_batch)),
        },
        None => AgreedSizes {
            steps: batching.kept(examples, global_batch).div_ceil(global_batch),
            rows: share(global_batch.min(examples)),
        },
    }
}

/// The parts of a global batch that this process' replicas get: those with their ids. Under
/// TensorFlow's policy DATA, which AUTO may stand for, the workers take the parts in turn: worker
/// `i` of `n` gets the parts `i`, `i + n`, ...
fn parts_of_replicas<S: Strategy + ?Sized>(
    strategy: &S,
    policy: AutoShardPolicy,
) -> Arc<[(usize, Device)]> {
    let replicas = strategy.replicas();
    let context = strategy.input_context();
    let workers = context.num_input_pipelines;
    let in_turn = policy != AutoShardPolicy::Replicas && has_equal_workers(strategy);
    let parts = replicas.iter().enumerate().map(|(local, replica)| {
        let part = if in_turn {
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

    /// Distributes the batches of a stream of `distribute-pipeline`: `make` makes a part of a
    /// global batch, a list of examples, on the device of a replica.
    ///
    /// Every worker passes the same stream and reads all of it; a
    /// [`SourceDataset`](crate::SourceDataset) reads only its own examples.
    ///
    /// ```
    /// use distribute_core::prelude::*;
    /// use distribute_data::prelude::*;
    /// use distribute_pipeline::{AUTOTUNE, Source, Stream, range};
    ///
    /// let rows = range(0..100).map(|x| x as f32 / 100.0).cache().stream();
    /// let batches = rows.shuffle(50, 42).batch(8).prefetch(AUTOTUNE);
    /// let strategy = MirroredStrategy::builder().replicas(2).build()?;
    /// let train = strategy.distribute_stream(batches, |rows: &[f32], device: &Device| {
    ///     Ok(Tensor::<1>::from_floats(rows, device))
    /// })?;
    /// assert_eq!(train.epoch(0, 0)?.count(), 13);
    /// # Ok::<(), distribute_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// For a stream with a wrong argument, on all workers.
    fn distribute_stream<P, E, F, B>(&self, stream: P, make: F) -> Result<DistributedStream<P, F>>
    where
        P: distribute_pipeline::Stream<Item = Vec<E>>,
        F: Fn(&[E], &Device) -> Result<B>,
        B: Nest,
    {
        DistributedStream::new(self, stream, make)
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
    /// A pipeline is read on another thread, so it must be `Send`. The iterators of burn's
    /// `DataLoader` are not: `distribute_data_loader` (feature `dataset`) is for loaders.
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

    /// Distributes a data loader of burn (`DataLoaderBuilder`), whose `batch_size` is that of one
    /// replica: every replica reads a slice of the examples, on its own device, so that each
    /// example comes once per pass, whatever the number of replicas, of workers and of the loader's
    /// threads (`num_workers`). The last batch of each slice may be short. Every worker passes a
    /// loader of the whole dataset.
    ///
    /// The order of shuffled batches, and of batches that several threads make, is the loader's: a
    /// run that is resumed within an epoch reads other batches than the interrupted run would have.
    /// For exact epochs distribute the loader's dataset and batcher in a
    /// [`FnDataset`](crate::FnDataset), with [`Batching::num_parallel_calls`].
    ///
    /// ```
    /// use burn::data::dataloader::{DataLoaderBuilder, batcher::Batcher};
    /// use burn::data::dataset::InMemDataset;
    /// use distribute_core::prelude::*;
    /// use distribute_data::StrategyDataExt;
    ///
    /// struct Rows;
    ///
    /// impl Batcher<f32, Tensor<1>> for Rows {
    ///     fn batch(&self, items: Vec<f32>, device: &Device) -> Tensor<1> {
    ///         Tensor::from_floats(&items[..], device)
    ///     }
    /// }
    ///
    /// let strategy = MirroredStrategy::builder().replicas(2).build()?;
    /// let items = (0..9).map(|item| item as f32).collect();
    /// let loader = DataLoaderBuilder::new(Rows).batch_size(2).num_workers(2);
    /// let loader = loader.shuffle(42).build(InMemDataset::new(items));
    /// let mut sum = 0.0;
    /// for batch in &strategy.distribute_data_loader(&*loader) {
    ///     let sums = strategy.run(batch?, |_, items| Ok(items.sum()))?;
    ///     sum += strategy.reduce(ReduceOp::Sum, sums)?.into_scalar::<f32>();
    /// }
    /// assert_eq!(sum, 36.0);
    /// # Ok::<(), distribute_core::Error>(())
    /// ```
    #[cfg(feature = "dataset")]
    fn distribute_data_loader<O>(
        &self,
        loader: &dyn burn::data::dataloader::DataLoader<O>,
    ) -> crate::DistributedDataLoader<O> {
        crate::DistributedDataLoader::new(self, loader)
    }
}

impl<S: Strategy + ?Sized> StrategyDataExt for S {}
