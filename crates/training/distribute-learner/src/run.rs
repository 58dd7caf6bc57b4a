//! One training under a strategy, epoch by epoch.

use std::ops::ControlFlow::{self, Break, Continue};

use burn::tensor::{Tensor, TensorData};
use burn_train::train::WorkerFailure;
use burn_train::{
    EventProcessorTraining, InferenceStep, LearnerEvent, LearnerModel,
    SupervisedTrainingEventProcessor, TrainLoader, TrainStep, TrainingComponents, TrainingError,
    TrainingItem, ValidLoader,
};
use distribute_core::{Error, Result, RunningStatistics, Strategy};
use serde::{Deserialize, Serialize};

use crate::events::Unseen;
use crate::loader_order::LoaderThreads;
use crate::outputs::Codec;
use crate::replica::LearnerReplica;
use crate::team::{Stop, Team};

/// One training, epoch by epoch. `Break` is its end, for a reason that the interrupter knows or
/// because early stopping wants it.
pub(crate) struct Run<'a, M: LearnerModel> {
    pub(crate) strategy: &'a dyn Strategy,
    pub(crate) team: Team,
    /// How outputs travel to the chief, if there is more than one worker.
    pub(crate) codec: Option<Codec>,
    pub(crate) statistics: RunningStatistics,
    pub(crate) replicas: Vec<LearnerReplica<M>>,
    pub(crate) train: TrainLoader<M>,
    pub(crate) valid: ValidLoader<M>,
    /// With several workers, until it is known that the loader's order is the same on all.
    pub(crate) loader_threads: Option<LoaderThreads>,
    /// How many passes over the validation data an earlier training has made.
    pub(crate) validated: usize,
    pub(crate) unseen: Unseen<<M as TrainStep>::Output>,
    pub(crate) components: TrainingComponents<M>,
}

/// What a worker says between two steps of the chief's, in validation and at the end of an epoch.
#[derive(Serialize, Deserialize)]
struct Word {
    stop: Option<Stop>,
    /// The chief's: whether there is more to come.
    goes_on: bool,
}

