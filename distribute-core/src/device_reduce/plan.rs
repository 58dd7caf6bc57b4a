//! Whether a strategy reduces gradients on its devices, and why.

use std::fmt;
use std::sync::{Arc, OnceLock};

use distribute_collectives::CollectiveError;

use super::{DeviceReducer, DeviceReducers, DeviceReduction};
use crate::{Error, LogicalDevice, Result};

/// How the replicas of one process reduce gradients. Made once per strategy, used for each of its
/// groups.
#[derive(Clone, Default)]
pub(crate) struct DevicePlan {
    wanted: DeviceReduction,
    reducers: Option<Arc<dyn DeviceReducers>>,
    /// What came of it, in words. Empty where there is nothing to tell.
    outcome: Arc<OnceLock<String>>,
}

impl fmt::Debug for DevicePlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DevicePlan")
            .field("wanted", &self.wanted)
            .field("reducers", &self.reducers)
            .field("outcome", &self.outcome)
            .finish()
    }
}

/// The reducers of the replicas; `None` for those whose gradients go through host memory.
type Reducers = Vec<Option<Box<dyn DeviceReducer>>>;

impl DevicePlan {
    /// `own` are reducers of the caller, instead of those that the wish stands for.
    ///
    /// # Errors
    /// If a wish by name does not fit the devices.
    pub(crate) fn new(
        wanted: DeviceReduction,
        own: Option<Arc<dyn DeviceReducers>>,
        devices: &[LogicalDevice],
        timeout: std::time::Duration,
    ) -> Result<Self> {
        let gpus = devices.iter().filter(|device| device.is_gpu()).count();
        let by_name = matches!(wanted, DeviceReduction::Nccl | DeviceReduction::Burn);
        if by_name && own.is_none() && gpus < devices.len() {
            return Err(unavailable(
                wanted,
                "it reduces the memory of GPUs, and a replica of this strategy is on a CPU; put \
                 every replica on a GPU, or use auto",
            ));
        }
        let plan = Self {
            wanted,
            reducers: None,
            outcome: Arc::default(),
        };
        let several = devices.len() > 1;
        let reducers = match (wanted, own) {
            _ if !several => None,
            (DeviceReduction::HostMemory, _) if gpus > 0 => {
                plan.tell("gradients go through host memory: asked for by name");
                None
            }
            (DeviceReduction::HostMemory, _) => None,
            (_, Some(own)) => Some(own),
            (_, None) if gpus == 0 => None,
            (_, None) if gpus < devices.len() => {
                plan.tell("gradients go through host memory: some replicas are on CPUs");
                None
            }
            (wanted, None) => Some(of_this_build(wanted, timeout)?),
        };
        Ok(Self { reducers, ..plan })
    }

    fn tell(&self, outcome: &str) {
        if self.outcome.set(outcome.to_string()).is_ok() {
            tracing::info!("{outcome}");
        }
    }

    /// What came of it, in words, once there is something to tell.
    pub(crate) fn outcome(&self) -> Option<&str> {
        self.outcome.get().map(String::as_str)
    }

    /// Whether the replicas reduce in the memory of their devices, once the first group is made.
    #[cfg(feature = "nccl")]
    pub(crate) fn is_on_device(&self) -> bool {
        let decided = self
            .outcome()
            .is_some_and(|outcome| !is_through_host(outcome));
        self.reducers.is_some() && decided
    }

    /// The reducers of a new group. With `Auto` the first group decides for all.
    ///
    /// # Errors
    /// What was asked for by name cannot be used, or a later group cannot be made.
    pub(crate) fn connect(&self, devices: &[LogicalDevice], generation: u64) -> Result<Reducers> {
        let none = || devices.iter().map(|_| None).collect();
        let Some(reducers) = &self.reducers else {
            return Ok(none());
        };
        if generation > 0 && self.outcome().is_some_and(is_through_host) {
            return Ok(none());
        }
        match reducers.connect(devices, generation) {
            Ok(list) => {
                if let Some(first) = list.first() {
                    self.tell(&format!(
                        "gradients stay on the devices: {}",
                        first.describe()
                    ));
                }
                Ok(list.into_iter().map(Some).collect())
            }
            Err(error) if self.wanted == DeviceReduction::Auto && is_unavailable(&error) => {
                self.tell(&through_host(&error));
                Ok(none())
            }
            Err(error) => Err(error),
        }
    }
}

const THROUGH_HOST: &str = "gradients go through host memory";

fn is_through_host(outcome: &str) -> bool {
    outcome.starts_with(THROUGH_HOST)
}

/// How a strategy tells that it goes on without a device's own way.
pub(crate) fn through_host(reason: &dyn fmt::Display) -> String {
    format!("{THROUGH_HOST}: {reason}")
}

/// Whether something else can be used instead.
pub(crate) fn is_unavailable(error: &Error) -> bool {
    matches!(
        error,
        Error::Collective(CollectiveError::BackendUnavailable { .. })
    )
}

fn unavailable(wanted: DeviceReduction, reason: &str) -> Error {
    CollectiveError::unavailable(wanted.to_string(), reason).into()
}

/// The reducers of GPUs that this build has.
#[cfg(feature = "cuda")]
fn of_this_build(
    wanted: DeviceReduction,
    timeout: std::time::Duration,
) -> Result<Arc<dyn DeviceReducers>> {
    Ok(match wanted {
        DeviceReduction::Burn => Arc::new(crate::cuda::BurnReducers),
        _ => Arc::new(crate::cuda::nccl_reducers(timeout)),
    })
}

#[cfg(not(feature = "cuda"))]
fn of_this_build(
    wanted: DeviceReduction,
    _: std::time::Duration,
) -> Result<Arc<dyn DeviceReducers>> {
    Err(unavailable(wanted, crate::device::WITHOUT_CUDA))
}
