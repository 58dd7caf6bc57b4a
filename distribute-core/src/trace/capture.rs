//! One capture: the inputs it has declared so far and the operations of ours that it records.

use std::fmt;
use std::panic::Location;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use burn::tensor::{DType, Device, Tensor, TensorData};
use burn_backend::ops::{BoolTensorOps, FloatTensorOps, IntTensorOps};
use burn_capture::{CaptureBackend, CaptureChannel, CaptureClient, CaptureDevice, TensorId};
use burn_ir::{CustomOpIr, FloatOperationIr, NumericOperationIr, OperationIr, TensorIr};
use burn_router::{RouterClient, RouterTensor};
use distribute_collectives::ReduceOp;
use rand::Rng;

use super::effect::{Apply, Deferred, Given, HostVariable, Target};
use super::tensor::shape_of;
use super::{CapturedTensor, TensorSpec};
use crate::sync::lock;
use crate::{Error, Result};

/// The ids of the operations that a captured graph holds besides burn's own
/// ([`burn_ir::OperationIr::Custom`]).
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
    /// One input, and one output that holds those of all replicas one after the other, along the
    /// one axis in which the shapes differ.
    pub const ALL_GATHER: &str = "distribute.all_gather";
    /// The replica's id: no input, one output of shape `[1]` and type i32.
    pub const REPLICA_ID: &str = "distribute.replica_id";
}

/// The device that a strategy captures steps on; captures follow one another.
#[derive(Debug, Default)]
pub struct TraceDevice {
    device: Mutex<CaptureDevice>,
    generation: AtomicU64,
}

impl TraceDevice {
    /// Notes that a metric or variable was made, read or reset: steps may work on others from now
    /// on.
    pub(crate) fn next_generation(&self) {
        self.generation.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Relaxed)
    }

    /// A new one. burn numbers them with 16 bits and never again: keep one per strategy.
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
    /// A coefficient of the optimizer of the training state `host`.
    Coefficient {
        host: usize,
        /// How many updates of this call come before.
        update: u64,
        index: usize,
        /// The learning rate that the step has set itself.
        learning_rate: Option<f64>,
    },
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
    inputs: Mutex<Vec<Input>>,
    seed: AtomicU64,
    replica_id_used: AtomicBool,
    /// How often the number of updates was read and not used for random numbers.
    steps_read: AtomicUsize,
    /// Whether numbers that the host draws are for the program's own seed.
    is_seeding: AtomicBool,
    /// Where the stream was asked for from which the step has drawn on the host.
    drawn_on_host: Mutex<Option<&'static Location<'static>>>,
    /// What the step has handed to metrics.
    deferred: Mutex<Vec<Deferred>>,
    variables: Mutex<Vec<TracedVariable>>,
}

/// A variable in a capture.
struct TracedVariable {
    host: Arc<dyn HostVariable>,
    current: CapturedTensor,
    /// Stores the value, if the step has changed it.
    store: Option<Apply>,
}

impl Trace {
    /// Inside of a capture scope of `device`.
    pub(crate) fn new(device: CaptureDevice, num_replicas: usize) -> Self {
        let client = burn_router::get_client::<CaptureChannel>(&device);
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
            inputs: Mutex::default(),
            seed: AtomicU64::new(0),
            replica_id_used: AtomicBool::new(false),
            steps_read: AtomicUsize::new(0),
            is_seeding: AtomicBool::new(false),
            drawn_on_host: Mutex::default(),
            deferred: Mutex::default(),
            variables: Mutex::default(),
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
        CapturedTensor(RouterTensor::new(id, shape_of(spec), spec.dtype, client))
    }

    /// Declares an input.
    pub(crate) fn input(&self, source: Source, spec: &TensorSpec) -> CapturedTensor {
        let tensor = self.tensor(spec);
        lock(&self.inputs).push(Input {
            tensor: tensor.clone(),
            source,
        });
        tensor
    }

    /// All inputs declared so far.
    pub(crate) fn inputs(&self) -> Vec<Input> {
        lock(&self.inputs).clone()
    }

    /// The coefficients of one update, as inputs of shape `[1]`.
    pub(crate) fn coefficients(
        &self,
        host: usize,
        update: u64,
        count: usize,
        learning_rate: Option<f64>,
    ) -> Vec<Tensor<1>> {
        let spec = TensorSpec {
            shape: vec![1],
            dtype: DType::F32,
        };
        let input = |index| {
            let source = Source::Coefficient {
                host,
                update,
                index,
                learning_rate,
            };
            self.input(source, &spec).float()
        };
        (0..count).map(input).collect()
    }

    /// Notes that the step has asked for its replica's number.
    pub(crate) fn use_replica_id(&self) {
        self.replica_id_used.store(true, Ordering::Relaxed);
    }

    /// Notes that the step has read the number of updates.
    pub(crate) fn read_step(&self) {
        self.steps_read.fetch_add(1, Ordering::Relaxed);
    }

    /// Notes that one of the numbers read was for random numbers, which change in every call.
    pub(crate) fn use_step_for_random_numbers(&self) {
        let less = |count: usize| Some(count.saturating_sub(1));
        let _previous = self
            .steps_read
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }

    pub(crate) fn replica_id_used(&self) -> bool {
        self.replica_id_used.load(Ordering::Relaxed)
    }

    pub(crate) fn step_was_read(&self) -> bool {
        self.steps_read.load(Ordering::Relaxed) > 0
    }

