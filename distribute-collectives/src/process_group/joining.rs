//! From ranks that have met to a communicator.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use distribute_net::address;

use crate::communicator::Communicator;
use crate::control::ControlPlane;
use crate::error::{CollectiveError, Result};
use crate::flight_record::Recorded;
use crate::grpc::{GrpcTransport, LanePeer, LinkConfig, Links, stall_limit};
use crate::link_cost::{ALL_TO_ALL_MAX, LinkCost, remembered};
use crate::messages::TransportCommunicator;
use crate::options::Algorithm;
use crate::process_group::communicator::ProcessCommunicator;
use crate::process_group::options::ProcessGroupOptions;
use crate::status::GroupStatus;
use crate::transport::Transport;

/// What joining has found out so far.
pub(super) struct Joining {
    pub(super) options: ProcessGroupOptions,
    pub(super) control: ControlPlane,
    pub(super) status: Arc<GroupStatus>,
    pub(super) address: SocketAddr,
    #[cfg_attr(
        not(feature = "shm"),
        expect(dead_code, reason = "only memory is shared while the ranks meet")
    )]
    pub(super) deadline: Instant,
}

/// Ranks whose port is reached for data at another address than their own.
pub(super) type Routes = BTreeMap<usize, SocketAddr>;

impl Joining {
    /// The endpoint over gRPC between all ranks.
    pub(super) fn over_grpc(self, routes: &Routes) -> Result<ProcessCommunicator> {
        let links = self.links(&[], routes)?;
        let (status, abort) = (self.status.clone(), self.control.abort_target());
        let timeout = self.options.group.timeout;
        self.over(GrpcTransport::new(links, status, abort, timeout), None)
    }

    /// The endpoint over a transport of segments. Where [`Algorithm::Auto`] decides, all ranks
    /// find out together from what; `ranks_per_host` when each host has the same number.
    pub(super) fn over(
        self,
        transport: impl Transport + 'static,
        ranks_per_host: Option<usize>,
    ) -> Result<ProcessCommunicator> {
        let group = &self.options.group;
        let has_choice = (2..=ALL_TO_ALL_MAX).contains(&transport.world_size());
        let is_choosing = group.algorithm == Algorithm::Auto && has_choice;
        let mut inner = TransportCommunicator::new(transport, group.clone())?;
        inner.know_hosts(ranks_per_host);
        let link_cost = if is_choosing {
            Some(self.decide(&mut inner)?)
        } else {
            None
        };
        if let (Some(cost), Some(path)) = (link_cost, &self.options.link_memory)
            && let Err(error) = remembered::remember(path, &self.linked(), cost)
        {
            tracing::debug!(%error, path = %path.display(), "cannot remember what links cost");
        }
        Ok(self.finish(inner, link_cost))
    }

    /// The costs that are known already, or else they are measured.
    fn decide(&self, inner: &mut TransportCommunicator<impl Transport>) -> Result<LinkCost> {
        let Some(cost) = self.agreed_link_cost()? else {
            return inner.measure_links();
        };
        inner.know_links(cost);
        Ok(cost)
    }

    /// The group as costs of links are remembered for it: what carries the bytes between which
    /// hosts. Ports change from start to start.
    fn linked(&self) -> String {
        let options = &self.options;
        let hosts: Vec<&str> = options
            .addresses
            .iter()
            .map(|address| {
                let host = address.as_deref().and_then(|it| address::split(it).ok());
                host.map_or("?", |(host, _)| host)
            })
            .collect();
        format!(
            "{} {} {}",
            options.transport,
            options.lanes,
            hosts.join(" ")
        )
    }

    /// The costs that were given or are remembered, when all ranks have some: the worst of each.
    fn agreed_link_cost(&self) -> Result<Option<LinkCost>> {
        let options = &self.options;
        let memory = options.link_memory.as_deref();
        let recalled = || remembered::recall(memory?, &self.linked());
        let own = options.link_cost.or_else(recalled);
        let all = self
            .control
            .all_gather(&own.map_or_else(Vec::new, LinkCost::to_bytes))?;
        let costs = all.iter().map(|bytes| LinkCost::from_bytes(bytes));
        Ok(costs.reduce(|a, b| Some(a?.worst(&b?))).flatten())
    }

    pub(super) fn finish(
        self,
        inner: impl Communicator + 'static,
        link_cost: Option<LinkCost>,
    ) -> ProcessCommunicator {
        let recorded = Recorded::new(inner).starting_at(self.status.completed());
        ProcessCommunicator {
            inner: match self.options.flight_records {
                Some(directory) => Box::new(recorded.directory(directory)),
                None => Box::new(recorded),
            },
            address: self.address,
            link_cost,
            #[cfg(feature = "nccl")]
            status: self.status,
            _control: self.control,
        }
    }

    /// Links to all ranks but those that are reached `in_memory`: they are connected when an
    /// operation needs them.
    pub(super) fn links(&self, in_memory: &[usize], routes: &Routes) -> Result<Links> {
        let options = &self.options;
        let mut peers = vec![None; options.addresses.len()];
        for peer in self.control.peers() {
            if in_memory.contains(&peer.rank) {
                continue;
            }
            let refuse = |reason: String| CollectiveError::InvalidOption {
                what: format!(
                    "cannot use the address {} of rank {}: {reason}",
                    peer.address, peer.rank
                ),
            };
            address::split(&peer.address).map_err(refuse)?;
            peers[peer.rank] = Some(LanePeer {
                address: peer.address.clone(),
                route: routes.get(&peer.rank).copied(),
                secret: self.control.secret_with(peer.rank),
            });
        }
        let own = options.addresses.get(options.rank);
        let own = own
            .and_then(Option::as_deref)
            .and_then(|it| address::split(it).ok());
        let config = LinkConfig {
            rank: options.rank,
            own_ip: self.address.ip(),
            own_host: own.map_or_else(String::new, |(host, _)| host.to_string()),
            max_message_bytes: options.max_message_bytes,
            stall_limit: stall_limit(options.silence_limit()),
            idle_limit: options.idle_limit,
            status: self.status.clone(),
        };
        Links::new(config, self.control.doorway(), peers)
    }
}
