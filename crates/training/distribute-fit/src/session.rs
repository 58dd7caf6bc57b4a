//! The training loop: epochs, callbacks, resuming. An [`Engine`] runs the steps.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::{Duration, Instant};

use burn::module::Module;
use distribute_core::checkpoint::Checkpoint;
use distribute_core::{Error, Mirrored, OwnTensors, Result, SourceState, TrainState};
use serde_json::{Value, json};

use super::control::{Callbacks, Run, Which};
use super::data_state;
use super::meter::Meter;
use super::ranks::Ranks;
use super::restore::restore;
use super::snapshot::{RunMetadata, refuse};
use super::{Callback, Control, EpochRecord, History, Logs, Mode, Outcome, Position, worker_sync};

/// How the training part of an epoch ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    /// The data ran out.
    Complete,
    /// The limit of steps was reached.
    Limited,
    /// A callback asked to stop.
    CutShort,
}

/// The source of a session's batches, and the place where its steps run.
pub(super) trait Engine<M> {
    /// The number of global batches of a pass, if known. None for validation without data.
    fn batches(&self, mode: Mode) -> Option<usize>;

    /// Whether there is validation data.
    fn has_validation(&self) -> bool;

    /// The examples of a full global batch of the training data.
    fn global_batch_size(&self) -> Option<usize>;

    /// What a checkpoint keeps of the training data.
    fn saved_data(&self) -> Option<Arc<dyn SourceState>> {
        None
    }

    /// Trains on the rest of the epoch that the session is in.
    fn train(&mut self, session: &mut Session<'_, M>) -> Result<Part>;

    /// The averages of the validation data; `None` without data, and if the run is stopped.
    fn validate(&mut self, session: &mut Session<'_, M>) -> Result<Option<Logs>>;
}

/// A run: the state that it trains, its progress and its callbacks.
pub(super) struct Session<'a, M> {
    pub(super) state: &'a mut Mirrored<TrainState<M>>,
    pub(super) callbacks: Callbacks<'a>,
    pub(super) run: Run,
}

impl<M: Module + Sync + 'static> Session<'_, M> {
    /// Restores a run from its checkpoint, if there is one; the same on all workers.
    pub(super) fn start(&mut self, checkpoint: Option<&Checkpoint>) -> Result<()> {
        if let Some(workers) = self.run.strategy.workers() {
            workers.clear_save();
            workers.check_equal("fit", &self.settings())?;
            worker_sync::check_same_checkpoint(workers, checkpoint)?;
        }
        checkpoint.map_or(Ok(()), |checkpoint| self.resume(checkpoint))
    }

    /// The settings that must be equal on all workers.
    fn settings(&self) -> Vec<(&'static str, Value)> {
        let (run, state) = (&self.run, self.state.host_metadata());
        let (progress, optimizer) = (&run.progress, state.optimizer());
        let (_, micro) = state.accumulation();
        let validation = progress.validation_batches_in_all;
        let savers = self.callbacks.savers;
        let text = |value: &dyn Debug| json!(format!("{value:?}"));
        vec![
            ("the seed", json!(run.seed)),
            ("the number of epochs", json!(progress.epochs)),
            ("the limit of steps", json!(run.max_steps)),
            ("the first epoch", json!(progress.position.epoch)),
            ("the first batch", json!(progress.position.batches)),
            ("the number of updates so far", json!(progress.step)),
            ("the global batch size", json!(run.global_batch_size)),
            ("the number of batches", json!(progress.batches_per_epoch)),
            ("the number of validation batches", json!(validation)),
            ("the optimizer", json!(optimizer.name())),
            // As text, which is read back without a change.
            ("the learning rate", json!(run.learning_rate.to_string())),
            ("the optimizer with its numbers", text(&optimizer)),
            ("the clipping of gradients", text(&state.clipping())),
            ("the loss scale", text(state.loss_scale())),
            ("the number of micro-batches of an update", json!(micro)),
            ("the number of checkpoint callbacks", json!(savers)),
            ("how often ranks are compared", text(&run.compare_ranks)),
            (
                "the steps between checks of replicas",
                json!(run.check_replicas),
            ),
            (
                "the steps between checks of gradients",
                json!(run.recompute),
            ),
        ]
    }

    /// Whether to stop now. With several workers all of them ask together: one that wants to stop
    /// is enough, and all stop for its reason.
    pub(super) fn stopping(&mut self) -> Result<bool> {
        let run = &mut self.run;
        let own = worker_sync::Report {
            stop: run.stop.clone(),
            learning_rate: run.learning_rate.to_bits(),
            failure: run.failure.as_ref().map(ToString::to_string),
        };
        (run.stop, run.failed) = worker_sync::agree_on_stop(&*run.strategy, own)?;
        Ok(run.stop.is_some())
    }

    /// [`stopping`](Self::stopping) after a batch of training, where workers need not ask each
    /// other: the exchange of gradients carried the request.
    pub(super) fn stopping_after_batch(&mut self) -> Result<bool> {
        let Some(workers) = self.run.strategy.workers() else {
            return Ok(self.run.stop.is_some());
        };
        if self.run.stop.is_some() {
            workers.request_stop();
        }
        if !workers.stop_agreed() {
            return Ok(false);
        }
        if !self.stopping()? {
            // The request came to the group itself.
            self.run.stop = Some(Outcome::Interrupted);
        }
        Ok(true)
    }

