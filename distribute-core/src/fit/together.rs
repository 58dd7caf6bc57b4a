//! What several workers do together around a run: all stop after the same step, for one reason,
//! and all resume from one checkpoint.

use serde::{Deserialize, Serialize};

use super::Outcome;
use super::snapshot::refuse;
use crate::checkpoint::Checkpoint;
use crate::{Error, Result, WorkerGroup};

/// The first worker's reason to stop, on all workers; `None` if none has one. All call it.
pub(super) fn agree(workers: &WorkerGroup, own: Option<&Outcome>) -> Result<Option<Outcome>> {
    let text = serde_json::to_string(&own).map_err(Error::step)?;
    for (worker, text) in workers.gather_text(&text)?.into_iter().enumerate() {
        // Numbers that are not finite do not survive as text.
        let outcome = serde_json::from_str(&text).unwrap_or_else(|_| {
            let why = format!("worker {worker} asked for it");
            Some(Outcome::Requested { why })
        });
        if outcome.is_some() {
            return Ok(outcome);
        }
    }
    Ok(None)
}

/// What tells checkpoints apart.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Identity {
    step: u64,
    epoch: u64,
    batches: u64,
    checksum: u32,
}

impl Identity {
    fn of(checkpoint: &Checkpoint) -> Self {
        let tensors = checkpoint.tensors.values();
        let checksum = tensors.fold(0, |sum, data| crc32c::crc32c_append(sum, data.as_bytes()));
        let metadata = &checkpoint.metadata;
        Self {
            step: metadata.step,
            epoch: metadata.epoch,
            batches: metadata.batches_into_epoch,
            checksum,
        }
    }
}

/// Refuses, on all workers, when they would not resume from the same checkpoint.
pub(super) fn check_same_checkpoint(workers: &WorkerGroup, own: Option<&Checkpoint>) -> Result<()> {
    let own = own.map(Identity::of);
    let text = serde_json::to_string(&own).map_err(Error::step)?;
    let texts = workers.gather_text(&text)?;
    let mut all = Vec::with_capacity(texts.len());
    for text in &texts {
        let identity: Option<Identity> = serde_json::from_str(text).map_err(Error::step)?;
        all.push(identity);
    }
    let Some(worker) = all.iter().position(|identity| *identity != all[0]) else {
        return Ok(());
    };
    let name = |identity: &Option<Identity>| match identity {
        Some(identity) => format!("one of step {}", identity.step),
        None => "none".to_string(),
    };
    let (chief, other) = (name(&all[0]), name(&all[worker]));
    let other = match chief == other {
        true => format!("{other} with other values"),
        false => other,
    };
    Err(refuse(format!(
        "the chief found {chief} and worker {worker} {other}: the workers do not share the \
         checkpoint directory; put it on a file system that all of them see"
    )))
}
