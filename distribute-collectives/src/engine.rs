//! The way from a call to an operation, the same for every communicator that moves bytes itself:
//! the call is described by a header, what cannot be is refused, then an [`Engine`] carries it out.

use std::ops::Range;

use crate::buffer::{Buffer, DType};
use crate::communicator::{AbortHandle, Communicator, Description, GatherTarget, chunk_range};
use crate::error::{CollectiveError, Result};
use crate::gathering;
use crate::header::OperationHeader;
use crate::operation::OperationKind;
use crate::reduce::ReduceOp;

/// Which rank of which group makes the next operation.
pub struct Member {
    pub(crate) rank: usize,
    pub(crate) world_size: usize,
    pub(crate) generation: u64,
    /// Number of the next collective operation.
    pub(crate) sequence: u64,
}

/// Carries out operations that were described and not refused. Each one that returns has been noted
/// as done or failed. Every engine is a [`Communicator`].
pub trait Engine: Send {
    /// The member that makes the next operation.
    fn member(&self) -> Member;

    /// Runs a collective operation on the buffers, which the header describes.
    fn run(&mut self, header: OperationHeader, buffers: &mut [Buffer<'_>]) -> Result<()>;

    /// Gives every rank the inputs of all ranks.
    fn gather(
        &mut self,
        header: OperationHeader,
        dtype: DType,
        input: &[u8],
        output: &mut dyn GatherTarget,
    ) -> Result<()>;

    /// Sends the buffer to another rank, or receives it from there. The header does not describe
    /// the buffer.
    fn transfer(
        &mut self,
        header: OperationHeader,
        peer: usize,
        buffer: &mut Buffer<'_>,
    ) -> Result<()>;

    /// As [`Communicator::abort_handle`].
    fn abort_target(&self) -> AbortHandle;

    /// As [`Communicator::describe`].
    fn description(&self) -> Description;
}

impl Member {
    /// The header of the next operation, without data.
    pub(crate) fn header(&self, kind: OperationKind) -> OperationHeader {
        OperationHeader::new(kind, self.generation, self.sequence)
    }

    /// Refuses a peer of a point-to-point call that does not exist.
    pub(crate) fn check_peer(&self, op: OperationKind, peer: usize) -> Result<()> {
        let (rank, world_size) = (self.rank, self.world_size);
        let what = if peer >= world_size {
            let name = match op {
                OperationKind::Send => "receiver",
                _ => "sender",
            };
            format!("the {name} is rank {peer}, but the group has {world_size} ranks")
        } else if peer == rank {
            "a rank cannot send to itself".to_string()
        } else {
            return Ok(());
        };
        Err(CollectiveError::InvalidArgument { rank, op, what })
    }
}

/// Runs an operation on these buffers.
fn run(
    engine: &mut impl Engine,
    header: OperationHeader,
    buffers: &mut [Buffer<'_>],
) -> Result<()> {
    let header = header.with_buffers(engine.member().rank, buffers)?;
    engine.run(header, buffers)
}

impl<E: Engine> Communicator for E {
    fn rank(&self) -> usize {
        self.member().rank
    }

    fn world_size(&self) -> usize {
        self.member().world_size
    }

    fn all_reduce(&mut self, op: ReduceOp, buffers: &mut [Buffer<'_>]) -> Result<()> {
        let header = self.member().header(OperationKind::AllReduce);
        run(self, header.with_op(op), buffers)
    }

    fn reduce_scatter(&mut self, op: ReduceOp, buffer: Buffer<'_>) -> Result<Range<usize>> {
        let member = self.member();
        let own = chunk_range(buffer.len(), member.world_size, member.rank);
        let header = member.header(OperationKind::ReduceScatter);
        run(self, header.with_op(op), &mut [buffer])?;
        Ok(own)
    }

    fn all_gather_into(
        &mut self,
        dtype: DType,
        input: &[u8],
        output: &mut dyn GatherTarget,
    ) -> Result<()> {
        let member = self.member();
        gathering::check_input(member.rank, dtype, input)?;
        let header = member.header(OperationKind::AllGather).with_dtype(dtype);
        self.gather(header, dtype, input, output)
    }

    fn broadcast(&mut self, root: usize, buffers: &mut [Buffer<'_>]) -> Result<()> {
        let header = self.member().header(OperationKind::Broadcast);
        run(self, header.with_root(root), buffers)
    }

    fn reduce(&mut self, op: ReduceOp, root: usize, buffers: &mut [Buffer<'_>]) -> Result<()> {
        let header = self.member().header(OperationKind::Reduce);
        run(self, header.with_op(op).with_root(root), buffers)
    }

    fn send(&mut self, to: usize, mut buffer: Buffer<'_>) -> Result<()> {
        let member = self.member();
        member.check_peer(OperationKind::Send, to)?;
        self.transfer(member.header(OperationKind::Send), to, &mut buffer)
    }

    fn recv(&mut self, from: usize, mut buffer: Buffer<'_>) -> Result<()> {
        let member = self.member();
        member.check_peer(OperationKind::Recv, from)?;
        self.transfer(member.header(OperationKind::Recv), from, &mut buffer)
    }

    fn barrier(&mut self) -> Result<()> {
        self.run(self.member().header(OperationKind::Barrier), &mut [])
    }

    fn abort_handle(&self) -> AbortHandle {
        self.abort_target()
    }

    fn describe(&self) -> Description {
        self.description()
    }
}
