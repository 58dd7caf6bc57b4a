//! One rank's endpoint of a group of processes.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::control::ControlPlane;
use crate::error::Result;
use crate::flight_record::{FlightRecorder, Recorded};
use crate::forward::forward_communicator;
use crate::grpc::GrpcTransport;
use crate::link_cost::LinkCost;
use crate::messages::TransportCommunicator;
use crate::options::Algorithm;
use crate::process_group::hosts::Hosts;
use crate::process_group::mixed::MixedTransport;
use crate::process_group::options::ProcessGroupOptions;
use crate::shared_memory::{LocalTransport, SharedMemoryCommunicator};
use crate::status::GroupStatus;

/// How long a rank that leaves waits for the others to take what it has sent.
const FLUSH_PATIENCE: Duration = Duration::from_secs(2);

/// One rank's endpoint of a group of processes; see
/// [`ProcessGroupOptions`](crate::ProcessGroupOptions).
///
/// Dropping it takes this rank out of the group: what it still owes to the others is sent, they
/// are told, and its thread and connections end.
pub struct ProcessCommunicator {
    inner: Recorded<Inner>,
    address: SocketAddr,
    link_cost: Option<LinkCost>,
    status: Arc<GroupStatus>,
    /// Says goodbye when it is dropped, after all data has gone out. Held for that only.
    _control: ControlPlane,
}

pub(super) enum Inner {
    SharedMemory(Box<SharedMemoryCommunicator>),
    Local(Box<TransportCommunicator<LocalTransport>>),
    Grpc(Box<TransportCommunicator<GrpcTransport>>),
    Mixed(Box<TransportCommunicator<MixedTransport>>),
}

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

    /// The endpoint of a group that has just met. All ranks find out together what
    /// [`Algorithm::Auto`] decides from.
    pub(super) fn new(
        mut inner: Inner,
        control: ControlPlane,
        status: Arc<GroupStatus>,
        address: SocketAddr,
        options: &ProcessGroupOptions,
        hosts: &Hosts,
    ) -> Result<Self> {
        let choosing = options.group.get_algorithm() == Algorithm::Auto && hosts.ranks() > 1;
        let link_cost = match choosing {
            true => inner.decide(agree(&control, options.link_cost)?, hosts)?,
            false => None,
        };
        let recorded = Recorded::new(inner).starting_at(status.completed());
        Ok(ProcessCommunicator {
            inner: match &options.flight_records {
                Some(directory) => recorded.directory(directory),
                None => recorded,
            },
            address,
            link_cost,
            status,
            _control: control,
        })
    }

    /// The last operations of this rank; see [`FlightRecorder`].
    pub fn flight_recorder(&self) -> FlightRecorder {
        self.inner.recorder()
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

    /// Hands what this rank still owes to the kernel, so that closing loses nothing.
    fn flush(&mut self) {
        if !self.status.is_healthy() {
            return;
        }
        let deadline = Instant::now() + FLUSH_PATIENCE;
        match self.inner.get_mut() {
            Inner::Grpc(inner) => inner.transport_mut().flush(deadline),
            Inner::Mixed(inner) => inner.transport_mut().flush(deadline),
            Inner::SharedMemory(_) | Inner::Local(_) => {}
        }
    }
}

/// The costs that were given, when they were given to all ranks: the worst of each.
fn agree(control: &ControlPlane, own: Option<LinkCost>) -> Result<Option<LinkCost>> {
    let all = control.all_gather(&own.map_or_else(Vec::new, LinkCost::to_bytes))?;
    let costs = all.iter().map(|bytes| LinkCost::from_bytes(bytes));
    Ok(costs.reduce(|a, b| Some(a?.worst(&b?))).flatten())
}

impl Inner {
    fn decide(&mut self, known: Option<LinkCost>, hosts: &Hosts) -> Result<Option<LinkCost>> {
        let ranks_per_host = hosts.ranks_per_host().filter(|ranks| *ranks > 1);
        let ranks_per_host = ranks_per_host.filter(|_| hosts.count() > 1);
        Ok(match self {
            Inner::SharedMemory(_) => None,
            Inner::Local(inner) => Some(inner.decide(known, ranks_per_host)?),
            Inner::Grpc(inner) => Some(inner.decide(known, ranks_per_host)?),
            Inner::Mixed(inner) => Some(inner.decide(known, ranks_per_host)?),
        })
    }
}

impl Drop for ProcessCommunicator {
    fn drop(&mut self) {
        self.flush();
    }
}

forward_communicator!(
    Inner,
    inner in [
        Inner::SharedMemory(inner),
        Inner::Local(inner),
        Inner::Grpc(inner),
        Inner::Mixed(inner),
    ]
);

forward_communicator!(ProcessCommunicator, inner in [ProcessCommunicator { inner, .. }]);
