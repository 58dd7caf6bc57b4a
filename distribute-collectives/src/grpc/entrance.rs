//! Where lanes come from: the control thread makes their connections, in both directions, and both
//! ends prove there which ranks they are. The thread that calls operations takes them from here,
//! for as long as the group lives.
//!
//! They come over the port of the control plane; the purpose in a Hello tells them apart. Behind
//! the handshake the listening side says in one text why it takes no such lane, or nothing, and
//! HTTP/2 begins.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use distribute_net::address;
use distribute_net::exchange::{self, ExchangeError, receive_text, send_text};
use distribute_net::handshake::{HandshakeError, Hello, Listener, Secret};
use distribute_net::peers::Connection;
use distribute_net::tls::TlsSettings;
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::task::AbortHandle;

use crate::grpc::rules::LaneRules;
use crate::grpc::socket::{Socket, SocketState};
use crate::grpc::stream::Stream;
use crate::sync::unpoisoned;

/// How long one attempt to connect, and the handshake after it, may take.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(5);

/// How long to wait after a failed attempt.
const RETRY_PAUSE: Duration = Duration::from_millis(50);

/// How many lanes are dialled at the same time, so that the ranks of a big group on few processors
/// do not all begin with all.
const DIALLING_MAX: usize = 16;

/// The longest text with which a lane is refused.
const REFUSAL_BYTES_MAX: usize = 4 << 10;

/// Why a lane did not come about.
#[derive(Debug, Clone)]
pub(super) enum ConnectError {
    /// No process listens there, or the connection is broken.
    Unreachable(String),
    /// What answers there is no rank, or does not want this one now; try again.
    Failed(String),
    /// It does not know what only ranks of the group know.
    Refused(String),
}

impl ConnectError {
    pub(super) fn into_reason(self) -> String {
        match self {
            ConnectError::Unreachable(reason)
            | ConnectError::Failed(reason)
            | ConnectError::Refused(reason) => reason,
        }
    }
}

/// How another rank is reached.
#[derive(Debug, Clone)]
pub(crate) struct LanePeer {
    /// `host:port`; the host is also the name in its certificate. Looked up whenever it is dialled.
    pub(crate) address: String,
    /// Where it is dialled in place of its address.
    pub(crate) route: Option<SocketAddr>,
    /// What only ranks of the group know.
    pub(crate) secret: Secret,
}

impl LanePeer {
    /// Where it is dialled, in words.
    pub(super) fn dialled(&self) -> String {
        let route = self.route.map(|route| route.to_string());
        route.unwrap_or_else(|| self.address.clone())
    }

    async fn open(&self, tls: Option<&TlsSettings>) -> Result<Connection, (String, bool)> {
        let Some(route) = self.route else {
            return Connection::open(&self.address, tls).await;
        };
        let host = address::split(&self.address).map_or("", |(host, _)| host);
        Connection::open_at(route, host, tls).await
    }
}

/// Who makes the connections of lanes.
#[derive(Clone)]
pub(crate) struct Doorway {
    pub(crate) entrance: Arc<Entrance>,
    /// Where lower ranks are dialled: the thread that also takes the connections of higher ones.
    pub(crate) runtime: Handle,
    pub(crate) tls: Option<TlsSettings>,
}

impl Doorway {
    /// Begins to dial a lane of a lower rank.
    pub(super) fn dial(&self, rank: usize, lane: usize, peer: &LanePeer) -> Dial {
        let (entrance, tls) = (self.entrance.clone(), self.tls.clone());
        let dialling = entrance.keep_dialling(rank, lane, peer.clone(), tls);
        Dial(self.runtime.spawn(dialling).abort_handle())
    }
}

/// A lane is being dialled, until this is dropped.
#[derive(Debug)]
pub(super) struct Dial(AbortHandle);

impl Drop for Dial {
    fn drop(&mut self) {
        // Does nothing when it has come about.
        self.0.abort();
    }
}

/// A connection whose two ends have proven who they are.
pub(super) struct Arrival {
    pub(super) socket: Arc<SocketState>,
    pub(super) stream: Stream,
    /// This end has dialled.
    pub(super) is_client: bool,
}

#[derive(Default)]
struct State {
    /// The newest connection of each lane that was not taken yet.
    arrivals: BTreeMap<(usize, usize), Arrival>,
    /// What happened last with a rank.
    failures: BTreeMap<usize, ConnectError>,
    /// What this process lacked for a connection.
    shortage: Option<String>,
    /// Rung when a lane has come, or never will.
    bell: Option<Arc<OwnedFd>>,
    /// This rank leaves the group: no lane comes later.
    is_closed: bool,
}

