//! The errors: what went wrong, which rank is at fault, and what to do next.

use std::fmt;
use std::time::Duration;

#[cfg(feature = "grpc")]
use distribute_net::NetError;

use crate::operation::OperationKind;

/// Result of a collective operation.
pub type Result<T, E = CollectiveError> = std::result::Result<T, E>;

/// Why an operation did not happen.
///
/// Only [`InvalidArgument`](Self::InvalidArgument), [`InvalidOption`](Self::InvalidOption) and
/// [`BackendUnavailable`](Self::BackendUnavailable) leave the group usable. After any other error
/// the buffers hold unspecified values and every later call on the same endpoint returns
/// [`Poisoned`](Self::Poisoned): drop the endpoints, make a new group (a new generation) and
/// repeat the step.
#[non_exhaustive]
#[derive(Clone, PartialEq, thiserror::Error, serde::Serialize, serde::Deserialize)]
pub enum CollectiveError {
    /// Two ranks called different operations. This is a bug of the calling program: all ranks
    /// must call the same operations in the same order with the same types and sizes.
    #[error(
        "rank {rank_a} and rank {rank_b} disagree in operation {sequence} ({op}): {what}; \
         every rank must make the same calls in the same order"
    )]
    Mismatch {
        /// The lower of the two ranks.
        rank_a: usize,
        /// The other rank.
        rank_b: usize,
        /// What `rank_a` called.
        op: OperationKind,
        /// Number of the operation in the group, from 0.
        sequence: u64,
        /// The first difference, with both values.
        what: String,
    },

    /// A rank has gone: its thread panicked, its endpoint was dropped or its process ended.
    #[error(
        "rank {rank} was lost in operation {sequence} ({op}): {reason}; \
         make a new group without it or restart it"
    )]
    PeerLost {
        /// The lost rank.
        rank: usize,
        /// The operation that could not finish.
        op: OperationKind,
        /// Number of the operation in the group, from 0.
        sequence: u64,
        /// What is known about the cause.
        reason: String,
    },

    /// The deadline of the operation passed before these ranks took part.
    #[error(
        "operation {sequence} ({op}) timed out after {elapsed:.1?}: rank(s) {missing:?} did not \
         take part; look there, or raise the timeout of the group"
    )]
    Timeout {
        /// The ranks that were waited for.
        missing: Vec<usize>,
        /// The operation that could not finish.
        op: OperationKind,
        /// Number of the operation in the group, from 0.
        sequence: u64,
        /// How long the reporting rank had waited.
        elapsed: Duration,
    },

    /// The host of a rank has lost its network: the rank heard of none of the ranks on other hosts,
    /// of which there are at least two. So it is this host that is cut off, and none of the others.
    #[error(
        "rank {rank} is cut off: nothing was heard of any other host for {elapsed:.1?}; look at \
         the network of {host}"
    )]
    CutOff {
        /// The rank that is cut off, and that reports it.
        rank: usize,
        /// The host in its address.
        host: String,
        /// How long it had heard nothing.
        elapsed: Duration,
    },

    /// The data of two ranks does not pass, though heartbeats do: a firewall, a path that loses
    /// large packets, or a connection that could not be made before the deadline of the first
    /// operation that needs it.
    #[error(
        "rank {rank} and rank {peer} hear each other, but no data of rank {rank} passes on the \
         data connection {connection}: {what}"
    )]
    LinkStalled {
        /// The rank that reports it, whose bytes do not arrive.
        rank: usize,
        /// The rank that they are for.
        peer: usize,
        /// The two addresses of the connection, or where it was to go.
        connection: String,
        /// How much for how long or why there is none, what was tried, and what to do.
        what: String,
    },

    /// A rank ended the group with [`Communicator::abort`](crate::Communicator::abort).
    #[error("rank {rank} aborted the group: {reason}")]
    Aborted {
        /// The rank that called `abort`.
        rank: usize,
        /// The reason it gave.
        reason: String,
    },

    /// An earlier operation of this endpoint failed; `cause` is that first failure.
    #[error("the group cannot be used any more, make a new one; first cause: {cause}")]
    Poisoned {
        /// The first failure.
        cause: Box<CollectiveError>,
    },

    /// The call itself cannot be right (no element was sent; the group stays usable).
    #[error("{op} on rank {rank}: {what}")]
    InvalidArgument {
        /// The rank that made the call.
        rank: usize,
        /// The call.
        op: OperationKind,
        /// What is wrong and what is allowed.
        what: String,
    },

    /// An option has a value that it cannot have.
    #[error("{what}")]
    InvalidOption {
        /// The option, its value and what is allowed.
        what: String,
    },

    /// The group did not come together before the deadline.
    #[error(
        "rank {rank} waited {elapsed:.1?} for the other ranks; missing: {}; {}",
        missing_ranks(missing),
        advice(missing)
    )]
    Rendezvous {
        /// The rank that waited.
        rank: usize,
        /// The ranks that never answered, with their addresses and what happened last.
        missing: Vec<MissingRank>,
        /// How long the rank waited.
        elapsed: Duration,
    },

    /// An [`Interruption`](crate::Interruption) ended the wait of a rank for others, and with it
    /// the group: at the rendezvous or in an operation. All ranks get it.
    #[error(
        "rank {rank} was interrupted after {elapsed:.1?} of waiting for the other ranks{}{}",
        if missing.is_empty() { "" } else { "; missing: " },
        missing_ranks(missing)
    )]
    Interrupted {
        /// The rank that waited and was interrupted.
        rank: usize,
        /// The ranks that were still missing, with their addresses and what happened last.
        missing: Vec<MissingRank>,
        /// How long the rank had waited.
        elapsed: Duration,
    },

    /// An address cannot be used: it does not resolve, is not local or is in use.
    #[error("rank {rank}: cannot use the address {address}: {reason}")]
    Address {
        /// The rank whose address it is.
        rank: usize,
        /// The address as it was given.
        address: String,
        /// What is wrong and what to do.
        reason: String,
    },

    /// A peer was refused, or refused this rank: wrong token, certificate, version, rank or world
    /// size. Nothing of the group was changed by the peer.
    #[error("rank {rank} and the peer at {address} do not form a group: {reason}")]
    Refused {
        /// The rank that reports it.
        rank: usize,
        /// The address of the peer.
        address: String,
        /// Which credential or property differs, and what to do.
        reason: String,
        /// The names of the options that differ (`transport`, `algorithm`), if that is the reason.
        options: Vec<String>,
    },

    /// The bytes of a peer make no sense: another program, or data damaged on the way.
    #[error(
        "rank {rank} received what it does not understand from rank {peer} at {address}: {what}; \
         check that all ranks run the same program and that nothing rewrites the connection"
    )]
    Protocol {
        /// The rank that reports it.
        rank: usize,
        /// The rank that sent the bytes.
        peer: usize,
        /// The address of the peer.
        address: String,
        /// What was found and what was expected.
        what: String,
    },

    /// The wanted implementation does not exist here.
    #[error("{backend} is not available: {reason}")]
    BackendUnavailable {
        /// The wanted implementation.
        backend: String,
        /// Why it is not available and what to use.
        reason: String,
        /// Where its files were looked for, of all ranks that lack them; empty when that is not
        /// the reason.
        searched: Vec<Searched>,
    },
}

