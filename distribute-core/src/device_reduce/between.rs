//! NCCL between workers: all use it, or none.

use distribute_collectives::{CollectiveError, CommunicationOptions};
use serde::{Deserialize, Serialize};

use super::plan::{DevicePlan, Outcome, is_unavailable};
use crate::device::{JoinWorkers, SharedGroup};
use crate::{DeviceReduction, Result, WorkerGroup};

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
    pub(crate) replicas: usize,
    /// How its own replicas reduce.
    pub(crate) plan: &'a DevicePlan,
    /// Its way to the others, if all of its replicas are on GPUs.
    pub(crate) join: Option<JoinWorkers>,
    pub(crate) options: CommunicationOptions,
}

impl Worker<'_> {
    fn offer(&self) -> Offer {
        let refusal = match (&self.join, &self.group) {
            _ if self.wanted == DeviceReduction::HostMemory => Some("RING was asked for"),
            (None, _) => Some("it has a replica that is not on a GPU"),
            (_, None) => Some("its group is a communicator of the caller's"),
            _ if self.replicas > 1 && !self.plan.is_on_device() => {
                Some("its own replicas reduce through host memory")
            }
            _ => None,
        };
        Offer {
            insists: self.wanted == DeviceReduction::Nccl,
            has_gpus: self.join.is_some(),
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
        let connected = match (self.join, self.group) {
            (Some(join), Some(group)) if refusals.is_empty() => join(group, self.options),
            _ => Err(CollectiveError::unavailable("NCCL", refusals.join("; ")).into()),
        };
        match connected {
            Ok(reducer) => {
                let outcome = Outcome::on_devices(&*reducer);
                workers.set_device_reducer(reducer);
                Ok(Some(outcome.text))
            }
            Err(error) if !insists && is_unavailable(&error) => {
                Ok(has_gpus.then(|| Outcome::through_host(error).text))
            }
            Err(error) => Err(error),
        }
    }
}
