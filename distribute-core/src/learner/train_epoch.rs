//! One pass over the training data.

use std::iter;
use std::sync::Mutex;

use burn::data::dataloader::{DataLoaderIterator, Progress};
use burn::data::dataset::DatasetError;
use burn_train::{
    EventProcessorTraining, Interrupter, LearnerEvent, LearnerModel,
    SupervisedTrainingEventProcessor, TrainLoader, TrainStep, TrainingItem,
};

use super::replica::{LearnerReplica, Share};
use super::training_error;
use crate::sync::lock;
use crate::{Error, Result, Strategy, scope};

type Input<M> = <M as TrainStep>::Input;

/// One epoch over all replicas.
pub(super) struct TrainEpoch<'a, M: LearnerModel> {
    pub(super) strategy: &'a dyn Strategy,
    pub(super) replicas: &'a mut [LearnerReplica<M>],
    pub(super) events: &'a mut SupervisedTrainingEventProcessor<M>,
    pub(super) interrupter: &'a Interrupter,
    /// The number of steps whose gradients one update sums.
    pub(super) accumulation: usize,
}

/// The batches of one step and how far the loader was after each of them; fewer than there are
/// replicas once the loader is exhausted.
struct Hand<M: LearnerModel> {
    inputs: Vec<Input<M>>,
    progress: Vec<Progress>,
}

impl<M: LearnerModel> TrainEpoch<'_, M> {
    /// Trains on every batch of the loader, or until the interrupter says stop.
    pub(super) fn run(mut self, loader: &TrainLoader<M>) {
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
        // Not `StrategyExt::run`: a replica and what burn loads are not made of tensors.
        scope::check_run(&self.strategy.id())?;
        let items = self.replicas.iter_mut().zip(inputs);
        let items: Vec<_> = items.map(|item| Mutex::new(Some(item))).collect();
        self.strategy.run_replicas(&|ctx| {
            let item = lock(&items[ctx.local_id()]).take();
            let twice = || Error::invalid("a strategy ran a replica twice");
            let (replica, input) = item.ok_or_else(twice)?;
            replica.step(ctx, input, share)
        })
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
