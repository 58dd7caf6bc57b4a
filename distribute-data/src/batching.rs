//! How examples become batches.

use distribute_core::{Error, Result};

use crate::auto_shard::AutoShardPolicy;

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
    pub(crate) seed: Option<u64>,
    pub(crate) drop_remainder: bool,
    pub(crate) pad_remainder: bool,
    pub(crate) allow_empty: bool,
    pub(crate) prefetch: usize,
    pub(crate) auto_shard: AutoShardPolicy,
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
            ("the auto-shard policy", format!("{:?}", self.auto_shard)),
            ("the seed of the shuffle", seed),
            ("drop_remainder", self.drop_remainder.to_string()),
            ("pad_remainder", self.pad_remainder.to_string()),
        ];
        settings.map(|(name, value)| (name.into(), value)).into()
    }

    pub(crate) fn global_size(&self, replicas: usize) -> Result<usize> {
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