impl<M: LearnerModel> Run<'_, M> {
    /// All epochs from this one on.
    pub(crate) fn epochs(&mut self, starting_epoch: usize) {
        // A loader that shuffles has another order in each pass, from its first one on.
        self.validated = starting_epoch.saturating_sub(1);
        for _ in 0..self.validated {
            drop(self.train.iter());
        }
        for epoch in starting_epoch..=self.components.num_epochs {
            if self.epoch(epoch).is_break() {
                break;
            }
        }
    }

    /// Tells metrics and renderers of the chief something; an error of theirs ends the training.
    pub(crate) fn tell<E: Into<TrainingError>>(
        &mut self,
        tell: impl FnOnce(&mut SupervisedTrainingEventProcessor<M>) -> Result<(), E>,
    ) {
        if self.team.is_chief() {
            let told = tell(&mut self.components.event_processor);
            self.components.interrupter.fail_on_error(told);
        }
    }

    /// Ends the training of all workers with an error of this one.
    pub(crate) fn fail(&self, error: impl Into<TrainingError>) -> ControlFlow<()> {
        let error = error.into();
        self.team.abort(&error.to_string());
        self.components.interrupter.fail(error);
        Break(())
    }

    /// As [`fail`](Self::fail), with an error of ours.
    pub(crate) fn fail_with(&self, error: &Error) -> ControlFlow<()> {
        self.team.abort(&error.to_string());
        self.components.interrupter.fail(training_error(error));
        Break(())
    }

    /// Ends the training of all workers if something has failed beside this one's, such as the
    /// thread that writes checkpoints.
    pub(crate) fn check_own_error(&self) -> ControlFlow<()> {
        match self.components.interrupter.error() {
            Some(error) => {
                self.team.abort(&error.to_string());
                Break(())
            }
            None => Continue(()),
        }
    }

    /// Trains and validates once.
    fn epoch(&mut self, epoch: usize) -> ControlFlow<()> {
        let start = LearnerEvent::StartSplit {
            epoch_number: epoch,
            total_items: self.train.num_items(),
        };
        self.tell(|events| events.process_train(start));
        let mut trained = self.train();
        // After an error the other workers are not there any more.
        if (self.team.is_alone() || self.check_own_error().is_continue())
            && let Err(error) = self.read_statistics()
        {
            trained = self.fail_with(&error);
        }
        self.tell(|events| events.process_train(LearnerEvent::EndSplit(epoch)));
        let is_told = self.team.is_alone() && self.components.interrupter.should_stop();
        if trained.is_break() || is_told {
            if let Some(stop) = self.components.interrupter.interruption() {
                let reason = stop.reason.as_deref().unwrap_or("no reason given");
                tracing::info!(epoch, reason, "training interrupted");
            }
            return Break(());
        }
        let start = LearnerEvent::StartSplit {
            epoch_number: epoch,
            total_items: self.valid.num_items(),
        };
        self.tell(|events| events.process_valid(start));
        let validated = if self.team.is_chief() {
            self.validate()
        } else {
            self.follow_validation()
        };
        self.tell(|events| events.process_valid(LearnerEvent::EndSplit(epoch)));
        self.tell(|events| events.process_train(LearnerEvent::EndEpoch(epoch)));
        validated?;
        self.save_or_stop(epoch)
    }

    /// Gives all learners, and all replicas, the mean of the running statistics that the replicas
    /// of all workers had of their own.
    fn read_statistics(&self) -> Result<()> {
        if self.statistics.is_empty() {
            return Ok(());
        }
        let own = self.replicas.iter().map(|replica| replica.model().clone());
        let mut models: Vec<M> = own.collect();
        if let Some(workers) = self.team.workers() {
            let lists = models.iter().map(|model| self.statistics_of(model));
            let lists: Vec<_> = lists.collect::<Result<_>>()?;
            let lists = workers.gather("running statistics", &lists)?.into_iter();
            let with = |list| self.with_statistics(&models[0], list);
            models = lists.map(with).collect::<Result<_>>()?;
        }
        let mean = self.statistics.mean(&models)?;
        for replica in &self.replicas {
            self.statistics.write(replica.model(), mean.clone())?;
            self.statistics
                .write(&replica.learner.model(), mean.clone())?;
        }
        Ok(())
    }

    fn statistics_of(&self, model: &M) -> Result<Vec<TensorData>> {
        let values = self.statistics.read(model).into_iter();
        values
            .map(|value| value.try_into_data().map_err(Error::internal))
            .collect()
    }

    /// The model with other running statistics.
    fn with_statistics(&self, model: &M, values: Vec<TensorData>) -> Result<M> {
        let copy = self.statistics.own_copy(model);
        let like = self.statistics.read(&copy);
        let values = values
            .into_iter()
            .zip(&like)
            .map(|(value, like)| Tensor::from_data(value, (&like.device(), like.dtype())));
        self.statistics.write(&copy, values.collect())?;
        Ok(copy)
    }

    /// Validates replica 0's model on the calling thread of the chief, while the others wait.
    fn validate(&mut self) -> ControlFlow<()> {
        let model = self.replicas[0].learner.model().valid();
        let loader = self.valid.clone();
        for _ in 0..std::mem::take(&mut self.validated) {
            // Not before training, which looks whether its own loader starts threads.
            drop(loader.iter());
        }
        let mut batches = loader.iter();
        let mut iteration = 0;
        while let Some(batch) = batches.next() {
            let batch = match batch {
                Ok(batch) => batch,
                Err(error) => return self.fail(error),
            };
            self.agree("a batch of the validation", true)?;
            iteration += 1;
            let output = InferenceStep::step(&model, batch);
            let item = TrainingItem::new(output, batches.progress(), Some(iteration), None);
            self.tell(|events| events.process_valid(LearnerEvent::ProcessedItem(item)));
            if self.team.is_alone() && self.components.interrupter.should_stop() {
                return Break(());
            }
        }
        self.agree("a batch of the validation", false)
            .map_continue(drop)
    }

    /// Waits while the chief validates.
    fn follow_validation(&mut self) -> ControlFlow<()> {
        while self.agree("a batch of the validation", false)? {}
        Continue(())
    }

    /// What burn does between two epochs, on the chief; all do as it decides.
    fn save_or_stop(&mut self, epoch: usize) -> ControlFlow<()> {
        let goes_on = if self.team.is_chief() {
            self.save(epoch)?
        } else {
            false
        };
        if self.agree("whether there is another epoch", goes_on)? {
            Continue(())
        } else {
            Break(())
        }
    }

    /// Saves a checkpoint if it is time; says whether early stopping wants another epoch.
    fn save(&mut self, epoch: usize) -> ControlFlow<(), bool> {
        let parts = &self.components;
        if parts.checkpointer.is_some() || parts.early_stopping.is_some() {
            // Both read metrics of this epoch.
            self.tell(EventProcessorTraining::flush);
        }
        self.check_own_error()?;
        let parts = &mut self.components;
        if self.team.is_alone() && parts.interrupter.should_stop() {
            return Break(());
        }
        let learner = &self.replicas[0].learner;
        if let Some(checkpointer) = &mut parts.checkpointer {
            checkpointer.checkpoint(learner, epoch, &parts.event_store);
        }
        let stopping = parts.early_stopping.as_mut();
        let stops = stopping.is_some_and(|it| it.should_stop(epoch, &parts.event_store));
        Continue(!stops)
    }

    /// The chief's word on all workers. A worker's wish to stop is one of all of them.
    fn agree(&self, call: &str, goes_on: bool) -> ControlFlow<(), bool> {
        if self.team.is_alone() {
            return Continue(goes_on);
        }
        self.check_own_error()?;
        let stop = Stop::of(&self.components.interrupter);
        let said = match self.team.all(call, Word { stop, goes_on }) {
            Ok(said) => said,
            Err(error) => {
                self.fail_with(&error)?;
                return Break(());
            }
        };
        let goes_on = said[0].goes_on;
        self.stop_with(said.into_iter().map(|word| word.stop))?;
        Continue(goes_on)
    }

    /// Stops if a worker wants to: for the reason of the first of them.
    pub(crate) fn stop_with(&self, all: impl Iterator<Item = Option<Stop>>) -> ControlFlow<()> {
        match all.flatten().next() {
            Some(stop) => {
                stop.tell(&self.components.interrupter);
                Break(())
            }
            None => Continue(()),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_of_no_replica_is_reported_as_a_failure() {
        let error = training_error(&Error::invalid("no threads"));
        assert!(error.to_string().contains("no threads"), "{error}");
    }
}
