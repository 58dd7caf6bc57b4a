//! What each of several workers sees of a dataset: TensorFlow's auto-shard policies as pure
//! functions over a description of the dataset.
//!
//! [`Batching::auto_shard`](crate::Batching::auto_shard) divides a dataset that is read by index in
//! the same way. These functions are for streams, and to say what TensorFlow would do.

use crate::DataError;
use crate::split::{batch_sizes_for_worker, per_replica_sizes};

/// How a dataset is divided between workers (TensorFlow: `tf.data.experimental.AutoShardPolicy`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum AutoShardPolicy {
    /// [`File`](Self::File) if the dataset is read from files, else [`Data`](Self::Data).
    #[default]
    Auto,
    /// Worker `i` of `n` reads the files `i`, `i + n`, ...
    File,
    /// Every worker reads everything and keeps its parts of each global batch: worker `i` of `n`
    /// the parts `i`, `i + n`, ... where all have equally many replicas.
    Data,
    /// Every worker reads everything, and replica `r` of all gets part `r` of each global batch,
    /// whichever worker it is in. TensorFlow has no such policy.
    Replicas,
    /// Every worker reads everything and keeps it.
    Off,
    /// The dataset says itself where it is to be divided ([`Source::Hinted`]).
    Hint,
}

/// Where the elements of a dataset come from.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Source<T> {
    /// Memory, or a generator.
    Elements(Vec<T>),
    /// Files, each with its elements.
    Files(Vec<Vec<T>>),
    /// Elements that every worker is to take each n-th of
    /// (TensorFlow: `shard(SHARD_HINT, SHARD_HINT)`).
    Hinted(Vec<T>),
}

/// A dataset: `source.batch(global_batch_size, drop_remainder).repeat(repeat)`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BatchedSource<T> {
    /// The elements.
    pub source: Source<T>,
    /// The elements of a global batch.
    pub global_batch_size: usize,
    /// Whether the last batch is left out if it is short.
    pub drop_remainder: bool,
    /// How often the batches come, one pass after the other.
    pub repeat: usize,
}

/// One of several workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Worker {
    /// Which one.
    pub index: usize,
    /// The number of workers.
    pub workers: usize,
    /// The number of replicas of each of them.
    pub replicas_per_worker: usize,
}

/// The batches that one worker sees, one after the other. Its replicas take one each per step;
/// [`steps_of_worker`] adds the empty batches that it gets while others still have some.
///
/// Under AUTO as DATA and DATA every global batch is cut over all replicas of all workers with
/// [`per_replica_sizes`], and worker `i` of `n` keeps the parts `i`, `i + n`, ...; under REPLICAS
/// those with the ids of its replicas. Under the other policies a worker cuts its own stream into
/// batches of the sizes that [`batch_sizes_for_worker`] gives, again and again, whatever the sizes
/// of the global batches were.
///
/// # Errors
/// [`DataError`]. With fewer files than workers only the workers that have a file report it, as
/// in TensorFlow; the others see nothing.
pub fn auto_shard<T: Clone>(
    policy: AutoShardPolicy,
    dataset: &BatchedSource<T>,
    worker: Worker,
) -> Result<Vec<Vec<T>>, DataError> {
    let sizes = batch_sizes_for_worker(
        dataset.global_batch_size,
        worker.workers,
        worker.replicas_per_worker,
        worker.index,
    )
    .map_err(|error| DataError::InvalidShard {
        what: error.to_string(),
    })?;
    if dataset.global_batch_size == 0 {
        return Err(DataError::InvalidShard {
            what: "the batch size is 0; pass at least 1 element".into(),
        });
    }
    let every_nth = |elements: &[T]| -> Vec<T> {
        let own = elements.iter().skip(worker.index).step_by(worker.workers);
        own.cloned().collect()
    };
    match (policy, &dataset.source) {
        (AutoShardPolicy::Auto | AutoShardPolicy::File, Source::Files(files)) => {
            if files.len() < worker.workers && worker.index < files.len() {
                return Err(DataError::TooFewFiles {
                    files: files.len(),
                    workers: worker.workers,
                });
            }
            let own = files.iter().skip(worker.index).step_by(worker.workers);
            Ok(cut(&dataset.batches(own.flatten()), &sizes))
        }
        (AutoShardPolicy::File, _) => Err(DataError::Unshardable),
        (AutoShardPolicy::Hint, Source::Hinted(elements)) => {
            Ok(cut(&dataset.batches(&every_nth(elements)), &sizes))
        }
        (_, Source::Hinted(_)) => Err(DataError::HintIgnored),
        (AutoShardPolicy::Auto | AutoShardPolicy::Data | AutoShardPolicy::Replicas, source) => {
            let batches = dataset.batches(source.all());
            let mut own = Vec::new();
            for batch in &batches {
                let mut rest = batch.as_slice();
                let parts = per_replica_sizes(batch.len(), sizes.len());
                for (part, size) in parts.into_iter().enumerate() {
                    let (taken, left) = rest.split_at(size);
                    let owner = match policy {
                        AutoShardPolicy::Replicas => part / worker.replicas_per_worker,
                        _ => part % worker.workers,
                    };
                    if owner == worker.index {
                        own.push(taken.to_vec());
                    }
                    rest = left;
                }
            }
            Ok(own)
        }
        (AutoShardPolicy::Off | AutoShardPolicy::Hint, source) => {
            Ok(cut(&dataset.batches(source.all()), &sizes))
        }
    }
}

