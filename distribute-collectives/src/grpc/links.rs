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
use crate::grpc::entrance::Doorway;
use crate::grpc::frames::Message;
use crate::grpc::lane::End;
use crate::grpc::peer::{Openings, Peer, Place};
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
pub(super) const QUEUED_BYTES: usize = 4 << 20;

/// How long a rank whose connection broke waits for the control plane to say why: it usually knows
/// at once, and much later where hundreds of ranks share a processor. The rank at the other end may
/// have ended because of a third one.
const FAILURE_REPORT_WAIT: Duration = Duration::from_secs(1);

/// How long a rank that leaves waits for the others to take what it has sent.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(2);

/// Most bytes of a segment in a message of at most `max_message_bytes`.
pub(crate) fn max_segment_bytes(max_message_bytes: usize) -> usize {
    let most = max_message_bytes.min(u32::MAX as usize);
    most.saturating_sub(HEADER_BYTES)
}

/// All data connections of one rank.
pub(crate) struct Links {
    pub(super) rank: usize,
    pub(super) max_message_bytes: usize,
    stall_limit: Duration,
    pub(super) idle_limit: Duration,
    pub(super) door: Doorway,
    pub(super) peers: Vec<Option<Peer>>,
    /// The ranks with which this one has to do now: no other one has a lane, or waits for one.
    pub(super) in_use: Vec<usize>,
    pub(super) openings: Openings,
    pub(super) pool: Arc<Pool>,
    status: Arc<GroupStatus>,
    /// Readable when a failure was noted, or a connection has come.
    pub(super) wake: Arc<OwnedFd>,
    /// When to look next whether what was sent arrives.
    next_look: Instant,
    /// When to look next which lanes are not used.
    pub(super) next_tending: Instant,
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
    pub(super) fn unpeered(config: &LinkConfig, door: Doorway) -> Result<Links> {
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
            idle_limit: config.idle_limit,
            door,
            peers: Vec::new(),
            in_use: Vec::new(),
            openings: Openings::new(),
            pool: Arc::default(),
            status: config.status.clone(),
            wake,
            next_look: Instant::now(),
            next_tending: Instant::now(),
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
        let sent = self.peer_mut(to, &running.header)?.places[lane].send(segment);
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
        let sent = self.peer_mut(to, &running.header)?.places[lane].send_lent(segment, bytes);
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
        let lane = (number % peer.places.len() as u64) as usize;
        if peer.places[lane].is_empty() {
            self.want(to);
        }
        let most = PENDING_BYTES.max(SEGMENTS_IN_FLIGHT * (bytes + OVERHEAD_BYTES));
        let has_room = |links: &mut Links| {
            let place = links.place(to, lane);
            place.is_none_or(|place| place.outstanding_bytes() + bytes <= most)
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
        let mut segment = pool.take(OVERHEAD_BYTES + own, peer.places[lane].outstanding());
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
        let lane = (number % peer.places.len() as u64) as usize;
        let mut taken = peer.places[lane].next_message(point_to_point);
        if taken.is_none() {
            self.wait_for(running, Goal::Message { from, lane }, |links| {
                let place = links.place_mut(from, lane);
                taken = place.and_then(|place| place.next_message(point_to_point));
                taken.is_some()
            })?;
        }
        let Some(taken) = taken else {
            return Err(invalid(self.rank, expected, "no message".to_string()));
        };
        self.check_message(from, expected, number, bytes, &taken.message)?;
        consume(taken.message.payload());
        let peer = self.peer_mut(from, expected)?;
        peer.received[kind] += 1;
        peer.places[lane].consumed(taken);
        Ok(())
    }

    /// Moves what can be moved without waiting; returns whether bytes moved.
    pub(crate) fn drive_once(&mut self) -> bool {
        let mut moved = self.take_arrivals();
        for index in 0..self.in_use.len() {
            let rank = self.in_use[index];
            let Some(Some(peer)) = self.peers.get_mut(rank) else {
                continue;
            };
            let mut lacks_lane = false;
            for place in &mut peer.places {
                if place.has_pending_output() {
                    moved |= place.drive_within(QUEUED_BYTES);
                    lacks_lane |= place.is_empty();
                }
            }
            if lacks_lane {
                self.want(rank);
            }
        }
        moved
    }

    /// Moves what can be moved; waits for at most `limit` when nothing can.
    #[cfg(feature = "shm")]
    pub(crate) fn drive_within(&mut self, limit: Duration) {
        if self.drive_once() {
            return;
        }
        let waiting = self.places().filter(|(_, _, it)| it.has_pending_output());
        let lanes = waiting.filter_map(|(_, _, place)| place.lane());
        let mut fds: PollFds<'_> = lanes.map(|lane| lane.socket.pollfd(false)).collect();
        fds.extend(self.openings.values().map(|it| it.socket.pollfd(true)));
        // An error of poll shows again, and is reported, in the operation itself.
        let _ = wait(&mut fds, Some(limit));
    }

    /// Whether something that was sent has not been handed to the kernel yet.
    pub(crate) fn has_pending_output(&self) -> bool {
        self.places()
            .any(|(_, _, place)| place.has_pending_output())
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
        loop {
            self.take_arrivals();
            self.finish_lanes();
            let now = Instant::now();
            if self.places().all(|(_, _, place)| place.is_delivered()) || now >= deadline {
                return;
            }
            // Nothing tells when the peer's kernel has acknowledged: ask again soon.
            let soon = Duration::from_millis(1).min(deadline - now);
            let waiting = self.places().filter(|(_, _, place)| !place.is_delivered());
            let lanes = waiting.filter_map(|(_, _, place)| place.lane());
            let mut fds: Vec<_> = lanes.map(|lane| lane.socket.pollfd(true)).collect();
            if wait(&mut fds, Some(soon)).is_err() {
                return;
            }
        }
    }

    /// Says on all lanes that nothing more will come, and moves what can be moved. Also reads: a
    /// peer that has left in the meantime acknowledges nothing any more.
    fn finish_lanes(&mut self) {
        for index in 0..self.in_use.len() {
            let rank = self.in_use[index];
            let Some(Some(peer)) = self.peers.get_mut(rank) else {
                continue;
            };
            let mut lacks_lane = false;
            for place in &mut peer.places {
                place.finish(&self.pool);
                if !place.is_delivered() {
                    place.drive_within(QUEUED_BYTES);
                    lacks_lane |= place.is_empty();
                }
            }
            if lacks_lane {
                self.want(rank);
            }
        }
    }

    /// All places that may have lanes: rank, lane, place.
    fn places(&self) -> impl Iterator<Item = (usize, usize, &Place)> {
        self.in_use.iter().flat_map(|rank| {
            let peer = self.peers.get(*rank).and_then(Option::as_ref);
            let places = peer.into_iter().flat_map(|peer| &peer.places);
            places.enumerate().map(|(lane, place)| (*rank, lane, place))
        })
    }

    fn peer_mut(&mut self, rank: usize, header: &OperationHeader) -> Result<&mut Peer> {
        let peer = self.peers.get_mut(rank).and_then(Option::as_mut);
        peer.ok_or_else(|| {
            let what = format!("there is no gRPC link to rank {rank}");
            invalid(self.rank, header, what)
        })
    }

    pub(super) fn place_mut(&mut self, rank: usize, lane: usize) -> Option<&mut Place> {
        self.peers.get_mut(rank)?.as_mut()?.places.get_mut(lane)
    }

    fn place(&self, rank: usize, lane: usize) -> Option<&Place> {
        self.peers.get(rank)?.as_ref()?.places.get(lane)
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
                && let Some(place) = self.place(peer, lane)
            {
                if place.is_empty() {
                    self.want(peer);
                } else if let Some(lane) = place.lane()
                    && let Some(end) = lane.broken()
                    && !(matches!(goal, Goal::Message { .. }) && lane.may_read_more())
                {
                    return Err(self.ended(peer, &running.header, end));
                }
            }
            if !moved && !self.poll(goal) && self.block(running, goal)? {
                self.note_failure(running, goal, &mut done)?;
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
            && let Some(place) = self.place_mut(from, lane)
        {
            moved = place.drive(1) || place.may_read_more();
        }
        self.drive_once() || moved
    }

    /// What to do when a failure was noted while this rank was blocked. A rank leaves when the
    /// kernels of the others have all that it sent, so that is read first: it counts.
    fn note_failure(
        &mut self,
        running: &RunningOperation,
        goal: Goal,
        done: &mut impl FnMut(&mut Links) -> bool,
    ) -> Result<()> {
        let header = &running.header;
        loop {
            let noted = self.status.check_peer(header, goal.peer());
            if self.drive_for(goal) || done(self) {
                return Ok(());
            }
            self.check_accepted(goal.peer(), running)?;
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
        self.check_progress(header, goal)?;
        let left = running.left();
        if left == Some(Duration::ZERO) {
            return Err(self.timed_out(running, goal));
        }
        let mut fds = PollFds::new();
        fds.push(PollFd::new(&*self.wake, PollFlags::IN));
        for (from, lane, place) in self.places() {
            let wanted = goal == Goal::Message { from, lane };
            if let Some(it) = place.lane()
                && it.ended().is_none()
                && (wanted || it.has_pending_output())
            {
                let reading = wanted || it.queued_bytes() < QUEUED_BYTES;
                fds.push(it.socket.pollfd(reading));
            }
        }
        fds.extend(self.openings.values().map(|it| it.socket.pollfd(true)));
        let nap = left.map_or(stall::LOOK_INTERVAL, |left| left.min(stall::LOOK_INTERVAL));
        let waited = wait(&mut fds, Some(nap));
        let rung = fds.first().is_some_and(|fd| !fd.revents().is_empty());
        waited.map_err(|error| invalid(self.rank, header, format!("cannot wait: {error}")))?;
        Ok(rung)
    }

    /// Ends the operation when what was sent to a rank does not arrive there.
    fn check_progress(&mut self, header: &OperationHeader, goal: Goal) -> Result<()> {
        let (now, own, limit) = (Instant::now(), self.rank, self.stall_limit);
        if now < self.next_look {
            return Ok(());
        }
        self.next_look = now + stall::LOOK_INTERVAL;
        let peers = self.peers.iter_mut().enumerate();
        let lanes = peers.flat_map(|(rank, peer)| {
            let places = peer.iter_mut().flat_map(|peer| &mut peer.places);
            let lanes = places.filter_map(Place::lane_mut);
            lanes.map(move |lane| (rank, lane))
        });
        for (peer, lane) in lanes {
            // A lane that both ranks go on without ends no operation that does not need it.
            if !lane.takes_segments() && goal.peer() != Some(peer) {
                continue;
            }
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
            peer.is_some_and(Peer::has_pending_output)
        };
        let missing = match goal.peer() {
            Some(rank) => vec![rank],
            None => (0..self.peers.len()).filter(pending).collect(),
        };
        let header = &running.header;
        let unconnected = missing
            .iter()
            .find_map(|rank| self.why_unconnected(*rank, running));
        if let Some(error) = unconnected {
            return self.found(header, error);
        }
        let missing = self.status.to_blame(header, running.begin, missing);
        self.found(header, running.timed_out(missing))
    }

    /// Notes an error that this rank has found, so that all ranks hear of it.
    pub(super) fn found(
        &self,
        header: &OperationHeader,
        error: CollectiveError,
    ) -> CollectiveError {
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
            Some(Some(peer)) => peer.known.dialled(),
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

impl Drop for Links {
    fn drop(&mut self) {
        self.door.entrance.close();
    }
}

/// [`CollectiveError::InvalidArgument`] of this rank's operation.
fn invalid(rank: usize, header: &OperationHeader, what: String) -> CollectiveError {
    let op = header.kind;
    CollectiveError::InvalidArgument { rank, op, what }
}
