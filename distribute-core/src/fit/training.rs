//! The training loop.

use std::fmt;
use std::time::{Duration, Instant};

use burn::module::Module;
use serde_json::{Value, json};

use super::control::{AnyState, Callbacks, Run};
use super::evaluation::Evaluator;
use super::meter::Meter;
use super::objective::Pass;
use super::snapshot::{self, RunMetadata, refuse};
use super::{
    BatchSource, Batches, Callback, EpochRecord, FitError, History, Logs, Mode, Objective, Outcome,
    Position, Progress, StepContext, together,
};
use crate::checkpoint::Checkpoint;
use crate::workers::Wish;
use crate::{Mirrored, Nest, PerReplica, Result, Strategy, StrategyExt, TrainState};

/// A training run (Keras: `Model.fit`).
///
/// On the hot path there is one `run` of the strategy per batch, as in a hand-written loop, and
/// one small reduction of the losses, which is put off until a callback asks for them.
///
/// The loss that is reported for an epoch is the mean over its examples, as they were seen during
/// training (the weights change meanwhile): every batch's loss is multiplied by what it was
/// divided by, and the sum divided by the number of examples, so that a short last batch counts
/// for what it has. Regularization is averaged over the batches, weighted by their examples.
pub struct Fit<'a, S: ?Sized> {
    strategy: &'a S,
    epochs: usize,
    max_steps: Option<u64>,
    seed: u64,
    start: Position,
    checkpoint: Option<Checkpoint>,
    callbacks: Vec<Box<dyn Callback + 'a>>,
}

impl<'a, S: Strategy + ?Sized> Fit<'a, S> {
    /// A run of one epoch.
    pub fn new(strategy: &'a S) -> Self {
        Self {
            strategy,
            epochs: 1,
            max_steps: None,
            seed: 0,
            start: Position::default(),
            checkpoint: None,
            callbacks: Vec::new(),
        }
    }

    /// The epoch to end before: the number of epochs, also those before a resume.
    #[must_use]
    pub fn epochs(mut self, epochs: usize) -> Self {
        self.epochs = epochs;
        self
    }

    /// Ends training when the state has made this many optimizer steps in all, also those before
    /// a resume. The epoch that is cut short is validated and reported as far as it went.
    #[must_use]
    pub fn max_steps(mut self, steps: impl Into<Option<u64>>) -> Self {
        self.max_steps = steps.into();
        self
    }

    /// The seed behind [`StepContext::rng`]; also written to checkpoints. (The order of the data
    /// depends on the data source's own seed.)
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Begins at this place in the data instead of the beginning (Keras: `initial_epoch`). See
    /// [`resume_from`](Self::resume_from) for continuing a run exactly.
    #[must_use]
    pub fn start_at(mut self, position: Position) -> Self {
        self.start = position;
        self
    }

    /// Continues the run that wrote this checkpoint: [`run`](Self::run) restores the training
    /// state, the position in the data and the callbacks' states from it.
    #[must_use]
    pub fn resume_from(mut self, checkpoint: impl Into<Option<Checkpoint>>) -> Self {
        self.checkpoint = checkpoint.into();
        self
    }

    /// Adds a callback. Pass `&mut callback` to look at it after the run.
    #[must_use]
    pub fn callback(mut self, callback: impl Callback + 'a) -> Self {
        self.callbacks.push(Box::new(callback));
        self
    }

