//! From addresses to a communicator.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use rustls::pki_types::ServerName;

use crate::communicator::AbortTarget;
use crate::control::{
    Announcement, ControlPlane, JoinOptions, Listener, data_proof, verify_data_proof,
};
use crate::error::{CollectiveError, Result};
use crate::grpc::{
    DataListener, DataTls, GrpcTransport, LinkConfig, Links, MESSAGE_BYTES_MIN, max_segment_bytes,
};
use crate::messages::TransportCommunicator;
use crate::options::Algorithm;
use crate::process_group::communicator::{Inner, ProcessCommunicator};
use crate::process_group::hosts::Hosts;
use crate::process_group::mixed::MixedTransport;
use crate::process_group::options::{ProcessGroupOptions, ProcessTransport};
use crate::shared_memory::{
    Attachment, LocalGroup, LocalTransport, Offer, SEGMENT_BYTES_MAX, Settings,
    SharedMemoryCommunicator, establish, find_leader,
};
use crate::status::GroupStatus;

/// A rank that listens but has not met the others yet; made by [`ProcessGroupOptions::bind`].
#[derive(Debug)]
pub struct BoundProcessGroup {
    options: ProcessGroupOptions,
    listener: Listener,
    data: DataListener,
    data_address: SocketAddr,
    routes: BTreeMap<usize, SocketAddr>,
}

impl ProcessGroupOptions {
    /// Listens at this rank's address. Port 0 takes any free one:
    /// [`BoundProcessGroup::address`] tells which.
    ///
    /// # Errors
    /// [`CollectiveError::Address`] when the address cannot be used,
    /// [`CollectiveError::InvalidOption`] when the rank is not in the list or a setting has a
    /// value that it cannot have.
    pub fn bind(self) -> Result<BoundProcessGroup> {
        self.check()?;
        let address = &self.addresses[self.rank];
        let listener = Listener::bind(self.rank, address, &self.security)?;
        let data = DataListener::bind(listener.local_addr().ip())?;
        let data_address = data
            .local_addr()
            .map_err(|error| CollectiveError::Address {
                rank: self.rank,
                address: address.clone(),
                reason: error.to_string(),
            })?;
        Ok(BoundProcessGroup {
            options: self,
            listener,
            data,
            data_address,
            routes: BTreeMap::new(),
        })
    }

    fn check(&self) -> Result<()> {
        let world_size = self.addresses.len();
        let what = if world_size == 0 {
            "a group has at least 1 rank: give the address of each".to_string()
        } else if self.rank >= world_size {
            format!("rank {} is not below the {world_size} addresses", self.rank)
        } else if self.lanes == 0 || self.lanes > 16 {
            format!("a pair of ranks has 1 to 16 lanes, not {}", self.lanes)
        } else if self.heartbeat_interval.is_zero() || self.heartbeat_misses == 0 {
            "heartbeats need an interval above 0 and at least 1 miss".to_string()
        } else {
            if let Some(cost) = &self.link_cost {
                cost.check()?;
            }
            self.check_sizes()?;
            return self.group.check_wire();
        };
        Err(CollectiveError::InvalidOption { what })
    }

    /// Refuses sizes that what carries the bytes cannot have, whichever it turns out to be.
    fn check_sizes(&self) -> Result<()> {
        if self.transport != ProcessTransport::Grpc {
            let limit = "a mailbox in shared memory";
            self.group.check_segment(SEGMENT_BYTES_MAX, limit)?;
        }
        if self.transport != ProcessTransport::SharedMemory {
            let bytes = self.max_message_bytes;
            if bytes < MESSAGE_BYTES_MIN {
                let what =
                    format!("max_message_bytes is at least {MESSAGE_BYTES_MIN}, not {bytes}");
                return Err(CollectiveError::InvalidOption { what });
            }
            let limit = format!("max_message_bytes {bytes}");
            self.group.check_segment(max_segment_bytes(bytes), &limit)?;
        }
        Ok(())
    }

    /// What all ranks must agree on, in words.
    pub(super) fn agreement(&self) -> String {
        let group = &self.group;
        format!(
            "algorithm {}, order {}, segments {:?}, wire {:?}, transport {}, {} lanes, \
             messages of {} bytes",
            group.get_algorithm(),
            group.get_order(),
            group.get_segment_bytes(),
            group.get_wire(),
            self.transport,
            self.lanes,
            // The limit of messages limits the segments.
            self.max_message_bytes
        )
    }
}

/// What joining has found out so far.
struct Joining {
    options: ProcessGroupOptions,
    control: ControlPlane,
    status: Arc<GroupStatus>,
    abort: Arc<dyn AbortTarget>,
    address: SocketAddr,
    deadline: Instant,
}

impl BoundProcessGroup {
    /// Where the other ranks reach this one.
    pub fn address(&self) -> SocketAddr {
        self.listener.local_addr()
    }

    /// Where this rank takes data connections. It tells the others itself.
    pub fn data_address(&self) -> SocketAddr {
        self.data_address
    }

