//! TCP connections with or without TLS, and a limit on those whose peer has not proven itself.

use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, lookup_host};
use tokio_rustls::{TlsAcceptor, TlsConnector, TlsStream};
use tonic::transport::server::Connected;

use crate::control::address;
use crate::control::tls::{DataTls, certificate_refusal, is_no_tls};

/// How long a connection may live without a member of the group at its other end.
const PENDING_LIFETIME: Duration = Duration::from_secs(10);
/// How many bytes are read of it in this time: more than a handshake has, certificates included.
/// What a stranger sends costs no more memory than that, whatever it claims to be.
pub(crate) const UNPROVEN_BYTES_MAX: usize = 64 << 10;
/// How many such connections there may be. One more ends the oldest silent connection, or else the
/// oldest.
const PENDING_MAX: usize = 64;
const PENDING_MIN: usize = 4;
/// Pending connections take at most this part of the descriptors that the process may have.
const PENDING_PART: u64 = 8;

/// How many connections of strangers a port may keep: a flood must not take the descriptors that
/// the process needs for itself.
pub(crate) fn pending_connections_max() -> usize {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let part = limit.map_or(u64::MAX, |limit| limit / PENDING_PART);
    let part = usize::try_from(part).unwrap_or(usize::MAX);
    part.clamp(PENDING_MIN, PENDING_MAX)
}

/// Called for connections that come to nothing: with the address, and the reason if it is known.
pub(super) type OnRefused = Arc<dyn Fn(String, Option<String>) + Send + Sync>;

/// What the side with TLS says of the one without.
const NO_TLS: &str = "it does not use TLS, this process does: give both a certificate, or none";

#[derive(Default)]
struct GuardState {
    admitted: bool,
    closed: bool,
    /// Something has come from it.
    received: bool,
    refused: Option<OnRefused>,
    waker: Option<Waker>,
    certificate: Option<String>,
}

/// What is known about a connection, and the power to end it.
///
/// A connection that was accepted ends by itself unless it is [admitted](Self::admit) soon.
pub struct ConnectionGuard {
    pub(super) remote: SocketAddr,
    opened: Instant,
    state: Mutex<GuardState>,
}