    /// Trains, and validates after every epoch if there is validation data. Blocks until the end.
    ///
    /// # Errors
    /// Those of the data sources, the objective, the replicas and the callbacks; training ends
    /// with the first. [`FitError::Resume`] if the checkpoint is not from a run like this one,
    /// [`FitError::NoExamples`] for an empty epoch.
    pub fn run<M, D, F>(
        self,
        state: &mut Mirrored<TrainState<M>>,
        train: &D,
        validation: Option<&dyn BatchSource<Batch = D::Batch>>,
        objective: F,
    ) -> Result<History>
    where
        M: Module + Sync + 'static,
        D: BatchSource + ?Sized,
        F: Fn(&StepContext<'_>, &M, D::Batch) -> Result<Objective> + Sync,
    {
        let learning_rate = state.host_part().learning_rate();
        let run = Run {
            strategy: self.strategy.handle(),
            progress: Progress {
                position: self.start,
                step: state.step(),
                epochs: self.epochs,
                batches_per_epoch: train.batches_per_epoch(),
                validation_batches: 0,
                validation_batches_in_all: validation.and_then(BatchSource::batches_per_epoch),
            },
            meter: Meter::default(),
            learning_rate,
            seed: self.seed,
            global_batch_size: train.global_batch_size(),
            stop: None,
        };
        let mut session = Session {
            strategy: self.strategy,
            state,
            objective,
            max_steps: self.max_steps,
            callbacks: Callbacks::new(self.callbacks),
            run,
        };
        let workers = self.strategy.workers();
        let outcome = session
            .start(self.checkpoint.as_ref())
            .and_then(|()| session.train(train, validation));
        let Some(workers) = workers else {
            return outcome;
        };
        workers.forget(Wish::Stop);
        // The others would wait for this worker in vain.
        workers.or_abort(outcome)
    }
}

impl<S: fmt::Debug + ?Sized> fmt::Debug for Fit<'_, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fit")
            .field("strategy", &self.strategy)
            .field("epochs", &self.epochs)
            .field("max_steps", &self.max_steps)
            .field("seed", &self.seed)
            .field("callbacks", &self.callbacks.len())
            .finish_non_exhaustive()
    }
}

/// How the training part of an epoch ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    /// The data ran out.
    Complete,
    /// The limit of steps was reached.
    Limited,
    /// A callback asked to stop.
    CutShort,
}

struct Session<'a, S: ?Sized, M, F> {
    strategy: &'a S,
    state: &'a mut Mirrored<TrainState<M>>,
    objective: F,
    max_steps: Option<u64>,
    callbacks: Callbacks<'a>,
    run: Run,
}

impl<S: Strategy + ?Sized, M: Module + Sync + 'static, F> Session<'_, S, M, F> {
    /// Restores the run that a checkpoint is of, if there is one; the same on all workers.
    fn start(&mut self, checkpoint: Option<&Checkpoint>) -> Result<()> {
        if let Some(workers) = self.strategy.workers() {
            workers.forget(Wish::Save);
            workers.check_equal("fit", &self.settings())?;
            together::check_same_checkpoint(workers, checkpoint)?;
        }
        checkpoint.map_or(Ok(()), |checkpoint| self.resume(checkpoint))
    }

    /// What all workers must have the same of.
    fn settings(&self) -> Vec<(&'static str, Value)> {
        let (run, state) = (&self.run, self.state.primary());
        let progress = &run.progress;
        vec![
            ("the seed", json!(run.seed)),
            ("the number of epochs", json!(progress.epochs)),
            ("the limit of steps", json!(self.max_steps)),
            ("the first epoch", json!(progress.position.epoch)),
            ("the first batch", json!(progress.position.batches)),
            ("the number of updates so far", json!(progress.step)),
            ("the global batch size", json!(run.global_batch_size)),
            ("the number of batches", json!(progress.batches_per_epoch)),
            (
                "the number of validation batches",
                json!(progress.validation_batches_in_all),
            ),
            ("the learning rate", json!(run.learning_rate.to_bits())),
            ("the optimizer", json!(format!("{:?}", state.optimizer()))),
            (
                "the number of checkpoint callbacks",
                json!(self.callbacks.savers()),
            ),
        ]
    }

    /// Whether to stop now. With several workers all of them ask together: one that wants to stop
    /// is enough, and all stop for its reason.
    fn stopping(&mut self) -> Result<bool> {
        if let Some(workers) = self.strategy.workers() {
            let rate = self.run.learning_rate;
            self.run.stop = together::agree(workers, self.run.stop.as_ref(), rate)?;
        }
        Ok(self.run.stop.is_some())
    }

    /// [`stopping`](Self::stopping) after a batch of training, where workers need not ask each
    /// other: their gradients have told.
    fn stopping_after_batch(&mut self) -> Result<bool> {
        let Some(workers) = self.strategy.workers() else {
            return Ok(self.run.stop.is_some());
        };
        if self.run.stop.is_some() {
            workers.request_stop();
        }
        if !workers.stop_agreed() {
            return Ok(false);
        }
        if !self.stopping()? {
            // Somebody asked the group itself.
            self.run.stop = Some(Outcome::Interrupted);
        }
        Ok(true)
    }

