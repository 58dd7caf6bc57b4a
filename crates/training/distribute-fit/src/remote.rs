//! Steps that run in other processes, in any order: [`Fit::run_remotely`](super::Fit::run_remotely)
//! on the side that says what is to be done, [`RemoteTask`] on the side that does it.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::ops::Range;

use burn::module::Module;
use distribute_core::{
    Applied, Error, Mirrored, Nest, PerReplica, Result, Strategy, StrategyExt, TrainState,
};
use serde::{Deserialize, Serialize};

use super::control::Run;
use super::evaluation;
use super::meter::Meter;
use super::objective::{Pass, Sums, train_on};
use super::session::{Engine, Part, Session};
use super::{Logs, Mode, Objective, StepContext};

/// Runs the steps of a training run in other processes. The crate `distribute-ps` has one that
/// schedules them on the workers of a coordinator.
///
/// A *pass* is a range of one epoch's batches. Its steps may run side by side and end in any
/// order, but how far the newest lies before the oldest that has not ended must be bounded: that
/// lead is what a resumed run repeats at most.
pub trait RemoteSteps: Debug {
    /// The number of global batches of an epoch of training or evaluation data; `None` if there is
    /// no such data.
    fn batches(&self, mode: Mode) -> Option<usize>;

    /// The examples of a full global batch of the training data, if they have one size.
    fn global_batch_size(&self) -> Option<usize>;

    /// Begins with the first batches of a pass. Does not wait for them.
    ///
    /// # Errors
    /// If steps cannot be run.
    fn begin(&mut self, pass: RemotePass) -> Result<()>;

    /// Waits for the next step of the pass that ends, whichever it is; `None` when all that have
    /// begun have ended and no further one begins.
    ///
    /// # Errors
    /// That of the step. The pass is over then.
    fn next(&mut self) -> Result<Option<RemoteStep>>;

    /// Begins no further step of the pass. [`next`](Self::next) gives those that run.
    fn stop(&mut self);
}

/// Which steps are to run.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RemotePass {
    /// Training or evaluation.
    pub mode: Mode,
    /// The epoch, from 0.
    pub epoch: usize,
    /// The global batches of the epoch.
    pub batches: Range<usize>,
    /// The most updates that are wanted, if there is a limit.
    pub updates: Option<u64>,
    seed: u64,
}

impl RemotePass {
    /// What is to be done with one of the batches.
    pub fn task(&self, batch: usize) -> RemoteTask {
        RemoteTask(Pass {
            mode: self.mode,
            seed: self.seed,
            epoch: self.epoch,
            batch,
        })
    }
}

/// A step that has ended.
#[derive(Debug)]
pub struct RemoteStep {
    /// The batch within its epoch.
    pub batch: usize,
    /// What [`RemoteTask::run`] gave.
    pub report: StepReport,
}

/// What one step gives: its part of loss and metrics, and the number of updates so far. Travels to
/// the process that trains.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StepReport {
    sums: Sums,
    step: u64,
}

/// One step: what is to be done with which batch. Travels to the process that does it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemoteTask(Pass);

impl RemoteTask {
    /// Whether the batch is one of the training data or of the evaluation data.
    pub fn mode(&self) -> Mode {
        self.0.mode
    }

    /// The epoch whose batch is wanted, from 0. Evaluation data always has epoch 0.
    pub fn epoch(&self) -> usize {
        match self.0.mode {
            Mode::Train => self.0.epoch,
            _ => 0,
        }
    }

    /// The global batch within the epoch, from 0.
    pub fn batch(&self) -> usize {
        self.0.batch
    }

    /// Does it: trains the state on the batch, or evaluates the newest state on it. Blocks.
    ///
    /// The batch must know its size, see `of_global_batch` of
    /// [`BatchSource`](distribute_core::BatchSource).
    ///
    /// # Errors
    /// The errors of the objective and of the state.
    pub fn run<S, M, B, F>(
        &self,
        strategy: &S,
        state: &mut Mirrored<TrainState<M>>,
        batch: PerReplica<B>,
        objective: &F,
    ) -> Result<StepReport>
    where
        S: Strategy + ?Sized,
        M: Module + Sync + 'static,
        B: Nest + Send,
        F: Fn(&StepContext<'_>, &M, B) -> Result<Objective> + Sync,
    {
        let strategy = &*strategy.handle();
        let sums = match self.0.mode {
            Mode::Train => strategy.run((&mut *state, batch), |replica, (state, batch)| {
                let (applied, sums) = train_on(replica, self.0, state, batch, objective)?;
                match applied {
                    Applied::Accumulated => Err(accumulates()),
                    _ => Ok(sums),
                }
            })?,
            _ => {
                state.refresh()?;
                evaluation::sums(strategy, state, self.0, batch, objective)?
            }
        };
        Ok(StepReport {
            sums: Meter::sums_of(strategy, sums)?,
            step: state.host_metadata().step(),
        })
    }
}

pub(super) fn accumulates() -> Error {
    Error::invalid(
        "the state accumulates micro-batches: a worker that is lost would take their gradients \
         with it; train without `accumulate`, with larger batches",
    )
}

/// The engine of a session whose steps run elsewhere.
pub(super) struct Remote<'r> {
    steps: &'r mut dyn RemoteSteps,
    /// Steps that have ended before one of an earlier batch.
    early: BTreeMap<usize, StepReport>,
    /// The learning rate that the state's home knows.
    learning_rate: Option<f64>,
}

