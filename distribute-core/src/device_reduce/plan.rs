//! Whether a strategy reduces gradients on its devices, and why.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, OnceLock};

use distribute_collectives::CollectiveError;

use crate::{DeviceReducer, DeviceReducers, DeviceReduction, Error, LogicalDevice, Result};

/// How the replicas of one process reduce gradients. Made once per strategy, used for each of its
/// groups.
#[derive(Debug, Clone, Default)]
pub(crate) struct DevicePlan {
    pub(super) wanted: DeviceReduction,
    /// The caller's own reducers, or the reducers of the kind of GPU that all replicas are on.
    pub(super) reducers: Option<Arc<dyn DeviceReducers>>,
    /// Whether the replicas of the process are reduced with them.
    between_replicas: bool,
    /// The decision, once made.
    outcome: Arc<OnceLock<Outcome>>,
}

/// The route of the gradients, and the strategy's description of it.
#[derive(Debug)]
pub(crate) struct Outcome {
    is_on_devices: bool,
    pub(crate) text: String,
}

impl Outcome {
    pub(crate) fn on_devices(reducer: &dyn DeviceReducer) -> Self {
        Self {
            is_on_devices: true,
            text: format!("gradients stay on the devices: {}", reducer.describe()),
        }
    }

    pub(crate) fn through_host(reason: impl fmt::Display) -> Self {
        Self {
            is_on_devices: false,
            text: format!("gradients go through host memory: {reason}"),
        }
    }
}

/// The reducers of the replicas; `None` for those whose gradients go through host memory.
type Reducers = Vec<Option<Box<dyn DeviceReducer>>>;

impl DevicePlan {
    /// `own` are the caller's reducers, used instead of the reducers of the wanted kind.
    ///
    /// # Errors
    /// If a reduction that is wanted by name does not fit the devices.
    pub(crate) fn new(
        wanted: DeviceReduction,
        own: Option<Arc<dyn DeviceReducers>>,
        devices: &[LogicalDevice],
        timeout: std::time::Duration,
    ) -> Result<Self> {
        let kinds: Vec<_> = devices
            .iter()
            .filter_map(|device| match device {
                LogicalDevice::Gpu(kind, _) => Some(*kind),
                LogicalDevice::Cpu(_) => None,
            })
            .collect();
        let gpus = kinds.len();
        let distinct: BTreeSet<_> = devices.iter().collect();
        let is_shared = own.is_none() && distinct.len() < devices.len();
        let by_name = matches!(wanted, DeviceReduction::Nccl | DeviceReduction::Burn);
        if by_name && own.is_none() && gpus < devices.len() {
            let reason = "it reduces the memory of GPUs, and a replica of this strategy is on a \
                          CPU; put every replica on a GPU, or use auto";
            return Err(CollectiveError::unavailable(wanted.name(), reason).into());
        }
        if by_name && is_shared {
            let reason = "it needs a GPU for each replica, and several replicas share one; put one \
                          replica on each GPU, or use auto";
            return Err(CollectiveError::unavailable(wanted.name(), reason).into());
        }
        let reducers = match kinds.first() {
            Some(kind) if own.is_none() && gpus == devices.len() => {
                Some(kind.reducers(wanted, timeout))
            }
            _ => own,
        };
        let refusal = match &reducers {
            _ if wanted == DeviceReduction::HostMemory => Some("asked for by name"),
            None => Some("some replicas are on CPUs"),
            Some(_) if is_shared => Some("several replicas share a GPU"),
            Some(_) => None,
        };
        let several = devices.len() > 1;
        let plan = Self {
            wanted,
            reducers,
            between_replicas: several && refusal.is_none(),
            outcome: Arc::default(),
        };
        if let Some(refusal) = refusal.filter(|_| several && gpus > 0) {
            plan.conclude(Outcome::through_host(refusal));
        }
        Ok(plan)
    }

    fn conclude(&self, outcome: Outcome) {
        self.outcome.get_or_init(|| {
            tracing::info!("{}", outcome.text);
            outcome
        });
    }

    /// The decision, once made.
    pub(crate) fn outcome(&self) -> Option<&Outcome> {
        self.outcome.get()
    }

    /// Whether the replicas reduce in the memory of their devices, once the first group is made.
    pub(crate) fn is_on_device(&self) -> bool {
        self.outcome().is_some_and(|outcome| outcome.is_on_devices)
    }

    /// The reducers of a new group. With `Auto` the first group decides for all.
    ///
    /// # Errors
    /// What was asked for by name cannot be used, or a later group cannot be made.
    pub(crate) fn connect(&self, devices: &[LogicalDevice], generation: u64) -> Result<Reducers> {
        let none = || devices.iter().map(|_| None).collect();
        let may_be = self.outcome().is_none_or(|outcome| outcome.is_on_devices);
        let reducers = match &self.reducers {
            Some(reducers) if self.between_replicas && may_be => reducers,
            _ => return Ok(none()),
        };
        match reducers.connect(devices, generation) {
            Ok(list) => {
                if let Some(first) = list.first() {
                    self.conclude(Outcome::on_devices(&**first));
                }
                Ok(list.into_iter().map(Some).collect())
            }
            Err(error) if self.wanted == DeviceReduction::Auto && is_unavailable(&error) => {
                self.conclude(Outcome::through_host(error));
                Ok(none())
            }
            Err(error) => Err(error),
        }
    }
}

/// Whether something else can be used instead.
pub(crate) fn is_unavailable(error: &Error) -> bool {
    matches!(
        error,
        Error::Collective(CollectiveError::BackendUnavailable { .. })
    )
}
