//! From addresses to ranks that have met.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use distribute_net::address::BoundListener;
use distribute_net::shortage::make_room;

use crate::algorithm::partners;
use crate::control::{ARITY, Announcement, ControlPlane, JoinOptions, neighbours_max};
use crate::error::{CollectiveError, Result};
use crate::grpc::{MESSAGE_BYTES_MIN, max_segment_bytes};
use crate::options::Algorithm;
use crate::process_group::communicator::ProcessCommunicator;
use crate::process_group::joining::{Joining, Routes};
use crate::process_group::options::{ProcessGroupOptions, ProcessTransport};
#[cfg(feature = "shm")]
use crate::process_group::sharing;
use crate::status::GroupStatus;

/// Descriptors for what else a rank opens while its group forms: its ports, files, and connections
/// whose peer is not authenticated.
const OTHER_DESCRIPTORS: u64 = 32;

/// More descriptors than a rank ever has: the kernel's own limit where it was not changed
/// (`fs.nr_open`).
const DESCRIPTORS_MAX: u64 = 1 << 20;

/// A rank that listens but has not met the others yet; made by [`ProcessGroupOptions::bind`].
#[derive(Debug)]
pub struct BoundProcessGroup {
    options: ProcessGroupOptions,
    /// The part of the time for the rendezvous that is over.
    waited: Duration,
    listener: BoundListener,
    /// Where this rank listens, if it is not listed.
    told_address: Option<String>,
    routes: Routes,
}

impl ProcessGroupOptions {
    /// Listens at this rank's address. Port 0 takes any free one:
    /// [`BoundProcessGroup::address`] tells which.
    ///
    /// What may still come is waited for: a name of this host that does not resolve yet, and an
    /// address that it has not got yet. This wait counts towards the
    /// [time for the rendezvous](Self::rendezvous_timeout).
    ///
    /// # Errors
    /// [`CollectiveError::Address`] when the address cannot be used,
    /// [`CollectiveError::Interrupted`] when the [interruption](Self::interruption) was raised,
    /// [`CollectiveError::InvalidOption`] when the rank is not in the list or a setting has a
    /// value that it cannot have.
    pub fn bind(mut self) -> Result<BoundProcessGroup> {
        if cfg!(not(feature = "shm")) {
            // So that ranks which would share memory hear why this one does not.
            self.transport = ProcessTransport::Grpc;
        }
        self.check()?;
        let begun = Instant::now();
        let (listener, told_address) = self.bind_control(begun)?;
        Ok(BoundProcessGroup {
            options: self,
            waited: begun.elapsed(),
            listener,
            told_address,
            routes: Routes::new(),
        })
    }

    fn check(&self) -> Result<()> {
        let world_size = self.addresses.len();
        let what = if world_size == 0 {
            "a group has at least 1 rank: give the address of each".to_string()
        } else if self.rank >= world_size {
            format!("rank {} is not below the {world_size} addresses", self.rank)
        } else if self.addresses.first().is_none_or(Option::is_none) {
            "the address of rank 0 is needed: it is where the ranks meet".to_string()
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
        #[cfg(feature = "shm")]
        {
            sharing::check_sizes(self)?;
            if self.transport == ProcessTransport::SharedMemory {
                return Ok(());
            }
        }
        let bytes = self.max_message_bytes;
        if bytes < MESSAGE_BYTES_MIN {
            let what = format!("max_message_bytes is at least {MESSAGE_BYTES_MIN}, not {bytes}");
            return Err(CollectiveError::InvalidOption { what });
        }
        let limit = format!("max_message_bytes {bytes}");
        self.group.check_segment(max_segment_bytes(bytes), &limit)
    }

    /// What all ranks must agree on, in words.
    pub(super) fn agreement(&self) -> String {
        let group = &self.group;
        format!(
            "algorithm {}, order {}, segments {:?}, wire {:?}, transport {}, {} lanes, \
             messages of {} bytes",
            group.algorithm,
            group.order,
            group.segment_bytes,
            group.wire,
            self.transport,
            self.lanes,
            // The limit of messages limits the segments.
            self.max_message_bytes
        )
    }
}

/// The connections that a rank is sure to need: one to each neighbour in the tree of the control
/// plane, and the lanes that its algorithm uses. Ranks that share memory have no lanes, and which
/// ones do is not known before they have met.
pub(super) fn connections(options: &ProcessGroupOptions) -> u64 {
    connections_with(options, options.group.algorithm)
}

/// The same with the algorithm that needs the fewest.
fn fewest_connections(options: &ProcessGroupOptions) -> u64 {
    connections_with(options, Algorithm::HalvingDoubling)
}

fn connections_with(options: &ProcessGroupOptions, algorithm: Algorithm) -> u64 {
    let (rank, ranks) = (options.rank, options.addresses.len());
    let partners = match options.transport {
        ProcessTransport::Grpc => partners::of(algorithm, options.group.order, rank, ranks).len(),
        _ => 0,
    };
    let neighbours = ranks.saturating_sub(1).min(neighbours_max(ARITY));
    (neighbours + partners * options.lanes) as u64
}

impl BoundProcessGroup {
    /// Where the other ranks reach this one.
    pub fn address(&self) -> SocketAddr {
        self.listener.local_addr()
    }

