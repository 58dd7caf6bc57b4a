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
    /// What came of it. Empty where there is nothing to tell.
    outcome: Arc<OnceLock<Outcome>>,
}

/// Which way the gradients go, and what a strategy tells of that.
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
                plan.tell(Outcome::through_host("asked for by name"));
                None
            }
            (DeviceReduction::HostMemory, _) => None,
            (_, Some(own)) => Some(own),
            (_, None) if gpus == 0 => None,
            (_, None) if gpus < devices.len() => {
                plan.tell(Outcome::through_host("some replicas are on CPUs"));
                None
            }
            (wanted, None) => Some(of_this_build(wanted, timeout)?),
        };
        Ok(Self { reducers, ..plan })
    }

    fn tell(&self, outcome: Outcome) {
        self.outcome.get_or_init(|| {
            tracing::info!("{}", outcome.text);
            outcome
        });
    }

    /// What came of it, once there is something to tell.
    pub(crate) fn outcome(&self) -> Option<&Outcome> {
        self.outcome.get()
    }

    /// Whether the replicas reduce in the memory of their devices, once the first group is made.
    #[cfg(feature = "nccl")]
    pub(crate) fn is_on_device(&self) -> bool {
        self.reducers.is_some() && self.outcome().is_some_and(|outcome| outcome.is_on_devices)
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
        if generation > 0 && self.outcome().is_some_and(|outcome| !outcome.is_on_devices) {
            return Ok(none());
        }
        match reducers.connect(devices, generation) {
            Ok(list) => {
                if let Some(first) = list.first() {
                    self.tell(Outcome::on_devices(&**first));
                }
                Ok(list.into_iter().map(Some).collect())
            }
            Err(error) if self.wanted == DeviceReduction::Auto && is_unavailable(&error) => {
                self.tell(Outcome::through_host(error));
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
