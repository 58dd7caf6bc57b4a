//! A step that is captured: its calls are operations of a graph that stands for all replicas.

use std::sync::Arc;

use burn::tensor::{DType, TensorData};
use distribute_collectives::ReduceOp;

use super::differentiable::Differentiable;
use super::peers::Peers;
use crate::trace::{self, CapturedTensor, HostVariable, LeafValue, Target, TensorSpec, Trace};
use crate::{Error, Gradients, Nest, Result, WorkerGroup, host_reduce};

/// All replicas, as the captured step sees them.
pub(crate) struct Captured {
    pub(super) trace: Arc<Trace>,
    pub(super) workers: Option<WorkerGroup>,
}

impl Peers for Captured {
    fn all_reduce(&self, op: ReduceOp, value: &mut dyn Nest) -> Result<()> {
        let copies = |number| host_reduce::reduce(op, vec![number; self.trace.num_replicas()]);
        trace::each(value, copies, |tensors| self.trace.all_reduce(op, tensors))
    }

    fn all_gather(&self, value: &mut dyn Nest, axis: i64) -> Result<()> {
        let copies = |number| host_reduce::gather(vec![number; self.trace.num_replicas()], axis);
        trace::each(value, copies, |tensors| {
            let tensors = tensors.into_iter();
            let gathered = tensors.map(|tensor| {
                let spec = tensor.spec();
                let axis = host_reduce::gather_axis(spec.dtype, spec.shape.len(), axis)?;
                Ok(self.trace.all_gather(tensor, axis))
            });
            gathered.collect()
        })
    }

    fn broadcast(&self, value: &mut dyn Nest, root: usize) -> Result<()> {
        trace::each(value, Ok, |tensors| {
            let tensors = tensors.into_iter();
            let own = tensors.map(|tensor| trace::of_replica(&self.trace, tensor, root));
            Ok(own.collect())
        })
    }

    fn all_reduce_tensor(&self, op: ReduceOp, tensor: &mut dyn Differentiable) -> Result<()> {
        tensor.all_reduce_captured(op, &self.trace)
    }

    /// As one operation, together with what the workers signal.
    fn all_reduce_gradients(&self, op: ReduceOp, gradients: &mut Gradients) -> Result<()> {
        let mut gradients = gradients.captured_mut()?;
        let mut tensors: Vec<_> = gradients.iter().map(|tensor| (**tensor).clone()).collect();
        let workers = self.workers.as_ref();
        tensors.extend(workers.map(|workers| signals(workers, &self.trace)));
        let mut reduced = self.trace.all_reduce(op, tensors)?.into_iter();
        for (gradient, tensor) in gradients.iter_mut().zip(&mut reduced) {
            **gradient = tensor;
        }
        if let (Some(workers), Some(sum)) = (workers, reduced.next()) {
            receive(workers, &self.trace, sum);
        }
        Ok(())
    }

    fn gather_numbers(&self, _: &[i64]) -> Result<Vec<Vec<i64>>> {
        let instead = "check gradients under a strategy that runs steps as they are";
        Err(Error::not_compilable("`recompute`", instead))
    }

    fn capture(&self) -> Option<&Arc<Trace>> {
        Some(&self.trace)
    }
}

/// The signals of a worker, on their way into a program.
fn signals(workers: &WorkerGroup, trace: &Trace) -> CapturedTensor {
    let spec = TensorSpec::vector(workers.signals().len(), DType::F32);
    let variable = Arc::new(workers.clone());
    trace.variable(variable, &spec, |used| used.current.clone())
}

/// What is done with the sum of all workers' signals after each call.
fn receive(workers: &WorkerGroup, trace: &Trace, sum: CapturedTensor) {
    let receiver = workers.clone();
    let receive = move |replica: usize, values: Vec<TensorData>| {
        let signals: Vec<f32> = values.iter().flat_map(TensorData::iter::<f32>).collect();
        if replica == 0 {
            receiver.receive(&signals);
        }
        Ok(())
    };
    let target = Arc::new(workers.clone());
    trace.defer(vec![LeafValue::Captured(sum)], target, Arc::new(receive));
}

impl Target for WorkerGroup {
    fn address(&self) -> Option<usize> {
        Some(WorkerGroup::address(self))
    }
}

impl HostVariable for WorkerGroup {
    fn values(&self, replicas: usize) -> Option<Vec<TensorData>> {
        let own = self.signals();
        let count = own.len();
        // The first replica speaks for the worker.
        let all = std::iter::once(own)
            .chain(std::iter::repeat(vec![0.0; count]))
            .take(replicas);
        Some(all.map(|one| TensorData::new(one, [count])).collect())
    }
}
