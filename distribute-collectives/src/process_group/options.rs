//! Settings of a group whose ranks are processes.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use distribute_net::security::Security;

use crate::grpc::IDLE_LIMIT;
use crate::interruption::Interruption;
use crate::link_cost::LinkCost;
use crate::options::GroupOptions;

/// What carries the bytes between the ranks of a group of processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum ProcessTransport {
    /// Shared memory between ranks that can share it, gRPC between the others; gRPC without the
    /// feature `shm`, which all ranks have or none.
    #[default]
    Auto,
    /// Shared memory only; joining fails when two ranks cannot share memory.
    #[cfg(feature = "shm")]
    SharedMemory,
    /// gRPC only, also between ranks of one host.
    Grpc,
}

impl fmt::Display for ProcessTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            #[cfg(feature = "shm")]
            Self::SharedMemory => "shm",
            Self::Grpc => "grpc",
        })
    }
}

/// Settings of one rank of a group of processes. All ranks must have the same addresses, name,
/// generation, transport, sizes, token and [`GroupOptions`].
#[derive(Debug, Clone)]
#[must_use]
pub struct ProcessGroupOptions {
    pub(crate) rank: usize,
    pub(crate) addresses: Vec<Option<String>>,
    pub(crate) own_host: Option<String>,
    pub(crate) own_port: u16,
    pub(crate) group: GroupOptions,
    pub(crate) transport: ProcessTransport,
    pub(crate) rendezvous_timeout: Duration,
    pub(crate) heartbeat_interval: Duration,
    pub(crate) heartbeat_misses: u32,
    pub(crate) lanes: usize,
    pub(crate) max_message_bytes: usize,
    pub(crate) security: Security,
    pub(crate) link_cost: Option<LinkCost>,
    pub(crate) link_memory: Option<PathBuf>,
    pub(crate) flight_records: Option<PathBuf>,
    pub(crate) interruption: Interruption,
    /// The host of each rank, as if ranks of one machine were on several.
    #[cfg(all(test, feature = "shm"))]
    pub(crate) hosts: Option<Vec<usize>>,
    /// How many ranks of a host can share memory, in place of the real limit.
    #[cfg(all(test, feature = "shm"))]
    pub(crate) members_max: Option<usize>,
    /// How long a data connection is kept that is not used.
    pub(crate) idle_limit: Duration,
}

impl ProcessGroupOptions {
    /// Rank `rank` of the group whose rank `i` listens at `addresses[i]` (`host:port`).
    pub fn new(
        rank: usize,
        addresses: impl IntoIterator<Item = impl Into<String>>,
    ) -> ProcessGroupOptions {
        let listed = addresses.into_iter().map(|address| Some(address.into()));
        Self::partly_listed(rank, listed)
    }

    /// Rank `rank` of a group of which not all addresses are listed: that of rank 0 is, where all
    /// meet. The others may be `None`: such a rank listens where it reaches rank 0 from (or at
    /// [`own_host`](Self::own_host) and [`own_port`](Self::own_port)), tells rank 0, and rank 0
    /// tells the others. All ranks must leave out the same addresses.
    pub fn partly_listed(
        rank: usize,
        addresses: impl IntoIterator<Item = Option<impl Into<String>>>,
    ) -> ProcessGroupOptions {
        let addresses = addresses.into_iter();
        ProcessGroupOptions {
            rank,
            addresses: addresses.map(|it| it.map(Into::into)).collect(),
            own_host: None,
            own_port: 0,
            group: GroupOptions::default(),
            transport: ProcessTransport::Auto,
            rendezvous_timeout: Duration::from_secs(60),
            heartbeat_interval: Duration::from_millis(500),
            heartbeat_misses: 6,
            lanes: 1,
            max_message_bytes: 4 << 20,
            security: Security::default(),
            link_cost: None,
            link_memory: None,
            flight_records: None,
            interruption: Interruption::default(),
            #[cfg(all(test, feature = "shm"))]
            hosts: None,
            #[cfg(all(test, feature = "shm"))]
            members_max: None,
            idle_limit: IDLE_LIMIT,
        }
    }

