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
mod traced;
mod update;
mod value;

use std::fmt;
use std::marker::PhantomData;
use std::sync::{Arc, Mutex};

use burn::tensor::{DType, Device, Shape, Tensor, TensorData};

use crate::remote::{RemoteChange, RemoteVariable};
use crate::shown::{Shown, write_components};
use crate::strategy::StrategyId;
use crate::sync::lock;
use crate::{Error, Leaf, ReduceOp, ReplicaContext, Result, Strategy, VariablePlacement};
pub use context::VariableContext;
pub use options::{VariableAggregation, VariableKind, VariableOptions, VariableSynchronization};
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
        Self::of(Arc::clone(&self.shared))
    }
}

struct Shared {
    kind: VariableKind,
    options: VariableOptions,
    owner: StrategyId,
    replicas: usize,
    shape: Shape,
    dtype: DType,
    copies: Vec<Mutex<Stored>>,
    /// The strategy's, if it compiles steps: it compares them with their programs after a use of a
    /// variable outside of a step.
    generation: Option<Arc<dyn Strategy>>,
    /// Where the value lives, if not here; the copy is the initial value then.
    remote: Option<Arc<dyn RemoteVariable>>,
}

/// One copy, and how many updates it took: equal numbers mean equal mirrored copies.
#[derive(Clone)]
struct Stored {
    data: TensorData,
    version: u64,
}

/// What a variable must know of the strategy it belongs to.
pub(crate) struct Owner {
    id: StrategyId,
    local_replicas: usize,
    replicas: usize,
    placement: VariablePlacement,
    distributes: bool,
    compiles: Option<Arc<dyn Strategy>>,
}

impl Owner {
    pub(crate) fn of(strategy: &(impl Strategy + ?Sized)) -> Self {
        Self {
            id: strategy.id(),
            local_replicas: strategy.replicas().len(),
            replicas: strategy.num_replicas_in_sync(),
            placement: strategy.variable_placement(),
            distributes: strategy.distributes_variables(),
            compiles: strategy.tracer().map(|_| strategy.handle()),
        }
    }

    fn kind(&self, synchronization: VariableSynchronization) -> VariableKind {
        let is_central = self.placement == VariablePlacement::Central;
        match synchronization {
            _ if !self.distributes || is_central && self.replicas == 1 => VariableKind::Plain,
            _ if is_central => VariableKind::Aggregating,
            VariableSynchronization::OnRead => VariableKind::SyncOnRead,
            _ => VariableKind::Mirrored,
        }
    }
}

