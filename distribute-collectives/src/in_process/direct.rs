//! The `direct` algorithm: shared memory, canonical order, no copy of the inputs.
//!
//! Every rank publishes its buffers. The elements are divided into one share per rank and each
//! share into blocks of 32 KiB. A rank reduces the blocks of its share over all ranks, in the
//! ranks' buffers, and writes the result to all of them; then it helps with shares that are not
//! done. A block of all ranks stays in the cache, so each byte comes from memory once and goes back
//! once.
//!
//! - Meetings: 2 (start and end).
//! - Memory traffic: every rank's buffer is read once and written once.
//! - Order: the order of the [`tree`](crate::tree) over all ranks, whichever rank does the block:
//!   always canonical.

use tracing::Span;

use crate::buffer::{Buffer, DType};
use crate::communicator::{AbortHandle, Description, GatherTarget};
use crate::engine::{Engine, Member};
use crate::error::Result;
use crate::gathering;
use crate::header::OperationHeader;
use crate::in_process::group::Group;
use crate::in_process::peer_buffers::{self, CompletionGuard, Plan};
use crate::in_process::raw_buffer::RawBuffer;
use crate::in_process::transport::InProcessTransport;
use crate::messages;
use crate::options::Algorithm;
use crate::phase;
use crate::transport::Transport;

/// Bytes of a rank's buffer in one block: the blocks of a few ranks fit the second-level cache.
const BLOCK_BYTES: usize = 32 * 1024;

/// What carries the bytes, in a trace.
const TRANSPORT: &str = "threads";

/// Notes in a trace which rank came last, so that the others waited for it. After the start of the
/// operation and before its end.
fn note_last(exchange: &Span, group: &Group, rank: usize) {
    let last = group.last();
    if last != rank {
        phase::waited_for(exchange, last);
    }
}

/// One rank's endpoint of a group that works directly on shared memory.
pub(crate) struct DirectCommunicator {
    /// Carries point-to-point calls, and is this rank's membership.
    pub(super) transport: InProcessTransport,
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

    /// Runs an operation; a reduction combines the ranks of each part with each other. `parts` are
    /// numbers of ranks, of all ranks together.
    pub(crate) fn run_parts(
        &mut self,
        header: OperationHeader,
        parts: &[usize],
        buffers: &mut [Buffer<'_>],
    ) -> Result<()> {
        self.transport.operations.check()?;
        let group = &*self.transport.group;
        let element_bytes = header.dtype.map_or(1, DType::size_bytes);
        let block_bytes = group.options.segment_bytes.unwrap_or(BLOCK_BYTES);
        let plan = Plan {
            header: &header,
            world_size: group.world_size,
            parts,
            block_elements: (block_bytes / element_bytes).max(1),
        };
        let rank = self.transport.rank;
        let refused = header.check_root(rank, group.world_size);
        let blocks = if refused.is_ok() { plan.blocks() } else { 0 };
        let exchange = phase::exchange(&header, None, TRANSPORT);
        let started = group.start(rank, &header, blocks, |list| {
            list.extend(buffers.iter_mut().map(RawBuffer::of));
        });
        let result = started.and_then(|()| {
            let running = CompletionGuard {
                group,
                sequence: header.sequence,
            };
            note_last(&exchange, group, rank);
            if blocks > 0 {
                group.collect(rank, &mut self.table);
                peer_buffers::work(group, rank, &plan, &self.table);
            }
            drop(running);
            group.health(&header, None)
        });
        let operations = &mut self.transport.operations;
        // What all ranks together refuse was an operation: it has its number.
        operations.end(header.kind, result).and(refused)
    }
}

impl Engine for DirectCommunicator {
    fn member(&self) -> Member {
        messages::member(&self.transport, &self.transport.group.options)
    }

    fn run(&mut self, header: OperationHeader, buffers: &mut [Buffer<'_>]) -> Result<()> {
        let all = [self.transport.group.world_size];
        self.run_parts(header, &all, buffers)
    }

    fn gather(
        &mut self,
        header: OperationHeader,
        dtype: DType,
        input: &[u8],
        output: &mut dyn GatherTarget,
    ) -> Result<()> {
        self.transport.operations.check()?;
        let (group, rank) = (&*self.transport.group, self.transport.rank);
        let exchange = phase::exchange(&header, Some(input.len()), TRANSPORT);
        let started = group.start(rank, &header, group.world_size, |list| {
            list.push(RawBuffer::of_input(input));
        });
        let result = started.and_then(|()| {
            let running = CompletionGuard {
                group,
                sequence: header.sequence,
            };
            note_last(&exchange, group, rank);
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
            gathered.and_then(|()| group.health(&header, None))
        });
        self.transport.operations.end(header.kind, result)
    }

    fn transfer(
        &mut self,
        header: OperationHeader,
        peer: usize,
        buffer: &mut Buffer<'_>,
    ) -> Result<()> {
        let segment = self.transport.group.options.segment_bytes;
        messages::transfer(&mut self.transport, segment, &header, peer, buffer)
    }

    fn abort_target(&self) -> AbortHandle {
        self.transport.abort_handle()
    }

    fn description(&self) -> Description {
        let options = &self.transport.group.options;
        let reason = "all ranks are threads of one process";
        messages::describe(&self.transport, options, Algorithm::Direct, reason)
    }
}