#[cfg(feature = "grpc")]
impl From<NetError> for CollectiveError {
    fn from(error: NetError) -> Self {
        match error {
            NetError::InvalidOption { what } => CollectiveError::InvalidOption { what },
            NetError::Address {
                task,
                address,
                reason,
            } => CollectiveError::Address {
                rank: task,
                address,
                reason,
            },
            other => CollectiveError::unavailable("the control plane", other.to_string()),
        }
    }
}

/// The variant's name and the message: what an error prints that `main` returns.
impl fmt::Debug for CollectiveError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let variant = match self {
            Self::Mismatch { .. } => "Mismatch",
            Self::PeerLost { .. } => "PeerLost",
            Self::Timeout { .. } => "Timeout",
            Self::CutOff { .. } => "CutOff",
            Self::LinkStalled { .. } => "LinkStalled",
            Self::Aborted { .. } => "Aborted",
            Self::Poisoned { .. } => "Poisoned",
            Self::InvalidArgument { .. } => "InvalidArgument",
            Self::InvalidOption { .. } => "InvalidOption",
            Self::Rendezvous { .. } => "Rendezvous",
            Self::Interrupted { .. } => "Interrupted",
            Self::Address { .. } => "Address",
            Self::Refused { .. } => "Refused",
            Self::Protocol { .. } => "Protocol",
            Self::BackendUnavailable { .. } => "BackendUnavailable",
        };
        write!(f, "{variant} ({self})")
    }
}

