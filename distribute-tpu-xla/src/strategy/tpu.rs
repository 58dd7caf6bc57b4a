//! The strategy.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use distribute_core::trace::Tracer;
use distribute_core::{
    CommunicationOptions, Error, LogicalDevice, Replica, ReplicaStep, Result, Strategy, StrategyId,
    WorkerGroup,
};

use super::context::ExecutionContext;
use super::slice::{SliceCommunicator, global_id, process_of};
use super::step_check::StepChecks;
use super::tracer::XlaTracer;
use super::{TpuError, TpuSystem, refuse_replicas};
use crate::pjrt::{Device, Executable};
use crate::stablehlo::Precision;
use crate::trace::{ProgramLimits, ProgramStatistics};

/// One replica per TPU core, or per device of any other PJRT plugin
/// (TensorFlow: `tf.distribute.TPUStrategy`).
///
/// A step is not run directly: it is captured once, compiled for all replicas together, and every
/// call of `run` runs the program, see [`distribute_core::trace`]. What a program cannot do, such
/// as reading a tensor in the middle of a step, is an error. Training states stay on the devices
/// between steps.
///
/// On a slice of several machines every machine runs the same program, and its process has the
/// replicas on its own devices: `run` is given their parts of a batch, `input_context` says which
/// shard of the data is this process'. What the processes do together, so that all must make the
/// call: building the strategy, `scope` (process 0's initial values go to all), `run`, `reduce`,
/// `gather`, metrics' results. Process 0 is the chief, which writes checkpoints. A process that is
/// lost is an error of the others, and the group has ended: start all again from the last
/// checkpoint.
#[derive(Clone)]
#[must_use]
pub struct TpuStrategy {
    replicas: Arc<[Replica]>,
    devices: Arc<[Device]>,
    workers: Option<WorkerGroup>,
    tracer: Arc<XlaTracer>,
    id: StrategyId,
}

impl TpuStrategy {
    /// A replica on every device of the system.
    ///
    /// # Errors
    /// [`TpuError::Initialize`] if the system has no device for this process.
    pub fn new(system: &TpuSystem) -> Result<Self, TpuError> {
        Self::builder(system).build()
    }

    /// Chooses the number of replicas and limits.
    pub fn builder(system: &TpuSystem) -> TpuStrategyBuilder<'_> {
        TpuStrategyBuilder {
            system,
            replicas: None,
            limits: ProgramLimits::default(),
            timeout: Duration::from_secs(300),
            checks_steps: true,
            precision: Precision::Highest,
        }
    }

    /// Whether this process writes what is written once: checkpoints, logs
    /// (TensorFlow: `extended.should_checkpoint`).
    pub fn is_chief(&self) -> bool {
        self.workers.as_ref().is_none_or(WorkerGroup::is_chief)
    }

    /// The programs that were compiled so far and still have their training state, oldest first:
    /// each says what it needs of memory, what it costs, and its optimized code, as far as the
    /// plugin does.
    pub fn executables(&self) -> Vec<Executable> {
        self.tracer.executables()
    }

    /// The devices of this process' replicas, in replica order.
    pub fn devices(&self) -> &[Device] {
        &self.devices
    }

    /// Counts of what has been compiled and run.
    pub fn statistics(&self) -> ProgramStatistics {
        self.tracer.programs.statistics()
    }
}

/// Options of a [`TpuStrategy`].
#[derive(Debug, Clone)]
#[must_use]
pub struct TpuStrategyBuilder<'a> {
    system: &'a TpuSystem,
    replicas: Option<usize>,
    limits: ProgramLimits,
    timeout: Duration,
    checks_steps: bool,
    precision: Precision,
}

