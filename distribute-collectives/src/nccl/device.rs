//! The operations on memory of the devices: in place, without a trip through host memory.

use std::ops::Range;

use super::agreement::Record;
use super::communicator::NcclCommunicator;
use super::control::ControlGroup;
use super::raw::{Call, CallKind, DeviceBuffer, Span};
use super::thread::Round;
use crate::communicator::{Communicator, chunk_range};
use crate::engine::Engine;
use crate::error::Result;
use crate::header::OperationHeader;
use crate::operation::OperationKind;
use crate::reduce::ReduceOp;

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
        self.on_each(header, None, buffers, CallKind::AllReduce(op))
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
        let header = self
            .header(OperationKind::Reduce)
            .with_op(op)
            .with_root(root);
        self.on_each(header, None, buffers, CallKind::Reduce(op, root))
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
        self.on_each(header, None, buffers, CallKind::Broadcast(root))
    }

    /// As [`send`](Communicator::send), of a list of buffers.
    ///
    /// # Errors
    /// As [`all_reduce_device`](Self::all_reduce_device).
    pub fn send_device(&mut self, to: usize, buffers: &mut [DeviceBuffer<'_>]) -> Result<()> {
        self.member().check_peer(OperationKind::Send, to)?;
        let header = self.header(OperationKind::Send);
        self.on_each(header, Some(to), buffers, CallKind::Send(to))
    }

    /// As [`recv`](Communicator::recv), of a list of buffers.
    ///
    /// # Errors
    /// As [`all_reduce_device`](Self::all_reduce_device).
    pub fn recv_device(&mut self, from: usize, buffers: &mut [DeviceBuffer<'_>]) -> Result<()> {
        self.member().check_peer(OperationKind::Recv, from)?;
        let header = self.header(OperationKind::Recv);
        self.on_each(header, Some(from), buffers, CallKind::Recv(from))
    }

    /// The same call on each buffer that holds something.
    fn on_each(
        &mut self,
        header: OperationHeader,
        peer: Option<usize>,
        buffers: &[DeviceBuffer<'_>],
        kind: CallKind,
    ) -> Result<()> {
        let record = Record::of_device_memory(header, buffers);
        self.on_devices(&record, peer, buffers, |_| {
            let filled = buffers.iter().filter(|buffer| !buffer.is_empty());
            let spans = filled.map(DeviceBuffer::span);
            spans.map(|at| Call::new(kind, at, at)).collect()
        })
    }

    /// The operation of a record: the group of calls that `calls` makes when the ranks have agreed.
    fn on_devices(
        &mut self,
        record: &Record,
        peer: Option<usize>,
        buffers: &[DeviceBuffer<'_>],
        calls: impl FnOnce(&Self) -> Vec<Call>,
    ) -> Result<()> {
        self.check_elements(record.header.kind, buffers)?;
        self.operate(record, peer, |this| {
            let calls = calls(this);
            if calls.is_empty() {
                return Ok(());
            }
            let round = Round {
                after: buffers.iter().filter_map(DeviceBuffer::stream).collect(),
                calls,
                ..Round::default()
            };
            this.perform(round, &record.header, peer).map(drop)
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
        let record = Record::of_device_memory(header, buffers);
        self.on_devices(&record, None, buffers, |_| {
            let all = buffers[0].span();
            let parts = (0..size).map(|rank| all.slice(chunk_range(len, size, rank)));
            Call::scatter(all, &parts.collect::<Vec<Span>>(), rank, op)
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
        record.on_devices = true;
        record.set_element(input.element());
        (record.input_bytes, record.output_bytes) = (input.size_bytes(), output.size_bytes());
        let each = input.element().size_bytes();
        let buffers = [input, output];
        let mut counts = Vec::new();
        self.on_devices(&record, None, &buffers, |this| {
            counts.extend(this.sizes.iter().map(|bytes| bytes / each));
            let [from, to] = [buffers[0].span(), buffers[1].span()];
            let mut end = 0;
            let parts: Vec<Span> = counts
                .iter()
                .map(|count| {
                    let start = end;
                    end += count;
                    to.slice(start..end)
                })
                .collect();
            Call::gather(from, &to.slice(0..end), &parts, this.rank())
        })?;
        Ok(counts)
    }
}
