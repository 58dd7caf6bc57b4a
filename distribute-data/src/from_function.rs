//! Input pipelines that the user writes: one iterator of batches per worker or per replica.

use std::fmt;

use distribute_core::trace::TensorSpec;
use distribute_core::{
    Error, InputContext, Nest, NestPath, PerReplica, Result, Strategy, TensorData,
    VariablePlacement, WorkerGroup,
};
use serde::{Deserialize, Serialize};

use crate::DataError;
use crate::prefetch::Prefetch;
use crate::worker_agreement::other_call;

/// How many input pipelines there are (TensorFlow: `tf.distribute.InputReplicationMode`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum ReplicationMode {
    /// One per worker; its replicas take one batch each per step, in turn.
    #[default]
    PerWorker,
    /// One per replica.
    PerReplica,
}

/// Batches that a function makes, one for each replica and step
/// (TensorFlow: `distribute_datasets_from_function`).
#[must_use]
pub struct DistributedFunction<F> {
    function: F,
    context: InputContext,
    local_replicas: usize,
    /// The id of this process' first replica.
    first_replica: usize,
    mode: ReplicationMode,
    drop_partial_step: bool,
    prefetch: usize,
    workers: Option<WorkerGroup>,
}

impl<F> DistributedFunction<F> {
    pub(crate) fn new<S: Strategy + ?Sized>(strategy: &S, function: F) -> Self {
        Self {
            function,
            context: strategy.input_context(),
            local_replicas: strategy.replicas().len(),
            first_replica: strategy.replicas().first().map_or(0, |replica| replica.id),
            mode: ReplicationMode::default(),
            drop_partial_step: strategy.variable_placement() == VariablePlacement::Central,
            prefetch: 2,
            workers: strategy.workers().cloned(),
        }
    }

    /// One pipeline per worker (the default) or per replica.
    pub fn replication_mode(mut self, mode: ReplicationMode) -> Self {
        self.mode = mode;
        self
    }

    /// How many steps a background thread may hold ready, 2 by default; 0 for no thread.
    pub fn prefetch(mut self, steps: usize) -> Self {
        self.prefetch = steps;
        self
    }

    fn contexts(&self) -> Vec<InputContext> {
        match self.mode {
            ReplicationMode::PerWorker => vec![self.context],
            ReplicationMode::PerReplica => (0..self.local_replicas)
                .map(|local| InputContext {
                    num_input_pipelines: self.context.num_replicas_in_sync,
                    input_pipeline_id: self.first_replica + local,
                    ..self.context
                })
                .collect(),
        }
    }

    /// Calls the function, once per pipeline, and takes batches from what it returns until it
    /// ends.
    ///
    /// A last step with too few batches is filled up with empty ones: tensors lose their examples
    /// and numbers become 0. Under central storage it is left out. An error or a panic of a
    /// pipeline comes out as the last item.
    ///
    /// Over several workers the pipelines may end after different numbers of steps: a worker whose
    /// pipeline has ended gets empty batches until all have (as in TensorFlow). So does one that
    /// never had a batch, if its type says how many tensors it has: made of tensors, numbers,
    /// tuples, arrays and structs of these. For that the workers exchange a word before every step.
    ///
    /// # Errors
    /// What the function returns.
    pub fn epoch<I, B>(&self) -> Result<Steps<B>>
    where
        F: Fn(InputContext) -> Result<I>,
        I: Iterator<Item = Result<B>> + Send + 'static,
        B: Nest + Clone + Send + 'static,
    {
        let contexts = self.contexts().into_iter();
        let pipelines = contexts.map(|context| Ok((self.function)(context)?.fuse()));
        let pipelines = pipelines.collect::<Result<Vec<_>>>();
        let pipelines = match &self.workers {
            None => pipelines?,
            // The others wait for this worker's word.
            Some(workers) => workers.or_abort(pipelines)?,
        };
        let producer = Producer {
            pipelines,
            local_replicas: self.local_replicas,
            drop_partial_step: self.drop_partial_step,
        };
        let items = Prefetch::new(producer, self.prefetch);
        Ok(Steps::new(items, self.workers.clone(), self.local_replicas))
    }
}

impl<F> fmt::Debug for DistributedFunction<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DistributedFunction")
            .field("context", &self.context)
            .field("mode", &self.mode)
            .finish_non_exhaustive()
    }
}

