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
use crate::{Error, Gradients, Leaf, Nest, ReplicaRng, Result, WorkerGroup};

/// All replicas, as the captured step sees them.
#[derive(Debug)]
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
        trace::all_reduce(&self.trace, op, value)
    }

    fn all_gather(&self, value: &mut dyn Nest, axis: i64) -> Result<()> {
        trace::all_gather(&self.trace, value, axis)
    }

    fn broadcast(&self, value: &mut dyn Nest, root: usize) -> Result<()> {
        trace::broadcast(&self.trace, value, root)
    }

    fn all_reduce_tensor(&self, op: ReduceOp, tensor: &mut dyn Differentiable) -> Result<()> {
        tensor.all_reduce_captured(op, &self.trace)
    }

    /// As one operation, together with what the workers signal.
    fn all_reduce_gradients(&self, op: ReduceOp, gradients: &mut Gradients) -> Result<()> {
        let mut gradients = gradients.captured_mut()?;
        let mut tensors: Vec<_> = gradients.iter().map(|tensor| (**tensor).clone()).collect();
        let workers = self.workers.as_ref();
        tensors.extend(workers.map(|workers| Signals::input(workers, &self.trace)));
        let mut reduced = self.trace.all_reduce(op, tensors)?.into_iter();
        for (gradient, tensor) in gradients.iter_mut().zip(&mut reduced) {
            **gradient = tensor;
        }
        if let (Some(workers), Some(signals)) = (workers, reduced.next()) {
            Signals::receive(workers, &self.trace, signals);
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
        let (mut given, mut examples) = (Vec::new(), Vec::new());
        for value in values {
            match value.captured() {
                Some(tensor) => {
                    let spec = tensor.spec();
                    examples.push(TensorData::full_dtype(spec.shape, 0.0, spec.dtype));
                    given.push(Given::Captured(tensor));
                }
                None => {
                    let data = value.take()?;
                    examples.push(data.clone());
                    given.push(Given::Host(data));
                }
            }
        }
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

/// What a worker says with its gradients, as a variable of the compiled step.
struct Signals(WorkerGroup);

impl Signals {
    /// What it says, as a tensor that is to be summed with the gradients.
    fn input(workers: &WorkerGroup, trace: &Trace) -> CapturedTensor {
        let spec = TensorSpec::vector(workers.signals().len(), DType::F32);
        let host: Arc<dyn HostVariable> = Arc::new(Self(workers.clone()));
        trace.variable(&host, &spec)
    }

    /// Takes the sum after each call of the compiled step.
    fn receive(workers: &WorkerGroup, trace: &Trace, sum: CapturedTensor) {
        let receiver = workers.clone();
        let receive = move |replica: usize, values: Vec<TensorData>| {
            let signals: Vec<f32> = values.iter().flat_map(TensorData::iter::<f32>).collect();
            if replica == 0 {
                receiver.receive(&signals);
            }
            Ok(())
        };
        let target = Arc::new(Self(workers.clone()));
        trace.defer(vec![Given::Captured(sum)], target, Arc::new(receive));
    }
}

impl Target for Signals {
    fn address(&self) -> Option<usize> {
        Some(self.0.address())
    }
}

impl HostVariable for Signals {
    fn values(&self, replicas: usize) -> Option<Vec<TensorData>> {
        let own = self.0.signals();
        let count = own.len();
        // The first replica speaks for the worker.
        let all = std::iter::once(own).chain(std::iter::repeat(vec![0.0; count]));
        let all = all.take(replicas);
        Some(all.map(|one| TensorData::new(one, [count])).collect())
    }
}
