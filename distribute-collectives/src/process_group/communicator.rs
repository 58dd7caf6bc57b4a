//! One rank's endpoint of a group of processes.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use crate::communicator::Communicator;
use crate::control::ControlPlane;
#[cfg(feature = "nccl")]
use crate::error::Result;
use crate::flight_record::Recorded;
use crate::forward::forward_communicator;
use crate::link_cost::LinkCost;
use crate::status::GroupStatus;

/// One rank's endpoint of a group of processes; see
/// [`ProcessGroupOptions`](crate::ProcessGroupOptions).
///
/// Dropping it takes this rank out of the group: what it still owes to the others is sent, they
/// are told, and its thread and connections end.
pub struct ProcessCommunicator {
    inner: Recorded<Carrier>,
    address: SocketAddr,
    link_cost: Option<LinkCost>,
    #[cfg(feature = "nccl")]
    status: Arc<GroupStatus>,
    /// Says goodbye when it is dropped, after all data has gone out. Held for that only.
    _control: ControlPlane,
}

/// A communicator over whatever carries the bytes of this group.
struct Carrier(Box<dyn Communicator>);

impl ProcessCommunicator {
    /// What the links were measured to cost when the group was made; `None` where it does not
    /// matter: in shared memory, or when an algorithm was asked for by name.
    pub fn link_cost(&self) -> Option<LinkCost> {
        self.link_cost
    }

    /// The address on which the other ranks, and any gRPC client, reach this rank's control
    /// services.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The endpoint of a group that has just met.
    pub(super) fn new(
        inner: Box<dyn Communicator>,
        link_cost: Option<LinkCost>,
        address: SocketAddr,
        flight_records: Option<PathBuf>,
        status: Arc<GroupStatus>,
        control: ControlPlane,
    ) -> Self {
        let recorded = Recorded::new(Carrier(inner)).starting_at(status.completed());
        ProcessCommunicator {
            inner: match flight_records {
                Some(directory) => recorded.directory(directory),
                None => recorded,
            },
            address,
            link_cost,
            #[cfg(feature = "nccl")]
            status,
            _control: control,
        }
    }

    /// The failure that the group has heard of; see [`GroupStatus::health`].
    #[cfg(feature = "nccl")]
    pub(crate) fn check_health(
        &self,
        header: &crate::OperationHeader,
        peer: Option<usize>,
    ) -> Result<()> {
        self.status.health(header, peer)
    }
}

forward_communicator!(Carrier, inner in [Carrier(inner)]);

forward_communicator!(ProcessCommunicator, inner in [ProcessCommunicator { inner, .. }]);
