//! What users call on a strategy.

use burn::tensor::{Device, TensorData};

use super::reduce::{combine, reduce};
use crate::metric::DistributedMetric;
use crate::replicate::ReplicateExt;
use crate::step::{self, Item};
use crate::trace::StepKey;
use crate::{
    Components, DistributedValue, DistributedVariable, Error, IndexedSlices, Mirrored, Nest,
    PerReplica, ReduceOp, ReplicaContext, Replicate, Result, StepArgs, Strategy, VariableOptions,
    VariableValue, host_reduce, scope,
};

/// The calls of a training program: every [`Strategy`] has them.
///
/// A step runs in *replica context*: it receives a [`ReplicaContext`]. Everything here is called
/// outside of a step, in *cross-replica context*; called inside one it is
/// [`Error::InsideStep`].
pub trait StrategyExt: Strategy {
    /// Builds a value once, on replica 0's device, and mirrors it to every replica
    /// (TensorFlow: creating variables under `strategy.scope()`). With several workers each builds
    /// one and all take over the chief's parameters; all of them call it together.
    ///
    /// Inside the closure [`current_strategy`](crate::current_strategy) is this strategy.
    ///
    /// # Errors
    /// [`Error::MixedStrategies`] inside another strategy's scope, [`Error::InsideStep`] inside a
    /// step, [`Error::DifferentModels`] if the workers built different models.
    fn scope<T: Replicate>(&self, build: impl FnOnce(&Device) -> T) -> Result<Mirrored<T>> {
        self.try_scope(|device| Ok(build(device)))
    }

    /// [`scope`](Self::scope) for a closure that can fail.
    ///
    /// # Errors
    /// The errors of `scope` and of the closure.
    fn try_scope<T: Replicate>(
        &self,
        build: impl FnOnce(&Device) -> Result<T>,
    ) -> Result<Mirrored<T>> {
        let device = &self.replicas()[0].device;
        mirrored(self, self.within(|| build(device)).flatten())
    }

    /// Creates a variable: a tensor or number that steps update and that stays consistent over the
    /// replicas (TensorFlow: `tf.Variable` under `strategy.scope()`).
    ///
    /// # Errors
    /// The errors of [`DistributedVariable::new`], [`Error::InsideStep`] inside a step (use
    /// [`ReplicaContext::variable`] there).
    fn variable<T: VariableValue>(
        &self,
        initial: T,
        options: VariableOptions,
    ) -> Result<DistributedVariable<T>> {
        scope::check_cross_replica(&self.id(), "variable")?;
        DistributedVariable::new(self, initial, options)
    }

    /// Makes a metric that steps update on every replica, at zero
    /// (Keras: a metric under `strategy.scope()`).
    fn metric<M>(&self, metric: M) -> DistributedMetric<M> {
        DistributedMetric::new(self, metric)
    }

    /// Runs a closure with this strategy as the current one, on the calling thread
    /// (TensorFlow: `with strategy.scope():` without creating variables).
    ///
    /// # Errors
    /// The errors of [`scope`](Self::scope).
    fn within<R>(&self, body: impl FnOnce() -> R) -> Result<R> {
        let _entered = scope::enter_scope(self.handle())?;
        Ok(body())
    }

