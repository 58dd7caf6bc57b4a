//! Saves the run, so that it can be continued.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use burn::tensor::TensorData;
use distribute_core::checkpoint::{
    Checkpoint, CheckpointManager, Metadata, SaveHandle, Saved, Section, latest,
};
use distribute_core::{Error, Result, Strategy, setters};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::monitor::{Direction, Monitor};
use crate::exact::Exact;
use crate::snapshot::{Own, unreadable_state};
use crate::worker_sync::all_of;
use crate::{Callback, CallbackState, Control, EpochRecord, FitError, Outcome, Position};

/// Saves checkpoints of the whole run (Keras: `ModelCheckpoint` and `BackupAndRestore` in one).
///
/// A checkpoint holds the model, the optimizer's slots, step, epoch, position in the data, seed,
/// learning rate, the sums behind the epoch's losses and the other callbacks' states: what
/// [`Fit::resume_from`](crate::Fit::resume_from) needs to go on exactly. Taking the copy
/// blocks training; writing it does not, unless the one before is still being written.
///
/// By default it saves after every epoch, and when training ends in the middle of an epoch (by an
/// interruption or the limit of steps), and it removes no checkpoint. For every replica a
/// checkpoint also has the gradients of micro-batches that wait for the rest of their update, and
/// the running statistics that the replica has as its own. A training that
/// [`TerminateOnNan`](super::TerminateOnNan) has ended is not saved. A save that fails ends
/// training with the error; the complete checkpoints in the directory stay complete. Weights that
/// are not finite are never saved, nor is a state that is not the same on all replicas
/// ([`FitError::Diverged`](crate::FitError::Diverged)).
///
/// Only one callback at a time may save into a directory: it locks the directory from
/// [`new`](Self::new) until it is dropped, and a second callback is refused, in this process or
/// another. The checkpoints can always be read. With several workers every worker has the callback,
/// made with [`with_workers`](Self::with_workers): the chief's callback saves, the other workers
/// send what their replicas have as their own.
#[derive(Debug)]
#[must_use]
pub struct ModelCheckpoint {
    /// `None` on a worker that is not the chief.
    manager: Option<CheckpointManager>,
    saver: Option<SaveHandle>,
    every: Every,
    best_only: bool,
    monitor: Monitor,
    best: Option<Exact>,
    model_name: String,
    extra: Map<String, Value>,
    last: Option<(u64, Position)>,
    last_time: Instant,
    saved: Option<Saved>,
}

#[derive(Debug, Clone, Copy)]
enum Every {
    Epochs(usize),
    Steps(u64),
    Seconds(Duration),
}

impl ModelCheckpoint {
    /// Opens the directory, and tries before the training whether it can be written.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] if it cannot be created or written, or if another run saves there.
    pub fn new(directory: impl Into<PathBuf>) -> Result<Self> {
        Self::new_within(directory, Duration::ZERO)
    }

    /// [`new`](Self::new) after a restart: the process that saved there before may not have ended
    /// yet. Waits for its end, at most for `patience`.
    ///
    /// # Errors
    /// As `new`, when the time is over.
    pub fn new_within(directory: impl Into<PathBuf>, patience: Duration) -> Result<Self> {
        let manager = CheckpointManager::open_within(directory, patience)?;
        Ok(Self::with_manager(Some(manager)))
    }

    /// [`new`](Self::new) under any strategy, with one worker or several: the chief saves, and all
    /// workers, which must see the same directory, take part. All of them call it together.
    ///
    /// # Errors
    /// As `new`, on all workers; [`Error::NotShared`] if one sees another directory.
    pub fn with_workers(
        strategy: &(impl Strategy + ?Sized),
        directory: impl Into<PathBuf>,
    ) -> Result<Self> {
        Self::with_workers_within(strategy, directory, Duration::ZERO)
    }

