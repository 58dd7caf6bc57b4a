//! One pass over the training data.

use std::sync::{Mutex, PoisonError};

use burn::data::dataloader::{DataLoaderIterator, Progress};
use burn::data::dataset::DatasetError;
use burn_train::{EventProcessorTraining, LearnerEvent, LearnerModel, TrainStep, TrainingItem};
use distribute_core::{Result, StrategyExt};

use crate::strategy::{Run, training_error};

impl<M: LearnerModel> Run<'_, M> {
    /// Trains on every batch of the loader, or until the interrupter says stop.
    pub(crate) fn train(&mut self) {
        let loader = self.train.clone();
        let interrupter = self.components.interrupter.clone();
        let accumulation = self.components.grad_accumulation.unwrap_or(1);
        let mut batches = loader.iter();
        let mut iteration = 0;
        let mut waiting = 0;
        loop {
            let (taken, is_last) = match self.next_batches(&mut *batches) {
                Ok(taken) => taken,
                Err(error) => return interrupter.fail(error),
            };
            let exhausted = taken < self.replicas.len();
            if taken == 0 && waiting == 0 {
                return;
            }
            waiting += 1;
            // The progress tells one step earlier than the missing batch that it was the last
            // one. Not every loader's does; then the update takes a step without batches.
            let update = exhausted || is_last || waiting >= accumulation;
            if let Err(error) = self.step(taken, update) {
                return interrupter.fail(training_error(&error));
            }
            if update {
                waiting = 0;
            }
            self.report(&mut iteration);
            if exhausted || interrupter.should_stop() {
                return;
            }
        }
    }

    /// Gives each replica its next batch; says how many there were, fewer than replicas once the
    /// loader is exhausted, and whether the loader calls one the last.
    fn next_batches(
        &mut self,
        batches: &mut dyn DataLoaderIterator<<M as TrainStep>::Input>,
    ) -> Result<(usize, bool), DatasetError> {
        let mut taken = (0, false);
        for replica in &mut self.replicas {
            let Some(input) = batches.next() else { break };
            let (input, progress) = (input?, batches.progress());
            taken = (taken.0 + 1, Progress::is_completed(&progress));
            replica.input = Some((input, progress));
        }
        Ok(taken)
    }

    /// Runs one step on all replicas, also on those that have no batch.
    fn step(&mut self, batches: usize, update: bool) -> Result<()> {
        // No arguments of the step: a replica and what burn loads are not made of tensors.
        let replicas: Vec<_> = self.replicas.iter_mut().map(Mutex::new).collect();
        let step = self.strategy.run((), |ctx, ()| {
            let replica = replicas[ctx.local_id()].lock();
            let mut replica = replica.unwrap_or_else(PoisonError::into_inner);
            replica.step(ctx, batches, update)
        });
        step.map(drop)
    }

    /// One event per batch, in the order of the loader.
    fn report(&mut self, iteration: &mut usize) {
        let rate = self.replicas[0].learner.lr_current();
        let outputs = self.replicas.iter_mut();
        let outputs: Vec<_> = outputs.filter_map(|it| it.output.take()).collect();
        for (output, progress) in outputs {
            *iteration += 1;
            let rate = Some(rate.clone());
            let item = TrainingItem::new(output, progress, Some(*iteration), rate);
            self.tell(|events| events.process_train(LearnerEvent::ProcessedItem(item)));
        }
    }
}
