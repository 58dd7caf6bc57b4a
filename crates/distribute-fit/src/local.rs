//! Steps on the replicas of this process, batch by batch.

use burn::module::Module;
use distribute_core::{Nest, PerReplica, Result, Strategy, StrategyExt};

use super::control::AnyState;
use super::evaluation::Evaluator;
use super::objective::{Pass, train_on};
use super::session::{Engine, Part, Session, Validated};
use super::{BatchSource, Mode, Objective, StepContext, worker_sync};

/// Training data, validation data, and what is trained.
pub(super) struct Local<'d, D: ?Sized, V: ?Sized, F> {
    pub(super) train: &'d D,
    pub(super) validation: Option<&'d V>,
    pub(super) objective: F,
}

impl<S, M, D, V, F> Engine<S, M> for Local<'_, D, V, F>
where
    S: Strategy + ?Sized,
    M: Module + Sync + 'static,
    D: BatchSource + ?Sized,
    V: BatchSource<Batch = D::Batch> + ?Sized,
    F: Fn(&StepContext<'_>, &M, D::Batch) -> Result<Objective> + Sync,
{
    fn batches(&self, mode: Mode) -> Option<usize> {
        match mode {
            Mode::Train => self.train.batches_per_epoch(),
            _ => self.validation.and_then(BatchSource::batches_per_epoch),
        }
    }

    fn global_batch_size(&self) -> Option<usize> {
        self.train.global_batch_size()
    }

    /// Trains on the batches until they run out or somebody stops it.
    fn train(&mut self, session: &mut Session<'_, S, M>) -> Result<Part> {
        let position = session.run.progress.position;
        for batch in worker_sync::batches(
            session.strategy,
            self.train,
            position.epoch,
            position.batches,
        )? {
            if session.limit_reached() {
                return session.ended(Part::Limited);
            }
            session.step(batch?, &self.objective)?;
            if let Some(workers) = session.strategy.workers() {
                workers.hold();
            }
            session.notify(|callback, run| callback.on_batch_end(run))?;
            if let Some(workers) = session.strategy.workers().filter(|w| w.save_agreed()) {
                // All callbacks have seen it.
                workers.clear_save();
            }
            if session.stopping_after_batch()? {
                return Ok(Part::CutShort);
            }
        }
        session.ended(Part::Complete)
    }

    fn validate(&mut self, session: &mut Session<'_, S, M>, epoch: usize) -> Result<Validated> {
        let Some(validation) = self.validation else {
            return Ok(Validated::Nothing);
        };
        let (strategy, seed) = (session.strategy, session.run.seed);
        let mut evaluator = Evaluator::new(strategy, session.state, seed, epoch)?;
        session.run.progress.validation_batches = 0;
        for batch in worker_sync::batches(strategy, validation, 0, 0)? {
            evaluator.batch(strategy, session.state, batch?, &self.objective)?;
            session.run.progress.validation_batches += 1;
            session.notify(|callback, run| callback.on_validation_batch_end(run))?;
            if session.stopping()? {
                return Ok(Validated::Stopped);
            }
        }
        let (logs, _) = evaluator.finish(strategy, "the validation data")?;
        Ok(Validated::Done(logs))
    }
}

impl<S: Strategy + ?Sized, M: Module + Sync + 'static> Session<'_, S, M> {
    /// One step on all replicas.
    fn step<B, F>(&mut self, batch: PerReplica<B>, objective: &F) -> Result<()>
    where
        B: Nest + Send,
        F: Fn(&StepContext<'_>, &M, B) -> Result<Objective> + Sync,
    {
        let run = &mut self.run;
        let pass = Pass {
            mode: Mode::Train,
            seed: run.seed,
            epoch: run.progress.position.epoch,
            batch: run.progress.position.batches,
        };
        let (rate, compiled) = (run.learning_rate, self.strategy.tracer().is_some());
        if compiled {
            // Set inside, the number would be part of the program.
            self.state.set_learning_rate(rate);
        }
        let sums = self
            .strategy
            .run((&mut *self.state, batch), |replica, (state, batch)| {
                // Set from outside, every change would copy the mirrored state; parameter servers
                // are told of each.
                if !compiled && state.learning_rate().to_bits() != rate.to_bits() {
                    state.set_learning_rate(rate);
                }
                Ok(train_on(replica, pass, (state, batch), objective)?.1)
            })?;
        run.progress.position.batches += 1;
        run.step_before = run.progress.step;
        run.progress.step = self.state.step();
        if run.progress.step > run.step_before {
            run.last_learning_rate = rate;
        }
        run.meter.add(&*run.strategy, sums)
    }
}
