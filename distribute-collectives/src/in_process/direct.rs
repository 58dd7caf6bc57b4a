//! The `direct` algorithm: shared memory, canonical order, no copy of the inputs.
//!
//! Every rank publishes its buffers. The elements are divided into one share per rank and each
//! share into blocks of 32 KiB. A rank reduces the blocks of its share over all ranks in rank
//! order and writes the result to all ranks' buffers; then it helps with shares that are not done.
//! A block of all ranks stays in the cache, so each byte comes from memory once and goes back once.
//!
//! - Meetings: 2 (start and end).
//! - Memory traffic: every rank's buffer is read once and written once.
//! - Order: rank 0, rank 1, ... whoever does the block: always canonical.

use std::ops::Range;

use crate::buffer::{Buffer, DType};
use crate::communicator::{AbortHandle, Communicator, Description, GatherTarget, chunk_range};
use crate::error::Result;
use crate::gathering;
use crate::header::OperationHeader;
use crate::in_process::peer_buffers::{self, CompletionGuard, Plan};
use crate::in_process::raw_buffer::RawBuffer;
use crate::in_process::transport::InProcessTransport;
use crate::messages;
use crate::operation::OperationKind;
use crate::options::Algorithm;
use crate::reduce::ReduceOp;
use crate::transport::Transport;

/// Bytes of a rank's buffer in one block: the blocks of a few ranks fit the second-level cache.
const BLOCK_BYTES: usize = 32 * 1024;

/// One rank's endpoint of a group that works directly on shared memory.
pub(crate) struct DirectCommunicator {
    /// Carries point-to-point calls, and holds the endpoint.
    transport: InProcessTransport,
    /// The buffers of all ranks in the running operation; kept for its memory.
    table: Vec<RawBuffer>,
    /// Input sizes of an `all_gather`; kept for its memory.
    sizes: Vec<usize>,
}

impl DirectCommunicator {
    pub(crate) fn new(transport: InProcessTransport) -> Self {
        DirectCommunicator {
            transport,
            table: Vec::new(),
            sizes: Vec::new(),
        }
    }

    #[cfg(feature = "nccl")]
    pub(crate) fn endpoint(&self) -> &crate::in_process::endpoint::Endpoint {
        &self.transport.endpoint
    }

    fn header(&self, kind: OperationKind) -> OperationHeader {
        let generation = self.transport.endpoint.group.options.get_generation();
        OperationHeader::new(kind, generation, self.transport.sequence())
    }

    /// Runs one operation on the buffers.
    fn operate(&mut self, header: OperationHeader, buffers: &mut [Buffer<'_>]) -> Result<()> {
        self.transport.endpoint.operations.check()?;
        let group = &*self.transport.endpoint.group;
        let element_bytes = header.dtype.map_or(1, DType::size_bytes);
        let block_bytes = group.options.get_segment_bytes().unwrap_or(BLOCK_BYTES);
        let plan = Plan {
            header: &header,
            world_size: group.world_size,
            block_elements: (block_bytes / element_bytes).max(1),
        };
        let rank = self.transport.endpoint.rank;
        let refused = header.check_root(rank, group.world_size);
        let blocks = if refused.is_ok() { plan.blocks() } else { 0 };
        let started = group.start(rank, &header, blocks, |list| {
            list.extend(buffers.iter_mut().map(RawBuffer::of));
        });
        let result = started.and_then(|()| {
            let running = CompletionGuard {
                group,
                sequence: header.sequence,
            };
            if blocks > 0 {
                group.collect(rank, &mut self.table);
                peer_buffers::work(group, rank, &plan, &self.table);
            }
            drop(running);
            group.outcome(header.sequence)
        });
        let operations = &mut self.transport.endpoint.operations;
        // What all ranks together refuse was an operation: it has its number.
        operations.end(header.kind, result).and(refused)
    }

    /// Generation and segment size of point-to-point calls.
    fn point_to_point(&self) -> (u64, usize) {
        let options = &self.transport.endpoint.group.options;
        let segment = options
            .get_segment_bytes()
            .unwrap_or(self.transport.segment_bytes());
        (options.get_generation(), segment.max(1))
    }
}

impl Communicator for DirectCommunicator {
    fn rank(&self) -> usize {
        self.transport.endpoint.rank
    }

