//! Variables in a step that is compiled: their values go into the program and come out of it, and
//! the copies on the host take them over after each call.

use std::sync::{Arc, Weak};

use burn::tensor::{Tensor, TensorData};

use super::update::Update;
use super::{DistributedVariable, Shared, VariableAggregation, VariableKind, apply};
use crate::sync::lock;
use crate::trace::{self, CapturedTensor, HostVariable, Target, TensorSpec, Trace};
use crate::{Error, Leaf, ReduceOp, Result};

impl<T> DistributedVariable<T> {
    /// The value at this point of the captured step, which must be one of floating-point numbers.
    pub(super) fn captured<const D: usize>(&self, trace: &Trace) -> Result<Tensor<D>> {
        if !self.dtype().is_float() {
            return Err(Error::DType {
                op: "read_tensor in a compiled step",
                dtype: self.dtype().name().to_string(),
            });
        }
        // As a result of the step it has to be computed by an operation of the graph.
        Ok(self.current(trace).tracked(false).mul_scalar(1.0))
    }

    fn host(&self) -> Arc<dyn HostVariable> {
        Arc::new(Handle(Arc::downgrade(&self.shared)))
    }

    /// The value at this point of the captured step.
    fn current(&self, trace: &Trace) -> CapturedTensor {
        let spec = TensorSpec {
            shape: self.shape().to_vec(),
            dtype: self.dtype(),
        };
        trace.variable(&self.host(), &spec)
    }

    /// An update as operations of the graph.
    pub(super) fn change_captured(
        &self,
        trace: &Trace,
        update: Update,
        value: &mut dyn Leaf,
    ) -> Result<()> {
        if self.kind() == VariableKind::Plain && trace.num_replicas() > 1 {
            // Its one copy would take one replica's change and lose the others'.
            return Err(Error::not_compilable(
                "changing a variable of no strategy on several replicas",
                "create it with `strategy.variable`",
            ));
        }
        let captured = value.traced().and_then(|tensor| tensor.captured());
        let value = match captured {
            Some(tensor) => tensor,
            None => {
                let data = value.take()?;
                self.check_value(update.name(), &data)?;
                trace.constant(data)
            }
        };
        let spec = value.spec();
        let zeros = TensorData::full_dtype(spec.shape, 0.0, spec.dtype);
        self.check_value(update.name(), &zeros)?;
        let is_local = matches!(self.kind(), VariableKind::Plain | VariableKind::SyncOnRead);
        let value = match self.aggregation() {
            _ if is_local || self.shared.replicas == 1 => value,
            VariableAggregation::None => {
                let op = update.name();
                return Err(Error::AggregationRequired { op });
            }
            VariableAggregation::Sum => trace::reduce(trace, ReduceOp::Sum, value)?,
            VariableAggregation::Mean => trace::reduce(trace, ReduceOp::Mean, value)?,
            VariableAggregation::OnlyFirstReplica => trace::of_replica(trace, value, 0),
        };
        let new = match update {
            Update::Assign => value,
            Update::Add => trace::combine(self.current(trace), value, true),
            Update::Sub => trace::combine(self.current(trace), value, false),
        };
        let shared = Arc::downgrade(&self.shared);
        let store = move |replica: usize, mut values: Vec<TensorData>| {
            let (Some(shared), Some(value)) = (shared.upgrade(), values.pop()) else {
                return Ok(());
            };
            let copies = &shared.copies;
            let copy = copies.get(replica).or(copies.first());
            copy.map_or(Ok(()), |copy| apply(copy, Update::Assign, &value))
        };
        trace.set_variable(&self.host(), new, Arc::new(store));
        Ok(())
    }
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
        let shared = self.0.upgrade()?;
        let copy = |replica: usize| {
            let copies = &shared.copies;
            copies.get(replica).or(copies.first())
        };
        let copies = (0..replicas).map(copy);
        copies
            .map(|found| found.map(|copy| lock(copy).data.clone()))
            .collect()
    }
}
