//! The start of a training run: from the beginning or from a checkpoint, and the lock of the
//! checkpoints' directory.

use std::path::{Path, PathBuf};
use std::time::Duration;

use distribute_classifier::{DatasetName, ReadingOptions, Task, stored_l2, trained_on};
use distribute_core::checkpoint::{self, Checkpoint, Metadata};
use distribute_core::{Configuration, Strategy};
use distribute_fit::callbacks::ModelCheckpoint;
use distribute_fit::{RunInfo, StateMemory};
use distribute_readers::TrainTest;

use super::restore::usable;
use crate::cluster::restarts;
use crate::configuration::{of_checkpoint, same_as_stored};
use crate::failure::Failure;
use crate::flags::{DataArgs, FileArgs, TrainArgs, TrainingArgs};

/// How long a restarted job waits for the previous attempt to release its checkpoints: its chief
/// may be on a host that was cut off, and needs time to notice this.
const LOCK_PATIENCE: Duration = Duration::from_secs(30);

/// The effect of the flags about files.
#[derive(Debug, Default)]
pub(super) struct Start {
    /// Holds the directory of the checkpoints, if it exists already; see [`Start::hold`].
    pub(super) saver: Option<ModelCheckpoint>,
    /// The checkpoint to continue, and its path.
    pub(super) checkpoint: Option<(PathBuf, Checkpoint)>,
    /// The memory that outlives this worker, with `--replicate-state`.
    pub(super) memory: Option<StateMemory>,
    /// The state in that memory, if no checkpoint is newer.
    pub(super) recalled: Option<Checkpoint>,
}

impl Start {
    /// Locks the directory before it looks for a checkpoint in it, so that no other run adds a
    /// newer one. A directory that does not exist is not created yet: the run may still be refused.
    ///
    /// Without `--resume` a directory with checkpoints is refused, because the checkpoints of two
    /// runs would be mixed.
    pub(super) fn new(files: &FileArgs) -> Result<Self, Failure> {
        let Some(directory) = directory(files)? else {
            return Ok(Self::default());
        };
        if !directory.is_dir() {
            if directory.exists() {
                return Err(Failure::refused(format!(
                    "{} is a file; choose a directory for --checkpoint-dir",
                    directory.display()
                )));
            }
            return if files.resume {
                Err(nothing_to_resume(directory))
            } else {
                Ok(Self::default())
            };
        }
        let saver = Some(ModelCheckpoint::new_within(directory, patience()?)?);
        let checkpoint = find(files, directory)?;
        Ok(Self {
            saver,
            checkpoint,
            ..Self::default()
        })
    }

    /// [`new`](Self::new) for one of several workers: the chief creates and locks the directory,
    /// and all look for the checkpoint. All workers call it together.
    pub(super) fn of_worker(files: &FileArgs, strategy: &dyn Strategy) -> Result<Self, Failure> {
        let Some(directory) = directory(files)? else {
            return Ok(Self::default());
        };
        let saver = ModelCheckpoint::with_workers_within(strategy, directory, patience()?);
        let saver = Some(saver?);
        let checkpoint = find(files, directory)?;
        Ok(Self {
            saver,
            checkpoint,
            ..Self::default()
        })
    }

    /// Looks for a newer state in the memory that outlives the workers. All workers call it
    /// together.
    pub(super) fn recall(&mut self, strategy: &dyn Strategy) -> Result<(), Failure> {
        let opened = StateMemory::of_launcher();
        let mut memory = match strategy.workers() {
            Some(workers) => workers.or_abort(opened)?,
            None => opened?,
        };
        let state = memory.agree(strategy)?;
        let saved = self.metadata().map(place);
        self.recalled = state.filter(|state| Some(place(&state.metadata)) >= saved);
        self.memory = Some(memory);
        Ok(())
    }

    /// The state that the run continues.
    pub(super) fn resumed(&self) -> Option<&Checkpoint> {
        let saved = self.checkpoint.as_ref().map(|(_, checkpoint)| checkpoint);
        self.recalled.as_ref().or(saved)
    }

