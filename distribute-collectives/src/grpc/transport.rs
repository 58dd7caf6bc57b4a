//! Segments between processes, through [`Links`].

use std::sync::Arc;
use std::time::Duration;

use crate::algorithm::dissemination;
use crate::bookkeeping::{Bookkeeping, RunningOperation};
use crate::communicator::{AbortHandle, AbortTarget};
use crate::error::{CollectiveError, Result};
use crate::failure::Failure;
use crate::grpc::lane::{PAIR_BYTES, PAIR_SEGMENT_BYTES, SEGMENT_BYTES};
use crate::grpc::links::{Links, SEGMENTS_IN_FLIGHT};
use crate::header::OperationHeader;
use crate::operation::OperationKind;
use crate::status::GroupStatus;
use crate::transport::Transport;

/// One rank's access to the others over gRPC.
///
/// Every frame carries the header of its operation, so no rank combines what belongs to another
/// one. For most operations that is all the agreement that is needed: what a rank ends with
/// contains something of every rank, and it came through ranks that compared headers pair by pair,
/// so a rank next to a difference stops and no rank behind it can finish. Where a rank can finish
/// without having heard of all others (broadcast, reduce, barrier, and buffers so short that some
/// ranks have no share) the ranks first exchange their headers, see
/// [`GrpcTransport::compare_headers`].
pub(crate) struct GrpcTransport {
    pub(crate) links: Links,
    pub(crate) status: Arc<GroupStatus>,
    abort: Arc<dyn AbortTarget>,
    timeout: Duration,
    operations: Bookkeeping,
}

impl GrpcTransport {
    /// A transport over connected links. `timeout` is the deadline of every operation.
    pub(crate) fn new(
        links: Links,
        status: Arc<GroupStatus>,
        abort: Arc<dyn AbortTarget>,
        timeout: Duration,
    ) -> Self {
        GrpcTransport {
            links,
            status,
            abort,
            timeout,
            operations: Bookkeeping::default(),
        }
    }

    /// Begins an operation of this rank, without asking the others.
    pub(crate) fn start(&mut self, header: &OperationHeader) -> Result<()> {
        self.operations.check()?;
        self.status.check_peer(header, None)?;
        let running = RunningOperation::new(header, self.timeout);
        self.links.tend(running.begin);
        self.status.begin(running);
        Ok(())
    }

    /// The operation that has begun.
    pub(crate) fn running(&self) -> Result<RunningOperation> {
        RunningOperation::required(self.status.running(), self.links.rank())
    }

    /// A [dissemination barrier](dissemination) that compares the headers.
    fn compare_headers(&mut self) -> Result<()> {
        let running = self.running()?;
        let (rank, size) = (self.links.rank(), self.links.world_size());
        for (to, from) in dissemination::rounds(rank, size) {
            self.links.send(to, &running, 0, &mut |_| {})?;
            self.links.receive(from, &running, 0, &mut |_| {})?;
        }
        Ok(())
    }

    fn needs_header_exchange(&self, header: &OperationHeader) -> bool {
        match header.kind {
            OperationKind::Broadcast | OperationKind::Reduce | OperationKind::Barrier => true,
            OperationKind::AllReduce | OperationKind::ReduceScatter => {
                header.count < 2 * self.links.world_size()
            }
            OperationKind::AllGather | OperationKind::Send | OperationKind::Recv => false,
        }
    }
}

impl Drop for GrpcTransport {
    fn drop(&mut self) {
        self.links.leave();
    }
}

impl Transport for GrpcTransport {
    fn rank(&self) -> usize {
        self.links.rank()
    }

    fn world_size(&self) -> usize {
        self.links.world_size()
    }

    fn name(&self) -> &str {
        "grpc"
    }

    fn segment_bytes(&self) -> usize {
        SEGMENT_BYTES.min(self.max_segment_bytes())
    }

    fn segment_bytes_for(&self, bytes: usize) -> usize {
        let suits = match self.links.world_size() {
            2 if bytes <= PAIR_BYTES => PAIR_SEGMENT_BYTES,
            _ => SEGMENT_BYTES,
        };
        suits.min(self.max_segment_bytes())
    }

    fn max_segment_bytes(&self) -> usize {
        self.links.max_segment_bytes()
    }

    fn segments_in_flight(&self) -> usize {
        SEGMENTS_IN_FLIGHT
    }

    fn sequence(&self) -> u64 {
        self.operations.sequence()
    }

    fn begin(&mut self, header: &OperationHeader) -> Result<()> {
        self.start(header)?;
        if self.needs_header_exchange(header) {
            self.compare_headers()?;
        }
        Ok(())
    }

    fn end(&mut self, header: &OperationHeader, result: Result<()>) -> Result<()> {
        let result = result.and_then(|()| {
            let running = self.running()?;
            self.links.finish_operation(&running)
        });
        self.status.end();
        self.operations.end(header.kind, result)
    }

    fn send_with(
        &mut self,
        to: usize,
        bytes: usize,
        fill: &mut dyn FnMut(&mut [u8]),
    ) -> Result<()> {
        let running = self.running()?;
        self.links.send(to, &running, bytes, fill)
    }

    fn send_bytes(&mut self, to: usize, bytes: &[u8]) -> Result<()> {
        let running = self.running()?;
        self.links.send_bytes(to, &running, bytes)
    }

    fn receive_with(
        &mut self,
        from: usize,
        bytes: usize,
        consume: &mut dyn FnMut(&[u8]),
    ) -> Result<()> {
        let running = self.running()?;
        self.links.receive(from, &running, bytes, consume)
    }

    fn fail(&mut self, error: CollectiveError) {
        let failure = Failure::ended(error, self.operations.sequence());
        self.status.record_failure(failure);
    }

    fn abort_handle(&self) -> AbortHandle {
        AbortHandle::new(self.links.rank(), self.abort.clone())
    }
}