    /// Hands values to something on the host, after each call.
    pub(crate) fn defer(&self, given: Vec<Given>, target: Arc<dyn Target>, apply: Apply) {
        lock(&self.deferred).push(Deferred {
            given,
            target,
            apply,
        });
    }

    /// What was handed over, and the new values of variables.
    pub(crate) fn deferred(&self) -> Vec<Deferred> {
        let mut deferred = lock(&self.deferred).clone();
        for variable in lock(&self.variables).iter() {
            if let Some(store) = &variable.store {
                deferred.push(Deferred {
                    given: vec![Given::Captured(variable.current.clone())],
                    target: Arc::new(Address(variable.host.clone())),
                    apply: Arc::clone(store),
                });
            }
        }
        deferred
    }

    /// The variables that the step uses.
    pub(crate) fn variables(&self) -> Vec<Arc<dyn HostVariable>> {
        let variables = lock(&self.variables);
        variables
            .iter()
            .map(|used| Arc::clone(&used.host))
            .collect()
    }

    /// The value that a variable has at this point of the step.
    pub(crate) fn variable(
        &self,
        host: &Arc<dyn HostVariable>,
        spec: &TensorSpec,
    ) -> CapturedTensor {
        let mut variables = lock(&self.variables);
        let same = |used: &&TracedVariable| used.host.address() == host.address();
        if let Some(used) = variables.iter().find(same) {
            return used.current.clone();
        }
        let current = self.input(Source::Variable(variables.len()), spec);
        variables.push(TracedVariable {
            host: Arc::clone(host),
            current: current.clone(),
            store: None,
        });
        current
    }

    /// Gives a variable another value, which `store` puts into the host's copies after each call.
    pub(crate) fn set_variable(
        &self,
        host: &Arc<dyn HostVariable>,
        value: CapturedTensor,
        store: Apply,
    ) {
        self.variable(host, &value.spec());
        let mut variables = lock(&self.variables);
        let same = |used: &&mut TracedVariable| used.host.address() == host.address();
        if let Some(used) = variables.iter_mut().find(same) {
            used.current = value;
            used.store = Some(store);
        }
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
        let mut gathered = self.record(ops::ALL_GATHER, vec![tensor], &[spec]);
        gathered.swap_remove(0)
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
            .map(|(result, spec)| TensorIr::uninit(result.id(), shape_of(spec), spec.dtype))
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
                return Err(Error::DType {
                    op: "all_reduce",
                    dtype: spec.dtype.name().to_string(),
                });
            }
        }
        if self.num_replicas == 1 || tensors.is_empty() {
            return Ok(tensors);
        }
        Ok(self.record(id, tensors, &specs))
    }

    /// The replica's id as a tensor of shape `[1]`.
    pub(crate) fn replica_id(&self) -> CapturedTensor {
        let spec = TensorSpec {
            shape: vec![1],
            dtype: DType::I32,
        };
        let mut result = self.record(ops::REPLICA_ID, Vec::new(), &[spec]);
        result.swap_remove(0)
    }

    /// Makes other random numbers of the same operations, for steps that have a seed of their own.
    pub(crate) fn seed_from(&self, rng: &mut (impl Rng + ?Sized)) {
        self.is_seeding.store(true, Ordering::Relaxed);
        let seed = rng.next_u64();
        self.is_seeding.store(false, Ordering::Relaxed);
        let mixed = self.seed.load(Ordering::Relaxed).rotate_left(17) ^ seed;
        self.seed.store(mixed, Ordering::Relaxed);
    }

    /// Notes that the step has drawn a number from a stream of its replica.
    pub(crate) fn drawn_on_host(&self, stream: &'static Location<'static>) {
        if !self.is_seeding.load(Ordering::Relaxed) {
            lock(&self.drawn_on_host).get_or_insert(stream);
        }
    }

    /// # Errors
    /// [`Error::RandomOnHost`] if the step has drawn numbers from a stream of its replica.
    pub(crate) fn refuse_draws_on_host(&self) -> Result<()> {
        match *lock(&self.drawn_on_host) {
            None => Ok(()),
            Some(place) => Err(Error::RandomOnHost {
                what: format!("numbers of the stream that it has asked for with `rng` at {place}"),
            }),
        }
    }

    /// All that was [mixed in](Self::seed_from).
    pub(crate) fn mixed_seed(&self) -> u64 {
        self.seed.load(Ordering::Relaxed)
    }

    /// Makes every input known to burn, which refuses to declare one that no operation uses, and
    /// the key of random numbers one of them. Returns all of them. The operation is
    /// [taken out](is_touch) of the graph again.
    pub(crate) fn touch_inputs(&self) -> Vec<TensorId> {
        let key = TensorSpec {
            shape: vec![2],
            dtype: DType::I32,
        };
        self.input(Source::RandomKey, &key);
        let inputs = self.inputs().into_iter().map(|input| input.tensor);
        let inputs: Vec<_> = inputs.collect();
        let ids = inputs.iter().map(CapturedTensor::id).collect();
        self.record(TOUCH, inputs, &[]);
        ids
    }
}

/// A variable as what an effect changes.
struct Address(Arc<dyn HostVariable>);

impl Target for Address {
    fn address(&self) -> Option<usize> {
        self.0.address()
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
            .field("inputs", &lock(&self.inputs).len())
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
