//! Variables: named state outside of models, such as counters, averages and thresholds, that
//! steps update and that stays consistent over the replicas.
//!
//! | kind | copies | an update in a step | read outside of a step |
//! |---|---|---|---|
//! | `Mirrored` | one per replica, equal | of all copies, aggregated | any copy |
//! | `SyncOnRead` | one per replica | of the replica's own copy | the aggregated copies |
//! | `Aggregating` | one, on the host | of the copy, aggregated | the copy |
//! | `Plain` | one | of the copy | the copy |
//!
//! "Aggregated" means that the replicas' values become one first, by the variable's
//! [`VariableAggregation`]; the kinds are [`VariableKind`]'s.
//!
//! The rules are TensorFlow's (`tf.Variable` under a strategy), with one difference: where it
//! would let the copies of a mirrored variable drift apart without a word (aggregation NONE), the
//! update is an error.

mod context;
mod in_step;
mod options;
mod shared;
mod traced;
mod update;
mod value;

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use burn::tensor::{DType, Device, Tensor, TensorData};

use crate::remote::RemoteVariable;
use crate::shown::{Shown, write_components};
use crate::trace::LeafValue;
use crate::{Error, Leaf, ReplicaContext, Result, Strategy};
pub use context::VariableContext;
pub(crate) use context::sealed;
pub use options::{VariableAggregation, VariableKind, VariableOptions, VariableSynchronization};
use shared::{Home, Shared};
use update::Update;
use value::not_of_rank;
pub use value::{AssignTo, VariableValue};

/// A variable that a strategy keeps consistent over its replicas. A cheap handle: clones are the
/// same variable, and steps capture it by reference.
///
/// `assign`, `assign_add`, `assign_sub` and `read` take the context they are called in: the
/// step's [`ReplicaContext`], or the strategy outside of a step. `T` is what it holds: a number, a
/// tensor, or a [`TensorData`] of which only the running program knows the element type and shape.
/// Values live in host memory. In a step every replica must make the same updates in the same
/// order.
///
/// ```
/// use distribute_core::{
///     MirroredStrategy, StrategyExt, VariableAggregation, VariableOptions,
/// };
///
/// let strategy = MirroredStrategy::builder().replicas(2).build()?;
/// let options = VariableOptions::default().aggregation(VariableAggregation::Mean);
/// let threshold = strategy.variable(1.0_f32, options)?;
/// strategy.run((), |ctx, ()| threshold.assign_add(ctx, ctx.replica_id() as f32))?;
/// assert_eq!(threshold.read(&strategy)?, 1.5);
///
/// let seen = strategy.variable(0_i64, VariableOptions::on_read_sum())?;
/// strategy.run((), |ctx, ()| seen.assign_add(ctx, 8_i64))?;
/// assert_eq!(seen.read(&strategy)?, 16);
/// # Ok::<(), distribute_core::Error>(())
/// ```
///
/// Outside of a step a value goes to all copies. A per-replica value would make the copies of a
/// mirrored variable differ, so it is not accepted there (in TensorFlow they silently differ):
///
/// ```compile_fail
/// # use distribute_core::{MirroredStrategy, PerReplica, StrategyExt, VariableOptions};
/// # let strategy = MirroredStrategy::builder().replicas(2).build()?;
/// let variable = strategy.variable(0.0_f32, VariableOptions::default())?;
/// variable.assign(&strategy, PerReplica::new(vec![1.0_f32, 2.0]))?;
/// # Ok::<(), distribute_core::Error>(())
/// ```
pub struct DistributedVariable<T = TensorData> {
    shared: Arc<Shared>,
    value: PhantomData<fn(T) -> T>,
}

/// The same variable.
impl<T> Clone for DistributedVariable<T> {
    fn clone(&self) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
            value: PhantomData,
        }
    }
}

impl<T> DistributedVariable<T> {
    /// A variable with this initial value in every copy; the chief's if there are several workers,
    /// which all call it together. [`StrategyExt::variable`](crate::StrategyExt::variable) is the
    /// short form.
    ///
    /// # Errors
    /// [`Error::UnsupportedSynchronization`] and [`Error::MeanOfIntegers`].
    pub fn new(
        strategy: &(impl Strategy + ?Sized),
        mut initial: T,
        options: VariableOptions,
    ) -> Result<Self>
    where
        T: VariableValue,
    {
        let mut initial = initial.take()?;
        if let Some(workers) = strategy.workers() {
            workers.take_initial_value(&mut initial)?;
        }
        let store = strategy.remote_store();
        let remote = store.map(|store| store.variable(&initial)).transpose()?;
        Self::create(strategy, initial, options, remote)
    }

