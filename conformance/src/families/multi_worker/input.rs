//! What a worker reads: datasets under the policies of auto-sharding, and input functions.

use std::sync::Mutex;

use distribute_core::{InputContext, TensorData};
use distribute_data::StrategyDataExt;
use serde_json::json;

use super::operations::Task;
use crate::compare::equal;
use crate::families::support::sharded::{Sharded, policy};
use crate::json::Fields;
use crate::outcome::{Checked, Failure, passed};

/// `text` is `POLICY_dataset`, or `from_function`.
pub(super) fn check(task: &Task<'_>, text: &str) -> Checked {
    if text == "from_function" {
        return from_function(task);
    }
    let malformed = || Failure::schema(format!("dataset `{text}`"));
    let (name, dataset) = text.split_once('_').ok_or_else(malformed)?;
    let source = Sharded::parse(dataset, || None).ok_or_else(malformed)?;
    let steps = source.steps(task.strategy, policy(name)?)?;
    passed(equal(task.expect.field("steps")?, &json!(steps)))
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