impl ConnectionGuard {
    fn new(remote: SocketAddr) -> Arc<ConnectionGuard> {
        Arc::new(ConnectionGuard {
            remote,
            opened: Instant::now(),
            state: Mutex::default(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, GuardState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The peer has proven itself: the connection may stay.
    pub fn admit(&self) {
        self.lock().admitted = true;
    }

    /// Whether the peer has proven itself.
    pub fn is_admitted(&self) -> bool {
        self.lock().admitted
    }

    /// The address at the other end.
    pub fn remote(&self) -> SocketAddr {
        self.remote
    }

    /// Ends the connection, unless its peer has proven itself.
    fn end_unless_admitted(&self) {
        let mut state = self.lock();
        if state.admitted {
            return;
        }
        state.closed = true;
        if let Some(waker) = state.waker.take() {
            waker.wake();
        }
    }

    /// Which certificate was not accepted, or that only the other side uses TLS, when the
    /// connection failed of that.
    pub fn certificate_refusal(&self) -> Option<String> {
        self.lock().certificate.clone()
    }

    fn note_error(&self, error: &io::Error) {
        if let Some(refusal) = certificate_refusal(error) {
            self.lock().certificate = Some(refusal);
        }
    }

    /// Looks at the first bytes of a connection without TLS.
    fn inspect_first_bytes(&self, first: &[u8]) {
        // A TLS record with an alert or a handshake; HTTP/2 never begins like this.
        if let [0x15 | 0x16, 0x03, ..] = first {
            let what = "it uses TLS, this process does not: give both a certificate, or none";
            let refused = {
                let mut state = self.lock();
                state.certificate = Some(what.to_string());
                state.refused.take()
            };
            if let Some(refused) = refused {
                refused(self.remote.to_string(), Some(what.to_string()));
            }
        }
    }

    fn has_received(&self) -> bool {
        self.lock().received
    }

    fn note_received(&self) {
        self.lock().received = true;
    }

    /// Sets what is called when [`inspect_first_bytes`](Self::inspect_first_bytes) refuses the
    /// peer.
    pub(super) fn on_refused(&self, refused: OnRefused) {
        self.lock().refused = Some(refused);
    }

    fn poll(&self, context: &Context<'_>) -> io::Result<()> {
        let mut state = self.lock();
        if state.closed {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        if !state.admitted {
            state.waker = Some(context.waker().clone());
        }
        Ok(())
    }
}

/// The connections whose peers have not proven themselves.
pub(super) struct PendingConnections {
    guards: Vec<Weak<ConnectionGuard>>,
    max: usize,
}

impl Default for PendingConnections {
    fn default() -> Self {
        Self {
            guards: Vec::new(),
            max: pending_connections_max(),
        }
    }
}

impl PendingConnections {
    /// Watches a new connection.
    pub(super) fn add(&mut self, guard: &Arc<ConnectionGuard>) {
        self.expire();
        if self.guards.len() >= self.max {
            self.end_one();
        }
        self.guards.push(Arc::downgrade(guard));
    }

    /// Ends the connection that is the least likely to be that of a member.
    pub(super) fn end_one(&mut self) {
        self.expire();
        let silent =
            |guard: &Weak<ConnectionGuard>| guard.upgrade().is_none_or(|it| !it.has_received());
        let index = self.guards.iter().position(silent).unwrap_or(0);
        if index < self.guards.len()
            && let Some(guard) = self.guards.remove(index).upgrade()
        {
            guard.end_unless_admitted();
        }
    }

    /// Ends connections that were pending for too long, and forgets those that were admitted.
    pub(super) fn expire(&mut self) {
        self.guards.retain(|guard| match guard.upgrade() {
            Some(guard) if guard.is_admitted() => false,
            Some(guard) if guard.opened.elapsed() > PENDING_LIFETIME => {
                guard.end_unless_admitted();
                false
            }
            found => found.is_some(),
        });
    }
}

/// A TCP connection that its guard can end.
pub(super) struct GuardedStream {
    tcp: TcpStream,
    guard: Arc<ConnectionGuard>,
    /// Bytes that were read before the peer had proven itself.
    unproven_bytes: usize,
    is_admitted: bool,
}

impl GuardedStream {
    /// Notes bytes that were read. More than a handshake has end the connection.
    fn note_unproven(&mut self, bytes: usize) -> io::Result<()> {
        self.is_admitted = self.guard.is_admitted();
        if self.is_admitted || bytes == 0 {
            return Ok(());
        }
        if self.unproven_bytes == 0 {
            self.guard.note_received();
        }
        self.unproven_bytes += bytes;
        match self.unproven_bytes > UNPROVEN_BYTES_MAX {
            true => Err(io::ErrorKind::ConnectionAborted.into()),
            false => Ok(()),
        }
    }
}

impl AsyncRead for GuardedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.guard.poll(context)?;
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.tcp).poll_read(context, buffer);
        if !self.is_admitted {
            self.note_unproven(buffer.filled().len() - before)?;
        }
        read
    }
}

impl AsyncWrite for GuardedStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.tcp).poll_write(context, bytes)
    }

    // The last words of a failed TLS handshake are several slices in one write.
    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.tcp).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.tcp.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tcp).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tcp).poll_shutdown(context)
    }
}

enum Stream {
    Plain(GuardedStream),
    Tls(Box<TlsStream<GuardedStream>>),
}

/// A TCP connection, with TLS or without, that gRPC runs over.
pub struct Connection {
    stream: Stream,
    pub(super) guard: Arc<ConnectionGuard>,
    /// Whether something has come.
    has_read: bool,
}

impl Connection {
    /// What is known about it.
    pub fn guard(&self) -> Arc<ConnectionGuard> {
        self.guard.clone()
    }

    /// Wraps an accepted connection and does the TLS handshake.
    ///
    /// # Errors
    /// Which certificate was not accepted, if that is why there is no connection.
    pub(super) async fn accept(
        guarded: GuardedStream,
        tls: Option<&DataTls>,
    ) -> Result<Connection, Option<String>> {
        let guard = guarded.guard.clone();
        let stream = match tls {
            None => Stream::Plain(guarded),
            Some(tls) => {
                let accepted = TlsAcceptor::from(tls.server.clone()).accept(guarded);
                let stream = accepted.await.map_err(|e| {
                    certificate_refusal(&e).or_else(|| is_no_tls(&e).then(|| NO_TLS.to_string()))
                })?;
                Stream::Tls(Box::new(stream.into()))
            }
        };
        Ok(Connection {
            stream,
            guard,
            has_read: false,
        })
    }

