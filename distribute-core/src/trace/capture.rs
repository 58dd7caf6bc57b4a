//! One capture: the inputs it has declared so far and the operations of ours that it records.

use crate::burn_internals::router;
use std::fmt;
use std::panic::Location;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use crate::burn_internals::backend::ops::{BoolTensorOps, FloatTensorOps, IntTensorOps};
use crate::burn_internals::capture::{
    CaptureBackend, CaptureChannel, CaptureClient, CaptureDevice, TensorId,
};
use crate::burn_internals::ir::{
    CustomOpIr, FloatOperationIr, NumericOperationIr, OperationIr, TensorIr,
};
use crate::burn_internals::router::{RouterClient, RouterTensor};
use burn::tensor::{DType, Device, Tensor, TensorData};
use distribute_collectives::ReduceOp;
use rand::Rng;

use super::effect::{Apply, Effect, HostVariable, LeafValue, Target};
use super::{CapturedTensor, TensorSpec};
use crate::sync::lock;
use crate::{Error, Result};

/// The ids of the operations that a captured graph holds besides burn's own
/// ([`OperationIr::Custom`]).
pub mod ops {
    /// The sum over all replicas: `n` inputs, `n` outputs of the same shapes and types.
    pub const ALL_REDUCE_SUM: &str = "distribute.all_reduce_sum";
    /// The mean over all replicas.
    pub const ALL_REDUCE_MEAN: &str = "distribute.all_reduce_mean";
    /// The smallest value over all replicas.
    pub const ALL_REDUCE_MIN: &str = "distribute.all_reduce_min";
    /// The largest value over all replicas.
    pub const ALL_REDUCE_MAX: &str = "distribute.all_reduce_max";
    /// The product over all replicas.
    pub const ALL_REDUCE_PROD: &str = "distribute.all_reduce_prod";
    /// One input, and one output that holds the inputs of all replicas one after the other, along
    /// the one axis in which the shapes differ.
    pub const ALL_GATHER: &str = "distribute.all_gather";
    /// The replica's id: no input, one output of shape `[1]` and type i32.
    pub const REPLICA_ID: &str = "distribute.replica_id";
}

/// The device that a strategy captures steps on; captures follow one another.
#[derive(Debug, Default)]
pub struct TraceDevice {
    device: Mutex<CaptureDevice>,
    outside_uses: AtomicU64,
}

impl TraceDevice {
    /// Notes that a metric or variable was made, read or reset: steps may work on others from now
    /// on.
    pub(crate) fn note_outside_use(&self) {
        self.outside_uses.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn outside_uses(&self) -> u64 {
        self.outside_uses.load(Ordering::Relaxed)
    }

    /// A new device. burn numbers devices with 16 bits and reuses no number: keep one per strategy.
    pub fn new() -> Self {
        Self::default()
    }

    /// Runs `body` while nothing else is captured on this device.
    pub(crate) fn lock(&self) -> std::sync::MutexGuard<'_, CaptureDevice> {
        lock(&self.device)
    }
}

/// Where an input of the program gets its value from.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Source {
    /// A tensor of the arguments, in the order in which they are walked.
    Leaf(usize),
    /// A coefficient of the optimizer of the training state `training_state`.
    Coefficient {
        training_state: usize,
        /// How many updates of this call come before.
        update: u64,
        index: usize,
        /// The learning rate that the step has set itself.
        learning_rate: Option<f64>,
    },
    /// The loss scale of the training state with this number.
    LossScale(usize),
    /// The key of the random numbers, another one in every call.
    RandomKey,
    /// The value of a variable, by the order in which the step used them first.
    Variable(usize),
}

/// An input of the program.
#[derive(Debug, Clone)]
pub(crate) struct Input {
    pub(crate) tensor: CapturedTensor,
    pub(crate) source: Source,
}

/// A capture that is under way.
pub struct Trace {
    client: CaptureClient,
    device: Device,
    num_replicas: usize,
    notes: Mutex<Notes>,
}

