//! The operations in MPI's own calls.
//!
//! A vector is moved in rounds: round `s` moves segment `s` of every rank's chunk, through memory
//! that the pending operation owns. So a rank needs one segment per rank each way, however long the
//! vector is.

use std::ops::Range;

use half::{bf16, f16};

use super::raw::Memory;
use super::transport::MpiTransport;
use crate::algorithm::exchange::{put, segment_of, take};
use crate::buffer::{Buffer, DType, Element, with_dtype};
use crate::communicator::{AbortHandle, Communicator, Description, GatherTarget, chunk_range};
use crate::error::Result;
use crate::gathering;
use crate::header::OperationHeader;
use crate::messages;
use crate::operation::OperationKind;
use crate::options::{Algorithm, GroupOptions, WireType};
use crate::pieces;
use crate::reduce::{self, RankSlices, ReduceOp};
use crate::transport::Transport;

/// One rank's endpoint that leaves the moving to MPI.
pub(super) struct MpiCollectives {
    transport: MpiTransport,
    options: GroupOptions,
    sizes: Vec<usize>,
}

/// The ranks that get the reduced chunks.
#[derive(Clone, Copy, PartialEq)]
enum Target {
    /// Every rank gets the share that it owns.
    Shares,
    /// The root.
    Root(usize),
    /// Everybody.
    All,
}

/// A reduction of one rank's buffers.
struct Reduction<'a, 'b> {
    buffers: &'a mut [Buffer<'b>],
    op: ReduceOp,
    wire: Option<WireType>,
    target: Target,
}

/// The parts of all ranks, one after the other.
struct Received<'a, T> {
    values: &'a mut [T],
    len: usize,
}

impl<T> RankSlices<T> for Received<'_, T> {
    fn slice(&mut self, rank: usize, range: Range<usize>) -> &mut [T] {
        let start = rank * self.len;
        &mut self.values[start + range.start..start + range.end]
    }
}

impl MpiCollectives {
    pub(super) fn new(transport: MpiTransport, options: GroupOptions) -> Self {
        MpiCollectives {
            transport,
            options,
            sizes: Vec::new(),
        }
    }

    fn segment_bytes(&self) -> usize {
        let wanted = self.options.get_segment_bytes();
        // What all ranks send at a time must stay below MPI's 2 GiB.
        let most = (1 << 30) / self.transport.world_size();
        wanted
            .unwrap_or(self.transport.segment_bytes())
            .clamp(1, most.max(1))
    }

    fn header(&self, kind: OperationKind) -> OperationHeader {
        let generation = self.options.get_generation();
        OperationHeader::new(kind, generation, self.transport.sequence())
    }

    fn operate(
        &mut self,
        header: &OperationHeader,
        body: impl FnOnce(&mut Self) -> Result<()>,
    ) -> Result<()> {
        messages::operate(self, |this| &mut this.transport, header, body)
    }

