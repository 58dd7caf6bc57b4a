//! Groups of threads of this process.

mod direct;
mod endpoint;
mod group;
mod mailbox;
#[allow(unsafe_code)]
mod shared_memory;

use std::ops::Range;
use std::sync::Arc;

pub use mailbox::InProcessTransport;

use crate::buffer::{Buffer, DType};
use crate::communicator::{AbortHandle, Communicator, Description, GatherTarget};
use crate::error::{CollectiveError, Result};
use crate::messages::TransportCommunicator;
use crate::options::{Algorithm, GroupOptions};
use crate::reduce::ReduceOp;
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

/// One rank's endpoint of an in-process group; see [`in_process`].
pub struct InProcessCommunicator(Inner);

enum Inner {
    Direct(DirectCommunicator),
    Messages(TransportCommunicator<InProcessTransport>),
}

impl InProcessCommunicator {
    fn get(&self) -> &dyn Communicator {
        match &self.0 {
            Inner::Direct(communicator) => communicator,
            Inner::Messages(communicator) => communicator,
        }
    }

    fn get_mut(&mut self) -> &mut dyn Communicator {
        match &mut self.0 {
            Inner::Direct(communicator) => communicator,
            Inner::Messages(communicator) => communicator,
        }
    }
}

impl Communicator for InProcessCommunicator {
    fn rank(&self) -> usize {
        self.get().rank()
    }

    fn world_size(&self) -> usize {
        self.get().world_size()
    }

    fn all_reduce(&mut self, op: ReduceOp, buffers: &mut [Buffer<'_>]) -> Result<()> {
        self.get_mut().all_reduce(op, buffers)
    }

    fn reduce_scatter(&mut self, op: ReduceOp, buffer: Buffer<'_>) -> Result<Range<usize>> {
        self.get_mut().reduce_scatter(op, buffer)
    }

    fn all_gather_into(
        &mut self,
        dtype: DType,
        input: &[u8],
        output: &mut dyn GatherTarget,
    ) -> Result<()> {
        self.get_mut().all_gather_into(dtype, input, output)
    }

    fn broadcast(&mut self, root: usize, buffers: &mut [Buffer<'_>]) -> Result<()> {
        self.get_mut().broadcast(root, buffers)
    }

    fn reduce(&mut self, op: ReduceOp, root: usize, buffers: &mut [Buffer<'_>]) -> Result<()> {
        self.get_mut().reduce(op, root, buffers)
    }

    fn send(&mut self, to: usize, buffer: Buffer<'_>) -> Result<()> {
        self.get_mut().send(to, buffer)
    }

    fn recv(&mut self, from: usize, buffer: Buffer<'_>) -> Result<()> {
        self.get_mut().recv(from, buffer)
    }

    fn barrier(&mut self) -> Result<()> {
        self.get_mut().barrier()
    }

    fn abort_handle(&self) -> AbortHandle {
        self.get().abort_handle()
    }

    fn describe(&self) -> Description {
        self.get().describe()
    }
}