/// What the step has done so far, beside operations.
#[derive(Default)]
struct Notes {
    inputs: Vec<Input>,
    seed: u64,
    replica_id_used: bool,
    /// How often the number of updates was read and not used for random numbers.
    steps_read: usize,
    /// Whether a loss scale that changes was read.
    is_scale_read: bool,
    /// Whether numbers drawn on the host go into the program's own seed.
    is_seeding: bool,
    /// Where the step got the random stream from which it drew numbers on the host.
    drawn_on_host: Option<&'static Location<'static>>,
    /// What the step has handed to metrics.
    deferred: Vec<Effect<LeafValue>>,
    variables: Vec<TracedVariable>,
}

/// A variable in a capture.
pub(crate) struct TracedVariable {
    variable: Arc<dyn HostVariable>,
    /// The value at this point of the step.
    pub(crate) current: CapturedTensor,
    /// Puts the value into the host's copies after each call, if the step has changed it.
    pub(crate) store: Option<Apply>,
}

impl Trace {
    /// Inside of a capture scope of `device`.
    pub(crate) fn new(device: CaptureDevice, num_replicas: usize) -> Self {
        let client = router::get_client::<CaptureChannel>(&device);
        let id = client.create_empty_handle();
        let probe = RouterTensor::new(id, [1].into(), DType::F32, client.clone());
        let mut device = Tensor::<1>::from_primitive::<CaptureBackend>(probe).device();
        // As on the CPU, where integers have 32 bits. Fails after the first capture: already set.
        let types = (burn::tensor::FloatDType::F32, burn::tensor::IntDType::I32);
        let _already_set = device.configure(types);
        Self {
            client,
            device: device.autodiff(),
            num_replicas,
            notes: Mutex::default(),
        }
    }

    /// burn's capture device, with autodiff.
    pub(crate) fn device(&self) -> &Device {
        &self.device
    }

    pub(crate) fn num_replicas(&self) -> usize {
        self.num_replicas
    }

    /// A new tensor of the graph that nothing computes yet.
    fn tensor(&self, spec: &TensorSpec) -> CapturedTensor {
        let id = self.client.create_empty_handle();
        let client = self.client.clone();
        CapturedTensor(RouterTensor::new(id, spec.into(), spec.dtype, client))
    }

