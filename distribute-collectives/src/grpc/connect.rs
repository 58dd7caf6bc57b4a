//! The full mesh: every rank dials all lower ranks and accepts all higher ones, at the same time.

use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use distribute_net::address::why_unreachable;
use distribute_net::pending::{Pending, Progress, one_to_end, pending_connections_max};
use distribute_net::shortage::shortage;
use rustix::event::{PollFd, PollFlags};

use crate::error::{CollectiveError, MissingRank, Result};
use crate::grpc::config::LinkConfig;
use crate::grpc::handshake::{ConnectError, IncomingClient, accept_handshake, dial};
use crate::grpc::hello::{FAILED_PRECONDITION, Refusal, UNAUTHENTICATED};
use crate::grpc::lane::Lane;
use crate::grpc::links::{Links, Peer, wait};
use crate::grpc::socket::{SocketState, stop_pacing};
use crate::header::OperationHeader;
use crate::operation::OperationKind;

/// How long one attempt to connect, or one incoming connection, may take.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(5);

/// How long to wait after a failed attempt.
const RETRY_PAUSE: Duration = Duration::from_millis(50);

/// The pause after a connection could not be accepted although no unauthenticated peer has one: the
/// process itself has all descriptors, and nothing says when one is free.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Where the higher ranks connect to.
#[derive(Debug)]
pub(crate) struct DataListener(TcpListener);

impl DataListener {
    /// Rank `rank` listens on this port, a free one for 0.
    pub(crate) fn bind(rank: usize, ip: IpAddr, port: u16) -> Result<DataListener> {
        let at = SocketAddr::new(ip, port);
        let refuse = |error: io::Error| CollectiveError::Address {
            rank,
            address: at.to_string(),
            reason: match error.kind() {
                io::ErrorKind::AddrInUse => format!(
                    "cannot listen for data there: {error}; give each rank of a host a data port \
                     of its own"
                ),
                _ => format!("cannot listen for data there: {error}; give an address of this host"),
            },
        };
        let listener = TcpListener::bind(at).map_err(refuse)?;
        listener.set_nonblocking(true).map_err(refuse)?;
        // Accepted connections have the listener's setting.
        stop_pacing(&listener, ip);
        Ok(DataListener(listener))
    }

    /// The address to tell to the other ranks.
    pub(crate) fn local_addr(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }
}

type PendingFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// An attempt to connect, and its socket.
type DialAttempt = (Arc<SocketState>, PendingFuture<Result<Lane, ConnectError>>);

/// One lane to a lower rank.
struct Dial {
    rank: usize,
    lane: usize,
    attempt: Option<DialAttempt>,
    /// When the attempt has to be over, or the next one may begin.
    at: Instant,
}

/// The handshake of an incoming connection, which may give a client, or its refusal, which gives
/// none.
type IncomingFuture = PendingFuture<Option<IncomingClient>>;

/// One connection to the listener that is not a lane.
struct IncomingConnection {
    source: IpAddr,
    socket: Arc<SocketState>,
    running: IncomingFuture,
    until: Instant,
}

/// The loop that connects one rank.
struct Connector<'a> {
    config: Arc<LinkConfig>,
    addresses: &'a [Option<SocketAddr>],
    listener: DataListener,
    dials: Vec<Dial>,
    incoming: Vec<IncomingConnection>,
    /// How many incoming connections are kept at the same time.
    incoming_max: usize,
    /// Until when no connection is accepted.
    pause: Option<Instant>,
    /// That this process had no descriptor for a connection, in the words of the system.
    exhausted: Option<String>,
    /// It still is, as far as is known.
    is_exhausted: bool,
    lanes: Vec<Vec<Option<Lane>>>,
    /// What happened last with each rank.
    reasons: Vec<String>,
    /// Whether a connection to the rank came about, by rank.
    answered: Vec<bool>,
}

/// What to do where a firewall passes certain ports only.
const CHOOSE_PORT: &str = "(the option `data_port`, --data-port, chooses it)";

/// What there is to say of each rank before anything has happened. Higher ranks connect.
fn not_yet(config: &LinkConfig, listener: &DataListener) -> Vec<String> {
    let port = listener.local_addr().map_or(0, |address| address.port());
    let reason = |rank| {
        if rank > config.rank {
            format!(
                "it has not connected to the data port of this rank: a firewall? Let connections \
             from its host to TCP port {port} of this host pass {CHOOSE_PORT}"
            )
        } else {
            "its data port has taken no connection and refused none so far".to_string()
        }
    };
    (0..config.world_size).map(reason).collect()
}