impl TpuStrategyBuilder<'_> {
    /// `count` replicas on the first devices; on all of them by default. With several processes
    /// each has an equal share of them.
    pub fn replicas(mut self, count: usize) -> Self {
        self.replicas = Some(count);
        self
    }

    /// When a step counts as compiled too often.
    pub fn program_limits(mut self, limits: ProgramLimits) -> Self {
        self.limits = limits;
        self
    }

    /// Whether steps are captured again now and then and compared with their programs, to find
    /// steps that capture a changing value; the check is on by default. It costs at most a
    /// hundredth of the time. A step that never makes the same operations twice (it iterates over a
    /// `HashMap` of its own, for example) needs `false`.
    pub fn check_steps(mut self, checks_steps: bool) -> Self {
        self.checks_steps = checks_steps;
        self
    }

    /// How exactly a TPU computes matrix products and convolutions of f32;
    /// [`Precision::Highest`] by default, which is f32 as on a CPU. TensorFlow and JAX have
    /// [`Precision::Default`] on TPUs: faster, with 8 bits of mantissa in the factors. Other
    /// devices ignore it. Processes of one system must have the same.
    pub fn precision_of_matmul(mut self, precision: Precision) -> Self {
        self.precision = precision;
        self
    }

    /// How long a process waits for what it computes together with others; 5 minutes by default. A
    /// system of one process waits without a limit: there is no other process to wait for.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// The strategy. With several processes all of them call it together, and it blocks until they
    /// have.
    ///
    /// # Errors
    /// [`TpuError::Replicas`] if there are fewer devices than replicas, if this process has no
    /// device at all, or if the replicas cannot be shared equally among the processes;
    /// [`TpuError::Processes`] if another process does not come.
    pub fn build(self) -> Result<TpuStrategy, TpuError> {
        let client = self.system.client();
        let processes = self.system.processes();
        let chosen = self.choose(processes)?;
        let count = chosen.len();
        let process = self.system.process();
        let belongs = |(_, device): &(usize, &Device)| process_of(device) == process;
        let own = || chosen.iter().enumerate().filter(belongs);
        let replicas = own().map(|(id, _)| Replica::new(id, LogicalDevice::cpu(id)));
        let devices: Arc<[Device]> = own().map(|(_, device)| device.clone()).collect();
        let workers = match processes {
            1 => None,
            _ => Some(self.form_group(&chosen, &devices)?),
        };
        let context = ExecutionContext {
            client: client.clone(),
            devices: Arc::clone(&devices),
            assignment: chosen.iter().map(global_id).collect(),
            workers: workers.clone(),
            step_checks: (processes > 1).then(|| {
                let processes = chosen.iter().map(process_of).collect();
                Arc::new(StepChecks::new(processes, self.timeout))
            }),
            timeout: (processes > 1).then_some(self.timeout),
            checks_steps: self.checks_steps,
            precision: self.precision,
        };
        Ok(TpuStrategy {
            replicas: replicas.collect(),
            devices,
            workers,
            tracer: Arc::new(XlaTracer::new(context, self.limits)),
            id: StrategyId::new("tpu", count),
        })
    }

    /// The devices of all replicas, in replica order: the devices of a process are adjacent.
    fn choose(&self, processes: usize) -> Result<Vec<Device>, TpuError> {
        let mut all = self.system.client().devices();
        all.sort_by_key(|device| (process_of(device), device.id()));
        let count = self.replicas.unwrap_or(all.len());
        let refused = || refuse_replicas(count, all.len(), &self.system.describe());
        if count == 0 || count > all.len() {
            return Err(refused());
        }
        if self.replicas.is_none() || processes == 1 {
            let own = all.iter().take(count);
            let mut own = own.filter(|device| process_of(device) == self.system.process());
            return match own.next() {
                Some(_) => Ok(all[..count].to_vec()),
                None => Err(refused()),
            };
        }
        let share = count / processes;
        let mut chosen = Vec::with_capacity(count);
        for process in 0..processes {
            let devices = all.iter().filter(|device| process_of(device) == process);
            chosen.extend(devices.take(share).cloned());
        }
        if chosen.len() != count {
            return Err(refused());
        }
        Ok(chosen)
    }

    /// The group of all processes.
    fn form_group(&self, chosen: &[Device], own: &[Device]) -> Result<WorkerGroup, TpuError> {
        let processes = self.system.processes();
        let refused = |cause: String| TpuError::Processes { processes, cause };
        let communicator = SliceCommunicator::over(
            self.system.client(),
            chosen,
            self.system.process(),
            processes,
            self.timeout,
        )?;
        let options = CommunicationOptions::default();
        let group = WorkerGroup::new(Box::new(communicator), own.len(), options);
        group.map_err(|error| refused(error.to_string()))
    }
}

impl Strategy for TpuStrategy {
    fn replicas(&self) -> &[Replica] {
        &self.replicas
    }

    fn id(&self) -> StrategyId {
        self.id.clone()
    }

    fn handle(&self) -> Arc<dyn Strategy> {
        Arc::new(self.clone())
    }

    fn workers(&self) -> Option<&WorkerGroup> {
        self.workers.as_ref()
    }

    fn tracer(&self) -> Option<&dyn Tracer> {
        Some(&*self.tracer)
    }

    fn run_replicas(&self, _: ReplicaStep<'_>) -> Result<()> {
        Err(Error::NotCompilable {
            what: "`run_replicas`".to_string(),
            instead: "a TPU runs compiled steps only: call `run`".to_string(),
        })
    }
}

impl fmt::Debug for TpuStrategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TpuStrategy")
            .field("replicas", &self.num_replicas_in_sync())
            .field("programs", &self.statistics())
            .finish_non_exhaustive()
    }
}
