//! One replica's learner and its part of a step.

use burn::module::{Module, ModuleVisitor, Param};
use burn::optim::{GradientsAccumulator, GradientsParams};
use burn::tensor::Tensor;
use burn_train::{Learner, LearnerModel, TrainStep};
use distribute_core::{Gradients, ReduceOp, ReplicaContext, Result, RunningStatistics};

type Input<M> = <M as TrainStep>::Input;
type Output<M> = <M as TrainStep>::Output;

/// One replica of a training.
pub(crate) struct LearnerReplica<M: LearnerModel> {
    pub(crate) learner: Learner<M>,
    /// The learner's model with running statistics of this replica's own.
    model: M,
    statistics: RunningStatistics,
    /// Its batch of the next step.
    pub(crate) input: Option<Input<M>>,
    /// What its last batch gave, until it is reported.
    pub(crate) output: Option<Output<M>>,
    /// The gradients that no update has used yet.
    accumulated: GradientsAccumulator<M>,
}

impl<M: LearnerModel> LearnerReplica<M> {
    pub(crate) fn new(learner: Learner<M>) -> Self {
        let statistics = RunningStatistics::of(&learner.model());
        Self {
            model: statistics.own_copy(&learner.model()),
            statistics,
            learner,
            input: None,
            output: None,
            accumulated: GradientsAccumulator::new(),
        }
    }

    /// The model that it trains.
    pub(crate) fn model(&self) -> &M {
        &self.model
    }

    /// Computes the gradients of its batch, if there is one, and makes the update with those
    /// collected so far, if it is time. `batches` is the number of replicas that have a batch.
    pub(crate) fn step(
        &mut self,
        ctx: &ReplicaContext,
        batches: usize,
        update: bool,
    ) -> Result<()> {
        if let Some(input) = self.input.take() {
            let step = TrainStep::step(&self.model, input);
            let model = self.learner.model();
            let gradients = weighted(step.grads, &model, batches, ctx);
            self.accumulated.accumulate(&model, gradients);
            self.output = Some(step.item);
        }
        if update {
            let gradients = self.accumulated.grads();
            let gradients = mean(gradients, &self.learner.model(), ctx)?;
            self.learner.lr_step();
            self.learner.optimizer_step(gradients);
            let updated = self.learner.model();
            self.model = self.statistics.keep_own(&self.model, &updated)?;
        }
        Ok(())
    }
}

/// The mean over the replicas; every replica gets the same bits.
fn mean<M: Module>(
    gradients: GradientsParams,
    model: &M,
    ctx: &ReplicaContext,
) -> Result<GradientsParams> {
    if ctx.num_replicas_in_sync() == 1 {
        return Ok(gradients);
    }
    let mut gradients = Gradients::from_params(gradients, model)?;
    gradients.all_reduce(ctx, ReduceOp::Mean)?;
    gradients.into_params(model)
}

/// The gradients of a batch such that their mean over all replicas is the mean over the `batches`
/// that there are. Only the last step of an epoch can have fewer batches than replicas, so all
/// others leave them as they are.
fn weighted<M: Module>(
    gradients: GradientsParams,
    model: &M,
    batches: usize,
    ctx: &ReplicaContext,
) -> GradientsParams {
    let replicas = ctx.num_replicas_in_sync();
    if batches == replicas {
        return gradients;
    }
    let factor = replicas as f64 / batches as f64;
    let mut weigh = Weigh {
        from: gradients,
        into: GradientsParams::new(),
        factor,
    };
    model.visit(&mut weigh);
    weigh.into
}

struct Weigh {
    from: GradientsParams,
    into: GradientsParams,
    factor: f64,
}

impl ModuleVisitor for Weigh {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if let Some(gradient) = self.from.remove::<D>(param.id) {
            self.into
                .register(param.id, gradient.mul_scalar(self.factor));
        }
    }
}
