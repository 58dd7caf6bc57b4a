//! Steps on the replicas of this process, batch by batch.

use std::sync::Arc;

use burn::module::Module;
use distribute_core::{BatchSource, Batches, Nest, PerReplica, Result, StrategyExt};
use tracing::trace_span;

use super::evaluation;
use super::objective::{Forward, train_on};
use super::ranks::{Lap, Ranks};
use super::session::{Engine, Part, Session};
use super::{Logs, Mode, Objective, Position, worker_sync};

/// Training data, validation data, and what is trained.
pub(super) struct Local<'d, D: BatchSource + ?Sized, F> {
    pub(super) train: &'d D,
    pub(super) validation: Option<&'d dyn BatchSource<Batch = D::Batch>>,
    pub(super) objective: F,
}

impl<M, D, F> Engine<M> for Local<'_, D, F>
where
    M: Module + Sync + 'static,
    D: BatchSource + ?Sized,
    F: Forward<M, D::Batch, Objective>,
{
    fn batches(&self, mode: Mode) -> Option<usize> {
        match mode {
            Mode::Train => self.train.batches_per_epoch(),
            _ => self.validation.and_then(BatchSource::batches_per_epoch),
        }
    }

    fn has_validation(&self) -> bool {
        self.validation.is_some()
    }

    fn global_batch_size(&self) -> Option<usize> {
        self.train.global_batch_size()
    }

    /// Trains on the batches until they run out or the run is stopped.
    fn train(&mut self, session: &mut Session<'_, M>) -> Result<Part> {
        let strategy = Arc::clone(&session.run.strategy);
        let Position { epoch, batches } = session.run.progress.position;
        let mut part = Part::Complete;
        let mut batches = worker_sync::batches(&*strategy, self.train, epoch, batches)?;
        session.run.ranks.iter_mut().for_each(Ranks::pause);
        while let Some(batch) = next(&mut batches) {
            session.run.lap(Lap::Data);
            if session.run.limit_reached() {
                part = Part::Limited;
                break;
            }
            let batch = batch.inspect_err(|error| session.save_before_data_ends(error))?;
            session.step(batch, &self.objective)?;
            session.run.lap(Lap::Step);
            session.run.check_replicas(&*session.state)?;
            if let Some(workers) = strategy.workers() {
                workers.hold();
            }
            session.notify(|callback, run| callback.on_batch_end(run))?;
            if let Some(workers) = strategy.workers().filter(|w| w.save_agreed()) {
                // All callbacks have seen it.
                workers.clear_save();
            }
            if session.stopping_after_batch()? {
                return Ok(Part::CutShort);
            }
            session.run.lap(Lap::Other);
            let step = session.run.progress.step;
            let mut ranks = session.run.ranks.iter_mut();
            ranks.try_for_each(|ranks| ranks.batch_done(step))?;
        }
        // One worker may have wished to stop after the last update, and no other has told.
        if session.stopping()? {
            Ok(Part::CutShort)
        } else {
            Ok(part)
        }
    }

    fn validate(&mut self, session: &mut Session<'_, M>) -> Result<Option<Logs>> {
        let Some(validation) = self.validation else {
            return Ok(None);
        };
        let strategy = Arc::clone(&session.run.strategy);
        let mut batches = worker_sync::batches(&*strategy, validation, 0, 0)?;
        session.validation(|session, meter| {
            let run = &session.run;
            let Some(batch) = next(&mut batches).filter(|_| run.stop.is_none()) else {
                return Ok(false);
            };
            let pass = run.pass(Mode::Evaluate, run.progress.validation_batches);
            let sums = evaluation::sums(&*strategy, session.state, pass, batch?, &self.objective)?;
            meter.add(sums)?;
            Ok(true)
        })
    }
}

/// The next batch, for which the replicas wait.
fn next<B>(batches: &mut Batches<'_, B>) -> Option<Result<PerReplica<B>>> {
    let _phase = trace_span!(target: "distribute::phase", "data").entered();
    batches.next()
}

impl<M: Module + Sync + 'static> Session<'_, M> {
    /// One step on all replicas.
    fn step<B: Nest + Send>(
        &mut self,
        batch: PerReplica<B>,
        objective: &impl Forward<M, B, Objective>,
    ) -> Result<()> {
        let run = &mut self.run;
        let step = run.progress.step;
        let _phase = trace_span!(target: "distribute::phase", "step", step).entered();
        let pass = run.pass(Mode::Train, run.progress.position.batches);
        let (rate, compiled) = (run.learning_rate, run.strategy.tracer().is_some());
        if compiled {
            // Set inside, the number would be part of the program.
            self.state.set_learning_rate(rate);
        }
        let args = (&mut *self.state, batch);
        let sums = run.strategy.run(args, |replica, (state, batch)| {
            // Set from outside, every change would copy the mirrored state; parameter servers
            // are told of each.
            if !compiled && state.learning_rate().to_bits() != rate.to_bits() {
                state.set_learning_rate(rate);
            }
            Ok(train_on(replica, pass, state, batch, objective)?.1)
        })?;
        run.count_batch(self.state.host_metadata().step());
        if run.progress.step > run.step_before {
            run.last_learning_rate = rate;
        }
        run.meter.add(sums)
    }
}
