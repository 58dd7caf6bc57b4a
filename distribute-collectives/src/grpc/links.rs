//! All connections of a rank, driven by the threads that send or receive.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use smallvec::SmallVec;

use crate::bookkeeping::RunningOperation;
use crate::error::{CollectiveError, Result};
use crate::failure::{Failure, FailureKind};
use crate::grpc::config::LinkConfig;
use crate::grpc::frames::Message;
use crate::grpc::lane::{End, Lane};
use crate::grpc::pool::{Pool, Segment};
use crate::grpc::stall;
use crate::header::OperationHeader;
use crate::spin_policy::SpinPolicy;
use crate::status::GroupStatus;
use crate::wire::{FrameHeader, HEADER_BYTES, OVERHEAD_BYTES, PREFIX_BYTES, encode_prefix};

/// Segments to one rank that a send never waits for.
pub(super) const SEGMENTS_IN_FLIGHT: usize = 8;

/// Shorter segments are copied: they are sent together with what stands in front of them.
const LENT_BYTES_MIN: usize = 4096;

/// Output per lane that HTTP/2 may hold before a send waits, unless the segments in flight are
/// more.
const PENDING_BYTES: usize = 2 << 20;

/// Received messages per lane that were not asked for: no more is read then, except by a call that
/// asks.
const QUEUED_BYTES: usize = 4 << 20;

/// How long a rank whose connection broke waits for the control plane to say why.
const FAILURE_REPORT_WAIT: Duration = Duration::from_millis(200);

/// How long a rank that leaves waits for the others to take what it has sent.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(2);

/// The connections to one rank.
pub(super) struct Peer {
    address: String,
    pub(super) lanes: Vec<Lane>,
    /// Messages sent and received: of collective operations, of point-to-point calls.
    sent: [u64; 2],
    received: [u64; 2],
}

impl Peer {
    pub(super) fn new(address: String, lanes: Vec<Lane>) -> Self {
        Peer {
            address,
            lanes,
            sent: [0; 2],
            received: [0; 2],
        }
    }
}

/// Most bytes of a segment in a message of at most `max_message_bytes`.
pub(crate) fn max_segment_bytes(max_message_bytes: usize) -> usize {
    let most = max_message_bytes.min(u32::MAX as usize);
    most.saturating_sub(HEADER_BYTES)
}

/// All data connections of one rank.
pub(crate) struct Links {
    rank: usize,
    max_message_bytes: usize,
    stall_limit: Duration,
    pub(super) peers: Vec<Option<Peer>>,
    pub(super) pool: Arc<Pool>,
    status: Arc<GroupStatus>,
    /// Readable when a failure was noted, or while the rank connects something has come.
    pub(super) wake: Arc<OwnedFd>,
    /// When to look next whether what was sent arrives.
    next_look: Instant,
    /// Whether each rank has a core, so that polling need not yield it.
    pub(super) may_spin: bool,
    spin_policy: SpinPolicy,
}

/// How long a rank polls before it sleeps.
const SPIN: Duration = Duration::from_micros(50);

/// What a wait for a few connections needs is on the stack: waiting allocates nothing.
type PollFds<'a> = SmallVec<[PollFd<'a>; 16]>;

/// What a rank waits for.
#[derive(Clone, Copy, PartialEq)]
enum Goal {
    /// A message on this lane of this rank.
    Message { from: usize, lane: usize },
    /// Room for output on this lane of this rank.
    Room { to: usize, lane: usize },
    /// All output written.
    Written,
}

impl Goal {
    /// The rank that it depends on, if only on one.
    fn peer(self) -> Option<usize> {
        match self {
            Goal::Message { from: peer, .. } | Goal::Room { to: peer, .. } => Some(peer),
            Goal::Written => None,
        }
    }
}