    /// [`with_workers`](Self::with_workers) after a restart: the process that saved there before
    /// may not have ended yet, for example on a host that was cut off. The chief waits for its end,
    /// at most for `patience`, and the other workers wait for the chief.
    ///
    /// # Errors
    /// As `with_workers`, when the time is over.
    pub fn with_workers_within(
        strategy: &(impl Strategy + ?Sized),
        directory: impl Into<PathBuf>,
        patience: Duration,
    ) -> Result<Self> {
        let directory = directory.into();
        let Some(workers) = strategy.workers() else {
            return Self::new_within(directory, patience);
        };
        let open = || Ok(CheckpointManager::open_within(&directory, patience)?);
        let manager = workers.open_shared(&directory, open)?;
        Ok(Self::with_manager(manager))
    }

    fn with_manager(manager: Option<CheckpointManager>) -> Self {
        Self {
            manager,
            saver: None,
            every: Every::Epochs(1),
            best_only: false,
            monitor: Monitor::new(""),
            best: None,
            model_name: String::new(),
            extra: Map::new(),
            last: None,
            last_time: Instant::now(),
            saved: None,
        }
    }

    setters! { self;
        /// Saves after every `epochs`-th epoch; 0 counts as 1.
        every_epochs(epochs: usize) => every = Every::Epochs(epochs.max(1));

        /// Saves after every `steps`-th optimizer step; 0 counts as 1. Not together with
        /// [`best_only`](Self::best_only).
        every_steps(steps: u64) => every = Every::Steps(steps.max(1));

        /// Saves after the first optimizer step that ends at least this long after the last save.
        /// With several workers the chief's clock counts, and several callbacks with an interval
        /// all save when the first of them is due. Not together with
        /// [`best_only`](Self::best_only).
        every(interval: Duration) => every = Every::Seconds(interval);

        /// Which values are better, for [`best_only`](Self::best_only); by default it follows from
        /// the name.
        direction(direction: Direction) => monitor.direction = direction;

        /// The model's name for [`ModelInfo`](distribute_core::checkpoint::ModelInfo).
        model_name(name: impl Into<String>) => model_name = name.into();
    }

    /// Keeps the newest `checkpoints` only; 0 keeps all. Older ones are removed after a new one is
    /// safely on disk.
    pub fn keep(mut self, checkpoints: usize) -> Self {
        let count = NonZeroUsize::new(checkpoints);
        self.manager = self.manager.map(|manager| manager.with_max_to_keep(count));
        self
    }

    /// Saves only after epochs in which this value of the logs was better than ever before.
    pub fn best_only(mut self, monitor: impl Into<String>) -> Self {
        self.best_only = true;
        self.monitor.name = monitor.into();
        self
    }

    /// Adds something to every checkpoint's [`Metadata::extra`].
    pub fn extra(mut self, key: impl Into<String>, value: impl Into<Value>) -> Self {
        self.extra.insert(key.into(), value.into());
        self
    }

    /// The last checkpoint that is known to be safely on disk; after training, the last one that
    /// was saved.
    pub fn last_saved(&self) -> Option<&Saved> {
        self.saved.as_ref()
    }

    fn save(&mut self, run: &mut Control<'_>) -> Result<()> {
        let progress = run.progress();
        let here = (progress.step, progress.position);
        if self.last == Some(here) {
            return Ok(());
        }
        let step = progress.step;
        let _phase =
            tracing::trace_span!(target: "distribute::phase", "checkpoint", step).entered();
        let (own, is_useless) = run.own_of_all()?;
        if is_useless {
            return Ok(());
        }
        if let Some(manager) = self.manager.clone() {
            self.write(manager, own, run)?;
        }
        self.last = Some(here);
        self.last_time = Instant::now();
        Ok(())
    }

