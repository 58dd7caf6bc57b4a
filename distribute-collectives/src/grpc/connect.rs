//! Lanes come about when an operation first needs them: the higher rank of a pair dials, the lower
//! one waits for it. Until a lane is there segments wait for it, as many as a send leaves behind.
//!
//! All ranks dial at the same time, also where each sends before it receives: a send waits for no
//! lane. Nothing waits for a rank whose lane is not needed.

use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use crate::bookkeeping::RunningOperation;
use crate::error::{CollectiveError, Result};
use crate::grpc::config::LinkConfig;
use crate::grpc::entrance::{Arrival, ConnectError, Doorway, LanePeer};
use crate::grpc::lane::Lane;
use crate::grpc::links::{Links, QUEUED_BYTES};
use crate::grpc::open::open;
use crate::grpc::peer::{Opening, Peer, Place, seems_here};

/// What is said of a rank when nothing is known: higher ranks connect.
fn not_yet(own: usize, rank: usize) -> &'static str {
    if rank > own {
        "it has not connected for data, though for control it has"
    } else {
        "its port has taken no connection for data and refused none so far"
    }
}

impl Links {
    /// Links to the ranks of `peers` that there are. None of them is connected before it is needed.
    ///
    /// # Errors
    /// [`CollectiveError::InvalidOption`] when this process cannot wait for its links.
    pub(crate) fn new(
        config: LinkConfig,
        door: Doorway,
        peers: Vec<Option<LanePeer>>,
    ) -> Result<Links> {
        let mut links = Links::unpeered(&config, door)?;
        let lanes = links.door.entrance.rules.lanes;
        let peer = |known: Option<LanePeer>| {
            let known = known?;
            let is_here = seems_here(&known, config.own_ip, &config.own_host);
            Some(Peer::new(known, lanes, is_here))
        };
        links.peers = peers.into_iter().map(peer).collect();
        links.may_spin = links.has_core_for_each();
        links.door.entrance.ring(&links.wake);
        Ok(links)
    }

    /// Whether this machine has a core for this rank and each of the peers that seem to be here.
    fn has_core_for_each(&self) -> bool {
        let here = self.peers.iter().flatten().filter(|peer| peer.is_here);
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        here.count() < cores
    }

    /// Makes sure that lanes to a rank come about that are not there.
    pub(super) fn want(&mut self, rank: usize) {
        let dials = rank < self.rank;
        let Some(Some(peer)) = self.peers.get_mut(rank) else {
            return;
        };
        if !peer.is_in_use {
            peer.is_in_use = true;
            self.in_use.push(rank);
        }
        for (lane, place) in peer.places.iter_mut().enumerate() {
            if dials && place.is_empty() && place.dial.is_none() {
                place.dial = Some(self.door.dial(rank, lane, &peer.known));
            }
        }
    }

    /// Takes the connections that have come, and moves them on until they are lanes. Returns
    /// whether anything changed.
    pub(super) fn take_arrivals(&mut self) -> bool {
        if !self.door.entrance.has_news() && self.openings.is_empty() {
            return false;
        }
        let mut changed = false;
        for ((rank, lane), arrival) in self.door.entrance.arrivals() {
            changed = true;
            if self.place_mut(rank, lane).is_some_and(Place::has_room) {
                self.begin(rank, lane, arrival);
            }
        }
        self.poll_openings() || changed
    }

    fn begin(&mut self, rank: usize, lane: usize, arrival: Arrival) {
        let Some(place) = self.place_mut(rank, lane) else {
            return;
        };
        let outstanding = place.outstanding().clone();
        let opening = Opening {
            is_client: arrival.is_client,
            socket: arrival.socket.clone(),
            running: Box::pin(open(arrival, self.max_message_bytes, outstanding)),
        };
        // The other end has given up an earlier one.
        self.openings.insert((rank, lane), opening);
    }

    fn poll_openings(&mut self) -> bool {
        let mut context = Context::from_waker(Waker::noop());
        let mut changed = false;
        for ((rank, lane), mut opening) in std::mem::take(&mut self.openings) {
            let before = opening.socket.moved();
            match opening.running.as_mut().poll(&mut context) {
                Poll::Pending => {
                    changed |= opening.socket.moved() != before;
                    self.openings.insert((rank, lane), opening);
                }
                Poll::Ready(Ok(connected)) => {
                    changed = true;
                    self.put(rank, lane, connected);
                }
                Poll::Ready(Err(reason)) => {
                    changed = true;
                    self.door.entrance.note(rank, ConnectError::Failed(reason));
                    self.dial_again(rank, lane, opening.is_client);
                }
            }
        }
        changed
    }

