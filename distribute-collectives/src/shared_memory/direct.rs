//! The `direct` algorithm between processes: shared memory, canonical order.
//!
//! Small operations need one meeting ([`inline`]); bigger ones go through slots in windows
//! ([`windows`]). Both give the same bits as the in-process `direct` algorithm.

use crate::buffer::{Buffer, DType, with_dtype};
use crate::communicator::{AbortHandle, Description, GatherTarget, chunk_range};
use crate::engine::{Engine, Member};
use crate::error::Result;
use crate::gathering;
use crate::header::{OperationHeader, Target};
use crate::messages;
use crate::options::Algorithm;
use crate::shared_memory::doorbell::{Operation, SegmentView};
use crate::shared_memory::endpoint::LocalTransport;
use crate::shared_memory::windows::{self, Broadcast, Gather, Reduction};
use crate::shared_memory::{inline, pieces};
use crate::transport::Transport;

/// One rank's endpoint of a group whose ranks all share the host.
pub(crate) struct SharedMemoryCommunicator {
    transport: LocalTransport,
    /// Windows of all operations so far.
    windows: u64,
}

impl SharedMemoryCommunicator {
    pub(crate) fn new(transport: LocalTransport) -> Self {
        SharedMemoryCommunicator {
            transport,
            windows: 0,
        }
    }

    /// The part of `all_gather` after all ranks have begun it.
    fn gather_inputs(
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
            output[gathering::chunk(sizes, shared.me)].copy_from_slice(input);
            if sizes.iter().any(|size| *size > shared.layout.inline_bytes) {
                let mut program = Gather {
                    input,
                    sizes,
                    output,
                    window: shared.layout.slot_bytes,
                };
                return windows::run(shared, operation, base, &mut program);
            }
            for member in shared.peers() {
                let at = shared.layout.inline(member, header.sequence);
                let to = &mut output[gathering::chunk(sizes, member)];
                shared.segment.copy_out(at, to);
            }
            Ok(())
        })
    }
}

/// What this rank does after all ranks have begun the operation. `inline`: their inputs lie beside
/// their arrival records. `base` is the number of windows of all operations before.
fn carry_out(
    shared: &SegmentView,
    operation: &Operation<'_>,
    inline: bool,
    base: &mut u64,
    buffers: &mut [Buffer<'_>],
) -> Result<()> {
    let header = &operation.running.header;
    let (me, members) = (shared.me, shared.members());
    let Some(dtype) = header.dtype.filter(|_| members > 1 && header.count > 0) else {
        return Ok(());
    };
    let size = dtype.size_bytes();
    match (header.op, header.root) {
        (None, Some(root)) if inline && root == me => Ok(()),
        (None, Some(root)) if inline => {
            let at = shared.layout.inline(root, header.sequence);
            pieces::copy_out(&shared.segment, at, buffers, 0..header.count, size);
            Ok(())
        }
        (None, Some(root)) => {
            let mut program = Broadcast {
                len: header.count,
                buffers,
                size,
                root,
                window: shared.layout.slot_bytes / size,
            };
            windows::run(shared, operation, base, &mut program)
        }
        (Some(op), _) if inline => {
            let range = match header.target() {
                Target::Root(root) if root != me => return Ok(()),
                Target::All | Target::Root(_) => 0..header.count,
                Target::Shares => chunk_range(header.count, members, me),
            };
            let sequence = header.sequence;
            with_dtype!(dtype, T => inline::reduce::<T>(shared, sequence, op, buffers, range));
            Ok(())
        }
        (Some(op), _) => {
            let mut program = Reduction::new(shared, buffers, size, op, header.target());
            windows::run(shared, operation, base, &mut program)
        }
        (None, None) => Ok(()),
    }
}

impl Engine for SharedMemoryCommunicator {
    fn member(&self) -> Member {
        messages::member(&self.transport, &self.transport.options)
    }

    fn run(&mut self, header: OperationHeader, buffers: &mut [Buffer<'_>]) -> Result<()> {
        let shared = self.transport.shared();
        let refused = header.check_root(shared.me, shared.members());
        let size = header.dtype.map_or(1, DType::size_bytes);
        let bytes = header.count.checked_mul(size);
        // Done with one meeting; the same on all ranks.
        let inline = bytes.is_some_and(|bytes| bytes <= shared.layout.inline_bytes);
        let gives = header.op.is_some() || header.root == Some(shared.me);
        let started = self.transport.start(&header, 0, |shared| {
            if inline && gives {
                let at = shared.layout.inline(shared.me, header.sequence);
                pieces::copy_in(&shared.segment, at, buffers, 0..header.count, size);
            }
        });
        let base = &mut self.windows;
        let result = started.and_then(|()| {
            self.transport.during(|transport, operation| match refused {
                Ok(()) => carry_out(transport.shared(), operation, inline, base, buffers),
                Err(_) => Ok(()),
            })
        });
        // What all ranks together refuse was an operation: it has its number.
        self.transport.end(&header, result).and(refused)
    }

    fn gather(
        &mut self,
        header: OperationHeader,
        dtype: DType,
        input: &[u8],
        output: &mut dyn GatherTarget,
    ) -> Result<()> {
        let started = self.transport.start(&header, input.len(), |shared| {
            if input.len() <= shared.layout.inline_bytes {
                let at = shared.layout.inline(shared.me, header.sequence);
                shared.segment.copy_in(at, input);
            }
        });
        let result = started.and_then(|()| self.gather_inputs(&header, dtype, input, output));
        self.transport.end(&header, result)
    }

    fn transfer(
        &mut self,
        header: OperationHeader,
        peer: usize,
        buffer: &mut Buffer<'_>,
    ) -> Result<()> {
        let segment = self.transport.options.segment_bytes;
        messages::transfer(&mut self.transport, segment, &header, peer, buffer)
    }

    fn abort_target(&self) -> AbortHandle {
        self.transport.abort_handle()
    }

    fn description(&self) -> Description {
        let options = &self.transport.options;
        let reason = "all ranks are processes of one host";
        messages::describe(&self.transport, options, Algorithm::Direct, reason)
    }
}
