//! One replica's learner and its part of a step.

use burn::module::{Module, ModuleVisitor, Param};
use burn::optim::{GradientsAccumulator, GradientsParams};
use burn::tensor::Tensor;
use burn_train::{Learner, LearnerModel, TrainStep};
use distribute_core::{Gradients, ReduceOp, ReplicaContext, Result};

/// What the replicas of one step have in common.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Share {
    /// How many of them have a batch.
    pub(crate) batches: usize,
    /// Whether the optimizer uses the gradients collected so far.
    pub(crate) update: bool,
}

/// One replica of a training.
pub(crate) struct LearnerReplica<M: LearnerModel> {
    pub(crate) learner: Learner<M>,
    /// What its last batch gave, until it is reported.
    pub(crate) output: Option<<M as TrainStep>::Output>,
    /// The gradients that no update has used yet.
    accumulated: GradientsAccumulator<M>,
}

impl<M: LearnerModel> LearnerReplica<M> {
    pub(crate) fn new(learner: Learner<M>) -> Self {
        Self {
            learner,
            output: None,
            accumulated: GradientsAccumulator::new(),
        }
    }

    /// Computes the gradients of a batch, if there is one, and makes the update, if it is time.
    pub(crate) fn step(
        &mut self,
        ctx: &ReplicaContext,
        input: Option<<M as TrainStep>::Input>,
        share: Share,
    ) -> Result<()> {
        if let Some(input) = input {
            let step = self.learner.train_step(input);
            let model = self.learner.model();
            let gradients = weighted(step.grads, &model, share.batches, ctx);
            self.accumulated.accumulate(&model, gradients);
            self.output = Some(step.item);
        }
        if share.update {
            let gradients = self.accumulated.grads();
            let gradients = mean(gradients, &self.learner.model(), ctx)?;
            self.learner.lr_step();
            self.learner.optimizer_step(gradients);
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
