//! The gradients of micro-batches that wait for the rest of their update, of all replicas. Each
//! replica has its own; they are added up over the replicas when the update is made.

use std::collections::BTreeMap;

use burn::tensor::TensorData;
use distribute_core::checkpoint::Checkpoint;
use distribute_core::{Result, WorkerGroup};

use super::snapshot::RunMetadata;

/// One replica's sums of the gradients, by parameter; none where no loss depended on it.
pub(super) type WaitingSums = Vec<Option<TensorData>>;

/// Those of all workers, from what each has, by the names they have in a checkpoint; all workers
/// call it together.
pub(super) fn gathered(
    own: Vec<WaitingSums>,
    names: &[String],
    workers: Option<&WorkerGroup>,
) -> Result<BTreeMap<String, TensorData>> {
    // A gradient that there is not travels as no bytes.
    let none = || TensorData::new(Vec::<u8>::new(), [0]);
    let all = |sums: WaitingSums| {
        sums.into_iter()
            .map(|sum| sum.unwrap_or_else(none))
            .collect()
    };
    let mut lists: Vec<Vec<TensorData>> = own.into_iter().map(all).collect();
    if let Some(workers) = workers.filter(|_| !lists.is_empty()) {
        lists = workers.gather("the gradients of micro-batches", &lists)?;
    }
    let mut named = BTreeMap::new();
    for (replica, sums) in lists.into_iter().enumerate() {
        let there = names
            .iter()
            .zip(sums)
            .filter(|(_, sum)| sum.dtype().is_float());
        named.extend(there.map(|(name, sum)| (stored_name(replica, name), sum)));
    }
    Ok(named)
}

/// Those of a checkpoint.
pub(super) fn load(
    run: &RunMetadata,
    names: &[String],
    checkpoint: &Checkpoint,
) -> Vec<WaitingSums> {
    let of = |replica: usize| {
        let names = names.iter().map(|name| stored_name(replica, name));
        names
            .map(|name| checkpoint.tensors.get(&name).cloned())
            .collect()
    };
    let replicas = if run.waiting == 0 { 0 } else { run.replicas };
    (0..replicas).map(of).collect()
}

fn stored_name(replica: usize, parameter: &str) -> String {
    format!("accumulated/{replica}/{parameter}")
}
