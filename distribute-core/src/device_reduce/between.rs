//! NCCL between workers: all use it, or none.

use std::sync::Arc;

use distribute_collectives::nccl::{NcclCommunicator, SharedGroup};
use distribute_collectives::{CollectiveError, CommunicationOptions};
use serde::{Deserialize, Serialize};

use super::nccl::NcclReducers;
use super::plan::{DevicePlan, Outcome};
use super::{DeviceReducer, DeviceReduction, NcclReducer};
use crate::{Error, LogicalDevice, Result, WorkerGroup};

/// What a worker tells the others before they decide together.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Offer {
    /// Whether it was asked for NCCL by name.
    insists: bool,
    /// Whether it has GPUs at all.
    has_gpus: bool,
    /// Why it cannot, or should not.
    refusal: Option<String>,
}

/// What a worker brings.
pub(crate) struct Worker<'a> {
    pub(crate) group: Option<SharedGroup>,
    pub(crate) wanted: DeviceReduction,
    pub(crate) devices: &'a [LogicalDevice],
    /// How its own replicas reduce.
    pub(crate) plan: &'a DevicePlan,
    pub(crate) reducers: Option<Arc<NcclReducers>>,
    pub(crate) options: CommunicationOptions,
}

impl Worker<'_> {
    fn offer(&self) -> Offer {
        let gpu = |reducers: &Arc<NcclReducers>| {
            let gpus = self.devices.iter().map(|device| (reducers.gpu)(*device));
            gpus.collect::<Option<Vec<_>>>()
        };
        let gpus = self.reducers.as_ref().and_then(gpu);
        let refusal = if self.wanted == DeviceReduction::HostMemory {
            Some("RING was asked for")
        } else if gpus.is_none() {
            Some("it has a replica that is not on a GPU")
        } else if self.group.is_none() {
            Some("its group is a communicator of the caller's")
        } else if self.devices.len() > 1 && !self.plan.is_on_device() {
            Some("its own replicas reduce through host memory")
        } else {
            None
        };
        Offer {
            insists: self.wanted == DeviceReduction::Nccl,
            has_gpus: gpus.is_some(),
            refusal: refusal.map(String::from),
        }
    }

    /// Decides with the other workers and connects them. All of them call it together. Returns what
    /// came of it in words, if there is something to tell.
    ///
    /// # Errors
    /// On all workers, if one was asked for NCCL by name and it cannot be used.
    pub(crate) fn connect(self, workers: &WorkerGroup) -> Result<Option<String>> {
        let offers = workers.all_gather_json("who reduces gradients", &self.offer())?;
        let insists = offers.iter().any(|offer| offer.insists);
        let has_gpus = offers.iter().any(|offer| offer.has_gpus);
        let refusals: Vec<String> = (offers.iter().enumerate())
            .filter_map(|(worker, offer)| {
                let refusal = offer.refusal.as_ref()?;
                Some(format!("worker {worker}: {refusal}"))
            })
            .collect();
        let connected = match refusals.is_empty() {
            true => self.nccl(),
            false => Err(CollectiveError::unavailable("NCCL", refusals.join("; "))),
        };
        match connected {
            Ok(reducer) => {
                let outcome = Outcome::on_devices(&*reducer);
                workers.set_device_reducer(reducer);
                Ok(Some(outcome.text))
            }
            Err(error @ CollectiveError::BackendUnavailable { .. }) if !insists => {
                Ok(has_gpus.then(|| Outcome::through_host(error).text))
            }
            Err(error) => Err(Error::Collective(error)),
        }
    }

    fn nccl(self) -> Result<Box<dyn DeviceReducer>, CollectiveError> {
        let unavailable = |reason| CollectiveError::unavailable("NCCL", reason);
        let (Some(group), Some(reducers)) = (self.group, self.reducers) else {
            return Err(unavailable("this worker has no GPU"));
        };
        let Some(device) = self.devices.first().copied() else {
            return Err(unavailable("this worker has no replica"));
        };
        let gpu = (reducers.gpu)(device).unwrap_or_default();
        let communicator = NcclCommunicator::new(group, reducers.options(gpu))?;
        let reducer = NcclReducer::new(communicator, (reducers.memory)(device), self.options);
        Ok(Box::new(reducer))
    }
}
