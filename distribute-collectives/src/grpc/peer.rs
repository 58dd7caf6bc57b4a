//! One other rank: how it is reached, its lanes as far as there are some, and what waits for them.

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use distribute_net::address;

use crate::grpc::entrance::{Dial, LanePeer};
use crate::grpc::frames::Message;
use crate::grpc::lane::{End, Lane, Queues};
use crate::grpc::pool::{Pool, Segment};
use crate::grpc::socket::SocketState;

/// Another rank.
pub(super) struct Peer {
    pub(super) known: LanePeer,
    pub(super) places: Vec<Place>,
    /// Messages sent and received: of collective operations, of point-to-point calls.
    pub(super) sent: [u64; 2],
    pub(super) received: [u64; 2],
    /// Whether this rank has had to do with it since its lanes were closed.
    pub(super) is_in_use: bool,
    /// Whether it seems to be on this machine.
    pub(super) is_here: bool,
}

impl Peer {
    pub(super) fn new(known: LanePeer, lanes: usize, is_here: bool) -> Self {
        Peer {
            known,
            places: (0..lanes).map(|_| Place::default()).collect(),
            sent: [0; 2],
            received: [0; 2],
            is_in_use: false,
            is_here,
        }
    }

    /// Whether anything waits for the rank or its kernel.
    pub(super) fn has_pending_output(&self) -> bool {
        self.places.iter().any(Place::has_pending_output)
    }
}

/// Whether a rank seems to be on this machine, by its address. Names are not looked up: a
/// connection tells more.
pub(super) fn seems_here(peer: &LanePeer, own_ip: IpAddr, own_host: &str) -> bool {
    let is_own = |ip: IpAddr| ip.is_loopback() || ip == own_ip;
    if let Some(route) = peer.route {
        return is_own(route.ip());
    }
    let host = address::split(&peer.address).map_or("", |(host, _)| host);
    let by_name = host == "localhost" || (host == own_host && !host.is_empty());
    host.parse().map_or(by_name, is_own)
}

/// A connection that becomes a lane.
pub(super) struct Opening {
    pub(super) is_client: bool,
    pub(super) socket: Arc<SocketState>,
    pub(super) running: Pin<Box<dyn Future<Output = Result<Lane, String>> + Send>>,
}

/// Connections that become lanes, by rank and lane.
pub(super) type Openings = BTreeMap<(usize, usize), Opening>;

/// Where a lane is, was or will be.
#[derive(Default)]
pub(super) struct Place {
    lane: Option<Lane>,
    /// While the lane is dialled and opened, by the rank that dials.
    pub(super) dial: Option<Dial>,
    /// Segments for the next lane.
    waiting: VecDeque<Segment>,
    /// Messages of earlier lanes that were not asked for yet.
    left: Queues,
    /// Bytes of segments that no kernel has got yet.
    outstanding: Arc<AtomicUsize>,
    /// What the lane had moved when it was looked at, and since when it has moved nothing.
    seen: Option<(u64, Instant)>,
}

/// A message, and whether it came over a lane that has gone.
pub(super) struct Taken {
    pub(super) message: Message,
    is_left: bool,
}

impl Place {
    pub(super) fn lane(&self) -> Option<&Lane> {
        self.lane.as_ref()
    }

    pub(super) fn lane_mut(&mut self) -> Option<&mut Lane> {
        self.lane.as_mut()
    }

    pub(super) fn outstanding(&self) -> &Arc<AtomicUsize> {
        &self.outstanding
    }

    /// Bytes of segments that no kernel has got yet.
    pub(super) fn outstanding_bytes(&self) -> usize {
        self.outstanding.load(Ordering::Relaxed)
    }

    /// Whether a new lane is needed before anything more passes.
    pub(super) fn is_empty(&self) -> bool {
        self.lane.is_none()
    }

    /// Whether nothing is here, not even something that waits.
    pub(super) fn is_unused(&self) -> bool {
        let queues = self.left.iter().all(VecDeque::is_empty);
        self.lane.is_none() && self.dial.is_none() && self.waiting.is_empty() && queues
    }

    /// The lane, if it takes segments.
    fn open_lane(&mut self) -> Option<&mut Lane> {
        // What waits goes first.
        let lane = self.lane.as_mut().filter(|lane| lane.takes_segments());
        lane.filter(|_| self.waiting.is_empty())
    }

    /// Takes a lane that has come; what waits goes out over it.
    pub(super) fn put(&mut self, mut lane: Lane) -> Result<(), End> {
        self.dial = None;
        self.seen = None;
        let mut sent = Ok(());
        for segment in self.waiting.drain(..) {
            sent = sent.and_then(|()| lane.send(segment));
        }
        self.lane = Some(lane);
        sent
    }

