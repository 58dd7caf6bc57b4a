//! Segments over shared memory between ranks of one host, over gRPC between hosts.

use std::sync::Arc;
use std::time::Duration;

use crate::algorithm::dissemination;
use crate::communicator::{AbortHandle, AbortTarget};
use crate::error::{CollectiveError, Result};
use crate::grpc::{GrpcTransport, Links};
use crate::header::OperationHeader;
use crate::shared_memory::{LocalGroup, Operation};
use crate::status::GroupStatus;
use crate::transport::Transport;

/// How long output that the kernel does not take yet may keep a rank from looking into its
/// mailboxes again.
const POLL_INTERVAL: Duration = Duration::from_micros(200);

/// One rank's access to ranks of its own host and of others.
///
/// Frames between hosts carry the header of their operation, segments in shared memory only their
/// size. So every collective operation begins with a dissemination barrier that carries the
/// headers: in round `k` a rank sends its header to the rank `2^k` after it and compares the one of
/// the rank `2^k` before it.
pub(crate) struct MixedTransport {
    /// Dropped first: it waits for other hosts while the memory is still mapped.
    grpc: GrpcTransport,
    local: LocalGroup,
    /// For segments that are bigger than a mailbox; kept for its memory.
    scratch: Vec<u8>,
}

impl MixedTransport {
    pub(super) fn new(
        links: Links,
        local: LocalGroup,
        status: Arc<GroupStatus>,
        abort: Arc<dyn AbortTarget>,
        timeout: Duration,
    ) -> Self {
        MixedTransport {
            grpc: GrpcTransport::new(links, status, abort, timeout),
            local,
            scratch: Vec::new(),
        }
    }

    fn compare_headers(&mut self, header: &OperationHeader) -> Result<()> {
        let rank = self.rank();
        for (to, from) in dissemination::rounds(rank, self.world_size()) {
            let mut found = [0; OperationHeader::BYTES];
            self.send_bytes(to, &header.encode())?;
            self.receive_with(from, found.len(), &mut |frame| found.copy_from_slice(frame))?;
            let compared = match OperationHeader::decode(&found) {
                Ok(found) => header.compare(rank, &found, from),
                Err(error) => Err(header.mismatch(rank, from, error.to_string())),
            };
            compared.inspect_err(|error| self.fail(error.clone()))?;
        }
        Ok(())
    }

    /// Writes what is waiting for other hosts, as far as there are lanes and their kernels take it,
    /// until `done`, which rank `peer` brings about. Whoever waits for `peer` after that finds that
    /// the deadline has passed, if it has.
    fn drive_until(
        &mut self,
        peer: usize,
        mut done: impl FnMut(&Self) -> Result<bool>,
    ) -> Result<()> {
        while !done(self)? && self.grpc.links.has_pending_output() {
            self.grpc.links.drive_within(POLL_INTERVAL);
            let running = self.grpc.running()?;
            let noted = self.grpc.status.check_peer(&running.header, Some(peer));
            // What is there counts, also when the rank that brought it about has left since.
            if noted.is_err() && !done(self)? {
                return noted;
            }
            if running.left() == Some(Duration::ZERO) {
                return Ok(());
            }
        }
        Ok(())
    }
}

impl Transport for MixedTransport {
    fn rank(&self) -> usize {
        self.grpc.rank()
    }

    fn world_size(&self) -> usize {
        self.grpc.world_size()
    }

    fn name(&self) -> &str {
        "shared memory inside a host, grpc between hosts"
    }

    fn segment_bytes(&self) -> usize {
        self.max_segment_bytes()
    }

    fn max_segment_bytes(&self) -> usize {
        let local = self.local.mailbox_bytes();
        local.min(self.grpc.max_segment_bytes())
    }

    fn sequence(&self) -> u64 {
        self.grpc.sequence()
    }

    fn begin(&mut self, header: &OperationHeader) -> Result<()> {
        self.grpc.start(header)?;
        if header.kind.is_point_to_point() {
            return Ok(());
        }
        self.compare_headers(header)
    }

    fn end(&mut self, header: &OperationHeader, result: Result<()>) -> Result<()> {
        self.grpc.end(header, result)
    }

    fn send_with(
        &mut self,
        to: usize,
        bytes: usize,
        fill: &mut dyn FnMut(&mut [u8]),
    ) -> Result<()> {
        if self.local.member(to).is_none() {
            return self.grpc.send_with(to, bytes, fill);
        }
        let running = self.grpc.running()?;
        let status = self.grpc.status.clone();
        let operation = Operation::of(&status, &running);
        self.drive_until(to, |this| this.local.can_send(&operation, to))?;
        let scratch = &mut self.scratch;
        self.local.send_with(&operation, to, bytes, fill, scratch)
    }

    fn send_bytes(&mut self, to: usize, bytes: &[u8]) -> Result<()> {
        if self.local.member(to).is_some() {
            return self.send_with(to, bytes.len(), &mut |frame| frame.copy_from_slice(bytes));
        }
        self.grpc.send_bytes(to, bytes)
    }

    fn receive_with(
        &mut self,
        from: usize,
        bytes: usize,
        consume: &mut dyn FnMut(&[u8]),
    ) -> Result<()> {
        if self.local.member(from).is_none() {
            return self.grpc.receive_with(from, bytes, consume);
        }
        let running = self.grpc.running()?;
        let status = self.grpc.status.clone();
        let operation = Operation::of(&status, &running);
        self.drive_until(from, |this| this.local.can_receive(&operation, from))?;
        let scratch = &mut self.scratch;
        self.local
            .receive_with(&operation, from, bytes, consume, scratch)
    }

    fn fail(&mut self, error: CollectiveError) {
        self.grpc.fail(error);
    }

    fn abort_handle(&self) -> AbortHandle {
        self.grpc.abort_handle()
    }
}
