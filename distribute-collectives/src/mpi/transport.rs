//! Segments, headers and notices over MPI, with deadlines.
//!
//! MPI itself knows no deadlines, so every operation is non-blocking and polled: at first at once,
//! then after yielding the core, then after pauses of up to a millisecond, so that a rank that
//! waits for long does not burn a core. While it polls, a rank reads the notices of the others: an
//! abort, a failure, a dropped endpoint. A rank that has been waiting for a while says so; when the
//! deadline passes, those that did not are the ones that are missing.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use super::notice::{self, NOTICE_BYTES, Notice};
use super::raw::{Call, Comm, Memory, Pending, poll_pause};
use crate::bookkeeping::{Bookkeeping, RunningOperation};
use crate::communicator::{AbortHandle, AbortTarget};
use crate::error::{CollectiveError, Result};
use crate::failure::{Failure, Failures};
use crate::header::OperationHeader;
use crate::operation::OperationKind;
use crate::options::GroupOptions;
use crate::sync::unpoisoned;
use crate::transport::{SEGMENTS_IN_FLIGHT, Transport};

/// Bytes of a segment for each rank.
const SEGMENT_BYTES: usize = 256 * 1024;

const COLLECTIVE_TAG: i32 = 1;
const POINT_TO_POINT_TAG: i32 = 2;

/// A rank says that it waits after a quarter of the deadline, at most after this time.
const SAY_WAITING_AFTER: Duration = Duration::from_secs(1);

/// The most notices that are kept for other groups of this process. A group that misses one finds
/// out by its own deadline.
const NOTICES_MAX: usize = 1024;

/// What is known of the other ranks.
struct PeerStates {
    failures: Failures,
    /// Per rank: the last operation that it said to wait in.
    waiting: Vec<Option<u64>>,
    /// Notices under way.
    outgoing: Vec<Pending>,
}

/// The part of an endpoint that other threads may use.
pub(super) struct NoticeExchange {
    comm: Arc<Comm>,
    peers: Mutex<PeerStates>,
    closed: AtomicBool,
}

impl NoticeExchange {
    fn lock(&self) -> MutexGuard<'_, PeerStates> {
        // The lock is never held across code that can panic half-way through a change.
        unpoisoned(self.peers.lock())
    }

    /// Tells all other ranks.
    fn send_notice(&self, notice: &Notice) {
        let bytes = notice::encode(self.comm.instance, self.comm.rank, notice);
        let mut peers = self.lock();
        for to in (0..self.comm.size).filter(|rank| *rank != self.comm.rank) {
            let mut memory = Memory::default();
            memory.outgoing(NOTICE_BYTES).copy_from_slice(&bytes);
            // A rank that cannot be told finds out by its own deadline.
            if let Ok(pending) = self.comm.start(memory, NOTICE_BYTES, Call::Notice { to }) {
                peers.outgoing.push(pending);
            }
        }
        peers.outgoing.retain_mut(Pending::is_under_way);
    }

    /// Notes a failure, and tells all other ranks unless they know of an earlier one.
    fn tell(&self, failure: Failure, record: fn(&mut Failures, Failure) -> bool) {
        let is_news = record(&mut self.lock().failures, failure.clone());
        if is_news {
            self.send_notice(&Notice::Failed(failure));
        }
    }

    /// Reads what the other ranks have told.
    fn receive_notices(&self) -> Result<MutexGuard<'_, PeerStates>> {
        let mut peers = self.lock();
        let mut inbox = self.comm.world.inbox();
        let mut kept = std::mem::take(&mut inbox.notices);
        kept.retain(|(instance, notice)| {
            if *instance == self.comm.instance {
                peers.record(notice);
            }
            *instance != self.comm.instance && inbox.is_expected(*instance)
        });
        inbox.notices = kept;
        while let Some(message) = self.comm.take_notice()? {
            match notice::decode(&message) {
                Some((instance, notice)) if instance == self.comm.instance => {
                    peers.record(&notice);
                }
                Some(other) if inbox.notices.len() < NOTICES_MAX => inbox.notices.push(other),
                _ => {}
            }
        }
        drop(inbox);
        Ok(peers)
    }
}

