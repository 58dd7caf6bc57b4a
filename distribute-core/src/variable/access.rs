//! A variable as it is reached: in a step, outside of steps, or in a store. Steps that are captured
//! are in `traced`.

use std::sync::Arc;

use burn::tensor::TensorData;

use super::shared::{Copies, Shared};
use super::update::{self, Update};
use super::{VariableAggregation, VariableKind};
use crate::remote::RemoteVariable;
use crate::trace::{Given, TensorSpec};
use crate::{Error, Leaf, PerReplica, ReplicaContext, Result, Strategy, strategy};

/// What can be done to a variable from where it is reached.
pub trait Access {
    /// The value.
    fn read(&self, variable: &Arc<Shared>) -> Result<Given>;

    /// Makes an update.
    fn change(&self, variable: &Arc<Shared>, update: Update, value: &mut dyn Leaf) -> Result<()>;
}

/// A value of the host that fits the variable.
fn fitting(variable: &Shared, update: Update, value: &mut dyn Leaf) -> Result<TensorData> {
    let value = value.take()?;
    variable.check_value(update.name(), &TensorSpec::of(&value))?;
    Ok(value)
}

/// In a store: the same from everywhere.
pub(super) struct InStore<'a>(pub(super) &'a dyn RemoteVariable);

impl Access for InStore<'_> {
    fn read(&self, _: &Arc<Shared>) -> Result<Given> {
        self.0.read().map(Given::Host)
    }

    fn change(&self, variable: &Arc<Shared>, update: Update, value: &mut dyn Leaf) -> Result<()> {
        let value = fitting(variable, update, value)?;
        self.0.change(update, value)
    }
}

/// From a step: the replica's own copy.
pub(super) struct InStep<'a> {
    pub(super) ctx: &'a ReplicaContext,
    pub(super) copies: &'a Copies,
}

impl Access for InStep<'_> {
    fn read(&self, _: &Arc<Shared>) -> Result<Given> {
        Ok(Given::Host(self.copies.read(self.ctx.local_id())))
    }

    fn change(&self, variable: &Arc<Shared>, update: Update, value: &mut dyn Leaf) -> Result<()> {
        let value = fitting(variable, update, value)?;
        let own = self.ctx.local_id();
        if variable.is_local() {
            return self.copies.apply(own, update, &value);
        }
        let value = match variable.options.aggregation.reduction(update.name())? {
            Some(op) => self.ctx.all_reduce(op, value)?,
            None => self.ctx.broadcast(0, value)?,
        };
        if variable.kind == VariableKind::Mirrored {
            return self.copies.apply(own, update, &value);
        }
        // The one copy is updated once; the exchange makes the others wait for it. Its address
        // tells this variable from the others, the same on all replicas.
        let address = Arc::as_ptr(variable) as usize as i64;
        let count = self.ctx.num_local();
        self.ctx
            .exchange(update.name(), address, value, |mut values| {
                self.copies.apply(0, update, &values.swap_remove(0))?;
                Ok(vec![(); count])
            })
    }
}

/// From outside of steps: the common value, or all copies.
pub(super) struct Outside<'a, S: ?Sized> {
    pub(super) strategy: &'a S,
    pub(super) copies: &'a Copies,
}

impl<S: Strategy + ?Sized> Access for Outside<'_, S> {
    fn read(&self, variable: &Arc<Shared>) -> Result<Given> {
        variable.used_outside();
        let aggregation = variable.options.aggregation;
        let op = match (variable.kind, aggregation) {
            (VariableKind::SyncOnRead, VariableAggregation::None) => {
                return Err(Error::NoCommonValue { op: "read" });
            }
            (VariableKind::SyncOnRead, _) => aggregation.reduction("read")?,
            _ => None,
        };
        variable.check_versions(self.copies, "read")?;
        let value = match op {
            Some(op) => {
                let copies = PerReplica::new(self.copies.all());
                strategy::reduce::reduce(self.strategy, op, copies)?
            }
            None => self.copies.read(0),
        };
        Ok(Given::Host(value))
    }

    fn change(&self, variable: &Arc<Shared>, update: Update, value: &mut dyn Leaf) -> Result<()> {
        let mut value = fitting(variable, update, value)?;
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
            variable.check_versions(self.copies, op)?;
        }
        self.copies.apply_all(update, &value)
    }
}