    /// Takes the state that the run continues, and its path if it is on disk.
    pub(super) fn take_resumed(&mut self) -> (Option<PathBuf>, Option<Checkpoint>) {
        let (path, checkpoint) = self.checkpoint.take().unzip();
        let Some(recalled) = self.recalled.take() else {
            return (path, checkpoint);
        };
        let same = |saved: Checkpoint| place(&saved.metadata) == place(&recalled.metadata);
        let path = path.filter(|_| checkpoint.is_some_and(same));
        (path, Some(recalled))
    }

    /// Locks the directory if it is not locked yet: all other checks have passed.
    pub(super) fn hold(&mut self, files: &FileArgs) -> Result<(), Failure> {
        if let (None, Some(directory)) = (&self.saver, &files.checkpoint_dir) {
            self.saver = Some(ModelCheckpoint::new(directory)?);
            // Another run may have come and gone since.
            refuse_checkpoints(directory)?;
        }
        Ok(())
    }

    /// Completes missing flags from the checkpoint.
    pub(super) fn complete(&self, training: &mut TrainingArgs) {
        if let Some((_, checkpoint)) = &self.checkpoint {
            training.learning_rate = training.learning_rate.or(learning_rate(checkpoint));
            training.l2 = training.l2.or(stored_l2(&checkpoint.metadata));
        }
    }

    /// The numbers of the optimizer in the model file. A checkpoint of an older version, which did
    /// not read them from there, continues with its own numbers.
    pub(super) fn complete_optimizer(&self, training: &mut TrainingArgs) {
        let stored = self.metadata().map(|metadata| &metadata.optimizer);
        let stored = stored.filter(|stored| stored.name == training.optimizer_name());
        let compiled = training.compiled_optimizer.as_mut();
        if let (Some(stored), Some(compiled)) = (stored, compiled) {
            for (name, number) in compiled {
                if let Some(stored) = stored.hyper_parameters.get(name) {
                    number.clone_from(stored);
                }
            }
        }
    }

    /// The same for the dataset; then the task takes the checkpoint's model.
    pub(super) fn complete_data(&self, data: &mut DataArgs) -> Result<(), Failure> {
        let Some(stored) = self.metadata() else {
            return Ok(());
        };
        let trained = trained_on(stored)?;
        if data.dataset.is_none() {
            data.dataset.clone_from(&trained);
        }
        let same = |one: &DatasetName| Some(one.kind()) == trained.as_ref().map(DatasetName::kind);
        if data.dataset.as_ref().is_some_and(same) {
            let reading = ReadingOptions::of(stored);
            data.set_reading(data.reading().or(reading, trained == data.dataset));
        }
        Ok(())
    }

    /// The metadata of the checkpoint that the run continues.
    pub(super) fn metadata(&self) -> Option<&Metadata> {
        let checkpoint = self.checkpoint.as_ref();
        checkpoint.map(|(_, checkpoint)| &checkpoint.metadata)
    }

    /// Refuses values that differ from the flags: the workers of parameter servers do not read the
    /// checkpoint, so the flags must have all values.
    pub(super) fn refuse_other_numbers(&self, args: &TrainArgs) -> Result<(), Failure> {
        let Some((path, checkpoint)) = &self.checkpoint else {
            return Ok(());
        };
        match stored_l2(&checkpoint.metadata) {
            Some(l2) if args.training.l2.is_none() => Err(Failure::usage(format!(
                "{} was trained with --l2 {l2}; give all processes the same flag",
                path.display()
            ))),
            _ => Ok(()),
        }
    }

    /// The same for the number of examples in a step.
    pub(super) fn refuse_other_batch(&self, examples: usize) -> Result<(), Failure> {
        let Some((path, checkpoint)) = &self.checkpoint else {
            return Ok(());
        };
        match RunInfo::of(checkpoint)?.global_batch_size {
            Some(before) if before != examples => Err(Failure::usage(format!(
                "{} is of a run with {before} examples a step, this one has {examples}; give all \
                 processes --batch-size {before}",
                path.display()
            ))),
            _ => Ok(()),
        }
    }

