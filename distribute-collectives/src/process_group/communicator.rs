//! One rank's endpoint of a group of processes.

use std::ops::Range;

use crate::buffer::{Buffer, DType};
use crate::communicator::{AbortHandle, Communicator, Description, GatherTarget};
use crate::control::ControlPlane;
use crate::error::Result;
use crate::grpc::GrpcTransport;
use crate::link_cost::LinkCost;
use crate::messages::TransportCommunicator;
use crate::process_group::mixed::MixedTransport;
use crate::reduce::ReduceOp;
use crate::shared_memory::SharedMemoryCommunicator;

/// One rank's endpoint of a group of processes; see
/// [`ProcessGroupOptions`](crate::ProcessGroupOptions).
///
/// Dropping it takes this rank out of the group: what it still owes to the others is sent, they
/// are told, and its thread and connections end.
pub struct ProcessCommunicator {
    // Dropped in this order: data first, then the control plane that says good-bye.
    pub(super) inner: Inner,
    pub(super) link_cost: Option<LinkCost>,
    pub(super) control: ControlPlane,
}

pub(super) enum Inner {
    SharedMemory(Box<SharedMemoryCommunicator>),
    Grpc(Box<TransportCommunicator<GrpcTransport>>),
    Mixed(Box<TransportCommunicator<MixedTransport>>),
}

impl ProcessCommunicator {
    /// What the links were measured to cost when the group was made; `None` where it does not
    /// matter: in shared memory, or when an algorithm was asked for by name.
    pub fn link_cost(&self) -> Option<LinkCost> {
        self.link_cost
    }

    /// The address on which the other ranks, and any gRPC client, reach this rank's control
    /// services.
    pub fn address(&self) -> std::net::SocketAddr {
        self.control.address()
    }

    fn get(&self) -> &dyn Communicator {
        match &self.inner {
            Inner::SharedMemory(communicator) => &**communicator,
            Inner::Grpc(communicator) => &**communicator,
            Inner::Mixed(communicator) => &**communicator,
        }
    }

    fn get_mut(&mut self) -> &mut dyn Communicator {
        match &mut self.inner {
            Inner::SharedMemory(communicator) => &mut **communicator,
            Inner::Grpc(communicator) => &mut **communicator,
            Inner::Mixed(communicator) => &mut **communicator,
        }
    }
}

impl Communicator for ProcessCommunicator {
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