    /// Name, generation, deadline, algorithm and order of the group.
    pub fn group(mut self, group: GroupOptions) -> Self {
        self.group = group;
        self
    }

    /// What carries the bytes (default [`ProcessTransport::Auto`]).
    pub fn transport(mut self, transport: ProcessTransport) -> Self {
        self.transport = transport;
        self
    }

    /// How long to wait for the other ranks when joining (default 60 s).
    pub fn rendezvous_timeout(mut self, timeout: Duration) -> Self {
        self.rendezvous_timeout = timeout;
        self
    }

    /// A rank that has not been heard of for `misses` intervals counts as stopped (default 6
    /// times 500 ms). Both must be at least 1.
    ///
    /// A rank whose host is cut off for less than that lives on; one that is gone is named after
    /// that time, an interval and 0.6 s at the latest. One whose host was out of reach and is back
    /// has as long again as it was away, and a second: TCP sends again what was lost after pauses
    /// that it doubles. Time in which this process, the rank or the
    /// machine did not get to compute does not count, so that on a machine that is busy beyond
    /// measure it takes up to ten times as long.
    pub fn heartbeat(mut self, interval: Duration, misses: u32) -> Self {
        self.heartbeat_interval = interval;
        self.heartbeat_misses = misses;
        self
    }

    /// The name or IP address of this host for the other ranks, where this rank is not
    /// [listed](Self::partly_listed) (default: the address from which it reaches rank 0). With TLS
    /// the certificate of this host must be for it.
    pub fn own_host(mut self, host: Option<String>) -> Self {
        self.own_host = host;
        self
    }

    /// The port of this rank, where it is not [listed](Self::partly_listed) (default 0: any free
    /// one).
    pub fn own_port(mut self, port: u16) -> Self {
        self.own_port = port;
        self
    }

    /// How long a rank may be silent.
    pub(crate) fn silence_limit(&self) -> Duration {
        self.heartbeat_interval
            .saturating_mul(self.heartbeat_misses)
    }

    /// TCP connections between each pair of ranks for gRPC data (default 1). More help where one
    /// connection does not fill the network.
    pub fn lanes(mut self, lanes: usize) -> Self {
        self.lanes = lanes;
        self
    }

    /// The largest data message that a peer may send (default 4 MiB, at least 1088 bytes, the same
    /// on all ranks); a larger one closes the connection with an error. Segments are made to fit.
    pub fn max_message_bytes(mut self, bytes: usize) -> Self {
        self.max_message_bytes = bytes;
        self
    }

    /// What the links cost, from an earlier generation's
    /// [`link_cost`](crate::ProcessCommunicator::link_cost): saves measuring them again. Counts
    /// only when all ranks have one. Its bandwidths must be above 0.
    pub fn link_cost(mut self, cost: Option<LinkCost>) -> Self {
        self.link_cost = cost;
        self
    }

    /// A file of this rank alone that outlives it, such as one that a launcher keeps in memory. It
    /// takes what the links cost, and the group of the same hosts that meets after a restart reads
    /// them there and measures nothing (default: none). A file that cannot be read or written
    /// costs nothing but the time to measure.
    pub fn link_memory(mut self, path: impl Into<PathBuf>) -> Self {
        self.link_memory = Some(path.into());
        self
    }

    /// Where a rank writes its last 256 operations when one fails, for `distribute-cli blame`
    /// (default: nowhere). All ranks should name the same directory, or copy the files together.
    pub fn flight_records(mut self, directory: impl Into<PathBuf>) -> Self {
        self.flight_records = Some(directory.into());
        self
    }

    /// What ends joining and operations before their deadline (default: nothing does). The error is
    /// [`Interrupted`](crate::CollectiveError::Interrupted), on all ranks. An operation ends that
    /// is still under way a moment after it was raised; while it is
    /// [held](crate::Interruption::hold), only if a rank gives no sign of life within a second.
    pub fn interruption(mut self, interruption: Interruption) -> Self {
        self.interruption = interruption;
        self
    }

    /// Token and certificates (default: none, allowed on loopback addresses only).
    pub fn security(mut self, security: Security) -> Self {
        self.security = security;
        self
    }
}
