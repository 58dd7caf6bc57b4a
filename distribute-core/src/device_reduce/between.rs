//! NCCL between workers: all use it, or none.

use distribute_collectives::CollectiveError;
use serde::{Deserialize, Serialize};

use super::plan::{DevicePlan, Outcome, is_unavailable};
use crate::communication::CommunicationOptions;
use crate::device::SharedGroup;
use crate::{DeviceReduction, LogicalDevice, Result, WorkerGroup};

/// Why a worker whose gradients are to travel as another type does not take NCCL.
const WIRE: &str = "a wire type was asked for, which NCCL has not: leave it out to reduce on the \
                    devices, or ask for AUTO or RING to reduce through host memory with it";

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

impl DevicePlan {
    /// Decides with the other workers how gradients are reduced between them, and connects them:
    /// beside `shared`, a handle of their group, which a group of the caller's does not have. All
    /// of them call it together. Returns the decision in words, if there is one.
    ///
    /// # Errors
    /// On all workers, if one was asked for NCCL by name and it cannot be used.
    pub(crate) fn join_workers(
        &self,
        workers: &WorkerGroup,
        shared: Option<SharedGroup>,
        devices: &[LogicalDevice],
        options: CommunicationOptions,
    ) -> Result<Option<String>> {
        let join = (self.reducers.as_ref()).and_then(|own| own.between_workers(devices));
        let refusal = match (&join, &shared) {
            _ if self.wanted == DeviceReduction::HostMemory => Some("RING was asked for"),
            (None, _) => Some("it has a replica that is not on a GPU"),
            _ if options.wire.is_some() => Some(WIRE),
            (_, None) => Some("its group is a communicator of the caller's"),
            _ if devices.len() > 1 && !self.is_on_device() => {
                Some("its own replicas reduce through host memory")
            }
            _ => None,
        };
        let offer = Offer {
            insists: self.wanted == DeviceReduction::Nccl,
            has_gpus: join.is_some(),
            refusal: refusal.map(String::from),
        };
        let offers = workers.all_gather_json("who reduces gradients", &offer)?;
        let insists = offers.iter().any(|offer| offer.insists);
        let has_gpus = offers.iter().any(|offer| offer.has_gpus);
        let refusals: Vec<String> = (offers.iter().enumerate())
            .filter_map(|(worker, offer)| {
                let refusal = offer.refusal.as_ref()?;
                Some(format!("worker {worker}: {refusal}"))
            })
            .collect();
        let connected = match (join, shared) {
            (Some(join), Some(shared)) if refusals.is_empty() => join(shared, options),
            _ => Err(CollectiveError::unavailable("NCCL", refusals.join("; ")).into()),
        };
        let outcome = match connected {
            Ok(reducer) => {
                let outcome = Outcome::on_devices(&*reducer);
                workers.set_device_reducer(reducer);
                outcome
            }
            Err(error) if insists || !is_unavailable(&error) => return Err(error),
            Err(_) if !has_gpus => return Ok(None),
            Err(error) => Outcome::through_host(error),
        };
        tracing::info!("between workers: {}", outcome.text);
        Ok(Some(outcome.text))
    }
}
