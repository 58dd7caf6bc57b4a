//! The control plane: ranks find each other, watch each other and tell each other what went wrong.
//!
//! Every rank of a group of processes has one: a thread with a gRPC server on the
//! rank's address and one stream to every other rank (see `proto/control.proto`). The thread only
//! moves small messages, so that it answers in time also while all cores compute.
//!
//! Other crates make gRPC services with the same protection of [`peers`] and [`security`].

mod address;
mod announcement;
mod client;
mod connection;
pub(crate) mod convert;
mod credentials;
mod gather;
#[allow(clippy::allow_attributes, missing_docs, clippy::all, reason = "generated")]
#[rustfmt::skip]
pub(crate) mod generated;
mod handshake;
mod interrupted;
mod membership;
pub mod peers;
mod plane;
mod proof;
#[cfg(feature = "reflection")]
mod reflection;
pub mod security;
mod server;
#[cfg(test)]
mod tests;
mod tls;
mod watch;

pub(crate) use address::Listener;
pub(crate) use announcement::Announcement;
pub(crate) use connection::{UNPROVEN_BYTES_MAX, pending_connections_max};
pub(crate) use plane::{ControlPlane, JoinOptions};
pub(crate) use proof::{data_proof, verify_data_proof};

use crate::error::{CollectiveError, Result};

/// Bytes that nobody can guess.
fn random<const BYTES: usize>(rank: usize) -> Result<[u8; BYTES]> {
    let mut bytes = [0; BYTES];
    match getrandom::fill(&mut bytes) {
        Ok(()) => Ok(bytes),
        Err(error) => {
            let reason = format!("rank {rank} gets no random numbers from the system: {error}");
            Err(CollectiveError::unavailable("the control plane", reason))
        }
    }
}