    /// Waits for the last write. All workers wait for it: if one ended earlier, its launcher might
    /// end the chief's process too, and the worker would not know of a save that fails. An
    /// interruption ends the wait of a worker that is not the chief, unless all workers have agreed
    /// to end interrupted; the chief completes the save.
    fn finish(&mut self, outcome: &Outcome, run: &Control<'_>) -> Result<()> {
        let saver = self.saver.take();
        let finished: Result<_> = saver.map_or(Ok(None), |saver| Ok(saver.finish()?));
        if let Some(workers) = run.strategy().workers() {
            let said = finished.as_ref().err().map(ToString::to_string);
            if !workers.is_chief() && *outcome != Outcome::Interrupted {
                workers.release();
            }
            let all = match workers.all_gather_json("the last checkpoint", &said) {
                Err(error) if workers.is_chief() && said.is_none() && error.is_interruption() => {
                    tracing::warn!(%error, "a worker did not wait for the last checkpoint");
                    Vec::new()
                }
                all => all?,
            };
            workers.hold();
            let of_others = all.into_iter().flatten().next();
            if let Some(cause) = of_others.filter(|_| finished.is_ok()) {
                return Err(Error::Stopped { cause });
            }
        }
        self.saved = finished?.or(self.saved.take());
        Ok(())
    }

    /// Copies the state and hands the copy to the thread that writes it.
    fn write(&mut self, manager: CheckpointManager, own: Own, run: &mut Control<'_>) -> Result<()> {
        let mut checkpoint = run.common_checkpoint(self.state())?;
        checkpoint.tensors.extend(own);
        check_finite(&checkpoint)?;
        checkpoint.metadata.model.name.clone_from(&self.model_name);
        checkpoint.metadata.extra.extend(self.extra.clone());
        if let Some(best) = self.best.filter(|_| self.best_only) {
            let saved = json!({ "monitor": self.monitor.name, "value": best });
            let extra = &mut checkpoint.metadata.extra;
            extra.insert(BEST_KEY.to_string(), saved);
        }
        let saver = self.saver.get_or_insert_with(|| SaveHandle::new(manager));
        self.saved = saver.save(checkpoint)?.or(self.saved.take());
        Ok(())
    }

    /// Whether it is time to save. With several workers the chief tells all of them with the next
    /// update, after which they save.
    fn is_time(&self, interval: Duration, run: &Control<'_>) -> bool {
        let over = self.last_time.elapsed() >= interval;
        let Some(workers) = run.strategy().workers() else {
            return over;
        };
        if over && workers.is_chief() {
            workers.request_save();
        }
        workers.save_agreed()
    }

    /// What the chief finds in its directory, told to all workers: whether the newest checkpoint is
    /// the one that the run goes on from, and the best value.
    fn find(&self, run: &Control<'_>) -> Result<(bool, Option<Exact>)> {
        let find = |manager: &CheckpointManager| {
            let Some((entry, metadata)) = latest(manager.path())?.found else {
                return Ok((false, None));
            };
            let is_last = entry.step == run.progress().step;
            Ok::<_, Error>((is_last, self.best_of(&metadata)?))
        };
        let own = self.manager.as_ref().map(find).transpose()?;
        let call = "the newest checkpoint of the directory";
        let all = all_of(run.strategy(), call, own)?;
        Ok(all.into_iter().next().flatten().unwrap_or_default())
    }

    /// The best value so far, from the newest checkpoint in this callback's directory. The run may
    /// go on from a checkpoint of another callback, which may be older or newer.
    fn best_of(&self, metadata: &Metadata) -> Result<Option<Exact>> {
        if !self.best_only {
            return Ok(None);
        }
        let Some(saved) = metadata.extra.get(BEST_KEY) else {
            // Earlier versions kept the value with the states of the callbacks.
            return Ok(self.best);
        };
        let saved = SavedBest::deserialize(saved).map_err(unreadable_state)?;
        Ok((saved.monitor == self.monitor.name).then_some(saved.value))
    }
}

/// The key of the best value in [`Metadata::extra`].
const BEST_KEY: &str = "best_only";

/// What a checkpoint of the best value says about it.
#[derive(Debug, Deserialize)]
struct SavedBest {
    monitor: String,
    value: Exact,
}

