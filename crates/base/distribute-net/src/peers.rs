//! Connections between processes of a job, for gRPC services: the same TLS, the same rule
//! for addresses, the same limit on connections of unauthenticated peers.
//!
//! A service accepts connections with [`PeerListener`]. A connection ends by itself 10 s after it
//! was opened, or earlier when unauthenticated peers open many, unless the service calls
//! [`ConnectionGuard::admit`] because the peer has proven that it knows the token
//! (see [`handshake`](crate::handshake)).

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

use crate::address::{BoundListener, Patience};
use crate::backlog::widen;
pub use crate::connection::{Connection, ConnectionGuard, DialStage, Io};
use crate::connection::{GuardedStream, OnRefused, guard};
use crate::crowd::Charge;
use crate::error::Result;
use crate::gate::Gate;
use crate::pacing::stop_pacing;
use crate::security::Security;
use crate::shortage::shortage;
use crate::tls::TlsSettings;

/// Connections that are ready and wait for the service.
const QUEUE: usize = 64;
/// How often unauthenticated connections are checked.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// The growing pauses after a failed accept: the process has no descriptors left, and the
/// system does not say when it has some again. Unauthenticated peers cannot use them up, so the
/// process itself has.
const PAUSE_MIN: Duration = Duration::from_millis(5);
const PAUSE_MAX: Duration = Duration::from_millis(100);

/// A socket that other processes of the job connect to.
#[derive(Debug)]
pub struct PeerListener {
    listener: BoundListener,
    tls: Option<TlsSettings>,
}

impl PeerListener {
    /// Listens at `host:port`; port 0 takes a free one.
    ///
    /// `task` is the number of the process in its job, for messages.
    ///
    /// # Errors
    /// [`NetError::Address`](crate::NetError::Address) when the address does not
    /// resolve, is in use, is not one of this host, or is reachable from other hosts although
    /// `security` has not both a token and TLS; what TLS settings are wrong.
    pub fn bind(task: usize, address: &str, security: &Security) -> Result<Self> {
        Ok(Self {
            listener: BoundListener::bind(task, address, security)?,
            tls: security.tls_settings()?,
        })
    }

    /// Like [`bind`](Self::bind), but waits for a name or an address of this host that may
    /// still come.
    ///
    /// # Errors
    /// As `bind`; errors of names and addresses only when the patience is over.
    pub fn bind_patiently(
        task: usize,
        address: &str,
        security: &Security,
        patience: &Patience<'_>,
    ) -> Result<Self> {
        Ok(Self {
            listener: BoundListener::bind_patiently(task, address, security, patience)?,
            tls: security.tls_settings()?,
        })
    }

    /// The address, with the port that is in use.
    pub fn local_addr(&self) -> SocketAddr {
        self.listener.local_addr()
    }

    /// The connections whose TLS handshake succeeded. Must be called in a tokio runtime; dropping
    /// the stream closes the socket.
    ///
    /// # Errors
    /// What the operating system says.
    pub fn incoming(self) -> io::Result<ReceiverStream<io::Result<Connection>>> {
        self.incoming_with(|_, _| {}, |_| {})
    }

    /// Like [`incoming`](Self::incoming), and calls `refused` for failed connections: with the
    /// address at the other end, and what was wrong with its certificate or TLS. Calls `failed`
    /// when no connection can be accepted, with what this process [lacks](crate::shortage).
    ///
    /// # Errors
    /// As `incoming`.
    pub fn incoming_with(
        self,
        refused: impl Fn(String, String) + Send + Sync + 'static,
        failed: impl Fn(String) + Send + Sync + 'static,
    ) -> io::Result<ReceiverStream<io::Result<Connection>>> {
        accept_or_say(
            self.listener.into_socket(),
            self.tls,
            move |address, reason| {
                if let Some(reason) = &reason {
                    tracing::warn!(address, reason, "refused a certificate");
                }
                let no_tls = || "it began no TLS handshake: does it use TLS?".to_string();
                refused(address, reason.unwrap_or_else(no_tls));
            },
            failed,
        )
    }
}

/// Connects to the address (`host:port`) of a process of the job.
///
/// # Errors
/// What happened, and whether a certificate was not accepted (then it is no use to try again).
pub async fn connect(
    address: &str,
    security: &Security,
) -> std::result::Result<Connection, (String, bool)> {
    connect_noting(address, security, &|_| {}).await
}