/// The steps of one pass over a [`DistributedFunction`] or a data loader of burn, one batch per
/// local replica.
///
/// Dropping it early stops its thread and waits until the step in the making is done.
pub struct Steps<B> {
    items: Prefetch<PerReplica<B>>,
    sync: Option<WorkerSync<B>>,
}

impl<B: Nest + Clone> Steps<B> {
    /// These steps, as many as the worker with most has if there are several.
    pub(crate) fn new(
        items: Prefetch<PerReplica<B>>,
        workers: Option<WorkerGroup>,
        local_replicas: usize,
    ) -> Self {
        let sync = workers.map(|workers| WorkerSync::new(workers, local_replicas));
        Self { items, sync }
    }

    /// These steps without the first `count`, which are made and dropped.
    pub(crate) fn without_first(mut self, count: usize) -> Result<Self> {
        for _ in 0..count {
            if self.next().transpose()?.is_none() {
                break;
            }
        }
        Ok(self)
    }
}

impl<B: Nest + Clone> Iterator for Steps<B> {
    type Item = Result<PerReplica<B>>;

    fn next(&mut self) -> Option<Self::Item> {
        match &mut self.sync {
            None => self.items.next(),
            Some(sync) => sync.next(&mut self.items),
        }
    }
}

impl<B> fmt::Debug for Steps<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Steps").finish_non_exhaustive()
    }
}

/// Keeps the workers in step: one whose pipeline has ended gets empty batches until all have.
struct WorkerSync<B> {
    workers: WorkerGroup,
    local_replicas: usize,
    /// An empty batch, once this worker has one.
    empty: Option<B>,
    is_first: bool,
    ended: bool,
}

/// What a worker says of its next step.
#[derive(Debug, Serialize, Deserialize)]
enum StepReport {
    /// There is one. Its first says which tensors a batch without examples has.
    Step(Option<Vec<TensorSpec>>),
    End,
    Failed(String),
}

impl<B: Nest + Clone> WorkerSync<B> {
    fn new(workers: WorkerGroup, local_replicas: usize) -> Self {
        Self {
            workers,
            local_replicas,
            empty: None,
            is_first: true,
            ended: false,
        }
    }

    /// The next step of all workers.
    fn next(
        &mut self,
        items: &mut impl Iterator<Item = Result<PerReplica<B>>>,
    ) -> Option<Result<PerReplica<B>>> {
        if self.ended {
            return None;
        }
        let ready = items.next().transpose().and_then(|item| {
            let specs = item
                .as_ref()
                .map(|batch| self.leaf_specs(batch))
                .transpose()?;
            Ok((item, specs))
        });
        let step = match ready {
            Ok((item, specs)) => self.agree_on_step(item, specs),
            Err(error) => return Some(Err(self.report_failure(error))),
        };
        self.ended = !matches!(step, Ok(Some(_)));
        step.transpose()
    }

    /// Sends the error to the other workers, which wait for the report of this one.
    fn report_failure(&mut self, error: Error) -> Error {
        self.ended = true;
        let report = StepReport::Failed(error.to_string());
        // The first error is the one to report.
        let _ = self.gather_reports(&report);
        error
    }

    fn agree_on_step(
        &mut self,
        item: Option<PerReplica<B>>,
        specs: Option<Option<Vec<TensorSpec>>>,
    ) -> Result<Option<PerReplica<B>>> {
        let report = specs.map_or(StepReport::End, StepReport::Step);
        self.is_first = false;
        let all = self.gather_reports(&report)?;
        let mut specs = None;
        for (worker, report) in all.into_iter().enumerate() {
            match report {
                StepReport::Failed(cause) => {
                    let what = format!("the input pipeline of worker {worker} failed: {cause}");
                    return Err(Error::invalid(what));
                }
                StepReport::Step(found) => specs = specs.or(Some(found)),
                StepReport::End => {}
            }
        }
        match (item, specs) {
            (Some(item), _) => Ok(Some(item)),
            // All have ended.
            (None, None) => Ok(None),
            (None, Some(specs)) => {
                let batch = self.empty(specs)?;
                Ok(Some(PerReplica::new(vec![batch; self.local_replicas])))
            }
        }
    }

