//! The operations of the trait: on buffers in host memory, through page-locked memory and memory on
//! the device, piece by piece.

use std::ops::Range;

use super::agreement::Record;
use super::communicator::NcclCommunicator;
use super::control::ControlGroup;
use super::raw::{Call, CallKind, Span};
use super::thread::Round;
use crate::algorithm::exchange::{pack, segment_of, segments_of, unpack};
use crate::buffer::{Buffer, DType, Element, with_dtype};
use crate::communicator::{AbortHandle, Description, GatherTarget, chunk_range};
use crate::engine::{Engine, Member};
use crate::error::Result;
use crate::gathering;
use crate::header::{OperationHeader, Target};
use crate::operation::OperationKind;
use crate::pieces;
use crate::reduce::{self, ReduceOp};

/// What NCCL computes for a reduction, and what is left to the CPU. The mean of types that are
/// their own accumulator is their sum, divided once, as everywhere in this crate; for the half
/// types, whose sum could overflow, NCCL divides.
fn split(op: ReduceOp, dtype: DType) -> (ReduceOp, Option<ReduceOp>) {
    match (op, dtype) {
        (ReduceOp::Mean, DType::F16 | DType::BF16) => (ReduceOp::Mean, None),
        (ReduceOp::Mean, _) => (ReduceOp::Sum, Some(ReduceOp::Mean)),
        (op, _) => (op, None),
    }
}