impl PeerStates {
    fn record(&mut self, notice: &Notice) {
        let size = self.waiting.len();
        match notice {
            Notice::Failed(failure) if failure.is_of(size) => {
                self.failures.record_if_first(failure.clone());
            }
            Notice::Left {
                rank,
                completed,
                reason,
            } if *rank < size => {
                self.failures.goodbye(*rank, *completed, reason.clone());
            }
            Notice::Waiting { rank, sequence } if *rank < size => {
                self.waiting[*rank] = Some(*sequence);
            }
            Notice::Failed(_) | Notice::Left { .. } | Notice::Waiting { .. } => {}
        }
    }
}

impl AbortTarget for NoticeExchange {
    fn abort(&self, rank: usize, reason: &str) {
        if !self.closed.load(Ordering::Acquire) {
            self.tell(Failure::aborted(rank, reason), Failures::record_if_first);
        }
    }
}

/// One rank's endpoint.
pub(super) struct MpiTransport {
    comm: Arc<Comm>,
    shared: Arc<NoticeExchange>,
    timeout: Duration,
    operations: Bookkeeping,
    running: Option<RunningOperation>,
    said_waiting: bool,
    /// Memory for the next operations.
    memory: Vec<Memory>,
    /// Segments under way to each rank, collective and point-to-point ones.
    outgoing: Vec<[VecDeque<Pending>; 2]>,
}

impl MpiTransport {
    pub(super) fn new(comm: Comm, options: &GroupOptions) -> Self {
        let comm = Arc::new(comm);
        let size = comm.size;
        let shared = NoticeExchange {
            comm: comm.clone(),
            peers: Mutex::new(PeerStates {
                failures: Failures::default(),
                waiting: vec![None; size],
                outgoing: Vec::new(),
            }),
            closed: AtomicBool::new(false),
        };
        MpiTransport {
            shared: Arc::new(shared),
            timeout: options.timeout,
            operations: Bookkeeping::default(),
            running: None,
            said_waiting: false,
            memory: Vec::new(),
            outgoing: (0..size).map(|_| Default::default()).collect(),
            comm,
        }
    }

    /// Memory for an operation; give it back with [`put_back`](Self::put_back).
    pub(super) fn take_memory(&mut self) -> Memory {
        self.memory.pop().unwrap_or_default()
    }

    pub(super) fn put_back(&mut self, memory: Memory) {
        self.memory.push(memory);
    }

    fn start(&self, memory: Memory, bytes: usize, call: Call) -> Result<Pending> {
        let started = self.comm.start(memory, bytes, call);
        started.map_err(|error| self.broken(&error))
    }

    /// Runs an operation of the library, on this many bytes of this rank, to its end.
    pub(super) fn complete(&mut self, memory: Memory, bytes: usize, call: Call) -> Result<Memory> {
        let pending = self.start(memory, bytes, call)?;
        Ok(self.wait(pending, None)?.0)
    }

    /// Gives every rank the bytes of all ranks; `read` gets them in rank order.
    pub(super) fn all_gather<const N: usize, R>(
        &mut self,
        own: &[u8; N],
        read: impl FnOnce(&[[u8; N]]) -> R,
    ) -> Result<R> {
        let bytes = N * self.comm.size;
        let mut memory = self.take_memory();
        memory.outgoing(N).copy_from_slice(own);
        memory.incoming(bytes);
        let mut memory = self.complete(memory, N, Call::AllGather)?;
        let result = read(memory.incoming(bytes).as_chunks().0);
        self.put_back(memory);
        Ok(result)
    }

