//! From captured steps to programs on all devices.

use std::fmt;
use std::sync::{Arc, Mutex, Weak};
use std::time::Instant;

use burn::tensor::TensorData;
use distribute_core::collectives::OperationHeader;
use distribute_core::trace::{
    Argument, CapturedStep, DeviceTensor, Executable, InputRole, StepKey, StepOutput, StepProgram,
    TensorSpec, TraceDevice, Tracer,
};

use distribute_core::Result;

use super::TpuError;
use super::array::{DeviceArray, array, buffer};
use super::context::ExecutionContext;
use super::step_check::number_of;
use crate::lower::{
    CPU_COMPILER_OPTIONS, CollectiveCall, GraphInput, LowerOptions, Lowered, RandomKey, Target,
    lower,
};
use crate::pjrt::{self, Buffer, CompileOptions, ExecuteOptions, LoadedExecutable};
use crate::stablehlo::{Precision, TensorType};
use crate::sync::lock;
use crate::trace::{ProgramLimits, Programs};

/// Compiles steps for the devices of a strategy and keeps the programs.
pub(crate) struct XlaTracer {
    capture: TraceDevice,
    pub(crate) programs: Programs,
    context: Arc<ExecutionContext>,
    /// The compiled program, for reports about its cost.
    compiled: Mutex<Vec<Weak<LoadedExecutable>>>,
}

impl XlaTracer {
    pub(crate) fn new(context: ExecutionContext, limits: ProgramLimits) -> Self {
        Self {
            capture: TraceDevice::new(),
            programs: Programs::new(limits),
            context: Arc::new(context),
            compiled: Mutex::default(),
        }
    }

    /// The programs that are still in use, oldest first.
    pub(crate) fn executables(&self) -> Vec<pjrt::Executable> {
        let compiled = lock(&self.compiled);
        let in_use = compiled.iter().filter_map(Weak::upgrade);
        in_use.map(|program| program.executable().clone()).collect()
    }

    fn compile_step(&self, step: &CapturedStep) -> Result<XlaProgram, TpuError> {
        let started = Instant::now();
        let context = &self.context;
        let target = Target::of_platform(context.client.platform_name());
        let checks_program_identity = context.step_checks.is_some();
        let lowered = lower_with(step, target, context.precision, checks_program_identity)?;
        let text = &lowered.program.text;
        let number = number_of(text);
        let sent: Vec<_> = step
            .inputs
            .iter()
            .filter(|i| i.role == InputRole::Batch)
            .map(|input| input.spec.to_string())
            .collect();
        let arguments = sent.join(" ");
        self.check_same_everywhere(&lowered, number, &arguments)?;
        let mut options = CompileOptions::replicas(step.num_replicas)
            .device_assignment(context.assignment.clone());
        if context.client.platform_name() == "cpu" {
            for (flag, value) in CPU_COMPILER_OPTIONS {
                options = options.option(flag, value);
            }
        }
        let executable = Arc::new(context.client.compile(text, &options)?);
        self.programs.compiled(started.elapsed());
        let mut compiled = lock(&self.compiled);
        compiled.retain(|program| program.strong_count() > 0);
        compiled.push(Arc::downgrade(&executable));
        let specs = step.outputs.iter().map(|output| output.spec.clone());
        let words = [number as u32, (number >> 32) as u32];
        let number = |device| context.client.buffer(&words, &[1, 2], device);
        let devices = context.devices.iter().filter(|_| checks_program_identity);
        Ok(XlaProgram {
            executable,
            context: Arc::clone(context),
            inputs: lowered.program.inputs,
            outputs: specs.collect(),
            numbers: devices.map(number).collect::<Result<_, _>>()?,
            arguments: arguments.into(),
        })
    }

