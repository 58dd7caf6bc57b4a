//! Compiling a job's steps for devices that are not there.

use std::fmt;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use burn::tensor::TensorData;
use distribute_core::trace::{
    CapturedStep, DeviceTensor, Executable as Runnable, TensorSpec, TraceDevice, Tracer,
};
use distribute_core::{Error, LogicalDevice, Replica, ReplicaStep, Result, Strategy, StrategyId};

use super::tracer::lower_step_for;
use super::{TpuError, refuse_replicas};
use crate::lower::Target;
use crate::pjrt::{CompileOptions, Executable, Topology};
use crate::stablehlo::Precision;
use crate::sync::lock;

/// Compiles the steps of a job for a topology, such as `v5e:2x4`, without any device.
///
/// The job runs under this strategy as under any other. Its first `run` captures and compiles the
/// step and then returns [`TpuError::CompiledOnly`]; [`programs`](Self::programs) has the program,
/// with its memory needs and costs. States that were passed are unchanged.
#[derive(Clone)]
#[must_use]
pub struct TpuCompiler {
    replicas: Arc<[Replica]>,
    tracer: Arc<AheadOfTimeTracer>,
    id: StrategyId,
}

/// A step that was compiled for a topology.
#[derive(Debug, Clone)]
pub struct CompiledProgram {
    /// What the compiler made; asks for memory, costs and the optimized program.
    pub executable: Executable,
    /// The StableHLO that it was made from.
    pub stablehlo: String,
    /// The replicas that run it together.
    pub replicas: usize,
    /// The all-reduce operations before the compiler combined them.
    pub all_reduces: usize,
    /// The bytes of state on each device whose memory the new state takes over.
    pub donated_bytes: usize,
    /// How long the compiler took.
    pub compile_time: Duration,
}

/// What a [`TpuCompiler`] is doing.
#[derive(Debug)]
#[non_exhaustive]
pub enum CompileProgress<'a> {
    /// The step is captured and lowered; now it is compiled, which takes from seconds to minutes.
    Lowered {
        /// The program that the compiler gets.
        stablehlo: &'a str,
        /// The replicas that will run it together.
        replicas: usize,
    },
    /// The compiler is done, well or not.
    Compiled {
        /// How long it took.
        time: Duration,
    },
}

/// Told what a compiler is doing, on the thread that compiles.
type Observer = dyn Fn(&CompileProgress<'_>) + Send + Sync;

impl TpuCompiler {
    /// One replica on each device of the topology, or on the first `replicas` of them.
    ///
    /// # Errors
    /// [`TpuError::Replicas`] if there are fewer devices.
    pub fn new(topology: Topology, replicas: Option<usize>) -> Result<Self, TpuError> {
        let devices = topology.devices().len();
        let count = replicas.unwrap_or(devices);
        if count == 0 || count > devices {
            return Err(refuse_replicas(count, devices, topology.name()));
        }
        let list = (0..count).map(|id| Replica::new(id, LogicalDevice::cpu(id)));
        Ok(Self {
            replicas: list.collect(),
            tracer: Arc::new(AheadOfTimeTracer {
                capture: TraceDevice::new(),
                topology,
                precision: Mutex::new(Precision::Highest),
                programs: Mutex::default(),
                observer: OnceLock::new(),
            }),
            id: StrategyId::new("tpu", count),
        })
    }

    /// Calls `observer` with what is going on, from now on. One observer is told; the first stays.
    pub fn observe(&self, observer: impl Fn(&CompileProgress<'_>) + Send + Sync + 'static) {
        let _first_stays = self.tracer.observer.set(Box::new(observer));
    }

    /// Compiles matrix products and convolutions of f32 with this precision from now on;
    /// [`Precision::Highest`] by default.
    pub fn precision_of_matmul(self, precision: Precision) -> Self {
        *lock(&self.tracer.precision) = precision;
        self
    }

    /// What was compiled so far, in order.
    pub fn programs(&self) -> Vec<CompiledProgram> {
        lock(&self.tracer.programs).clone()
    }
}

impl Strategy for TpuCompiler {
    fn replicas(&self) -> &[Replica] {
        &self.replicas
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
        Err(Error::NotCompilable {
            what: "`run_replicas`".to_string(),
            instead: "steps are only compiled here: call `run`".to_string(),
        })
    }
}

impl fmt::Debug for TpuCompiler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TpuCompiler")
            .field("topology", &self.tracer.topology.name())
            .field("replicas", &self.replicas.len())
            .finish_non_exhaustive()
    }
}

/// Compiles for a topology and runs nothing.
struct AheadOfTimeTracer {
    capture: TraceDevice,
    topology: Topology,
    precision: Mutex<Precision>,
    programs: Mutex<Vec<CompiledProgram>>,
    observer: OnceLock<Box<Observer>>,
}

impl AheadOfTimeTracer {
    fn notify(&self, progress: &CompileProgress<'_>) {
        if let Some(observer) = self.observer.get() {
            observer(progress);
        }
    }

    fn compile_step(&self, step: &CapturedStep) -> Result<(), TpuError> {
        let target = Target::of_platform(&self.topology.platform_name()?);
        let precision = *lock(&self.precision);
        let lowered = lower_step_for(step, target, precision)?;
        self.notify(&CompileProgress::Lowered {
            stablehlo: &lowered.program.text,
            replicas: step.num_replicas,
        });
        let options = CompileOptions::replicas(step.num_replicas);
        let started = Instant::now();
        let executable = self.topology.compile(&lowered.program.text, &options);
        let compile_time = started.elapsed();
        self.notify(&CompileProgress::Compiled { time: compile_time });
        let executable = executable?;
        let donated = step
            .outputs
            .iter()
            .filter(|output| output.donated_from.is_some());
        let bytes = |spec: &TensorSpec| spec.shape.iter().product::<usize>() * spec.dtype.size();
        let program = CompiledProgram {
            executable,
            replicas: step.num_replicas,
            all_reduces: lowered.all_reduces,
            compile_time,
            donated_bytes: donated.map(|output| bytes(&output.spec)).sum(),
            stablehlo: lowered.program.text,
        };
        lock(&self.programs).push(program);
        Ok(())
    }
}

impl Tracer for AheadOfTimeTracer {
    fn device(&self) -> &TraceDevice {
        &self.capture
    }

    fn compile(&self, step: CapturedStep) -> Result<Box<dyn Runnable>> {
        self.compile_step(&step)?;
        Err(TpuError::CompiledOnly {
            topology: self.topology.name().to_string(),
        }
        .into())
    }

    fn upload(&self, data: TensorData) -> Result<Arc<dyn DeviceTensor>> {
        Ok(Arc::new(CompileOnlyTensor(TensorSpec::of(&data))))
    }

    fn upload_each(&self, mut data: Vec<TensorData>) -> Result<Arc<dyn DeviceTensor>> {
        let missing = || TpuError::Internal("a tensor of no replica".to_string());
        self.upload(data.pop().ok_or_else(missing)?)
    }
}

impl fmt::Debug for AheadOfTimeTracer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AheadOfTimeTracer")
            .field("topology", &self.topology.name())
            .finish_non_exhaustive()
    }
}

/// A tensor on no device.
#[derive(Debug)]
struct CompileOnlyTensor(TensorSpec);

impl DeviceTensor for CompileOnlyTensor {
    fn spec(&self) -> TensorSpec {
        self.0.clone()
    }

    fn read(&self, _: usize) -> Result<TensorData> {
        Err(TpuError::Internal("a tensor of a step that was only compiled".to_string()).into())
    }
}