/// A place where a library was looked for.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Searched {
    /// A path, or a name that the system's loader looks for.
    pub path: String,
    /// Why it was not found there, in the words of the loader.
    pub reason: String,
}

impl fmt::Display for Searched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.path, self.reason)
    }
}

/// A rank that did not come to the [rendezvous](CollectiveError::Rendezvous).
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct MissingRank {
    /// The rank.
    pub rank: usize,
    /// The address of the rank, as it was given.
    pub address: String,
    /// What happened last: refused, no answer, another generation.
    pub reason: String,
}

fn missing_ranks(missing: &[MissingRank]) -> String {
    let one = |m: &MissingRank| format!("rank {} at {} ({})", m.rank, m.address, m.reason);
    missing.iter().map(one).collect::<Vec<_>>().join(", ")
}

/// What the reasons that name a port and a direction have in common.
const FIREWALL: &str = "a firewall?";

/// What to do about ranks that are missing. An address that is not in the list cannot be wrong
/// there.
fn advice(missing: &[MissingRank]) -> &'static str {
    if missing.iter().all(|it| it.reason.contains(FIREWALL)) {
        "let the connections pass, or choose ports that pass"
    } else {
        "start them, or correct the list of addresses"
    }
}

impl CollectiveError {
    /// A [`BackendUnavailable`](Self::BackendUnavailable) for another reason than absent files.
    pub fn unavailable(backend: impl Into<String>, reason: impl Into<String>) -> Self {
        CollectiveError::BackendUnavailable {
            backend: backend.into(),
            reason: reason.into(),
            searched: Vec::new(),
        }
    }

    /// The names of the options in which the ranks of a group of processes differ, such as
    /// `transport` or `algorithm`, so that no group of them can form; empty after any other error.
    /// The message shows both values.
    pub fn differing_options(&self) -> &[String] {
        match self {
            Self::Refused { options, .. } => options,
            _ => &[],
        }
    }

    /// Whether the same start would fail again: the call, an option, the build or the other members
    /// are not right for it. A rank that was lost or did not come may be there the next time, and a
    /// port that is in use is free again.
    pub fn is_permanent(&self) -> bool {
        match self {
            Self::Mismatch { .. }
            | Self::InvalidArgument { .. }
            | Self::InvalidOption { .. }
            | Self::Refused { .. }
            | Self::BackendUnavailable { .. } => true,
            Self::Poisoned { cause } => cause.is_permanent(),
            Self::PeerLost { .. }
            | Self::Timeout { .. }
            | Self::Aborted { .. }
            | Self::Rendezvous { .. }
            | Self::CutOff { .. }
            | Self::LinkStalled { .. }
            | Self::Interrupted { .. }
            | Self::Address { .. }
            | Self::Protocol { .. } => false,
        }
    }

    /// Whether the group is unusable after this error.
    pub fn is_fatal(&self) -> bool {
        !matches!(
            self,
            CollectiveError::InvalidArgument { .. }
                | CollectiveError::InvalidOption { .. }
                | CollectiveError::BackendUnavailable { .. }
                | CollectiveError::Rendezvous { .. }
                | CollectiveError::Address { .. }
                | CollectiveError::Refused { .. }
        )
    }

    /// The first failure: the cause of [`Poisoned`](Self::Poisoned), else the error itself.
    pub fn root_cause(&self) -> &CollectiveError {
        match self {
            CollectiveError::Poisoned { cause } => cause.root_cause(),
            other => other,
        }
    }
}
