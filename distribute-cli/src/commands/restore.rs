//! Restores a trained model from a checkpoint, for `evaluate` and `predict`.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use distribute_classifier::{
    Chosen, Classified, Data, DatasetName, Parts, Reading, SplitName, Task, TaskError, listed,
    model_file_settings,
};
use distribute_core::checkpoint::{self, Checkpoint, CheckpointError, Entry, Newest};
use distribute_core::{Mirrored, Sgd, Strategy, StrategyExt, TrainState};
use distribute_data::{Batching, DistributedDataset, StrategyDataExt};
use distribute_fit::{averaged_weights, best_weights, restore_weights};
use distribute_keras::Model;
use distribute_readers::{Examples, ReadError};
use serde_json::Value;

use crate::failure::Failure;
use crate::flags::{DataArgs, DeviceArgs, RestoreArgs};
use crate::notes::note;
use crate::option_names::in_flags;
use crate::strategies::strategy;

/// Batches of a pass without gradients; only speed depends on it.
const DEFAULT_BATCH_SIZE: usize = 128;

/// A model with its weights, and the examples to use it on.
pub(crate) struct Restored {
    pub(crate) task: Task,
    pub(crate) strategy: Arc<dyn Strategy>,
    pub(crate) state: Mirrored<TrainState<Model>>,
    pub(crate) data: DistributedDataset<Data>,
    /// The row of each example in its file or set, counted from 0.
    pub(crate) rows: Vec<usize>,
    /// The class of each example; empty if they have none.
    pub(crate) labels: Vec<i64>,
    /// Where the training examples end, if both sets were requested.
    pub(crate) both: Option<usize>,
    pub(crate) split: SplitName,
    /// The files of the examples, for images without classes.
    pub(crate) files: Vec<String>,
    pub(crate) checkpoint: PathBuf,
    pub(crate) step: u64,
}

/// The purpose of a restored model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Evaluation: the examples must have labels.
    Evaluate,
    /// Prediction: labels are not used.
    Predict,
}

/// Loads the newest checkpoint of a directory, or the one checkpoint that is named.
pub(crate) fn restored(
    args: &RestoreArgs,
    data: &DataArgs,
    devices: &DeviceArgs,
    purpose: Purpose,
) -> Result<Restored, Failure> {
    let Some(directory) = &args.checkpoint_dir else {
        return Err(Failure::usage(
            "--checkpoint-dir is needed: the directory that `train --checkpoint-dir` wrote",
        ));
    };
    let strategy = strategy(args.strategy, devices)?;
    let (path, checkpoint) = find(directory)?;
    let mut task = Task::from_checkpoint(
        &checkpoint.metadata,
        &path,
        data.dataset.clone(),
        data.model.as_deref(),
    )?;
    same_model(&checkpoint, &path, &task)?;
    let state = state_of(&checkpoint, &task, &*strategy)?;
    task.dataset = task.dataset.with_header(data.csv_header)?;
    let chosen = chosen(&task, args.split, data, &path, purpose)?;
    let mut differences = task.inputs.as_ref().map_or_else(
        || of_older(&task, &path),
        |inputs| inputs.differences(&chosen.examples, &task.dataset),
    );
    let examples = task.prepare(chosen.examples, &mut differences)?;
    for text in chosen.note.iter().chain(&differences) {
        note(&in_flags(text));
    }
    let all: Vec<usize> = (0..examples.len()).collect();
    let labels = if examples.classes().is_some() {
        examples.labels_i64(&all)?
    } else {
        Vec::new()
    };
    let of_images = !examples.is_labelled() && task.dataset.is_images();
    let files = examples
        .class_names()
        .iter()
        .filter(|_| of_images)
        .cloned()
        .collect();
    let size = data.batch_size.unwrap_or(DEFAULT_BATCH_SIZE);
    let batches = Batching::per_replica(size);
    let data = strategy.distribute_dataset(Classified::weighted(examples), batches)?;
    Ok(Restored {
        task,
        strategy,
        state,
        data,
        rows: chosen.rows,
        labels,
        both: chosen.both,
        split: chosen.split,
        files,
        checkpoint: path,
        step: checkpoint.metadata.step,
    })
}

