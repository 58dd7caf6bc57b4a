//! Batches: their sizes, and which examples an epoch has.

use distribute_core::{Device, Strategy};
use distribute_data::{Batching, FnDataset, StrategyDataExt};
use serde_json::json;

use super::super::support::expected;
use crate::case::Case;
use crate::compare::equal;
use crate::env::Env;
use crate::json::Fields;
use crate::outcome::{Checked, Failure, passed};

/// The examples of each replica.
type Batch = Vec<Vec<usize>>;

/// The global batch size, and the batches of an epoch.
fn batches(
    strategy: &dyn Strategy,
    examples: usize,
    batching: Batching,
) -> Result<(usize, Vec<Batch>), Failure> {
    let dataset = FnDataset::new(examples, |rows: &[usize], _: &Device| Ok(rows.to_vec()));
    let distributed = strategy.distribute_dataset(dataset, batching.allow_empty(true))?;
    let found = distributed.epoch(0).map(|batch| Ok(batch?.into_values()));
    let found: distribute_core::Result<_> = found.collect();
    Ok((distributed.global_batch_size(), found?))
}

fn sizes(batch: Option<&Batch>) -> Vec<usize> {
    batch.into_iter().flatten().map(Vec::len).collect()
}

/// `GLOBAL_BATCH_SIZE = BATCH_SIZE_PER_REPLICA * strategy.num_replicas_in_sync`, and the share that
/// each replica gets of such a batch, which is that of the input context as well.
pub(super) fn batch_sizes(case: &Case, env: &Env<'_>) -> Checked {
    let strategy = &*env.strategy(case)?;
    let per_replica = case.inputs.count("batch_size_per_replica")?;
    let global = per_replica * strategy.num_replicas_in_sync();
    let (size, batches) = batches(strategy, global, Batching::per_replica(per_replica))?;
    equal(&json!(global), &json!(size))?;
    let share = strategy.input_context().per_replica_batch_size(global)?;
    equal(&json!(per_replica), &json!(share))?;
    let found = json!({"global_batch_size": size, "of_each_replica": sizes(batches.first())});
    passed(equal(expected(case)?, &found))
}

/// One epoch of a shuffled dataset.
pub(super) fn one_epoch(case: &Case, env: &Env<'_>) -> Checked {
    let inputs = &case.inputs;
    let strategy = &*env.strategy(case)?;
    let examples = inputs.count("examples")?;
    let batching = Batching::global(inputs.count("global_batch_size")?)
        .shuffle(1)
        .drop_remainder(inputs.flag("drop_remainder")?);
    let (_, batches) = batches(strategy, examples, batching)?;
    let mut seen: Vec<usize> = batches.iter().flatten().flatten().copied().collect();
    let count = seen.len();
    seen.sort_unstable();
    seen.dedup();
    let found = json!({
        "batches": batches.len(),
        "examples_seen": count,
        "each_at_most_once": seen.len() == count,
        "first_batch": sizes(batches.first()),
        "last_batch": sizes(batches.last()),
    });
    passed(equal(expected(case)?, &found))
}
