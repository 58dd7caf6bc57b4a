//! Variables in a step that is compiled: their values go into the program and come out of it, and
//! the copies on the host take them over after each call.

use std::sync::{Arc, Weak};

use burn::tensor::TensorData;

use super::VariableKind;
use super::shared::{Home, Shared};
use super::update::Update;
use crate::trace::{self, CapturedTensor, Given, HostVariable, TensorSpec, Trace};
use crate::{Error, Leaf, Result};

/// The value at this point of a step that is captured.
fn current(trace: &Trace, variable: &Arc<Shared>) -> CapturedTensor {
    let spec = TensorSpec {
        shape: variable.shape.to_vec(),
        dtype: variable.dtype,
    };
    trace.variable(&host(variable), &spec)
}

/// The value in a step that is captured, of floating-point numbers.
pub(super) fn read(trace: &Trace, variable: &Arc<Shared>) -> Result<Given> {
    if variable.dtype.is_float() {
        return Ok(Given::Captured(current(trace, variable)));
    }
    let op = "read_tensor in a compiled step";
    Err(Error::dtype(op, variable.dtype))
}

/// An update in a step that is captured, as operations of the graph.
pub(super) fn change(
    trace: &Trace,
    variable: &Arc<Shared>,
    update: Update,
    value: &mut dyn Leaf,
) -> Result<()> {
    if variable.kind == VariableKind::Plain && trace.num_replicas() > 1 {
        // Its one copy would take one replica's change and lose the others'.
        return Err(Error::not_compilable(
            "changing a variable of no strategy on several replicas",
            "create it with `strategy.variable`",
        ));
    }
    let op = update.name();
    // A value of the step or of the host, as one of the graph.
    let value = match value.captured() {
        Some(tensor) => tensor,
        None => trace.constant(value.take()?),
    };
    variable.check_value(op, &value.spec())?;
    let value = match variable.is_local() {
        true => value,
        false => match variable.options.aggregation.reduction(op)? {
            Some(reduction) => trace.all_reduce_one(reduction, value)?,
            None => trace::of_replica(trace, value, 0),
        },
    };
    let new = match update {
        Update::Assign => value,
        Update::Add => trace::combine(current(trace, variable), value, true),
        Update::Sub => trace::combine(current(trace, variable), value, false),
    };
    let weak = Arc::downgrade(variable);
    let store = move |replica: usize, mut values: Vec<TensorData>| {
        let (Some(variable), Some(value)) = (weak.upgrade(), values.pop()) else {
            return Ok(());
        };
        match &variable.home {
            Home::Here(copies) => copies.apply(replica, Update::Assign, &value),
            Home::Store(_) => Ok(()),
        }
    };
    trace.set_variable(&host(variable), new, Arc::new(store));
    Ok(())
}

fn host(variable: &Arc<Shared>) -> Arc<dyn HostVariable> {
    Arc::new(Arc::downgrade(variable))
}

impl HostVariable for Weak<Shared> {
    fn values(&self, replicas: usize) -> Option<Vec<TensorData>> {
        match &self.upgrade()?.home {
            Home::Here(copies) => Some((0..replicas).map(|replica| copies.read(replica)).collect()),
            Home::Store(_) => None,
        }
    }
}