    /// Reaches the data port of rank `peer` at another address than the one it announces: for
    /// forwarded ports.
    #[must_use]
    pub fn route_data(mut self, peer: usize, address: SocketAddr) -> Self {
        self.routes.insert(peer, address);
        self
    }

    /// Meets the other ranks; `addresses[i]` is that of rank `i`. Blocks until all are there, at
    /// most until the deadline of the rendezvous.
    ///
    /// # Errors
    /// [`CollectiveError::Rendezvous`] lists who is missing, [`CollectiveError::Refused`] says
    /// which property of a peer does not fit, [`CollectiveError::Interrupted`] that the
    /// [interruption](ProcessGroupOptions::interruption) was raised.
    pub fn join(
        mut self,
        addresses: impl IntoIterator<Item = impl Into<String>>,
    ) -> Result<ProcessCommunicator> {
        self.options.addresses = addresses.into_iter().map(Into::into).collect();
        self.options.check()?;
        let deadline = Instant::now()
            .checked_add(self.options.rendezvous_timeout)
            .ok_or_else(|| CollectiveError::InvalidOption {
                what: "the rendezvous needs a deadline".to_string(),
            })?;
        let offer = match self.options.transport {
            ProcessTransport::Grpc => None,
            _ => Some(Offer::new()?),
        };
        let address = self.address();
        let status = Arc::new(GroupStatus::default());
        let announcement = Announcement {
            data_port: Some(self.data_address.port()),
            shared_memory: offer
                .as_ref()
                .map(|o| o.name().to_vec())
                .unwrap_or_default(),
        };
        let join = JoinOptions {
            rank: self.options.rank,
            addresses: self.options.addresses.clone(),
            listener: self.listener,
            group: self.options.group.get_name().to_string(),
            generation: self.options.group.get_generation(),
            options: self.options.agreement(),
            rendezvous_timeout: self.options.rendezvous_timeout,
            heartbeat_interval: self.options.heartbeat_interval,
            heartbeat_misses: self.options.heartbeat_misses,
            security: self.options.security.clone(),
            announcement,
            interruption: self.options.interruption.clone(),
        };
        let control = ControlPlane::join(join, status.clone())?;
        let (abort, rank) = (control.abort_target(), self.options.rank);
        // All have met: an abort ends what is left to wait for, here and on the others.
        let _listening = self.options.interruption.on_raise(move || {
            abort.abort(rank, "it was interrupted while the ranks connected");
        });
        let joining = Joining {
            options: self.options,
            abort: control.abort_target(),
            control,
            status,
            address,
            deadline,
        };
        joining.connect(offer, self.data, &self.routes)
    }
}

impl Joining {
    /// Shares memory with whoever can, and connects to the others.
    fn connect(
        self,
        offer: Option<Offer>,
        data: DataListener,
        routes: &BTreeMap<usize, SocketAddr>,
    ) -> Result<ProcessCommunicator> {
        let rank = self.options.rank;
        let (hosts, attachment) = self.find_hosts(offer.as_ref())?;
        let members = hosts.members(rank).to_vec();
        let local = match (offer, attachment) {
            // Also a rank that is alone on its host: all ranks must speak to each other in one way.
            (Some(offer), Some(attachment)) if hosts.count() == 1 || hosts.share_memory() => {
                Some(self.share_memory(offer, attachment, &members)?)
            }
            _ => None,
        };
        let inner = match local {
            Some(local) if hosts.count() == 1 => self.on_one_host(local)?,
            local => {
                let links = self.connect_links(&hosts, data, routes)?;
                self.over_links(links, local)?
            }
        };
        ProcessCommunicator::new(
            inner,
            self.control,
            self.status,
            self.address,
            &self.options,
            &hosts,
        )
    }

    /// Which ranks share memory, as they found out by trying.
    fn find_hosts(&self, offer: Option<&Offer>) -> Result<(Hosts, Option<Attachment>)> {
        let (rank, world_size) = (self.options.rank, self.options.addresses.len());
        if offer.is_none() {
            return Ok((Hosts::separate(world_size), None));
        }
        let mut offers = vec![Vec::new(); world_size];
        for peer in self.control.peers() {
            #[cfg(test)]
            if let Some(hosts) = &self.options.hosts
                && hosts[rank] != hosts[peer.rank]
            {
                continue;
            }
            offers[peer.rank].clone_from(&peer.announcement.shared_memory);
        }
        let attachment = find_leader(&offers, rank, self.deadline)?;
        let leader = attachment.leader(rank) as u64;
        let leaders = self.control.all_gather(&leader.to_le_bytes())?;
        let leaders: Vec<usize> = leaders
            .iter()
            .map(|bytes| {
                let bytes = <[u8; 8]>::try_from(bytes.as_slice()).unwrap_or([0xff; 8]);
                u64::from_le_bytes(bytes) as usize
            })
            .collect();
        let hosts = Hosts::from_leaders(&leaders);
        if self.options.transport == ProcessTransport::SharedMemory && hosts.count() > 1 {
            let others: Vec<usize> = (0..world_size)
                .filter(|rank| !hosts.members(0).contains(rank))
                .collect();
            let reason = format!(
                "rank(s) {others:?} cannot share memory with rank 0 (another host, container or \
                 user); use the transport auto or grpc"
            );
            return Err(CollectiveError::unavailable("shared memory", reason));
        }
        Ok((hosts, Some(attachment)))
    }