    fn create(
        strategy: &(impl Strategy + ?Sized),
        initial: TensorData,
        options: VariableOptions,
        store: Option<Arc<dyn RemoteVariable>>,
    ) -> Result<Self> {
        Ok(Self {
            shared: Arc::new(Shared::new(strategy, initial, options, store)?),
            value: PhantomData,
        })
    }

    /// What the strategy made of the options.
    pub fn kind(&self) -> VariableKind {
        self.shared.kind
    }

    /// How values of several replicas become one.
    pub fn aggregation(&self) -> VariableAggregation {
        self.shared.options.aggregation
    }

    /// When the copies are brought together; where there are several copies, AUTO is resolved.
    pub fn synchronization(&self) -> VariableSynchronization {
        self.shared.options.synchronization
    }

    /// Whether an optimizer may change it.
    pub fn is_trainable(&self) -> bool {
        self.shared.options.trainable.unwrap_or(true)
    }

    /// The shape of the value.
    pub fn shape(&self) -> &[usize] {
        &self.shared.spec.shape
    }

    /// The element type of the value.
    pub fn dtype(&self) -> DType {
        self.shared.spec.dtype
    }

    /// Whether this strategy made the variable
    /// (TensorFlow: `extended.variable_created_in_scope`).
    pub fn was_created_by(&self, strategy: &(impl Strategy + ?Sized)) -> bool {
        self.shared.owner == strategy.id()
    }

    /// The copies in this process, in replica order, tensors in host memory
    /// (TensorFlow: `experimental_local_results`). A variable on a parameter server counts as one
    /// copy.
    ///
    /// # Errors
    /// If the server cannot be reached.
    pub fn local_values(&self) -> Result<Vec<T>>
    where
        T: VariableValue,
    {
        let values = match &self.shared.home {
            Home::Here(copies) => copies.all(),
            Home::Store(store) => vec![store.read()?],
        };
        let values = values.into_iter();
        let own = values.map(|value| T::from_data(value, &Device::flex()));
        own.collect()
    }

    /// Sets the variable.
    ///
    /// In a step: to the aggregated values of all replicas (blocks until all have called it), or
    /// only the replica's own copy of an on-read variable. Outside of a step: every copy; the
    /// copies of a summed on-read variable get `value / replicas` each, truncated for integers.
    ///
    /// # Errors
    /// [`Error::Shape`] and [`Error::DType`] for a value of another shape or type,
    /// [`Error::MixedStrategies`], and [`Error::AggregationRequired`] where the options do not
    /// allow it.
    pub fn assign(
        &self,
        context: &(impl VariableContext + ?Sized),
        value: impl AssignTo<T>,
    ) -> Result<()> {
        self.change(context, Update::Assign, value)
    }

    /// Adds to the variable: like [`assign`](Self::assign), the aggregated value is added.
    /// Outside of a step not for summed on-read variables.
    ///
    /// # Errors
    /// As `assign`.
    pub fn assign_add(
        &self,
        context: &(impl VariableContext + ?Sized),
        value: impl AssignTo<T>,
    ) -> Result<()> {
        self.change(context, Update::Add, value)
    }

    /// Subtracts from the variable: like [`assign_add`](Self::assign_add).
    ///
    /// # Errors
    /// As `assign`.
    pub fn assign_sub(
        &self,
        context: &(impl VariableContext + ?Sized),
        value: impl AssignTo<T>,
    ) -> Result<()> {
        self.change(context, Update::Sub, value)
    }

    /// The value: in a step that of the replica's copy; outside of a step the common value, which
    /// for on-read variables is the aggregation of the copies.
    ///
    /// # Errors
    /// [`Error::MixedStrategies`]; [`Error::NoCommonValue`] and
    /// [`Error::Diverged`] outside of a step.
    pub fn read(&self, context: &(impl VariableContext + ?Sized)) -> Result<T>
    where
        T: VariableValue,
    {
        match self.given(context)? {
            LeafValue::Host(data) => T::from_data(data, context.device()?),
            LeafValue::Captured(_) => Err(Error::not_compilable(
                "`DistributedVariable::read`",
                "it returns a value, which there is none of yet; use `read_tensor`",
            )),
        }
    }

