//! What several workers do together around a run: all stop after the same step, for one reason,
//! and all resume from one checkpoint.

use distribute_core::checkpoint::Checkpoint;
use distribute_core::{BatchSource, Batches};
use distribute_core::{Error, Result, Strategy, WorkerGroup};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::snapshot::refuse;
use super::{Outcome, data_state};

/// What all workers say, worker 0's first; they all call it. Of a process alone what it says.
pub(super) fn all_of<T: Serialize + DeserializeOwned>(
    strategy: &dyn Strategy,
    call: &str,
    own: T,
) -> Result<Vec<T>> {
    match strategy.workers() {
        None => Ok(vec![own]),
        Some(workers) => workers.all_gather_json(call, &own),
    }
}

/// An error that all workers have found together: each waits until the others have, too, because
/// the first one to end would abort what they are still in.
pub(super) fn known_to_all(strategy: &dyn Strategy, error: impl Into<Error>) -> Error {
    if let Some(workers) = strategy.workers()
        && let Err(other) = workers.barrier()
    {
        tracing::debug!(%other, "another worker has ended");
    }
    error.into()
}

/// What a worker says of its run, before all go on or stop.
#[derive(Serialize, Deserialize)]
pub(super) struct Report {
    /// Why it wants to stop, if it does.
    pub(super) stop: Option<Outcome>,
    /// The bits of its learning rate.
    pub(super) learning_rate: u64,
    /// What a callback of it has failed with.
    pub(super) failure: Option<String>,
}

/// A worker whose callback has failed, and what it says.
pub(super) type Failed = (usize, String);

/// The first worker's reason to stop, on all workers, and the first one whose callback has failed;
/// `None` if none has one. All call it.
///
/// # Errors
/// If a worker goes on with another learning rate: a callback changed it there alone.
pub(super) fn agree_on_stop(
    strategy: &dyn Strategy,
    own: Report,
) -> Result<(Option<Outcome>, Option<Failed>)> {
    let all = all_of(strategy, "whether to stop training", own)?;
    let failures = all.iter().map(|report| report.failure.clone());
    let failed = failures
        .enumerate()
        .find_map(|(worker, why)| Some((worker, why?)));
    let rate = |worker: usize| f64::from_bits(all[worker].learning_rate);
    let other = |report: &Report| report.learning_rate != all[0].learning_rate;
    // A callback that has failed may have been about to change it.
    if let (Some(worker), None) = (all.iter().position(other), &failed) {
        return Err(Error::invalid(format!(
            "the learning rate is {} on worker {worker} and {} on the chief: callbacks must change \
             it on all workers, from values that all have (an epoch's record, not `logs`)",
            rate(worker),
            rate(0)
        )));
    }
    let reasons = all.into_iter().filter_map(|report| report.stop);
    // A state that is not finite is saved by no worker: this reason comes first.
    let stop = reasons.min_by_key(|reason| !matches!(reason, Outcome::NotFinite { .. }));
    Ok((stop, failed))
}

/// What tells checkpoints apart: their step, their position in the data and a checksum.
fn identity(checkpoint: &Checkpoint) -> [u64; 4] {
    let tensors = checkpoint.tensors.iter();
    let alike = tensors.filter(|(name, _)| !data_state::is_state(name));
    let checksum = alike.fold(0, |sum, (_, data)| {
        crc32c::crc32c_append(sum, data.as_bytes())
    });
    let metadata = &checkpoint.metadata;
    let position = (metadata.epoch, metadata.batches_into_epoch);
    [metadata.step, position.0, position.1, checksum.into()]
}

/// Refuses, on all workers, when they would not resume from the same checkpoint.
pub(super) fn check_same_checkpoint(workers: &WorkerGroup, own: Option<&Checkpoint>) -> Result<()> {
    let all = workers.all_gather_json("the checkpoint to resume from", &own.map(identity))?;
    let Some(worker) = all.iter().position(|identity| *identity != all[0]) else {
        return Ok(());
    };
    let name = |identity: &Option<[u64; 4]>| match identity {
        Some([step, ..]) => format!("one of step {step}"),
        None => "none".to_string(),
    };
    let (chief, other) = (name(&all[0]), name(&all[worker]));
    let other = if chief == other {
        format!("{other} with other values")
    } else {
        other
    };
    Err(refuse(format!(
        "the chief found {chief} and worker {worker} {other}: the workers do not share the \
         checkpoint directory; put it on a file system that all of them see"
    )))
}

/// The batches of an epoch, which must be equally many on all workers: where the source does not
/// promise it, the workers exchange a word before every batch.
pub(super) fn batches<'a, D: BatchSource + ?Sized>(
    strategy: &dyn Strategy,
    source: &'a D,
    epoch: usize,
    skip: usize,
) -> Result<Batches<'a, D::Batch>> {
    let batches = source.epoch(epoch, skip)?;
    let mut batches = batches.map(|batch| Ok(source.of_global_batch(batch?)));
    let workers = strategy.workers().filter(|group| group.num_workers() > 1);
    let (Some(workers), false) = (workers.cloned(), source.ends_together()) else {
        return Ok(Box::new(batches));
    };
    let mut number = skip;
    Ok(Box::new(std::iter::from_fn(move || {
        let batch = batches.next();
        // The others hear of an error when the run ends.
        if let Some(Err(_)) = batch {
            return batch;
        }
        let same = check_equal_batches(&workers, batch.is_some(), number);
        number += 1;
        same.map_or_else(|error| Some(Err(error)), |()| batch)
    })))
}

/// Refuses, on all workers, when some have another batch and some have not.
fn check_equal_batches(workers: &WorkerGroup, own: bool, number: usize) -> Result<()> {
    let all = workers.all_gather_json("whether there is a batch", &own)?;
    let find = |wanted: bool| all.iter().position(|has| *has == wanted);
    let (Some(with), Some(without)) = (find(true), find(false)) else {
        return Ok(());
    };
    Err(Error::invalid(format!(
        "worker {without} has no batch {number} of the epoch, worker {with} has one: the source \
         must give all workers equally many batches; fill the shorter ones up with empty batches, \
         or use a distributed data set, which does"
    )))
}

/// An error of one worker ends the others, which wait for it.
pub(super) fn or_abort<T>(strategy: &dyn Strategy, outcome: Result<T>) -> Result<T> {
    match strategy.workers() {
        None => outcome,
        Some(workers) => workers.or_abort(outcome),
    }
}
