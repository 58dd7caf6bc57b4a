//! Variables in a step that is compiled: their values go into the program and come out of it, and
//! the copies on the host take them over after each call.

use std::sync::{Arc, Weak};

use burn::tensor::TensorData;

use super::VariableKind;
use super::shared::{Home, Shared};
use super::update::Update;
use crate::trace::{self, CapturedTensor, HostVariable, LeafValue, Trace};
use crate::{Error, Leaf, Result};

/// The value of a variable at that point of the step.
fn current(trace: &Trace, variable: &Arc<Shared>) -> CapturedTensor {
    let host = Arc::new(Arc::downgrade(variable));
    trace.variable(host, &variable.spec, |used| used.current.clone())
}

/// The value of a variable of floating-point numbers.
///
/// # Errors
/// [`Error::DType`] for other variables.
pub(super) fn read(trace: &Trace, variable: &Arc<Shared>) -> Result<LeafValue> {
    if variable.spec.dtype.is_float() {
        return Ok(LeafValue::Captured(current(trace, variable)));
    }
    let op = "read_tensor in a compiled step";
    Err(Error::dtype(op, variable.spec.dtype))
}

/// Makes an update of a variable, as operations of the graph.
///
/// # Errors
/// For a value that does not fit, and an update that no program can make.
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
    let value = match trace::captured_leaf(value) {
        Some(tensor) => tensor,
        None => trace.constant(value.take()?),
    };
    variable.check_value(op, &value.spec())?;
    let value = if variable.is_local() {
        value
    } else {
        match variable.options.aggregation.reduction(op)? {
            Some(reduction) => trace.all_reduce_one(reduction, value)?,
            None => trace::of_replica(trace, value, 0),
        }
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
    let host = Arc::new(Arc::downgrade(variable));
    trace.variable(host, &variable.spec, |used| {
        used.current = new;
        used.store = Some(Arc::new(store));
    });
    Ok(())
}

impl HostVariable for Weak<Shared> {
    fn values(&self, replicas: usize) -> Option<Vec<TensorData>> {
        match &self.upgrade()?.home {
            Home::Here(copies) => Some((0..replicas).map(|replica| copies.read(replica)).collect()),
            Home::Store(_) => None,
        }
    }
}