    /// Restores everything from a checkpoint of a run like this one.
    fn resume(&mut self, checkpoint: &Checkpoint) -> Result<()> {
        let metadata = &checkpoint.metadata;
        let stored = RunMetadata::load(checkpoint)?;
        let optimizer = self.state.host_metadata().optimizer().name();
        if metadata.optimizer.name != optimizer {
            return Err(refuse(format!(
                "it was trained with {} and this run uses {optimizer}: use the same optimizer",
                metadata.optimizer.name
            )));
        }
        if metadata.seed != self.run.seed {
            return Err(refuse(format!(
                "its run had the seed {} and this one has {}: use the same seed",
                metadata.seed, self.run.seed
            )));
        }
        if stored.global_batch_size != self.run.global_batch_size {
            let size = |size: Option<usize>| size.map_or("no fixed".into(), |n| n.to_string());
            return Err(refuse(format!(
                "its run had {} examples in a global batch and this one has {}: use the same \
                 global batch size",
                size(stored.global_batch_size),
                size(self.run.global_batch_size)
            )));
        }
        let own = self.state.host_metadata().accumulation().1;
        if stored.micro_batches > 0 && stored.micro_batches != own {
            return Err(refuse(format!(
                "its run made an update of {} micro-batches and this one makes one of {own}: \
                 accumulate the same number",
                stored.micro_batches
            )));
        }
        self.run.all_replicas.extend(stored.all_replicas());
        restore(self.state, checkpoint)?;
        self.put_own(checkpoint, &stored)?;
        let too_large = |_| refuse("its position is out of range");
        self.run.progress.position = Position {
            epoch: usize::try_from(metadata.epoch).map_err(too_large)?,
            batches: usize::try_from(metadata.batches_into_epoch).map_err(too_large)?,
        };
        let position = self.run.progress.position;
        data_state::restore(self.run.data.as_ref(), position, checkpoint)?;
        self.run.progress.step = self.state.host_metadata().step();
        self.run.step_before = self.run.progress.step;
        self.run.learning_rate = stored.learning_rate;
        let last = stored.last_learning_rate;
        self.run.last_learning_rate = last.map_or(stored.learning_rate, |last| last.0);
        self.run.meter.sums = stored.sums;
        self.callbacks.restore(checkpoint, stored.callbacks)
    }

    /// Restores the values that differ from replica to replica.
    fn put_own(&mut self, checkpoint: &Checkpoint, stored: &RunMetadata) -> Result<()> {
        let own = OwnTensors {
            tensors: &checkpoint.tensors,
            replicas: stored.replicas,
            waiting: stored.waiting,
        };
        let put = self.state.put_own_tensors(own, &*self.run.strategy);
        put.map_err(|error| refuse(format!("what its replicas had as their own: {error}")))
    }

