//! The operations on memory of the devices: in place, without a trip through host memory.

use std::ops::Range;

use super::agreement::{MemoryPlace, Record};
use super::communicator::NcclCommunicator;
use super::control::ControlGroup;
use super::host_memory::each_part;
use super::raw::{Call, DeviceBuffer, Span};
use crate::communicator::{Communicator, chunk_range};
use crate::engine::Engine;
use crate::error::Result;
use crate::header::OperationHeader;
use crate::operation::OperationKind;
use crate::reduce::ReduceOp;

/// The buffers that hold something.
fn spans(buffers: &[DeviceBuffer<'_>]) -> impl Iterator<Item = Span> {
    let filled = buffers.iter().filter(|buffer| !buffer.is_empty());
    filled.map(|buffer| buffer.span().clone())
}

/// As the trait's operations, on memory of the devices. Every call is one group of NCCL: a list of
/// buffers, which may have different types, is one operation. The order of the work is that of
/// [`DeviceBuffer`]; MEAN of floats is the sum of the values divided by the number of ranks, as
/// NCCL computes it (it multiplies before it adds).
impl<G: ControlGroup> NcclCommunicator<G> {
    /// As [`all_reduce`](Communicator::all_reduce).
    ///
    /// # Errors
    /// As there, and [`InvalidArgument`](crate::CollectiveError::InvalidArgument) for types that
    /// this version of NCCL lacks.
    pub fn all_reduce_device(
        &mut self,
        op: ReduceOp,
        buffers: &mut [DeviceBuffer<'_>],
    ) -> Result<()> {
        let header = self.header(OperationKind::AllReduce).with_op(op);
        self.on_devices(header, None, buffers, |at| Call::AllReduce { at, op })
    }

    /// As [`reduce`](Communicator::reduce), in NCCL's order.
    ///
    /// # Errors
    /// As [`all_reduce_device`](Self::all_reduce_device).
    pub fn reduce_device(
        &mut self,
        op: ReduceOp,
        root: usize,
        buffers: &mut [DeviceBuffer<'_>],
    ) -> Result<()> {
        let header = self.header(OperationKind::Reduce);
        let header = header.with_op(op).with_root(root);
        self.on_devices(header, None, buffers, |at| Call::Reduce { at, op, root })
    }

    /// As [`broadcast`](Communicator::broadcast).
    ///
    /// # Errors
    /// As [`all_reduce_device`](Self::all_reduce_device).
    pub fn broadcast_device(
        &mut self,
        root: usize,
        buffers: &mut [DeviceBuffer<'_>],
    ) -> Result<()> {
        let header = self.header(OperationKind::Broadcast).with_root(root);
        self.on_devices(header, None, buffers, |at| Call::Broadcast { at, root })
    }

    /// As [`send`](Communicator::send), of a list of buffers.
    ///
    /// # Errors
    /// As [`all_reduce_device`](Self::all_reduce_device).
    pub fn send_device(&mut self, to: usize, buffers: &mut [DeviceBuffer<'_>]) -> Result<()> {
        self.member().check_peer(OperationKind::Send, to)?;
        let header = self.header(OperationKind::Send);
        self.on_devices(header, Some(to), buffers, |at| Call::Send { at, to })
    }

    /// As [`recv`](Communicator::recv), of a list of buffers.
    ///
    /// # Errors
    /// As [`all_reduce_device`](Self::all_reduce_device).
    pub fn recv_device(&mut self, from: usize, buffers: &mut [DeviceBuffer<'_>]) -> Result<()> {
        self.member().check_peer(OperationKind::Recv, from)?;
        let header = self.header(OperationKind::Recv);
        self.on_devices(header, Some(from), buffers, |at| Call::Recv { at, from })
    }

    fn on_devices(
        &mut self,
        header: OperationHeader,
        peer: Option<usize>,
        buffers: &mut [DeviceBuffer<'_>],
        call: impl Fn(Span) -> Call,
    ) -> Result<()> {
        self.check_elements(header.kind, buffers)?;
        let record = Record::of_device_memory(header, buffers);
        self.operate(&record, peer, |this| {
            let calls = spans(buffers).map(call).collect();
            this.run(&record.header, peer, buffers, calls)
        })
    }

    /// As [`reduce_scatter`](Communicator::reduce_scatter): this rank's share, the returned range,
    /// holds the result, the rest is unspecified.
    ///
    /// # Errors
    /// As [`all_reduce_device`](Self::all_reduce_device).
    pub fn reduce_scatter_device(
        &mut self,
        op: ReduceOp,
        buffer: DeviceBuffer<'_>,
    ) -> Result<Range<usize>> {
        let (rank, size, len) = (self.rank(), self.world_size(), buffer.len());
        let buffers = &[buffer];
        let header = self.header(OperationKind::ReduceScatter).with_op(op);
        self.check_elements(header.kind, buffers)?;
        let record = Record::of_device_memory(header, buffers);
        let all = buffers[0].span().clone();
        let parts = (0..size).map(|rank| all.slice(chunk_range(len, size, rank)));
        let parts: Vec<Span> = parts.collect();
        self.operate(&record, None, |this| {
            let calls = match len.is_multiple_of(size) && len > 0 {
                true => vec![Call::ReduceScatter {
                    from: all,
                    to: parts[rank].clone(),
                    op,
                }],
                false => each_part(&parts, |at, root| Call::Reduce { at, op, root }),
            };
            this.run(&record.header, None, buffers, calls)
        })?;
        Ok(chunk_range(len, size, rank))
    }

    /// Puts the inputs of all ranks into the output of every rank, rank 0 first; the lengths may
    /// differ. Returns the number of elements of each rank. The output may be longer; where it is
    /// shorter on one rank, the call ends with [`Mismatch`](crate::CollectiveError::Mismatch) on
    /// all. The two have one type; they do not overlap.
    ///
    /// # Errors
    /// As [`all_reduce_device`](Self::all_reduce_device).
    pub fn all_gather_device(
        &mut self,
        input: DeviceBuffer<'_>,
        output: DeviceBuffer<'_>,
    ) -> Result<Vec<usize>> {
        let header = self.header(OperationKind::AllGather);
        if input.element() != output.element() {
            let (a, b) = (input.element(), output.element());
            let what = format!("the input has elements of {a}, the output of {b}");
            return Err(self.invalid(header.kind, what));
        }
        let mut record = Record::new(header);
        record.place = MemoryPlace::DeviceMemory;
        record.set_element(input.element());
        (record.input_bytes, record.output_bytes) =
            (input.span().size_bytes(), output.span().size_bytes());
        let buffers = [input, output];
        self.check_elements(header.kind, &buffers)?;
        self.operate(&record, None, |this| {
            let [from, to] = [buffers[0].span(), buffers[1].span()];
            let each = from.element.size_bytes();
            let counts: Vec<usize> = this.sizes.iter().map(|bytes| bytes / each).collect();
            let calls = gather_calls(from, to, this.rank(), &counts);
            this.run(&record.header, None, &buffers, calls)?;
            Ok(counts)
        })
    }
}

/// The group of an all-gather.
fn gather_calls(from: &Span, to: &Span, rank: usize, counts: &[usize]) -> Vec<Call> {
    let total: usize = counts.iter().sum();
    if total == 0 {
        return Vec::new();
    }
    let (from, to) = (from.clone(), to.slice(0..total));
    if counts.iter().all(|count| *count == counts[0]) {
        return vec![Call::AllGather { from, to }];
    }
    let mut start = 0;
    let parts = counts.iter().map(|count| {
        start += count;
        to.slice(start - count..start)
    });
    let parts: Vec<Span> = parts.collect();
    each_part(&parts, |at, root| match root == rank {
        false => Call::Broadcast { at, root },
        // The own part comes from the input.
        true => Call::BroadcastOwn {
            from: from.clone(),
            to: at,
            root,
        },
    })
}
