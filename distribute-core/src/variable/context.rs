//! The two contexts that a variable or a metric can be used in, and how a variable is reached from
//! them. Steps that are captured are in `traced`.

use std::sync::Arc;

use burn::tensor::Device;

use super::shared::{Copies, Shared};
use super::update::{self, Update};
use super::{VariableAggregation, VariableKind, traced};
use crate::strategy::StrategyId;
use crate::trace::{LeafValue, Receiver};
use crate::{Error, Leaf, PerReplica, ReplicaContext, Result, Strategy, strategy};

/// Where a variable is used: a step passes its [`ReplicaContext`], code outside of a step passes
/// the strategy. Sealed: those are all there are.
pub trait VariableContext: sealed::Context {}

impl<C: sealed::Context + ?Sized> VariableContext for C {}

/// A variable, and its copies in this process.
type Local<'a> = (&'a Arc<Shared>, &'a Copies);

pub(crate) mod sealed {
    use super::*;

    pub trait Context {
        /// The strategy.
        ///
        /// # Errors
        /// If `op` is called in the wrong context.
        fn strategy_id(&self, op: &'static str) -> Result<StrategyId>;

        /// Where tensors are put that are read.
        ///
        /// # Errors
        /// For a strategy without replicas.
        fn device(&self) -> Result<&Device>;

        /// The value of a variable.
        ///
        /// # Errors
        /// If there is none here.
        fn read(&self, of: Local<'_>) -> Result<LeafValue>;

        /// Makes an update of a variable.
        ///
        /// # Errors
        /// If the value does not fit, or the variable's options do not allow it.
        fn change(&self, of: Local<'_>, update: Update, value: &mut dyn Leaf) -> Result<()>;

        /// Hands values to the host: now, or after each call of a compiled step.
        ///
        /// # Errors
        /// What the receiver does not accept.
        fn give(&self, values: &mut [&mut dyn Leaf], receiver: Receiver<'_>) -> Result<()>;
    }
}

impl sealed::Context for ReplicaContext {
    fn strategy_id(&self, op: &'static str) -> Result<StrategyId> {
        let missing = || Error::invalid(format!("{op}: the step of this context has ended"));
        crate::scope::step_strategy().ok_or_else(missing)
    }

    fn device(&self) -> Result<&Device> {
        Ok(ReplicaContext::device(self))
    }

    /// That of the replica's own copy.
    fn read(&self, (variable, copies): Local<'_>) -> Result<LeafValue> {
        match self.trace() {
            Some(trace) => traced::read(trace, variable),
            None if self.peers().is_again() && variable.is_local() => Err(own_value()),
            None => Ok(LeafValue::Host(copies.read(self.local_id()))),
        }
    }

    fn change(&self, of: Local<'_>, update: Update, value: &mut dyn Leaf) -> Result<()> {
        self.check_noted()?;
        let (variable, copies) = of;
        if let Some(trace) = self.trace() {
            return traced::change(trace, variable, update, value);
        }
        if self.peers().is_again() {
            return Err(own_value());
        }
        let value = variable.fitting(update, value)?;
        let own = self.local_id();
        if variable.is_local() {
            return copies.apply(own, update, &value);
        }
        let value = match variable.options.aggregation.reduction(update.name())? {
            Some(op) => self.all_reduce(op, value)?,
            None => self.broadcast(0, value)?,
        };
        if variable.kind == VariableKind::Mirrored {
            return copies.apply(own, update, &value);
        }
        // The one copy is updated once; the exchange makes the others wait for it. Its address
        // tells this variable from the others, the same on all replicas.
        let address = Arc::as_ptr(variable) as usize as i64;
        let count = self.num_local();
        self.exchange(update.name(), address, value, |mut values| {
            copies.apply(0, update, &values.swap_remove(0))?;
            Ok(vec![(); count])
        })
    }

    fn give(&self, values: &mut [&mut dyn Leaf], receiver: Receiver<'_>) -> Result<()> {
        self.check_noted()?;
        if self.peers().is_again() {
            // The replica whose step it is has given them.
            return Ok(());
        }
        let Some(trace) = self.trace() else {
            return receiver.receive(self.local_id(), values);
        };
        let given = values
            .iter_mut()
            .map(|value| LeafValue::of(*value))
            .collect::<Result<Vec<_>>>()?;
        let examples: Vec<_> = given.iter().map(LeafValue::example).collect();
        // Shapes that do not fit are an error where the step is, not after its first call.
        (receiver.check)(&examples)?;
        trace.defer(given, receiver.target, receiver.apply);
        Ok(())
    }
}

/// The step of another replica is computed again, whose own values are not here.
fn own_value() -> Error {
    Error::not_recomputable(
        "a variable that a step changes, or of which each replica has a value of its own",
        "change it outside of what is computed again, or leave out the check",
    )
}

impl<S: Strategy + ?Sized> sealed::Context for S {
    fn strategy_id(&self, op: &'static str) -> Result<StrategyId> {
        crate::scope::check_cross_replica(&self.id(), op)?;
        Ok(self.id())
    }

    fn device(&self) -> Result<&Device> {
        let missing = || Error::invalid("the strategy has no replicas");
        let first = self.replicas().first().ok_or_else(missing)?;
        Ok(&first.device)
    }

    /// The common one.
    fn read(&self, (variable, copies): Local<'_>) -> Result<LeafValue> {
        variable.used_outside();
        let aggregation = variable.options.aggregation;
        let op = match (variable.kind, aggregation) {
            (VariableKind::SyncOnRead, VariableAggregation::None) => {
                return Err(Error::NoCommonValue { op: "read" });
            }
            (VariableKind::SyncOnRead, _) => aggregation.reduction("read")?,
            _ => None,
        };
        variable.check_versions(copies, "read")?;
        let value = match op {
            Some(op) => strategy::reduce::reduce(self, op, PerReplica::new(copies.all()))?,
            None => copies.read(0),
        };
        Ok(LeafValue::Host(value))
    }

    /// Of all copies.
    fn change(&self, of: Local<'_>, update: Update, value: &mut dyn Leaf) -> Result<()> {
        let (variable, copies) = of;
        let mut value = variable.fitting(update, value)?;
        variable.used_outside();
        let op = update.name();
        if variable.kind == VariableKind::SyncOnRead {
            match (variable.options.aggregation, update) {
                (VariableAggregation::None, _) => {
                    return Err(Error::NoCommonValue { op });
                }
                (VariableAggregation::Sum, Update::Assign) => {
                    value = update::share(&value, variable.replicas);
                }
                (VariableAggregation::Sum, _) => {
                    return Err(Error::UpdateOfSum { op });
                }
                _ => {}
            }
        }
        if update != Update::Assign {
            variable.check_versions(copies, op)?;
        }
        copies.apply_all(update, &value)
    }

    /// Outside of a step a value is no replica's own: any of them will do.
    fn give(&self, values: &mut [&mut dyn Leaf], receiver: Receiver<'_>) -> Result<()> {
        strategy::used_outside(self);
        receiver.receive(0, values)
    }
}