    /// Restores everything from a checkpoint of a run like this one.
    fn resume(&mut self, checkpoint: &Checkpoint) -> Result<()> {
        let metadata = &checkpoint.metadata;
        let stored = RunMetadata::load(checkpoint)?;
        let optimizer = self.state.host_part().optimizer().name();
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
        snapshot::restore(self.state, checkpoint)?;
        let too_large = |_| refuse("its position is out of range");
        self.run.progress.position = Position {
            epoch: usize::try_from(metadata.epoch).map_err(too_large)?,
            batches: usize::try_from(metadata.batches_into_epoch).map_err(too_large)?,
        };
        self.run.progress.step = self.state.step();
        self.run.learning_rate = stored.learning_rate;
        self.run.meter = Meter::with_sums(stored.sums);
        self.callbacks.restore(checkpoint, &stored.callbacks)
    }

    /// Calls a method of all callbacks.
    fn notify(
        &mut self,
        call: impl FnMut(&mut dyn Callback, &mut super::Control<'_>) -> Result<()>,
    ) -> Result<()> {
        self.callbacks.each(&mut self.run, self.state, call)
    }

    fn limit_reached(&self) -> bool {
        self.max_steps
            .is_some_and(|limit| self.run.progress.step >= limit)
    }

    fn train<D>(
        &mut self,
        train: &D,
        validation: Option<&dyn BatchSource<Batch = D::Batch>>,
    ) -> Result<History>
    where
        D: BatchSource + ?Sized,
        F: Fn(&StepContext<'_>, &M, D::Batch) -> Result<Objective> + Sync,
    {
        let mut epochs = Vec::new();
        self.notify(|callback, run| callback.on_train_begin(run))?;
        while !self.stopping()? && self.run.progress.position.epoch < self.run.progress.epochs {
            if self.limit_reached() {
                self.run.stop = Some(Outcome::MaxSteps);
                break;
            }
            if let Some(record) = self.epoch(train, validation)? {
                self.notify(|callback, run| callback.on_epoch_end(&record, run))?;
                epochs.push(record);
            }
        }
        let outcome = self.run.stop.clone().unwrap_or(Outcome::Completed);
        let end = |callback: &mut dyn Callback, run: &mut super::Control<'_>| {
            callback.on_train_end(&outcome, run)
        };
        self.callbacks
            .each_savers_first(&mut self.run, self.state, end)?;
        let learning_rate = self.run.learning_rate;
        if self.state.host_part().learning_rate() != learning_rate {
            self.state
                .update(|state| state.set_learning_rate(learning_rate));
        }
        Ok(History {
            epochs,
            outcome,
            position: self.run.progress.position,
        })
    }

    /// One epoch with its validation; `None` if it was cut short.
    fn epoch<D>(
        &mut self,
        train: &D,
        validation: Option<&dyn BatchSource<Batch = D::Batch>>,
    ) -> Result<Option<EpochRecord>>
    where
        D: BatchSource + ?Sized,
        F: Fn(&StepContext<'_>, &M, D::Batch) -> Result<Objective> + Sync,
    {
        let Position { epoch, batches } = self.run.progress.position;
        if batches == 0 {
            self.run.meter = Meter::default();
        }
        self.notify(|callback, run| callback.on_epoch_begin(run))?;
        if self.stopping()? {
            return Ok(None);
        }
        let strategy = self.strategy.handle();
        let before = self.run.meter.read(&*strategy)?.examples();
        let started = Instant::now();
        let part = self.batches(train.epoch(epoch, batches)?)?;
        if part == Part::CutShort {
            return Ok(None);
        }
        let examples = self.run.meter.read(&*strategy)?.examples();
        let training_time = started.elapsed();
        if examples == 0.0 {
            let what = "an epoch of the training data";
            return Err(FitError::NoExamples { what }.into());
        }
        let mut logs = self.run.meter.logs(&*strategy)?;
        let mut validation_time = Duration::ZERO;
        if let Some(validation) = validation {
            let Some((found, time)) = self.validate(validation, epoch)? else {
                return Ok(None);
            };
            logs.extend_validation(&found);
            validation_time = time;
        }
        match part {
            Part::Limited => self.run.stop = Some(Outcome::MaxSteps),
            _ => {
                self.run.meter = Meter::default();
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
            learning_rate: self.run.learning_rate,
            logs,
            examples: (examples - before) as u64,
            training_time,
            validation_time,
        }))
    }

    /// Trains on the batches until they run out or somebody stops it.
    fn batches<B>(&mut self, batches: Batches<'_, B>) -> Result<Part>
    where
        B: Nest + Send,
        F: Fn(&StepContext<'_>, &M, B) -> Result<Objective> + Sync,
    {
        for batch in batches {
            if self.limit_reached() {
                return self.ended(Part::Limited);
            }
            self.step(batch?)?;
            self.notify(|callback, run| callback.on_batch_end(run))?;
            if let Some(workers) = self.strategy.workers().filter(|w| w.agreed(Wish::Save)) {
                // All callbacks have seen it.
                workers.forget(Wish::Save);
            }
            if self.stopping_after_batch()? && !self.state.is_accumulating() {
                return Ok(Part::CutShort);
            }
        }
        self.ended(Part::Complete)
    }

    /// The end of the batches. With several workers one may have wished to stop after the last
    /// update, and no other has told.
    fn ended(&mut self, part: Part) -> Result<Part> {
        let has_workers = self.strategy.workers().is_some();
        let stops = has_workers && !self.state.is_accumulating() && self.stopping()?;
        Ok(if stops { Part::CutShort } else { part })
    }

    /// One step on all replicas.
    fn step<B>(&mut self, batch: PerReplica<B>) -> Result<()>
    where
        B: Nest + Send,
        F: Fn(&StepContext<'_>, &M, B) -> Result<Objective> + Sync,
    {
        let run = &mut self.run;
        let pass = Pass {
            mode: Mode::Train,
            global_batch_size: run.global_batch_size,
            seed: run.seed,
            epoch: run.progress.position.epoch,
            batch: run.progress.position.batches,
        };
        let objective = &self.objective;
        let (rate, compiled) = (run.learning_rate, self.strategy.tracer().is_some());
        if compiled {
            // Set inside, the number would be part of the program.
            self.state.set_learning_rate(rate);
        }
        let sums = self
            .strategy
            .run((&mut *self.state, batch), |replica, (state, batch)| {
                if !compiled {
                    // Set from outside, every change would copy the mirrored state.
                    state.set_learning_rate(rate);
                }
                let given = objective(&StepContext { replica, pass }, &state.model, batch)?;
                let gradients = replica.gradient(&given.total(), &state.model)?;
                state.apply_gradients(replica, gradients)?;
                Ok(given.into_sums(pass.global_batch_size))
            })?;
        run.progress.position.batches += 1;
        run.progress.step = self.state.step();
        run.meter.add(&*run.strategy, sums)
    }

    /// The validation data's averages; `None` if somebody stopped it.
    fn validate<B>(
        &mut self,
        validation: &dyn BatchSource<Batch = B>,
        epoch: usize,
    ) -> Result<Option<(Logs, Duration)>>
    where
        B: Nest + Send,
        F: Fn(&StepContext<'_>, &M, B) -> Result<Objective> + Sync,
    {
        let started = Instant::now();
        let seed = self.run.seed;
        let size = validation.global_batch_size();
        let mut evaluator = Evaluator::new(self.strategy, self.state, size, seed, epoch);
        self.run.progress.validation_batches = 0;
        for batch in validation.epoch(0, 0)? {
            evaluator.batch(self.strategy, self.state, batch?, &self.objective)?;
            self.run.progress.validation_batches += 1;
            self.notify(|callback, run| callback.on_validation_batch_end(run))?;
            if self.stopping()? {
                return Ok(None);
            }
        }
        let (logs, _) = evaluator.finish(self.strategy, "the validation data")?;
        Ok(Some((logs, started.elapsed())))
    }
}
