//! burn's own training loop on our replicas: [`LearnerStrategy`].

use std::sync::Arc;

use burn_train::train::WorkerFailure;
use burn_train::{
    EventProcessorTraining, InferenceStep, Learner, LearnerEvent, LearnerModel,
    SupervisedLearningStrategy, SupervisedTrainingEventProcessor, TrainLoader, TrainingComponents,
    TrainingError, TrainingItem, ValidLoader,
};
use distribute_core::{Error, Result, RunningStatistics, Strategy};

use crate::replica::LearnerReplica;

/// A strategy of ours in the place of burn's own in burn's `SupervisedTraining`.
///
/// ```
/// use std::sync::Arc;
///
/// use burn_train::{LearnerModel, SupervisedTraining, TrainingStrategy};
/// use distribute_core::{MirroredStrategy, Result};
/// use distribute_learner::LearnerStrategy;
///
/// fn on_two_replicas<M: LearnerModel>(
///     training: SupervisedTraining<M>,
/// ) -> Result<SupervisedTraining<M>> {
///     let strategy = MirroredStrategy::builder().replicas(2).build()?;
///     let strategy = Arc::new(LearnerStrategy::new(strategy));
///     Ok(training.with_training_strategy(TrainingStrategy::Custom(strategy)))
/// }
/// ```
///
/// # What one step is
///
/// Every replica has its own `Learner`: the model on the replica's device, an optimizer and a
/// learning rate scheduler. They start equal and stay equal, bit for bit, because all of them
/// apply the same gradients, under every strategy ([`VariablePlacement::Central`] too).
///
/// - **Batches.** A step deals one batch of the data loader to each replica, in replica order: the
///   loader's batch is the per-replica batch, and one step over n replicas is one step of a single
///   device with batches n times as large, if the loss is a mean over the batch. At the end of an
///   epoch fewer batches than replicas may be left; the replicas without one take part in the
///   communication with a zero gradient. Every batch of the loader is trained on once, in the order
///   in which a single device would see it. The loader makes batches on the calling thread; give it
///   workers (`num_workers`) if that takes long.
/// - **Gradients** are averaged over the batches of the step (not over the replicas, nor over the
///   examples: a smaller last batch counts as much as the others of its step), in the canonical
///   order of the collectives. A parameter that a batch did not use counts as zero if another batch
///   of the step used it; one that no batch used is left alone.
/// - **Accumulation.** With `grads_accumulation(k)` the replicas add up the gradients of k steps,
///   and communicate only when the optimizer uses them: at every k-th step and at the end of the
///   epoch. As on a single device what is applied is the sum over the k steps.
/// - **Batch normalization.** Every replica normalizes its own batch and has its own running
///   statistics; validation, checkpoints and the model that training returns have their mean over
///   the replicas.
/// - **The learning rate scheduler** steps once per step of the optimizer, just before it.
/// - **Events** are those of a single device: one processed item per batch, in the loader's order,
///   with the loader's progress. Validation, checkpoints (replica 0's learner), early stopping and
///   the interrupter work as on a single device; the interrupter is looked at after every step.
///
/// # When something goes wrong
///
/// A replica that panics or fails, and a collective operation that fails, end the training with
/// [`TrainingError::Workers`] in the result's `error`, which names the replica and what happened;
/// nobody hangs. The model of the result is replica 0's, which may be without the last step. If
/// the data loader fails, the batches of the step it was filling are not trained on. A panic in a
/// validation step passes through, as with burn's own strategies.
///
/// Refused in the same way: replicas on different burn devices (a loader makes its batches on one),
/// strategies over several processes, and those that compile steps.
///
/// # What burn does not hand over
///
/// `SupervisedTraining::gradient_checkpointing` has no effect on a custom strategy, in burn 0.22.1.
/// Layers that draw random numbers from burn's generator (its `Dropout`) draw from one generator
/// for the whole process, so with several replicas their numbers depend on timing.
///
/// [`TrainingError::Workers`]: burn_train::TrainingError::Workers
/// [`VariablePlacement::Central`]: distribute_core::VariablePlacement::Central
#[derive(Debug, Clone)]
pub struct LearnerStrategy {
    strategy: Arc<dyn Strategy>,
}

impl LearnerStrategy {
    /// Trains on every replica of `strategy`.
    pub fn new(strategy: impl Strategy + 'static) -> Self {
        Self::from(Arc::new(strategy) as Arc<dyn Strategy>)
    }

    /// The strategy whose replicas are trained on.
    pub fn strategy(&self) -> &dyn Strategy {
        &*self.strategy
    }

    /// What this strategy cannot train.
    fn check(&self) -> Result<()> {
        let replicas = self.strategy.replicas();
        let in_sync = self.strategy.num_replicas_in_sync();
        if replicas.is_empty() || replicas.len() != in_sync {
            return Err(Error::invalid(format!(
                "burn's training loop runs in one process, but {} of the {in_sync} replicas of \
                 the {} strategy are here; write a step of your own, or use `fit`",
                replicas.len(),
                self.strategy.name(),
            )));
        }
        if self.strategy.tracer().is_some() {
            return Err(Error::invalid(format!(
                "burn's training loop runs its steps as they are, but the {} strategy compiles \
                 them; write a step of your own, or use `fit`",
                self.strategy.name(),
            )));
        }
        if replicas.iter().any(|it| it.device != replicas[0].device) {
            return Err(Error::invalid(
                "burn's data loader makes its batches on one device, but the replicas are on \
                 different ones",
            ));
        }
        Ok(())
    }

