//! Steps on the replicas of this process, batch by batch.

use std::sync::Arc;

use burn::module::Module;
use distribute_core::{
    BatchSource, Batches, Error, Nest, PerReplica, Recomputation, Replica, Result, SourceState,
    StrategyExt,
};
use tracing::trace_span;

use super::evaluation;
use super::objective::{Checked, Forward, train_checked, train_on};
use super::ranks::{Lap, Ranks};
use super::session::{Engine, Part, Session};
use super::{FitError, Logs, Mode, Objective, Position, worker_sync};

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

    fn saved_data(&self) -> Option<Arc<dyn SourceState>> {
        self.train.saved_state()
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
            let check = session.checked(self.train)?;
            session.step(batch, &self.objective, check)?;
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
    /// The check of the next step, if one is due, with what this process reads anew for it.
    fn checked<D>(&self, source: &D) -> Result<Option<Checked<D::Batch>>>
    where
        D: BatchSource + ?Sized,
    {
        let (run, strategy) = (&self.run, &*self.run.strategy);
        let updates = self.state.host_metadata().step();
        let due = |every| Recomputation::due(strategy, every, updates);
        let Some(plan) = run.recompute.and_then(due) else {
            return Ok(None);
        };
        if strategy.tracer().is_some() {
            return Err(Error::invalid(
                "recompute: the steps of this strategy are compiled for all replicas together, so \
                 that none can compute for another: leave it out, or use another strategy",
            ));
        }
        let Position { epoch, batches } = run.progress.position;
        let _phase = trace_span!(target: "distribute::phase", "data").entered();
        let mut anew = Vec::new();
        for Replica { id, device, .. } in strategy.replicas() {
            if plan.by().contains(id) {
                let batch = source.replica_batch(epoch, batches, plan.replica(), device)?;
                anew.push((*id, batch.ok_or(FitError::NotReadAgain)?));
            }
        }
        Ok(Some(Checked::new(plan, anew)))
    }

    /// One step on all replicas, with a check of their gradients if it is the turn of one.
    fn step<B: Nest + Send>(
        &mut self,
        batch: PerReplica<B>,
        objective: &impl Forward<M, B, Objective>,
        check: Option<Checked<B>>,
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
            match &check {
                Some(check) => train_checked(replica, pass, state, batch, objective, check),
                None => Ok(train_on(replica, pass, state, batch, objective)?.1),
            }
        })?;
        if let Some(wrong) = check.and_then(Checked::into_found) {
            return Err(worker_sync::known_to_all(&*run.strategy, wrong));
        }
        run.count_batch(self.state.host_metadata().step());
        if run.progress.step > run.step_before {
            run.last_learning_rate = rate;
        }
        run.meter.add(sums)
    }
}
