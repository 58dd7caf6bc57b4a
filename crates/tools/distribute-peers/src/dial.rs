//! Dialling another process: step by step, so that what fails has a name.

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use distribute_net::address;
use distribute_net::exchange::{self, ExchangeError};
use distribute_net::handshake::{Authenticated, HandshakeError, Hello, Purpose, Secret};
use distribute_net::peers::Connection;
use distribute_net::shortage::shortage;
use distribute_net::tls::TlsSettings;
use serde::{Deserialize, Serialize};
use tokio::net::{TcpStream, lookup_host};
use tokio::time::timeout;

use crate::attempt::{Attempt, Outcome};
use crate::interfaces::{Interface, having, local_towards};
use crate::messages::{Opening, Reply, VERSION, receive, send};

/// How long the system may take to connect, and to look up a name.
pub(crate) const CONNECT_LIMIT: Duration = Duration::from_secs(3);
/// How long the other side may take for the handshake, and for an answer.
pub(crate) const ANSWER_LIMIT: Duration = Duration::from_secs(3);

/// What this process is, and what it shows to others.
#[derive(Debug)]
pub(crate) struct Identity {
    pub(crate) rank: usize,
    pub(crate) size: usize,
    pub(crate) secret: Secret,
    pub(crate) tls: Option<TlsSettings>,
    pub(crate) interfaces: Vec<Interface>,
}

fn number(rank: usize) -> u32 {
    u32::try_from(rank).unwrap_or(u32::MAX)
}

/// What the processes of one job have in common.
#[derive(Serialize, Deserialize)]
struct Settings {
    size: usize,
}

impl Identity {
    /// What this process says in a handshake. Its build is in the facts, not here: programs of
    /// different versions must meet to be told that they differ.
    pub(crate) fn hello(&self, peer: Option<usize>) -> Hello {
        let mut hello = Hello::new(Purpose::Doctor, VERSION, "doctor");
        hello.identity.task = number(self.rank);
        hello.identity.group = "doctor".to_string();
        hello.peer_task = peer.map(number);
        // A number does not fail to become text.
        let settings = Settings { size: self.size };
        hello.details = serde_json::to_string(&settings).unwrap_or_default();
        hello
    }

    /// The rank of a peer that belongs to this job.
    ///
    /// # Errors
    /// Why it does not.
    pub(crate) fn rank_of(&self, peer: &Authenticated) -> Result<usize, String> {
        let settings: Settings = peer
            .peer
            .read_details()
            .map_err(|error| error.to_string())?;
        let rank = peer.peer.identity.task as usize;
        if settings.size != self.size {
            Err(format!(
                "rank {rank} there is one of {} processes, rank {} here one of {}; start all with \
                 the same list or the same number of processes",
                settings.size, self.rank, self.size
            ))
        } else if rank == self.rank {
            Err(format!(
                "two processes say that they are rank {rank}; give each its own number"
            ))
        } else if rank >= self.size {
            Err(format!(
                "there is no rank {rank} among {} processes",
                self.size
            ))
        } else {
            Ok(rank)
        }
    }

    /// Connects to a process and lets both sides prove that they are of this job. Takes at most
    /// [`CONNECT_LIMIT`] twice and [`ANSWER_LIMIT`].
    pub(crate) async fn dial(&self, rank: usize, address: &str) -> (Attempt, Option<Connection>) {
        let begun = Instant::now();
        let mut attempt = Attempt {
            rank,
            address: address.to_string(),
            resolved: None,
            from: None,
            interface: None,
            seconds: 0.0,
            outcome: Outcome::Reached,
        };
        let connected = self.connect(&mut attempt).await;
        let interface = attempt.from.and_then(|ip| having(&self.interfaces, ip));
        attempt.interface = interface.map(|it| it.name.clone());
        attempt.seconds = begun.elapsed().as_secs_f64();
        match connected {
            Ok(connection) => (attempt, Some(connection)),
            Err(outcome) => {
                attempt.outcome = outcome;
                (attempt, None)
            }
        }
    }

    /// As [`dial`](Self::dial), and asks the process for an answer, so that its program runs.
    pub(crate) async fn probe(&self, rank: usize, address: &str) -> Attempt {
        let (mut attempt, connection) = self.dial(rank, address).await;
        if let Some(mut connection) = connection
            && let Err(outcome) = answers(&mut connection, &Opening::Probe).await
        {
            attempt.outcome = outcome;
        }
        attempt
    }