    /// A learner per replica, the first of them `learner` itself.
    fn replicate<M: LearnerModel>(&self, learner: Learner<M>) -> Vec<LearnerReplica<M>> {
        let others = self.strategy.replicas().iter().skip(1);
        let copies = others.map(|replica| {
            let mut copy = learner.clone();
            copy.fork(&replica.device);
            LearnerReplica::new(copy)
        });
        let mut replicas: Vec<_> = copies.collect();
        replicas.insert(0, LearnerReplica::new(learner));
        replicas
    }
}

impl From<Arc<dyn Strategy>> for LearnerStrategy {
    /// For a strategy that was chosen at run time.
    fn from(strategy: Arc<dyn Strategy>) -> Self {
        Self { strategy }
    }
}

impl<M: LearnerModel> SupervisedLearningStrategy<M> for LearnerStrategy {
    fn fit(
        &self,
        components: TrainingComponents<M>,
        mut learner: Learner<M>,
        train: TrainLoader<M>,
        valid: ValidLoader<M>,
        starting_epoch: usize,
    ) -> (M, SupervisedTrainingEventProcessor<M>) {
        if let Some(first) = self.strategy.replicas().first() {
            learner.fork(&first.device);
        }
        if let Err(error) = self.check() {
            components.interrupter.fail(training_error(&error));
            return (learner.model(), components.event_processor);
        }
        let device = &self.strategy.replicas()[0].device;
        let mut run = Run {
            strategy: &*self.strategy,
            statistics: RunningStatistics::of(&learner.model()),
            replicas: self.replicate(learner),
            train: train.to_device(device),
            valid: valid.to_device(&device.clone().inner()),
            components,
        };
        for epoch in starting_epoch..=run.components.num_epochs {
            if !run.epoch(epoch) {
                break;
            }
        }
        let model = run.replicas[0].learner.model();
        (model, run.components.event_processor)
    }
}

/// One training, epoch by epoch.
pub(crate) struct Run<'a, M: LearnerModel> {
    pub(crate) strategy: &'a dyn Strategy,
    statistics: RunningStatistics,
    pub(crate) replicas: Vec<LearnerReplica<M>>,
    pub(crate) train: TrainLoader<M>,
    valid: ValidLoader<M>,
    pub(crate) components: TrainingComponents<M>,
}

impl<M: LearnerModel> Run<'_, M> {
    /// Tells metrics and renderers something; an error of theirs ends the training.
    pub(crate) fn tell<E: Into<TrainingError>>(
        &mut self,
        tell: impl FnOnce(&mut SupervisedTrainingEventProcessor<M>) -> Result<(), E>,
    ) {
        let told = tell(&mut self.components.event_processor);
        self.components.interrupter.fail_on_error(told);
    }

    /// Trains and validates once; says whether training goes on.
    fn epoch(&mut self, epoch: usize) -> bool {
        let start = LearnerEvent::StartSplit {
            epoch_number: epoch,
            total_items: self.train.num_items(),
        };
        self.tell(|events| events.process_train(start));
        self.train();
        if let Err(error) = self.read_statistics() {
            self.components.interrupter.fail(training_error(&error));
        }
        self.tell(|events| events.process_train(LearnerEvent::EndSplit(epoch)));
        let interrupter = &self.components.interrupter;
        if interrupter.should_stop() {
            if let Some(stop) = interrupter.interruption() {
                let reason = stop.reason.as_deref().unwrap_or("no reason given");
                tracing::info!(epoch, reason, "training interrupted");
            }
            return false;
        }
        let start = LearnerEvent::StartSplit {
            epoch_number: epoch,
            total_items: self.valid.num_items(),
        };
        self.tell(|events| events.process_valid(start));
        self.validate();
        self.tell(|events| events.process_valid(LearnerEvent::EndSplit(epoch)));
        self.tell(|events| events.process_train(LearnerEvent::EndEpoch(epoch)));
        self.save_or_stop(epoch)
    }

    /// Gives the learners, whose running statistics burn lets them share, the mean of the replicas'
    /// own.
    fn read_statistics(&self) -> Result<()> {
        let mean = self
            .statistics
            .mean(self.replicas.iter().map(LearnerReplica::model))?;
        self.statistics
            .write(&self.replicas[0].learner.model(), mean)
    }

    /// Validates replica 0's model on the calling thread.
    fn validate(&mut self) {
        let model = self.replicas[0].learner.model().valid();
        let loader = self.valid.clone();
        let mut batches = loader.iter();
        let mut iteration = 0;
        while let Some(batch) = batches.next() {
            let batch = match batch {
                Ok(batch) => batch,
                Err(error) => return self.components.interrupter.fail(error),
            };
            iteration += 1;
            let output = InferenceStep::step(&model, batch);
            let item = TrainingItem::new(output, batches.progress(), Some(iteration), None);
            self.tell(|events| events.process_valid(LearnerEvent::ProcessedItem(item)));
            if self.components.interrupter.should_stop() {
                break;
            }
        }
    }

    /// What burn does between two epochs; says whether there is another one.
    fn save_or_stop(&mut self, epoch: usize) -> bool {
        let parts = &self.components;
        if parts.checkpointer.is_some() || parts.early_stopping.is_some() {
            // Both read metrics of this epoch.
            self.tell(EventProcessorTraining::flush);
        }
        let parts = &mut self.components;
        if parts.interrupter.should_stop() {
            return false;
        }
        let learner = &self.replicas[0].learner;
        if let Some(checkpointer) = &mut parts.checkpointer {
            checkpointer.checkpoint(learner, epoch, &parts.event_store);
        }
        let stopping = parts.early_stopping.as_mut();
        !stopping.is_some_and(|stopping| stopping.should_stop(epoch, &parts.event_store))
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
