//! Variables in a step that is compiled: their values go into the program and come out of it, and
//! the copies on the host take them over after each call.

use std::sync::{Arc, Weak};

use burn::tensor::TensorData;

use super::access::Access;
use super::shared::{Home, Shared};
use super::update::Update;
use super::{VariableAggregation, VariableKind};
use crate::trace::{self, CapturedTensor, Given, HostVariable, Target, TensorSpec, Trace};
use crate::{Error, Leaf, ReduceOp, Result};

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
        let spec = value.spec();
        let zeros = TensorData::full_dtype(spec.shape, 0.0, spec.dtype);
        variable.check_value(op, &zeros)?;
        Ok(value)
    }
}

impl Access for InCapture<'_> {
    /// A value of floating-point numbers.
    fn read(&self, variable: &Arc<Shared>) -> Result<Given> {
        if variable.dtype.is_float() {
            return Ok(Given::Captured(self.current(variable)));
        }
        Err(Error::DType {
            op: "read_tensor in a compiled step",
            dtype: variable.dtype.name().to_string(),
        })
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
        let value = match variable.options.aggregation {
            _ if variable.is_local() => value,
            VariableAggregation::None => {
                return Err(Error::AggregationRequired { op });
            }
            VariableAggregation::Sum => trace::reduce(trace, ReduceOp::Sum, value)?,
            VariableAggregation::Mean => trace::reduce(trace, ReduceOp::Mean, value)?,
            VariableAggregation::OnlyFirstReplica => trace::of_replica(trace, value, 0),
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
    Arc::new(Handle(Arc::downgrade(variable)))
}

pub(super) fn no_value_yet() -> Error {
    Error::not_compilable(
        "`DistributedVariable::read`",
        "it returns a value, which there is none of yet; use `read_tensor`",
    )
}

/// A variable, as long as it is there.
struct Handle(Weak<Shared>);

impl Target for Handle {
    fn address(&self) -> Option<usize> {
        let there = self.0.strong_count() > 0;
        there.then_some(self.0.as_ptr() as usize)
    }
}

impl HostVariable for Handle {
    fn values(&self, replicas: usize) -> Option<Vec<TensorData>> {
        match &self.0.upgrade()?.home {
            Home::Here(copies) => Some((0..replicas).map(|replica| copies.read(replica)).collect()),
            Home::Store(_) => None,
        }
    }
}
