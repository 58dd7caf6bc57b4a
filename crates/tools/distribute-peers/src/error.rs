//! Why there was no check.

use std::io;
use std::time::Duration;

use distribute_net::NetError;

/// Why a process could not take part in a check, or rank 0 not begin it.
#[non_exhaustive]
#[derive(thiserror::Error)]
pub enum PeersError {
    /// The address of this process, or its token or certificates, cannot be used.
    #[error(transparent)]
    Net(#[from] NetError),

    /// A setting has a value that it cannot have.
    #[error("{what}")]
    InvalidOption {
        /// The setting, and what is allowed.
        what: String,
    },

    /// This process could not reach rank 0, where the processes meet.
    #[error("rank {rank} could not meet rank 0 within {waited:.0?}: {why}")]
    NoLeader {
        /// This process.
        rank: usize,
        /// How long it tried.
        waited: Duration,
        /// What was tried last, why it failed, and what to do.
        why: String,
    },

    /// Rank 0 refuses this process.
    #[error("rank 0 refuses rank {rank}: {why}")]
    Refused {
        /// This process.
        rank: usize,
        /// What rank 0 says.
        why: String,
    },

    /// Rank 0 ended before it had the report, or is silent.
    #[error(
        "rank {rank} lost rank 0 before the end of the check ({source}); look at the output of \
         rank 0"
    )]
    LeaderLost {
        /// This process.
        rank: usize,
        /// What the system says.
        source: io::Error,
    },

    /// The system does not give what the check needs.
    #[error("cannot begin the check: {0}")]
    System(#[source] io::Error),
}

distribute_error::debug_as_message!(PeersError);

impl PeersError {
    /// Whether the same start would fail again.
    pub fn is_permanent(&self) -> bool {
        match self {
            Self::Net(error) => error.is_permanent(),
            Self::InvalidOption { .. } => true,
            Self::NoLeader { .. }
            | Self::Refused { .. }
            | Self::LeaderLost { .. }
            | Self::System(_) => false,
        }
    }
}

/// The result type of this crate.
pub type Result<T, E = PeersError> = std::result::Result<T, E>;