    fn dial_again(&mut self, rank: usize, lane: usize, is_client: bool) {
        if let Some(Some(peer)) = self.peers.get_mut(rank)
            && is_client
        {
            peer.places[lane].dial = Some(self.door.dial(rank, lane, &peer.known));
        }
    }

    fn put(&mut self, rank: usize, lane: usize, connected: Lane) {
        let ends = connected.socket.ends();
        let Some(Some(peer)) = self.peers.get_mut(rank) else {
            return;
        };
        if let Some([own, other]) = ends {
            peer.is_here = other.ip().is_loopback() || other.ip() == own.ip();
        }
        // A lane that breaks at once tells it when it is used.
        let _ = peer.places[lane].put(connected);
        self.may_spin = self.has_core_for_each();
        self.want(rank);
    }

    /// Ends the wait for a rank that will never accept this one; `peer` if it is for one only.
    pub(super) fn check_accepted(
        &self,
        peer: Option<usize>,
        running: &RunningOperation,
    ) -> Result<()> {
        let ranks = peer.as_ref().map_or(&self.in_use[..], std::slice::from_ref);
        let is_dialled = |rank: &&usize| {
            let peer = self.peers.get(**rank).and_then(Option::as_ref);
            let mut places = peer.iter().flat_map(|peer| &peer.places);
            places.any(|place| place.dial.is_some())
        };
        for rank in ranks.iter().filter(is_dialled) {
            if let Some(ConnectError::Refused(reason)) = self.door.entrance.failure(*rank) {
                let error = self.unconnected(*rank, running, &reason);
                return Err(self.found(&running.header, error));
            }
        }
        Ok(())
    }

    /// The error of an operation that waits for a rank without a lane, if more is known of that
    /// than that the rank does not take part.
    pub(super) fn why_unconnected(
        &self,
        rank: usize,
        running: &RunningOperation,
    ) -> Option<CollectiveError> {
        let peer = self.peers.get(rank)?.as_ref()?;
        let is_missing = |(lane, place): (usize, &Place)| {
            place.is_empty() && !self.openings.contains_key(&(rank, lane))
        };
        if !peer.places.iter().enumerate().any(is_missing) {
            return None;
        }
        let entrance = &self.door.entrance;
        let failure = entrance.failure(rank).map(ConnectError::into_reason);
        let reason = if rank > self.rank {
            // What this process lacks says more than what has come to nothing.
            entrance.shortage().or(failure)?
        } else {
            failure.unwrap_or_else(|| not_yet(self.rank, rank).to_string())
        };
        Some(self.unconnected(rank, running, &reason))
    }

    fn unconnected(
        &self,
        rank: usize,
        running: &RunningOperation,
        reason: &str,
    ) -> CollectiveError {
        let peer = self.peers.get(rank).and_then(Option::as_ref);
        let address = peer.map_or_else(String::new, |peer| peer.known.dialled());
        let elapsed = running.begin.elapsed();
        CollectiveError::LinkStalled {
            rank: self.rank,
            peer: rank,
            connection: format!("-> {address}"),
            what: format!("it could not be made in {elapsed:.1?}: {reason}"),
        }
    }

    /// Closes lanes that were not used for long; asks at most a few times per limit. Blocks on
    /// nothing.
    pub(super) fn tend(&mut self, now: Instant) {
        if now < self.next_tending {
            return;
        }
        self.next_tending = now + self.idle_limit / TENDINGS;
        self.take_arrivals();
        let (peers, openings, limit) = (&mut self.peers, &self.openings, self.idle_limit);
        self.in_use.retain(|rank| {
            let Some(Some(peer)) = peers.get_mut(*rank) else {
                return false;
            };
            for place in &mut peer.places {
                place.tend(now, limit, QUEUED_BYTES);
            }
            let is_opening = |lane| openings.contains_key(&(*rank, lane));
            let mut places = peer.places.iter().enumerate();
            peer.is_in_use = places.any(|(lane, it)| !it.is_unused() || is_opening(lane));
            peer.is_in_use
        });
    }
}

/// How often lanes are looked at within the time after which they are closed.
const TENDINGS: u32 = 4;

/// After this time without a message a lane is closed.
pub(crate) const IDLE_LIMIT: Duration = Duration::from_secs(300);
