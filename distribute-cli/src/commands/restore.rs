//! A trained model out of a checkpoint, for `evaluate` and `predict`.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use distribute_cli::model::Sequential;
use distribute_core::checkpoint::{self, Checkpoint, CheckpointError, Entry, Newest};
use distribute_core::fit::restore;
use distribute_core::{Error, Mirrored, Sgd, Strategy, StrategyExt, TrainState};
use distribute_data::{Batching, DistributedDataset, StrategyDataExt};

use crate::args::{DataArgs, DeviceArgs, RestoreArgs};
use crate::data::{Classified, Data, choose};
use crate::events::note;
use crate::failure::Failure;
use crate::strategies::strategy;
use crate::task::Task;

/// Batches of a pass without gradients; only speed depends on it.
const DEFAULT_BATCH_SIZE: usize = 128;

/// A model with its weights, and the examples to use it on.
pub(crate) struct Restored {
    pub(crate) task: Task,
    pub(crate) strategy: Arc<dyn Strategy>,
    pub(crate) state: Mirrored<TrainState<Sequential>>,
    pub(crate) data: DistributedDataset<Data>,
    pub(crate) checkpoint: PathBuf,
    pub(crate) step: u64,
}

/// Loads the newest checkpoint of a directory, or the one checkpoint that is named.
pub(crate) fn restored(
    args: &RestoreArgs,
    data: &DataArgs,
    devices: &DeviceArgs,
) -> Result<Restored, Failure> {
    let Some(directory) = &args.checkpoint_dir else {
        return Err(Failure::usage(
            "--checkpoint-dir is needed: the directory that `train --checkpoint-dir` wrote",
        ));
    };
    let strategy = strategy(args.strategy, devices)?;
    let (path, checkpoint) = find(directory)?;
    let task = Task::from_checkpoint(
        &checkpoint.metadata,
        &path,
        data.dataset.clone(),
        data.model.as_deref(),
    )?;
    same_model(&checkpoint, &path, &task)?;
    let mut state = strategy.try_scope(|device| {
        // The optimizer is never asked; a checkpoint of any one can be used.
        let state = task.state(Arc::new(Sgd::new(0.0)), checkpoint.metadata.seed, device);
        state.map_err(Error::step)
    })?;
    restore(&mut state, &checkpoint)?;
    let both = task
        .dataset
        .read(data.data_dir.as_deref(), task.is_text())?;
    let examples = task.prepare(choose(both, args.split))?;
    let size = data.batch_size.unwrap_or(DEFAULT_BATCH_SIZE);
    let batches = Batching::per_replica(size);
    let data = strategy.distribute_dataset(Classified::weighted(examples), batches)?;
    Ok(Restored {
        task,
        strategy,
        state,
        data,
        checkpoint: path,
        step: checkpoint.metadata.step,
    })
}

/// Refuses a checkpoint that says that it is of another model.
pub(crate) fn same_model(checkpoint: &Checkpoint, path: &Path, task: &Task) -> Result<(), Failure> {
    let saved = &checkpoint.metadata.model.name;
    let (key, extra) = task.to_extra();
    let stored = checkpoint
        .metadata
        .extra
        .get(key)
        .map(|value| &value["model_file"]);
    let file = &extra["model_file"];
    // A model file is the same wherever it lies; a built-in model is known by its name.
    let same = match (stored, file.is_null()) {
        (Some(stored), false) => stored == file,
        _ => saved == task.model_name(),
    };
    if same {
        return Ok(());
    }
    let (saved, path) = (saved.to_string(), path.display());
    Err(Failure::failed(match saved == task.model_name() {
        true => format!(
            "{path} holds another version of the model {saved}; use the file it was trained with \
             or another --checkpoint-dir"
        ),
        false => format!(
            "{path} holds the model {saved}, not {}; use --model {saved} or another \
             --checkpoint-dir",
            task.model_name()
        ),
    }))
}

/// A directory that is a checkpoint itself is taken; else the newest usable one in it.
fn find(directory: &Path) -> Result<(PathBuf, Checkpoint), Failure> {
    let of_one = ["COMPLETE", "metadata.json", "tensors.safetensors"];
    if of_one.iter().any(|name| directory.join(name).exists()) {
        return Ok((directory.to_path_buf(), checkpoint::load(directory)?));
    }
    usable(checkpoint::load_latest(directory)?, directory)
}

/// The newest checkpoint; says which damaged ones were passed over.
pub(crate) fn usable(
    newest: Newest<(Entry, Checkpoint)>,
    directory: &Path,
) -> Result<(PathBuf, Checkpoint), Failure> {
    let Some((entry, checkpoint)) = newest.found else {
        return Err(match newest.skipped.first() {
            Some(skipped) => all_damaged(&skipped.reason, newest.skipped.len(), directory),
            None => CheckpointError::Missing {
                path: directory.to_path_buf(),
            }
            .into(),
        });
    };
    for skipped in newest.skipped {
        note(&format!("warning: passed over {}", skipped.reason));
    }
    Ok((entry.path, checkpoint))
}

/// There is no older checkpoint to go back to.
fn all_damaged(newest: &CheckpointError, count: usize, directory: &Path) -> Failure {
    let why = match newest {
        CheckpointError::Corrupt { path, what } | CheckpointError::Incomplete { path, what } => {
            format!("{}: {what}", path.display())
        }
        other => other.to_string(),
    };
    let which = match count {
        1 => "the only checkpoint".to_string(),
        _ => format!("each of the {count} checkpoints"),
    };
    Failure::failed(format!(
        "{which} in {} is damaged ({why}); bring back a copy of it, or train anew with another \
         --checkpoint-dir",
        directory.display()
    ))
}