    /// Reaches rank `peer` for data at another address than for control: for forwarded ports.
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
        let listed = addresses.into_iter().map(|address| Some(address.into()));
        self.options.addresses = listed.collect();
        self.told_address = None;
        self.meet()
    }

    /// Raises the limit of file descriptors as far as the system allows: which ranks speak with
    /// each other shows only in their calls.
    ///
    /// # Errors
    /// [`CollectiveError::InvalidOption`] when the connections that the group is sure to need
    /// cannot all be open.
    fn make_room(&self) -> Result<()> {
        let options = &self.options;
        let (ranks, needed) = (options.addresses.len(), connections(options));
        let room = make_room(DESCRIPTORS_MAX);
        if needed + OTHER_DESCRIPTORS <= room {
            return Ok(());
        }
        Err(CollectiveError::InvalidOption {
            what: format!(
                "rank {} needs {needed} file descriptors for connections in a group of {ranks} \
                 ranks, and the limits of this process allow {room} more in all: raise the hard \
                 limit (`ulimit -Hn`, LimitNOFILE of systemd, `nofile` of a container), or use \
                 fewer ranks{}",
                options.rank,
                if needed > fewest_connections(options) {
                    ", or the algorithm halving_doubling, which needs fewer connections"
                } else {
                    ""
                }
            ),
        })
    }

    /// As [`join`](Self::join), with the addresses of the options.
    ///
    /// # Errors
    /// As `join`.
    pub fn meet(mut self) -> Result<ProcessCommunicator> {
        self.options.check()?;
        let timeout = self.options.rendezvous_timeout;
        let left = timeout.saturating_sub(self.waited);
        let deadline =
            Instant::now()
                .checked_add(left)
                .ok_or_else(|| CollectiveError::InvalidOption {
                    what: "the rendezvous needs a deadline".to_string(),
                })?;
        #[cfg(feature = "shm")]
        let offer = sharing::offer(self.options.transport)?;
        self.make_room()?;
        let address = self.address();
        let status = Arc::new(GroupStatus::default());
        let announcement = Announcement {
            #[cfg(feature = "shm")]
            shared_memory: sharing::announcement(offer.as_ref()),
            ..Announcement::default()
        };
        let join = JoinOptions {
            rank: self.options.rank,
            addresses: self.options.addresses.clone(),
            group: self.options.group.name.clone(),
            generation: self.options.group.generation,
            options: self.options.agreement(),
            told_address: self.told_address.take(),
            rendezvous_timeout: left,
            heartbeat_interval: self.options.heartbeat_interval,
            heartbeat_misses: self.options.heartbeat_misses,
            security: self.options.security.clone(),
            announcement,
            interruption: self.options.interruption.clone(),
            lanes: self.options.lanes,
            arity: ARITY,
        };
        let control = ControlPlane::join(join, self.listener, status.clone())?;
        let (abort, rank) = (control.abort_target(), self.options.rank);
        // All have met: an abort ends what is left to wait for, here and on the others.
        let _listening = self.options.interruption.on_raise(move || {
            abort.abort(rank, "it was interrupted while the ranks connected");
        });
        let joining = Joining {
            options: self.options,
            control,
            status,
            address,
            deadline,
        };
        #[cfg(feature = "shm")]
        if let Some(offer) = offer {
            return joining.share_memory(offer, &self.routes);
        }
        joining.over_grpc(&self.routes)
    }
}
