//! What a worker reads: datasets under the policies of auto-sharding, and input functions.

use std::ops::Range;
use std::sync::Mutex;

use distribute_core::{Device, InputContext, Strategy, TensorData};
use distribute_data::auto_shard::{
    AutoShardPolicy, BatchedSource, Source, Worker, steps_of_worker,
};
use distribute_data::{Batching, Dataset, StrategyDataExt};
use serde_json::{Value, json};

use super::operations::Task;
use crate::compare::equal;
use crate::json::{Fields, counts_in};
use crate::outcome::{Checked, Failure, passed};

/// `text` is `POLICY_dataset`, or `from_function`.
pub(super) fn check(task: &Task<'_>, text: &str) -> Checked {
    if text == "from_function" {
        return from_function(task);
    }
    let malformed = || Failure::schema(format!("dataset `{text}`"));
    let (policy, dataset) = text.split_once('_').ok_or_else(malformed)?;
    let policy = match policy {
        "AUTO" => AutoShardPolicy::Auto,
        "FILE" => AutoShardPolicy::File,
        "DATA" => AutoShardPolicy::Data,
        "OFF" => AutoShardPolicy::Off,
        "HINT" => AutoShardPolicy::Hint,
        _ => return Err(malformed()),
    };
    let source = source(dataset).ok_or_else(malformed)?;
    let expected = task.expect.field("steps")?;
    passed(equal(expected, &shard(task, policy, &source)?))?;
    match Listed::of(&source) {
        Some(dataset) => passed(equal(
            expected,
            &distributed(task, policy, &source, dataset)?,
        )),
        None => passed(Ok(())),
    }
}

/// The elements of a source, and which of them each file holds.
struct Listed {
    elements: Vec<Value>,
    files: Option<Vec<Range<usize>>>,
}

impl Listed {
    /// `None` for a source with a hint, which only streams have.
    fn of(source: &BatchedSource<Value>) -> Option<Self> {
        match &source.source {
            Source::Elements(elements) => Some(Self {
                elements: elements.clone(),
                files: None,
            }),
            Source::Files(files) => {
                let mut start = 0;
                let ranges = files.iter().map(|file| {
                    start += file.len();
                    start - file.len()..start
                });
                Some(Self {
                    files: Some(ranges.collect()),
                    elements: files.concat(),
                })
            }
            _ => None,
        }
    }
}

impl Dataset for Listed {
    type Batch = Vec<Value>;

    fn len(&self) -> usize {
        self.elements.len()
    }

    fn files(&self) -> Option<Vec<Range<usize>>> {
        self.files.clone()
    }

    fn batch(&self, indices: &[usize], _: &Device) -> distribute_core::Result<Vec<Value>> {
        let rows = indices.iter().map(|index| self.elements[*index].clone());
        Ok(rows.collect())
    }
}

/// `range(n).batch(b[,drop])`, with `.shard(HINT,HINT)` in between, or
/// `n record files x k .batch(b)`.
fn source(text: &str) -> Option<BatchedSource<Value>> {
    let numbers = counts_in(text);
    let (source, batch) = if text.contains(" record files x ") {
        let [files, records, batch] = numbers[..] else {
            return None;
        };
        let file = |file| {
            (0..records)
                .map(|record| json!(format!("f{file}_{record}")))
                .collect()
        };
        (Source::Files((0..files).map(file).collect()), batch)
    } else {
        let [elements, batch] = numbers[..] else {
            return None;
        };
        let elements = (0..elements).map(|element| json!(element)).collect();
        let hinted = text.contains("HINT");
        (
            if hinted {
                Source::Hinted(elements)
            } else {
                Source::Elements(elements)
            },
            batch,
        )
    };
    Some(BatchedSource {
        source,
        global_batch_size: batch,
        drop_remainder: text.contains("drop"),
        repeat: 1,
    })
}

/// TensorFlow's rule for this worker's stream.
fn shard(
    task: &Task<'_>,
    policy: AutoShardPolicy,
    source: &BatchedSource<Value>,
) -> Result<Value, Failure> {
    let context = task.strategy.input_context();
    let replicas = task.strategy.replicas().len();
    let worker = Worker {
        index: context.input_pipeline_id,
        workers: context.num_input_pipelines,
        replicas_per_worker: replicas,
    };
    let steps = steps_of_worker(policy, source, worker).map_err(Failure::got)?;
    Ok(json!(steps))
}

/// What this worker's replicas get from `distribute_dataset`.
fn distributed(
    task: &Task<'_>,
    policy: AutoShardPolicy,
    source: &BatchedSource<Value>,
    dataset: Listed,
) -> Result<Value, Failure> {
    let batching = Batching::global(source.global_batch_size)
        .drop_remainder(source.drop_remainder)
        .auto_shard(policy);
    let mut steps = Vec::new();
    for step in &task.strategy.distribute_dataset(dataset, batching)? {
        steps.push(step?.into_values());
    }
    Ok(json!(steps))
}

/// `range(24)`, each pipeline its n-th elements, in batches of the per-replica size of 12.
fn from_function(task: &Task<'_>) -> Checked {
    const ELEMENTS: i64 = 24;
    const GLOBAL_BATCH: usize = 12;
    let contexts = Mutex::new(Vec::new());
    let function = |context: InputContext| {
        let size = context.per_replica_batch_size(GLOBAL_BATCH)?;
        let seen = json!([
            context.num_input_pipelines,
            context.input_pipeline_id,
            context.num_replicas_in_sync,
            size,
        ]);
        if let Ok(mut contexts) = contexts.lock() {
            contexts.push(seen);
        }
        let own = (0..ELEMENTS).skip(context.input_pipeline_id);
        let own: Vec<i64> = own.step_by(context.num_input_pipelines).collect();
        let batches: Vec<TensorData> = own
            .chunks(size)
            .map(|batch| TensorData::new(batch.to_vec(), [batch.len()]))
            .collect();
        Ok(batches.into_iter().map(Ok))
    };
    let mut steps = Vec::new();
    let distributed = task.strategy.distribute_datasets_from_function(&function);
    for step in distributed.epoch()? {
        let values = step?.into_values().into_iter();
        steps.push(
            values
                .map(|data| data.iter::<i64>().collect::<Vec<_>>())
                .collect::<Vec<_>>(),
        );
    }
    let contexts = contexts.into_inner().unwrap_or_default();
    equal(task.expect.field("contexts")?, &json!(contexts))?;
    passed(equal(task.expect.field("steps")?, &json!(steps)))
}
