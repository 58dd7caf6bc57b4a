//! burn's own training loop on our replicas: [`LearnerStrategy`].

use std::sync::Arc;

use burn_train::{
    EventProcessorTraining, Interrupter, Learner, LearnerModel, LearningResult,
    SupervisedLearningStrategy, SupervisedTrainingEventProcessor, TrainLoader, TrainStep,
    TrainingComponents, ValidLoader,
};
use distribute_core::{Configuration, Error, Result, RunningStatistics, Strategy};

use crate::chiefs_learner;
use crate::events::Unseen;
use crate::loader_order::LoaderThreads;
use crate::outputs::{Codec, GatheredOutput, Outputs};
use crate::replica::LearnerReplica;
use crate::run::{Run, training_error};
use crate::team::{EndOfPanic, Team};

/// A strategy of ours in the place of burn's own in burn's `SupervisedTraining`.
///
/// ```
/// use burn_train::{LearnerModel, SupervisedTraining};
/// use distribute_core::{MirroredStrategy, Result};
/// use distribute_learner::{LearnerStrategy, TrainingExt};
///
/// fn on_two_replicas<M: LearnerModel>(
///     training: SupervisedTraining<M>,
/// ) -> Result<SupervisedTraining<M>> {
///     let strategy = LearnerStrategy::new(MirroredStrategy::builder().replicas(2).build()?);
///     Ok(training.distributed(strategy))
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
///   in which a single device would see it. A model with a `SyncBatchNorm` needs a batch on each
///   replica in every step; too few at the end of an epoch are an error. The loader makes batches
///   on the calling thread; give it a thread (`num_workers(1)`) if that takes long.
/// - **Gradients** are averaged over the batches of the step (not over the replicas, nor over the
///   examples: a smaller last batch counts as much as the others of its step), in the canonical
///   order of the collectives. A parameter that a batch did not use counts as zero if another batch
///   of the step used it; one that no batch used is left alone. Where the number of replicas and
///   the sizes of batches are powers of two, the weights have the bits of `Fit` with burn's
///   optimizer.
/// - **Accumulation.** With `grads_accumulation(k)` the replicas add up the gradients of k steps,
///   and communicate only when the optimizer uses them: at every k-th step and at the end of the
///   epoch. As on a single device, the sum over the k steps is applied.
/// - **Batch normalization.** Every replica normalizes its own batch and has its own running
///   statistics. At the end of an epoch all get the mean over the replicas, which validation,
///   checkpoints and the model that training returns have.
/// - **The learning rate scheduler** steps once per step of the optimizer, just before it.
/// - **Events** are the same as on a single device: one processed item per batch, in the loader's
///   order, with the loader's progress. Validation, checkpoints (replica 0's learner), early
///   stopping and the interrupter work as on a single device; the interrupter is looked at after
///   every step.
/// - **Checkpoints.** A training that goes on from epoch n (`checkpoint(n)`) ends with the bits of
///   one that was not interrupted, also if its loader shuffles: the orders of the first n epochs
///   are passed over. (Early stopping begins to count anew, as in burn.)
///
/// # Several workers
///
/// Under a [`MultiWorkerMirroredStrategy`] every worker runs the same program, with the same
/// loaders. The weights have the bits of as many replicas in one process.
///
/// - **Batches.** Each worker's loader gives all batches, and the worker keeps the ones of its own
///   replicas. So the loaders must give them in the same order: the same data, batch size and seed,
///   and at most one thread, as burn's loader with several threads has an order of its own on each
///   worker. Loaders that differ in the number of examples or batches are an error on all workers;
///   so is one with several threads, on Linux.
/// - **The chief's learner.** All workers go on with the chief's model, optimizer, scheduler and
///   epoch, whatever they have built or read: no other worker needs to see its checkpoints
///   ([`latest_checkpoint`](crate::latest_checkpoint) finds the last one).
/// - **The chief writes.** Metrics, renderer, checkpoints, validation and early stopping are the
///   chief's alone, and [`TrainingExt::distributed`](crate::TrainingExt::distributed) leaves out
///   what burn itself would open on the others. The chief's training metrics are over the batches
///   of all workers: the outputs of steps travel to it, before each update, as whole tensors
///   ([`GatheredOutput`]).
/// - **The end.** Early stopping on the chief and a stop by the interrupter of any worker stop all
///   of them after the same step, with the same reason. An error of one worker (in a step, a
///   loader, a metric, a checkpoint, validation) ends all with an error that names it, and so does
///   a worker that is killed, at once, or cut off, after the [`heartbeat_timeout`].
///
/// # When something goes wrong
///
/// A replica that panics or fails, and a collective operation that fails, end the training with
/// [`TrainingError::Workers`] in the result's `error`, which names the replica and what happened;
/// no replica hangs. The model of the result is replica 0's, which may be without the last step. If
/// the data loader fails, the batches of the step it was filling are not trained on. A panic in a
/// validation step passes through, as with burn's own strategies.
///
/// Refused in the same way: replicas of one worker on different burn devices (a loader makes its
/// batches on one), strategies whose steps run in other processes or are compiled.
///
/// # What burn does not hand over
///
/// `SupervisedTraining::gradient_checkpointing` has no effect on a custom strategy, in burn 0.22.1.
/// Layers that draw random numbers from burn's generator (its `Dropout`) draw from one generator
/// for the whole process, so with several replicas their numbers depend on timing. burn panics in
/// `launch` on a worker that is told to go on from a checkpoint (`checkpoint(n)`) that it cannot
/// read; the others then name this worker.
///
/// [`MultiWorkerMirroredStrategy`]: distribute_core::MultiWorkerMirroredStrategy
/// [`heartbeat_timeout`]: distribute_core::MultiWorkerMirroredStrategyBuilder::heartbeat_timeout
/// [`TrainingError::Workers`]: burn_train::TrainingError::Workers
/// [`VariablePlacement::Central`]: distribute_core::VariablePlacement::Central
#[derive(Debug, Clone)]
pub struct LearnerStrategy {
    strategy: Arc<dyn Strategy>,
    outputs: Outputs,
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

