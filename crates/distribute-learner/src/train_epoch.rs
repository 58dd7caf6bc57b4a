//! One pass over the training data.

use std::iter;
use std::sync::{Mutex, PoisonError};

use burn::data::dataloader::{DataLoaderIterator, Progress};
use burn::data::dataset::DatasetError;
use burn_train::train::WorkerFailure;
use burn_train::{
    EventProcessorTraining, Interrupter, LearnerEvent, LearnerModel,
    SupervisedTrainingEventProcessor, TrainLoader, TrainStep, TrainingError, TrainingItem,
};
use distribute_core::{Error, Result, Strategy, StrategyExt};

use crate::replica::{LearnerReplica, Share};

type Input<M> = <M as TrainStep>::Input;

/// One epoch over all replicas.
pub(crate) struct TrainEpoch<'a, M: LearnerModel> {
    pub(crate) strategy: &'a dyn Strategy,
    pub(crate) replicas: &'a mut [LearnerReplica<M>],
    pub(crate) events: &'a mut SupervisedTrainingEventProcessor<M>,
    pub(crate) interrupter: &'a Interrupter,
    /// The number of steps whose gradients one update sums.
    pub(crate) accumulation: usize,
}

/// The batches of one step and how far the loader was after each of them; fewer than there are
/// replicas once the loader is exhausted.
struct Hand<M: LearnerModel> {
    inputs: Vec<Input<M>>,
    progress: Vec<Progress>,
}

impl<M: LearnerModel> TrainEpoch<'_, M> {
    /// Trains on every batch of the loader, or until the interrupter says stop.
    pub(crate) fn run(mut self, loader: &TrainLoader<M>) {
        let mut batches = loader.iter();
        let mut iteration = 0;
        let mut waiting = 0;
        loop {
            let hand = match self.deal(&mut *batches) {
                Ok(hand) => hand,
                Err(error) => return self.interrupter.fail(error),
            };
            let exhausted = hand.inputs.len() < self.replicas.len();
            if hand.inputs.is_empty() && waiting == 0 {
                return;
            }
            waiting += 1;
            // The progress tells one step earlier than the missing batch that it was the last
            // one. Not every loader's does; then the update takes a step without batches.
            let last = exhausted || hand.progress.last().is_some_and(Progress::is_completed);
            let update = last || waiting >= self.accumulation;
            if let Err(error) = self.step(hand.inputs, update) {
                return self.interrupter.fail(training_error(&error));
            }
            if update {
                waiting = 0;
            }
            self.report(hand.progress, &mut iteration);
            if exhausted || self.interrupter.should_stop() {
                return;
            }
        }
    }

    /// The next batch for each replica.
    fn deal(
        &self,
        batches: &mut dyn DataLoaderIterator<Input<M>>,
    ) -> Result<Hand<M>, DatasetError> {
        let mut hand = Hand {
            inputs: Vec::with_capacity(self.replicas.len()),
            progress: Vec::with_capacity(self.replicas.len()),
        };
        while hand.inputs.len() < self.replicas.len() {
            let Some(input) = batches.next() else { break };
            hand.inputs.push(input?);
            hand.progress.push(batches.progress());
        }
        Ok(hand)
    }

    /// Runs one step on all replicas, also on those that have no batch.
    fn step(&mut self, inputs: Vec<Input<M>>, update: bool) -> Result<()> {
        let share = Share {
            batches: inputs.len(),
            update,
        };
        let inputs = inputs
            .into_iter()
            .map(Some)
            .chain(iter::repeat_with(|| None));
        // No arguments of the step: a replica and what burn loads are not made of tensors.
        let items = self.replicas.iter_mut().zip(inputs);
        let items: Vec<_> = items.map(|item| Mutex::new(Some(item))).collect();
        let step = self.strategy.run((), |ctx, ()| {
            let item = items[ctx.local_id()].lock();
            let item = item.unwrap_or_else(PoisonError::into_inner).take();
            let twice = || Error::invalid("a strategy ran a replica twice");
            let (replica, input) = item.ok_or_else(twice)?;
            replica.step(ctx, input, share)
        });
        step.map(drop)
    }

    /// One event per batch, in the order of the loader.
    fn report(&mut self, progress: Vec<Progress>, iteration: &mut usize) {
        let rate = self.replicas[0].learner.lr_current();
        let outputs = self
            .replicas
            .iter_mut()
            .map(|replica| replica.output.take());
        for (output, progress) in outputs.flatten().zip(progress) {
            *iteration += 1;
            let rate = Some(rate.clone());
            let item = TrainingItem::new(output, progress, Some(*iteration), rate);
            let event = LearnerEvent::ProcessedItem(item);
            self.interrupter
                .fail_on_error(self.events.process_train(event));
        }
    }
}

/// Our error as burn reports one: of its kinds the failure of a worker is the one that carries a
/// text. An error that belongs to no replica is reported for the first one.
pub(crate) fn training_error(error: &Error) -> TrainingError {
    let device_id = match error {
        Error::Replica { replica, .. } | Error::ReplicaPanicked { replica, .. } => *replica,
        _ => 0,
    };
    TrainingError::Workers(vec![WorkerFailure {
        device_id,
        message: error.to_string(),
    }])
}
