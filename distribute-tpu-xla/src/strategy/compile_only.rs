//! Steps that are compiled for a TPU without having one.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use burn::tensor::TensorData;
use distribute_core::trace::{
    Argument, CapturedStep, DeviceTensor, Executable, StepKey, StepProgram, TensorSpec,
    TraceDevice, Tracer,
};
use distribute_core::{
    Error, InputContext, LogicalDevice, Replica, ReplicaStep, Result, Strategy, StrategyId,
};

use super::{TpuError, lower_step};
use crate::pjrt::{CompileOptions, CompiledMemoryStats, Program, Topology};

/// The attribute of a TPU core's description that holds the size of its memory.
const MEMORY_LIMIT: &str = "device_memory_bytes_limit";

/// Operations between cores, as XLA calls them.
const COLLECTIVES: [&str; 9] = [
    "all-reduce",
    "all-reduce-start",
    "all-gather",
    "all-gather-start",
    "reduce-scatter",
    "all-to-all",
    "collective-permute",
    "collective-permute-start",
    "collective-broadcast",
];

/// Compiles steps for the devices of a [`Topology`] and runs nothing: whether a job fits a TPU is
/// known before there is one.
///
/// It stands in for a [`TpuStrategy`](super::TpuStrategy). The first
/// [`run`](distribute_core::StrategyExt::run) captures and compiles the step and then ends with
/// [`TpuError::CompiledOnly`]; [`report`](Self::report) has what the compiler says.
#[derive(Clone)]
pub struct CompileOnlyStrategy {
    replicas: Arc<[Replica]>,
    tracer: Arc<CompileOnlyTracer>,
    id: StrategyId,
}

/// What the compiler says of a step.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct CompileReport {
    /// The topology's name.
    pub topology: String,
    /// The kind of its devices, such as `TPU v5 lite`.
    pub device_kind: String,
    /// The devices of the topology.
    pub devices: usize,
    /// The replicas of the program.
    pub replicas: usize,
    /// Floating-point operations of one step on one core, if the compiler counts them.
    pub flops: Option<f64>,
    /// Bytes read and written in one step on one core, if the compiler counts them.
    pub bytes_accessed: Option<f64>,
    /// Sizes in bytes, per core.
    pub memory: CompiledMemoryStats,
    /// The memory of one core, if the topology says so.
    pub memory_limit_bytes: Option<i64>,
    /// Bytes of the training state, which the step's new state takes over.
    pub donated_bytes: u64,
    /// Operations between cores in the compiled program, by XLA's name, and how many.
    pub collectives: Vec<(&'static str, usize)>,
    /// What lowering and compiling took.
    pub compile_time: Duration,
}

impl CompileReport {
    /// The memory that one core needs for a step: arguments, results that take over no argument,
    /// temporaries and the program.
    pub fn memory_bytes(&self) -> i64 {
        let memory = &self.memory;
        memory.argument_bytes + memory.output_bytes - memory.alias_bytes
            + memory.temp_bytes
            + memory.generated_code_bytes
    }

    /// Whether a core has that memory; `None` where it is not known. A step that does not fit is
    /// mostly refused by the compiler already.
    pub fn fits(&self) -> Option<bool> {
        self.memory_limit_bytes
            .map(|limit| self.memory_bytes() <= limit)
    }
}

impl CompileOnlyStrategy {
    /// Replicas on the first devices of a topology, by default on all.
    ///
    /// # Errors
    /// [`TpuError::Replicas`] if the topology has fewer devices.
    pub fn new(topology: Topology, replicas: Option<usize>) -> Result<Self, TpuError> {
        let devices = topology.devices();
        let count = replicas.unwrap_or(devices.len());
        if count == 0 || count > devices.len() {
            return Err(TpuError::Replicas {
                replicas: count,
                devices: devices.len(),
                names: topology.name().to_string(),
            });
        }
        let replicas = (0..count).map(|id| Replica::new(id, LogicalDevice::cpu(id)));
        Ok(Self {
            replicas: replicas.collect(),
            tracer: Arc::new(CompileOnlyTracer {
                capture: TraceDevice::new(),
                topology,
                report: Mutex::default(),
            }),
            id: StrategyId::new("tpu", count),
        })
    }

    /// What the compiler said of the last step that was compiled.
    pub fn report(&self) -> Option<CompileReport> {
        self.tracer.last().clone()
    }
}

impl Strategy for CompileOnlyStrategy {
    fn name(&self) -> &'static str {
        "tpu"
    }

    fn num_replicas_in_sync(&self) -> usize {
        self.replicas.len()
    }

    fn replicas(&self) -> &[Replica] {
        &self.replicas
    }

    fn input_context(&self) -> InputContext {
        InputContext {
            num_replicas_in_sync: self.replicas.len(),
            ..InputContext::default()
        }
    }

    fn id(&self) -> StrategyId {
        self.id.clone()
    }

    fn handle(&self) -> Arc<dyn Strategy> {
        Arc::new(self.clone())
    }

    fn tracer(&self) -> Option<&dyn Tracer> {
        Some(&*self.tracer)
    }

    fn run_replicas(&self, _: ReplicaStep<'_>) -> Result<()> {
        Err(Error::from(TpuError::CompiledOnly))
    }
}