    /// Waits for an operation; `peer` is the only rank that it needs, if it needs only one.
    fn wait(&mut self, mut pending: Pending, peer: Option<usize>) -> Result<(Memory, usize)> {
        let mut polls = 0_u32;
        loop {
            let tested = pending.test().map_err(|error| self.broken(&error))?;
            if let Some(done) = tested {
                return Ok(done);
            }
            if polls.is_multiple_of(16) || polls > 256 {
                self.check(peer)?;
            }
            match polls {
                0..32 => std::hint::spin_loop(),
                32..256 => std::thread::yield_now(),
                _ => std::thread::sleep(poll_pause(polls - 256)),
            }
            polls = polls.saturating_add(1);
        }
    }

    /// Whether to give up the running operation.
    fn check(&mut self, peer: Option<usize>) -> Result<()> {
        let running = RunningOperation::required(self.running, self.comm.rank)?;
        let (is_collective, sequence) = (peer.is_none(), running.header.sequence);
        let shared = self.shared.clone();
        let peers = shared
            .receive_notices()
            .map_err(|error| self.broken(&error))?;
        if let Some(failure) = peers.failures.verdict(&running.header, peer).cloned() {
            drop(peers);
            let error = failure.kind.clone().into_error(&running.header);
            // Before this rank leaves too, or others would take it for the first one. From a
            // point-to-point call it is told as it is: a loss ends no call between other ranks.
            if is_collective {
                self.fail(error.clone())
            } else {
                self.shared.send_notice(&Notice::Failed(failure))
            }
            return Err(error);
        }
        // A point-to-point call has the number of an operation that has not begun.
        let says_waiting = is_collective && !self.said_waiting;
        if says_waiting && running.begin.elapsed() > (self.timeout / 4).min(SAY_WAITING_AFTER) {
            self.said_waiting = true;
            drop(peers);
            let rank = self.comm.rank;
            self.shared.send_notice(&Notice::Waiting { rank, sequence });
            return Ok(());
        }
        if running.left() != Some(Duration::ZERO) {
            return Ok(());
        }
        let silent = |rank: &usize| {
            *rank != self.comm.rank && peers.waiting[*rank].is_none_or(|other| other < sequence)
        };
        let missing = match peer {
            Some(peer) => vec![peer],
            None => (0..self.comm.size).filter(silent).collect(),
        };
        drop(peers);
        let error = running.timed_out(missing);
        self.fail(error.clone());
        Err(error)
    }

    /// A failure of the library.
    fn broken(&self, error: &CollectiveError) -> CollectiveError {
        CollectiveError::Aborted {
            rank: self.comm.rank,
            reason: error.to_string(),
        }
    }

    /// Which queue and tag the running operation uses.
    fn lane(&self) -> (usize, i32) {
        let kind = self.running.map(|running| running.header.kind);
        if kind.is_some_and(OperationKind::is_point_to_point) {
            (1, POINT_TO_POINT_TAG)
        } else {
            (0, COLLECTIVE_TAG)
        }
    }

    /// The only rank that a point-to-point call needs.
    fn only(&self, peer: usize) -> Option<usize> {
        (self.lane().1 == POINT_TO_POINT_TAG).then_some(peer)
    }

    /// Compares the headers of all ranks.
    fn agree(&mut self, header: &OperationHeader) -> Result<()> {
        let (rank, own) = (self.comm.rank, header.encode());
        self.all_gather(&own, |headers| {
            if headers.iter().all(|other| *other == own) {
                return Ok(());
            }
            let decoded = headers.iter().enumerate().map(|(from, bytes)| {
                OperationHeader::decode(bytes)
                    .map_err(|error| header.mismatch(rank, from, error.to_string()))
            });
            OperationHeader::agree(&decoded.collect::<Result<Vec<_>>>()?)
        })?
    }
}

impl Transport for MpiTransport {
    fn rank(&self) -> usize {
        self.comm.rank
    }

    fn world_size(&self) -> usize {
        self.comm.size
    }