/// The model of a checkpoint, with the averages or the best weights if it was trained for them.
pub(super) fn state_of(
    checkpoint: &Checkpoint,
    task: &Task,
    strategy: &dyn Strategy,
) -> Result<Mirrored<TrainState<Model>>, Failure> {
    let mut state = strategy.try_scope(|device| {
        // The optimizer is not used, so a checkpoint of any optimizer works.
        Ok(task.state(Arc::new(Sgd::new(0.0)), checkpoint.metadata.seed, device)?)
    })?;
    let ended = best_weights(averaged_weights(checkpoint.clone())?);
    restore_weights(&mut state, &ended)?;
    Ok(state)
}

/// The requested examples.
fn chosen(
    task: &Task,
    split: Option<SplitName>,
    data: &DataArgs,
    path: &Path,
    purpose: Purpose,
) -> Result<Chosen, Failure> {
    let how = task.how(&data.reading(), data.scale)?;
    let error = match labelled(task, &how, path, purpose) {
        Ok(parts) => {
            // Before the split, the examples were scaled as in training.
            let parts = parts.map(|examples| task.scaled(examples, None));
            let same = task.is_of_training(&how);
            let chosen = parts.choose(split, task.split.as_ref(), &task.dataset, same)?;
            let examples = task.scaled(chosen.examples, data.scale);
            return Ok(Chosen { examples, ..chosen });
        }
        Err(error) => error,
    };
    if purpose == Purpose::Evaluate {
        return Err(error.into_failure());
    }
    let examples = match task.dataset.read_unlabelled(&how) {
        Ok(examples) => examples,
        // A table without labels may have another number of columns.
        Err(TaskError::Read(ReadError::OtherColumns { .. })) => return Err(error.into_failure()),
        Err(unlabelled) => return Err(unlabelled.into()),
    };
    let why = match (split, error) {
        (None | Some(SplitName::All), Unlabelled::Unread(_)) => "no labels were read of",
        (None | Some(SplitName::All), Unlabelled::Other(_)) => {
            "the model does not know the labels of"
        }
        (Some(_), Unlabelled::Other(failure)) => return Err(failure),
        (Some(split), Unlabelled::Unread(failure)) => {
            return Err(no_split(task, split, examples.len(), &failure));
        }
    };
    let (name, count) = (&task.dataset, examples.len());
    let note = format!("{why} {name}: all {count} examples are used");
    Ok(Chosen::unlabelled(task.scaled(examples, data.scale), note))
}

/// Why there are no usable labels.
enum Unlabelled {
    /// No labels can be read.
    Unread(Failure),
    /// They are not classes of the model.
    Other(Failure),
}

impl Unlabelled {
    fn into_failure(self) -> Failure {
        match self {
            Self::Unread(failure) | Self::Other(failure) => failure,
        }
    }
}

/// The examples with labels that are classes of the model.
fn labelled(
    task: &Task,
    how: &Reading,
    path: &Path,
    purpose: Purpose,
) -> Result<Parts, Unlabelled> {
    let parts = task.dataset.read(how);
    let parts = parts.map_err(|error| Unlabelled::Unread(error.into()))?;
    same_classes(parts.first(), path, task).map_err(Unlabelled::Other)?;
    if purpose == Purpose::Predict {
        let known = task.check_labels(parts.first());
        known.map_err(|error| Unlabelled::Other(error.into()))?;
    }
    Ok(parts)
}

/// The error if a split was requested of examples without labels.
fn no_split(task: &Task, split: SplitName, examples: usize, failure: &Failure) -> Failure {
    // A table may have labels, but one of them is invalid.
    let cause = match &task.dataset {
        DatasetName::Csv(..) | DatasetName::Npz(_) => format!(" ({failure})"),
        _ => String::new(),
    };
    Failure::usage(format!(
        "--split {}: no labels were read of {}, so it has no split{cause}; leave --split out to \
         predict all {examples} examples",
        split.name(),
        task.dataset
    ))
}

