//! Variables in a step that is compiled: their values go into the program and come out of it, and
//! the copies on the host take them over after each call.

use std::sync::{Arc, Weak};

use burn::tensor::TensorData;

use super::VariableKind;
use super::access::Access;
use super::shared::{Home, Shared};
use super::update::Update;
use crate::trace::{self, CapturedTensor, Given, HostVariable, TensorSpec, Trace};
use crate::{Error, Leaf, Result};

/// From a step that is captured: the value at that point of the step.
pub(super) struct InCapture<'a>(pub(super) &'a Trace);

impl InCapture<'_> {
    fn current(&self, variable: &Arc<Shared>) -> CapturedTensor {
        let spec = TensorSpec {
            shape: variable.shape.to_vec(),
            dtype: variable.dtype,
        };
        self.0.variable(&host(variable), &spec)
    }

    /// A value of the step or of the host as one of the graph.
    fn captured(
        &self,
        variable: &Shared,
        op: &'static str,
        value: &mut dyn Leaf,
    ) -> Result<CapturedTensor> {
        let value = match value.captured() {
            Some(tensor) => tensor,
            None => self.0.constant(value.take()?),
        };
        variable.check_value(op, &value.spec())?;
        Ok(value)
    }
}

impl Access for InCapture<'_> {
    /// A value of floating-point numbers.
    fn read(&self, variable: &Arc<Shared>) -> Result<Given> {
        if variable.dtype.is_float() {
            return Ok(Given::Captured(self.current(variable)));
        }
        let op = "read_tensor in a compiled step";
        Err(Error::dtype(op, variable.dtype))
    }

    /// As operations of the graph.
    fn change(&self, variable: &Arc<Shared>, update: Update, value: &mut dyn Leaf) -> Result<()> {
        let trace = self.0;
        if variable.kind == VariableKind::Plain && trace.num_replicas() > 1 {
            // Its one copy would take one replica's change and lose the others'.
            return Err(Error::not_compilable(
                "changing a variable of no strategy on several replicas",
                "create it with `strategy.variable`",
            ));
        }
        let op = update.name();
        let value = self.captured(variable, op, value)?;
        let value = match variable.is_local() {
            true => value,
            false => match variable.options.aggregation.reduction(op)? {
                Some(reduction) => trace.all_reduce_one(reduction, value)?,
                None => trace::of_replica(trace, value, 0),
            },
        };
        let new = match update {
            Update::Assign => value,
            Update::Add => trace::combine(self.current(variable), value, true),
            Update::Sub => trace::combine(self.current(variable), value, false),
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
