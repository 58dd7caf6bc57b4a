//! The full mesh: every rank dials all lower ranks and is dialled by all higher ones, at the same
//! time.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use distribute_net::tls::TlsSettings;
use rustix::event::{PollFd, PollFlags};
use tokio::runtime::Handle;
use tokio::task::JoinSet;

use crate::error::{CollectiveError, MissingRank, Result};
use crate::grpc::config::LinkConfig;
use crate::grpc::entrance::{Arrival, ConnectError, Entrance, LanePeer};
use crate::grpc::lane::Lane;
use crate::grpc::links::{Links, Peer, wait};
use crate::grpc::open::open;
use crate::grpc::socket::SocketState;
use crate::header::OperationHeader;
use crate::operation::OperationKind;

/// Who makes the connections of lanes.
#[derive(Clone)]
pub(crate) struct Doorway {
    pub(crate) entrance: Arc<Entrance>,
    /// Where lower ranks are dialled: the thread that also takes the connections of higher ones.
    pub(crate) runtime: Handle,
    pub(crate) tls: Option<TlsSettings>,
}

/// A connection that becomes a lane.
struct Opening {
    rank: usize,
    lane: usize,
    is_client: bool,
    socket: Arc<SocketState>,
    running: Pin<Box<dyn Future<Output = Result<Lane, String>> + Send>>,
}

/// The loop that connects one rank.
struct Connector<'a> {
    config: LinkConfig,
    door: &'a Doorway,
    peers: &'a [Option<LanePeer>],
    /// Ends when this is dropped.
    dials: JoinSet<()>,
    openings: Vec<Opening>,
    lanes: Vec<Vec<Option<Lane>>>,
    /// What happened last with each rank.
    reasons: Vec<String>,
    /// Whether a connection to the rank came about, by rank.
    answered: Vec<bool>,
}

impl<'a> Connector<'a> {
    fn new(config: LinkConfig, door: &'a Doorway, peers: &'a [Option<LanePeer>]) -> Self {
        let rules = &door.entrance.rules;
        let not_yet = |rank| {
            if rank > rules.rank {
                "it has not connected for data, though for control it has"
            } else {
                "its port has taken no connection for data and refused none so far"
            }
        };
        let empty = || (0..rules.lanes).map(|_| None).collect();
        let mut connector = Connector {
            config,
            door,
            peers,
            dials: JoinSet::new(),
            openings: Vec::new(),
            lanes: peers.iter().map(|_| empty()).collect(),
            reasons: (0..peers.len())
                .map(|rank| not_yet(rank).to_string())
                .collect(),
            answered: vec![false; peers.len()],
        };
        // The nearest first, so that not all ranks begin with rank 0.
        for rank in (0..rules.rank).rev() {
            for lane in 0..rules.lanes {
                connector.dial(rank, lane);
            }
        }
        connector
    }

    /// Begins to dial a lane of a lower rank.
    fn dial(&mut self, rank: usize, lane: usize) {
        if let Some(peer) = self.peers[rank].clone() {
            let (entrance, tls) = (self.door.entrance.clone(), self.door.tls.clone());
            let dialling = entrance.keep_dialling(rank, lane, peer, tls);
            self.dials.spawn_on(dialling, &self.door.runtime);
        }
    }