impl<'a> Connector<'a> {
    fn new(
        config: Arc<LinkConfig>,
        listener: DataListener,
        addresses: &'a [Option<SocketAddr>],
    ) -> Self {
        let now = Instant::now();
        let dial = |rank, lane| Dial {
            rank,
            lane,
            attempt: None,
            at: now,
        };
        let lower = (0..config.rank).filter(|&rank| addresses[rank].is_some());
        let empty = || (0..config.lanes).map(|_| None).collect();
        Connector {
            addresses,
            reasons: not_yet(&config, &listener),
            listener,
            dials: lower
                .flat_map(|rank| (0..config.lanes).map(move |lane| dial(rank, lane)))
                .collect(),
            incoming: Vec::new(),
            incoming_max: pending_connections_max(),
            pause: None,
            exhausted: None,
            is_exhausted: false,
            lanes: addresses.iter().map(|_| empty()).collect(),
            answered: vec![false; config.world_size],
            config,
        }
    }

    /// Connects until all lanes are there.
    fn run(mut self, deadline: Option<Instant>, wake: &OwnedFd) -> Result<Vec<Option<Peer>>> {
        let begin = Instant::now();
        let generation = self.config.generation;
        let header = OperationHeader::new(OperationKind::Barrier, generation, 0);
        loop {
            if let Err(failed) = self.config.status.check(&header) {
                // Others may have given up because of what this process could not do.
                return Err(if self.is_exhausted {
                    self.rendezvous_error(begin)
                } else {
                    failed
                });
            }
            let mut changed = self.accept();
            changed |= self.poll_dials()?;
            changed |= self.poll_incoming();
            if self.missing().next().is_none() {
                return Ok(self.into_peers());
            }
            let now = Instant::now();
            if deadline.is_some_and(|deadline| now >= deadline) {
                return Err(self.rendezvous_error(begin));
            }
            if !changed {
                self.wait(deadline, now, wake)?;
            }
        }
    }

    fn is_linked(&self, rank: usize) -> bool {
        rank != self.config.rank && self.addresses[rank].is_some()
    }

    /// The ranks to which a lane is missing.
    fn missing(&self) -> impl Iterator<Item = usize> {
        (0..self.config.world_size)
            .filter(|&rank| self.is_linked(rank) && self.lanes[rank].iter().any(Option::is_none))
    }

    fn address(&self, rank: usize) -> String {
        self.addresses[rank].map_or_else(|| "no address".to_string(), |a| a.to_string())
    }

    /// Notes that the process has no descriptors left. Connections that it gives up then, or cannot
    /// take, say nothing about the other ranks.
    fn note_exhausted(&mut self, error: &io::Error) {
        if let Some(shortage) = shortage(error) {
            let rank = self.config.rank;
            if self.exhausted.is_none() {
                tracing::warn!(rank, shortage, "cannot connect to other ranks");
            }
            self.exhausted = Some(shortage);
            self.is_exhausted = true;
        }
    }

    /// What is known of a rank without a lane.
    fn reason(&self, rank: usize) -> String {
        let reason = &self.reasons[rank];
        match &self.exhausted {
            Some(shortage) if self.is_exhausted => shortage.clone(),
            Some(shortage) => format!("{reason}; before that, {shortage}"),
            None => reason.clone(),
        }
    }

    fn rendezvous_error(&self, begin: Instant) -> CollectiveError {
        let missing = self.missing().map(|rank| MissingRank {
            rank,
            address: self.address(rank),
            reason: self.reason(rank),
        });
        CollectiveError::Rendezvous {
            rank: self.config.rank,
            missing: missing.collect(),
            elapsed: begin.elapsed(),
        }
    }

    fn into_peers(mut self) -> Vec<Option<Peer>> {
        let lanes = std::mem::take(&mut self.lanes).into_iter().enumerate();
        let peer = |(rank, lanes): (usize, Vec<Option<Lane>>)| {
            let lanes = lanes.into_iter().collect::<Option<Vec<Lane>>>()?;
            Some(Peer::new(self.address(rank), lanes))
        };
        lanes.map(peer).collect()
    }

    /// Takes new connections; returns whether there were any. Only as many as there is room for, or
    /// one: it is heard before the next one, so that no rank is taken for one that says nothing.
    fn accept(&mut self) -> bool {
        let mut any = false;
        if self.pause.is_some_and(|until| Instant::now() < until) {
            return false;
        }
        self.pause = None;
        let room = self.incoming_max.saturating_sub(self.incoming.len());
        for _ in 0..room.max(1) {
            let (stream, remote) = match self.listener.0.accept() {
                Ok(accepted) => accepted,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => {
                    self.note_exhausted(&error);
                    // Perhaps there are no descriptors left: an unauthenticated peer's is the first
                    // to go.
                    if self.end_one_incoming() {
                        continue;
                    }
                    self.pause = Some(Instant::now() + ACCEPT_PAUSE);
                    break;
                }
            };
            any = true;
            // There are descriptors again.
            self.is_exhausted = false;
            let Ok(socket) = SocketState::new(stream) else {
                continue;
            };
            if self.incoming.len() >= self.incoming_max {
                self.end_one_incoming();
            }
            let handshake = accept_handshake(socket.clone(), self.config.clone());
            self.incoming.push(IncomingConnection {
                source: remote.ip(),
                running: Box::pin(handshake),
                socket,
                until: Instant::now() + ATTEMPT_TIMEOUT,
            });
        }
        any
    }