impl<'r> Remote<'r> {
    pub(super) fn new(steps: &'r mut dyn RemoteSteps) -> Self {
        Self {
            steps,
            early: BTreeMap::new(),
            learning_rate: None,
        }
    }

    /// Waits for the step of this batch, keeping what ends before it.
    fn report(&mut self, batch: usize) -> Result<Option<StepReport>> {
        while !self.early.contains_key(&batch) {
            let Some(step) = self.steps.next()? else {
                break;
            };
            self.early.insert(step.batch, step.report);
        }
        Ok(self.early.remove(&batch))
    }

    /// Sets the learning rate where the state lives, if a callback has changed it.
    fn send_learning_rate<M>(&mut self, session: &mut Session<'_, M>) -> Result<()>
    where
        M: Module + Sync + 'static,
    {
        let rate = session.run.learning_rate;
        if self.learning_rate != Some(rate) {
            session.state.update(|state| {
                state.set_learning_rate(rate);
                state.send_learning_rate()
            })?;
            self.learning_rate = Some(rate);
        }
        Ok(())
    }

    /// Begins with the batches of a pass.
    fn begin(&mut self, run: &Run, mode: Mode, batches: Range<usize>) -> Result<()> {
        self.early.clear();
        let limit = run.max_steps.filter(|_| mode == Mode::Train);
        self.steps.begin(RemotePass {
            mode,
            epoch: run.progress.position.epoch,
            batches,
            updates: limit.map(|limit| limit.saturating_sub(run.progress.step)),
            seed: run.seed,
        })
    }
}

impl<M: Module + Sync + 'static> Engine<M> for Remote<'_> {
    fn batches(&self, mode: Mode) -> Option<usize> {
        self.steps.batches(mode)
    }

    fn has_validation(&self) -> bool {
        self.steps.batches(Mode::Evaluate).is_some()
    }

    fn global_batch_size(&self) -> Option<usize> {
        self.steps.global_batch_size()
    }

    fn train(&mut self, session: &mut Session<'_, M>) -> Result<Part> {
        let end = self.steps.batches(Mode::Train).unwrap_or(0);
        self.send_learning_rate(session)?;
        let part = loop {
            let begun = session.run.progress.position.batches;
            if begun >= end {
                break Part::Complete;
            }
            if session.run.limit_reached() {
                break Part::Limited;
            }
            self.begin(&session.run, Mode::Train, begun..end)?;
            for batch in begun..end {
                let Some(report) = self.report(batch)? else {
                    break;
                };
                let run = &mut session.run;
                run.count_batch(run.progress.step.max(report.step));
                run.last_learning_rate = run.learning_rate;
                run.meter.add_read(report.sums)?;
                session.notify(|callback, run| callback.on_batch_end(run))?;
                self.send_learning_rate(session)?;
                if session.stopping()? {
                    self.steps.stop();
                }
            }
            if session.stopping()? {
                break Part::CutShort;
            }
            if session.run.progress.position.batches == begun {
                return Err(Error::invalid("the steps of the pass have not run"));
            }
        };
        session.state.refresh()?;
        Ok(part)
    }

    fn validate(&mut self, session: &mut Session<'_, M>) -> Result<Option<Logs>> {
        let Some(end) = self.steps.batches(Mode::Evaluate) else {
            return Ok(None);
        };
        self.begin(&session.run, Mode::Evaluate, 0..end)?;
        let mut batches = 0..end;
        session.validation(|session, meter| {
            if session.run.stop.is_some() {
                self.steps.stop();
            }
            let report = batches.next().map(|batch| self.report(batch)).transpose()?;
            let Some(report) = report.flatten() else {
                return Ok(false);
            };
            meter.add_read(report.sums)?;
            Ok(true)
        })
    }
}