    fn world_size(&self) -> usize {
        self.transport.endpoint.group.world_size
    }

    fn all_reduce(&mut self, op: ReduceOp, buffers: &mut [Buffer<'_>]) -> Result<()> {
        let header = self.header(OperationKind::AllReduce).with_op(op);
        let header = header.with_buffers(self.rank(), buffers)?;
        self.operate(header, buffers)
    }

    fn reduce_scatter(&mut self, op: ReduceOp, mut buffer: Buffer<'_>) -> Result<Range<usize>> {
        let own = chunk_range(buffer.len(), self.world_size(), self.rank());
        let buffers = &mut [buffer.reborrow()];
        let header = self.header(OperationKind::ReduceScatter).with_op(op);
        let header = header.with_buffers(self.rank(), buffers)?;
        self.operate(header, buffers)?;
        Ok(own)
    }

    fn all_gather_into(
        &mut self,
        dtype: DType,
        input: &[u8],
        output: &mut dyn GatherTarget,
    ) -> Result<()> {
        self.transport.endpoint.operations.check()?;
        gathering::check_input(self.rank(), dtype, input)?;
        let header = self.header(OperationKind::AllGather).with_dtype(dtype);
        let (group, rank) = (
            &*self.transport.endpoint.group,
            self.transport.endpoint.rank,
        );
        let started = group.start(rank, &header, group.world_size, |list| {
            list.push(RawBuffer::of_input(input));
        });
        let result = started.and_then(|()| {
            let running = CompletionGuard {
                group,
                sequence: header.sequence,
            };
            group.collect(rank, &mut self.table);
            self.sizes.clear();
            self.sizes.extend(self.table.iter().map(RawBuffer::len));
            let inputs = gathering::Inputs {
                rank,
                dtype,
                sizes: &self.sizes,
                transport: "in-process",
            };
            let gathered = peer_buffers::gather(group, &header, &self.table, &inputs, output);
            drop(running);
            gathered.and_then(|()| group.outcome(header.sequence))
        });
        self.transport.endpoint.operations.end(header.kind, result)
    }

    fn broadcast(&mut self, root: usize, buffers: &mut [Buffer<'_>]) -> Result<()> {
        let header = self.header(OperationKind::Broadcast).with_root(root);
        let header = header.with_buffers(self.rank(), buffers)?;
        self.operate(header, buffers)
    }

    fn reduce(&mut self, op: ReduceOp, root: usize, buffers: &mut [Buffer<'_>]) -> Result<()> {
        let header = self
            .header(OperationKind::Reduce)
            .with_op(op)
            .with_root(root);
        let header = header.with_buffers(self.rank(), buffers)?;
        self.operate(header, buffers)
    }

    fn send(&mut self, to: usize, buffer: Buffer<'_>) -> Result<()> {
        let (generation, segment) = self.point_to_point();
        messages::send(&mut self.transport, generation, to, &buffer, segment)
    }

    fn recv(&mut self, from: usize, mut buffer: Buffer<'_>) -> Result<()> {
        let (generation, segment) = self.point_to_point();
        messages::recv(&mut self.transport, generation, from, &mut buffer, segment)
    }

    fn barrier(&mut self) -> Result<()> {
        self.operate(self.header(OperationKind::Barrier), &mut [])
    }

    fn abort_handle(&self) -> AbortHandle {
        AbortHandle::new(
            self.transport.endpoint.rank,
            self.transport.endpoint.group.clone(),
        )
    }

    fn describe(&self) -> Description {
        let options = &self.transport.endpoint.group.options;
        Description {
            group: options.get_name().to_string(),
            generation: options.get_generation(),
            world_size: self.world_size(),
            algorithm: Algorithm::Direct,
            transport: "in-process".to_string(),
            order: options.get_order(),
            reason: "all ranks are threads of one process".to_string(),
        }
    }
}
