//! The `direct` algorithm between processes: shared memory, canonical order.
//!
//! Small operations need one meeting ([`inline`]); bigger ones go through slots in windows
//! ([`windows`]). Both give the same bits as the in-process `direct` algorithm.

use std::ops::Range;
use std::sync::Arc;

use crate::buffer::{Buffer, DType};
use crate::communicator::{
    AbortHandle, AbortTarget, Communicator, Description, GatherTarget, chunk_range,
};
use crate::error::Result;
use crate::gathering;
use crate::header::OperationHeader;
use crate::messages;
use crate::operation::OperationKind;
use crate::options::{Algorithm, GroupOptions};
use crate::reduce::ReduceOp;
use crate::shared_memory::doorbell::Operation;
use crate::shared_memory::endpoint::LocalTransport;
use crate::shared_memory::group::LocalGroup;
use crate::shared_memory::inline;
use crate::shared_memory::pieces;
use crate::shared_memory::windows::{self, Broadcast, Gather, Reduction, Target};
use crate::transport::Transport;

/// One rank's endpoint of a group whose ranks all share the host.
pub(crate) struct SharedMemoryCommunicator {
    transport: LocalTransport,
    /// Windows of all operations so far.
    windows: u64,
}

impl SharedMemoryCommunicator {
    /// See [`LocalTransport::new`].
    pub(crate) fn new(
        group: LocalGroup,
        options: GroupOptions,
        abort: Arc<dyn AbortTarget>,
    ) -> Result<Self> {
        let transport = LocalTransport::new(group, options, abort)?;
        Ok(SharedMemoryCommunicator {
            transport,
            windows: 0,
        })
    }

    fn header(&self, kind: OperationKind) -> OperationHeader {
        let generation = self.transport.options.get_generation();
        OperationHeader::new(kind, generation, self.transport.sequence())
    }

    /// Runs `body` when all ranks have begun the operation. `put`: whether this rank's buffers are
    /// written beside its arrival record.
    fn operate(
        &mut self,
        header: OperationHeader,
        buffers: &mut [Buffer<'_>],
        put: bool,
        body: impl FnOnce(&LocalTransport, OperationScope<'_>, &mut [Buffer<'_>]) -> Result<()>,
    ) -> Result<()> {
        self.transport.check()?;
        let refused = header.check_root(self.rank(), self.world_size());
        let size = header.dtype.map_or(1, DType::size_bytes);
        let started = self.transport.start(&header, 0, |shared| {
            if put {
                inline::put(shared, header.sequence, buffers, size);
            }
        });
        let windows = &mut self.windows;
        let result = started.and_then(|()| {
            self.transport.during(|transport, operation| {
                let running = OperationScope { operation, windows };
                match refused {
                    Ok(()) => body(transport, running, buffers),
                    Err(_) => Ok(()),
                }
            })
        });
        // What all ranks together refuse was an operation: it has its number.
        self.transport.settle(header.kind, result).and(refused)
    }

    /// Whether an operation with this header is done with one meeting; the same on all ranks.
    fn is_inline(&self, header: &OperationHeader) -> bool {
        let size = header.dtype.map_or(1, DType::size_bytes);
        let bytes = header.count.checked_mul(size);
        bytes.is_some_and(|bytes| bytes <= self.transport.shared().layout.inline_bytes)
    }

    /// `all_reduce`, `reduce` and `reduce_scatter`.
    fn reduction(
        &mut self,
        header: OperationHeader,
        op: ReduceOp,
        target: Target,
        buffers: &mut [Buffer<'_>],
    ) -> Result<()> {
        let inline = self.is_inline(&header);
        let size = header.dtype.map_or(1, DType::size_bytes);
        self.operate(header, buffers, inline, |transport, running, buffers| {
            let (shared, operation) = (transport.shared(), running.operation);
            let (me, members) = (shared.me, shared.members());
            if members == 1 || header.count == 0 {
                return Ok(());
            }
            if !inline {
                let mut program = Reduction::new(shared, buffers, size, op, target);
                return windows::run(shared, operation, running.windows, &mut program);
            }
            let range = match target {
                Target::All => 0..header.count,
                Target::One(root) if root == me => 0..header.count,
                Target::One(_) => return Ok(()),
                Target::Shares => chunk_range(header.count, members, me),
            };
            inline::reduce(shared, header.sequence, op, buffers, range);
            Ok(())
        })
    }

    /// The part of `all_gather` after all ranks have begun it.
    fn gather(
        &mut self,
        header: &OperationHeader,
        dtype: DType,
        input: &[u8],
        output: &mut dyn GatherTarget,
    ) -> Result<()> {
        let base = &mut self.windows;
        self.transport.during(|transport, operation| {
            let (shared, sizes) = (transport.shared(), &transport.owns);
            let inputs = gathering::Inputs {
                rank: shared.me,
                dtype,
                sizes,
                transport: "shared memory of this host",
            };
            let output = inputs
                .memory(output)
                .map_err(|error| operation.fail(error))?;
            let start: usize = sizes[..shared.me].iter().sum();
            output[start..start + input.len()].copy_from_slice(input);
            if sizes.iter().any(|size| *size > shared.layout.inline_bytes) {
                let mut program = Gather {
                    input,
                    sizes,
                    output,
                    window: shared.layout.slot_bytes,
                };
                return windows::run(shared, operation, base, &mut program);
            }
            let mut rest = output;
            for (member, size) in sizes.iter().enumerate() {
                let (to, after) = rest.split_at_mut(*size);
                if member != shared.me {
                    let at = shared.layout.inline(member, header.sequence);
                    shared.segment.copy_out(at, to);
                }
                rest = after;
            }
            Ok(())
        })
    }
}

/// What the body of an operation works with.
struct OperationScope<'a> {
    operation: &'a Operation<'a>,
    /// Windows of all operations before.
    windows: &'a mut u64,
}