    fn share_memory(
        &self,
        offer: Offer,
        attachment: Attachment,
        members: &[usize],
    ) -> Result<LocalGroup> {
        let mut settings = Settings::default();
        if let Some(bytes) = self.options.group.get_segment_bytes() {
            settings = settings.for_segments(bytes);
        }
        let (rank, status) = (self.options.rank, self.status.clone());
        establish(
            offer,
            attachment,
            rank,
            members,
            &settings,
            self.deadline,
            status,
        )
    }

    /// Connects to all ranks of other hosts.
    fn connect_links(
        &self,
        hosts: &Hosts,
        data: DataListener,
        routes: &BTreeMap<usize, SocketAddr>,
    ) -> Result<Links> {
        let options = &self.options;
        let (rank, world_size) = (options.rank, options.addresses.len());
        let generation = options.group.get_generation();
        let mut addresses = vec![None; world_size];
        let mut keys = vec![[0; 32]; world_size];
        for peer in self.control.peers() {
            keys[peer.rank] = peer.session_key;
            if hosts.members(rank).contains(&peer.rank) {
                continue;
            }
            // Only higher ranks connect; what they connect to is the host of the control port.
            let port = peer.announcement.data_port.unwrap_or(0);
            let announced = SocketAddr::new(peer.ip, port);
            addresses[peer.rank] = Some(*routes.get(&peer.rank).unwrap_or(&announced));
        }
        let keys = Arc::new(keys);
        let own = keys.clone();
        let config = LinkConfig {
            rank,
            world_size,
            generation,
            group: options.group.get_name().to_string(),
            lanes: options.lanes,
            max_message_bytes: options.max_message_bytes,
            tls: self.data_tls()?,
            proof: Arc::new(move |peer, lane| data_proof(&own[peer], generation, rank, lane)),
            verify: Arc::new(move |hello| {
                let key = keys.get(hello.rank).ok_or("it has no such rank")?;
                let (rank, lane, proof) = (hello.rank, hello.lane, &hello.proof);
                match verify_data_proof(key, generation, rank, lane, proof) {
                    true => Ok(()),
                    false => Err("it does not know the key of this pair of ranks".to_string()),
                }
            }),
            status: self.status.clone(),
        };
        Links::connect(config, data, &addresses, Some(self.deadline))
    }

    fn data_tls(&self) -> Result<Option<DataTls>> {
        let Some(tls) = self.options.security.data_tls()? else {
            return Ok(None);
        };
        let names = self
            .options
            .addresses
            .iter()
            .enumerate()
            .map(|(rank, address)| {
                let host = host_of(address);
                ServerName::try_from(host.to_string()).map_err(|_| CollectiveError::Address {
                    rank,
                    address: address.clone(),
                    reason: "its host is no name or IP address that a certificate can have"
                        .to_string(),
                })
            });
        Ok(Some(DataTls {
            client: tls.client,
            server: tls.server,
            server_names: names.collect::<Result<_>>()?,
        }))
    }

    fn on_one_host(&self, local: LocalGroup) -> Result<Inner> {
        let options = self.options.group.clone();
        let direct = matches!(options.get_algorithm(), Algorithm::Auto | Algorithm::Direct);
        if direct && options.get_wire().is_none() {
            let communicator = SharedMemoryCommunicator::new(local, options, self.abort.clone())?;
            return Ok(Inner::SharedMemory(Box::new(communicator)));
        }
        let transport = LocalTransport::new(local, options.clone(), self.abort.clone())?;
        let communicator = TransportCommunicator::new(transport, options)?;
        Ok(Inner::Local(Box::new(communicator)))
    }

    fn over_links(&self, links: Links, local: Option<LocalGroup>) -> Result<Inner> {
        let options = self.options.group.clone();
        let (status, abort) = (self.status.clone(), self.abort.clone());
        let timeout = options.get_timeout();
        Ok(match local {
            Some(local) => {
                let transport = MixedTransport::new(links, local, status, abort, timeout);
                Inner::Mixed(Box::new(TransportCommunicator::new(transport, options)?))
            }
            None => {
                let transport = GrpcTransport::new(links, status, abort, timeout);
                Inner::Grpc(Box::new(TransportCommunicator::new(transport, options)?))
            }
        })
    }
}

/// The host of `host:port`; an IPv6 address stands in brackets.
fn host_of(address: &str) -> &str {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    host.strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'))
        .unwrap_or(host)
}
