//! Segments between processes, through [`Links`].

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::communicator::{AbortHandle, AbortTarget};
use crate::error::{CollectiveError, Result};
use crate::grpc::lane::{PAIR_SEGMENT_BYTES, SEGMENT_BYTES};
use crate::grpc::links::{Links, SEGMENTS_IN_FLIGHT};
use crate::header::{OperationHeader, OperationKind};
use crate::status::{Failure, GroupStatus, Trouble};
use crate::transport::Transport;

/// One rank's access to the others over gRPC.
///
/// Every frame carries the header of its operation, so no rank combines what belongs to another
/// one. For most operations that is all the agreement that is needed: what a rank ends with
/// contains something of every rank, and it came through ranks that compared headers pair by
/// pair, so a rank next to a difference stops and nobody behind it can finish. Where a rank can
/// finish without having heard of all others (broadcast, reduce, barrier, and buffers so short
/// that some ranks have no share) the ranks first meet, see [`GrpcTransport::meet`].
pub(crate) struct GrpcTransport {
    links: Links,
    status: Arc<GroupStatus>,
    abort: Arc<dyn AbortTarget>,
    timeout: Duration,
    sequence: u64,
    running: Option<OperationHeader>,
    /// The first fatal error that was returned to the caller.
    failure: Option<CollectiveError>,
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
            sequence: 0,
            running: None,
            failure: None,
        }
    }

    /// Before this rank leaves, see [`Links::flush`].
    pub(crate) fn flush(&mut self, deadline: Instant) {
        self.links.flush(deadline);
    }

    /// A dissemination barrier: in round `k` every rank sends its header to the rank `2^k` after
    /// it and compares the one of the rank `2^k` before it. After `log2 P` rounds every rank has
    /// heard, through others, of all ranks.
    fn meet(&mut self, header: &OperationHeader) -> Result<()> {
        let (rank, size) = (self.links.rank(), self.links.world_size());
        let mut distance = 1;
        while distance < size {
            let to = (rank + distance) % size;
            let from = (rank + size - distance) % size;
            self.links.send(to, header, 0, &mut |_| {})?;
            self.links.receive(from, header, 0, &mut |_| {})?;
            distance *= 2;
        }
        Ok(())
    }

    fn needs_meeting(&self, header: &OperationHeader) -> bool {
        match header.kind {
            OperationKind::Broadcast | OperationKind::Reduce | OperationKind::Barrier => true,
            OperationKind::AllReduce | OperationKind::ReduceScatter => {
                header.count < 2 * self.links.world_size()
            }
            OperationKind::AllGather | OperationKind::Send | OperationKind::Recv => false,
        }
    }

    fn begin_checked(&mut self, header: &OperationHeader) -> Result<()> {
        self.status.check(header)?;
        let begin = Instant::now();
        self.links
            .begin_operation(begin, begin.checked_add(self.timeout));
        self.status.begin(header);
        self.running = Some(*header);
        if self.needs_meeting(header) {
            self.meet(header)?;
        }
        Ok(())
    }

    fn header(&self) -> Result<OperationHeader> {
        self.running
            .ok_or_else(|| CollectiveError::InvalidArgument {
                rank: self.links.rank(),
                op: OperationKind::Send,
                what: "segments travel only between begin and end of an operation".to_string(),
            })
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
        match self.links.world_size() {
            2 => PAIR_SEGMENT_BYTES,
            _ => SEGMENT_BYTES,
        }
    }

    fn segments_in_flight(&self) -> usize {
        match self.links.world_size() {
            2 => crate::transport::SEGMENTS_IN_FLIGHT,
            _ => SEGMENTS_IN_FLIGHT,
        }
    }

    fn sequence(&self) -> u64 {
        self.sequence
    }

    fn begin(&mut self, header: &OperationHeader) -> Result<()> {
        match &self.failure {
            Some(cause) => Err(CollectiveError::Poisoned {
                cause: Box::new(cause.clone()),
            }),
            None => self.begin_checked(header),
        }
    }

    fn end(&mut self, header: &OperationHeader, result: Result<()>) -> Result<()> {
        let result = result.and_then(|()| self.links.finish_operation(header));
        self.running = None;
        self.status.end();
        let point_to_point = matches!(header.kind, OperationKind::Send | OperationKind::Recv);
        match &result {
            Ok(()) if !point_to_point => self.sequence += 1,
            Err(error) if error.is_fatal() && self.failure.is_none() => {
                self.failure = Some(error.clone());
            }
            _ => {}
        }
        result
    }

    fn send_with(
        &mut self,
        to: usize,
        bytes: usize,
        fill: &mut dyn FnMut(&mut [u8]),
    ) -> Result<()> {
        let header = self.header()?;
        self.links.send(to, &header, bytes, fill)
    }

    fn receive_with(
        &mut self,
        from: usize,
        bytes: usize,
        consume: &mut dyn FnMut(&[u8]),
    ) -> Result<()> {
        let header = self.header()?;
        self.links.receive(from, &header, bytes, consume)
    }

    fn fail(&mut self, error: CollectiveError) {
        self.status.fail(Failure {
            trouble: Trouble::Ended(error),
            from_sequence: self.sequence,
        });
    }

    fn abort_handle(&self) -> AbortHandle {
        AbortHandle::new(self.links.rank(), self.abort.clone())
    }
}