impl Communicator for SharedMemoryCommunicator {
    fn rank(&self) -> usize {
        self.transport.rank()
    }

    fn world_size(&self) -> usize {
        self.transport.world_size()
    }

    fn all_reduce(&mut self, op: ReduceOp, buffers: &mut [Buffer<'_>]) -> Result<()> {
        let header = self.header(OperationKind::AllReduce).with_op(op);
        let header = header.with_buffers(self.rank(), buffers)?;
        self.reduction(header, op, Target::All, buffers)
    }

    fn reduce_scatter(&mut self, op: ReduceOp, mut buffer: Buffer<'_>) -> Result<Range<usize>> {
        let own = chunk_range(buffer.len(), self.world_size(), self.rank());
        let buffers = &mut [buffer.reborrow()];
        let header = self.header(OperationKind::ReduceScatter).with_op(op);
        let header = header.with_buffers(self.rank(), buffers)?;
        self.reduction(header, op, Target::Shares, buffers)?;
        Ok(own)
    }

    fn all_gather_into(
        &mut self,
        dtype: DType,
        input: &[u8],
        output: &mut dyn GatherTarget,
    ) -> Result<()> {
        self.transport.check()?;
        gathering::check_input(self.rank(), dtype, input)?;
        let header = self.header(OperationKind::AllGather).with_dtype(dtype);
        let started = self.transport.start(&header, input.len(), |shared| {
            if input.len() <= shared.layout.inline_bytes {
                let at = shared.layout.inline(shared.me, header.sequence);
                shared.segment.copy_in(at, input);
            }
        });
        let result = started.and_then(|()| self.gather(&header, dtype, input, output));
        self.transport.settle(header.kind, result)
    }

    fn broadcast(&mut self, root: usize, buffers: &mut [Buffer<'_>]) -> Result<()> {
        let header = self.header(OperationKind::Broadcast).with_root(root);
        let header = header.with_buffers(self.rank(), buffers)?;
        let (inline, is_root) = (self.is_inline(&header), self.rank() == root);
        let size = header.dtype.map_or(1, DType::size_bytes);
        let put = inline && is_root;
        self.operate(header, buffers, put, |transport, running, buffers| {
            let shared = transport.shared();
            if !inline {
                let mut program = Broadcast {
                    len: pieces::len(buffers),
                    buffers,
                    size,
                    root,
                    window: shared.layout.slot_bytes / size,
                };
                return windows::run(shared, running.operation, running.windows, &mut program);
            }
            if !is_root {
                inline::take(shared, header.sequence, root, buffers, size);
            }
            Ok(())
        })
    }

    fn reduce(&mut self, op: ReduceOp, root: usize, buffers: &mut [Buffer<'_>]) -> Result<()> {
        let header = self.header(OperationKind::Reduce).with_op(op);
        let header = header.with_root(root).with_buffers(self.rank(), buffers)?;
        self.reduction(header, op, Target::One(root), buffers)
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
        let header = self.header(OperationKind::Barrier);
        self.operate(header, &mut [], false, |_, _, _| Ok(()))
    }

    fn abort_handle(&self) -> AbortHandle {
        self.transport.abort_handle()
    }

    fn describe(&self) -> Description {
        let options = &self.transport.options;
        Description {
            group: options.get_name().to_string(),
            generation: options.get_generation(),
            world_size: self.world_size(),
            algorithm: Algorithm::Direct,
            transport: self.transport.name().to_string(),
            order: options.get_order(),
            reason: "all ranks are processes of one host".to_string(),
        }
    }
}

impl SharedMemoryCommunicator {
    /// Generation and segment size of point-to-point calls.
    fn point_to_point(&self) -> (u64, usize) {
        let options = &self.transport.options;
        let segment = options.get_segment_bytes();
        let segment = segment.unwrap_or(self.transport.segment_bytes());
        (options.get_generation(), segment.max(1))
    }
}
