//! The strategies that are checked, with their devices.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use distribute_core::{
    CentralStorageStrategy, CrossDeviceOps, DefaultStrategy, LogicalDevice, MirroredStrategy,
    OneDeviceStrategy, Result, Strategy,
};

use crate::case::{Case, StrategyKind};
use crate::golden::FamilyName;
use crate::outcome::Rule;

/// How long a replica may wait for another one before a case fails.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Makes the strategy that a case needs.
pub trait StrategyFactory: Send + Sync {
    /// The name on the command line and in reports.
    fn name(&self) -> &str;

    /// The strategy of TensorFlow that it stands for, whose cases it gets.
    fn kind(&self) -> StrategyKind;

    /// Whether it gets this case; by default each case of its [`kind`](Self::kind).
    fn takes(&self, family: FamilyName, case: &Case) -> bool {
        let _ = family;
        case.strategy.kind == self.kind()
    }

    /// Why a case that it gets does not apply to it, by a rule on what the case holds; all apply by
    /// default. Such a case has to be refused with an error about compiled steps, else it counts
    /// as any other; only for [`Rule::FewDevices`] it does not run.
    fn not_applicable(&self, family: FamilyName, case: &Case) -> Option<Rule> {
        let _ = (family, case);
        None
    }

    /// A strategy with one replica per device, in this order.
    ///
    /// # Errors
    /// Fails the case.
    fn strategy(&self, devices: &[LogicalDevice]) -> Result<Arc<dyn Strategy>>;

    /// The same with other cross-device ops, for the cases that name them. `None` if they are
    /// not exchangeable; those cases then use [`strategy`](Self::strategy), whose sums must be
    /// the same.
    fn strategy_with(
        &self,
        devices: &[LogicalDevice],
        ops: Arc<dyn CrossDeviceOps>,
    ) -> Option<Result<Arc<dyn Strategy>>> {
        let _ = (devices, ops);
        None
    }
}

/// Devices and a strategy on them.
#[derive(Clone)]
pub struct Backend {
    factory: Arc<dyn StrategyFactory>,
    device: Arc<dyn Fn(usize) -> LogicalDevice + Send + Sync>,
}

impl Backend {
    /// This strategy on the logical devices `cpu:0`, `cpu:1`, ...
    pub fn new(factory: impl StrategyFactory + 'static) -> Self {
        Self {
            factory: Arc::new(factory),
            device: Arc::new(LogicalDevice::cpu),
        }
    }

    /// Other devices; the closure is given the index among a case's replicas.
    #[must_use]
    pub fn on(mut self, device: impl Fn(usize) -> LogicalDevice + Send + Sync + 'static) -> Self {
        self.device = Arc::new(device);
        self
    }

    /// The strategies of `distribute-core` on the CPU.
    pub fn built_in() -> Vec<Self> {
        let kinds = [
            StrategyKind::Default,
            StrategyKind::OneDevice,
            StrategyKind::Mirrored,
            StrategyKind::CentralStorage,
        ];
        kinds.map(|kind| Self::new(BuiltIn(kind))).into()
    }

    /// The name of the strategy.
    pub fn name(&self) -> &str {
        self.factory.name()
    }

    /// Which cases it gets.
    pub fn kind(&self) -> StrategyKind {
        self.factory.kind()
    }

    pub(crate) fn takes(&self, family: FamilyName, case: &Case) -> bool {
        self.factory.takes(family, case)
    }

    pub(crate) fn not_applicable(&self, family: FamilyName, case: &Case) -> Option<Rule> {
        self.factory.not_applicable(family, case)
    }

    /// A new strategy.
    ///
    /// # Errors
    /// The factory's.
    pub fn strategy(&self, replicas: usize) -> Result<Arc<dyn Strategy>> {
        self.factory.strategy(&self.devices(replicas))
    }

    pub(crate) fn strategy_with(
        &self,
        replicas: usize,
        ops: Arc<dyn CrossDeviceOps>,
    ) -> Result<Arc<dyn Strategy>> {
        let devices = self.devices(replicas);
        let exchanged = self.factory.strategy_with(&devices, ops);
        exchanged.unwrap_or_else(|| self.factory.strategy(&devices))
    }

    fn devices(&self, replicas: usize) -> Vec<LogicalDevice> {
        (0..replicas).map(|index| (self.device)(index)).collect()
    }
}

impl fmt::Debug for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Backend")
            .field("name", &self.name())
            .field("kind", &self.kind())
            .finish_non_exhaustive()
    }
}

/// A strategy of `distribute-core`.
struct BuiltIn(StrategyKind);

impl StrategyFactory for BuiltIn {
    fn name(&self) -> &str {
        match self.0 {
            StrategyKind::OneDevice => "one-device",
            StrategyKind::Mirrored => "mirrored",
            StrategyKind::CentralStorage => "central-storage",
            _ => "default",
        }
    }

    fn kind(&self) -> StrategyKind {
        self.0
    }

    fn strategy(&self, devices: &[LogicalDevice]) -> Result<Arc<dyn Strategy>> {
        Ok(match self.0 {
            StrategyKind::OneDevice => {
                let device = devices.first().copied().unwrap_or(LogicalDevice::cpu(0));
                Arc::new(OneDeviceStrategy::new(device)?)
            }
            StrategyKind::Mirrored => {
                let builder = MirroredStrategy::builder().timeout(TIMEOUT);
                Arc::new(builder.devices(devices.iter().copied()).build()?)
            }
            StrategyKind::CentralStorage => {
                Arc::new(CentralStorageStrategy::new(devices.iter().copied())?)
            }
            _ => Arc::new(DefaultStrategy::new()),
        })
    }

    fn strategy_with(
        &self,
        devices: &[LogicalDevice],
        ops: Arc<dyn CrossDeviceOps>,
    ) -> Option<Result<Arc<dyn Strategy>>> {
        if self.0 != StrategyKind::Mirrored {
            return None;
        }
        Some(mirrored_with(devices, ops))
    }
}

/// `MirroredStrategy` with these cross-device ops.
pub(crate) fn mirrored_with(
    devices: &[LogicalDevice],
    ops: Arc<dyn CrossDeviceOps>,
) -> Result<Arc<dyn Strategy>> {
    let builder = MirroredStrategy::builder().timeout(TIMEOUT);
    let builder = builder.devices(devices.iter().copied());
    Ok(Arc::new(
        builder
            .cross_device_ops(SharedCrossDeviceOps(ops))
            .build()?,
    ))
}

/// Cross-device ops that several strategies share.
#[derive(Debug)]
struct SharedCrossDeviceOps(Arc<dyn CrossDeviceOps>);

impl CrossDeviceOps for SharedCrossDeviceOps {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn all_reduce(
        &self,
        communicator: &mut dyn distribute_collectives::Communicator,
        op: distribute_collectives::ReduceOp,
        buffers: &mut [distribute_collectives::Buffer<'_>],
    ) -> Result<()> {
        self.0.all_reduce(communicator, op, buffers)
    }
}