impl fmt::Debug for CompileOnlyStrategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompileOnlyStrategy")
            .field("replicas", &self.replicas.len())
            .field("topology", &self.tracer.topology.name())
            .finish_non_exhaustive()
    }
}

struct CompileOnlyTracer {
    capture: TraceDevice,
    topology: Topology,
    report: Mutex<Option<CompileReport>>,
}

impl CompileOnlyTracer {
    fn last(&self) -> std::sync::MutexGuard<'_, Option<CompileReport>> {
        // A report is put in whole.
        self.report.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn compile_step(&self, step: &CapturedStep) -> Result<CompileReport, TpuError> {
        let started = Instant::now();
        let lowered = lower_step(step)?;
        let options = CompileOptions::replicas(step.num_replicas);
        let executable = self.topology.compile(&lowered.program.text, &options)?;
        let compile_time = started.elapsed();
        // Not every compiler counts; what it leaves out is not an error of the step.
        let cost = executable.cost_analysis().unwrap_or_default();
        let number = |name: &str| cost.get(name).and_then(crate::pjrt::Value::as_f64);
        let devices = self.topology.devices();
        let first = devices.first();
        let limit = first.and_then(|device| device.attributes.get(MEMORY_LIMIT));
        Ok(CompileReport {
            topology: self.topology.name().to_string(),
            device_kind: first.map_or(String::new(), |device| device.kind.clone()),
            devices: devices.len(),
            replicas: step.num_replicas,
            flops: number("flops"),
            bytes_accessed: number("bytes accessed"),
            memory: executable.memory_stats()?,
            memory_limit_bytes: limit.and_then(crate::pjrt::Value::as_i64),
            donated_bytes: donated_bytes(step),
            collectives: collectives(&executable.optimized_program()?),
            compile_time,
        })
    }
}

/// The bytes of all inputs whose memory an output takes over.
fn donated_bytes(step: &CapturedStep) -> u64 {
    let donated = step.outputs.iter().filter_map(|output| output.donated_from);
    let specs = donated.filter_map(|input| step.inputs.get(input));
    specs.map(|input| bytes(&input.spec)).sum()
}

fn bytes(spec: &TensorSpec) -> u64 {
    let elements: usize = spec.shape.iter().product();
    (elements * spec.dtype.size()) as u64
}

/// How often each collective operation stands in an optimized program. In a serialized HLO module
/// field 2 of an instruction is the name of its operation, as its length and its letters.
fn collectives(program: &Program) -> Vec<(&'static str, usize)> {
    let count = |name: &&'static str| {
        let mut field = vec![0x12, u8::try_from(name.len()).unwrap_or(u8::MAX)];
        field.extend(name.bytes());
        let windows = program.code.windows(field.len());
        (*name, windows.filter(|window| *window == field).count())
    };
    let counted = COLLECTIVES.iter().map(count);
    counted.filter(|(_, count)| *count > 0).collect()
}

impl Tracer for CompileOnlyTracer {
    fn device(&self) -> &TraceDevice {
        &self.capture
    }

    fn find(&self, _: &StepKey) -> Option<Arc<StepProgram>> {
        None
    }

    fn admit(&self, _: &StepKey) -> Result<()> {
        Ok(())
    }

    fn compile(&self, step: CapturedStep) -> Result<Box<dyn Executable>> {
        let report = self.compile_step(&step)?;
        *self.last() = Some(report);
        Ok(Box::new(NotRun))
    }

    fn keep(&self, _: StepKey, _: Arc<StepProgram>) {}

    fn upload(&self, data: TensorData) -> Result<Arc<dyn DeviceTensor>> {
        Ok(Arc::new(OnHost(data)))
    }
}

impl fmt::Debug for CompileOnlyTracer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompileOnlyTracer")
            .field("topology", &self.topology.name())
            .finish_non_exhaustive()
    }
}

/// A program that there is no device for.
#[derive(Debug)]
struct NotRun;

impl Executable for NotRun {
    fn execute(&self, _: Vec<Argument>) -> Result<Vec<Arc<dyn DeviceTensor>>> {
        Err(Error::from(TpuError::CompiledOnly))
    }
}

/// A tensor that stays where it is.
#[derive(Debug)]
struct OnHost(TensorData);

impl DeviceTensor for OnHost {
    fn spec(&self) -> TensorSpec {
        TensorSpec {
            shape: self.0.shape().to_vec(),
            dtype: self.0.dtype(),
        }
    }

    fn read(&self, _: usize) -> Result<TensorData> {
        Ok(self.0.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn collectives_are_counted_by_operation_and_not_by_name() {
        let mut code = Vec::new();
        let mut field = |tag: u8, text: &str| {
            code.extend([tag, u8::try_from(text.len()).unwrap()]);
            code.extend(text.bytes());
        };
        field(0x0a, "all-reduce"); // an instruction that is called so
        field(0x12, "all-reduce");
        field(0x0a, "all-reduce.7");
        field(0x12, "all-reduce");
        field(0x12, "all-reduce-start");
        field(0x12, "fusion");
        let program = Program {
            format: "hlo".to_string(),
            code,
        };
        let expected = [("all-reduce", 2), ("all-reduce-start", 1)];
        assert_eq!(collectives(&program), expected);
    }
}