impl State {
    /// Notes why an attempt failed. That no process listens any more tells less than an earlier
    /// failure while one did.
    fn note(&mut self, rank: usize, failure: ConnectError) {
        let tells_less = matches!(failure, ConnectError::Unreachable(_))
            && matches!(self.failures.get(&rank), Some(ConnectError::Failed(_)));
        if !tells_less {
            self.failures.insert(rank, failure);
        }
    }
}

/// What the control thread and the thread that calls operations share.
pub(crate) struct Entrance {
    pub(super) rules: LaneRules,
    state: Mutex<State>,
    /// Whether a lane has come that was not taken, or will never come.
    has_news: AtomicBool,
    dialling: Semaphore,
}

impl Entrance {
    pub(crate) fn new(rules: LaneRules) -> Arc<Entrance> {
        Arc::new(Entrance {
            rules,
            state: Mutex::default(),
            has_news: AtomicBool::new(false),
            dialling: Semaphore::new(DIALLING_MAX),
        })
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        let mut state = unpoisoned(self.state.lock());
        change(&mut state);
    }

    /// A change that the thread that waits for a lane must hear of.
    fn announce(&self, change: impl FnOnce(&mut State)) {
        let mut state = unpoisoned(self.state.lock());
        change(&mut state);
        self.has_news.store(true, Ordering::Release);
        if let Some(bell) = &state.bell {
            // Fails only when it is ringing already.
            let _ = rustix::io::write(bell, &1_u64.to_ne_bytes());
        }
    }

    /// From now on rings this when there are news.
    pub(super) fn ring(&self, bell: &Arc<OwnedFd>) {
        self.change(|state| state.bell = Some(bell.clone()));
    }

    /// Whether [`arrivals`](Self::arrivals) has to be asked.
    pub(super) fn has_news(&self) -> bool {
        self.has_news.load(Ordering::Acquire)
    }

    /// The connections that have come since the last call.
    pub(super) fn arrivals(&self) -> BTreeMap<(usize, usize), Arrival> {
        let mut state = unpoisoned(self.state.lock());
        self.has_news.store(false, Ordering::Release);
        std::mem::take(&mut state.arrivals)
    }

    /// Why no connection to the rank has come about so far, if that is known.
    pub(super) fn failure(&self, rank: usize) -> Option<ConnectError> {
        unpoisoned(self.state.lock()).failures.get(&rank).cloned()
    }

    /// What this process lacked for a connection.
    pub(super) fn shortage(&self) -> Option<String> {
        unpoisoned(self.state.lock()).shortage.clone()
    }

    /// No more lanes are taken.
    pub(super) fn close(&self) {
        let mut state = unpoisoned(self.state.lock());
        state.is_closed = true;
        (state.arrivals, state.bell) = (BTreeMap::new(), None);
    }

    /// Notes that this process could not take a connection.
    pub(crate) fn note_shortage(&self, why: String) {
        self.change(|state| state.shortage = Some(why));
    }

    /// Notes why there is no lane to a rank.
    pub(super) fn note(&self, rank: usize, failure: ConnectError) {
        self.change(|state| state.note(rank, failure));
    }

    /// Hands a connection over to the thread that calls operations.
    fn arrive(&self, rank: usize, lane: usize, connection: Connection, is_client: bool) {
        let mut socket = None;
        let detached = connection.detach(|tcp| {
            let state = SocketState::new(tcp)?;
            socket = Some(state.clone());
            Ok(Socket(state))
        });
        let (Ok(inner), Some(socket)) = (detached, socket) else {
            return;
        };
        let stream = Stream::new(inner, socket.clone());
        let arrival = Arrival {
            socket,
            stream,
            is_client,
        };
        self.announce(|state| {
            if !state.is_closed {
                state.shortage = None;
                state.failures.remove(&rank);
                // One that was not taken yet is one that the other end has given up.
                state.arrivals.insert((rank, lane), arrival);
            }
        });
    }

    /// The rest of a connection whose peer has said that it wants a lane; `secret` is what its rank
    /// and this one know, `check` what else it must fulfil.
    ///
    /// # Errors
    /// Why it was turned away.
    pub(crate) async fn take(
        &self,
        mut connection: Connection,
        listener: Listener,
        secret: &Secret,
        check: impl FnOnce(&Hello) -> Result<(), String>,
    ) -> Result<(), String> {
        let claimed = listener.peer().identity.task as usize;
        let taken = self.agree(&mut connection, listener, secret, check).await;
        match taken {
            Ok((rank, lane)) => {
                self.arrive(rank, lane, connection, false);
                Ok(())
            }
            Err(reason) => {
                if claimed < self.rules.world_size {
                    let why = format!("a connection in its name was refused: {reason}");
                    self.note(claimed, ConnectError::Failed(why));
                }
                Err(reason)
            }
        }
    }