/// A message about an older checkpoint that does not describe its inputs.
fn of_older(task: &Task, path: &Path) -> Vec<String> {
    let is_other = task.trained_on != task.dataset.to_string();
    let note = format!(
        "{} is of an older version and does not say names and scale of its inputs: columns are \
         taken by their order, bytes are divided by 255",
        path.display()
    );
    is_other.then_some(note).into_iter().collect()
}

/// Refuses a checkpoint of another model.
pub(crate) fn same_model(checkpoint: &Checkpoint, path: &Path, task: &Task) -> Result<(), Failure> {
    let saved = &checkpoint.metadata.model.name;
    let (key, extra) = task.to_extra();
    let stored = checkpoint
        .metadata
        .extra
        .get(key)
        .map(|value| &value["model_file"]);
    let file = &extra["model_file"];
    // A model file is compared by its content, a built-in model by its name.
    let same = match (stored, file.is_null()) {
        (Some(stored), false) => stored == file,
        _ => saved == task.model_name(),
    };
    let stored_file = stored.and_then(Value::as_str).filter(|_| !file.is_null());
    let difference = stored_file.zip(task.model_file()).map(|(stored, own)| {
        let own = model_file_settings(own);
        own.difference(&model_file_settings(stored))
    });
    // A file that was laid out anew says the same.
    if same || difference == Some(None) {
        return Ok(());
    }
    let (saved, path) = (saved.to_string(), path.display());
    let in_file = difference.flatten().map(|it| it.between("here", "there"));
    Err(Failure::usage(match in_file {
        Some(what) => format!(
            "{path} holds another version of the model {saved}: {what}; use the file it was \
             trained with or another --checkpoint-dir"
        ),
        None => format!(
            "{path} holds the model {saved}, not {}; use --model {saved} or another \
             --checkpoint-dir",
            task.model_name()
        ),
    }))
}

/// Refuses data whose class names differ from the model's, although the numbers are the same.
fn same_classes(data: &Examples, path: &Path, task: &Task) -> Result<(), Failure> {
    let (found, trained) = (data.class_names(), &task.class_names);
    if found.is_empty() || trained.is_empty() || found == &trained[..] {
        return Ok(());
    }
    Err(Failure::usage(format!(
        "the classes of {} are {}, and the classes of the checkpoint {} are {}, so that a label means \
         another class; use data with the same classes, all of them",
        task.dataset,
        listed(found),
        path.display(),
        listed(trained)
    )))
}

/// The directory itself if it is a checkpoint, otherwise the newest usable checkpoint in it.
pub(super) fn find(directory: &Path) -> Result<(PathBuf, Checkpoint), Failure> {
    let of_one = ["COMPLETE", "metadata.json", "tensors.safetensors"];
    if of_one.iter().any(|name| directory.join(name).exists()) {
        return Ok((directory.to_path_buf(), checkpoint::load(directory)?));
    }
    usable(checkpoint::load_latest(directory)?, directory)
}

/// The newest checkpoint; reports damaged ones that were skipped.
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
        note(&format!(
            "warning: {}; it was passed over for the older checkpoint {}",
            damage(&skipped.reason),
            entry.path.display()
        ));
    }
    Ok((entry.path, checkpoint))
}

/// What is wrong with a checkpoint, without what to do.
fn damage(reason: &CheckpointError) -> String {
    match reason {
        CheckpointError::Corrupt { path, what } => {
            format!("the checkpoint file {} is corrupt ({what})", path.display())
        }
        CheckpointError::Incomplete { path, what } => {
            format!("the checkpoint {} is incomplete ({what})", path.display())
        }
        other => other.to_string(),
    }
}

/// The error if all checkpoints are damaged.
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
    Failure::refused(format!(
        "{which} in {} is damaged ({why}); restore a copy of it, or start training with another \
         --checkpoint-dir",
        directory.display()
    ))
}