    /// Calls a method of all callbacks. If one of them ends the run, the callbacks that save do so
    /// first: at once, or with several workers when all know of it.
    pub(super) fn notify(
        &mut self,
        mut call: impl FnMut(&mut dyn Callback, &mut Control<'_>) -> Result<()>,
    ) -> Result<()> {
        if self.run.strategy.workers().is_some() {
            let (run, state) = (&mut self.run, &mut *self.state);
            self.callbacks
                .each(Which::Others, run, state, &mut call, Run::keep)?;
        } else {
            let others = self.call(Which::Others, &mut call);
            others.inspect_err(|error| self.save_before(error))?;
        }
        self.call(Which::Savers, &mut call)
    }

    fn call(
        &mut self,
        which: Which,
        call: impl FnMut(&mut dyn Callback, &mut Control<'_>) -> Result<()>,
    ) -> Result<()> {
        let (run, state) = (&mut self.run, &mut *self.state);
        self.callbacks
            .each(which, run, state, call, |_, error| Err(error))
    }

    /// Saves what was trained before an error of this process ends the run.
    pub(super) fn save_before(&mut self, error: &Error) {
        let outcome = Outcome::Requested {
            why: error.to_string(),
        };
        self.save_at_end(&outcome).unwrap_or_else(not_saved);
    }

    /// The same where the data of an epoch ends with an error. Other workers wait for a step with
    /// this one then: they end, and go on from the last checkpoint.
    pub(super) fn save_before_data_ends(&mut self, error: &Error) {
        if self.run.strategy.workers().is_none() {
            self.save_before(error);
        }
    }

    /// Makes the callbacks that save do so for the last time, if all replicas have the same state.
    fn save_at_end(&mut self, outcome: &Outcome) -> Result<()> {
        self.run.check_same_state(self.state)?;
        self.call(Which::Savers, |callback, run| {
            callback.on_train_end(outcome, run)
        })
    }

    /// The error of a run in which the callback of a worker has failed, which all know: they save
    /// first.
    fn fail(&mut self, (rank, why): worker_sync::Failed, outcome: &Outcome) -> Error {
        let saved = self.save_at_end(outcome);
        self.run.all_end = saved.is_ok();
        match (self.run.failure.take(), saved) {
            (Some(own), saved) => {
                saved.unwrap_or_else(not_saved);
                own
            }
            (None, Err(error)) => error,
            (None, Ok(())) => Error::Stopped {
                cause: format!("a callback of rank {rank} failed: {why}"),
            },
        }
    }

    pub(super) fn train(&mut self, engine: &mut impl Engine<M>) -> Result<History> {
        let mut epochs = Vec::new();
        let begin =
            |callback: &mut dyn Callback, run: &mut Control<'_>| callback.on_train_begin(run);
        let step = self.run.progress.step;
        self.run
            .ranks
            .iter_mut()
            .for_each(|ranks| ranks.begin(step));
        // Nothing is trained yet that could be saved.
        self.call(Which::Others, begin)?;
        self.call(Which::Savers, begin)?;
        while !self.stopping()? && self.run.progress.position.epoch < self.run.progress.epochs {
            if self.run.limit_reached() {
                self.run.stop = Some(Outcome::MaxSteps);
                break;
            }
            if let Some(record) = self.epoch(engine)? {
                self.notify(|callback, run| callback.on_epoch_end(&record, run))?;
                epochs.push(record);
            }
        }
        let outcome = self.run.stop.clone().unwrap_or(Outcome::Completed);
        if epochs.is_empty() && outcome == Outcome::Completed {
            let epochs = self.run.progress.epochs;
            tracing::info!(
                epochs,
                "nothing is left to train: all epochs were done before"
            );
        }
        if let Some(failed) = self.run.failed.take() {
            return Err(self.fail(failed, &outcome));
        }
        // The replicas are not compared after that: a worker that is interrupted need not wait for
        // the last save.
        self.save_at_end(&outcome)?;
        self.call(Which::Others, |callback, run| {
            callback.on_train_end(&outcome, run)
        })?;
        let learning_rate = self.run.learning_rate;
        if self.state.host_metadata().learning_rate() != learning_rate {
            self.state.set_learning_rate(learning_rate);
        }
        Ok(History {
            epochs,
            outcome,
            position: self.run.progress.position,
            ranks: self.run.ranks.as_ref().and_then(Ranks::report),
        })
    }

    /// Whether the steps were computed at all. Compiled steps report failures by themselves.
    fn check_weights(&self) -> Result<()> {
        if self.run.strategy.tracer().is_some() {
            return Ok(());
        }
        let mut states = self.state.values()?.iter();
        states.try_for_each(TrainState::check_weights)
    }

    /// One epoch with its validation; `None` if it was cut short.
    fn epoch(&mut self, engine: &mut impl Engine<M>) -> Result<Option<EpochRecord>> {
        let Position { epoch, batches } = self.run.progress.position;
        if batches == 0 {
            self.run.meter.reset();
        }
        self.notify(|callback, run| callback.on_epoch_begin(run))?;
        if self.stopping()? {
            return Ok(None);
        }
        let before = self.run.meter.read()?.examples;
        let started = Instant::now();
        let part = engine.train(self)?;
        if part == Part::CutShort {
            return Ok(None);
        }
        self.check_weights()?;
        let what = "an epoch of the training data";
        let (mut logs, examples) = self.run.meter.finish(what)?;
        let training_time = started.elapsed();
        let started = Instant::now();
        let mut validation_time = Duration::ZERO;
        let phase = tracing::trace_span!(target: "distribute::phase", "validation");
        if let Some(found) = phase.in_scope(|| engine.validate(self))? {
            logs.extend_validation(&found);
            validation_time = started.elapsed();
        }
        if self.run.stop.is_some() {
            return Ok(None);
        }
        match part {
            Part::Limited => self.run.stop = Some(Outcome::MaxSteps),
            _ => {
                self.run.meter.reset();
                self.run.progress.position = Position {
                    epoch: epoch + 1,
                    batches: 0,
                }
            }
        }
        Ok(Some(EpochRecord {
            epoch,
            complete: part == Part::Complete,
            step: self.run.progress.step,
            learning_rate: self.run.last_learning_rate,
            logs,
            examples: (examples - before) as u64,
            training_time,
            validation_time,
        }))
    }

    /// Validates as long as `next` has a batch, which was not stopped then, and takes it over.
    pub(super) fn validation(
        &mut self,
        mut next: impl FnMut(&mut Self, &mut Meter) -> Result<bool>,
    ) -> Result<Option<Logs>> {
        let mut meter = Meter::new(&self.run.strategy);
        self.run.progress.validation_batches = 0;
        while next(self, &mut meter)? {
            self.run.progress.validation_batches += 1;
            self.notify(|callback, run| callback.on_validation_batch_end(run))?;
            self.stopping()?;
        }
        if self.run.stop.is_some() {
            return Ok(None);
        }
        Ok(Some(meter.finish("the validation data")?.0))
    }
}

/// The error that matters is the first one.
fn not_saved(error: Error) {
    tracing::warn!(%error, "nothing was saved before the end");
}