    /// Ends the connection that is the least likely to become a lane; whether there was one.
    fn end_one_incoming(&mut self) -> bool {
        let seen = |connection: &IncomingConnection| Pending {
            source: connection.source,
            progress: connection.socket.progress(),
        };
        let pending: Vec<Pending> = self.incoming.iter().map(seen).collect();
        let ended = one_to_end(&pending).map(|index| self.incoming.remove(index));
        ended.is_some()
    }

    /// Begins and continues attempts; returns whether one ended.
    fn poll_dials(&mut self) -> Result<bool> {
        let mut changed = false;
        for mut dial in std::mem::take(&mut self.dials) {
            let now = Instant::now();
            match self.poll_dial(&mut dial, now) {
                Poll::Pending => {}
                Poll::Ready(Ok(connected)) => {
                    changed = true;
                    self.lanes[dial.rank][dial.lane] = Some(connected);
                    continue;
                }
                Poll::Ready(Err(error)) => {
                    changed = true;
                    self.note(dial.rank, error)?;
                    dial.attempt = None;
                    dial.at = now + RETRY_PAUSE;
                }
            }
            self.dials.push(dial);
        }
        Ok(changed)
    }

    fn poll_dial(&self, dial: &mut Dial, now: Instant) -> Poll<Result<Lane, ConnectError>> {
        let (socket, running) = match &mut dial.attempt {
            Some(attempt) => attempt,
            None if now < dial.at => return Poll::Pending,
            none => {
                dial.at = now + ATTEMPT_TIMEOUT;
                let begun = self.begin_dial(dial.rank, dial.lane);
                none.insert(begun.map_err(|error| {
                    let why = shortage(&error).unwrap_or_else(|| error.to_string());
                    ConnectError::Unreachable(why)
                })?)
            }
        };
        let mut context = Context::from_waker(Waker::noop());
        let polled = running.as_mut().poll(&mut context);
        if polled.is_ready() || now < dial.at {
            return polled;
        }
        // A rank that has said who it is has the proof, or will have it soon: for that rank the
        // lane is there, and nothing takes it back but the end of the connection.
        if socket.progress() == Progress::SentHello {
            dial.at = now + ATTEMPT_TIMEOUT;
            return Poll::Pending;
        }
        Poll::Ready(Err(self.no_answer(dial.rank, socket)))
    }

    /// Why nothing came of an attempt in its time. The control ports of both ranks have answered.
    fn no_answer(&self, rank: usize, socket: &SocketState) -> ConnectError {
        match (socket.poll_connected(), self.addresses[rank]) {
            (Poll::Pending, Some(address)) => {
                let why = why_unreachable(address, &io::ErrorKind::TimedOut.into());
                ConnectError::Unreachable(format!(
                    "its data port, though its control port does: {why} {CHOOSE_PORT}"
                ))
            }
            _ => ConnectError::Failed(
                "its data port answers, but not to what was sent: it is busy, or the path loses \
                 large packets (compare the MTU of all its parts)"
                    .to_string(),
            ),
        }
    }

    fn begin_dial(&self, rank: usize, lane: usize) -> io::Result<DialAttempt> {
        let address = self.addresses[rank].ok_or(io::ErrorKind::AddrNotAvailable)?;
        let socket = SocketState::connect(address)?;
        let config = self.config.clone();
        let running = dial(socket.clone(), config, rank, lane, address.to_string());
        Ok((socket, Box::pin(running)))
    }

    /// Notes why an attempt failed, when it makes sense to try again. That no process listens any
    /// more tells less than an earlier failure while one did.
    fn note(&mut self, rank: usize, error: ConnectError) -> Result<()> {
        let (reason, answered) = match error {
            ConnectError::Unreachable(_) if self.answered[rank] => return Ok(()),
            ConnectError::Unreachable(reason) => (reason, false),
            ConnectError::Failed(reason) => (reason, true),
            ConnectError::Refused(refusal) if refusal.status != UNAUTHENTICATED => {
                (refusal.message, true)
            }
            ConnectError::Refused(refusal) => {
                return Err(CollectiveError::Refused {
                    rank: self.config.rank,
                    address: self.address(rank),
                    reason: refusal.message,
                    options: Vec::new(),
                });
            }
        };
        (self.reasons[rank], self.answered[rank]) = (reason, answered);
        Ok(())
    }

