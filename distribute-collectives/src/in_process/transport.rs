//! The in-process transport: segments between threads, through the mailboxes of their group.

use std::sync::Arc;
use std::time::Duration;

use crate::bookkeeping::{Bookkeeping, RunningOperation};
use crate::communicator::AbortHandle;
use crate::error::{CollectiveError, Result};
use crate::header::OperationHeader;
use crate::in_process::group::Group;
use crate::in_process::mailbox::{Mailbox, Slots};
use crate::operation::OperationKind;
use crate::sync::MutexGuard;
use crate::transport::{SEGMENTS_IN_FLIGHT, Transport};

/// Bytes of a segment: sender and receiver find it in the second-level cache.
const SEGMENT_BYTES: usize = 128 * 1024;

/// One rank's membership in its group, with access to the group's mailboxes. Dropping it tells the
/// others that this rank has gone.
pub struct InProcessTransport {
    pub(crate) group: Arc<Group>,
    pub(crate) rank: usize,
    pub(crate) operations: Bookkeeping,
    running: Option<RunningOperation>,
}

impl InProcessTransport {
    pub(crate) fn new(group: Arc<Group>, rank: usize) -> Self {
        InProcessTransport {
            group,
            rank,
            operations: Bookkeeping::default(),
            running: None,
        }
    }

    /// Blocks until `ready`. `peer` is the rank that must do something for it.
    fn wait<'a>(
        &self,
        mailbox: &'a Mailbox,
        peer: usize,
        ready: fn(usize) -> bool,
    ) -> Result<MutexGuard<'a, Slots>> {
        let group = &*self.group;
        let running = self.running()?;
        let header = &running.header;
        let is_ready = || ready(mailbox.filled());
        group.poll(is_ready);
        let mut slots = mailbox.lock();
        loop {
            if ready(slots.filled) {
                return Ok(slots);
            }
            let failure_count = group.failure_count();
            if failure_count > 0 {
                // Not under the mailbox's lock: a failure wakes the mailboxes.
                drop(slots);
                group.check_waiting(header, peer, is_ready)?;
                slots = mailbox.lock();
                if ready(slots.filled) || group.failure_count() != failure_count {
                    continue;
                }
            }
            let left = running.left();
            if left == Some(Duration::ZERO) {
                drop(slots);
                let error = running.timed_out(vec![peer]);
                group.record_failure(error.clone(), header.sequence);
                return Err(error);
            }
            slots = mailbox.sleep(slots, left);
        }
    }

    fn running(&self) -> Result<&RunningOperation> {
        RunningOperation::required(self.running.as_ref(), self.rank)
    }

    fn mailbox(&self, from: usize, to: usize) -> &Mailbox {
        let kind = self.running.map(|running| running.header.kind);
        let point_to_point = kind.is_some_and(OperationKind::is_point_to_point);
        self.group.mailbox(from, to, point_to_point)
    }
}

impl Drop for InProcessTransport {
    fn drop(&mut self) {
        let reason = if std::thread::panicking() {
            "its thread panicked"
        } else {
            "its endpoint was dropped"
        };
        self.group
            .leave(self.rank, self.operations.sequence(), reason);
    }
}

impl Transport for InProcessTransport {
    fn rank(&self) -> usize {
        self.rank
    }

    fn world_size(&self) -> usize {
        self.group.world_size
    }

    fn name(&self) -> &str {
        "in-process"
    }

    fn segment_bytes(&self) -> usize {
        SEGMENT_BYTES
    }

    fn sequence(&self) -> u64 {
        self.operations.sequence()
    }

    fn begin(&mut self, header: &OperationHeader) -> Result<()> {
        self.operations.check()?;
        let group = &*self.group;
        let running = RunningOperation::new(header, group.options.timeout);
        if !header.kind.is_point_to_point() {
            group.start(self.rank, header, 0, |_| {})?;
        }
        self.running = Some(running);
        Ok(())
    }

    fn end(&mut self, header: &OperationHeader, result: Result<()>) -> Result<()> {
        self.running = None;
        self.operations.end(header.kind, result)
    }

    fn send_with(
        &mut self,
        to: usize,
        bytes: usize,
        fill: &mut dyn FnMut(&mut [u8]),
    ) -> Result<()> {
        let mailbox = self.mailbox(self.rank, to);
        let slots = self.wait(mailbox, to, |filled| filled < SEGMENTS_IN_FLIGHT)?;
        mailbox.put(slots, bytes, fill);
        Ok(())
    }

    fn receive_with(
        &mut self,
        from: usize,
        bytes: usize,
        consume: &mut dyn FnMut(&[u8]),
    ) -> Result<()> {
        let mailbox = self.mailbox(from, self.rank);
        let slots = self.wait(mailbox, from, |filled| filled > 0)?;
        mailbox.take(slots, bytes, consume).map_err(|found| {
            let error = match self.running() {
                Ok(running) => (running.header).wrong_size(self.rank, from, found, bytes),
                Err(none_runs) => none_runs,
            };
            self.fail(error.clone());
            error
        })
    }

    fn fail(&mut self, error: CollectiveError) {
        let sequence = self.operations.sequence();
        self.group.record_failure(error, sequence);
    }

    fn abort_handle(&self) -> AbortHandle {
        AbortHandle::new(self.rank, self.group.clone())
    }
}
