//! Segments over shared memory between ranks of one host, over gRPC between hosts.

use std::sync::Arc;
use std::time::Duration;

use crate::algorithm::dissemination;
use crate::bookkeeping::{Bookkeeping, RunningOperation};
use crate::communicator::{AbortHandle, AbortTarget};
use crate::error::{CollectiveError, Result};
use crate::grpc::Links;
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
    rank: usize,
    links: Links,
    local: LocalGroup,
    status: Arc<GroupStatus>,
    abort: Arc<dyn AbortTarget>,
    timeout: Duration,
    operations: Bookkeeping,
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
            rank: links.rank(),
            links,
            local,
            status,
            abort,
            timeout,
            operations: Bookkeeping::default(),
            scratch: Vec::new(),
        }
    }

    fn compare_headers(&mut self, header: &OperationHeader) -> Result<()> {
        for (to, from) in dissemination::rounds(self.rank, self.links.world_size()) {
            let mut found = [0; OperationHeader::BYTES];
            self.send_bytes(to, &header.encode())?;
            self.receive_with(from, found.len(), &mut |frame| found.copy_from_slice(frame))?;
            let compared = match OperationHeader::decode(&found) {
                Ok(found) => header.compare(self.rank, &found, from),
                Err(error) => Err(header.mismatch(self.rank, from, error.to_string())),
            };
            if let Err(error) = &compared {
                self.fail(error.clone());
            }
            compared?;
        }
        Ok(())
    }

    /// Writes what is waiting for other hosts, as far as their kernels take it, until `done`, which
    /// rank `peer` brings about.
    fn drive_until(
        &mut self,
        peer: usize,
        mut done: impl FnMut(&Self) -> Result<bool>,
    ) -> Result<()> {
        while !done(self)? && self.links.has_pending_output() {
            self.links.drive_within(POLL_INTERVAL);
            let running = self.operations.running(self.rank)?;
            let noted = self.status.check_peer(&running.header, Some(peer));
            // What is there counts, also when the rank that brought it about has left since.
            if noted.is_err() && !done(self)? {
                return noted;
            }
        }
        Ok(())
    }
}

impl Drop for MixedTransport {
    fn drop(&mut self) {
        self.links.leave();
    }
}

impl Transport for MixedTransport {
    fn rank(&self) -> usize {
        self.rank
    }

    fn world_size(&self) -> usize {
        self.links.world_size()
    }

    fn name(&self) -> &str {
        "shared memory inside a host, grpc between hosts"
    }

    fn segment_bytes(&self) -> usize {
        let suits = (self.local.mailbox_bytes() / 2).max(1);
        suits.min(self.max_segment_bytes())
    }

    fn max_segment_bytes(&self) -> usize {
        let local = self.local.mailbox_bytes();
        local.min(self.links.max_segment_bytes())
    }

    fn sequence(&self) -> u64 {
        self.operations.sequence()
    }

    fn begin(&mut self, header: &OperationHeader) -> Result<()> {
        self.operations.check()?;
        let running = RunningOperation::new(header, self.timeout);
        self.links.begin_operation(running.begin, running.deadline);
        self.status.begin(header);
        self.operations.begin(running);
        self.status.check_peer(header, None)?;
        if header.kind.is_point_to_point() {
            return Ok(());
        }
        self.compare_headers(header)
    }

    fn end(&mut self, header: &OperationHeader, result: Result<()>) -> Result<()> {
        let result = result.and_then(|()| self.links.finish_operation(header));
        self.status.end();
        self.operations.end(header.kind, result)
    }

    fn send_with(
        &mut self,
        to: usize,
        bytes: usize,
        fill: &mut dyn FnMut(&mut [u8]),
    ) -> Result<()> {
        let running = *self.operations.running(self.rank)?;
        if self.local.member(to).is_none() {
            return self.links.send(to, &running.header, bytes, fill);
        }
        let status = self.status.clone();
        let operation = Operation::of(&status, &running);
        self.drive_until(to, |this| this.local.can_send(&operation, to))?;
        let scratch = &mut self.scratch;
        self.local.send_with(&operation, to, bytes, fill, scratch)
    }

    fn send_bytes(&mut self, to: usize, bytes: &[u8]) -> Result<()> {
        if self.local.member(to).is_some() {
            return self.send_with(to, bytes.len(), &mut |frame| frame.copy_from_slice(bytes));
        }
        let running = *self.operations.running(self.rank)?;
        self.links.send_bytes(to, &running.header, bytes)
    }

    fn receive_with(
        &mut self,
        from: usize,
        bytes: usize,
        consume: &mut dyn FnMut(&[u8]),
    ) -> Result<()> {
        let running = *self.operations.running(self.rank)?;
        if self.local.member(from).is_none() {
            return self.links.receive(from, &running.header, bytes, consume);
        }
        let status = self.status.clone();
        let operation = Operation::of(&status, &running);
        self.drive_until(from, |this| this.local.can_receive(&operation, from))?;
        let scratch = &mut self.scratch;
        self.local
            .receive_with(&operation, from, bytes, consume, scratch)
    }

    fn fail(&mut self, error: CollectiveError) {
        self.operations.record_failure(&self.status, error);
    }

    fn abort_handle(&self) -> AbortHandle {
        AbortHandle::new(self.rank, self.abort.clone())
    }
}
