//! What a tracing strategy implements, and what core hands to it.

use std::any::Any;
use std::fmt::Debug;
use std::sync::{Arc, Mutex};
use std::thread::{self, ThreadId};

use crate::burn_internals::capture::{CapturedGraph, TensorId};
use burn::tensor::TensorData;

use super::capture::Source;
use super::check::Check;
use super::effect::{HostSide, ResultLeaf};
use super::{Counters, Guard, StepKey, TensorSpec, TraceDevice};
use crate::sync::lock;
use crate::{Error, Result};

/// How a strategy runs captured steps: what [`Strategy::tracer`](crate::Strategy::tracer) returns.
///
/// [`run`](crate::StrategyExt::run) asks [`find`](Self::find) for the program of a call. If there
/// is none it captures the step, has it [compiled](Self::compile) and hands the result to
/// [`keep`](Self::keep). A tracer that keeps no programs writes neither of the two.
pub trait Tracer: Send + Sync + Debug {
    /// The device that steps are captured on.
    fn device(&self) -> &TraceDevice;

    /// The program of an earlier call with an equal key.
    fn find(&self, _key: &StepKey) -> Option<Arc<StepProgram>> {
        None
    }

    /// Called before a step is captured again.
    ///
    /// # Errors
    /// [`Error::TooManyPrograms`](crate::Error::TooManyPrograms) if the step was compiled
    /// too often already.
    fn admit(&self, _key: &StepKey) -> Result<()> {
        Ok(())
    }

    /// Compiles a step for all replicas.
    ///
    /// # Errors
    /// An operation that is not covered, and the compiler's own errors.
    fn compile(&self, step: CapturedStep) -> Result<Box<dyn Executable>>;

    /// Whether programs are compared with their steps now and then, to find steps that capture
    /// values which change.
    fn checks_steps(&self) -> bool {
        true
    }

    /// Remembers a program for later calls.
    fn keep(&self, _key: StepKey, _program: Arc<StepProgram>) {}

    /// Copies a tensor to the devices of all replicas.
    ///
    /// # Errors
    /// If the devices have no memory left or do not know the element type.
    fn upload(&self, data: TensorData) -> Result<Arc<dyn DeviceTensor>>;

    /// Copies one tensor to the device of each local replica: values of their own, of one shape and
    /// element type.
    ///
    /// # Errors
    /// As [`upload`](Self::upload); by default if there are several.
    fn upload_each(&self, mut data: Vec<TensorData>) -> Result<Arc<dyn DeviceTensor>> {
        match (data.pop(), data.is_empty()) {
            (Some(only), true) => self.upload(only),
            _ => Err(Error::invalid(
                "this strategy cannot continue between two micro-batches with several replicas",
            )),
        }
    }
}

/// A tensor in the memory of all replicas' devices: one buffer per replica, with equal values or
/// each with its own.
pub trait DeviceTensor: Any + Send + Sync + Debug {
    /// Shape and element type on one replica.
    fn spec(&self) -> TensorSpec;

    /// Copies one replica's values to the host; waits for them.
    ///
    /// # Errors
    /// The failure of the program that computes them, or of the copy.
    fn read(&self, replica: usize) -> Result<TensorData>;
}

/// A mirrored value's tensors on the devices.
#[derive(Debug, Clone, Default)]
pub(crate) struct OnDevice {
    pub(crate) tensors: Vec<Arc<dyn DeviceTensor>>,
    /// Whether the host's copy is older.
    pub(crate) is_newer: bool,
    /// The same for steps that only read, where these differ: with the mean of the replicas'
    /// running statistics.
    pub(crate) to_read: Option<Vec<Arc<dyn DeviceTensor>>>,
}

/// A compiled step.
pub trait Executable: Send + Sync + Debug {
    /// Runs the program once on all replicas; may return before they are done.
    ///
    /// `arguments` are in the order of [`CapturedStep::inputs`], the results in that of
    /// [`CapturedStep::outputs`]. Donated arguments cannot be used again, whatever happens.
    ///
    /// # Errors
    /// If an argument does not fit, the device has no memory left, or the program fails.
    fn execute(&self, arguments: Vec<Argument>) -> Result<Vec<Arc<dyn DeviceTensor>>>;
}

/// One argument of a program.
#[derive(Debug, Clone)]
pub enum Argument {
    /// A tensor that is on the devices already.
    Device(Arc<dyn DeviceTensor>),
    /// The parts of a batch, one per replica.
    PerReplica(Arc<Vec<TensorData>>),
    /// The same value for every replica.
    Same(TensorData),
}