    async fn agree(
        &self,
        connection: &mut Connection,
        listener: Listener,
        secret: &Secret,
        check: impl FnOnce(&Hello) -> Result<(), String>,
    ) -> Result<(usize, usize), String> {
        let own = self
            .rules
            .hello(listener.peer().identity.task as usize, 0, "");
        let answered = exchange::answer(connection, listener, own, secret).await;
        let verified = answered.map_err(|error| reason(&error))?;
        let compatible = verified.check_compatible();
        let peer = compatible.map_err(|error| error.to_string())?.peer;
        let admitted = connection.guard().admit_or_end();
        admitted.map_err(|error| error.to_string())?;
        let lane = check(&peer).and_then(|()| self.check_place(&peer));
        let refusal = lane.as_ref().err().map_or("", String::as_str);
        let sent = send_text(connection, refusal).await;
        let lane = lane?;
        sent.map_err(|error| error.to_string())?;
        Ok(lane)
    }

    /// The rank and the lane of a peer that says this, if lanes are still wanted.
    fn check_place(&self, peer: &Hello) -> Result<(usize, usize), String> {
        let lane = self.rules.check_client(peer)?;
        if unpoisoned(self.state.lock()).is_closed {
            return Err(format!("rank {} leaves the group", self.rules.rank));
        }
        Ok(lane)
    }

    /// Dials a lane until it is there, or must not be.
    pub(super) async fn keep_dialling(
        self: Arc<Self>,
        rank: usize,
        lane: usize,
        peer: LanePeer,
        tls: Option<TlsSettings>,
    ) {
        loop {
            match self.dial(rank, lane, &peer, tls.as_ref()).await {
                Ok(connection) => return self.arrive(rank, lane, connection, true),
                Err(refused @ ConnectError::Refused(_)) => {
                    return self.announce(|state| state.note(rank, refused));
                }
                Err(failed) => self.note(rank, failed),
            }
            tokio::time::sleep(RETRY_PAUSE).await;
        }
    }

    /// Connects to a lane of a lower rank, and waits to be accepted.
    async fn dial(
        &self,
        rank: usize,
        lane: usize,
        peer: &LanePeer,
        tls: Option<&TlsSettings>,
    ) -> Result<Connection, ConnectError> {
        let own = self.rules.hello(rank, lane, &peer.dialled());
        let turn = self.dialling.acquire().await;
        let opened = in_time(peer.open(tls)).await?;
        let mut connection = opened.map_err(|(reason, _)| ConnectError::Unreachable(reason))?;
        let dialled = in_time(exchange::dial(&mut connection, own, &peer.secret)).await?;
        dialled.map_err(|error| connect_error(&error))?;
        drop(turn);
        // A rank that has this one's proof takes the lane for made: nothing but the end of the
        // connection takes that back.
        match receive_text(&mut connection, REFUSAL_BYTES_MAX).await {
            Ok(accepted) if accepted.is_empty() => Ok(connection),
            Ok(refusal) => Err(ConnectError::Failed(refusal)),
            Err(error) => Err(connect_error(&error.into())),
        }
    }
}

async fn in_time<T>(step: impl Future<Output = T>) -> Result<T, ConnectError> {
    let ended = tokio::time::timeout(ATTEMPT_TIMEOUT, step).await;
    ended.map_err(|_| {
        ConnectError::Failed(
            "its port answers, but not to what was sent: it is busy, or the path loses large \
             packets (compare the MTU of all its parts)"
                .to_string(),
        )
    })
}

/// The secret is one that no other group has, not the token of the job.
fn reason(error: &ExchangeError) -> String {
    match error {
        ExchangeError::Refused(HandshakeError::WrongProof) => {
            "it does not know the secret of this group".to_string()
        }
        ExchangeError::Broken(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
            "it closed the connection without an answer".to_string()
        }
        other => other.to_string(),
    }
}

fn connect_error(error: &ExchangeError) -> ConnectError {
    let reason = reason(error);
    match error {
        ExchangeError::Refused(HandshakeError::WrongProof) => ConnectError::Refused(reason),
        _ => ConnectError::Failed(reason),
    }
}