impl<T> Source<T> {
    fn all(&self) -> Box<dyn Iterator<Item = &T> + '_> {
        match self {
            Self::Elements(elements) | Self::Hinted(elements) => Box::new(elements.iter()),
            Self::Files(files) => Box::new(files.iter().flatten()),
        }
    }
}

impl<T: Clone> BatchedSource<T> {
    /// The global batches of these elements.
    fn batches<'a>(&self, elements: impl IntoIterator<Item = &'a T>) -> Vec<Vec<T>>
    where
        T: 'a,
    {
        let elements: Vec<T> = elements.into_iter().cloned().collect();
        let mut pass: Vec<Vec<T>> = elements
            .chunks(self.global_batch_size)
            .map(<[T]>::to_vec)
            .collect();
        if self.drop_remainder {
            pass.retain(|batch| batch.len() == self.global_batch_size);
        }
        let mut batches = Vec::new();
        for _ in 0..self.repeat {
            batches.extend(pass.iter().cloned());
        }
        batches
    }
}

/// Cuts a stream into batches of these sizes, again and again. A size of 0 gives an empty batch
/// without a look at the stream, so empty ones may follow the last element.
fn cut<T: Clone>(batches: &[Vec<T>], sizes: &[usize]) -> Vec<Vec<T>> {
    let mut stream = batches.iter().flatten().cloned().peekable();
    let mut out = Vec::new();
    if stream.peek().is_none() {
        return out;
    }
    for &size in sizes.iter().cycle() {
        if size > 0 && stream.peek().is_none() {
            break;
        }
        out.push(stream.by_ref().take(size).collect());
    }
    out
}

/// What the replicas of one worker get, step by step: its batches of [`auto_shard`], and empty ones
/// until the worker with most is through.
///
/// # Errors
/// As [`auto_shard`] for this worker.
pub fn steps_of_worker<T: Clone>(
    policy: AutoShardPolicy,
    dataset: &BatchedSource<T>,
    worker: Worker,
) -> Result<Vec<Vec<Vec<T>>>, DataError> {
    let replicas = worker.replicas_per_worker.max(1);
    let own = auto_shard(policy, dataset, worker)?;
    let others = (0..worker.workers).filter_map(|index| {
        let batches = auto_shard(policy, dataset, Worker { index, ..worker }).ok()?;
        Some(batches.len().div_ceil(replicas))
    });
    let most = others.max().unwrap_or(0);
    let mut own = steps(&[own], replicas);
    own.resize(most, vec![Vec::new(); replicas]);
    Ok(own)
}

/// The steps of a training over all workers: `steps[s][r]` is what replica `r` gets at step `s`,
/// worker by worker. A worker that runs out early gets empty batches until all are done.
pub fn steps<T: Clone>(
    batches_of_workers: &[Vec<Vec<T>>],
    replicas_per_worker: usize,
) -> Vec<Vec<Vec<T>>> {
    let per_step = replicas_per_worker.max(1);
    let lengths = batches_of_workers.iter().map(Vec::len);
    let count = lengths.max().unwrap_or(0).div_ceil(per_step);
    let of_step = |step: usize| {
        let places = step * per_step..(step + 1) * per_step;
        batches_of_workers
            .iter()
            .flat_map(move |batches| {
                let places = places.clone();
                places.map(|place| batches.get(place).cloned().unwrap_or_default())
            })
            .collect()
    };
    (0..count).map(of_step).collect()
}