    /// Replicas that run different programs would wait for each other forever, or combine what does
    /// not belong together.
    fn check_same_everywhere(
        &self,
        lowered: &Lowered,
        number: u64,
        arguments: &str,
    ) -> Result<(), TpuError> {
        let Some(workers) = &self.context.workers else {
            return Ok(());
        };
        let failed = |cause: String| TpuError::Processes {
            processes: workers.num_workers(),
            cause,
        };
        let calls: Vec<(Vec<u8>, String)> = lowered
            .collectives
            .iter()
            .map(|call| (call.header.encode().to_vec(), call.tensors.clone()))
            .collect();
        let own = (number, lowered.program.text.len(), calls);
        let all = workers
            .all_gather_json("compile_step", &own)
            .map_err(|error| failed(error.to_string()))?;
        let Some(process) = all.iter().position(|other| *other != all[0]) else {
            return Ok(());
        };
        let calls = |process: usize| -> Option<Vec<CollectiveCall>> {
            let calls = all[process].2.iter().map(|(bytes, tensors)| {
                let header = OperationHeader::decode(bytes.as_slice().try_into().ok()?).ok()?;
                let tensors = tensors.clone();
                Some(CollectiveCall { header, tensors })
            });
            calls.collect()
        };
        let unreadable = || failed(format!("what process {process} compiles is unreadable"));
        let (first, other) = calls(0).zip(calls(process)).ok_or_else(unreadable)?;
        Err(TpuError::DifferentPrograms {
            process,
            difference: first_difference(&first, &other),
            arguments: arguments.to_string(),
        })
    }
}

/// The first difference between the operations of two programs between their replicas.
fn first_difference(first: &[CollectiveCall], other: &[CollectiveCall]) -> String {
    for (number, (a, b)) in first.iter().zip(other).enumerate() {
        if let Some(what) = a.first_difference(b) {
            return format!("in operation {number} ({}) the {what}", a.header.kind);
        }
    }
    match (first.len(), other.len()) {
        (a, b) if a != b => {
            format!("it has {a} operations between replicas on one and {b} on the other")
        }
        _ => "what the replicas compute by themselves differs".to_string(),
    }
}

/// The StableHLO program of a captured step, for all its replicas. Inputs and outputs are the ones
/// of the step, in the same order; old state is donated to the new. A TPU's program may have
/// tensors of the batch in other dimensions than the step, see [`LowerOptions::host_inputs`].
///
/// # Errors
/// [`LowerError`](crate::lower::LowerError) for an operation that is not covered.
pub fn lower_step(step: &CapturedStep) -> Result<Lowered, TpuError> {
    lower_step_for(step, Target::Any, Precision::Highest)
}

/// [`lower_step`] for one compiler, with matrix products of a precision.
///
/// # Errors
/// As [`lower_step`].
pub fn lower_step_for(
    step: &CapturedStep,
    target: Target,
    precision: Precision,
) -> Result<Lowered, TpuError> {
    lower_with(step, target, precision, false)
}

fn lower_with(
    step: &CapturedStep,
    target: Target,
    precision: Precision,
    checks_program_identity: bool,
) -> Result<Lowered, TpuError> {
    let donated = |number: usize| {
        let takes_it = |output: &&StepOutput| output.donated_from == Some(number);
        step.outputs.iter().find(takes_it)
    };
    let inputs: Vec<_> = step
        .inputs
        .iter()
        .enumerate()
        .map(|(number, input)| match donated(number) {
            Some(output) => GraphInput::donated(input.id, output.id),
            None => GraphInput::new(input.id),
        })
        .collect();
    let outputs: Vec<_> = step.outputs.iter().map(|output| output.id).collect();
    let names = step.inputs.iter().filter(|input| !input.name.is_empty());
    let sent = step
        .inputs
        .iter()
        .filter(|input| input.role == InputRole::Batch);
    let options = LowerOptions {
        num_replicas: step.num_replicas,
        random_key: step.random_key.map_or(RandomKey::None, RandomKey::Input),
        names: names.map(|input| (input.id, input.name.clone())).collect(),
        target,
        precision,
        host_inputs: sent.map(|input| input.id).collect(),
        checks_program_identity,
        ..LowerOptions::default()
    };
    Ok(lower(&step.graph, &inputs, &outputs, &options)?)
}

impl Tracer for XlaTracer {
    fn device(&self) -> &TraceDevice {
        &self.capture
    }

    fn checks_steps(&self) -> bool {
        self.context.checks_steps
    }

    fn find(&self, key: &StepKey) -> Option<Arc<StepProgram>> {
        self.programs.find(key)
    }

    fn admit(&self, key: &StepKey) -> Result<()> {
        self.programs.admit(key)
    }

    fn compile(&self, step: CapturedStep) -> Result<Box<dyn Executable>> {
        Ok(Box::new(self.compile_step(&step)?))
    }

    fn keep(&self, key: StepKey, program: Arc<StepProgram>) {
        self.programs.keep(key, program);
    }

    fn upload(&self, data: TensorData) -> Result<Arc<dyn DeviceTensor>> {
        Ok(Arc::new(DeviceArray::upload(&self.context, &data)?))
    }