/// `poll(2)`; returns also when interrupted.
pub(super) fn wait(fds: &mut [PollFd<'_>], timeout: Option<Duration>) -> io::Result<()> {
    // Round up: a poll that returns just before the deadline would be repeated.
    let timeout = timeout.map(|timeout| timeout + Duration::from_micros(1));
    let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
    match rustix::event::poll(fds, timeout.as_ref()) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

impl Links {
    pub(super) fn unconnected(config: &LinkConfig) -> Result<Links> {
        let wake = config
            .status
            .alarm()
            .map_err(|error| CollectiveError::InvalidOption {
                what: format!("cannot make an eventfd: {error}"),
            })?;
        Ok(Links {
            rank: config.rank,
            max_message_bytes: config.max_message_bytes,
            stall_limit: config.stall_limit,
            peers: Vec::new(),
            pool: Arc::default(),
            status: config.status.clone(),
            wake,
            next_look: Instant::now(),
            may_spin: false,
            spin_policy: SpinPolicy::default(),
        })
    }

    /// Silences the bell: what rang it has to be looked at after that.
    pub(super) fn hush(&self) {
        let _ = rustix::io::read(&*self.wake, &mut [0; 8]);
    }

    /// This rank.
    pub(crate) fn rank(&self) -> usize {
        self.rank
    }

    /// Number of ranks, with or without a link.
    pub(crate) fn world_size(&self) -> usize {
        self.peers.len()
    }

    /// Most bytes of a segment: what a message carries, whose length is 32 bits.
    pub(crate) fn max_segment_bytes(&self) -> usize {
        max_segment_bytes(self.max_message_bytes)
    }

    /// Sends a segment of `bytes` bytes; `fill` writes it. Returns when it is on its way or
    /// queued; waits while too much is queued.
    pub(crate) fn send(
        &mut self,
        to: usize,
        running: &RunningOperation,
        bytes: usize,
        fill: &mut dyn FnMut(&mut [u8]),
    ) -> Result<()> {
        let (lane, mut segment) = self.segment(to, running, bytes, bytes)?;
        fill(&mut segment.bytes_mut()[OVERHEAD_BYTES..]);
        let sent = self.peer_mut(to, &running.header)?.lanes[lane].send(segment);
        sent.map_err(|end| self.ended(to, &running.header, end))
    }

    /// The same for bytes that lie in memory already. What the kernel takes at once is not copied
    /// before.
    pub(crate) fn send_bytes(
        &mut self,
        to: usize,
        running: &RunningOperation,
        bytes: &[u8],
    ) -> Result<()> {
        if bytes.len() < LENT_BYTES_MIN {
            return self.send(to, running, bytes.len(), &mut |frame| {
                frame.copy_from_slice(bytes);
            });
        }
        let (lane, segment) = self.segment(to, running, bytes.len(), 0)?;
        let sent = self.peer_mut(to, &running.header)?.lanes[lane].send_lent(segment, bytes);
        sent.map_err(|end| self.ended(to, &running.header, end))
    }

    /// The next segment to a rank, with the number of the lane that it takes: everything before
    /// its `bytes` bytes, and room for the first `own` of them. Waits while too much is queued.
    fn segment(
        &mut self,
        to: usize,
        running: &RunningOperation,
        bytes: usize,
        own: usize,
    ) -> Result<(usize, Segment)> {
        let header = &running.header;
        let point_to_point = usize::from(header.kind.is_point_to_point());
        let max = self.max_message_bytes;
        if HEADER_BYTES + bytes > max {
            let what = format!("a segment of {bytes} bytes does not fit max_message_bytes, {max}");
            return Err(invalid(self.rank, header, what));
        }
        let peer = self.peer_mut(to, header)?;
        let number = peer.sent[point_to_point];
        let lane = (number % peer.lanes.len() as u64) as usize;
        let most = PENDING_BYTES.max(SEGMENTS_IN_FLIGHT * (bytes + OVERHEAD_BYTES));
        let has_room = |links: &mut Links| {
            let lane = links.lane(to, lane);
            lane.is_none_or(|lane| lane.outstanding_bytes() + bytes <= most)
        };
        if !has_room(self) {
            self.wait_for(running, Goal::Room { to, lane }, has_room)?;
        }
        let frame = FrameHeader {
            operation: *header,
            number,
        };
        let pool = self.pool.clone();
        let peer = self.peer_mut(to, header)?;
        peer.sent[point_to_point] += 1;
        let mut segment = pool.take(OVERHEAD_BYTES + own, peer.lanes[lane].outstanding());
        let front = segment.bytes_mut();
        front[..PREFIX_BYTES].copy_from_slice(&encode_prefix(bytes));
        front[PREFIX_BYTES..OVERHEAD_BYTES].copy_from_slice(&frame.encode());
        Ok((lane, segment))
    }

    /// Receives the next segment from `from`, which must belong to the expected operation and
    /// have `bytes` bytes; `consume` reads it where it lies.
    pub(crate) fn receive(
        &mut self,
        from: usize,
        running: &RunningOperation,
        bytes: usize,
        consume: &mut dyn FnMut(&[u8]),
    ) -> Result<()> {
        let expected = &running.header;
        let point_to_point = expected.kind.is_point_to_point();
        let kind = usize::from(point_to_point);
        let peer = self.peer_mut(from, expected)?;
        let number = peer.received[kind];
        let lane = (number % peer.lanes.len() as u64) as usize;
        let mut message = peer.lanes[lane].next_message(point_to_point);
        if message.is_none() {
            self.wait_for(running, Goal::Message { from, lane }, |links| {
                let lane = links.lane(from, lane);
                message = lane.and_then(|lane| lane.next_message(point_to_point));
                message.is_some()
            })?;
        }
        let Some(message) = message else {
            return Err(invalid(self.rank, expected, "no message".to_string()));
        };
        self.check_message(from, expected, number, bytes, &message)?;
        consume(message.payload());
        let peer = self.peer_mut(from, expected)?;
        peer.received[kind] += 1;
        peer.lanes[lane].consumed(message);
        Ok(())
    }

    /// Moves what can be moved without waiting; returns whether bytes moved.
    pub(crate) fn drive_once(&mut self) -> bool {
        let mut moved = false;
        for lane in self.lanes_mut().filter(|lane| lane.has_pending_output()) {
            moved |= lane.drive(usize::from(lane.queued_bytes() < QUEUED_BYTES));
        }
        moved
    }

    /// Moves what can be moved; waits for at most `limit` when nothing can.
    #[cfg(feature = "shm")]
    pub(crate) fn drive_within(&mut self, limit: Duration) {
        if self.drive_once() {
            return;
        }
        let waiting = self.lanes().filter(|lane| lane.has_pending_output());
        let mut fds: PollFds<'_> = waiting.map(|lane| lane.socket.pollfd(false)).collect();
        // An error of poll shows again, and is reported, in the operation itself.
        let _ = wait(&mut fds, Some(limit));
    }

    /// Whether something that was sent has not been handed to the kernel yet.
    pub(crate) fn has_pending_output(&self) -> bool {
        self.lanes().any(Lane::has_pending_output)
    }

    /// Returns when the kernel has everything that this operation sent: afterwards the others can
    /// go on, whatever this rank does.
    pub(crate) fn finish_operation(&mut self, running: &RunningOperation) -> Result<()> {
        if !self.has_pending_output() {
            return Ok(());
        }
        self.wait_for(running, Goal::Written, |links| !links.has_pending_output())
    }

    /// Before this rank leaves a group in which nothing went wrong: says that nothing more will
    /// come, and waits a moment until the kernels of the others have everything.
    pub(crate) fn leave(&mut self) {
        if self.status.is_healthy() {
            self.flush(Instant::now() + FLUSH_TIMEOUT);
        }
    }

    /// Says that nothing more will come, and waits until the kernels of the others have
    /// everything. Ending a connection earlier could lose what is on its way.
    pub(super) fn flush(&mut self, deadline: Instant) {
        let pool = self.pool.clone();
        for lane in self.lanes_mut() {
            lane.finish(&pool);
            lane.drive(0);
        }
        loop {
            // Also reads: a peer that has left in the meantime acknowledges nothing any more.
            for lane in self.lanes_mut().filter(|lane| !lane.is_delivered()) {
                lane.drive(usize::from(lane.queued_bytes() < QUEUED_BYTES));
            }
            let now = Instant::now();
            if self.lanes().all(Lane::is_delivered) || now >= deadline {
                return;
            }
            // Nothing tells when the peer's kernel has acknowledged: ask again soon.
            let soon = Duration::from_millis(1).min(deadline - now);
            let waiting = self.lanes().filter(|lane| !lane.is_delivered());
            let mut fds: Vec<_> = waiting.map(|lane| lane.socket.pollfd(true)).collect();
            if wait(&mut fds, Some(soon)).is_err() {
                return;
            }
        }
    }

    fn lanes(&self) -> impl Iterator<Item = &Lane> {
        self.peers.iter().flatten().flat_map(|peer| &peer.lanes)
    }

    fn lanes_mut(&mut self) -> impl Iterator<Item = &mut Lane> {
        let peers = self.peers.iter_mut().flatten();
        peers.flat_map(|peer| &mut peer.lanes)
    }

    fn peer_mut(&mut self, rank: usize, header: &OperationHeader) -> Result<&mut Peer> {
        let peer = self.peers.get_mut(rank).and_then(Option::as_mut);
        peer.ok_or_else(|| {
            let what = format!("there is no gRPC link to rank {rank}");
            invalid(self.rank, header, what)
        })
    }

    fn lane(&mut self, rank: usize, lane: usize) -> Option<&mut Lane> {
        self.peers.get_mut(rank)?.as_mut()?.lanes.get_mut(lane)
    }

    /// Drives the connections until `done`.
    fn wait_for(
        &mut self,
        running: &RunningOperation,
        goal: Goal,
        mut done: impl FnMut(&mut Links) -> bool,
    ) -> Result<()> {
        loop {
            let moved = self.drive_for(goal);
            if done(self) {
                return Ok(());
            }
            if let Goal::Message { from: peer, lane } | Goal::Room { to: peer, lane } = goal
                && let Some(lane) = self.lane(peer, lane)
                && let Some(end) = lane.broken()
                && !(matches!(goal, Goal::Message { .. }) && lane.may_read_more())
            {
                return Err(self.ended(peer, &running.header, end));
            }
            if !moved && !self.poll(goal) && self.block(running, goal)? {
                self.note_failure(&running.header, goal, &mut done)?;
            }
        }
    }

    /// Tries for about as long as sleeping and waking a thread takes, and returns whether bytes
    /// moved. Where not each rank has a core, it yields between two tries.
    fn poll(&mut self, goal: Goal) -> bool {
        let spin_policy = std::mem::take(&mut self.spin_policy);
        let moved = if self.may_spin {
            spin_policy.poll(SPIN, || self.drive_for(goal))
        } else {
            spin_policy.poll_yielding(|| self.drive_for(goal))
        };
        self.spin_policy = spin_policy;
        moved
    }

    /// One step for all lanes that matter; returns whether to try again before blocking.
    fn drive_for(&mut self, goal: Goal) -> bool {
        let mut moved = false;
        if let Goal::Message { from, lane } = goal
            && let Some(lane) = self.lane(from, lane)
        {
            moved = lane.drive(1) || lane.may_read_more();
        }
        self.drive_once() || moved
    }

    /// What to do when a failure was noted while this rank was blocked. A rank leaves when the
    /// kernels of the others have all that it sent, so that is read first: it counts.
    fn note_failure(
        &mut self,
        header: &OperationHeader,
        goal: Goal,
        done: &mut impl FnMut(&mut Links) -> bool,
    ) -> Result<()> {
        loop {
            let noted = self.status.check_peer(header, goal.peer());
            if self.drive_for(goal) || done(self) {
                return Ok(());
            }
            noted?;
            // The failure concerns later operations only; the next one asks the status itself.
            self.hush();
            // One that was noted after the look has rung the same bell.
            if self.status.check_peer(header, goal.peer()).is_ok() {
                return Ok(());
            }
        }
    }

    /// Blocks until a lane that matters can move, a failure is noted or the deadline has passed.
    /// Returns whether a failure was noted.
    fn block(&mut self, running: &RunningOperation, goal: Goal) -> Result<bool> {
        let header = &running.header;
        self.check_progress(header)?;
        let left = running.left();
        if left == Some(Duration::ZERO) {
            return Err(self.timed_out(running, goal));
        }
        let mut fds = PollFds::new();
        fds.push(PollFd::new(&*self.wake, PollFlags::IN));
        for (from, peer) in self.peers.iter().enumerate() {
            for (lane, it) in peer.iter().flat_map(|peer| peer.lanes.iter().enumerate()) {
                let wanted = goal == Goal::Message { from, lane };
                if it.ended().is_none() && (wanted || it.has_pending_output()) {
                    let reading = wanted || it.queued_bytes() < QUEUED_BYTES;
                    fds.push(it.socket.pollfd(reading));
                }
            }
        }
        let nap = left.map_or(stall::LOOK_INTERVAL, |left| left.min(stall::LOOK_INTERVAL));
        let waited = wait(&mut fds, Some(nap));
        let rung = fds.first().is_some_and(|fd| !fd.revents().is_empty());
        waited.map_err(|error| invalid(self.rank, header, format!("cannot wait: {error}")))?;
        Ok(rung)
    }

    /// Ends the operation when what was sent to a rank does not arrive there.
    fn check_progress(&mut self, header: &OperationHeader) -> Result<()> {
        let (now, own, limit) = (Instant::now(), self.rank, self.stall_limit);
        if now < self.next_look {
            return Ok(());
        }
        self.next_look = now + stall::LOOK_INTERVAL;
        let peers = self.peers.iter_mut().enumerate();
        let lanes = peers.flat_map(|(rank, peer)| {
            let lanes = peer.iter_mut().flat_map(|peer| &mut peer.lanes);
            lanes.map(move |lane| (rank, lane))
        });
        for (peer, lane) in lanes {
            let has_dialled = peer < own;
            let Some((in_flight, elapsed)) = lane.standing_still(now) else {
                continue;
            };
            if elapsed < stall::limit_of(limit, has_dialled) {
                continue;
            }
            let ends = lane.socket.ends();
            let dialled = ends.map(|[_, there]| there).filter(|_| has_dialled);
            let error = CollectiveError::LinkStalled {
                rank: own,
                peer,
                connection: ends.map_or_else(String::new, |[a, b]| format!("{a} -> {b}")),
                what: stall::explain(in_flight, elapsed, dialled),
            };
            // The control plane may know better: that rank is silent, or was lost.
            self.status.check_peer(header, Some(peer))?;
            return Err(self.found(header, error));
        }
        Ok(())
    }

    fn timed_out(&self, running: &RunningOperation, goal: Goal) -> CollectiveError {
        let pending = |rank: &usize| {
            let peer = self.peers[*rank].as_ref();
            peer.is_some_and(|peer| peer.lanes.iter().any(Lane::has_pending_output))
        };
        let missing = match goal.peer() {
            Some(rank) => vec![rank],
            None => (0..self.peers.len()).filter(pending).collect(),
        };
        let header = &running.header;
        let missing = self.status.to_blame(header, running.begin, missing);
        self.found(header, running.timed_out(missing))
    }

    /// Notes an error that this rank has found, so that all ranks hear of it.
    fn found(&self, header: &OperationHeader, error: CollectiveError) -> CollectiveError {
        let failure = Failure::ended(error.clone(), header.sequence);
        self.status.record_failure(failure);
        error
    }

    /// The error of an operation whose connection to `peer` has ended.
    fn ended(&mut self, peer: usize, header: &OperationHeader, end: End) -> CollectiveError {
        let reason = match end {
            End::Protocol(what) => return self.protocol_error(peer, header, what),
            End::Lost(reason) => reason,
        };
        // The control plane may know better: which rank failed first, or that it was aborted.
        let until = Instant::now() + FAILURE_REPORT_WAIT;
        loop {
            if let Err(error) = self.status.check_peer(header, Some(peer)) {
                return error;
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            self.hush();
            if self.status.check_peer(header, Some(peer)).is_ok() {
                let mut fds = [PollFd::new(&*self.wake, PollFlags::IN)];
                if wait(&mut fds, Some(left)).is_err() {
                    break;
                }
            }
        }
        let kind = FailureKind::Lost { rank: peer, reason };
        let failure = Failure::new(kind.clone(), header.sequence);
        self.status.record_failure(failure);
        kind.into_error(header)
    }

    fn protocol_error(
        &mut self,
        peer: usize,
        header: &OperationHeader,
        what: String,
    ) -> CollectiveError {
        let address = match self.peers.get(peer) {
            Some(Some(peer)) => peer.address.clone(),
            _ => "no address".to_string(),
        };
        let error = CollectiveError::Protocol {
            rank: self.rank,
            peer,
            address,
            what,
        };
        self.found(header, error)
    }

    /// Refuses a message that is not the expected one.
    fn check_message(
        &mut self,
        from: usize,
        expected: &OperationHeader,
        number: u64,
        bytes: usize,
        message: &Message,
    ) -> Result<()> {
        let found = &message.header.operation;
        if message.header.number != number {
            let what = format!("frame {} in place of {number}", message.header.number);
            return Err(self.protocol_error(from, expected, what));
        }
        // The two ranks of a point-to-point call compare their buffers themselves.
        let theirs = if expected.kind.is_point_to_point() {
            OperationHeader {
                generation: found.generation,
                ..*expected
            }
        } else {
            *found
        };
        let (rank, payload) = (self.rank, message.payload().len());
        let compared = expected.compare(rank, &theirs, from).and_then(|()| {
            if payload == bytes {
                return Ok(());
            }
            let lower = if from < rank { found } else { expected };
            Err(lower.wrong_size(rank, from, payload, bytes))
        });
        compared.map_err(|error| self.found(expected, error))
    }
}

/// [`CollectiveError::InvalidArgument`] of this rank's operation.
fn invalid(rank: usize, header: &OperationHeader, what: String) -> CollectiveError {
    let op = header.kind;
    CollectiveError::InvalidArgument { rank, op, what }
}
