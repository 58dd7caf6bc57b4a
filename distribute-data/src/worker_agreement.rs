//! What several workers agree on before the first batch of a dataset: that they cut it in the same
//! way, and how many steps an epoch has.

use distribute_core::{Error, Result, WorkerGroup};
use serde::{Deserialize, Serialize};

/// Sizes that are the same on all workers.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct AgreedSizes {
    /// The steps of the worker that has most; the others fill up with empty batches.
    pub(crate) steps: usize,
    /// The examples of every batch, where all are filled up.
    pub(crate) rows: usize,
}

/// What a worker tells the others.
#[derive(Debug, Serialize, Deserialize)]
enum WorkerReport {
    Ready {
        own: AgreedSizes,
        /// What must be the same, by name.
        settings: Vec<(String, String)>,
    },
    Failed(String),
}

/// Takes the largest numbers of all workers (TensorFlow: whether any worker has a batch is reduced
/// over the workers before every step). Blocks until all have called it.
///
/// # Errors
/// On all workers: what went wrong on one of them, and settings that differ.
pub(crate) fn agree_on_sizes(
    workers: Option<&WorkerGroup>,
    own: Result<AgreedSizes>,
    settings: Vec<(String, String)>,
) -> Result<AgreedSizes> {
    let Some(workers) = workers.filter(|workers| workers.num_workers() > 1) else {
        return own;
    };
    let report = match &own {
        Ok(own) => WorkerReport::Ready {
            own: *own,
            settings,
        },
        Err(error) => WorkerReport::Failed(error.to_string()),
    };
    let text = serde_json::to_string(&report).map_err(Error::internal)?;
    let all = workers.gather_text(&text)?.into_iter();
    let mut agreed = own?;
    let mut first: Option<Vec<(String, String)>> = None;
    for (worker, text) in all.enumerate() {
        let report: WorkerReport = serde_json::from_str(&text).map_err(|_| other_call(worker))?;
        match report {
            WorkerReport::Failed(cause) => {
                let what = format!("worker {worker} cannot distribute its data: {cause}");
                return Err(Error::invalid(what));
            }
            WorkerReport::Ready { own, settings } => {
                agreed.steps = agreed.steps.max(own.steps);
                agreed.rows = agreed.rows.max(own.rows);
                let first = first.get_or_insert_with(|| settings.clone());
                compare(first, &settings, worker)?;
            }
        }
    }
    Ok(agreed)
}

pub(crate) fn other_call(worker: usize) -> Error {
    Error::invalid(format!(
        "worker {worker} made another call while this one distributes a dataset; all workers must \
         distribute the same datasets in the same order"
    ))
}

fn compare(first: &[(String, String)], other: &[(String, String)], worker: usize) -> Result<()> {
    let mut pairs = first.iter().zip(other);
    match pairs.find(|(first, other)| first != other) {
        None if first.len() == other.len() => Ok(()),
        None => Err(other_call(worker)),
        Some(((name, expected), (_, found))) => Err(Error::invalid(format!(
            "{name} of a distributed dataset is {found} on worker {worker} and {expected} on \
             worker 0; distribute it in the same way on all workers"
        ))),
    }
}
