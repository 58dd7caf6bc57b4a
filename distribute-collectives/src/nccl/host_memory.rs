//! The operations of the trait: on buffers in host memory, through page-locked memory and memory on
//! the device, piece by piece.

use std::cell::RefCell;
use std::ops::Range;

use super::agreement::Record;
use super::communicator::NcclCommunicator;
use super::control::ControlGroup;
use super::element::ElementType;
use super::raw::Call;
use super::thread::Round;
use crate::algorithm::exchange::segment_of;
use crate::buffer::{Buffer, DType, Element, with_dtype};
use crate::communicator::{AbortHandle, Communicator, Description, GatherTarget, chunk_range};
use crate::error::Result;
use crate::gathering;
use crate::header::OperationHeader;
use crate::operation::OperationKind;
use crate::pieces;
use crate::reduce::{self, ReduceOp};

/// The ranks that get the result of a reduction.
#[derive(Clone, Copy, PartialEq)]
enum Target {
    All,
    Root(usize),
}

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

/// Copies a range of the vector to memory.
fn fill<T: Element>(buffers: &[Buffer<'_>], range: Range<usize>, memory: &mut [u8]) {
    pieces::for_each::<T>(buffers, range, |offset, piece| {
        let bytes = bytemuck::cast_slice::<T, u8>(piece);
        let at = offset * size_of::<T>();
        memory[at..at + bytes.len()].copy_from_slice(bytes);
    });
}

/// Copies memory to a range of the vector, and divides where NCCL has not.
fn drain<T: Element>(
    buffers: &mut [Buffer<'_>],
    range: Range<usize>,
    memory: &[u8],
    left: Option<ReduceOp>,
    world_size: usize,
) {
    pieces::for_each_mut::<T>(buffers, range, |offset, piece| {
        let bytes = bytemuck::cast_slice_mut::<T, u8>(piece);
        let at = offset * size_of::<T>();
        bytes.copy_from_slice(&memory[at..at + bytes.len()]);
        if let (Some(op), true) = (left, T::NATIVE) {
            reduce::finish::<T::Acc>(op, world_size, bytemuck::cast_slice_mut(piece));
        }
    });
}

impl<G: ControlGroup> NcclCommunicator<G> {
    /// Elements of one round.
    fn segment<T>(&self) -> usize {
        (self.options.staging_bytes / size_of::<T>()).max(1)
    }

    fn reduction<T: Element>(
        &mut self,
        header: &OperationHeader,
        op: ReduceOp,
        target: Target,
        buffers: &mut [Buffer<'_>],
    ) -> Result<()> {
        let (world_size, own) = (self.world_size(), self.rank());
        let (op, left) = split(op, T::DTYPE);
        let len: usize = buffers.iter().map(Buffer::len).sum();
        let segment = self.segment::<T>();
        for index in 0..len.div_ceil(segment) {
            let range = segment_of(&(0..len), segment, index);
            let at = self.staged(range.len() * size_of::<T>())?;
            let at = at.cast(ElementType::from(T::DTYPE));
            let gets = target == Target::All || target == Target::Root(own);
            let job = Round {
                upload: Some(at.clone()),
                download: gets.then(|| at.clone()),
                calls: vec![match target {
                    Target::All => Call::AllReduce { at, op },
                    Target::Root(root) => Call::Reduce { at, op, root },
                }],
                ..Round::default()
            };
            let cell = RefCell::new(&mut *buffers);
            let filled = |host: &mut [u8]| fill::<T>(&cell.borrow(), range.clone(), host);
            let drained = |host: &[u8]| {
                if gets {
                    drain::<T>(
                        &mut cell.borrow_mut(),
                        range.clone(),
                        host,
                        left,
                        world_size,
                    );
                }
            };
            self.round(header, None, job, filled, drained)?;
        }
        Ok(())
    }

    fn scatter<T: Element>(
        &mut self,
        header: &OperationHeader,
        op: ReduceOp,
        buffer: Buffer<'_>,
    ) -> Result<()> {
        let (size, own, len) = (self.world_size(), self.rank(), buffer.len());
        let (op, left) = split(op, T::DTYPE);
        let segment = (self.segment::<T>() / size).max(1);
        let buffers = &mut [buffer];
        // The first chunk is never shorter than another one.
        for index in 0..chunk_range(len, size, 0).len().div_ceil(segment) {
            let parts: Vec<Range<usize>> = (0..size)
                .map(|rank| segment_of(&chunk_range(len, size, rank), segment, index))
                .collect();
            let total: usize = parts.iter().map(Range::len).sum();
            let all = self.staged(total * size_of::<T>())?;
            let all = all.cast(ElementType::from(T::DTYPE));
            let spans = offsets(&parts).map(|range| all.slice(range));
            let spans: Vec<_> = spans.collect();
            let calls = match parts.iter().all(|part| part.len() == parts[0].len()) {
                true => vec![Call::ReduceScatter {
                    from: all.clone(),
                    to: spans[own].clone(),
                    op,
                }],
                false => reduce_each(&spans, op),
            };
            let job = Round {
                upload: Some(all),
                download: Some(spans[own].clone()),
                calls,
                ..Round::default()
            };
            let cell = RefCell::new(&mut *buffers);
            let filled = |host: &mut [u8]| {
                for (part, at) in parts.iter().zip(offsets(&parts)) {
                    let memory = &mut host[at.start * size_of::<T>()..at.end * size_of::<T>()];
                    fill::<T>(*cell.borrow(), part.clone(), memory);
                }
            };
            let drained = |host: &[u8]| {
                drain::<T>(*cell.borrow_mut(), parts[own].clone(), host, left, size);
            };
            self.round(header, None, job, filled, drained)?;
        }
        Ok(())
    }

    fn spread<T: Element>(
        &mut self,
        header: &OperationHeader,
        root: usize,
        buffers: &mut [Buffer<'_>],
    ) -> Result<()> {
        let is_root = root == self.rank();
        let len: usize = buffers.iter().map(Buffer::len).sum();
        let segment = self.segment::<T>();
        for index in 0..len.div_ceil(segment) {
            let range = segment_of(&(0..len), segment, index);
            let at = self.staged(range.len() * size_of::<T>())?;
            let at = at.cast(ElementType::from(T::DTYPE));
            let call = Call::Broadcast {
                at: at.clone(),
                root,
            };
            self.move_one::<T>(header, None, (at, call), is_root, buffers, range)?;
        }
        Ok(())
    }

    /// A round that uploads a range, or downloads it.
    fn move_one<T: Element>(
        &mut self,
        header: &OperationHeader,
        peer: Option<usize>,
        (at, call): (super::raw::Span, Call),
        up: bool,
        buffers: &mut [Buffer<'_>],
        range: Range<usize>,
    ) -> Result<()> {
        let bytes = at.size_bytes();
        let job = Round {
            upload: up.then(|| at.clone()),
            download: (!up).then_some(at),
            calls: vec![call],
            ..Round::default()
        };
        if up {
            let filled = |host: &mut [u8]| fill::<T>(buffers, range, host);
            return self.round(header, peer, job, filled, |_| ());
        }
        let drained = |host: &[u8]| drain::<T>(buffers, range, &host[..bytes], None, 1);
        self.round(header, peer, job, |_| (), drained)
    }

    fn gather(
        &mut self,
        header: &OperationHeader,
        input: &[u8],
        sizes: &[usize],
        output: &mut [u8],
    ) -> Result<()> {
        let (size, own) = (self.world_size(), self.rank());
        let segment = (self.options.staging_bytes / size).max(1);
        let start = |rank: usize| sizes[..rank].iter().sum::<usize>();
        let longest = sizes.iter().copied().max().unwrap_or(0);
        for index in 0..longest.div_ceil(segment) {
            let parts: Vec<Range<usize>> = (0..size)
                .map(|rank| segment_of(&(start(rank)..start(rank) + sizes[rank]), segment, index))
                .collect();
            let total: usize = parts.iter().map(Range::len).sum();
            let all = self.staged(total)?;
            let spans: Vec<_> = offsets(&parts).map(|range| all.slice(range)).collect();
            let calls = match parts.iter().all(|part| part.len() == parts[0].len()) {
                true => vec![Call::AllGather {
                    from: spans[own].clone(),
                    to: all.clone(),
                }],
                false => broadcast_each(&spans),
            };
            let job = Round {
                upload: Some(spans[own].clone()),
                download: Some(all),
                calls,
                ..Round::default()
            };
            let part = segment_of(&(0..input.len()), segment, index);
            let filled = |host: &mut [u8]| host[..part.len()].copy_from_slice(&input[part]);
            self.round(header, None, job, filled, |host| {
                for (part, at) in parts.iter().zip(offsets(&parts)) {
                    output[part.clone()].copy_from_slice(&host[at]);
                }
            })?;
        }
        Ok(())
    }

    fn point_to_point<T: Element>(
        &mut self,
        header: &OperationHeader,
        peer: usize,
        buffer: Buffer<'_>,
    ) -> Result<()> {
        let len = buffer.len();
        let segment = self.segment::<T>();
        let sends = header.kind == OperationKind::Send;
        let buffers = &mut [buffer];
        for index in 0..len.div_ceil(segment) {
            let range = segment_of(&(0..len), segment, index);
            let at = self.staged(range.len() * size_of::<T>())?;
            let at = at.cast(ElementType::from(T::DTYPE));
            let span = at.clone();
            let call = match sends {
                true => Call::Send { at, to: peer },
                false => Call::Recv { at, from: peer },
            };
            self.move_one::<T>(header, Some(peer), (span, call), sends, buffers, range)?;
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

/// A reduce-scatter of parts of different lengths, as one group.
pub(super) fn reduce_each(spans: &[super::raw::Span], op: ReduceOp) -> Vec<Call> {
    let filled = spans.iter().enumerate().filter(|(_, at)| at.count > 0);
    let call = |(root, at): (usize, &super::raw::Span)| Call::Reduce {
        at: at.clone(),
        op,
        root,
    };
    filled.map(call).collect()
}

/// An all-gather of parts of different lengths, as one group.
pub(super) fn broadcast_each(spans: &[super::raw::Span]) -> Vec<Call> {
    let filled = spans.iter().enumerate().filter(|(_, at)| at.count > 0);
    let call = |(root, at): (usize, &super::raw::Span)| Call::Broadcast {
        at: at.clone(),
        root,
    };
    filled.map(call).collect()
}

impl<G: ControlGroup> Communicator for NcclCommunicator<G> {
    fn rank(&self) -> usize {
        self.group.rank()
    }

    fn world_size(&self) -> usize {
        self.group.world_size()
    }

    fn all_reduce(&mut self, op: ReduceOp, buffers: &mut [Buffer<'_>]) -> Result<()> {
        let header = self.header(OperationKind::AllReduce).with_op(op);
        let record = Record::of_host_memory(header, self.rank(), buffers)?;
        self.prepare_staging()?;
        self.operate(&record, None, |this| match record.header.dtype {
            None => Ok(()),
            Some(dtype) => with_dtype!(dtype, T => {
                this.reduction::<T>(&record.header, op, Target::All, buffers)
            }),
        })
    }

    fn reduce_scatter(&mut self, op: ReduceOp, mut buffer: Buffer<'_>) -> Result<Range<usize>> {
        let own = chunk_range(buffer.len(), self.world_size(), self.rank());
        let header = self.header(OperationKind::ReduceScatter).with_op(op);
        let record = Record::of_host_memory(header, self.rank(), &[buffer.reborrow()])?;
        self.prepare_staging()?;
        self.operate(
            &record,
            None,
            |this| with_dtype!(buffer.dtype(), T => this.scatter::<T>(&record.header, op, buffer)),
        )?;
        Ok(own)
    }

    fn all_gather_into(
        &mut self,
        dtype: DType,
        input: &[u8],
        output: &mut dyn GatherTarget,
    ) -> Result<()> {
        gathering::check_input(self.rank(), dtype, input)?;
        let header = self.header(OperationKind::AllGather).with_dtype(dtype);
        let mut record = Record::new(header);
        record.input_bytes = input.len();
        self.prepare_staging()?;
        self.operate(&record, None, |this| {
            let sizes = std::mem::take(&mut this.sizes);
            let inputs = gathering::Inputs {
                rank: this.rank(),
                dtype,
                sizes: &sizes,
                transport: "NCCL",
            };
            let result = inputs
                .memory(output)
                .and_then(|output| this.gather(&header, input, &sizes, output));
            this.sizes = sizes;
            result
        })
    }

    fn broadcast(&mut self, root: usize, buffers: &mut [Buffer<'_>]) -> Result<()> {
        let header = self.header(OperationKind::Broadcast).with_root(root);
        let record = Record::of_host_memory(header, self.rank(), buffers)?;
        self.prepare_staging()?;
        self.operate(&record, None, |this| match record.header.dtype {
            None => Ok(()),
            Some(dtype) => with_dtype!(dtype, T => this.spread::<T>(&record.header, root, buffers)),
        })
    }

    fn reduce(&mut self, op: ReduceOp, root: usize, buffers: &mut [Buffer<'_>]) -> Result<()> {
        let header = self
            .header(OperationKind::Reduce)
            .with_op(op)
            .with_root(root);
        let record = Record::of_host_memory(header, self.rank(), buffers)?;
        self.prepare_staging()?;
        self.operate(&record, None, |this| match record.header.dtype {
            None => Ok(()),
            Some(dtype) => with_dtype!(dtype, T => {
                this.reduction::<T>(&record.header, op, Target::Root(root), buffers)
            }),
        })
    }

    fn send(&mut self, to: usize, mut buffer: Buffer<'_>) -> Result<()> {
        self.check_peer(OperationKind::Send, to)?;
        let header = self.header(OperationKind::Send);
        let record = Record::of_host_memory(header, self.rank(), &[buffer.reborrow()])?;
        self.prepare_staging()?;
        self.operate(
            &record,
            Some(to),
            |this| with_dtype!(buffer.dtype(), T => this.point_to_point::<T>(&header, to, buffer)),
        )
    }

    fn recv(&mut self, from: usize, mut buffer: Buffer<'_>) -> Result<()> {
        self.check_peer(OperationKind::Recv, from)?;
        let header = self.header(OperationKind::Recv);
        let record = Record::of_host_memory(header, self.rank(), &[buffer.reborrow()])?;
        self.prepare_staging()?;
        self.operate(&record, Some(from), |this| {
            with_dtype!(buffer.dtype(), T => this.point_to_point::<T>(&header, from, buffer))
        })
    }

    fn barrier(&mut self) -> Result<()> {
        let record = Record::new(self.header(OperationKind::Barrier));
        self.operate(&record, None, |_| Ok(()))
    }

    fn abort_handle(&self) -> AbortHandle {
        self.group.abort_handle()
    }

    fn describe(&self) -> Description {
        self.description()
    }
}