impl Callback for ModelCheckpoint {
    fn on_train_begin(&mut self, run: &mut Control<'_>) -> Result<()> {
        if self.best_only && !matches!(self.every, Every::Epochs(_)) {
            return Err(Error::invalid(
                "ModelCheckpoint: `best_only` compares epochs; leave out `every_steps` and \
                 `every`, or use one callback for each, with a directory of its own",
            ));
        }
        if self.best_only {
            self.monitor.check("ModelCheckpoint")?;
        }
        let progress = run.progress();
        self.last_time = Instant::now();
        // There is nothing to save of a run that has not begun.
        let here = (progress.step, progress.position);
        self.last = Some(here);
        if here == (0, Position::default()) {
            return Ok(());
        }
        let (is_last, best) = self.find(run)?;
        if self.best_only {
            self.best = best;
        }
        // A run that goes on from a checkpoint of this directory has nothing new to save yet.
        self.last = is_last.then_some(here);
        Ok(())
    }

    fn on_batch_end(&mut self, run: &mut Control<'_>) -> Result<()> {
        if self.best_only {
            self.monitor.check_name("ModelCheckpoint", run)?;
        }
        let step = run.progress().step;
        let new_step = self.last.is_none_or(|(last, _)| last != step);
        let due = match self.every {
            Every::Steps(steps) => new_step && run.reached_multiple_of(steps),
            Every::Seconds(interval) => new_step && step > 0 && self.is_time(interval, run),
            Every::Epochs(_) => false,
        };
        if due {
            self.save(run)?;
        }
        Ok(())
    }

    fn on_epoch_end(&mut self, record: &EpochRecord, run: &mut Control<'_>) -> Result<()> {
        let Every::Epochs(epochs) = self.every else {
            return Ok(());
        };
        if self.best_only {
            let value = self.monitor.value("ModelCheckpoint", &record.logs)?;
            // An epoch that was interrupted counts when a resumed run has completed it.
            let best = self.best.map(|best| best.0);
            if !record.complete || !self.monitor.improves(value, best) {
                return Ok(());
            }
            let before = self.best.replace(Exact(value));
            return self.save(run).inspect_err(|_| self.best = before);
        }
        if (record.epoch + 1).is_multiple_of(epochs) {
            self.save(run)?;
        }
        Ok(())
    }

    fn on_train_end(&mut self, outcome: &Outcome, run: &mut Control<'_>) -> Result<()> {
        if !self.best_only {
            self.save(run)?;
        }
        self.finish(outcome, run)
    }

    fn saves(&self) -> bool {
        true
    }

    fn state_name(&self) -> Option<&'static str> {
        Some("model_checkpoint")
    }

    fn state(&self) -> CallbackState {
        CallbackState {
            value: json!({ "best": self.best }),
            ..CallbackState::default()
        }
    }

    fn restore_state(&mut self, state: CallbackState) -> Result<()> {
        let best = state.value.get("best").cloned().unwrap_or_default();
        self.best = serde_json::from_value(best).map_err(unreadable_state)?;
        Ok(())
    }
}

/// Refuses weights that are not finite: training cannot repair them, and their checkpoints would
/// replace good ones.
pub(super) fn check_finite(checkpoint: &Checkpoint) -> Result<()> {
    match first_not_finite(&checkpoint.tensors) {
        Some(parameter) => Err(FitError::WeightsNotFinite {
            parameter: parameter.to_string(),
            step: checkpoint.metadata.step,
        }
        .into()),
        None => Ok(()),
    }
}

/// The first parameter of a model that holds NaN or infinity, among the tensors of a training state
/// (`model/..`). The loss may not show it: it is computed before the last update.
pub fn first_not_finite(tensors: &BTreeMap<String, TensorData>) -> Option<&str> {
    tensors.iter().find_map(|(name, data)| {
        let parameter = Section::Model.path_of(name)?;
        (!is_finite(data)).then_some(parameter)
    })
}

fn is_finite(data: &TensorData) -> bool {
    match data.as_slice::<f32>() {
        Ok(values) => values.iter().all(|value| value.is_finite()),
        Err(_) => data.iter::<f64>().all(f64::is_finite),
    }
}
