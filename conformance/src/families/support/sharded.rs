//! A dataset that several workers divide, as the files describe it, and what one of them reads.

use std::ops::Range;
use std::sync::Arc;

use distribute_core::{
    Device, InputContext, LeafVisitor, LogicalDevice, MirroredStrategy, Nest, NestPath, Replica,
    ReplicaStep, Result, Strategy, StrategyId,
};
use distribute_data::{AutoShardPolicy, Batching, Dataset, ShardHint, StrategyDataExt};
use serde_json::{Value, json};

use crate::json::counts_in;
use crate::outcome::Failure;

/// A policy by TensorFlow's name.
pub(crate) fn policy(name: &str) -> std::result::Result<AutoShardPolicy, Failure> {
    Ok(match name {
        "AUTO" => AutoShardPolicy::Auto,
        "FILE" => AutoShardPolicy::File,
        "DATA" => AutoShardPolicy::Data,
        "OFF" => AutoShardPolicy::Off,
        "HINT" => AutoShardPolicy::Hint,
        other => return Err(Failure::schema(format!("policy {other}"))),
    })
}

/// What each replica of a worker gets, step by step.
pub(crate) type Steps = Vec<Vec<Vec<Value>>>;

/// What a file lists, which has no tensors.
#[derive(Clone)]
struct Element(Value);

impl Nest for Element {
    fn walk(&mut self, _: &NestPath<'_>, _: LeafVisitor<'_>) -> Result<()> {
        Ok(())
    }
}

/// Elements, and which of them each file holds.
#[derive(Clone)]
struct Listed {
    elements: Vec<Value>,
    files: Option<Vec<Range<usize>>>,
}

impl Listed {
    fn of_files(files: impl Iterator<Item = Vec<Value>>) -> Self {
        let (mut elements, mut ranges) = (Vec::new(), Vec::new());
        for file in files {
            ranges.push(elements.len()..elements.len() + file.len());
            elements.extend(file);
        }
        Self {
            elements,
            files: Some(ranges),
        }
    }

    /// The same without the elements after the last full batch of a worker's stream.
    fn of_full_batches(mut self, policy: AutoShardPolicy, batch: usize, workers: usize) -> Self {
        let full = |count: usize| count - count % batch;
        match (&self.files, policy) {
            (Some(files), AutoShardPolicy::Auto | AutoShardPolicy::File) => {
                let stream = |worker: usize| {
                    let own = files.iter().skip(worker).step_by(workers).cloned();
                    let mut own: Vec<_> = own.flat_map(|it| self.elements[it].to_vec()).collect();
                    own.truncate(full(own.len()));
                    own
                };
                Self::of_files((0..workers).map(stream))
            }
            _ => {
                self.elements.truncate(full(self.elements.len()));
                self
            }
        }
    }
}

impl Dataset for Listed {
    type Batch = Vec<Element>;

    fn len(&self) -> usize {
        self.elements.len()
    }

    fn files(&self) -> Option<Vec<Range<usize>>> {
        self.files.clone()
    }

    fn batch(&self, indices: &[usize], _: &Device) -> Result<Vec<Element>> {
        let rows = indices.iter();
        let rows = rows.map(|index| Element(self.elements[*index].clone()));
        Ok(rows.collect())
    }
}

/// `source.batch(batch, drop_remainder).repeat(repeat)`.
pub(crate) struct Sharded {
    listed: Listed,
    is_hinted: bool,
    batch: usize,
    drop_remainder: bool,
    repeat: usize,
}