    /// Sends a segment, or keeps it for the next lane.
    pub(super) fn send(&mut self, segment: Segment) -> Result<(), End> {
        match self.open_lane() {
            Some(lane) => lane.send(segment),
            None => {
                self.waiting.push_back(segment);
                Ok(())
            }
        }
    }

    /// The same for a segment that ends with bytes of the caller.
    pub(super) fn send_lent(&mut self, segment: Segment, bytes: &[u8]) -> Result<(), End> {
        match self.open_lane() {
            Some(lane) => lane.send_lent(segment, bytes),
            None => {
                self.waiting.push_back(segment.followed_by_copy(bytes));
                Ok(())
            }
        }
    }

    /// The oldest message that was not asked for yet.
    pub(super) fn next_message(&mut self, point_to_point: bool) -> Option<Taken> {
        let kind = usize::from(point_to_point);
        if let Some(message) = self.left[kind].pop_front() {
            let is_left = true;
            return Some(Taken { message, is_left });
        }
        let message = self.lane.as_mut()?.next_message(point_to_point)?;
        let is_left = false;
        Some(Taken { message, is_left })
    }

    /// Takes a message back whose payload is not needed any more.
    pub(super) fn consumed(&mut self, taken: Taken) {
        if let Some(lane) = self.lane.as_mut().filter(|_| !taken.is_left) {
            lane.consumed(taken.message);
        }
    }

    /// Moves what can be moved, with at most this many messages in; returns whether anything
    /// changed.
    pub(super) fn drive(&mut self, frames: usize) -> bool {
        let Some(lane) = self.lane.as_mut() else {
            return false;
        };
        let moved = lane.drive(frames);
        self.settle() || moved
    }

    /// The same, reading only while less than `queued` bytes were not asked for.
    pub(super) fn drive_within(&mut self, queued: usize) -> bool {
        let reads = self.lane.as_ref().map_or(0, Lane::queued_bytes) < queued;
        self.drive(usize::from(reads))
    }

    /// Whether the last drive could have read more.
    pub(super) fn may_read_more(&self) -> bool {
        self.lane.as_ref().is_some_and(Lane::may_read_more)
    }

    /// Says that nothing more will be sent, once nothing waits for a lane.
    pub(super) fn finish(&mut self, pool: &Arc<Pool>) {
        if let Some(lane) = self.open_lane()
            && !lane.is_finished()
        {
            lane.finish(pool);
            lane.drive(0);
        }
    }

    /// Lets go of a lane that is over; its messages stay. Returns whether it was.
    fn settle(&mut self) -> bool {
        let Some(lane) = self.lane.take_if(|lane| lane.is_over()) else {
            return false;
        };
        self.keep(lane);
        true
    }

    fn keep(&mut self, lane: Lane) {
        for (left, queue) in self.left.iter_mut().zip(lane.into_queues()) {
            left.extend(queue);
        }
    }

    /// Whether a connection that has come may become the lane: when none is there, both ranks have
    /// agreed to go on without the old one, or the old one has ended before it was of use.
    pub(super) fn has_room(&mut self) -> bool {
        self.drive(usize::MAX);
        let useless = |lane: &Lane| lane.ended().is_some() && !lane.is_used();
        let old = self.lane.take_if(|lane| lane.is_retired() || useless(lane));
        if let Some(old) = old {
            self.keep(old);
        }
        self.lane.is_none()
    }

    /// Whether something waits for the peer or its kernel.
    pub(super) fn has_pending_output(&self) -> bool {
        match &self.lane {
            Some(lane) => lane.has_pending_output(),
            None => !self.waiting.is_empty(),
        }
    }

    /// Whether the peer's kernel has all that was sent.
    pub(super) fn is_delivered(&self) -> bool {
        match &self.lane {
            Some(lane) => lane.is_delivered(),
            None => self.waiting.is_empty(),
        }
    }

    /// Closes the lane when it was not used for `limit`, or goes on with closing it. Reads only
    /// while less than `queued` bytes were not asked for. Blocks on nothing.
    pub(super) fn tend(&mut self, now: Instant, limit: Duration, queued: usize) {
        let Some(lane) = self.lane.as_mut() else {
            return;
        };
        let moved = lane.socket.moved();
        let (seen, since) = *self.seen.get_or_insert((moved, now));
        if seen != moved {
            self.seen = Some((moved, now));
            return;
        }
        // The other end may have asked for the same, or have answered.
        self.drive_within(queued);
        let has_left = self.left.iter().any(|queue| !queue.is_empty());
        let is_idle = now.saturating_duration_since(since) >= limit;
        if let Some(lane) = self.lane.as_mut()
            && is_idle
            && !has_left
            && self.waiting.is_empty()
            && lane.socket.moved() == moved
            && lane.may_retire()
        {
            lane.retire();
        }
    }
}