    /// Continues with the incoming connections; returns whether one became something else.
    fn poll_incoming(&mut self) -> bool {
        let mut context = Context::from_waker(Waker::noop());
        let now = Instant::now();
        let mut changed = false;
        for mut connection in std::mem::take(&mut self.incoming) {
            if now >= connection.until {
                changed = true;
                continue;
            }
            if let Poll::Ready(client) = connection.running.as_mut().poll(&mut context) {
                changed = true;
                // An unauthenticated peer that does not speak HTTP/2 is not worth an answer.
                match client.and_then(|client| self.admit(client)) {
                    Some(refusing) => connection.running = refusing,
                    None => continue,
                }
            }
            self.incoming.push(connection);
        }
        changed
    }

    /// Makes a client a lane, or says how it is being refused.
    fn admit(&mut self, client: IncomingClient) -> Option<IncomingFuture> {
        let (claimed, refusal) = match client.claim.clone() {
            Ok((rank, lane)) => match self.check_place(rank, lane) {
                Ok(()) => {
                    if let Ok(connected) = client.accept(self.config.max_message_bytes) {
                        self.lanes[rank][lane] = Some(connected);
                    }
                    return None;
                }
                Err(refusal) => (Some(rank), refusal),
            },
            Err(refused) => refused,
        };
        if let Some(rank) = claimed
            && let Some(reason) = self.reasons.get_mut(rank)
        {
            *reason = format!("a connection in its name was refused: {}", refusal.message);
            self.answered[rank] = true;
        }
        Some(Box::pin(async move {
            client.refuse(refusal).await;
            None
        }))
    }

    /// Whether there is room for a lane of a rank that has proven itself.
    fn check_place(&mut self, rank: usize, lane: usize) -> Result<(), Refusal> {
        if !self.is_linked(rank) {
            return Err(self.config.unexpected(rank, lane));
        }
        let place = &mut self.lanes[rank][lane];
        if let Some(taken) = place {
            taken.drive(usize::MAX);
            if taken.ended().is_none() {
                let what = format!("lane {lane} of rank {rank} is connected already");
                return Err(Refusal::new(FAILED_PRECONDITION, what));
            }
            *place = None;
        }
        Ok(())
    }

    fn wait(&self, deadline: Option<Instant>, now: Instant, wake: &OwnedFd) -> Result<()> {
        let mut fds = vec![PollFd::new(wake, PollFlags::IN)];
        let mut until = deadline;
        let mut earlier = |at: Instant| until = Some(until.map_or(at, |until| until.min(at)));
        match self.pause {
            Some(pause) => earlier(pause),
            None => fds.push(PollFd::new(&self.listener.0, PollFlags::IN)),
        }
        for dial in &self.dials {
            earlier(dial.at);
            if let Some((socket, _)) = &dial.attempt {
                fds.push(socket.pollfd(true));
            }
        }
        for connection in &self.incoming {
            earlier(connection.until);
            fds.push(connection.socket.pollfd(true));
        }
        let limit = until.map(|until| until.saturating_duration_since(now));
        wait(&mut fds, limit).map_err(|error| CollectiveError::InvalidOption {
            what: format!("cannot wait for connections: {error}"),
        })
    }
}

impl Links {
    /// Connects this rank to all ranks that have an address.
    ///
    /// # Errors
    /// [`CollectiveError::Rendezvous`] at the deadline, with the ranks that are missing;
    /// [`CollectiveError::Refused`] when a rank does not accept the proof.
    pub(crate) fn connect(
        config: LinkConfig,
        listener: DataListener,
        peers: &[Option<SocketAddr>],
        deadline: Option<Instant>,
    ) -> Result<Links> {
        let mut links = Links::unconnected(&config)?;
        links.may_spin = has_core_for_each(&listener, peers);
        let connect = Connector::new(Arc::new(config), listener, peers);
        links.peers = connect.run(deadline, &links.wake)?;
        Ok(links)
    }
}

/// Whether this machine has a core for this rank and each of the peers that seem to be here.
fn has_core_for_each(listener: &DataListener, peers: &[Option<SocketAddr>]) -> bool {
    let own = listener.local_addr().map(|address| address.ip());
    let is_here =
        |peer: &&SocketAddr| peer.ip().is_loopback() || own.as_ref().ok() == Some(&peer.ip());
    let here = peers.iter().flatten().filter(is_here).count();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    here < cores
}
