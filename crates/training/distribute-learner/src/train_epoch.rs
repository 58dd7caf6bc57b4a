//! One pass over the training data.

use std::ops::ControlFlow::{self, Break, Continue};
use std::sync::{Mutex, PoisonError};

use burn::data::dataloader::{DataLoaderIterator, Progress};
use burn::data::dataset::DatasetError;
use burn::tensor::TensorData;
use burn_train::{EventProcessorTraining, LearnerEvent, LearnerModel, TrainStep};
use distribute_core::{Error, Result, StrategyExt};
use serde::{Deserialize, Serialize};

use crate::events::Label;
use crate::loader_order::LoaderThreads;
use crate::run::{Run, training_error};
use crate::team::Stop;

/// What a worker says before an update and at the end of an epoch.
#[derive(Serialize, Deserialize)]
struct Word {
    /// The batches of this epoch that it has read.
    read: usize,
    stop: Option<Stop>,
    /// Whose outputs it sends.
    labels: Vec<Label>,
}

impl<M: LearnerModel> Run<'_, M> {
    /// Trains on every batch of the loader, or until the interrupter says stop.
    pub(crate) fn train(&mut self) -> ControlFlow<()> {
        let loader = self.train.clone();
        let accumulation = self.components.grad_accumulation.unwrap_or(1);
        let mut batches = loader.iter();
        let (mut read, mut waiting) = (0, 0);
        loop {
            let taken = match self.next_batches(&mut *batches) {
                Ok(taken) => taken,
                Err(error) => return self.fail(error),
            };
            let first = read;
            read += taken.len();
            let exhausted = taken.len() < self.strategy.num_replicas_in_sync();
            if taken.is_empty() && waiting == 0 {
                return self.end_pass(read);
            }
            if exhausted && !taken.is_empty() {
                self.check_synchronized(taken.len())?;
            }
            waiting += 1;
            // The progress tells one step earlier than the missing batch that it was the last
            // one. Not every loader's does; then the update takes a step without batches.
            let is_last = taken.last().is_some_and(Progress::is_completed);
            let update = exhausted || is_last || waiting >= accumulation;
            if update {
                self.meet(read)?;
                waiting = 0;
            }
            if let Err(error) = self.step(taken.len(), update) {
                return self.fail_with(&error);
            }
            self.report(first, taken)?;
            if first == 0 {
                self.check_order()?;
            }
            if self.team.is_alone() && self.components.interrupter.should_stop() {
                return Break(());
            }
            if exhausted {
                return self.end_pass(read);
            }
        }
    }

    /// Refuses a step with fewer batches than replicas, if a layer takes its statistics over the
    /// batches of all replicas: it would wait for the ones without a batch.
    fn check_synchronized(&self, batches: usize) -> ControlFlow<()> {
        let Some(layer) = self.statistics.synchronized_layer() else {
            return Continue(());
        };
        let replicas = self.strategy.num_replicas_in_sync();
        self.fail_with(&Error::invalid(format!(
            "the last step of the epoch has {batches} of {replicas} batches, and the SyncBatchNorm \
             `{layer}` needs one on each replica: choose a batch size with which the number of \
             batches is a multiple of {replicas}, or use burn's BatchNorm"
        )))
    }

    /// The loader has given all of its batches.
    fn end_pass(&mut self, read: usize) -> ControlFlow<()> {
        self.check_order()?;
        self.loader_threads = None;
        self.meet(read)
    }

    /// Gives each replica its next batch, and leaves the batches of other workers' replicas to
    /// them; how far the loader was after each, fewer than replicas once it is exhausted.
    fn next_batches(
        &mut self,
        batches: &mut dyn DataLoaderIterator<<M as TrainStep>::Input>,
    ) -> Result<Vec<Progress>, DatasetError> {
        let own = self.first_replica();
        let mut taken = Vec::new();
        for id in 0..self.strategy.num_replicas_in_sync() {
            let Some(input) = batches.next() else { break };
            let input = input?;
            taken.push(batches.progress());
            let local = id.checked_sub(own);
            if let Some(replica) = local.and_then(|local| self.replicas.get_mut(local)) {
                replica.input = Some(input);
            }
        }
        Ok(taken)
    }

    /// The id of the first replica of this process.
    fn first_replica(&self) -> usize {
        self.strategy.replicas().first().map_or(0, |it| it.id)
    }

    /// Runs one step on all replicas, also on replicas without a batch.
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

    /// Refuses a loader that gives its batches in another order on each worker: once it has been
    /// read to its end this is known for sure, and mostly after the first step.
    fn check_order(&self) -> ControlFlow<()> {
        let outcome = self.loader_threads.map_or(Ok(()), LoaderThreads::check);
        outcome.map_or_else(|error| self.fail_with(&error), Continue)
    }

    /// Keeps what the batches of a step gave, from number `first` on, until the chief's metrics
    /// see it; that is at once in a process alone.
    fn report(&mut self, first: usize, taken: Vec<Progress>) -> ControlFlow<()> {
        let own = first + self.first_replica();
        if self.team.is_chief() {
            let rate = self.replicas[0].learner.lr_current();
            for (number, progress) in (first..).zip(taken) {
                self.unseen.expect(number, progress, rate.clone());
            }
        }
        let outputs = self.replicas.iter_mut().map(|it| it.output.take());
        for (number, output) in (own..).zip(outputs) {
            let Some(output) = output else { continue };
            match self.codec.filter(|_| !self.team.is_chief()) {
                None => self.unseen.put(number, output),
                Some(codec) => {
                    if let Err(error) = self.unseen.pack(number, output, &codec) {
                        return self.fail_with(&error);
                    }
                }
            }
        }
        if self.team.is_alone() {
            self.show()
        } else {
            Continue(())
        }
    }

    /// One event per batch, in the order of the loader.
    fn show(&mut self) -> ControlFlow<()> {
        let items = match self.unseen.take_items() {
            Ok(items) => items,
            Err(error) => return self.fail_with(&error),
        };
        for item in items {
            self.tell(|events| events.process_train(LearnerEvent::ProcessedItem(item)));
        }
        Continue(())
    }

    /// The workers tell each other how far they are and whether one wants to stop, and the chief's
    /// metrics see the batches of all of them since the last time.
    fn meet(&mut self, read: usize) -> ControlFlow<()> {
        if self.team.is_alone() {
            return Continue(());
        }
        self.check_own_error()?;
        let (labels, tensors) = self.unseen.take_packed();
        let stop = Stop::of(&self.components.interrupter);
        let word = Word { read, stop, labels };
        let call = "a step of burn's training loop";
        let said = match self.team.all_with_tensors(call, word, tensors) {
            Ok(said) => said,
            Err(error) => return self.fail_with(&error),
        };
        if let Err(error) = same_batches(said.iter().map(|(word, _)| word.read)) {
            // All of them know.
            self.components.interrupter.fail(training_error(&error));
            return Break(());
        }
        match self.unpack(said) {
            Ok(stops) => {
                if self.team.is_chief() {
                    self.show()?;
                }
                self.stop_with(stops.into_iter())
            }
            Err(error) => self.fail_with(&error),
        }
    }

    /// Takes over what the others have sent; who wants to stop.
    fn unpack(&mut self, said: Vec<(Word, Vec<TensorData>)>) -> Result<Vec<Option<Stop>>> {
        let device = self.strategy.replicas()[0].device.clone().inner();
        let mut stops = Vec::new();
        for (word, tensors) in said {
            if let Some(codec) = self.codec.filter(|_| self.team.is_chief()) {
                self.unseen
                    .unpack(word.labels, tensors, (&codec, &device))?;
            }
            stops.push(word.stop);
        }
        Ok(stops)
    }
}

/// Whether the loaders of all workers have given equally many batches.
fn same_batches(read: impl Iterator<Item = usize>) -> Result<()> {
    let read: Vec<usize> = read.collect();
    match read.iter().position(|count| *count != read[0]) {
        None => Ok(()),
        Some(worker) => Err(Error::invalid(format!(
            "the data loader of worker {worker} has given {} batches of an epoch when the chief's \
             has given {}: give all workers the same loader, with the same data, batch size and \
             seed",
            read[worker], read[0]
        ))),
    }
}