    /// The configuration for checkpoints, if the run saves any, after a comparison with the
    /// checkpoint that it continues. `global_batch` is the number of examples in a step.
    pub(super) fn configuration(
        &self,
        args: &TrainArgs,
        task: &Task,
        data: &TrainTest,
        global_batch: usize,
    ) -> Result<Configuration, Failure> {
        if args.files.checkpoint_dir.is_none() {
            return Ok(Configuration::new());
        }
        let own = of_checkpoint(args, task, data, global_batch)?;
        if let Some((path, checkpoint)) = &self.checkpoint {
            same_as_stored(&own, &checkpoint.metadata, path, task)?;
        }
        Ok(own)
    }
}

/// Whether a run continues, so that errors of optional outputs do not refuse it: the job was
/// restarted, or there is a checkpoint to continue.
pub(super) fn goes_on(files: &FileArgs) -> Result<bool, Failure> {
    if files.resume || restarts()? > 0 {
        return Ok(true);
    }
    let directory = files.checkpoint_dir.as_ref().filter(|_| files.restartable);
    // A checkpoint that cannot be read is refused later.
    let saved = directory.and_then(|directory| checkpoint::list(directory).ok());
    Ok(saved.is_some_and(|saved| !saved.is_empty()))
}

/// How long to wait for the previous run to release its checkpoints.
fn patience() -> Result<Duration, Failure> {
    Ok(match restarts()? {
        0 => Duration::ZERO,
        _ => LOCK_PATIENCE,
    })
}

/// How far a run was.
fn place(metadata: &Metadata) -> (u64, u64, u64) {
    let position = (metadata.epoch, metadata.batches_into_epoch);
    (metadata.step, position.0, position.1)
}

/// The directory of the checkpoints, if a flag names it.
fn directory(files: &FileArgs) -> Result<Option<&Path>, Failure> {
    let flag = match (files.resume, files.restartable) {
        (true, _) => "--resume",
        (_, true) => "--restartable",
        _ if files.checkpoint_steps.is_some() => "--checkpoint-steps",
        _ if files.checkpoint_seconds.is_some() => "--checkpoint-seconds",
        _ => return Ok(files.checkpoint_dir.as_deref()),
    };
    match &files.checkpoint_dir {
        Some(directory) => Ok(Some(directory)),
        None => Err(Failure::usage(format!(
            "{flag} needs --checkpoint-dir: the directory of the checkpoints"
        ))),
    }
}

/// The checkpoint to continue. Restarted jobs continue without a flag.
fn find(files: &FileArgs, directory: &Path) -> Result<Option<(PathBuf, Checkpoint)>, Failure> {
    if files.restartable || (!files.resume && restarts()? > 0) {
        let newest = checkpoint::load_latest(directory)?;
        if newest.found.is_none() && newest.skipped.is_empty() {
            return Ok(None);
        }
        return usable(newest, directory).map(Some);
    }
    if !files.resume {
        refuse_checkpoints(directory)?;
        return Ok(None);
    }
    let newest = checkpoint::load_latest(directory)?;
    if newest.found.is_none() && newest.skipped.is_empty() {
        return Err(nothing_to_resume(directory));
    }
    usable(newest, directory).map(Some)
}

/// The error of `--resume` without a checkpoint, so that a wrong path does not start a new run.
fn nothing_to_resume(directory: &Path) -> Failure {
    Failure::usage(format!(
        "{} holds no checkpoint to resume; give --restartable in place of --resume, which goes on \
         where there is a checkpoint and begins where there is none, or correct the path",
        directory.display()
    ))
}

fn learning_rate(checkpoint: &Checkpoint) -> Option<f64> {
    checkpoint.metadata.optimizer.hyper_parameters["learning_rate"].as_f64()
}

fn refuse_checkpoints(directory: &Path) -> Result<(), Failure> {
    match checkpoint::list(directory)?.last() {
        Some(entry) => Err(Failure::usage(format!(
            "{} holds checkpoints up to step {}; add --restartable to continue, or choose another \
             directory",
            directory.display(),
            entry.step
        ))),
        None => Ok(()),
    }
}