    fn upload_each(&self, data: Vec<TensorData>) -> Result<Arc<dyn DeviceTensor>> {
        Ok(Arc::new(DeviceArray::upload_each(&self.context, &data)?))
    }
}

impl fmt::Debug for XlaTracer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("XlaTracer")
            .field("devices", &self.context.assignment)
            .field("programs", &self.programs.statistics())
            .finish_non_exhaustive()
    }
}

/// A step, compiled and loaded onto the devices.
struct XlaProgram {
    executable: Arc<LoadedExecutable>,
    context: Arc<ExecutionContext>,
    inputs: Vec<TensorType>,
    outputs: Vec<TensorSpec>,
    /// The number of the program, on each device; none where there is one process only.
    numbers: Vec<Buffer>,
    /// The arguments of the step when it was compiled.
    arguments: Arc<str>,
}

impl fmt::Debug for XlaProgram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("XlaProgram")
            .field("executable", &self.executable)
            .field("outputs", &self.outputs)
            .finish_non_exhaustive()
    }
}

impl XlaProgram {
    fn run(&self, arguments: &[Argument]) -> Result<Vec<Arc<dyn DeviceTensor>>, TpuError> {
        if let Some(checks) = &self.context.step_checks {
            checks.check()?;
        }
        let sent = arguments
            .iter()
            .zip(&self.inputs)
            .map(|(argument, ty)| self.send(argument, ty.dims()))
            .collect::<Result<Vec<Option<Vec<Buffer>>>, TpuError>>()?;
        let mut lists: Vec<Vec<&Buffer>> = Vec::with_capacity(self.context.devices.len());
        for replica in 0..self.context.devices.len() {
            let missing = || TpuError::Internal(format!("no argument for replica {replica}"));
            let list = arguments.iter().zip(&sent).map(|(argument, sent)| {
                let buffer = match (argument, sent) {
                    (Argument::Device(tensor), _) => array(tensor)?.buffer(replica),
                    (_, Some(buffers)) => buffers.get(replica),
                    (_, None) => None,
                };
                buffer.ok_or_else(missing)
            });
            let number = self.numbers.get(replica).map(Ok);
            lists.push(list.chain(number).collect::<Result<_, _>>()?);
        }
        let execution = self
            .executable
            .execute(&lists, &ExecuteOptions::default())?;
        self.results(execution.into_outputs())
    }

    /// The buffers of an argument that is in host memory, in the program's dimensions.
    fn send(&self, argument: &Argument, dims: &[usize]) -> Result<Option<Vec<Buffer>>, TpuError> {
        let devices = self.context.devices.iter();
        let client = &self.context.client;
        let buffers: Result<Vec<Buffer>, TpuError> = match argument {
            Argument::Device(_) => return Ok(None),
            Argument::PerReplica(parts) => devices
                .zip(parts.iter())
                .map(|(device, part)| buffer(client, device, part, dims))
                .collect(),
            Argument::Same(data) => devices
                .map(|device| buffer(client, device, data, dims))
                .collect(),
        };
        buffers.map(Some)
    }

    /// From one list per device to one tensor per result.
    fn results(&self, outputs: Vec<Vec<Buffer>>) -> Result<Vec<Arc<dyn DeviceTensor>>, TpuError> {
        let mut lists: Vec<_> = outputs.into_iter().map(Vec::into_iter).collect();
        let missing = || TpuError::Internal("the program has too few results".to_string());
        let mut step = 0;
        if let Some(checks) = &self.context.step_checks {
            // The same on all devices: the numbers of all replicas.
            let numbers = lists.first_mut().and_then(|list| list.next_back());
            step = checks.started(numbers.ok_or_else(missing)?, &self.arguments)?;
        }
        let result = |spec: &TensorSpec| {
            let buffers: Option<Vec<Buffer>> = lists.iter_mut().map(Iterator::next).collect();
            let buffers = buffers.ok_or_else(missing)?;
            let array = DeviceArray::computed(&self.context, spec.clone(), buffers, step);
            Ok(Arc::new(array) as Arc<dyn DeviceTensor>)
        };
        self.outputs.iter().map(result).collect()
    }
}

impl Executable for XlaProgram {
    fn execute(&self, arguments: Vec<Argument>) -> Result<Vec<Arc<dyn DeviceTensor>>> {
        Ok(self.run(&arguments)?)
    }
}