    /// Sends the report of this worker, and returns the reports of all.
    fn gather_reports(&self, report: &StepReport) -> Result<Vec<StepReport>> {
        let text = serde_json::to_string(report).map_err(Error::internal)?;
        let texts = self.workers.gather_text(&text)?.into_iter();
        let read = |(worker, text): (usize, String)| {
            serde_json::from_str(&text).map_err(|_| other_call(worker))
        };
        texts.enumerate().map(read).collect()
    }

    /// The tensors of this worker's first batch without its examples, for workers that have none.
    fn leaf_specs(&mut self, batch: &PerReplica<B>) -> Result<Option<Vec<TensorSpec>>> {
        let Some(batch) = batch.values().first().filter(|_| self.empty.is_none()) else {
            return Ok(None);
        };
        let mut empty = empty_like(batch.clone())?;
        let mut specs = Vec::new();
        empty.walk(&NestPath::ROOT, &mut |_, leaf| {
            specs.push(leaf.spec());
            Ok(())
        })?;
        self.empty = Some(empty);
        Ok(self.is_first.then_some(specs))
    }

    /// A batch without examples: like this worker's own, or with the tensors that another worker
    /// described.
    fn empty(&mut self, specs: Option<Vec<TensorSpec>>) -> Result<B> {
        if let Some(empty) = &self.empty {
            return Ok(empty.clone());
        }
        let refuse = || {
            let what = "this worker's input pipeline never had a batch to make an empty one like";
            Error::from(DataError::EmptyBatch { what: what.into() })
        };
        let (Some(specs), Some(mut empty)) = (specs, B::placeholder()) else {
            return Err(refuse());
        };
        let leaves = specs.into_iter().map(|TensorSpec { dtype, shape }| {
            let sizes = shape.iter().copied().chain([dtype.size()]);
            let bytes = sizes.fold(1, usize::saturating_mul);
            // Without examples there is at most a number.
            let has_room = bytes <= size_of::<f64>();
            has_room.then(|| TensorData::from_bytes_vec(vec![0; bytes], shape, dtype))
        });
        let leaves: Option<Vec<_>> = leaves.collect();
        empty.put_leaves(leaves.ok_or_else(refuse)?)?;
        self.empty = Some(empty.clone());
        Ok(empty)
    }
}

/// Takes a batch for each replica of this process, step by step.
pub(crate) struct Producer<I> {
    pub(crate) pipelines: Vec<I>,
    pub(crate) local_replicas: usize,
    pub(crate) drop_partial_step: bool,
}

impl<I, B> Iterator for Producer<I>
where
    I: Iterator<Item = Result<B>>,
    B: Nest + Clone,
{
    type Item = Result<PerReplica<B>>;

    fn next(&mut self) -> Option<Self::Item> {
        let count = self.pipelines.len();
        let mut batches: Vec<Option<B>> = Vec::with_capacity(self.local_replicas);
        for replica in 0..self.local_replicas {
            // One pipeline serves all replicas, or each has its own.
            match self.pipelines[replica % count].next() {
                Some(Ok(batch)) => batches.push(Some(batch)),
                Some(Err(error)) => return Some(Err(error)),
                None => batches.push(None),
            }
        }
        let like = batches.iter().flatten().next()?.clone();
        if batches.iter().any(Option::is_none) && self.drop_partial_step {
            return None;
        }
        let fill = |batch: Option<B>| batch.map_or_else(|| empty_like(like.clone()), Ok);
        let batches = batches.into_iter().map(fill).collect::<Result<Vec<_>>>();
        Some(batches.map(PerReplica::new))
    }
}

/// The batch without its examples: axis 0 of every tensor becomes 0, every number too.
fn empty_like<B: Nest>(mut batch: B) -> Result<B> {
    let refuse = |what: String| Error::from(DataError::EmptyBatch { what });
    let leaves = batch.take_leaves()?;
    let empty = leaves.into_iter().map(|leaf| {
        let mut shape = leaf.shape().to_vec();
        if let Some(examples) = shape.first_mut() {
            *examples = 0;
        }
        let bytes = vec![0; shape.iter().product::<usize>() * leaf.dtype().size()];
        TensorData::from_bytes_vec(bytes, shape, leaf.dtype())
    });
    let empty = empty.collect();
    batch
        .put_leaves(empty)
        .map_err(|error| refuse(error.to_string()))?;
    Ok(batch)
}
