//! The strategy.

use std::fmt;
use std::sync::Arc;

use distribute_core::trace::{TraceError, Tracer};
use distribute_core::{
    Error, InputContext, LogicalDevice, Replica, ReplicaStep, Result, Strategy, StrategyId,
};

use super::tracer::XlaTracer;
use super::{TpuError, TpuSystem, refuse_replicas};
use crate::pjrt::Device;
use crate::trace::{ProgramLimits, ProgramStatistics};

/// One replica per TPU core, or per device of any other PJRT plugin
/// (TensorFlow: `tf.distribute.TPUStrategy`).
///
/// A step is not run as it is: it is captured once, compiled for all replicas together, and every
/// call of `run` runs the program, see [`distribute_core::trace`]. What a program cannot do, such
/// as reading a tensor in the middle of a step, is an error. Training states stay on the devices
/// between steps.
#[derive(Clone)]
pub struct TpuStrategy {
    replicas: Arc<[Replica]>,
    devices: Arc<[Device]>,
    num_replicas: usize,
    process: usize,
    processes: usize,
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
        }
    }

    /// The devices of this process' replicas, in replica order.
    pub fn devices(&self) -> &[Device] {
        &self.devices
    }

    /// What has been compiled and run so far.
    pub fn statistics(&self) -> ProgramStatistics {
        self.tracer.programs.statistics()
    }
}

/// Options of a [`TpuStrategy`].
#[derive(Debug, Clone)]
pub struct TpuStrategyBuilder<'a> {
    system: &'a TpuSystem,
    replicas: Option<usize>,
    limits: ProgramLimits,
}

impl TpuStrategyBuilder<'_> {
    /// Replicas on the first `count` devices; on all of them by default. A system of several
    /// processes uses all devices.
    pub fn replicas(mut self, count: usize) -> Self {
        self.replicas = Some(count);
        self
    }

    /// When a step counts as compiled too often.
    pub fn program_limits(mut self, limits: ProgramLimits) -> Self {
        self.limits = limits;
        self
    }

    /// The strategy.
    ///
    /// # Errors
    /// [`TpuError::Replicas`] if there are fewer devices than replicas,
    /// [`TpuError::Initialize`] if this process has no device at all.
    pub fn build(self) -> Result<TpuStrategy, TpuError> {
        let client = self.system.client();
        let all = client.devices();
        let mut own = client.addressable_devices();
        let processes = self.system.processes();
        let count = self.replicas.unwrap_or(all.len());
        let wrong = count == 0 || count > all.len() || (processes > 1 && count != all.len());
        if wrong || own.is_empty() {
            return Err(refuse_replicas(count, all.len(), &self.system.describe()));
        }
        own.truncate(count);
        let assignment: Vec<i64> = all
            .iter()
            .take(count)
            .map(|device| i64::from(device.id()))
            .collect();
        let number = |device: &Device| {
            let id = i64::from(device.id());
            assignment.iter().position(|other| *other == id)
        };
        let ids = own.iter().map(number).collect::<Option<Vec<_>>>();
        let unknown = || TpuError::Internal("a device of this process has no number".to_string());
        let replicas = ids.ok_or_else(unknown)?.into_iter();
        let replicas = replicas.map(|id| Replica::new(id, LogicalDevice::cpu(id)));
        let tracer = XlaTracer::new(client.clone(), own.clone(), assignment, self.limits);
        Ok(TpuStrategy {
            replicas: replicas.collect(),
            devices: own.into(),
            num_replicas: count,
            process: self.system.process(),
            processes,
            tracer: Arc::new(tracer),
            id: StrategyId::new("tpu", count),
        })
    }
}

impl Strategy for TpuStrategy {
    fn name(&self) -> &'static str {
        "tpu"
    }

    fn num_replicas_in_sync(&self) -> usize {
        self.num_replicas
    }

    fn replicas(&self) -> &[Replica] {
        &self.replicas
    }

    fn input_context(&self) -> InputContext {
        InputContext {
            num_input_pipelines: self.processes,
            input_pipeline_id: self.process,
            num_replicas_in_sync: self.num_replicas,
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
        Err(Error::from(TraceError::Unsupported {
            what: "`run_replicas`".to_string(),
            instead: "a TPU runs compiled steps only: call `run`".to_string(),
        }))
    }
}

impl fmt::Debug for TpuStrategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TpuStrategy")
            .field("replicas", &self.num_replicas)
            .field("programs", &self.statistics())
            .finish_non_exhaustive()
    }
}