    fn notes(&self) -> MutexGuard<'_, Notes> {
        lock(&self.notes)
    }

    /// Declares an input.
    pub(crate) fn input(&self, source: Source, spec: &TensorSpec) -> CapturedTensor {
        let tensor = self.tensor(spec);
        self.notes().inputs.push(Input {
            tensor: tensor.clone(),
            source,
        });
        tensor
    }

    /// All inputs declared so far.
    pub(crate) fn inputs(&self) -> Vec<Input> {
        self.notes().inputs.clone()
    }

    /// Notes that the step has read a loss scale that changes.
    pub(crate) fn read_loss_scale(&self) {
        self.notes().is_scale_read = true;
    }

    /// Notes that the step has asked for its replica's number.
    pub(crate) fn use_replica_id(&self) {
        self.notes().replica_id_used = true;
    }

    /// Notes that the step has read the number of updates.
    pub(crate) fn read_step(&self) {
        self.notes().steps_read += 1;
    }

    /// Notes that one of the numbers read was for random numbers, which change in every call.
    pub(crate) fn use_step_for_random_numbers(&self) {
        let mut notes = self.notes();
        notes.steps_read = notes.steps_read.saturating_sub(1);
    }

    /// Hands values to something on the host, after each call.
    pub(crate) fn defer(&self, given: Vec<LeafValue>, target: Arc<dyn Target>, apply: Apply) {
        self.notes().deferred.push(Effect {
            leaves: given,
            target,
            apply,
        });
    }

    /// What was handed over, and the new values of variables.
    pub(crate) fn deferred(&self) -> Vec<Effect<LeafValue>> {
        let notes = self.notes();
        let stored = notes.variables.iter().filter_map(|variable| {
            Some(Effect {
                leaves: vec![LeafValue::Captured(variable.current.clone())],
                target: Arc::clone(&variable.variable) as Arc<dyn Target>,
                apply: Arc::clone(variable.store.as_ref()?),
            })
        });
        notes.deferred.iter().cloned().chain(stored).collect()
    }

    /// The variables that the step uses.
    pub(crate) fn variables(&self) -> Vec<Arc<dyn HostVariable>> {
        let notes = self.notes();
        let used = notes.variables.iter();
        used.map(|used| Arc::clone(&used.variable)).collect()
    }

    /// Visits a variable, which is an input of the program from its first use on.
    pub(crate) fn variable<R>(
        &self,
        variable: Arc<dyn HostVariable>,
        spec: &TensorSpec,
        visit: impl FnOnce(&mut TracedVariable) -> R,
    ) -> R {
        let is_it = |used: &TracedVariable| used.variable.address() == variable.address();
        let known = self.notes().variables.iter().position(is_it);
        let index = known.unwrap_or_else(|| {
            let index = self.notes().variables.len();
            let current = self.input(Source::Variable(index), spec);
            self.notes().variables.push(TracedVariable {
                variable,
                current,
                store: None,
            });
            index
        });
        visit(&mut self.notes().variables[index])
    }

    /// A tensor of the graph with this value.
    pub(crate) fn constant(&self, data: TensorData) -> CapturedTensor {
        let device = self.client.device();
        CapturedTensor(match data.dtype() {
            dtype if dtype.is_float() => CaptureBackend::float_from_data(data, &device),
            dtype if dtype.is_bool() => CaptureBackend::bool_from_data(data, &device),
            _ => CaptureBackend::int_from_data(data, &device),
        })
    }

    /// Concatenates a tensor over all replicas along an axis that it has.
    pub(crate) fn all_gather(&self, tensor: CapturedTensor, axis: usize) -> CapturedTensor {
        let mut spec = tensor.spec();
        if self.num_replicas == 1 || spec.shape[axis] == 0 {
            return tensor;
        }
        spec.shape[axis] *= self.num_replicas;
        self.record(ops::ALL_GATHER, vec![tensor], &[spec])
            .swap_remove(0)
    }

    /// Records an operation of ours.
    fn record(
        &self,
        id: &'static str,
        inputs: Vec<CapturedTensor>,
        outputs: &[TensorSpec],
    ) -> Vec<CapturedTensor> {
        let inputs: Vec<TensorIr> = inputs.into_iter().map(|input| input.0.into_ir()).collect();
        let results: Vec<_> = outputs.iter().map(|spec| self.tensor(spec)).collect();
        let outputs: Vec<_> = results
            .iter()
            .zip(outputs)
            .map(|(result, spec)| TensorIr::uninit(result.id(), spec.into(), spec.dtype))
            .collect();
        let operation = CustomOpIr::new(id, &inputs, &outputs);
        self.client.register_op(OperationIr::Custom(operation));
        results
    }

    /// Reduces tensors over all replicas, as one operation of the graph.
    pub(crate) fn all_reduce(
        &self,
        op: ReduceOp,
        tensors: Vec<CapturedTensor>,
    ) -> Result<Vec<CapturedTensor>> {
        let id = match op {
            ReduceOp::Sum => ops::ALL_REDUCE_SUM,
            ReduceOp::Mean => ops::ALL_REDUCE_MEAN,
            ReduceOp::Min => ops::ALL_REDUCE_MIN,
            ReduceOp::Max => ops::ALL_REDUCE_MAX,
            ReduceOp::Prod => ops::ALL_REDUCE_PROD,
        };
        let specs: Vec<_> = tensors.iter().map(CapturedTensor::spec).collect();
        for spec in &specs {
            let integers = spec.dtype.is_int() || spec.dtype.is_uint();
            if spec.dtype.is_bool() || (op == ReduceOp::Mean && integers) {
                return Err(Error::dtype("all_reduce", spec.dtype));
            }
        }
        if self.num_replicas == 1 || tensors.is_empty() {
            return Ok(tensors);
        }
        Ok(self.record(id, tensors, &specs))
    }

    /// [`all_reduce`](Self::all_reduce) of one tensor.
    pub(crate) fn all_reduce_one(
        &self,
        op: ReduceOp,
        tensor: CapturedTensor,
    ) -> Result<CapturedTensor> {
        Ok(self.all_reduce(op, vec![tensor])?.swap_remove(0))
    }

    /// The replica's id as a tensor of shape `[1]`.
    pub(crate) fn replica_id(&self) -> CapturedTensor {
        let spec = TensorSpec::vector(1, DType::I32);
        self.record(ops::REPLICA_ID, Vec::new(), &[spec])
            .swap_remove(0)
    }

    /// Mixes a step's own seed in, so that the same operations give other random numbers.
    pub(crate) fn seed_from(&self, rng: &mut (impl Rng + ?Sized)) {
        self.notes().is_seeding = true;
        let seed = rng.next_u64();
        let mut notes = self.notes();
        notes.is_seeding = false;
        notes.seed = notes.seed.rotate_left(17) ^ seed;
    }

    /// Notes that the step has drawn a number from a stream of its replica.
    pub(crate) fn drawn_on_host(&self, stream: &'static Location<'static>) {
        let mut notes = self.notes();
        if !notes.is_seeding {
            notes.drawn_on_host.get_or_insert(stream);
        }
    }

    /// Refuses what one program for all steps and replicas cannot do, and warns of what it keeps.
    pub(crate) fn check(&self) -> Result<()> {
        let notes = self.notes();
        if notes.replica_id_used && self.num_replicas > 1 {
            let instead = "one program serves all replicas; `ctx.replica_id_tensor()` is the \
                           number as a tensor";
            return Err(Error::not_compilable("`ctx.replica_id()`", instead));
        }
        if let Some(place) = notes.drawn_on_host {
            let what = format!("numbers of the stream that it has asked for with `rng` at {place}");
            return Err(Error::RandomOnHost { what });
        }
        if notes.steps_read > 0 {
            tracing::warn!(
                "the step reads the number of updates while it is captured: the compiled program \
                 keeps the number of this call"
            );
        }
        if notes.is_scale_read {
            tracing::warn!(
                "the step reads a dynamic loss scale while it is captured: the compiled program \
                 keeps the number of this call; read it outside of the step, `scale_loss` is what \
                 follows it"
            );
        }
        Ok(())
    }

    /// All that was [mixed in](Self::seed_from).
    pub(crate) fn mixed_seed(&self) -> u64 {
        self.notes().seed
    }

    /// Makes every input known to burn, which refuses to declare one that no operation uses, and
    /// the key of random numbers one of them. Returns all of them. The operation is
    /// [taken out](is_touch) of the graph again.
    pub(crate) fn touch_inputs(&self) -> Vec<TensorId> {
        let key = TensorSpec::vector(2, DType::I32);
        self.input(Source::RandomKey, &key);
        let inputs = self.inputs().into_iter();
        let inputs: Vec<_> = inputs.map(|input| input.tensor).collect();
        let ids = inputs.iter().map(CapturedTensor::id).collect();
        self.record(TOUCH, inputs, &[]);
        ids
    }
}

/// Uses all inputs and computes nothing.
const TOUCH: &str = "distribute.inputs";

/// Whether an operation is the one of [`Trace::touch_inputs`].
pub(crate) fn is_touch(operation: &OperationIr) -> bool {
    matches!(operation, OperationIr::Custom(custom) if custom.id == TOUCH)
}

impl fmt::Debug for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Trace")
            .field("num_replicas", &self.num_replicas)
            .field("inputs", &self.notes().inputs.len())
            .finish_non_exhaustive()
    }
}

/// Whether an operation makes random numbers.
pub(crate) fn is_random(operation: &OperationIr) -> bool {
    matches!(
        operation,
        OperationIr::Float(_, FloatOperationIr::Random(_))
            | OperationIr::NumericInt(_, NumericOperationIr::IntRandom(_))
    )
}