/// Copies memory to a range of the vector, and divides where NCCL has not.
fn drain<T: Element>(
    buffers: &mut [Buffer<'_>],
    range: Range<usize>,
    memory: &[u8],
    left: Option<ReduceOp>,
    world_size: usize,
) {
    unpack::<T>(None, buffers, range.clone(), memory);
    if let Some(op) = left {
        pieces::for_each_mut::<T>(buffers, range, |_, piece| {
            reduce::finish::<T::Acc>(op, world_size, bytemuck::cast_slice_mut(piece));
        });
    }
}

impl<G: ControlGroup> NcclCommunicator<G> {
    /// Elements of one round.
    fn segment<T>(&self) -> usize {
        (self.options.staging_bytes / size_of::<T>()).max(1)
    }

    fn run_typed<T: Element>(
        &mut self,
        header: &OperationHeader,
        buffers: &mut [Buffer<'_>],
    ) -> Result<()> {
        let Some(op) = header.op else {
            let kind = CallKind::Broadcast(header.root.unwrap_or(0));
            return self.each_segment::<T>(header, None, buffers, kind, None);
        };
        let (op, left) = split(op, T::DTYPE);
        let kind = match header.target() {
            Target::Shares => return self.scatter::<T>(header, op, left, buffers),
            Target::All => CallKind::AllReduce(op),
            Target::Root(root) => CallKind::Reduce(op, root),
        };
        self.each_segment::<T>(header, None, buffers, kind, left)
    }

    /// Has NCCL do a call on each segment of the vector, in a round of its own; `left` is left to
    /// the CPU, see [`split`].
    fn each_segment<T: Element>(
        &mut self,
        header: &OperationHeader,
        peer: Option<usize>,
        buffers: &mut [Buffer<'_>],
        kind: CallKind,
        left: Option<ReduceOp>,
    ) -> Result<()> {
        let (own, world_size) = (self.group.rank(), self.group.world_size());
        // Whether elements of this rank go to the device, and whether they come back from there.
        let (gives, gets) = match kind {
            CallKind::Reduce(_, root) => (true, root == own),
            CallKind::Broadcast(root) => (root == own, root != own),
            CallKind::Send(_) => (true, false),
            CallKind::Recv(_) => (false, true),
            // The calls on parts are not made in place: `Call::scatter` and `Call::gather`.
            _ => (true, true),
        };
        for range in segments_of(&(0..pieces::len(buffers)), self.segment::<T>()) {
            let at = self.staged::<T>(range.len())?;
            let round = Round {
                calls: vec![Call::new(kind, &at, &at)],
                upload: gives.then(|| at.clone()),
                download: gets.then_some(at),
                ..Round::default()
            };
            let fill = |buffers: &[Buffer<'_>], host: &mut [u8]| {
                if gives {
                    pack::<T>(None, buffers, range.clone(), host);
                }
            };
            let drain = |buffers: &mut [Buffer<'_>], host: &[u8]| {
                if gets {
                    drain::<T>(buffers, range.clone(), host, left, world_size);
                }
            };
            self.round(header, peer, round, buffers, fill, drain)?;
        }
        Ok(())
    }

    fn scatter<T: Element>(
        &mut self,
        header: &OperationHeader,
        op: ReduceOp,
        left: Option<ReduceOp>,
        buffers: &mut [Buffer<'_>],
    ) -> Result<()> {
        let (size, own) = (self.group.world_size(), self.group.rank());
        let len = pieces::len(buffers);
        let segment = (self.segment::<T>() / size).max(1);
        // The first chunk is never shorter than another one.
        for index in 0..chunk_range(len, size, 0).len().div_ceil(segment) {
            let parts: Vec<Range<usize>> = (0..size)
                .map(|rank| segment_of(&chunk_range(len, size, rank), segment, index))
                .collect();
            let (all, spans) = self.staged_parts::<T>(&parts)?;
            let round = Round {
                calls: Call::scatter(&all, &spans, own, op),
                upload: Some(all),
                download: Some(spans[own].clone()),
                ..Round::default()
            };
            let fill = |buffers: &[Buffer<'_>], host: &mut [u8]| {
                for (part, at) in parts.iter().zip(offsets(&parts)) {
                    let memory = &mut host[at.start * size_of::<T>()..at.end * size_of::<T>()];
                    pack::<T>(None, buffers, part.clone(), memory);
                }
            };
            let drain = |buffers: &mut [Buffer<'_>], host: &[u8]| {
                drain::<T>(buffers, parts[own].clone(), host, left, size);
            };
            self.round(header, None, round, buffers, fill, drain)?;
        }
        Ok(())
    }

    /// Staging memory for these parts, one after the other: for all of them, and for each.
    fn staged_parts<T: Element>(&mut self, parts: &[Range<usize>]) -> Result<(Span, Vec<Span>)> {
        let all = self.staged::<T>(parts.iter().map(Range::len).sum())?;
        let each = offsets(parts).map(|range| all.slice(range)).collect();
        Ok((all, each))
    }

    fn gather_inputs(
        &mut self,
        header: &OperationHeader,
        input: &[u8],
        sizes: &[usize],
        output: &mut [u8],
    ) -> Result<()> {
        let (size, own) = (self.group.world_size(), self.group.rank());
        let segment = (self.options.staging_bytes / size).max(1);
        let longest = sizes.iter().copied().max().unwrap_or(0);
        for index in 0..longest.div_ceil(segment) {
            let parts: Vec<Range<usize>> = (0..size)
                .map(|rank| segment_of(&gathering::chunk(sizes, rank), segment, index))
                .collect();
            let (all, spans) = self.staged_parts::<u8>(&parts)?;
            let round = Round {
                calls: Call::gather(&spans[own], &all, &spans, own),
                upload: Some(spans[own].clone()),
                download: Some(all),
                ..Round::default()
            };
            let part = segment_of(&(0..input.len()), segment, index);
            let fill = |_: &[u8], host: &mut [u8]| host[..part.len()].copy_from_slice(&input[part]);
            self.round(header, None, round, output, fill, |output, host| {
                for (part, at) in parts.iter().zip(offsets(&parts)) {
                    output[part.clone()].copy_from_slice(&host[at]);
                }
            })?;
        }
        Ok(())
    }
}

/// Where the parts lie when they are put one after the other.
fn offsets(parts: &[Range<usize>]) -> impl Iterator<Item = Range<usize>> {
    parts.iter().scan(0, |end, part| {
        let start = *end;
        *end += part.len();
        Some(start..*end)
    })
}

impl<G: ControlGroup> Engine for NcclCommunicator<G> {
    fn member(&self) -> Member {
        Member {
            rank: self.group.rank(),
            world_size: self.group.world_size(),
            generation: self.description.generation,
            sequence: self.operations.sequence(),
        }
    }

    fn run(&mut self, header: OperationHeader, buffers: &mut [Buffer<'_>]) -> Result<()> {
        if header.kind != OperationKind::Barrier {
            self.prepare_staging()?;
        }
        self.operate(&Record::new(header), None, |this| match header.dtype {
            Some(dtype) => with_dtype!(dtype, T => this.run_typed::<T>(&header, buffers)),
            None => Ok(()),
        })
    }

    fn gather(
        &mut self,
        header: OperationHeader,
        dtype: DType,
        input: &[u8],
        output: &mut dyn GatherTarget,
    ) -> Result<()> {
        let mut record = Record::new(header);
        record.input_bytes = input.len();
        self.prepare_staging()?;
        self.operate(&record, None, |this| {
            let sizes = std::mem::take(&mut this.sizes);
            let inputs = gathering::Inputs {
                rank: this.group.rank(),
                dtype,
                sizes: &sizes,
                transport: "NCCL",
            };
            let result = inputs
                .memory(output)
                .and_then(|output| this.gather_inputs(&header, input, &sizes, output));
            this.sizes = sizes;
            result
        })
    }

    fn transfer(
        &mut self,
        header: OperationHeader,
        peer: usize,
        buffer: &mut Buffer<'_>,
    ) -> Result<()> {
        let dtype = buffer.dtype();
        let buffers = &mut [buffer.reborrow()];
        let header = header.with_buffers(self.group.rank(), buffers)?;
        self.prepare_staging()?;
        let kind = match header.kind {
            OperationKind::Send => CallKind::Send(peer),
            _ => CallKind::Recv(peer),
        };
        self.operate(&Record::new(header), Some(peer), |this| {
            with_dtype!(dtype, T => {
                this.each_segment::<T>(&header, Some(peer), buffers, kind, None)
            })
        })
    }

    fn abort_target(&self) -> AbortHandle {
        self.group.abort_handle()
    }

    fn description(&self) -> Description {
        self.description.clone()
    }
}
