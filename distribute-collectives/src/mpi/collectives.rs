//! The operations in MPI's own calls.
//!
//! A vector is moved in rounds: round `s` moves segment `s` of every rank's chunk, through memory
//! that the pending operation owns. So a rank needs one segment per rank each way, however long the
//! vector is.

use std::ops::Range;

use half::{bf16, f16};

use super::raw::Call;
use super::transport::MpiTransport;
use crate::algorithm::exchange::{pack, segment_of, segments_of, unpack};
use crate::buffer::{Buffer, DType, Element, with_dtype};
use crate::communicator::{AbortHandle, Description, GatherTarget, chunk_range};
use crate::engine::{Engine, Member};
use crate::error::Result;
use crate::gathering;
use crate::header::{OperationHeader, Target};
use crate::messages;
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

/// The parts of all ranks, one after the other.
struct Received<'a, T> {
    values: &'a mut [T],
    len: usize,
}

impl<T> RankSlices<T> for Received<'_, T> {
    fn pair(&mut self, low: usize, high: usize, range: Range<usize>) -> (&mut [T], &mut [T]) {
        let (below, above) = self.values.split_at_mut(high * self.len);
        let start = low * self.len;
        let below = &mut below[start + range.start..start + range.end];
        (below, &mut above[range])
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
        let wanted = self.options.segment_bytes;
        // What all ranks send at a time must stay below MPI's 2 GiB.
        let most = (1 << 30) / self.transport.world_size();
        wanted
            .unwrap_or(self.transport.segment_bytes())
            .clamp(1, most.max(1))
    }

    fn operate(
        &mut self,
        header: &OperationHeader,
        body: impl FnOnce(&mut Self) -> Result<()>,
    ) -> Result<()> {
        messages::operate(self, |this| &mut this.transport, header, body)
    }

    /// Picks the type that travels: the elements' own, or the wire type.
    fn reduce(&mut self, header: &OperationHeader, buffers: &mut [Buffer<'_>]) -> Result<()> {
        if self.transport.world_size() < 2 {
            return Ok(());
        }
        match (header.dtype, header.wire()) {
            (None, _) => Ok(()),
            (Some(_), Some(WireType::Bf16)) => self.exchange::<f32, bf16>(header, buffers),
            (Some(_), Some(WireType::F16)) => self.exchange::<f32, f16>(header, buffers),
            (Some(dtype @ (DType::I32 | DType::I64)), None) if header.target() == Target::All => {
                with_dtype!(dtype, E => self.all_reduce_integers::<E>(header, buffers))
            }
            (Some(dtype), None) => with_dtype!(dtype, E => self.exchange::<E, E>(header, buffers)),
        }
    }

    /// Every rank combines its chunk of all ranks' elements `T`, which travel as `W`.
    fn exchange<T: Element, W: Element>(
        &mut self,
        header: &OperationHeader,
        buffers: &mut [Buffer<'_>],
    ) -> Result<()> {
        let (wire, op) = (header.wire(), header.op.unwrap_or(ReduceOp::Sum));
        let (rank, size) = (self.transport.rank(), self.transport.world_size());
        let each = size_of::<W>();
        let segment = (self.segment_bytes() / each).max(1);
        let len = pieces::len(buffers);
        // The first chunk is never shorter than another one.
        for index in 0..chunk_range(len, size, 0).len().div_ceil(segment) {
            let part = |rank| segment_of(&chunk_range(len, size, rank), segment, index);
            let bytes_of = |rank| part(rank).len() * each;
            let (own, own_bytes) = (part(rank), bytes_of(rank));
            let mut memory = self.transport.take_memory();
            let mut frame = memory.outgoing_parts((0..size).map(bytes_of));
            for rank in 0..size {
                let (piece, rest) = frame.split_at_mut(bytes_of(rank));
                pack::<T>(wire, buffers, part(rank), piece);
                frame = rest;
            }
            let bytes = memory.incoming_parts((0..size).map(|_| own_bytes)).len();
            let mut memory = self.transport.complete(memory, 0, Call::AllToAll)?;
            let mut received = Received {
                values: bytemuck::cast_slice_mut::<u8, W>(memory.incoming(bytes)),
                len: own.len(),
            };
            reduce::reduce_ranks(op, 0..size, 0..1, own.len(), &mut received);
            if header.target() == Target::Shares {
                unpack::<T>(wire, buffers, own, &memory.incoming(bytes)[..own_bytes]);
                self.transport.put_back(memory);
                continue;
            }
            // The own reduced part, which begins what was received, goes to the others.
            memory.own_to_outgoing(own_bytes);
            let bytes = memory.incoming_parts((0..size).map(bytes_of)).len();
            let call = Call::Gather { root: header.root };
            let mut memory = self.transport.complete(memory, own_bytes, call)?;
            if header.root.is_none_or(|root| root == rank) {
                let mut frame = &*memory.incoming(bytes);
                for rank in 0..size {
                    let (piece, rest) = frame.split_at(bytes_of(rank));
                    unpack::<T>(wire, buffers, part(rank), piece);
                    frame = rest;
                }
            }
            self.transport.put_back(memory);
        }
        Ok(())
    }

    /// `MPI_Iallreduce`: for integers every order gives the same result. Not for `u8`, whose sums
    /// Open MPI 4.1 saturates instead of wrapping them around where it uses AVX.
    fn all_reduce_integers<T: Element>(
        &mut self,
        header: &OperationHeader,
        buffers: &mut [Buffer<'_>],
    ) -> Result<()> {
        let op = header.op.unwrap_or(ReduceOp::Sum);
        let size = self.transport.world_size();
        let segment = (self.segment_bytes() / size_of::<T>()).max(1);
        let vector = 0..pieces::len(buffers);
        for range in segments_of(&vector, segment) {
            let bytes = range.len() * size_of::<T>();
            let mut memory = self.transport.take_memory();
            pack::<T>(None, buffers, range.clone(), memory.outgoing(bytes));
            memory.incoming(bytes);
            let call = Call::AllReduce(T::DTYPE, op);
            let mut memory = self.transport.complete(memory, bytes, call)?;
            let reduced = memory.incoming(bytes);
            reduce::finish::<T::Acc>(op, size, bytemuck::cast_slice_mut(reduced));
            unpack::<T>(None, buffers, range, reduced);
            self.transport.put_back(memory);
        }
        Ok(())
    }

    fn broadcast<T: Element>(&mut self, root: usize, buffers: &mut [Buffer<'_>]) -> Result<()> {
        let segment = (self.segment_bytes() / size_of::<T>()).max(1);
        let vector = 0..pieces::len(buffers);
        for range in segments_of(&vector, segment) {
            let bytes = range.len() * size_of::<T>();
            let mut memory = self.transport.take_memory();
            let frame = memory.outgoing(bytes);
            if root == self.transport.rank() {
                pack::<T>(None, buffers, range.clone(), frame);
            }
            let call = Call::Broadcast { root };
            let mut memory = self.transport.complete(memory, bytes, call)?;
            if root != self.transport.rank() {
                unpack::<T>(None, buffers, range, memory.outgoing(bytes));
            }
            self.transport.put_back(memory);
        }
        Ok(())
    }

    fn gather_inputs(&mut self, input: &[u8], output: &mut [u8]) -> Result<()> {
        let segment = self.segment_bytes();
        let (transport, sizes) = (&mut self.transport, &self.sizes);
        let (rank, size) = (transport.rank(), transport.world_size());
        let longest = sizes.iter().copied().max().unwrap_or(0);
        for index in 0..longest.div_ceil(segment) {
            let part = |rank: usize| segment_of(&gathering::chunk(sizes, rank), segment, index);
            let own = &input[segment_of(&(0..input.len()), segment, index)];
            debug_assert_eq!(own.len(), part(rank).len());
            let mut memory = transport.take_memory();
            memory.outgoing(own.len()).copy_from_slice(own);
            let parts = (0..size).map(|rank| part(rank).len());
            let bytes = memory.incoming_parts(parts).len();
            let call = Call::Gather { root: None };
            let mut memory = transport.complete(memory, own.len(), call)?;
            let mut frame = &*memory.incoming(bytes);
            for rank in 0..size {
                let (piece, rest) = frame.split_at(part(rank).len());
                output[part(rank)].copy_from_slice(piece);
                frame = rest;
            }
            transport.put_back(memory);
        }
        Ok(())
    }
}

impl Engine for MpiCollectives {
    fn member(&self) -> Member {
        messages::member(&self.transport, &self.options)
    }

    fn run(&mut self, header: OperationHeader, buffers: &mut [Buffer<'_>]) -> Result<()> {
        let header = header.with_wire(self.options.wire);
        self.operate(&header, |this| match (header.root, header.dtype) {
            _ if header.op.is_some() => this.reduce(&header, buffers),
            (Some(root), Some(dtype)) => {
                with_dtype!(dtype, E => this.broadcast::<E>(root, buffers))
            }
            _ => Ok(()),
        })
    }

    fn gather(
        &mut self,
        header: OperationHeader,
        dtype: DType,
        input: &[u8],
        output: &mut dyn GatherTarget,
    ) -> Result<()> {
        self.operate(&header, |this| {
            let (transport, sizes) = (&mut this.transport, &mut this.sizes);
            transport.all_gather(&(input.len() as u64).to_le_bytes(), |all| {
                sizes.clear();
                sizes.extend(all.iter().map(|size| u64::from_le_bytes(*size) as usize));
            })?;
            let output = gathering::memory(transport, dtype, sizes, output)?;
            this.gather_inputs(input, output)
        })
    }

    fn transfer(
        &mut self,
        header: OperationHeader,
        peer: usize,
        buffer: &mut Buffer<'_>,
    ) -> Result<()> {
        let segment = self.options.segment_bytes;
        messages::transfer(&mut self.transport, segment, &header, peer, buffer)
    }

    fn abort_target(&self) -> AbortHandle {
        self.transport.abort_handle()
    }

    fn description(&self) -> Description {
        let reason = "MPI moves, this library combines floats in canonical order";
        messages::describe(&self.transport, &self.options, Algorithm::Auto, reason)
    }
}
