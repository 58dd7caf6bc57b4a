//! A step that is captured: its calls are operations of a graph that stands for all replicas.

use std::panic::Location;
use std::sync::Arc;

use burn::tensor::{DType, Device, Int, Tensor, TensorData};
use burn_capture::CaptureBackend;
use distribute_collectives::ReduceOp;

use super::differentiable::Differentiable;
use super::peers::Peers;
use crate::trace::{
    self, CapturedTensor, Given, HostVariable, Receiver, Target, TensorSpec, Trace,
};
use crate::{Error, Gradients, Leaf, Nest, ReplicaRng, Result, WorkerGroup, host_reduce};

/// All replicas, as the captured step sees them.
pub(crate) struct Captured {
    trace: Arc<Trace>,
    workers: Option<WorkerGroup>,
}

impl Captured {
    pub(crate) fn new(trace: Arc<Trace>, workers: Option<WorkerGroup>) -> Self {
        Self { trace, workers }
    }
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

    fn refuse(&self, what: &str) -> Result<()> {
        Err(Error::not_compilable(
            format!("`{what}`"),
            "return the value from the step and call the strategy's `gather` or `reduce`, or use \
             `all_reduce`",
        ))
    }

    fn refuse_update(&self) -> Result<()> {
        let instead = "pass the training state to `run` as `&mut Mirrored<TrainState<_>>`";
        Err(Error::not_compilable(
            "a training state from outside of the step",
            instead,
        ))
    }

    fn give(&self, _: usize, values: &mut [&mut dyn Leaf], receiver: Receiver<'_>) -> Result<()> {
        let given = values.iter_mut().map(|value| Given::of(*value));
        let given = given.collect::<Result<Vec<_>>>()?;
        let examples: Vec<_> = given.iter().map(Given::example).collect();
        // Shapes that do not fit are an error where the step is, not after its first call.
        (receiver.check)(&examples)?;
        self.trace.defer(given, receiver.target, receiver.apply);
        Ok(())
    }

    fn use_replica_id(&self) {
        self.trace.use_replica_id();
    }

    fn replica_id_tensor(&self, _: usize, _: &Device) -> Tensor<1, Int> {
        Tensor::from_primitive::<CaptureBackend>(self.trace.replica_id().0)
    }

    /// The program's random numbers are others in every step and on every replica; the program
    /// itself is not.
    fn rng(&self, seed: u64, _: u64, _: usize, place: &'static Location<'static>) -> ReplicaRng {
        self.trace.use_step_for_random_numbers();
        ReplicaRng::captured(seed, &self.trace, place)
    }

    fn capture(&self) -> Option<&Arc<Trace>> {
        Some(&self.trace)
    }
}

/// The signals of a worker, on their way into a program.
fn signals(workers: &WorkerGroup, trace: &Trace) -> CapturedTensor {
    let spec = TensorSpec::vector(workers.signals().len(), DType::F32);
    let host: Arc<dyn HostVariable> = Arc::new(workers.clone());
    trace.variable(&host, &spec)
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
    trace.defer(vec![Given::Captured(sum)], target, Arc::new(receive));
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
        let all = std::iter::once(own).chain(std::iter::repeat(vec![0.0; count]));
        let all = all.take(replicas);
        Some(all.map(|one| TensorData::new(one, [count])).collect())
    }
}