    /// Connects until all lanes are there.
    fn run(mut self, deadline: Option<Instant>, links: &Links) -> Result<Vec<Option<Peer>>> {
        let begin = Instant::now();
        let generation = self.door.entrance.rules.generation;
        let header = OperationHeader::new(OperationKind::Barrier, generation, 0);
        loop {
            links.hush();
            if let Err(failed) = self.config.status.check(&header) {
                // Others may have given up because of what this process could not do.
                return Err(match self.door.entrance.shortage() {
                    Some(_) => self.rendezvous_error(begin),
                    None => failed,
                });
            }
            self.take_news()?;
            self.poll_openings();
            if self.missing().next().is_none() {
                return Ok(self.into_peers());
            }
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return Err(self.rendezvous_error(begin));
            }
            self.wait(deadline, links)?;
        }
    }

    /// The ranks to which a lane is missing.
    fn missing(&self) -> impl Iterator<Item = usize> {
        let is_missing = |rank: &usize| {
            self.peers[*rank].is_some() && self.lanes[*rank].iter().any(Option::is_none)
        };
        (0..self.peers.len()).filter(is_missing)
    }

    fn address(&self, rank: usize) -> String {
        let peer = self.peers[rank].as_ref();
        peer.map_or_else(|| "no address".to_string(), |peer| peer.address.to_string())
    }

    /// What is known of a rank without a lane. Higher ranks connect: what this process lacks says
    /// more than that they have not.
    fn reason(&self, rank: usize) -> String {
        let shortage = self.door.entrance.shortage();
        let own = self.door.entrance.rules.rank;
        shortage
            .filter(|_| rank > own)
            .unwrap_or_else(|| self.reasons[rank].clone())
    }

    fn rendezvous_error(&self, begin: Instant) -> CollectiveError {
        let missing = self.missing().map(|rank| MissingRank {
            rank,
            address: self.address(rank),
            reason: self.reason(rank),
        });
        CollectiveError::Rendezvous {
            rank: self.door.entrance.rules.rank,
            missing: missing.collect(),
            elapsed: begin.elapsed(),
        }
    }

    fn into_peers(mut self) -> Vec<Option<Peer>> {
        let lanes = std::mem::take(&mut self.lanes).into_iter().enumerate();
        let peer = |(rank, lanes): (usize, Vec<Option<Lane>>)| {
            self.peers[rank].as_ref()?;
            let lanes = lanes.into_iter().collect::<Option<Vec<Lane>>>()?;
            Some(Peer::new(self.address(rank), lanes))
        };
        lanes.map(peer).collect()
    }

    /// Takes the connections that have come, and notes what has failed.
    fn take_news(&mut self) -> Result<()> {
        let news = self.door.entrance.news();
        for ((rank, lane), arrival) in news.arrivals {
            if self.peers.get(rank).is_some_and(Option::is_some) && self.has_room(rank, lane) {
                self.begin(rank, lane, arrival);
            }
        }
        for (rank, failure) in news.failures {
            self.note(rank, failure)?;
        }
        Ok(())
    }

    /// Whether a lane is missing, or has ended: then it may come again.
    fn has_room(&mut self, rank: usize, lane: usize) -> bool {
        let Some(place) = self.lanes[rank].get_mut(lane) else {
            return false;
        };
        if let Some(taken) = place {
            taken.drive(usize::MAX);
            if taken.ended().is_none() {
                return false;
            }
            *place = None;
        }
        true
    }

    fn begin(&mut self, rank: usize, lane: usize, arrival: Arrival) {
        // The other end has given up an earlier one.
        self.openings
            .retain(|it| (it.rank, it.lane) != (rank, lane));
        self.openings.push(Opening {
            rank,
            lane,
            is_client: arrival.is_client,
            socket: arrival.socket.clone(),
            running: Box::pin(open(arrival, self.config.max_message_bytes)),
        });
    }

    fn poll_openings(&mut self) {
        let mut context = Context::from_waker(Waker::noop());
        for mut opening in std::mem::take(&mut self.openings) {
            let (rank, lane) = (opening.rank, opening.lane);
            match opening.running.as_mut().poll(&mut context) {
                Poll::Pending => self.openings.push(opening),
                Poll::Ready(Ok(connected)) => self.lanes[rank][lane] = Some(connected),
                Poll::Ready(Err(reason)) => {
                    self.reasons[rank] = reason;
                    if opening.is_client {
                        self.dial(rank, lane);
                    }
                }
            }
        }
    }

    /// Notes why an attempt failed, when it makes sense to try again. That no process listens any
    /// more tells less than an earlier failure while one did.
    fn note(&mut self, rank: usize, error: ConnectError) -> Result<()> {
        match error {
            ConnectError::Unreachable(_) if self.answered[rank] => {}
            ConnectError::Unreachable(reason) => self.reasons[rank] = reason,
            ConnectError::Failed(reason) => {
                (self.reasons[rank], self.answered[rank]) = (reason, true);
            }
            ConnectError::Refused(reason) => {
                return Err(CollectiveError::Refused {
                    rank: self.door.entrance.rules.rank,
                    address: self.address(rank),
                    reason,
                    options: Vec::new(),
                });
            }
        }
        Ok(())
    }

    fn wait(&self, deadline: Option<Instant>, links: &Links) -> Result<()> {
        let mut fds = vec![PollFd::new(&links.wake, PollFlags::IN)];
        fds.extend(self.openings.iter().map(|it| it.socket.pollfd(true)));
        let limit = deadline.map(|until| until.saturating_duration_since(Instant::now()));
        wait(&mut fds, limit).map_err(|error| CollectiveError::InvalidOption {
            what: format!("cannot wait for connections: {error}"),
        })
    }
}

impl Links {
    /// Connects this rank to all ranks of `peers` that there are.
    ///
    /// # Errors
    /// [`CollectiveError::Rendezvous`] at the deadline, with the ranks that are missing;
    /// [`CollectiveError::Refused`] when a rank does not accept the proof.
    pub(crate) fn connect(
        config: LinkConfig,
        door: &Doorway,
        peers: &[Option<LanePeer>],
        deadline: Option<Instant>,
    ) -> Result<Links> {
        let mut links = Links::unconnected(&config)?;
        links.may_spin = has_core_for_each(&config, peers);
        door.entrance.ring(&links.wake);
        let connected = Connector::new(config, door, peers).run(deadline, &links);
        door.entrance.close();
        links.peers = connected?;
        Ok(links)
    }
}

/// Whether this machine has a core for this rank and each of the peers that seem to be here.
fn has_core_for_each(config: &LinkConfig, peers: &[Option<LanePeer>]) -> bool {
    let is_here = |peer: &&LanePeer| {
        let ip = peer.address.ip();
        ip.is_loopback() || ip == config.own_ip
    };
    let here = peers.iter().flatten().filter(is_here).count();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    here < cores
}
