//! Groups of threads of this process.

mod direct;
mod group;
mod mailbox;
#[cfg(all(test, feature = "loom", feature = "shm"))]
mod models;
#[expect(unsafe_code, reason = "each use says why it is sound")]
mod peer_buffers;
#[expect(unsafe_code, reason = "each use says why it is sound")]
mod raw_buffer;
#[cfg(test)]
mod tests;
mod transport;

use std::sync::Arc;

pub use transport::InProcessTransport;

use crate::buffer::Buffer;
use crate::engine::Engine;
use crate::error::{CollectiveError, Result};
use crate::forward::forward_communicator;
#[cfg(feature = "nccl")]
use crate::header::OperationHeader;
use crate::messages::TransportCommunicator;
use crate::operation::OperationKind;
use crate::options::{Algorithm, GroupOptions};
use crate::reduce::ReduceOp;
use direct::DirectCommunicator;
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
        Ok(InProcessCommunicator(match options.algorithm {
            // A wire type takes effect where something is sent.
            Algorithm::Auto | Algorithm::Direct if options.wire.is_none() => {
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
    (0..world_size)
        .map(|rank| InProcessTransport::new(group.clone(), rank))
        .collect()
}

/// One rank's endpoint of an in-process group; see [`in_process`].
pub struct InProcessCommunicator(Inner);

impl InProcessCommunicator {
    /// An all-reduce inside each part of the group: `parts` are numbers of ranks, and the first
    /// part has the ranks from 0 on, the next one those after them. Every rank ends with the result
    /// of its part; a mean is that of the part. One operation of the whole group: all ranks make it
    /// with the same parts.
    ///
    /// This is how a process combines what it can of a reduction over several processes: the
    /// [subtrees](crate::tree::subtrees) of its own terms.
    ///
    /// # Errors
    /// The errors of an all-reduce; [`CollectiveError::InvalidArgument`] when the parts are empty
    /// or are not the parts of all ranks.
    pub fn all_reduce_parts(
        &mut self,
        op: ReduceOp,
        parts: &[usize],
        buffers: &mut [Buffer<'_>],
    ) -> Result<()> {
        let member = match &self.0 {
            Inner::Direct(inner) => inner.member(),
            Inner::Messages(inner) => inner.member(),
        };
        let header = member.header(OperationKind::AllReduce).with_op(op);
        let (rank, world_size) = (member.rank, member.world_size);
        if parts.contains(&0) || parts.iter().sum::<usize>() != world_size {
            let what = format!("parts of {parts:?} ranks do not make up a group of {world_size}");
            return Err(header.refused(rank, what));
        }
        let header = header.with_buffers(rank, buffers)?.with_parts(parts);
        match &mut self.0 {
            Inner::Direct(inner) => inner.run_parts(header, parts, buffers),
            Inner::Messages(inner) => inner.run_parts(header, parts, buffers),
        }
    }
}

enum Inner {
    Direct(DirectCommunicator),
    Messages(TransportCommunicator<InProcessTransport>),
}

#[cfg(feature = "nccl")]
impl InProcessCommunicator {
    /// The failure that the group has heard of; see [`Group::health`].
    pub(crate) fn check_health(&self, header: &OperationHeader, peer: Option<usize>) -> Result<()> {
        let transport = match &self.0 {
            Inner::Direct(inner) => &inner.transport,
            Inner::Messages(inner) => inner.transport(),
        };
        let next = OperationHeader {
            sequence: transport.operations.sequence(),
            ..*header
        };
        transport.group.health(&next, peer)
    }
}

forward_communicator!(
    InProcessCommunicator,
    inner in [Self(Inner::Direct(inner)), Self(Inner::Messages(inner))]
);
