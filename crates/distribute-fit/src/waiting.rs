//! The gradients of micro-batches that wait for the rest of their update, of all replicas. Each
//! replica has its own; they are added up over the replicas when the update is made.

use burn::tensor::TensorData;
use distribute_core::checkpoint::Checkpoint;
use distribute_core::{Result, WorkerGroup};

use super::snapshot::RunMetadata;

/// One replica's sums of the gradients, by parameter; none where no loss depended on it.
pub(super) type WaitingSums = Vec<Option<TensorData>>;

/// Those of all workers, from what each has; all workers call it together.
pub(super) fn gathered(
    own: Vec<WaitingSums>,
    workers: Option<&WorkerGroup>,
) -> Result<Vec<WaitingSums>> {
    let Some(workers) = workers.filter(|_| !own.is_empty()) else {
        return Ok(own);
    };
    // A gradient that there is not travels as no bytes.
    let none = || TensorData::new(Vec::<u8>::new(), [0]);
    let lists = own.into_iter().map(|sums| {
        let sums = sums.into_iter();
        sums.map(|sum| sum.unwrap_or_else(none)).collect()
    });
    let lists: Vec<Vec<TensorData>> = lists.collect();
    let all = workers.gather("the gradients of micro-batches", &lists)?;
    let all = all.into_iter().map(|list| {
        let sums = list.into_iter();
        sums.map(|sum| sum.dtype().is_float().then_some(sum))
            .collect()
    });
    Ok(all.collect())
}

/// Puts them into a checkpoint.
pub(super) fn store(replicas: Vec<WaitingSums>, names: &[String], checkpoint: &mut Checkpoint) {
    for (replica, sums) in replicas.into_iter().enumerate() {
        let named = names.iter().zip(sums);
        let there = named.filter_map(|(name, sum)| Some((stored_name(replica, name), sum?)));
        checkpoint.tensors.extend(there);
    }
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