impl Sharded {
    /// `range(n)[.shard(HINT, HINT)].batch(b[, drop_remainder])[.repeat(k)]`, or
    /// `n text|record file(s) [x m] ... .batch(b)`; `per_file` says how many records a file holds
    /// where the text does not.
    pub(crate) fn parse(text: &str, per_file: impl FnOnce() -> Option<usize>) -> Option<Self> {
        let (source, batching) = text.split_at(text.find(".batch(")?);
        let numbers = counts_in(source);
        let count = *numbers.first()?;
        let listed = if source.starts_with("range(") {
            Listed {
                elements: (0..count).map(|element| json!(element)).collect(),
                files: None,
            }
        } else {
            let records = numbers.get(1).copied().or_else(per_file).unwrap_or(0);
            let file = |file| (0..records).map(move |it| json!(format!("f{file}_{it}")));
            Listed::of_files((0..count).map(|index| file(index).collect()))
        };
        let repeat = batching.split_once(".repeat(");
        Some(Self {
            listed,
            is_hinted: source.contains("HINT"),
            batch: counts_in(batching).first().copied()?,
            drop_remainder: batching.contains("drop"),
            repeat: repeat.map_or(Some(1), |(_, rest)| counts_in(rest).first().copied())?,
        })
    }

    /// How many files there are, if any.
    pub(crate) fn files(&self) -> Option<usize> {
        self.listed.files.as_ref().map(Vec::len)
    }

    /// What `distribute_dataset` gives this worker.
    pub(crate) fn steps(self, strategy: &dyn Strategy, policy: AutoShardPolicy) -> Result<Steps> {
        let mut batching = Batching::global(self.batch)
            .drop_remainder(self.drop_remainder)
            .auto_shard(policy)
            .allow_empty(true);
        let is_shared = match policy {
            AutoShardPolicy::Auto => self.listed.files.is_none(),
            policy => policy == AutoShardPolicy::Data,
        };
        let (mut listed, mut passes) = (self.listed, self.repeat);
        if self.repeat > 1 && !is_shared {
            // The batches of a stream span its passes, of which each drops its own remainder.
            if self.drop_remainder && self.batch > 0 {
                let workers = strategy.input_context().num_input_pipelines.max(1);
                listed = listed.of_full_batches(policy, self.batch, workers);
            }
            batching = batching.repeat(self.repeat);
            passes = 1;
        }
        if self.is_hinted {
            read(strategy, ShardHint::new(listed), batching, passes)
        } else {
            read(strategy, listed, batching, passes)
        }
    }
}

fn read<D: Dataset<Batch = Vec<Element>>>(
    strategy: &dyn Strategy,
    dataset: D,
    batching: Batching,
    passes: usize,
) -> Result<Steps> {
    let distributed = strategy.distribute_dataset(dataset, batching)?;
    let passes = (0..passes).flat_map(|pass| distributed.epoch(pass));
    let values = |part: Vec<Element>| part.into_iter().map(|Element(value)| value).collect();
    passes
        .map(|step| Ok(step?.into_values().into_iter().map(values).collect()))
        .collect()
}

/// One of several workers, in this process: what it reads depends on nothing else.
#[derive(Debug, Clone)]
pub(crate) struct OneWorker {
    local: MirroredStrategy,
    replicas: Vec<Replica>,
    context: InputContext,
}

impl OneWorker {
    /// Worker `index` of `workers`, with `replicas` replicas each.
    pub(crate) fn new(
        index: usize,
        workers: usize,
        replicas: usize,
    ) -> std::result::Result<Self, Failure> {
        if index >= workers {
            return Err(Failure::schema(format!("worker {index} of {workers}")));
        }
        let own = index * replicas..(index + 1) * replicas;
        let own = own.map(|id| Replica::new(id, LogicalDevice::cpu(id)));
        Ok(Self {
            local: MirroredStrategy::builder().replicas(replicas).build()?,
            replicas: own.collect(),
            context: InputContext {
                num_input_pipelines: workers,
                input_pipeline_id: index,
                num_replicas_in_sync: workers * replicas,
            },
        })
    }
}

impl Strategy for OneWorker {
    fn name(&self) -> &'static str {
        "one-worker"
    }

    fn num_replicas_in_sync(&self) -> usize {
        self.context.num_replicas_in_sync
    }

    fn replicas(&self) -> &[Replica] {
        &self.replicas
    }

    fn input_context(&self) -> InputContext {
        self.context
    }

    fn id(&self) -> StrategyId {
        self.local.id()
    }

    fn handle(&self) -> Arc<dyn Strategy> {
        Arc::new(self.clone())
    }

    fn run_replicas(&self, step: ReplicaStep<'_>) -> Result<()> {
        self.local.run_replicas(step)
    }
}