    /// Says that outputs of this type travel to the chief, for a model whose steps have outputs of
    /// your own. burn's outputs do without it, and with one worker none travels.
    #[must_use]
    pub fn with_output<O: GatheredOutput>(mut self) -> Self {
        self.outputs.add::<O>();
        self
    }

    /// What this strategy cannot train.
    fn check(&self) -> Result<()> {
        let replicas = self.strategy.replicas();
        let in_sync = self.strategy.num_replicas_in_sync();
        let elsewhere = self.strategy.workers().is_none() && replicas.len() != in_sync;
        if replicas.is_empty() || elsewhere {
            return Err(Error::invalid(format!(
                "burn's training loop runs where its replicas are, but {} of the {in_sync} \
                 replicas of the {} strategy are here; write a step of your own, or use `fit`",
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

    /// What all workers begin with: the chief's learner and epoch, and how outputs travel to it.
    fn begin<M: LearnerModel>(
        &self,
        team: &Team,
        components: &TrainingComponents<M>,
        learner: Learner<M>,
        (train, starting_epoch): (&TrainLoader<M>, usize),
    ) -> Result<(Learner<M>, usize, Option<Codec>)> {
        let Some(workers) = team.workers() else {
            self.check()?;
            return Ok((learner, starting_epoch, None));
        };
        let codec = self.check();
        let codec = codec.and_then(|()| self.outputs.find::<<M as TrainStep>::Output>());
        let codec = team.all_succeed("whether burn's training loop can begin", codec)?;
        let accumulation = components.grad_accumulation;
        workers.agree_on(
            &Configuration::new()
                .with("the number of epochs", Some(components.num_epochs))
                .with("the number of training examples", Some(train.num_items()))
                .with("`grads_accumulation`", accumulation),
        )?;
        let store = &components.event_store;
        let (learner, epoch) = chiefs_learner::of_chief(team, learner, starting_epoch, store)?;
        Ok((learner, epoch, Some(codec)))
    }
}

impl From<Arc<dyn Strategy>> for LearnerStrategy {
    /// For a strategy that was chosen at run time.
    fn from(strategy: Arc<dyn Strategy>) -> Self {
        Self {
            strategy,
            outputs: Outputs::default(),
        }
    }
}

impl<M: LearnerModel> SupervisedLearningStrategy<M> for LearnerStrategy {
    /// As burn's, on the chief; the others tell metrics and renderers nothing.
    fn train(
        &self,
        learner: Learner<M>,
        train: TrainLoader<M>,
        valid: ValidLoader<M>,
        components: TrainingComponents<M>,
    ) -> LearningResult<M> {
        let team = Team::of(&*self.strategy);
        let _end = EndOfPanic(team.clone());
        let interrupter = components.interrupter.clone();
        let mut result = if team.is_chief() {
            Chief(self).train(learner, train, valid, components)
        } else {
            let starting_epoch = components.checkpoint.unwrap_or(0) + 1;
            let (model, events) = self.fit(components, learner, train, valid, starting_epoch);
            LearningResult {
                model: model.valid(),
                renderer: events.renderer(),
                interrupted: None,
                error: None,
            }
        };
        end_together(&team, &interrupter);
        result.interrupted = interrupter.interruption();
        result.error = interrupter.error();
        result
    }

    fn fit(
        &self,
        components: TrainingComponents<M>,
        mut learner: Learner<M>,
        train: TrainLoader<M>,
        valid: ValidLoader<M>,
        starting_epoch: usize,
    ) -> (M, SupervisedTrainingEventProcessor<M>) {
        let team = Team::of(&*self.strategy);
        if let Some(first) = self.strategy.replicas().first() {
            learner.fork(&first.device);
        }
        let unchanged = learner.model();
        let from = (&train, starting_epoch);
        let (learner, epoch, codec) = match self.begin(&team, &components, learner, from) {
            Ok(begun) => begun,
            Err(error) => {
                components.interrupter.fail(training_error(&error));
                return (unchanged, components.event_processor);
            }
        };
        let device = &self.strategy.replicas()[0].device;
        let mut run = Run {
            strategy: &*self.strategy,
            codec,
            statistics: RunningStatistics::of(&learner.model()),
            replicas: self.replicate(learner),
            train: train.to_device(device),
            valid: valid.to_device(&device.clone().inner()),
            loader_threads: (!team.is_alone()).then(LoaderThreads::before),
            team,
            validated: 0,
            unseen: Unseen::default(),
            components,
        };
        run.epochs(epoch);
        let model = run.replicas[0].learner.model();
        (model, run.components.event_processor)
    }
}

/// The strategy with burn's own `train`, which calls `fit` between what it tells the metrics.
struct Chief<'a>(&'a LearnerStrategy);

impl<M: LearnerModel> SupervisedLearningStrategy<M> for Chief<'_> {
    fn fit(
        &self,
        components: TrainingComponents<M>,
        learner: Learner<M>,
        train: TrainLoader<M>,
        valid: ValidLoader<M>,
        starting_epoch: usize,
    ) -> (M, SupervisedTrainingEventProcessor<M>) {
        self.0
            .fit(components, learner, train, valid, starting_epoch)
    }
}

/// Waits until all workers are done, the chief with its last checkpoint too. An error that one has
/// had since they last met is one on all of them.
fn end_together(team: &Team, interrupter: &Interrupter) {
    let own = match interrupter.error() {
        Some(error) => Err(Error::invalid(error)),
        None => Ok(()),
    };
    let ended = team.all_succeed("the end of the training", own);
    if let Err(error) = ended
        && interrupter.error().is_none()
    {
        interrupter.fail(training_error(&error));
    }
}
