//! The running statistics that each replica has as its own, as a checkpoint names them. The model's
//! own tensors have their mean over all replicas.

use std::collections::BTreeMap;

use burn::tensor::TensorData;
use distribute_core::checkpoint::Checkpoint;
use distribute_core::{Result, WorkerGroup};

/// One replica's running statistics, by path.
pub(super) type OwnStatistics = Vec<(String, TensorData)>;

const PREFIX: &str = "statistics/";

/// Those of one replica by the names that they have in a checkpoint.
pub(super) fn named(
    replica: usize,
    own: OwnStatistics,
) -> impl Iterator<Item = (String, TensorData)> {
    own.into_iter()
        .map(move |(path, data)| (stored_name(replica, &path), data))
}

/// The values alone, in their order.
pub(super) fn values(own: OwnStatistics) -> Vec<TensorData> {
    own.into_iter().map(|(_, data)| data).collect()
}

/// Those of all replicas by these names, from what each local one has; all workers call it
/// together. Without those that all replicas have alike: they are their own mean.
pub(super) fn gathered(
    own: Vec<OwnStatistics>,
    workers: Option<&WorkerGroup>,
) -> Result<BTreeMap<String, TensorData>> {
    let Some(first) = own.first() else {
        return Ok(BTreeMap::new());
    };
    let paths: Vec<String> = first.iter().map(|(path, _)| path.clone()).collect();
    let mut lists: Vec<Vec<TensorData>> = own.into_iter().map(values).collect();
    if let Some(workers) = workers {
        lists = workers.gather("the running statistics of replicas", &lists)?;
    }
    let mut all = BTreeMap::new();
    for (place, path) in paths.iter().enumerate() {
        let mut of_path = lists.iter().map(|list| list.get(place));
        let first = of_path.next().flatten();
        if of_path.all(|other| other == first) {
            continue;
        }
        let replicas = lists.iter().enumerate();
        let there = replicas.filter_map(|(replica, list)| Some((replica, list.get(place)?)));
        all.extend(there.map(|(replica, data)| (stored_name(replica, path), data.clone())));
    }
    Ok(all)
}

/// The replica whose own a tensor of a checkpoint is; `None` for what all replicas have alike.
pub(super) fn replica_of(name: &str) -> Option<usize> {
    let (replica, _) = name.strip_prefix(PREFIX)?.split_once('/')?;
    replica.parse().ok()
}

/// Whether a checkpoint has those of any replica.
pub(super) fn are_in(checkpoint: &Checkpoint) -> bool {
    let mut names = checkpoint.tensors.keys();
    names.any(|name| replica_of(name).is_some())
}

/// Those of a checkpoint for replicas with these ids, in the place of the means that they have now.
pub(super) fn load(
    checkpoint: &Checkpoint,
    replicas: impl Iterator<Item = (usize, OwnStatistics)>,
) -> Vec<OwnStatistics> {
    let of_one = |(replica, means): (usize, OwnStatistics)| {
        let found = means.into_iter().map(|(path, mean)| {
            let stored = checkpoint.tensors.get(&stored_name(replica, &path));
            (path, stored.cloned().unwrap_or(mean))
        });
        found.collect()
    };
    replicas.map(of_one).collect()
}

fn stored_name(replica: usize, path: &str) -> String {
    format!("{PREFIX}{replica}/{path}")
}