    /// `all_reduce`, `reduce` and `reduce_scatter`; `header` does not describe the buffers yet.
    fn reduction(
        &mut self,
        header: OperationHeader,
        op: ReduceOp,
        target: Target,
        buffers: &mut [Buffer<'_>],
    ) -> Result<()> {
        let header = header.with_buffers(self.transport.rank(), buffers)?;
        let wire = self.options.wire_of(header.dtype);
        let header = header.with_wire(wire);
        let reduction = Reduction {
            buffers,
            op,
            wire,
            target,
        };
        self.operate(&header, |this| this.reduce_to(header.dtype, reduction))
    }

    /// Picks the type that travels: the elements' own, or the wire type.
    fn reduce_to(&mut self, dtype: Option<DType>, reduction: Reduction<'_, '_>) -> Result<()> {
        if self.transport.world_size() < 2 {
            return Ok(());
        }
        match (dtype, reduction.wire) {
            (None, _) => Ok(()),
            (Some(_), Some(WireType::Bf16)) => self.exchange::<f32, bf16>(reduction),
            (Some(_), Some(WireType::F16)) => self.exchange::<f32, f16>(reduction),
            (Some(dtype @ (DType::I32 | DType::I64)), None) if reduction.target == Target::All => {
                with_dtype!(dtype, E => self.all_reduce_integers::<E>(reduction))
            }
            (Some(dtype), None) => with_dtype!(dtype, E => self.exchange::<E, E>(reduction)),
        }
    }

    /// Every rank combines its chunk of all ranks' elements `T`, which travel as `W`.
    fn exchange<T: Element, W: Element>(&mut self, reduction: Reduction<'_, '_>) -> Result<()> {
        let Reduction {
            buffers,
            op,
            wire,
            target,
        } = reduction;
        let (rank, size) = (self.transport.rank(), self.transport.world_size());
        let each = size_of::<W>();
        let segment = (self.segment_bytes() / each).max(1);
        let len: usize = buffers.iter().map(Buffer::len).sum();
        let part = |rank, index| segment_of(&chunk_range(len, size, rank), segment, index);
        // The first chunk is never shorter than another one.
        for index in 0..chunk_range(len, size, 0).len().div_ceil(segment) {
            let own = part(rank, index);
            let mut memory = self.transport.take_memory();
            let bytes = memory
                .sent
                .set((0..size).map(|rank| part(rank, index).len() * each));
            let mut frame = memory.outgoing(bytes);
            for rank in 0..size {
                let (piece, rest) = frame.split_at_mut(part(rank, index).len() * each);
                pack::<T>(wire, buffers, part(rank, index), piece);
                frame = rest;
            }
            let bytes = memory.received.set((0..size).map(|_| own.len() * each));
            memory.incoming(bytes);
            let pending = self.transport.comm.all_to_all(memory);
            let mut memory = self.transport.complete(pending)?;
            let mut received = Received {
                values: bytemuck::cast_slice_mut::<u8, W>(memory.incoming(bytes)),
                len: own.len(),
            };
            reduce::reduce_ranks(op, size, 0..1, own.len(), &mut received);
            let memory = match target {
                Target::Shares => {
                    let reduced = &memory.incoming(bytes)[..own.len() * each];
                    unpack::<T>(wire, buffers, own, reduced);
                    memory
                }
                _ => {
                    let counts = |rank| part(rank, index).len() * each;
                    let memory = self.spread(memory, own.len() * each, &counts, target)?;
                    self.collect::<T>(memory, wire, buffers, target, &|rank| part(rank, index))
                }
            };
            self.transport.put_back(memory);
        }
        Ok(())
    }

    /// Gives the own reduced part, which begins what was received, to the others.
    fn spread(
        &mut self,
        mut memory: Memory,
        own_bytes: usize,
        counts: &dyn Fn(usize) -> usize,
        target: Target,
    ) -> Result<Memory> {
        memory.own_to_outgoing(own_bytes);
        let bytes = memory
            .received
            .set((0..self.transport.world_size()).map(counts));
        memory.sent.set(std::iter::empty());
        memory.incoming(bytes);
        let root = match target {
            Target::Root(root) => Some(root),
            _ => None,
        };
        let pending = self.transport.comm.gather(memory, own_bytes, root);
        self.transport.complete(pending)
    }

    /// Writes the parts of all ranks to the vector, where this rank got them.
    fn collect<T: Element>(
        &self,
        mut memory: Memory,
        wire: Option<WireType>,
        buffers: &mut [Buffer<'_>],
        target: Target,
        part: &dyn Fn(usize) -> Range<usize>,
    ) -> Memory {
        if matches!(target, Target::Root(root) if root != self.transport.rank()) {
            return memory;
        }
        let each = wire.map_or(size_of::<T>(), |_| WireType::SIZE_BYTES);
        let size = self.transport.world_size();
        let total: usize = (0..size).map(|rank| part(rank).len() * each).sum();
        let mut frame = &*memory.incoming(total);
        for rank in 0..size {
            let (piece, rest) = frame.split_at(part(rank).len() * each);
            unpack::<T>(wire, buffers, part(rank), piece);
            frame = rest;
        }
        memory
    }

    /// `MPI_Iallreduce`: for integers every order gives the same result. Not for `u8`, whose sums
    /// Open MPI 4.1 saturates instead of wrapping them around where it uses AVX.
    fn all_reduce_integers<T: Element>(&mut self, reduction: Reduction<'_, '_>) -> Result<()> {
        let Reduction { buffers, op, .. } = reduction;
        let size = self.transport.world_size();
        let segment = (self.segment_bytes() / size_of::<T>()).max(1);
        let vector = 0..buffers.iter().map(Buffer::len).sum();
        for index in 0..vector.len().div_ceil(segment) {
            let range = segment_of(&vector, segment, index);
            let bytes = range.len() * size_of::<T>();
            let mut memory = self.transport.take_memory();
            pack::<T>(None, buffers, range.clone(), memory.outgoing(bytes));
            memory.incoming(bytes);
            let comm = self.transport.comm.clone();
            let pending = comm.all_reduce_integers(memory, T::DTYPE, op, range.len());
            let mut memory = self.transport.complete(pending)?;
            let reduced = memory.incoming(bytes);
            reduce::finish::<T::Acc>(op, size, bytemuck::cast_slice_mut(reduced));
            unpack::<T>(None, buffers, range, reduced);
            self.transport.put_back(memory);
        }
        Ok(())
    }

    fn broadcast_typed<T: Element>(
        &mut self,
        root: usize,
        buffers: &mut [Buffer<'_>],
    ) -> Result<()> {
        let segment = (self.segment_bytes() / size_of::<T>()).max(1);
        let vector = 0..buffers.iter().map(Buffer::len).sum();
        for index in 0..vector.len().div_ceil(segment) {
            let range = segment_of(&vector, segment, index);
            let bytes = range.len() * size_of::<T>();
            let mut memory = self.transport.take_memory();
            let frame = memory.outgoing(bytes);
            if root == self.transport.rank() {
                pack::<T>(None, buffers, range.clone(), frame);
            }
            let pending = self.transport.comm.broadcast(memory, bytes, root);
            let mut memory = self.transport.complete(pending)?;
            if root != self.transport.rank() {
                unpack::<T>(None, buffers, range, memory.outgoing(bytes));
            }
            self.transport.put_back(memory);
        }
        Ok(())
    }

    /// Learns the number of input bytes of every rank.
    fn exchange_sizes(&mut self, own: usize, sizes: &mut Vec<usize>) -> Result<()> {
        let size = self.transport.world_size();
        let mut memory = self.transport.take_memory();
        memory
            .outgoing(8)
            .copy_from_slice(&(own as u64).to_le_bytes());
        memory.incoming(8 * size);
        let pending = self.transport.comm.all_gather(memory, 8);
        let mut memory = self.transport.complete(pending)?;
        let words: &[u64] = bytemuck::cast_slice(memory.incoming(8 * size));
        sizes.clear();
        sizes.extend(words.iter().map(|word| u64::from_le(*word) as usize));
        self.transport.put_back(memory);
        Ok(())
    }

    fn gather_inputs(&mut self, input: &[u8], sizes: &[usize], output: &mut [u8]) -> Result<()> {
        let (rank, size, segment) = (
            self.transport.rank(),
            self.transport.world_size(),
            self.segment_bytes(),
        );
        let chunk = |rank: usize| {
            let start: usize = sizes[..rank].iter().sum();
            start..start + sizes[rank]
        };
        let longest = sizes.iter().copied().max().unwrap_or(0);
        for index in 0..longest.div_ceil(segment) {
            let part = |rank: usize| segment_of(&chunk(rank), segment, index);
            let own = segment_of(&(0..input.len()), segment, index);
            debug_assert_eq!(own.len(), part(rank).len());
            let mut memory = self.transport.take_memory();
            memory
                .outgoing(own.len())
                .copy_from_slice(&input[own.clone()]);
            memory.sent.set(std::iter::empty());
            let bytes = memory.received.set((0..size).map(|rank| part(rank).len()));
            memory.incoming(bytes);
            let pending = self.transport.comm.gather(memory, own.len(), None);
            let mut memory = self.transport.complete(pending)?;
            let mut frame = &*memory.incoming(bytes);
            for rank in 0..size {
                let (piece, rest) = frame.split_at(part(rank).len());
                output[part(rank)].copy_from_slice(piece);
                frame = rest;
            }
            self.transport.put_back(memory);
        }
        Ok(())
    }
}

/// Copies a range of the vector into a frame, as it travels.
fn pack<T: Element>(
    wire: Option<WireType>,
    buffers: &[Buffer<'_>],
    range: Range<usize>,
    frame: &mut [u8],
) {
    let each = wire.map_or(size_of::<T>(), |_| WireType::SIZE_BYTES);
    pieces::for_each::<T>(buffers, range, |offset, piece| {
        let at = offset * each;
        put(wire, piece, &mut frame[at..at + piece.len() * each]);
    });
}

/// Copies a frame into a range of the vector.
fn unpack<T: Element>(
    wire: Option<WireType>,
    buffers: &mut [Buffer<'_>],
    range: Range<usize>,
    frame: &[u8],
) {
    let each = wire.map_or(size_of::<T>(), |_| WireType::SIZE_BYTES);
    pieces::for_each_mut::<T>(buffers, range, |offset, piece| {
        let at = offset * each;
        take(wire, &frame[at..at + piece.len() * each], piece);
    });
}

impl Communicator for MpiCollectives {
    fn rank(&self) -> usize {
        self.transport.rank()
    }

    fn world_size(&self) -> usize {
        self.transport.world_size()
    }

    fn all_reduce(&mut self, op: ReduceOp, buffers: &mut [Buffer<'_>]) -> Result<()> {
        let header = self.header(OperationKind::AllReduce).with_op(op);
        self.reduction(header, op, Target::All, buffers)
    }

    fn reduce_scatter(&mut self, op: ReduceOp, mut buffer: Buffer<'_>) -> Result<Range<usize>> {
        let own = chunk_range(buffer.len(), self.world_size(), self.rank());
        let buffers = &mut [buffer.reborrow()];
        let header = self.header(OperationKind::ReduceScatter).with_op(op);
        self.reduction(header, op, Target::Shares, buffers)?;
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
        self.operate(&header, |this| {
            let mut sizes = std::mem::take(&mut this.sizes);
            let result = this
                .exchange_sizes(input.len(), &mut sizes)
                .and_then(|()| gathering::memory(&mut this.transport, dtype, &sizes, output))
                .and_then(|output| this.gather_inputs(input, &sizes, output));
            this.sizes = sizes;
            result
        })
    }

    fn broadcast(&mut self, root: usize, buffers: &mut [Buffer<'_>]) -> Result<()> {
        let header = self.header(OperationKind::Broadcast).with_root(root);
        let header = header.with_buffers(self.rank(), buffers)?;
        self.operate(&header, |this| match header.dtype {
            Some(dtype) => with_dtype!(dtype, E => this.broadcast_typed::<E>(root, buffers)),
            None => Ok(()),
        })
    }

    fn reduce(&mut self, op: ReduceOp, root: usize, buffers: &mut [Buffer<'_>]) -> Result<()> {
        let header = self
            .header(OperationKind::Reduce)
            .with_op(op)
            .with_root(root);
        self.reduction(header, op, Target::Root(root), buffers)
    }

    fn send(&mut self, to: usize, buffer: Buffer<'_>) -> Result<()> {
        let (segment, generation) = (self.segment_bytes(), self.options.get_generation());
        messages::send(&mut self.transport, generation, to, &buffer, segment)
    }

    fn recv(&mut self, from: usize, mut buffer: Buffer<'_>) -> Result<()> {
        let (segment, generation) = (self.segment_bytes(), self.options.get_generation());
        messages::recv(&mut self.transport, generation, from, &mut buffer, segment)
    }

    fn barrier(&mut self) -> Result<()> {
        self.operate(&self.header(OperationKind::Barrier), |_| Ok(()))
    }

    fn abort_handle(&self) -> AbortHandle {
        self.transport.abort_handle()
    }

    fn describe(&self) -> Description {
        let options = &self.options;
        Description {
            group: options.get_name().to_string(),
            generation: options.get_generation(),
            world_size: self.world_size(),
            algorithm: Algorithm::Auto,
            transport: "MPI".to_string(),
            order: options.get_order(),
            reason: "MPI moves, this library combines floats in rank order".to_string(),
        }
    }
}
