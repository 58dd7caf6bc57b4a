//! What a worker reads under the auto-shard policies by which it has examples of its own: FILE,
//! the examples of its files; HINT, every n-th example; OFF, all examples.

use std::ops::Range;

use distribute_core::{Error, Result};

use crate::AutoShardPolicy;
use crate::DataError;
use crate::split::{batch_sizes_for_worker, stream};
use crate::{Batching, Dataset};

/// One worker's examples, and how they are cut into the batches of its replicas.
#[derive(Debug, Clone)]
pub(crate) struct WorkerShard {
    examples: Vec<usize>,
    /// How many examples an epoch reads, of all of them once or again and again.
    read: usize,
    /// The same without a remainder that is dropped.
    kept: usize,
    /// The sizes of batches, one after the other and again from the start.
    sizes: Vec<usize>,
    local_replicas: usize,
    /// The steps of the worker that has most; the others fill up with empty batches.
    steps: usize,
    /// The examples of the worker that has most.
    most_examples: usize,
}

/// Which worker this is, how many there are, and their replicas.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WorkerLayout {
    pub(crate) worker: usize,
    pub(crate) workers: usize,
    pub(crate) local_replicas: usize,
    /// Whether all workers have equally many replicas.
    pub(crate) is_equal: bool,
    pub(crate) global_batch: usize,
}

/// Which examples of a dataset a worker has as a stream of its own.
enum Own {
    All,
    EveryNth,
    Files(Vec<Range<usize>>),
}

impl Own {
    fn of<D: Dataset>(policy: AutoShardPolicy, dataset: &D) -> Result<Option<Self>> {
        Ok(match (policy, dataset.files(), dataset.has_shard_hint()) {
            (AutoShardPolicy::File, None, _) => return Err(DataError::Unshardable.into()),
            (AutoShardPolicy::Hint, _, true) => Some(Self::EveryNth),
            (_, _, true) => return Err(DataError::HintIgnored.into()),
            (AutoShardPolicy::Data | AutoShardPolicy::Replicas, ..)
            | (AutoShardPolicy::Auto, None, _) => None,
            (AutoShardPolicy::Off | AutoShardPolicy::Hint, ..) => Some(Self::All),
            (AutoShardPolicy::Auto | AutoShardPolicy::File, Some(files), _) => {
                Some(Self::Files(files))
            }
        })
    }

    fn examples(&self, all: usize, worker: usize, workers: usize) -> Vec<usize> {
        match self {
            Self::All => (0..all).collect(),
            Self::EveryNth => (worker..all).step_by(workers).collect(),
            Self::Files(files) => {
                let own = files.iter().skip(worker).step_by(workers);
                own.cloned().flatten().collect()
            }
        }
    }
}

impl WorkerShard {
    /// The stream under this policy; `None` if the workers share every global batch (DATA,
    /// REPLICAS, and AUTO for a dataset that is not read from files).
    ///
    /// # Errors
    /// [`DataError`]; workers with different numbers of replicas.
    pub(crate) fn new<D: Dataset>(
        policy: AutoShardPolicy,
        dataset: &D,
        batching: &Batching,
        layout: WorkerLayout,
    ) -> Result<Option<Self>> {
        let Some(own) = Own::of(policy, dataset)? else {
            return Ok(None);
        };
        if !layout.is_equal {
            return Err(Error::invalid(
                "the auto-shard policies OFF, FILE and HINT need workers with equally many replicas; \
                 use REPLICAS or DATA",
            ));
        }
        if let Own::Files(files) = &own
            && files.len() < layout.workers
        {
            let (files, workers) = (files.len(), layout.workers);
            return Err(DataError::TooFewFiles { files, workers }.into());
        }
        let examples_of = |worker: usize| own.examples(dataset.len(), worker, layout.workers);
        let read = |examples: usize, sizes: &[usize]| {
            let in_steps = |steps: usize| first(sizes, steps.saturating_mul(layout.local_replicas));
            let read = batching.read(examples, in_steps);
            // Of full steps nothing is left over.
            match batching.steps() {
                Some(_) => (read, read),
                None => (read, batching.kept(read, layout.global_batch)),
            }
        };
        let (mut steps, mut most_examples) = (0, 0);
        for worker in 0..layout.workers {
            let sizes = layout.sizes(worker)?;
            let (_, own) = read(examples_of(worker).len(), &sizes);
            let counted = match batching.steps() {
                Some(steps) if own > 0 => steps,
                _ => step_count(own, &sizes, layout.local_replicas),
            };
            steps = steps.max(counted);
            most_examples = most_examples.max(own);
        }
        let examples = examples_of(layout.worker);
        let (read, kept) = read(examples.len(), &layout.sizes(layout.worker)?);
        Ok(Some(Self {
            read,
            kept,
            examples,
            sizes: layout.sizes(layout.worker)?,
            local_replicas: layout.local_replicas,
            steps,
            most_examples,
        }))
    }

    /// The steps of an epoch, on every worker.
    pub(crate) fn steps(&self) -> usize {
        self.steps
    }

    /// The examples of the worker that has most.
    pub(crate) fn most_examples(&self) -> usize {
        self.most_examples
    }

    /// The examples in the order of an epoch. What the epoch does not read is at the end, so that
    /// with a shuffle it is another remainder each time.
    pub(crate) fn order(&self, shuffle: Option<u64>, epoch: usize) -> Vec<usize> {
        let order = stream(self.examples.len(), shuffle, self.read, epoch).into_iter();
        order.map(|place| self.examples[place]).collect()
    }

    /// Where in the order the batch of each local replica of a step lies; after the last example
    /// they are empty.
    pub(crate) fn ranges(&self, step: usize) -> Vec<Range<usize>> {
        let before = step * self.local_replicas;
        let mut start = first(&self.sizes, before);
        let sizes = self
            .sizes
            .iter()
            .cycle()
            .skip(before % self.sizes.len())
            .take(self.local_replicas);
        let end = self.kept;
        sizes
            .map(|size| {
                let range = start.min(end)..(start + size).min(end);
                start += size;
                range
            })
            .collect()
    }
}

impl WorkerLayout {
    fn sizes(self, worker: usize) -> Result<Vec<usize>> {
        batch_sizes_for_worker(self.global_batch, self.workers, self.local_replicas, worker)
    }
}

/// The examples of the first `batches` batches of these sizes, again and again.
fn first(sizes: &[usize], batches: usize) -> usize {
    let (rounds, place) = (batches / sizes.len(), batches % sizes.len());
    let per_round: usize = sizes.iter().sum();
    rounds.saturating_mul(per_round) + sizes.iter().take(place).sum::<usize>()
}

/// The steps in which a stream of `examples` is used up. Batches of size 0 behind the last example
/// count, as in TensorFlow.
fn step_count(examples: usize, sizes: &[usize], local_replicas: usize) -> usize {
    let per_round: usize = sizes.iter().sum();
    if examples == 0 || per_round == 0 {
        return 0;
    }
    let mut batches = examples / per_round * sizes.len();
    let mut left = examples % per_round;
    for size in sizes {
        if left == 0 && *size > 0 {
            break;
        }
        left -= left.min(*size);
        batches += 1;
    }
    batches.div_ceil(local_replicas)
}
