//! How examples become batches.

use distribute_core::{Error, Result};

use crate::AutoShardPolicy;

/// How examples become batches.
///
/// ```
/// use distribute_data::Batching;
///
/// let batching = Batching::global(64).shuffle(42).drop_remainder(true).prefetch(4);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub struct Batching {
    size: BatchSize,
    length: Length,
    pub(crate) seed: Option<u64>,
    drop_remainder: bool,
    pub(crate) pad_remainder: bool,
    pub(crate) allow_empty: bool,
    prefetch: usize,
    pub(crate) num_parallel_calls: usize,
    auto_shard: Option<AutoShardPolicy>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BatchSize {
    Global(usize),
    PerReplica(usize),
}

/// How much an epoch reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Length {
    /// The dataset, this many times.
    Times(usize),
    /// This many full global batches; the dataset is repeated as needed.
    Steps(usize),
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
            length: Length::Times(1),
            seed: None,
            drop_remainder: false,
            pad_remainder: false,
            allow_empty: false,
            prefetch: 2,
            num_parallel_calls: 1,
            auto_shard: None,
        }
    }

    /// Another order in every epoch, see [`split::shuffled`](crate::split::shuffled). Without
    /// it, examples come in the dataset's order.
    pub fn shuffle(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// Reads the dataset `times` times in every epoch, in another order each time if it is
    /// shuffled, and lets batches go across its end: only the last batch of all is short
    /// (TensorFlow: `dataset.repeat(times).batch(..)`).
    ///
    /// ```
    /// use distribute_core::prelude::*;
    /// use distribute_data::prelude::*;
    ///
    /// let numbers = FnDataset::new(5, |indices: &[usize], _: &Device| Ok(indices.to_vec()));
    /// let batching = Batching::global(4).repeat(2);
    /// let train = DefaultStrategy::new().distribute_dataset(numbers, batching)?;
    /// let mut batches = Vec::new();
    /// for batch in &train {
    ///     batches.extend(batch?.into_values());
    /// }
    /// assert_eq!(batches, [vec![0, 1, 2, 3], vec![4, 0, 1, 2], vec![3, 4]]);
    /// # Ok::<(), distribute_core::Error>(())
    /// ```
    pub fn repeat(mut self, times: usize) -> Self {
        self.length = Length::Times(times);
        self
    }

    /// Reads the dataset again and again, so that every batch is full, and ends an epoch after so
    /// many steps; the next one goes on where it ended (TensorFlow: `dataset.repeat().batch(..)`
    /// with `steps_per_epoch`). It replaces [`repeat`](Self::repeat).
    pub fn steps_per_epoch(mut self, steps: usize) -> Self {
        self.length = Length::Steps(steps);
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
    /// computes *across* the examples of a batch (batch normalization) sees the copies too, unless
    /// it takes the weights: [`SyncBatchNorm::forward_weighted`].
    ///
    /// The number of batches stays the same, and [`drop_remainder`](Self::drop_remainder) still
    /// leaves the last one out.
    ///
    /// [`SyncBatchNorm::forward_weighted`]: distribute_core::SyncBatchNorm::forward_weighted
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

    /// How many global batches background threads may hold ready, 2 by default; how many threads,
    /// [`num_parallel_calls`](Self::num_parallel_calls) says. With 0 there is no thread and every
    /// batch is made when it is asked for.
    pub fn prefetch(mut self, batches: usize) -> Self {
        self.prefetch = batches;
        self
    }

    /// How many threads make batches at the same time, 1 by default (TensorFlow:
    /// `num_parallel_calls` of `dataset.map`; burn: `num_workers` of a data loader, but a worker is
    /// a process here). More of them help if reading an example takes long: a file, a picture to
    /// decode, a request.
    ///
    /// Each call of [`Dataset::batch`](crate::Dataset::batch) makes the part of one replica, and
    /// the threads take the parts in turn. The batches, their order, and which error or panic ends
    /// an epoch are the same with any number of threads, if a batch depends on its indices alone
    /// (and not, say, on burn's shared random generator). Beside the global batches of
    /// [`prefetch`](Self::prefetch) there is one more part in memory for each further thread.
    ///
    /// With 0, or without a thread (`.prefetch(0)`) and more than 1, `distribute_dataset` fails.
    ///
    /// ```
    /// use distribute_core::prelude::*;
    /// use distribute_data::prelude::*;
    ///
    /// let strategy = MirroredStrategy::builder().replicas(2).build()?;
    /// let slow = || {
    ///     FnDataset::new(10, |indices: &[usize], _: &Device| {
    ///         // Opens a file for each index, say.
    ///         Ok(indices.to_vec())
    ///     })
    /// };
    /// let batching = Batching::global(4).shuffle(42);
    /// let one = strategy.distribute_dataset(slow(), batching)?;
    /// let four = strategy.distribute_dataset(slow(), batching.num_parallel_calls(4))?;
    /// for (one, four) in one.iter().zip(four.iter()) {
    ///     assert_eq!(one?, four?);
    /// }
    /// # Ok::<(), distribute_core::Error>(())
    /// ```
    #[doc(alias = "num_workers")]
    pub fn num_parallel_calls(mut self, threads: usize) -> Self {
        self.num_parallel_calls = threads;
        self
    }

    /// How several workers divide the dataset (TensorFlow: `options.auto_shard_policy`).
    ///
    /// - REPLICAS: every worker takes its replicas' parts of each global batch, and the part of a
    ///   replica depends on its id alone: 4 replicas of one worker read what 2 workers with 2
    ///   replicas each do.
    /// - DATA: the same, but which replica gets which part depends on the number of workers, as in
    ///   TensorFlow.
    /// - FILE: every worker reads files of its own ([`Dataset::files`](crate::Dataset::files)) and
    ///   cuts its own stream.
    /// - OFF: every worker reads everything.
    /// - HINT: worker `i` of `n` reads the examples `i`, `i + n`, ... of a
    ///   [`ShardHint`](crate::ShardHint), and any other dataset as under OFF.
    /// - AUTO: FILE for datasets that say which files they are read from (none of this crate's
    ///   readers does: they hold everything in memory), else DATA.
    ///
    /// By default it is FILE where AUTO is, else REPLICAS.
    ///
    /// Under FILE, OFF and HINT a worker shuffles its own stream. All workers make the same number
    /// of steps, under every policy: one that has fewer examples, because of its files or of a
    /// shorter dataset, ends with empty batches. Losses and gradients of empty batches
    /// are zeros.
    pub fn auto_shard(mut self, policy: AutoShardPolicy) -> Self {
        self.auto_shard = Some(policy);
        self
    }

    /// The policy for a dataset that is read from files or not.
    pub(crate) fn policy(&self, has_files: bool) -> AutoShardPolicy {
        self.auto_shard.unwrap_or(if has_files {
            AutoShardPolicy::File
        } else {
            AutoShardPolicy::Replicas
        })
    }

    /// The steps of an epoch, if they are given.
    pub(crate) fn steps(&self) -> Option<usize> {
        match self.length {
            Length::Times(_) => None,
            Length::Steps(steps) => Some(steps),
        }
    }

    /// Whether every epoch reads the dataset once.
    pub(crate) fn reads_once(&self) -> bool {
        self.length == Length::Times(1)
    }

    /// What an epoch reads of a dataset or stream of `examples`; `in_steps` says what a number of
    /// full steps read.
    pub(crate) fn read(&self, examples: usize, in_steps: impl FnOnce(usize) -> usize) -> usize {
        match self.length {
            _ if examples == 0 => 0,
            Length::Times(times) => examples.saturating_mul(times),
            Length::Steps(steps) => in_steps(steps),
        }
    }

    /// `examples` without what [`drop_remainder`](Self::drop_remainder) leaves out.
    pub(crate) fn kept(&self, examples: usize, global_batch: usize) -> usize {
        if self.drop_remainder {
            examples - examples % global_batch
        } else {
            examples
        }
    }

    /// What all workers must set alike, by name. Streams of their own may be shuffled as they like.
    pub(crate) fn settings(
        &self,
        global_batch_size: usize,
        is_shared: bool,
    ) -> Vec<(String, String)> {
        let seed = match (is_shared, self.seed) {
            (false, _) => "its own".to_string(),
            (true, None) => "none".to_string(),
            (true, Some(seed)) => seed.to_string(),
        };
        let settings = [
            ("the global batch size", global_batch_size.to_string()),
            ("the auto-shard policy", self.policy_name()),
            ("the seed of the shuffle", seed),
            ("what an epoch reads", format!("{:?}", self.length)),
            ("drop_remainder", self.drop_remainder.to_string()),
            ("pad_remainder", self.pad_remainder.to_string()),
        ];
        settings.map(|(name, value)| (name.into(), value)).into()
    }

    fn policy_name(&self) -> String {
        let name = |policy| format!("{policy:?}");
        self.auto_shard.map_or_else(|| "the default".into(), name)
    }

    /// How many parts of global batches may be made and not yet taken; 0 if they are made when
    /// they are asked for.
    pub(crate) fn parts_ahead(&self, local_replicas: usize) -> usize {
        match self.prefetch {
            0 => 0,
            batches => batches
                .saturating_mul(local_replicas)
                .saturating_add(self.num_parallel_calls - 1),
        }
    }

    /// Refuses numbers of threads that cannot be.
    pub(crate) fn check_threads(&self) -> Result<()> {
        match (self.num_parallel_calls, self.prefetch) {
            (0, _) => Err(Error::invalid(
                "num_parallel_calls is 0: no thread would make batches; pass at least 1",
            )),
            (2.., 0) => Err(Error::invalid(
                "num_parallel_calls asks for several threads, and prefetch(0) for none; pass \
                 `.prefetch(1)` or more, or leave num_parallel_calls out",
            )),
            _ => Ok(()),
        }
    }

    pub(crate) fn global_size(&self, replicas: usize) -> Result<usize> {
        if matches!(self.length, Length::Times(0) | Length::Steps(0)) {
            return Err(Error::invalid(
                "an epoch reads nothing; pass at least 1 to `repeat` or `steps_per_epoch`",
            ));
        }
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