    fn name(&self) -> &str {
        "MPI"
    }

    fn segment_bytes(&self) -> usize {
        SEGMENT_BYTES
    }

    fn max_segment_bytes(&self) -> usize {
        // MPI counts in `int`.
        i32::MAX as usize
    }

    fn sequence(&self) -> u64 {
        self.operations.sequence()
    }

    fn begin(&mut self, header: &OperationHeader) -> Result<()> {
        self.operations.check()?;
        self.said_waiting = false;
        self.running = Some(RunningOperation::new(header, self.timeout));
        if header.kind.is_point_to_point() {
            return Ok(());
        }
        // What was told while nothing ran here.
        self.check(None)?;
        self.agree(header)
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
        let (lane, tag) = self.lane();
        if self.outgoing[to][lane].len() >= SEGMENTS_IN_FLIGHT
            && let Some(oldest) = self.outgoing[to][lane].pop_front()
        {
            let (memory, _) = self.wait(oldest, self.only(to))?;
            self.put_back(memory);
        }
        let mut memory = self.take_memory();
        fill(memory.outgoing(bytes));
        let pending = self.start(memory, bytes, Call::Send { to, tag })?;
        self.outgoing[to][lane].push_back(pending);
        Ok(())
    }

    fn receive_with(
        &mut self,
        from: usize,
        bytes: usize,
        consume: &mut dyn FnMut(&[u8]),
    ) -> Result<()> {
        let mut memory = self.take_memory();
        memory.incoming(bytes);
        let (_, tag) = self.lane();
        let pending = self.start(memory, bytes, Call::Receive { from, tag })?;
        let (mut memory, found) = self.wait(pending, self.only(from))?;
        if found != bytes {
            let rank = self.comm.rank;
            let header = RunningOperation::required(self.running, rank)?.header;
            let error = header.wrong_size(rank, from, found, bytes);
            self.fail(error.clone());
            return Err(error);
        }
        consume(memory.incoming(bytes));
        self.put_back(memory);
        Ok(())
    }

    fn fail(&mut self, error: CollectiveError) {
        let failure = Failure::ended(error, self.operations.sequence());
        self.shared.tell(failure, Failures::record);
    }

    fn abort_handle(&self) -> AbortHandle {
        AbortHandle::new(self.comm.rank, self.shared.clone())
    }
}

impl Drop for MpiTransport {
    fn drop(&mut self) {
        self.shared.closed.store(true, Ordering::Release);
        let reason = if std::thread::panicking() {
            "its thread panicked"
        } else {
            "its endpoint was dropped"
        };
        // One that has not heard of a failure yet must not take this rank, which leaves because of
        // it, for the cause: notices of two ranks come in any order.
        let known = self.shared.lock().failures.first().cloned();
        if let Some(failure) = known {
            self.shared.send_notice(&Notice::Failed(failure));
        }
        self.shared.send_notice(&Notice::Left {
            rank: self.comm.rank,
            completed: self.operations.sequence(),
            reason: reason.to_string(),
        });
        // Segments that were sent but not received yet belong to operations that this rank has
        // finished: the receivers will take them, within the deadline of an operation.
        let deadline = Instant::now().checked_add(self.timeout);
        let failed = std::thread::panicking()
            || self.operations.check().is_err()
            || self.shared.lock().failures.first().is_some();
        let mut left: Vec<Pending> = self.outgoing.drain(..).flatten().flatten().collect();
        let mut polls = 0;
        loop {
            left.retain_mut(Pending::is_under_way);
            let mut peers = self.shared.lock();
            peers.outgoing.retain_mut(Pending::is_under_way);
            let late = deadline.is_some_and(|deadline| Instant::now() >= deadline);
            if left.is_empty() && peers.outgoing.is_empty() || failed || late {
                return;
            }
            drop(peers);
            std::thread::sleep(poll_pause(polls));
            polls += 1;
        }
    }
}