    /// Runs a step once per local replica and waits for all of them
    /// (TensorFlow: `Strategy.run`).
    ///
    /// `args` is one value or a tuple of several; per-replica values and mirrored values give each
    /// replica its own component, plain numbers and [`Replicated`](crate::Replicated) give every
    /// replica the same value. A batch that is a struct of your own has `#[derive(Nest)]`, and so
    /// has what the step returns; a struct of another crate is wrapped in a
    /// [`NestWith`](crate::NestWith).
    ///
    /// A closure that is written here needs no types. One that is a variable of its own says those
    /// of its arguments: `|ctx: &ReplicaContext, (state, x): (&mut TrainState<Mlp>, Tensor<2>)|`.
    ///
    /// A step that is passed states, all of them shared (`&state`), *evaluates*: its models are in
    /// evaluation mode, and neither they nor its batch nor [`ReplicaContext::device`] have
    /// autodiff. What it returns has it again, as what every other step returns. The gradient of an
    /// input is to be had by `x.autodiff().require_grad()`; a model whose gradients are wanted is
    /// passed as `&mut state`, or as [`InTraining`](crate::InTraining).
    ///
    /// Under a strategy that compiles steps the closure is called for all replicas together: twice
    /// the first time and when shapes or plain numbers change (what differs between the two was
    /// drawn on the host, which is refused), and now and then to see that it still makes the same
    /// operations. It must not capture values that change; see [`trace`](crate::trace).
    ///
    /// # Errors
    /// The error of the first replica that failed. The others are stopped at their next
    /// cross-replica call; mirrored values that were passed mutably are then marked as possibly
    /// different between replicas, see [`Error::Poisoned`]. The strategy itself stays usable; a
    /// group of several workers has ended, though.
    ///
    /// ```
    /// use distribute_core::{MirroredStrategy, PerReplica, ReduceOp, StrategyExt};
    ///
    /// let strategy = MirroredStrategy::builder().replicas(2).build()?;
    /// let input = PerReplica::new(vec![1.0_f32, 2.0]);
    /// let doubled = strategy.run(input, |_ctx, value| Ok(value * 2.0))?;
    /// assert_eq!(strategy.reduce(ReduceOp::Sum, doubled)?, 6.0);
    /// # Ok::<(), distribute_core::Error>(())
    /// ```
    fn run<A, R, F>(&self, args: A, step: F) -> Result<PerReplica<R>>
    where
        A: StepArgs,
        R: Nest + Send + 'static,
        F: for<'x> Fn(&ReplicaContext, Item<'x, A>) -> Result<R> + Sync,
    {
        scope::check_run(&self.id())?;
        match self.tracer() {
            Some(tracer) => step::compiled::run(self, tracer, args, StepKey::of::<F>(), &step),
            None => step::eager::run(self, args, &step),
        }
    }

    /// Reduces the components of a per-replica value, leaf by leaf, in replica order
    /// (TensorFlow: `Strategy.reduce` with `axis=None`).
    ///
    /// Waits for the values. `Mean` divides by the number of components; the mean of integers is
    /// `f64`, so it needs a leaf that can hold one (a [`TensorData`]).
    ///
    /// A value that is not distributed, [`Replicated`](crate::Replicated), is returned as it is by
    /// `Mean`, `Min` and `Max`; `Sum` and `Prod` refuse it when there are several replicas. As in
    /// TensorFlow it counts once per worker, though.
    ///
    /// With several workers all of them call it together; each gets the result.
    ///
    /// # Errors
    /// [`Error::Shape`] if the components' shapes differ, [`Error::DType`] for bool,
    /// [`Error::NotDistributed`], [`Error::InsideStep`] inside a step.
    ///
    /// ```
    /// use distribute_core::{MirroredStrategy, PerReplica, ReduceOp, Replicated, StrategyExt};
    ///
    /// let strategy = MirroredStrategy::builder().replicas(2).build()?;
    /// assert_eq!(strategy.reduce(ReduceOp::Sum, PerReplica::new(vec![1.0_f32, 2.0]))?, 3.0);
    /// assert_eq!(strategy.reduce(ReduceOp::Mean, Replicated(1.5_f32))?, 1.5);
    /// assert!(strategy.reduce(ReduceOp::Sum, Replicated(1.5_f32)).is_err());
    /// # Ok::<(), distribute_core::Error>(())
    /// ```
    fn reduce<V: DistributedValue<Value: Nest>>(&self, op: ReduceOp, value: V) -> Result<V::Value> {
        reduce(self, op, value)
    }

    /// Reduces over the elements along `axes` and over the replicas
    /// (TensorFlow: `Strategy.reduce` with an axis).
    ///
    /// `Mean` is the sum divided by the total number of elements along the axes, so replicas may
    /// hold different numbers of examples. Negative axes count from the end. Every leaf loses the
    /// axes, so the leaves must be [`TensorData`]. A value that is not distributed counts once
    /// for every replica.
    ///
    /// # Errors
    /// [`Error::Axis`] for an axis out of range, [`Error::DType`] for bool, [`Error::Shape`] if
    /// other dimensions differ, [`Error::InsideStep`] inside a step.
    fn reduce_axis(
        &self,
        op: ReduceOp,
        value: impl DistributedValue<Value = TensorData>,
        axes: &[i64],
    ) -> Result<TensorData> {
        let replicas = self.num_replicas_in_sync();
        let call = format!("reduce {op} over {axes:?}");
        combine(self, "reduce", &call, value, |leaf| {
            let components = match leaf {
                Components::PerReplica(components) => components,
                Components::Same(value) => vec![value; replicas],
            };
            host_reduce::reduce_axes(op, components, axes)
        })
    }

    /// Concatenates sparse components, or divides them by the number of replicas and
    /// concatenates them for `Mean` (TensorFlow: `Strategy.reduce` of `tf.IndexedSlices`).
    ///
    /// # Errors
    /// [`Error::Shape`] if the components are of differently shaped dense values,
    /// [`Error::InvalidArgument`] for other operations than SUM and MEAN.
    fn reduce_slices(
        &self,
        op: ReduceOp,
        value: PerReplica<IndexedSlices>,
    ) -> Result<IndexedSlices> {
        scope::check_cross_replica(&self.id(), "reduce")?;
        let replicas = self.replicas().len();
        let mut slices = value.into_values();
        crate::error::check_count("a per-replica value", replicas, slices.len())?;
        if let Some(workers) = self.workers() {
            slices = IndexedSlices::gather(workers, op, slices)?;
        }
        IndexedSlices::reduce(op, slices)
    }

    /// Concatenates the components along `axis`, leaf by leaf, in replica order
    /// (TensorFlow: `Strategy.gather`). The size along the axis may differ between replicas;
    /// as in TensorFlow, axes are not counted from the end here. A value that is not distributed
    /// is returned as it is.
    ///
    /// # Errors
    /// [`Error::Axis`] for scalars and axes out of range, [`Error::Shape`] if other dimensions
    /// differ, [`Error::DType`] for bool, [`Error::InsideStep`] inside a step.
    fn gather<V: DistributedValue<Value: Nest>>(&self, value: V, axis: i64) -> Result<V::Value> {
        let call = format!("gather over {axis}");
        combine(self, "gather", &call, value, |leaf| match leaf {
            Components::PerReplica(components) => host_reduce::gather(components, axis),
            Components::Same(value) => Ok(value),
        })
    }

    /// The index of this process among the workers, from 0; 0 where there is one process
    /// (TensorFlow: `InputContext.input_pipeline_id`).
    fn worker_index(&self) -> usize {
        self.input_context().input_pipeline_id
    }

    /// Whether this process writes what is written once: checkpoints, logs
    /// (TensorFlow: `extended.should_checkpoint`). Worker 0, under every strategy.
    fn is_chief(&self) -> bool {
        self.worker_index() == 0
    }

    /// Does on the chief what is done once, such as printing; `None` on other workers. Nothing
    /// waits for other workers here, so `work` must not call the strategy.
    ///
    /// ```
    /// use distribute_core::prelude::*;
    ///
    /// let strategy = MirroredStrategy::builder().replicas(2).build()?;
    /// strategy.on_chief(|| println!("{} replicas", strategy.num_replicas_in_sync()));
    /// # Ok::<(), distribute_core::Error>(())
    /// ```
    fn on_chief<R>(&self, work: impl FnOnce() -> R) -> Option<R> {
        self.is_chief().then(work)
    }

    /// One value per local replica from a function of its replica id
    /// (TensorFlow: `experimental_distribute_values_from_function`).
    fn values_from<T>(&self, value: impl FnMut(usize) -> T) -> PerReplica<T> {
        let ids = self.replicas().iter().map(|replica| replica.id);
        PerReplica::new(ids.map(value).collect())
    }

    /// The components of this process' replicas
    /// (TensorFlow: `experimental_local_results`).
    fn local_results<T>(&self, value: PerReplica<T>) -> Vec<T> {
        value.into_values()
    }
}

impl<S: Strategy + ?Sized> StrategyExt for S {}

/// What was built on replica 0's device, on all replicas.
fn mirrored<T: Replicate>(
    strategy: &(impl Strategy + ?Sized),
    built: Result<T, Error>,
) -> Result<Mirrored<T>> {
    let built = built.and_then(|mut value| {
        // A step that is compiled places variables itself.
        if strategy.tracer().is_none() {
            value.parts(|_, part| {
                part.place(strategy.variable_placement());
                Ok(())
            })?;
        }
        Ok(value)
    });
    let mut value = match strategy.workers() {
        None => built?,
        Some(workers) => workers.or_abort(built)?,
    };
    if let Some(workers) = strategy.workers() {
        value.parts(|_, part| part.take_from_chief(workers))?;
    }
    if let Some(store) = strategy.remote_store() {
        value.parts(|path, part| part.attach_remote(store, &path.to_string()))?;
    }
    let devices: Vec<Device> = strategy
        .replicas()
        .iter()
        .map(|replica| replica.device.clone())
        .collect();
    Ok(Mirrored::replicate(value, &devices, strategy.id()))
}
