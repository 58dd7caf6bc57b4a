//! One rank's endpoint of a group of processes.

use std::net::SocketAddr;
#[cfg(feature = "nccl")]
use std::sync::Arc;

use crate::communicator::Communicator;
use crate::control::ControlPlane;
use crate::forward::forward_communicator;
use crate::link_cost::LinkCost;
#[cfg(feature = "nccl")]
use crate::status::GroupStatus;

/// One rank's endpoint of a group of processes; see
/// [`ProcessGroupOptions`](crate::ProcessGroupOptions).
///
/// Dropping it takes this rank out of the group: what it still owes to the others is sent, they
/// are told, and its thread and connections end.
pub struct ProcessCommunicator {
    /// Over whatever carries the bytes of this group; its calls are recorded.
    pub(super) inner: Box<dyn Communicator>,
    pub(super) address: SocketAddr,
    pub(super) link_cost: Option<LinkCost>,
    #[cfg(feature = "nccl")]
    pub(crate) status: Arc<GroupStatus>,
    /// Says goodbye when it is dropped, after all data has gone out. Held for that only.
    pub(super) _control: ControlPlane,
}

impl ProcessCommunicator {
    /// What the links were measured to cost when the group was made; `None` where it does not
    /// matter: in shared memory, in a group of more than 64 ranks, or when an algorithm was asked
    /// for by name.
    pub fn link_cost(&self) -> Option<LinkCost> {
        self.link_cost
    }

    /// The address on which the other ranks, and any gRPC client, reach this rank's control
    /// services.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

forward_communicator!(ProcessCommunicator, inner in [ProcessCommunicator { inner, .. }]);