impl<T> DistributedVariable<T> {
    fn of(shared: Arc<Shared>) -> Self {
        Self {
            shared,
            value: PhantomData,
        }
    }

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
        let mut variable = Self::create(&Owner::of(strategy), initial, options)?;
        if let Some(shared) = Arc::get_mut(&mut variable.shared) {
            shared.remote = remote;
        }
        Ok(variable)
    }

    /// Steps may go on with another variable than this one.
    fn used_outside(&self) {
        let tracer = self
            .shared
            .generation
            .as_ref()
            .and_then(|strategy| strategy.tracer());
        if let Some(tracer) = tracer {
            tracer.device().next_generation();
        }
    }

    pub(crate) fn create(
        owner: &Owner,
        initial: TensorData,
        mut options: VariableOptions,
    ) -> Result<Self> {
        let kind = owner.kind(options.synchronization);
        if kind != VariableKind::Plain {
            check_options(owner, &initial, options)?;
        }
        if kind == VariableKind::Mirrored {
            options.synchronization = VariableSynchronization::OnWrite;
        }
        let on_read = options.synchronization == VariableSynchronization::OnRead;
        options.trainable.get_or_insert(!on_read);
        let copies = match kind {
            VariableKind::Plain | VariableKind::Aggregating => 1,
            _ => owner.local_replicas,
        };
        let first = Stored {
            data: initial,
            version: 0,
        };
        let shared = Shared {
            kind,
            options,
            owner: owner.id.clone(),
            replicas: owner.replicas,
            shape: first.data.shape().clone(),
            dtype: first.data.dtype(),
            copies: (0..copies).map(|_| Mutex::new(first.clone())).collect(),
            generation: owner.compiles.clone(),
            remote: None,
        };
        let variable = Self::of(Arc::new(shared));
        variable.used_outside();
        Ok(variable)
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
        &self.shared.shape
    }

    /// The element type of the value.
    pub fn dtype(&self) -> DType {
        self.shared.dtype
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
        let copies = match &self.shared.remote {
            Some(remote) => vec![remote.read()?],
            None => self.copies(),
        };
        let copies = copies.into_iter();
        copies
            .map(|copy| T::from_data(copy, &Device::flex()))
            .collect()
    }

    fn copies(&self) -> Vec<TensorData> {
        let copies = self.shared.copies.iter();
        copies.map(|copy| lock(copy).data.clone()).collect()
    }

    /// Sets the variable.
    ///
    /// In a step: to the aggregated values of all replicas (blocks until all have called it), or
    /// only the replica's own copy of an on-read variable. Outside of a step: every copy; the
    /// copies of a summed on-read variable get `value / replicas` each, truncated for integers.
    ///
    /// # Errors
    /// [`Error::Shape`] and [`Error::DType`] for a value of another shape or type,
    /// [`Error::MixedStrategies`], and [`Error::Variable`] where the options do not allow it.
    pub fn assign<C>(&self, context: &C, value: impl AssignTo<T>) -> Result<()>
    where
        C: VariableContext + ?Sized,
    {
        self.change(context, Update::Assign, value)
    }

    /// Adds to the variable: like [`assign`](Self::assign), the aggregated value is added.
    /// Outside of a step not for summed on-read variables.
    ///
    /// # Errors
    /// As `assign`.
    pub fn assign_add<C>(&self, context: &C, value: impl AssignTo<T>) -> Result<()>
    where
        C: VariableContext + ?Sized,
    {
        self.change(context, Update::Add, value)
    }

    /// Subtracts from the variable: like [`assign_add`](Self::assign_add).
    ///
    /// # Errors
    /// As `assign`.
    pub fn assign_sub<C>(&self, context: &C, value: impl AssignTo<T>) -> Result<()>
    where
        C: VariableContext + ?Sized,
    {
        self.change(context, Update::Sub, value)
    }

    /// The value: in a step that of the replica's copy; outside of a step the common value, which
    /// for on-read variables is the aggregation of the copies.
    ///
    /// # Errors
    /// [`Error::MixedStrategies`]; [`Error::NoCommonValue`] and
    /// [`Error::Diverged`] outside of a step.
    pub fn read<C>(&self, context: &C) -> Result<T>
    where
        T: VariableValue,
        C: VariableContext + ?Sized,
    {
        T::from_data(self.read_data(context)?, context.device()?)
    }

    fn read_data<C>(&self, context: &C) -> Result<TensorData>
    where
        C: VariableContext + ?Sized,
    {
        self.check_owner(context, "read")?;
        if let Some(remote) = &self.shared.remote {
            return remote.read();
        }
        if let Some(ctx) = context.replica() {
            if ctx.trace().is_some() {
                return Err(traced::no_value_yet());
            }
            return Ok(lock(self.copy_of(ctx)).data.clone());
        }
        self.used_outside();
        let op = match (self.kind(), self.aggregation()) {
            (VariableKind::SyncOnRead, VariableAggregation::None) => {
                return Err(Error::NoCommonValue { op: "read" });
            }
            (VariableKind::SyncOnRead, VariableAggregation::Sum) => Some(ReduceOp::Sum),
            (VariableKind::SyncOnRead, VariableAggregation::Mean) => Some(ReduceOp::Mean),
            _ => None,
        };
        self.check_versions("read")?;
        match op {
            Some(op) => context.reduce(op, self.copies()),
            None => Ok(lock(&self.shared.copies[0]).data.clone()),
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
        if let Some(trace) = ctx.trace() {
            self.check_owner(ctx, "read")?;
            return self.captured(trace);
        }
        let data = self.read_data(ctx)?;
        let dtype = data.dtype();
        Ok(Tensor::from_data(data, (ctx.device(), dtype)))
    }

    /// Replaces every copy by a function of it, outside of a step
    /// (TensorFlow: `StrategyExtended.update`). The equal copies of a mirrored variable get one
    /// result, those of an on-read variable each their own.
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
        let device = context::sealed::Context::device(strategy)?;
        let mut change = |data: TensorData| change(T::from_data(data, device)?)?.take();
        if let Some(remote) = &self.shared.remote {
            let result = change(remote.read()?)?;
            self.check_value("update", &result)?;
            return remote.change(RemoteChange::Assign, result);
        }
        self.check_versions("update")?;
        let mut results = Vec::new();
        for copy in &self.shared.copies {
            if results.is_empty() || self.kind() == VariableKind::SyncOnRead {
                let result = change(lock(copy).data.clone())?;
                self.check_value("update", &result)?;
                results.push(result);
            }
        }
        for (index, copy) in self.shared.copies.iter().enumerate() {
            let mut copy = lock(copy);
            copy.data = results[index.min(results.len() - 1)].clone();
            copy.version += 1;
        }
        Ok(())
    }

    fn change<C>(&self, context: &C, update: Update, mut value: impl Leaf) -> Result<()>
    where
        C: VariableContext + ?Sized,
    {
        if let Some((ctx, trace)) = context.replica().and_then(|ctx| Some((ctx, ctx.trace()?))) {
            self.check_owner(ctx, update.name())?;
            return self.change_captured(trace, update, &mut value);
        }
        let value = value.take()?;
        self.check_owner(context, update.name())?;
        self.check_value(update.name(), &value)?;
        if let Some(remote) = &self.shared.remote {
            return remote.change(update.into(), value);
        }
        match context.replica() {
            Some(ctx) => self.change_in_step(ctx, update, value),
            None => {
                self.used_outside();
                self.change_all(update, value)
            }
        }
    }

    fn change_in_step(
        &self,
        ctx: &ReplicaContext,
        update: Update,
        value: TensorData,
    ) -> Result<()> {
        let is_local = matches!(self.kind(), VariableKind::Plain | VariableKind::SyncOnRead);
        if is_local || self.shared.replicas == 1 {
            return apply(self.copy_of(ctx), update, &value);
        }
        let value = match self.aggregation() {
            VariableAggregation::None => {
                let op = update.name();
                return Err(Error::AggregationRequired { op });
            }
            VariableAggregation::Sum => ctx.all_reduce(ReduceOp::Sum, value)?,
            VariableAggregation::Mean => ctx.all_reduce(ReduceOp::Mean, value)?,
            VariableAggregation::OnlyFirstReplica => ctx.broadcast(0, value)?,
        };
        if self.kind() == VariableKind::Mirrored {
            return apply(self.copy_of(ctx), update, &value);
        }
        // The one copy is updated once; the exchange makes the others wait for it.
        let count = ctx.num_local();
        ctx.exchange(update.name(), self.number(), value, |mut values| {
            apply(&self.shared.copies[0], update, &values.swap_remove(0))?;
            Ok(vec![(); count])
        })
    }

    /// Tells this variable from the others of this process; the same on all replicas.
    fn number(&self) -> i64 {
        Arc::as_ptr(&self.shared) as usize as i64
    }

    fn change_all(&self, update: Update, value: TensorData) -> Result<()> {
        let op = update.name();
        let mut value = value;
        if self.kind() == VariableKind::SyncOnRead {
            match (self.aggregation(), update) {
                (VariableAggregation::None, _) => {
                    return Err(Error::NoCommonValue { op });
                }
                (VariableAggregation::Sum, Update::Assign) => {
                    value = update::share(&value, self.shared.replicas);
                }
                (VariableAggregation::Sum, _) => {
                    return Err(Error::UpdateOfSum { op });
                }
                _ => {}
            }
        }
        if update != Update::Assign {
            self.check_versions(op)?;
        }
        for copy in &self.shared.copies {
            apply(copy, update, &value)?;
        }
        let versions = self.shared.copies.iter().map(|copy| lock(copy).version);
        let latest = versions.max().unwrap_or(0);
        for copy in &self.shared.copies {
            lock(copy).version = latest;
        }
        Ok(())
    }

    /// The copy that a replica reads.
    fn copy_of(&self, ctx: &ReplicaContext) -> &Mutex<Stored> {
        let copies = &self.shared.copies;
        &copies[if copies.len() == 1 { 0 } else { ctx.local_id() }]
    }

    /// Variables of the default strategy are plain values that every strategy may use.
    fn check_owner<C>(&self, context: &C, op: &'static str) -> Result<()>
    where
        C: VariableContext + ?Sized,
    {
        let user = context.strategy_id(op)?;
        let owner = &self.shared.owner;
        if *owner == user || *owner == StrategyId::default_strategy() {
            return Ok(());
        }
        Err(Error::MixedStrategies {
            owner: owner.to_string(),
            user: user.to_string(),
        })
    }

    fn check_value(&self, op: &'static str, value: &TensorData) -> Result<()> {
        if *value.shape() != self.shared.shape {
            return Err(Error::Shape {
                op,
                expected: self.shared.shape.to_vec(),
                found: value.shape().to_vec(),
            });
        }
        if value.dtype() != self.shared.dtype {
            return Err(Error::invalid(format!(
                "{op}: the variable holds {} elements and the value {}; cast the value first",
                self.shared.dtype.name(),
                value.dtype().name()
            )));
        }
        Ok(())
    }

    /// Finds copies of a mirrored variable that a failed run left behind. Copies of an on-read
    /// variable may take different numbers of updates.
    fn check_versions(&self, op: &'static str) -> Result<()> {
        if self.kind() != VariableKind::Mirrored {
            return Ok(());
        }
        let mut versions = self.shared.copies.iter().map(|copy| lock(copy).version);
        let first = versions.next();
        if versions.any(|version| Some(version) != first) {
            return Err(Error::Diverged { op });
        }
        Ok(())
    }
}

fn check_options(owner: &Owner, initial: &TensorData, options: VariableOptions) -> Result<()> {
    if options.synchronization == VariableSynchronization::None {
        let strategy = owner.id.to_string();
        return Err(Error::UnsupportedSynchronization { strategy });
    }
    if options.aggregation == VariableAggregation::Mean && !initial.dtype().is_float() {
        let dtype = initial.dtype().name().to_string();
        return Err(Error::MeanOfIntegers { dtype });
    }
    Ok(())
}

fn apply(copy: &Mutex<Stored>, update: Update, value: &TensorData) -> Result<()> {
    let mut copy = lock(copy);
    update.apply(&mut copy.data, value)?;
    copy.version += 1;
    Ok(())
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
        if self.shared.remote.is_none() {
            let values = self.copies();
            shown.field("values", &values.iter().map(Shown).collect::<Vec<_>>());
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
        match &self.shared.remote {
            None => write_components(f, name, &self.copies()),
            Some(_) => write!(f, "{name} on parameter servers"),
        }
    }
}