/// Like [`connect`], and calls `note` at the begin of each stage, so that a caller that gives up
/// knows which stage hung.
///
/// # Errors
/// As [`connect`].
pub async fn connect_noting(
    address: &str,
    security: &Security,
    note: &(dyn Fn(DialStage) + Send + Sync),
) -> std::result::Result<Connection, (String, bool)> {
    let tls = security
        .tls_settings()
        .map_err(|error| (error.to_string(), true))?;
    Connection::open_noting(address, tls.as_ref(), note).await
}

/// Accepts connections and does their TLS handshakes until the stream is dropped. Calls `refused`
/// with each address whose certificate was not accepted, and why, and for peers that do not speak
/// TLS.
///
/// # Errors
/// What the operating system says.
pub fn accept(
    listener: TcpListener,
    tls: Option<TlsSettings>,
    refused: impl Fn(String, Option<String>) + Send + Sync + 'static,
) -> io::Result<ReceiverStream<io::Result<Connection>>> {
    accept_or_say(listener, tls, refused, |_| {})
}

/// Like [`accept`], and calls `failed` each time that no connection can be accepted,
/// with what this process [lacks](crate::shortage).
///
/// # Errors
/// As `accept`.
pub fn accept_or_say(
    listener: TcpListener,
    tls: Option<TlsSettings>,
    refused: impl Fn(String, Option<String>) + Send + Sync + 'static,
    failed: impl Fn(String) + Send + Sync + 'static,
) -> io::Result<ReceiverStream<io::Result<Connection>>> {
    listener.set_nonblocking(true)?;
    stop_pacing(&listener, listener.local_addr()?.ip());
    widen(&listener);
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let (ready, receiver) = mpsc::channel(QUEUE);
    let settings = Arc::new(AcceptSettings {
        tls,
        refused: Arc::new(refused),
        failed: Box::new(failed),
    });
    tokio::spawn(accept_all(listener, settings, ready));
    Ok(ReceiverStream::new(receiver))
}

/// The settings for turning an accepted socket into a connection.
struct AcceptSettings {
    tls: Option<TlsSettings>,
    refused: OnRefused,
    failed: Box<dyn Fn(String) + Send + Sync>,
}

async fn accept_all(
    listener: tokio::net::TcpListener,
    settings: Arc<AcceptSettings>,
    ready: mpsc::Sender<io::Result<Connection>>,
) {
    let charge = settings.tls.as_ref().map_or(Charge::CLEAR, |_| Charge::TLS);
    let gate = Gate::new(charge);
    let (mut pause, mut is_told) = (PAUSE_MIN, false);
    loop {
        let accepted = tokio::select! {
            accepted = tokio::time::timeout(POLL_INTERVAL, listener.accept()) => accepted,
            () = ready.closed() => return,
        };
        match accepted {
            Err(_) => gate.expire(),
            Ok(Err(error)) => {
                let why = shortage(&error).unwrap_or_else(|| error.to_string());
                if !std::mem::replace(&mut is_told, true) {
                    tracing::warn!(why, "cannot accept connections");
                }
                (settings.failed)(why);
                // Perhaps there are no descriptors left: an unauthenticated peer's connection is
                // closed first.
                gate.end_one();
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(PAUSE_MAX);
            }
            Ok(Ok((tcp, remote))) => {
                pause = PAUSE_MIN;
                let has_room = tokio::select! {
                    has_room = gate.make_room(remote.ip()) => has_room,
                    () = ready.closed() => return,
                };
                if !has_room {
                    tracing::debug!(%remote, "refused a connection: too many of its host wait");
                    tokio::task::yield_now().await;
                    continue;
                }
                let guarded = guard(tcp, remote);
                guarded.enter(&gate);
                guarded.guard().on_refused(settings.refused.clone());
                tokio::spawn(handshake(settings.clone(), guarded, ready.clone()));
                // Its bytes are read before the next connection is accepted: in a flood a process
                // that has sent bytes must not count as a silent unauthenticated peer.
                tokio::task::yield_now().await;
            }
        }
    }
}

/// The TLS handshake of one connection; its guard limits how long it takes.
async fn handshake(
    settings: Arc<AcceptSettings>,
    guarded: GuardedStream,
    ready: mpsc::Sender<io::Result<Connection>>,
) {
    let address = guarded.guard().remote().to_string();
    match Connection::accept(guarded, settings.tls.as_ref()).await {
        Ok(connection) => {
            let _ = ready.send(Ok(connection)).await;
        }
        Err(reason) => {
            tracing::debug!(address, reason, "no TLS handshake");
            (settings.refused)(address, reason);
        }
    }
}