    /// [`read`](Self::read) in a step, as a tensor on the replica's device; also in a step that is
    /// compiled, where `read` has no value yet.
    ///
    /// # Errors
    /// As `read`; [`Error::Shape`] if the variable has another number of dimensions.
    pub fn read_tensor<const D: usize>(&self, ctx: &ReplicaContext) -> Result<Tensor<D>> {
        if self.shape().len() != D {
            return Err(not_of_rank(D, self.shape()));
        }
        Ok(match self.given(ctx)? {
            LeafValue::Host(data) => {
                let dtype = data.dtype();
                Tensor::from_data(data, (ctx.device(), dtype))
            }
            // As a result of the step it has to be computed by an operation of the graph.
            LeafValue::Captured(tensor) => tensor.tracked(false).mul_scalar(1.0),
        })
    }

    /// Replaces every copy by a function of it, outside of a step
    /// (TensorFlow: `StrategyExtended.update`). The equal copies of a mirrored variable get one
    /// result; the copies of an on-read variable each get their own.
    ///
    /// # Errors
    /// What `change` returns, then nothing is changed; [`Error::Shape`] and [`Error::DType`] if
    /// its result does not fit.
    pub fn update(
        &self,
        strategy: &(impl Strategy + ?Sized),
        mut change: impl FnMut(T) -> Result<T>,
    ) -> Result<()>
    where
        T: VariableValue,
    {
        self.check_owner(strategy, "update")?;
        let device = sealed::Context::device(strategy)?;
        self.shared
            .update(|data| change(T::from_data(data, device)?)?.take())
    }

    fn change(
        &self,
        context: &(impl VariableContext + ?Sized),
        update: Update,
        mut value: impl Leaf,
    ) -> Result<()> {
        self.check_owner(context, update.name())?;
        match &self.shared.home {
            Home::Here(copies) => context.change((&self.shared, copies), update, &mut value),
            Home::Store(store) => store.change(update, self.shared.fitting(update, &mut value)?),
        }
    }

    /// The value as it is seen from this context.
    fn given(&self, context: &(impl VariableContext + ?Sized)) -> Result<LeafValue> {
        self.check_owner(context, "read")?;
        match &self.shared.home {
            Home::Here(copies) => context.read((&self.shared, copies)),
            Home::Store(store) => store.read().map(LeafValue::Host),
        }
    }

    /// Variables of the default strategy are plain values that every strategy may use.
    fn check_owner(
        &self,
        context: &(impl VariableContext + ?Sized),
        op: &'static str,
    ) -> Result<()> {
        let user = context.strategy_id(op)?;
        let owner = &self.shared.owner;
        if owner.is_default() {
            return Ok(());
        }
        owner.check_user(&user)
    }
}

/// With its values, except for a variable on parameter servers: printing asks no server.
impl<T> fmt::Debug for DistributedVariable<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("DistributedVariable");
        shown
            .field("kind", &self.kind())
            .field("shape", &self.shape())
            .field("dtype", &self.dtype())
            .field("options", &self.shared.options);
        if let Home::Here(copies) = &self.shared.home {
            let copies = copies.all();
            shown.field("values", &copies.iter().map(Shown).collect::<Vec<_>>());
        }
        shown.finish_non_exhaustive()
    }
}

/// `MirroredVariable:{0: f32[] [1.5], 1: f32[] [1.5]}`, the copies of this process. Of a variable
/// on parameter servers there are none: printing asks no server.
impl<T> fmt::Display for DistributedVariable<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self.kind() {
            VariableKind::Mirrored => "MirroredVariable",
            VariableKind::SyncOnRead => "SyncOnReadVariable",
            VariableKind::Aggregating => "AggregatingVariable",
            VariableKind::Plain => "Variable",
        };
        match &self.shared.home {
            Home::Here(copies) => write_components(f, name, &copies.all()),
            Home::Store(_) => write!(f, "{name} on parameter servers"),
        }
    }
}
