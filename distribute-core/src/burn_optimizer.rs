//! A whole optimizer of burn, with parameter groups, under our strategies: [`BurnTrainState`].
//!
//! It keeps its state and the step number to itself, so it works under the eager strategies only
//! and is in no checkpoint. One rule of burn is a [`BurnOptimizer`](crate::BurnOptimizer) in a
//! [`TrainState`](crate::TrainState), with checkpoints and all.

use std::collections::VecDeque;

use burn::module::Module;
use burn::optim::{GradientsParams, ModuleOptimizer};
use burn::tensor::{Device, Tensor};
use distribute_collectives::ReduceOp;

use crate::parameters;
use crate::remote::RemoteStore;
use crate::replicate::{PartVisitor, StatePart, take_state};
use crate::{
    Error, Gradients, LeafVisitor, NestPath, ReplicaContext, Replicate, Result, RunningStatistics,
    WorkerGroup,
};

/// A model with one of burn's optimizers; used like [`TrainState`](crate::TrainState).
///
/// Every replica has its own copy of the optimizer and applies the same summed gradients to it,
/// also under central storage. burn's defaults differ from Keras' (Adam's epsilon is 1e-5).
///
/// ```
/// use burn::nn::LinearConfig;
/// use burn::optim::AdamConfig;
/// use distribute_core::{BurnTrainState, MirroredStrategy, StrategyExt, Tensor};
///
/// let strategy = MirroredStrategy::builder().replicas(2).build()?;
/// let mut state = strategy.scope(|device| {
///     BurnTrainState::new(LinearConfig::new(3, 1).init(device), AdamConfig::new().init(), 1e-2)
/// })?;
/// strategy.run(&mut state, |ctx, state| {
///     let loss = state.model.forward(Tensor::<2>::ones([4, 3], ctx.device())).sum();
///     let gradients = ctx.gradient(&loss, &state.model)?;
///     state.apply_gradients(ctx, gradients)
/// })?;
/// assert_eq!(state.primary()?.step(), 1);
/// # Ok::<(), distribute_core::Error>(())
/// ```
#[derive(Clone)]
pub struct BurnTrainState<M> {
    /// The model.
    pub model: M,
    optimizer: ModuleOptimizer,
    learning_rate: f64,
    step: u64,
    statistics: RunningStatistics,
}

impl<M: Module> BurnTrainState<M> {
    /// A state at step 0.
    pub fn new(model: M, optimizer: ModuleOptimizer, learning_rate: f64) -> Self {
        Self {
            statistics: RunningStatistics::of(&model),
            model,
            optimizer,
            learning_rate,
            step: 0,
        }
    }

    /// Reduces the gradients over all replicas (SUM) and lets burn's optimizer update the model.
    ///
    /// Blocks until all replicas have called it.
    ///
    /// # Errors
    /// Another replica's failure, and
    /// [`Error::StatisticsNotFinite`](crate::Error::StatisticsNotFinite).
    pub fn apply_gradients(
        &mut self,
        ctx: &ReplicaContext,
        mut gradients: Gradients,
    ) -> Result<()> {
        gradients.refuse_rows("`apply_gradients` of a burn optimizer")?;
        self.statistics.check(ctx, &self.model, self.step)?;
        gradients.all_reduce(ctx, ReduceOp::Sum)?;
        let gradients = gradients.into_params(&self.model)?;
        let model = self.model.clone();
        self.model = self.optimizer.step(self.learning_rate, model, gradients);
        self.step += 1;
        Ok(())
    }
}

impl<M> BurnTrainState<M> {
    /// The number of updates so far.
    pub fn step(&self) -> u64 {
        self.step
    }

    /// Sets the learning rate of the next updates.
    pub fn set_learning_rate(&mut self, learning_rate: f64) {
        self.learning_rate = learning_rate;
    }
}

impl<M: Module> Replicate for BurnTrainState<M> {
    fn replicate(&self, device: &Device) -> Self {
        let mut copy = self.clone();
        copy.model = self.statistics.own_copy(&self.model).fork(device);
        copy
    }

    fn walk(&mut self, path: &NestPath<'_>, visit: PartVisitor<'_>) -> Result<()> {
        visit(path, self)
    }
}

impl<M: Module> StatePart for BurnTrainState<M> {
    fn attach_remote(&mut self, _: &dyn RemoteStore, _: &str) -> Result<()> {
        Err(Error::invalid(
            "a state with an optimizer of burn cannot live on parameter servers, which know those \
             of this crate: use a `TrainState`",
        ))
    }

    fn walk_leaves(
        &mut self,
        _: &NestPath<'_>,
        _: Option<&Device>,
        _: LeafVisitor<'_>,
    ) -> Result<()> {
        let instead = "use a `TrainState`";
        Err(Error::not_compilable("an optimizer of burn", instead))
    }

    fn take_from_chief(&mut self, workers: &WorkerGroup) -> Result<()> {
        take_state(workers, &mut self.model, self.step)
    }

    fn running_statistics(&self) -> Vec<(String, Tensor<1>)> {
        self.statistics.named(&self.model)
    }

    fn set_running_statistics(&mut self, values: &mut VecDeque<Tensor<1>>) -> Result<()> {
        self.statistics.take(&self.model, values)
    }

    fn version(&self) -> Option<u64> {
        Some(self.step)
    }
}

impl Gradients {
    /// The gradients as burn's optimizers take them, without a copy on the flex backend.
    ///
    /// `model` is the one they were computed for. Those of rows of tables are not among them.
    ///
    /// # Errors
    /// If they are of another model, and in a step that is compiled: burn's optimizers cannot be
    /// captured.
    pub fn into_params<M: Module>(mut self, model: &M) -> Result<GradientsParams> {
        self.check_model("into_params", model)?;
        let (mut params, mut index) = (GradientsParams::new(), 0);
        parameters::visit_trained(model, |id, _, tensor| {
            if let Some(gradient) = self.take_flat(index, &tensor.flat().device())? {
                tensor.give_param(id, gradient, &mut params);
            }
            index += 1;
            Ok(())
        })?;
        Ok(params)
    }
}
