//! A communicator whose calls are recorded.

use std::ops::Range;
use std::path::PathBuf;

use super::FlightRecorder;
use crate::buffer::{Buffer, DType};
use crate::communicator::{AbortHandle, Communicator, Description, GatherTarget};
use crate::error::Result;
use crate::header::OperationHeader;
use crate::operation::OperationKind;
use crate::phase;
use crate::reduce::ReduceOp;

/// Records every call of a communicator, from its first one on. On the first fatal error, and when
/// its thread panics, it writes the record to the directory it was given.
///
/// A root that is no rank is refused by all ranks together, so the call has a number: of a
/// communicator of one's own when its error is that of
/// [`OperationHeader::check_root`](crate::OperationHeader::check_root).
///
/// ```
/// use distribute_collectives::flight_record::Recorded;
/// use distribute_collectives::{Communicator, GroupOptions, in_process};
///
/// let endpoint = in_process(1, GroupOptions::default())?.remove(0);
/// let mut recorded = Recorded::new(endpoint).directory("flight-records");
/// recorded.barrier()?;
/// # Ok::<(), distribute_collectives::CollectiveError>(())
/// ```
pub struct Recorded<C: Communicator> {
    inner: C,
    recorder: FlightRecorder,
    /// What carries the bytes, for a trace.
    transport: String,
    directory: Option<PathBuf>,
    generation: u64,
    /// Number of the next collective operation.
    sequence: u64,
    written: bool,
}

impl<C: Communicator> Recorded<C> {
    /// Records the calls of a communicator that has not run any yet (the operations are numbered
    /// from 0).
    pub fn new(inner: C) -> Self {
        let description = inner.describe();
        let generation = description.generation;
        let (rank, world_size) = (inner.rank(), inner.world_size());
        Recorded {
            recorder: FlightRecorder::new(&description.group, generation, rank, world_size),
            transport: description.transport,
            inner,
            directory: None,
            generation,
            sequence: 0,
            written: false,
        }
    }

    /// Where to write the record after a fatal error.
    #[must_use]
    pub fn directory(mut self, directory: impl Into<PathBuf>) -> Self {
        self.directory = Some(directory.into());
        self
    }

    /// The record, for a watchdog or to write it at any other time.
    pub fn recorder(&self) -> FlightRecorder {
        self.recorder.clone()
    }

    /// Numbers the next operation: for a communicator that has run some already.
    #[cfg(feature = "grpc")]
    pub(crate) fn starting_at(mut self, sequence: u64) -> Self {
        self.sequence = sequence;
        self
    }

    fn header(&self, kind: OperationKind) -> OperationHeader {
        OperationHeader::new(kind, self.generation, self.sequence)
    }

    /// Type and sizes; buffers of several types are an error of the call itself, which says so.
    fn with_buffers(&self, header: OperationHeader, buffers: &[Buffer<'_>]) -> OperationHeader {
        header
            .with_buffers(self.inner.rank(), buffers)
            .unwrap_or(header)
    }

    fn record<T>(
        &mut self,
        header: &OperationHeader,
        bytes: Option<usize>,
        call: impl FnOnce(&mut C) -> Result<T>,
    ) -> Result<T> {
        let _exchange = phase::exchange(header, bytes, &self.transport);
        let ticket = self.recorder.begin(header);
        let result = call(&mut self.inner);
        self.recorder.end(ticket, &result);
        // A root that all ranks have refused together had an operation; what this rank alone has
        // refused had none.
        let refused = |error| {
            let root = header.check_root(self.inner.rank(), self.inner.world_size());
            root.as_ref().err() == Some(error)
        };
        match &result {
            Ok(_) if !header.kind.is_point_to_point() => self.sequence += 1,
            Err(error) if error.is_fatal() => self.write_once(),
            Err(error) if !header.kind.is_point_to_point() && refused(error) => {
                self.sequence += 1;
            }
            _ => {}
        }
        result
    }

    fn write_once(&mut self) {
        let Some(directory) = &self.directory else {
            return;
        };
        if !std::mem::replace(&mut self.written, true)
            && let Err(error) = self.recorder.write(directory)
        {
            // The caller gets the error of the operation, which matters more.
            tracing::warn!(%error, "the flight record was not written");
        }
    }
}

impl<C: Communicator> Drop for Recorded<C> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.write_once();
        }
    }
}

impl<C: Communicator> Communicator for Recorded<C> {
    fn rank(&self) -> usize {
        self.inner.rank()
    }

    fn world_size(&self) -> usize {
        self.inner.world_size()
    }

    fn all_reduce(&mut self, op: ReduceOp, buffers: &mut [Buffer<'_>]) -> Result<()> {
        let header = self.header(OperationKind::AllReduce).with_op(op);
        let header = self.with_buffers(header, buffers);
        self.record(&header, None, |inner| inner.all_reduce(op, buffers))
    }

    fn reduce_scatter(&mut self, op: ReduceOp, mut buffer: Buffer<'_>) -> Result<Range<usize>> {
        let header = self.header(OperationKind::ReduceScatter).with_op(op);
        let header = self.with_buffers(header, &[buffer.reborrow()]);
        self.record(&header, None, |inner| inner.reduce_scatter(op, buffer))
    }

    fn all_gather_into(
        &mut self,
        dtype: DType,
        input: &[u8],
        output: &mut dyn GatherTarget,
    ) -> Result<()> {
        let header = self.header(OperationKind::AllGather).with_dtype(dtype);
        self.record(&header, Some(input.len()), |inner| {
            inner.all_gather_into(dtype, input, output)
        })
    }

    fn broadcast(&mut self, root: usize, buffers: &mut [Buffer<'_>]) -> Result<()> {
        let header = self.header(OperationKind::Broadcast).with_root(root);
        let header = self.with_buffers(header, buffers);
        self.record(&header, None, |inner| inner.broadcast(root, buffers))
    }

    fn reduce(&mut self, op: ReduceOp, root: usize, buffers: &mut [Buffer<'_>]) -> Result<()> {
        let header = self.header(OperationKind::Reduce).with_op(op);
        let header = self.with_buffers(header.with_root(root), buffers);
        self.record(&header, None, |inner| inner.reduce(op, root, buffers))
    }

    fn send(&mut self, to: usize, mut buffer: Buffer<'_>) -> Result<()> {
        let header = self.header(OperationKind::Send).with_root(to);
        let header = self.with_buffers(header, &[buffer.reborrow()]);
        self.record(&header, None, |inner| inner.send(to, buffer))
    }

    fn recv(&mut self, from: usize, mut buffer: Buffer<'_>) -> Result<()> {
        let header = self.header(OperationKind::Recv).with_root(from);
        let header = self.with_buffers(header, &[buffer.reborrow()]);
        self.record(&header, None, |inner| inner.recv(from, buffer))
    }

    fn barrier(&mut self) -> Result<()> {
        let header = self.header(OperationKind::Barrier);
        self.record(&header, None, Communicator::barrier)
    }

    fn abort_handle(&self) -> AbortHandle {
        self.inner.abort_handle()
    }

    fn describe(&self) -> Description {
        self.inner.describe()
    }
}
