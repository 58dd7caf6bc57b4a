//! The operations of the trait: on buffers in host memory, through page-locked memory and memory on
//! the device, piece by piece.

use std::ops::Range;

use super::agreement::Record;
use super::communicator::NcclCommunicator;
use super::control::ControlGroup;
use super::element::ElementType;
use super::raw::{Call, Span};
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

/// What this rank has to do with a vector.
struct Share {
    /// The elements go to the device.
    gives: bool,
    /// They come back from there.
    gets: bool,
    /// Left to the CPU, see [`split`].
    left: Option<ReduceOp>,
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
        let own = self.group.rank();
        let Some(op) = header.op else {
            let root = header.root.unwrap_or(0);
            let share = Share {
                gives: root == own,
                gets: root != own,
                left: None,
            };
            let call = |at| Call::Broadcast { at, root };
            return self.each_segment::<T>(header, None, buffers, &share, call);
        };
        let (op, left) = split(op, T::DTYPE);
        let target = header.target();
        let share = Share {
            gives: true,
            gets: target == Target::All || target == Target::Root(own),
            left,
        };
        match target {
            Target::Shares => self.scatter::<T>(header, op, left, buffers),
            Target::All => self.each_segment::<T>(header, None, buffers, &share, |at| {
                Call::AllReduce { at, op }
            }),
            Target::Root(root) => self.each_segment::<T>(header, None, buffers, &share, |at| {
                Call::Reduce { at, op, root }
            }),
        }
    }

    /// Has NCCL do a call on each segment of the vector, in a round of its own.
    fn each_segment<T: Element>(
        &mut self,
        header: &OperationHeader,
        peer: Option<usize>,
        buffers: &mut [Buffer<'_>],
        share: &Share,
        call: impl Fn(Span) -> Call,
    ) -> Result<()> {
        let (world_size, segment) = (self.group.world_size(), self.segment::<T>());
        let vector = 0..pieces::len(buffers);
        for range in segments_of(&vector, segment) {
            let at = self.staged(range.len() * size_of::<T>())?;
            let at = at.cast(ElementType::from(T::DTYPE));
            let round = Round {
                upload: share.gives.then(|| at.clone()),
                download: share.gets.then(|| at.clone()),
                calls: vec![call(at)],
                ..Round::default()
            };
            let fill = |buffers: &[Buffer<'_>], host: &mut [u8]| {
                if share.gives {
                    pack::<T>(None, buffers, range.clone(), host);
                }
            };
            let drain = |buffers: &mut [Buffer<'_>], host: &[u8]| {
                if share.gets {
                    drain::<T>(buffers, range.clone(), host, share.left, world_size);
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
            let total: usize = parts.iter().map(Range::len).sum();
            let all = self.staged(total * size_of::<T>())?;
            let all = all.cast(ElementType::from(T::DTYPE));
            let spans: Vec<_> = offsets(&parts).map(|range| all.slice(range)).collect();
            let calls = match parts.iter().all(|part| part.len() == parts[0].len()) {
                true => vec![Call::ReduceScatter {
                    from: all.clone(),
                    to: spans[own].clone(),
                    op,
                }],
                false => each_part(&spans, |at, root| Call::Reduce { at, op, root }),
            };
            let round = Round {
                upload: Some(all),
                download: Some(spans[own].clone()),
                calls,
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
            let total: usize = parts.iter().map(Range::len).sum();
            let all = self.staged(total)?;
            let spans: Vec<_> = offsets(&parts).map(|range| all.slice(range)).collect();
            let calls = match parts.iter().all(|part| part.len() == parts[0].len()) {
                true => vec![Call::AllGather {
                    from: spans[own].clone(),
                    to: all.clone(),
                }],
                false => each_part(&spans, |at, root| Call::Broadcast { at, root }),
            };
            let round = Round {
                upload: Some(spans[own].clone()),
                download: Some(all),
                calls,
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

/// A reduce-scatter or all-gather of parts of different lengths, as one group: a call for each part
/// that holds something, with the rank whose part it is.
pub(super) fn each_part(spans: &[Span], call: impl Fn(Span, usize) -> Call) -> Vec<Call> {
    let filled = spans.iter().enumerate().filter(|(_, at)| at.count > 0);
    filled.map(|(root, at)| call(at.clone(), root)).collect()
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
        let sends = header.kind == OperationKind::Send;
        let share = Share {
            gives: sends,
            gets: !sends,
            left: None,
        };
        let call = |at| match sends {
            true => Call::Send { at, to: peer },
            false => Call::Recv { at, from: peer },
        };
        self.operate(&Record::new(header), Some(peer), |this| {
            with_dtype!(dtype, T => {
                this.each_segment::<T>(&header, Some(peer), buffers, &share, call)
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
