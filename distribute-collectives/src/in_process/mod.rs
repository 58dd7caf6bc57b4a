//! Groups of threads of this process.

mod direct;
mod endpoint;
mod group;
mod mailbox;
#[expect(unsafe_code, reason = "each use says why it is sound")]
mod peer_buffers;

use std::sync::{Arc, Condvar, MutexGuard, PoisonError};
use std::time::Duration;

pub use mailbox::InProcessTransport;

use crate::error::{CollectiveError, Result};
use crate::forward::forward_communicator;
use crate::messages::TransportCommunicator;
use crate::options::{Algorithm, GroupOptions};
use direct::DirectCommunicator;
use endpoint::Endpoint;
use group::Group;

/// Makes a group of `world_size` ranks for threads of this process; rank `i` is at index `i`.
///
/// Starts no thread: the operations run on the threads that call them.
///
/// # Errors
/// [`CollectiveError::InvalidOption`] when `world_size` is 0 or the options contradict
/// themselves.
pub fn in_process(world_size: usize, options: GroupOptions) -> Result<Vec<InProcessCommunicator>> {
    if world_size == 0 {
        let what = "a group has at least 1 rank, got world size 0".to_string();
        return Err(CollectiveError::InvalidOption { what });
    }
    options.check_wire()?;
    let transports = in_process_transports(world_size, &options);
    let endpoints = transports.into_iter().map(|transport| {
        Ok(InProcessCommunicator(match options.get_algorithm() {
            // A wire type takes effect where something is sent.
            Algorithm::Auto | Algorithm::Direct if options.get_wire().is_none() => {
                Inner::Direct(DirectCommunicator::new(transport))
            }
            _ => Inner::Messages(TransportCommunicator::new(transport, options.clone())?),
        }))
    });
    endpoints.collect()
}

/// The in-process transport by itself: `world_size` connected endpoints, rank `i` at index `i`.
pub fn in_process_transports(world_size: usize, options: &GroupOptions) -> Vec<InProcessTransport> {
    let group = Arc::new(Group::new(world_size, options.clone()));
    let endpoint = |rank| Endpoint::new(group.clone(), rank);
    (0..world_size)
        .map(|rank| InProcessTransport::new(endpoint(rank)))
        .collect()
}

/// Waits until a rank has changed something, at most for `left`.
fn wait_for_change<'a, T>(
    changed: &Condvar,
    guard: MutexGuard<'a, T>,
    left: Option<Duration>,
) -> MutexGuard<'a, T> {
    match left {
        Some(left) => {
            let woken = changed.wait_timeout(guard, left);
            woken.unwrap_or_else(PoisonError::into_inner).0
        }
        None => changed.wait(guard).unwrap_or_else(PoisonError::into_inner),
    }
}

/// One rank's endpoint of an in-process group; see [`in_process`].
pub struct InProcessCommunicator(Inner);

enum Inner {
    Direct(DirectCommunicator),
    Messages(TransportCommunicator<InProcessTransport>),
}

#[cfg(feature = "nccl")]
impl InProcessCommunicator {
    /// The failure that the group has heard of; see [`Group::health`].
    pub(crate) fn check_health(&self, op: crate::OperationKind, peer: Option<usize>) -> Result<()> {
        let endpoint = match &self.0 {
            Inner::Direct(inner) => inner.endpoint(),
            Inner::Messages(inner) => &inner.transport().endpoint,
        };
        let sequence = endpoint.operations.sequence();
        endpoint.group.health(op, sequence, peer)
    }
}

forward_communicator!(
    InProcessCommunicator,
    inner in [Self(Inner::Direct(inner)), Self(Inner::Messages(inner))]
);