    /// Connects to the address of a rank.
    ///
    /// # Errors
    /// What happened, and whether a certificate was not accepted (then it is no use to try again).
    pub(super) async fn open(
        address: &str,
        tls: Option<&DataTls>,
    ) -> Result<Connection, (String, bool)> {
        let later = |reason: String| (reason, false);
        let (host, port) = address::split(address).map_err(later)?;
        let tcp = connect(host, port).await.map_err(later)?;
        let remote = tcp.peer_addr().map_err(|error| later(error.to_string()))?;
        let guarded = guard(tcp, remote);
        let guard = guarded.guard.clone();
        guard.admit();
        let stream = match tls {
            None => Stream::Plain(guarded),
            Some(tls) => {
                let name = ServerName::try_from(host.to_string())
                    .map_err(|_| later(format!("{host:?} cannot be the name in a certificate")))?;
                let connected = TlsConnector::from(tls.client.clone()).connect(name, guarded);
                let stream = connected.await.map_err(|e| match certificate_refusal(&e) {
                    Some(reason) => (reason, true),
                    None if is_no_tls(&e) => (NO_TLS.to_string(), true),
                    None => later(format!("the TLS handshake failed ({e}); does it use TLS?")),
                })?;
                Stream::Tls(Box::new(stream.into()))
            }
        };
        Ok(Connection {
            stream,
            guard,
            has_read: false,
        })
    }
}

/// Puts a connection under a guard.
pub(super) fn guard(tcp: TcpStream, remote: SocketAddr) -> GuardedStream {
    // Small messages; a connection without the option still works.
    let _ = tcp.set_nodelay(true);
    GuardedStream {
        tcp,
        guard: ConnectionGuard::new(remote),
        unproven_bytes: 0,
        is_admitted: false,
    }
}

impl GuardedStream {
    pub(super) fn guard(&self) -> &Arc<ConnectionGuard> {
        &self.guard
    }
}

async fn connect(host: &str, port: u16) -> Result<TcpStream, String> {
    let resolved = lookup_host((host, port))
        .await
        .map_err(|error| format!("the address does not resolve: {error}"))?;
    let mut last = "the address resolves to nothing".to_string();
    for candidate in resolved {
        match TcpStream::connect(candidate).await {
            // A port that nobody listens on, drawn by chance as the port of this very socket.
            Ok(tcp) if tcp.local_addr().ok() == tcp.peer_addr().ok() => {
                last = "nobody listens there".to_string();
            }
            Ok(tcp) => return Ok(tcp),
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                last = "nobody listens there: connection refused".to_string();
            }
            Err(error) => last = format!("cannot connect: {error}"),
        }
    }
    Err(last)
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let (read, is_plain) = match &mut self.stream {
            Stream::Plain(stream) => (Pin::new(stream).poll_read(context, buffer), true),
            Stream::Tls(stream) => (Pin::new(stream).poll_read(context, buffer), false),
        };
        if let Some(first @ [_, ..]) = buffer.filled().get(before..)
            && !self.has_read
        {
            self.has_read = true;
            if is_plain {
                self.guard.inspect_first_bytes(first);
            }
        }
        if let Poll::Ready(Err(error)) = &read {
            self.guard.note_error(error);
        }
        read
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match &mut self.stream {
            Stream::Plain(stream) => Pin::new(stream).poll_write(context, bytes),
            Stream::Tls(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match &mut self.stream {
            Stream::Plain(stream) => Pin::new(stream).poll_write_vectored(context, slices),
            Stream::Tls(stream) => Pin::new(stream).poll_write_vectored(context, slices),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match &self.stream {
            Stream::Plain(stream) => stream.is_write_vectored(),
            Stream::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.stream {
            Stream::Plain(stream) => Pin::new(stream).poll_flush(context),
            Stream::Tls(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.stream {
            Stream::Plain(stream) => Pin::new(stream).poll_shutdown(context),
            Stream::Tls(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }
}

impl Connected for Connection {
    type ConnectInfo = Arc<ConnectionGuard>;

    fn connect_info(&self) -> Self::ConnectInfo {
        self.guard.clone()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::task::{Context, Waker};

    use super::{ConnectionGuard, PendingConnections};

    fn is_open(guard: &ConnectionGuard) -> bool {
        guard.poll(&Context::from_waker(Waker::noop())).is_ok()
    }

    #[test]
    fn who_has_proven_himself_makes_no_room_for_others() {
        let guards: [Arc<ConnectionGuard>; 3] =
            std::array::from_fn(|_| ConnectionGuard::new(([127, 0, 0, 1], 1).into()));
        let [member, speaker, silent] = &guards;
        let mut pending = PendingConnections::default();
        guards.iter().for_each(|guard| pending.add(guard));
        speaker.note_received();
        member.note_received();
        member.admit();
        pending.end_one();
        assert!(is_open(member) && is_open(speaker) && !is_open(silent));
        pending.end_one();
        assert!(is_open(member) && !is_open(speaker));
        pending.end_one();
        assert!(is_open(member));
    }
}