/// A step as a graph, with what its inputs and outputs are.
#[derive(Debug, Clone)]
pub struct CapturedStep {
    /// burn's graph and the values of its constants. `graph.inputs` and `graph.outputs` are those
    /// of [`inputs`](Self::inputs) and [`outputs`](Self::outputs), in the same order.
    pub graph: CapturedGraph,
    /// The inputs that the graph uses.
    pub inputs: Vec<StepInput>,
    /// The outputs, each tensor once.
    pub outputs: Vec<StepOutput>,
    /// The input that random operations take their key from, if there are any: two integers that
    /// are others in every call.
    pub random_key: Option<TensorId>,
    /// The replicas that run the program together.
    pub num_replicas: usize,
}

/// An input of a [`CapturedStep`].
#[derive(Debug, Clone)]
pub struct StepInput {
    /// The tensor in the graph.
    pub id: TensorId,
    /// Shape and element type on one replica.
    pub spec: TensorSpec,
    /// What it is.
    pub role: InputRole,
    /// What it is called in the model, such as `conv1.weight`; empty if it has no name.
    pub name: String,
}

/// What an input is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum InputRole {
    /// A tensor of a training state or another mirrored value; stays on the device.
    State,
    /// A tensor of the batch: each replica has its own.
    Batch,
    /// A number that the host computes for every call: learning rate, bias correction, random key.
    Host,
}

/// An output of a [`CapturedStep`].
#[derive(Debug, Clone)]
pub struct StepOutput {
    /// The tensor in the graph.
    pub id: TensorId,
    /// Shape and element type on one replica.
    pub spec: TensorSpec,
    /// The input whose memory it takes over: the old value of the same state tensor, which is not
    /// used after this call.
    pub donated_from: Option<usize>,
}

/// A captured step, and the program that it is to become.
pub(crate) struct NewProgram {
    pub(crate) step: CapturedStep,
    pub(crate) program: StepProgram,
}

/// A compiled step and what core needs to know to run it again without running the closure.
#[derive(Debug)]
pub struct StepProgram {
    /// `None` until the step is compiled.
    pub(crate) executable: Option<Box<dyn Executable>>,
    /// Where the arguments come from, in the order of the inputs.
    pub(crate) arguments: Vec<Source>,
    /// The mutable mirrored arguments after the step, in argument order.
    pub(crate) states: Vec<StateChange>,
    /// Reports running statistics that are not finite, if the states have any.
    pub(crate) guard: Option<Guard<ResultLeaf>>,
    /// A result whose leaves are missing.
    pub(crate) skeleton: Mutex<Box<dyn Any + Send>>,
    /// Gives each step random numbers of its own.
    pub(crate) seed: u64,
    /// The metrics and variables, which may differ from call to call, and the thread that captured
    /// them.
    pub(crate) host: Mutex<(ThreadId, Arc<HostSide>)>,
    /// Identifies what the step computes; see `step::digest`.
    pub(crate) digest: u64,
    pub(crate) check: Check,
    pub(crate) draws: Draws,
}

/// Counts calls, so that each call draws other random numbers.
#[derive(Debug, Default)]
pub(crate) struct Draws(Mutex<(Vec<u64>, u64)>);

impl Draws {
    /// How many calls there were before with the same positions, which a training state leaves
    /// behind with every update and micro-batch.
    pub(crate) fn repeated(&self, positions: &[u64]) -> u64 {
        let mut last = lock(&self.0);
        let (known, calls) = &mut *last;
        if *calls == 0 || known.as_slice() != positions {
            *known = positions.to_vec();
            *calls = 0;
        }
        *calls += 1;
        *calls - 1
    }
}

impl StepProgram {
    pub(crate) fn host_side(&self) -> Arc<HostSide> {
        Arc::clone(&lock(&self.host).1)
    }

    /// The host's side of the newest capture, and whether the calling thread captured it.
    pub(crate) fn newest_host_side(&self) -> (Arc<HostSide>, bool) {
        let (captured_by, host) = &*lock(&self.host);
        (Arc::clone(host), *captured_by == thread::current().id())
    }

    /// Takes over the host's side of a newer capture of the calling thread.
    pub(crate) fn adopt(&self, host: &Arc<HostSide>) {
        *lock(&self.host) = (thread::current().id(), Arc::clone(host));
    }
}

/// What a step does to one mirrored argument.
#[derive(Debug)]
pub(crate) struct StateChange<T = ResultLeaf> {
    /// The host's numbers before and after the step, per training state in it.
    pub(crate) numbers: Vec<(Counters, Counters)>,
    /// For each of these states whether the program makes its update, see
    /// [`HostState::applies`](super::HostState).
    pub(crate) applies: Vec<Option<T>>,
    /// The tensors after the step.
    pub(crate) tensors: Vec<T>,
    /// Where the tensors of before the step are after a call that a [`Guard`] has taken back.
    pub(crate) before: Vec<T>,
}