    async fn connect(&self, attempt: &mut Attempt) -> Result<Connection, Outcome> {
        let (host, port) = address::split(&attempt.address).map_err(Outcome::Unresolved)?;
        let host = host.to_string();
        let tcp = open(&host, port, attempt).await?;
        if let Ok(local) = tcp.local_addr() {
            attempt.from = Some(local.ip().to_canonical());
        }
        let greeted = timeout(ANSWER_LIMIT, self.greet(tcp, &host, attempt.rank)).await;
        greeted.unwrap_or(Err(Outcome::Silent))
    }

    async fn greet(&self, tcp: TcpStream, host: &str, rank: usize) -> Result<Connection, Outcome> {
        let opened = Connection::over(tcp, host, self.tls.as_ref()).await;
        let mut connection = opened.map_err(|(why, is_final)| {
            if is_final {
                Outcome::Untrusted(why)
            } else {
                Outcome::Closed(why)
            }
        })?;
        let own = self.hello(Some(rank));
        let dialled = exchange::dial(&mut connection, own.clone(), &self.secret).await;
        let peer = dialled.map_err(refusal)?;
        peer.peer
            .answers(&own)
            .map_err(|error| refusal(error.into()))?;
        self.rank_of(&peer).map_err(Outcome::Untrusted)?;
        Ok(connection)
    }
}

/// Says what this connection is for, and waits for the other side to go on with it.
pub(crate) async fn answers(connection: &mut Connection, opening: &Opening) -> Result<(), Outcome> {
    let asked = async {
        send(connection, opening, ANSWER_LIMIT).await?;
        receive(connection, ANSWER_LIMIT).await
    };
    match asked.await {
        Ok(Reply::Refused(why)) => Err(Outcome::Untrusted(why)),
        Ok(_) => Ok(()),
        Err(error) => Err(broken(&error)),
    }
}

/// Opens a TCP connection to the first address of a host that takes one.
async fn open(host: &str, port: u16, attempt: &mut Attempt) -> Result<TcpStream, Outcome> {
    let looked_up = timeout(CONNECT_LIMIT, lookup_host((host, port))).await;
    let candidates: Vec<SocketAddr> = match looked_up {
        Err(_) => {
            let why = "the name service does not answer";
            return Err(Outcome::Unresolved(why.to_string()));
        }
        Ok(Err(error)) => return Err(Outcome::Unresolved(error.to_string())),
        Ok(Ok(found)) => found.collect(),
    };
    let each = CONNECT_LIMIT / u32::try_from(candidates.len().max(1)).unwrap_or(u32::MAX);
    let mut last = Outcome::Unresolved("it resolves to no address".to_string());
    for candidate in candidates {
        attempt.resolved = Some(candidate);
        attempt.from = local_towards(candidate);
        match timeout(each, TcpStream::connect(candidate)).await {
            // The system has connected the socket to itself: nothing listens there.
            Ok(Ok(tcp)) if tcp.local_addr().ok() == tcp.peer_addr().ok() => {
                last = Outcome::Refused;
            }
            Ok(Ok(tcp)) => return Ok(tcp),
            Ok(Err(error)) => last = not_connected(&error),
            Err(_) => last = Outcome::NoAnswer,
        }
    }
    Err(last)
}

fn not_connected(error: &io::Error) -> Outcome {
    if let Some(lacking) = shortage(error) {
        return Outcome::Lacking(lacking);
    }
    match error.kind() {
        ErrorKind::ConnectionRefused => Outcome::Refused,
        ErrorKind::TimedOut => Outcome::NoAnswer,
        _ => Outcome::NoRoute(error.to_string()),
    }
}

fn broken(error: &io::Error) -> Outcome {
    match error.kind() {
        ErrorKind::TimedOut => Outcome::Silent,
        _ => Outcome::Closed(error.to_string()),
    }
}

fn refusal(error: ExchangeError) -> Outcome {
    match error {
        ExchangeError::Broken(error) => broken(&error),
        ExchangeError::Refused(HandshakeError::Malformed { what }) => Outcome::NotDoctor(what),
        ExchangeError::Refused(HandshakeError::OtherTask { found, .. }) => {
            Outcome::OtherRank(found)
        }
        ExchangeError::Refused(error @ HandshakeError::OtherPurpose { .. }) => {
            Outcome::NotDoctor(error.to_string())
        }
        error => Outcome::Untrusted(error.to_string()),
    }
}
