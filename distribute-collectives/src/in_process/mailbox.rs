//! The in-process transport: segments between threads, through bounded mailboxes.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::bookkeeping::RunningOperation;
use crate::communicator::AbortHandle;
use crate::error::{CollectiveError, Result};
use crate::header::OperationHeader;
use crate::in_process::endpoint::Endpoint;
use crate::in_process::wait_for_change;
use crate::transport::{SEGMENTS_IN_FLIGHT, Transport};

/// Bytes of a segment: sender and receiver find it in the second-level cache.
const SEGMENT_BYTES: usize = 128 * 1024;

/// A segment in a mailbox. Words, not bytes, so that it is aligned for every element type.
#[derive(Default)]
struct Frame {
    words: Vec<u64>,
    bytes: usize,
}

impl Frame {
    /// Makes room for a segment; keeps its memory for the next one.
    fn resize(&mut self, bytes: usize) -> &mut [u8] {
        let words = bytes.div_ceil(size_of::<u64>());
        if self.words.len() < words {
            self.words.resize(words, 0);
        }
        self.bytes = bytes;
        &mut bytemuck::cast_slice_mut(&mut self.words)[..bytes]
    }

    fn as_bytes(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.words)[..self.bytes]
    }
}

#[derive(Default)]
struct Slots {
    /// A ring; a frame that is being filled or read is taken out, without the lock.
    frames: [Frame; SEGMENTS_IN_FLIGHT],
    oldest: usize,
    filled: usize,
    /// Sender and receiver that sleep on `changed`.
    sleepers: usize,
}

/// Carries segments from one rank to another one, in order. One sender, one receiver.
#[derive(Default)]
pub(crate) struct Mailbox {
    slots: Mutex<Slots>,
    changed: Condvar,
    /// Copy of `Slots::filled`, for polling.
    filled: AtomicUsize,
}

impl Mailbox {
    fn lock(&self) -> MutexGuard<'_, Slots> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets sleeping ranks look again; called when the group fails.
    pub(crate) fn notify(&self) {
        self.wake(self.lock());
    }

    fn wake(&self, slots: MutexGuard<'_, Slots>) {
        self.filled.store(slots.filled, Ordering::Release);
        let sleepers = slots.sleepers;
        drop(slots);
        if sleepers > 0 {
            self.changed.notify_all();
        }
    }

    fn sleep<'a>(
        &'a self,
        mut slots: MutexGuard<'a, Slots>,
        left: Option<Duration>,
    ) -> MutexGuard<'a, Slots> {
        slots.sleepers += 1;
        let mut slots = wait_for_change(&self.changed, slots, left);
        slots.sleepers -= 1;
        slots
    }
}

/// One rank's access to the mailboxes of its group.
pub struct InProcessTransport {
    pub(crate) endpoint: Endpoint,
}

impl InProcessTransport {
    pub(crate) fn new(endpoint: Endpoint) -> Self {
        InProcessTransport { endpoint }
    }

    /// Blocks until `ready`. `peer` is the rank that must do something for it.
    fn wait<'a>(
        &self,
        mailbox: &'a Mailbox,
        peer: usize,
        ready: fn(usize) -> bool,
    ) -> Result<MutexGuard<'a, Slots>> {
        let group = &*self.endpoint.group;
        let running = self.endpoint.operations.running(self.endpoint.rank)?;
        let header = &running.header;
        let is_ready = || ready(mailbox.filled.load(Ordering::Acquire));
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
                group.check_waiting(header.kind, header.sequence, peer, is_ready)?;
                slots = mailbox.lock();
                if ready(slots.filled) || group.failure_count() != failure_count {
                    continue;
                }
            }
            let left = running
                .deadline
                .map(|end| end.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                drop(slots);
                let error = CollectiveError::Timeout {
                    missing: vec![peer],
                    op: header.kind,
                    sequence: header.sequence,
                    elapsed: running.begin.elapsed(),
                };
                group.record_failure(error.clone(), header.sequence);
                return Err(error);
            }
            slots = mailbox.sleep(slots, left);
        }
    }

    fn mailbox(&self, from: usize, to: usize) -> &Mailbox {
        let point_to_point = self.endpoint.operations.is_point_to_point();
        self.endpoint.group.mailbox(from, to, point_to_point)
    }
}

impl Transport for InProcessTransport {
    fn rank(&self) -> usize {
        self.endpoint.rank
    }

    fn world_size(&self) -> usize {
        self.endpoint.group.world_size
    }

    fn name(&self) -> &str {
        "in-process"
    }

    fn segment_bytes(&self) -> usize {
        SEGMENT_BYTES
    }

    fn sequence(&self) -> u64 {
        self.endpoint.operations.sequence()
    }

    fn begin(&mut self, header: &OperationHeader) -> Result<()> {
        self.endpoint.operations.check()?;
        let group = &*self.endpoint.group;
        let running = RunningOperation::new(header, group.options.get_timeout());
        if !header.kind.is_point_to_point() {
            group.start(self.endpoint.rank, header, 0, |_| {})?;
        }
        self.endpoint.operations.begin(running);
        Ok(())
    }

    fn end(&mut self, header: &OperationHeader, result: Result<()>) -> Result<()> {
        self.endpoint.operations.end(header.kind, result)
    }

    fn send_with(
        &mut self,
        to: usize,
        bytes: usize,
        fill: &mut dyn FnMut(&mut [u8]),
    ) -> Result<()> {
        let mailbox = self.mailbox(self.endpoint.rank, to);
        let mut slots = self.wait(mailbox, to, |filled| filled < SEGMENTS_IN_FLIGHT)?;
        let slot = (slots.oldest + slots.filled) % SEGMENTS_IN_FLIGHT;
        let mut frame = std::mem::take(&mut slots.frames[slot]);
        drop(slots);
        fill(frame.resize(bytes));
        let mut slots = mailbox.lock();
        // The receiver may have moved on, but the next free slot is still this one.
        slots.frames[slot] = frame;
        slots.filled += 1;
        mailbox.wake(slots);
        Ok(())
    }

    fn receive_with(
        &mut self,
        from: usize,
        bytes: usize,
        consume: &mut dyn FnMut(&[u8]),
    ) -> Result<()> {
        let mailbox = self.mailbox(from, self.endpoint.rank);
        let mut slots = self.wait(mailbox, from, |filled| filled > 0)?;
        let slot = slots.oldest;
        let frame = std::mem::take(&mut slots.frames[slot]);
        drop(slots);
        if frame.bytes != bytes {
            let (operations, rank) = (&self.endpoint.operations, self.endpoint.rank);
            let error = operations.wrong_size(rank, from, frame.bytes, bytes);
            self.fail(error.clone());
            return Err(error);
        }
        consume(frame.as_bytes());
        let mut slots = mailbox.lock();
        slots.frames[slot] = frame;
        slots.oldest = (slot + 1) % SEGMENTS_IN_FLIGHT;
        slots.filled -= 1;
        mailbox.wake(slots);
        Ok(())
    }

    fn fail(&mut self, error: CollectiveError) {
        let sequence = self.endpoint.operations.sequence();
        self.endpoint.group.record_failure(error, sequence);
    }

    fn abort_handle(&self) -> AbortHandle {
        AbortHandle::new(self.endpoint.rank, self.endpoint.group.clone())
    }
}
