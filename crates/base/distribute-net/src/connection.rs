//! TCP connections with or without TLS, and the limit on connections of unauthenticated peers.

use std::fmt::{self, Debug};
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpSocket, TcpStream, lookup_host};
use tokio_rustls::{TlsAcceptor, TlsConnector, TlsStream};

use crate::address;
use crate::crowd::Progress;
use crate::gate::{Endable, Gate, Place};
use crate::handshake::Authenticated;
use crate::pacing::stop_pacing;
use crate::shortage::shortage_now;
use crate::tls::{Channel, TlsSettings, certificate_refusal, is_no_tls};

/// How long a host may take to accept or refuse a connection; less than the callers' limit for an
/// attempt, so that they learn the reason.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(4);

/// How far an attempt to connect has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DialStage {
    /// The name is looked up.
    Resolving,
    /// The host has neither accepted nor refused the connection yet.
    Connecting,
    /// The connection is accepted; the peer is not authenticated yet.
    Accepted,
}

/// Called for failed connections: with the address, and the reason if it is known.
pub(super) type OnRefused = Arc<dyn Fn(String, Option<String>) + Send + Sync>;

/// Bytes in both directions, without a reactor or with one.
pub trait Io: AsyncRead + AsyncWrite + Debug + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Debug + Send + Unpin> Io for T {}

/// The message of the side with TLS about the side without.
const NO_TLS: &str = "it does not use TLS, this process does: give both a certificate, or none";

#[derive(Default)]
struct GuardState {
    admitted: bool,
    closed: bool,
    refused: Option<OnRefused>,
    waker: Option<Waker>,
    certificate: Option<String>,
}

/// Information about a connection, and the means to end it.
///
/// A connection that was accepted ends by itself unless it is [admitted](Self::admit) soon.
pub struct ConnectionGuard {
    remote: SocketAddr,
    /// In the crowd of its port, if it was accepted.
    place: OnceLock<Place>,
    channel: OnceLock<Channel>,
    peer: OnceLock<Authenticated>,
    state: Mutex<GuardState>,
}

impl fmt::Debug for ConnectionGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("ConnectionGuard");
        shown.field("remote", &self.remote).finish_non_exhaustive()
    }
}

impl ConnectionGuard {
    fn new(remote: SocketAddr) -> Arc<ConnectionGuard> {
        Arc::new(ConnectionGuard {
            remote,
            place: OnceLock::new(),
            channel: OnceLock::new(),
            peer: OnceLock::new(),
            state: Mutex::default(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, GuardState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The peer is authenticated: the connection may stay. Returns `false` if it was ended before.
    pub fn admit(&self) -> bool {
        let admitted = {
            let mut state = self.lock();
            state.admitted = !state.closed;
            state.admitted
        };
        if admitted {
            self.leave();
        }
        admitted
    }

    /// Makes room for others: the peer is authenticated, or the connection is over.
    fn leave(&self) {
        if let Some(place) = self.place.get() {
            place.leave();
        }
    }

    /// As [`admit`](Self::admit).
    ///
    /// # Errors
    /// [`ConnectionAborted`](io::ErrorKind::ConnectionAborted) if the connection was ended before.
    pub fn admit_or_end(&self) -> io::Result<()> {
        let ended = || io::Error::from(io::ErrorKind::ConnectionAborted);
        self.admit().then_some(()).ok_or_else(ended)
    }

    /// Notes who the peer has proven to be, for what is served on the connection; once.
    pub fn set_peer(&self, peer: Authenticated) {
        let _ = self.peer.set(peer);
    }

    /// Who the peer has proven to be, if that was [noted](Self::set_peer).
    pub fn peer(&self) -> Option<&Authenticated> {
        self.peer.get()
    }

    /// The peer has sent the first message of the handshake: until it completes, connections that
    /// have come less far make room first.
    pub fn note_greeting(&self) {
        self.note(Progress::SentHello);
    }

    fn note(&self, progress: Progress) {
        if let Some(place) = self.place.get() {
            place.note(progress);
        }
    }

    /// Whether the peer is authenticated.
    pub fn is_admitted(&self) -> bool {
        self.lock().admitted
    }

    /// The address at the other end.
    pub fn remote(&self) -> SocketAddr {
        self.remote
    }

    /// Information from its TLS handshake; empty without TLS.
    pub fn channel(&self) -> &Channel {
        self.channel.get_or_init(Channel::default)
    }

    /// Notes a connection whose TLS handshake is over.
    fn set_channel<S>(&self, connection: &rustls::ConnectionCommon<S>) {
        // The exporter fails only while the handshake is incomplete.
        if let Ok(channel) = Channel::of(connection) {
            let _ = self.channel.set(channel);
        }
    }

    /// If the connection failed because of TLS: which certificate was not accepted, or
    /// that only the other side uses TLS.
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

    /// Sets the function to call when [`inspect_first_bytes`](Self::inspect_first_bytes)
    /// refuses the peer.
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

impl Endable for ConnectionGuard {
    fn end(&self) {
        let mut state = self.lock();
        if state.admitted {
            return;
        }
        state.closed = true;
        if let Some(waker) = state.waker.take() {
            waker.wake();
        }
    }
}

/// The guard of a stream that is there; without it the connection holds nothing any more.
#[derive(Debug)]
struct OwnGuard(Arc<ConnectionGuard>);

impl Drop for OwnGuard {
    fn drop(&mut self) {
        self.0.leave();
    }
}

/// The socket of a connection: tokio's, or what its [`detach`](Connection::detach) gave.
#[derive(Debug)]
enum Tcp {
    Tokio(TcpStream),
    Detached(Box<dyn Io>),
}

impl Tcp {
    fn tokio(&self) -> io::Result<&TcpStream> {
        match self {
            Tcp::Tokio(tcp) => Ok(tcp),
            Tcp::Detached(_) => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    fn io(&mut self) -> Pin<&mut dyn Io> {
        match self {
            Tcp::Tokio(tcp) => Pin::new(tcp),
            Tcp::Detached(io) => Pin::new(&mut **io),
        }
    }

    /// Puts what `wrap` makes of the socket in its place.
    fn detach<S: Io + 'static>(
        &mut self,
        wrap: impl FnOnce(std::net::TcpStream) -> io::Result<S>,
    ) -> io::Result<()> {
        let nothing = Tcp::Detached(Box::new(tokio::io::empty()));
        if let Tcp::Tokio(tcp) = std::mem::replace(self, nothing) {
            *self = Tcp::Detached(Box::new(wrap(tcp.into_std()?)?));
        }
        Ok(())
    }
}

/// A TCP connection that its guard can end.
#[derive(Debug)]
pub(super) struct GuardedStream {
    tcp: Tcp,
    guard: OwnGuard,
    /// Whether bytes have arrived.
    has_read: bool,
    is_admitted: bool,
}

impl GuardedStream {
    /// Reads as much as an unauthenticated peer may send now.
    fn poll_read_unproven(
        &mut self,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let guard = &self.guard.0;
        let Some(place) = guard.place.get() else {
            return self.tcp.io().poll_read(context, buffer);
        };
        let granted = ready!(place.poll_reserve(context, buffer.remaining()))?;
        let mut part = ReadBuf::new(buffer.initialize_unfilled_to(granted));
        let read = self.tcp.io().poll_read(context, &mut part);
        let count = part.filled().len();
        buffer.advance(count);
        place.settle(granted, count);
        if count > 0 && !std::mem::replace(&mut self.has_read, true) {
            place.note(Progress::SentBytes);
        }
        read
    }
}

impl AsyncRead for GuardedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.guard.0.poll(context)?;
        self.is_admitted = self.is_admitted || self.guard.0.is_admitted();
        if self.is_admitted || buffer.remaining() == 0 {
            self.tcp.io().poll_read(context, buffer)
        } else {
            self.poll_read_unproven(context, buffer)
        }
    }
}

impl AsyncWrite for GuardedStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.guard.0.poll(context)?;
        self.tcp.io().poll_write(context, bytes)
    }

    // The alert of a failed TLS handshake is several slices in one write.
    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.guard.0.poll(context)?;
        self.tcp.io().poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        match &self.tcp {
            Tcp::Tokio(tcp) => tcp.is_write_vectored(),
            Tcp::Detached(io) => io.is_write_vectored(),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.tcp.io().poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.tcp.io().poll_shutdown(context)
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
    /// Whether bytes have arrived.
    has_read: bool,
}

impl Connection {
    /// Information about the connection, and the means to end it.
    pub fn guard(&self) -> Arc<ConnectionGuard> {
        self.guard.clone()
    }

    /// The address at this end.
    ///
    /// # Errors
    /// The error of the operating system.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.stream().tcp.tokio()?.local_addr()
    }

    /// The address at the other end.
    ///
    /// # Errors
    /// The error of the operating system.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.stream().tcp.tokio()?.peer_addr()
    }

    fn stream(&self) -> &GuardedStream {
        match &self.stream {
            Stream::Plain(stream) => stream,
            Stream::Tls(stream) => stream.get_ref().0,
        }
    }

    /// Takes the connection of an authenticated peer out of tokio, for a thread that drives it
    /// itself: `wrap` makes of its socket, which does not block, what is read and written in its
    /// place, below TLS where there is TLS.
    ///
    /// # Errors
    /// The errors of the operating system, and of `wrap`.
    pub fn detach<S: Io + 'static>(
        self,
        wrap: impl FnOnce(std::net::TcpStream) -> io::Result<S>,
    ) -> io::Result<Box<dyn Io>> {
        match self.stream {
            Stream::Plain(GuardedStream { tcp, .. }) => match tcp {
                Tcp::Tokio(tcp) => Ok(Box::new(wrap(tcp.into_std()?)?)),
                Tcp::Detached(io) => Ok(io),
            },
            Stream::Tls(mut stream) => {
                stream.get_mut().0.tcp.detach(wrap)?;
                Ok(stream)
            }
        }
    }

    /// Wraps an accepted connection and does the TLS handshake.
    ///
    /// # Errors
    /// Which certificate was not accepted, if that is the reason.
    pub(super) async fn accept(
        guarded: GuardedStream,
        tls: Option<&TlsSettings>,
    ) -> Result<Connection, Option<String>> {
        let guard = guarded.guard().clone();
        let stream = match tls {
            None => Stream::Plain(guarded),
            Some(tls) => {
                let accepted = TlsAcceptor::from(tls.server.clone()).accept(guarded);
                let stream = accepted.await.map_err(|e| {
                    certificate_refusal(&e).or_else(|| is_no_tls(&e).then(|| NO_TLS.to_string()))
                })?;
                guard.set_channel(stream.get_ref().1);
                Stream::Tls(Box::new(stream.into()))
            }
        };
        Ok(Connection {
            stream,
            guard,
            has_read: false,
        })
    }

    /// Connects to the address of a process.
    ///
    /// # Errors
    /// What failed, and whether a certificate was not accepted (then trying again does not help).
    pub async fn open(
        address: &str,
        tls: Option<&TlsSettings>,
    ) -> Result<Connection, (String, bool)> {
        Self::open_noting(address, tls, &|_| {}).await
    }

    /// Like [`open`](Self::open); calls `note` at the begin of each stage.
    pub(crate) async fn open_noting(
        address: &str,
        tls: Option<&TlsSettings>,
        note: &(dyn Fn(DialStage) + Send + Sync),
    ) -> Result<Connection, (String, bool)> {
        let later = |reason: String| (reason, false);
        let (host, port) = address::split(address).map_err(later)?;
        let tcp = connect(host, port, note).await.map_err(later)?;
        note(DialStage::Accepted);
        Self::over(tcp, host, tls).await
    }

    /// Connects to a process at this address; with TLS its certificate must be for `host`.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub async fn open_at(
        address: SocketAddr,
        host: &str,
        tls: Option<&TlsSettings>,
    ) -> Result<Connection, (String, bool)> {
        let tcp = connect_to(&[address])
            .await
            .map_err(|reason| (reason, false))?;
        Self::over(tcp, host, tls).await
    }

    /// Takes over a TCP connection to `host` that this process has opened, with the TLS handshake.
    /// Has no time limit of its own.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub async fn over(
        tcp: TcpStream,
        host: &str,
        tls: Option<&TlsSettings>,
    ) -> Result<Connection, (String, bool)> {
        let later = |reason: String| (reason, false);
        let remote = tcp.peer_addr().map_err(|error| later(error.to_string()))?;
        let guarded = guard(tcp, remote);
        let guard = guarded.guard().clone();
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
                guard.set_channel(stream.get_ref().1);
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
    // Messages are small; the connection also works without the option.
    let _ = tcp.set_nodelay(true);
    GuardedStream {
        tcp: Tcp::Tokio(tcp),
        guard: OwnGuard(ConnectionGuard::new(remote)),
        has_read: false,
        is_admitted: false,
    }
}

impl GuardedStream {
    pub(super) fn guard(&self) -> &Arc<ConnectionGuard> {
        &self.guard.0
    }

    /// Takes its place in the crowd of the port that has accepted it.
    pub(super) fn enter(&self, gate: &Arc<Gate>) {
        let guard = self.guard();
        let weak = Arc::downgrade(guard);
        let _once = guard.place.set(gate.enter(guard.remote.ip(), weak));
    }
}

async fn connect(
    host: &str,
    port: u16,
    note: &(dyn Fn(DialStage) + Send + Sync),
) -> Result<TcpStream, String> {
    note(DialStage::Resolving);
    let resolved = lookup_host((host, port))
        .await
        .map_err(|error| match shortage_now() {
            Some(shortage) => format!("the address does not resolve: {shortage}"),
            None => format!("the address does not resolve: {error}"),
        })?;
    note(DialStage::Connecting);
    connect_to(&resolved.collect::<Vec<_>>()).await
}

/// Connects to the first of these addresses that can be connected to.
async fn connect_to(candidates: &[SocketAddr]) -> Result<TcpStream, String> {
    let mut last = "the address resolves to nothing".to_string();
    let each = CONNECT_TIMEOUT / u32::try_from(candidates.len().max(1)).unwrap_or(u32::MAX);
    for &candidate in candidates {
        let connected = tokio::time::timeout(each, connect_unpaced(candidate)).await;
        match connected.unwrap_or_else(|late| Err(late.into())) {
            // The system has connected the socket to itself: no process listens on the port, and it
            // happened to be this socket's own.
            Ok(tcp) if tcp.local_addr().ok() == tcp.peer_addr().ok() => {
                last = "no process listens there".to_string();
            }
            Ok(tcp) => return Ok(tcp),
            Err(error) => last = address::why_unreachable(candidate, &error),
        }
    }
    Err(last)
}

async fn connect_unpaced(address: SocketAddr) -> io::Result<TcpStream> {
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4()?,
        SocketAddr::V6(_) => TcpSocket::new_v6()?,
    };
    stop_pacing(&socket, address.ip());
    socket.connect(address).await
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

#[cfg(feature = "tonic")]
impl tonic::transport::server::Connected for Connection {
    type ConnectInfo = Arc<ConnectionGuard>;

    fn connect_info(&self) -> Self::ConnectInfo {
        self.guard.clone()
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::task::{Context, Waker};

    use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
    use tokio::io::{AsyncReadExt, AsyncWriteExt, split};
    use tokio_stream::StreamExt;

    use super::*;
    use crate::crowd::Charge;
    use crate::peers::accept;
    use crate::security::{Security, TlsIdentity};

    fn block_on<T>(test: impl Future<Output = T>) -> T {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        runtime.enable_all().build().unwrap().block_on(test)
    }

    fn is_open(guard: &ConnectionGuard) -> bool {
        guard.poll(&Context::from_waker(Waker::noop())).is_ok()
    }

    #[test]
    fn who_has_proven_himself_makes_no_room_for_others() {
        block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let address = listener.local_addr().unwrap();
            let gate = Gate::new(Charge::CLEAR);
            let mut streams = Vec::new();
            for _ in 0..3 {
                let dialled = TcpStream::connect(address).await.unwrap();
                let (_, remote) = listener.accept().unwrap();
                let guarded = guard(dialled, remote);
                guarded.enter(&gate);
                streams.push(guarded);
            }
            let [member, speaker, silent] = [0, 1, 2].map(|index| streams[index].guard().clone());
            speaker.note(Progress::SentBytes);
            member.note_greeting();
            gate.end_one();
            assert!(is_open(&member) && is_open(&speaker) && !is_open(&silent));
            assert!(member.admit() && !silent.admit());
            gate.end_one();
            assert!(is_open(&member) && !is_open(&speaker));
            gate.end_one();
            assert!(is_open(&member));
        });
    }

    /// Two adjacent ports: Linux gives connections the ports of one parity first.
    #[test]
    fn a_socket_connected_to_itself_is_no_connection() {
        let free = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = free.local_addr().unwrap().port() & !1;
        drop(free);
        block_on(async {
            for port in [port, port + 1].into_iter().cycle().take(300_000) {
                match connect("127.0.0.1", port, &|_| {}).await {
                    Ok(tcp) => assert_ne!(tcp.local_addr().unwrap(), tcp.peer_addr().unwrap()),
                    Err(reason) if reason == "no process listens there" => return,
                    Err(_) => {}
                }
            }
            panic!("chance never drew the port");
        });
    }

    fn settings() -> TlsSettings {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let ca = params.self_signed(&key).unwrap();
        let issuer = Issuer::new(params, key);
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec!["127.0.0.1".to_string()]).unwrap();
        let own = params.signed_by(&key, &issuer).unwrap();
        let identity = TlsIdentity::new(ca.pem(), own.pem(), key.serialize_pem());
        let settings = Security::default().tls(identity).tls_settings();
        settings.unwrap().unwrap()
    }

    async fn pair(tls: Option<&TlsSettings>) -> [Connection; 2] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let mut accepted = accept(listener, tls.cloned(), |_, _| {}).unwrap();
        let (dialled, accepted) = tokio::join!(Connection::open(&address, tls), accepted.next());
        [dialled.unwrap(), accepted.unwrap().unwrap()]
    }

    /// Both directions at once, more than any buffer holds.
    #[test]
    fn both_directions_work_at_once_and_the_ends_have_one_binding() {
        let tls = settings();
        for tls in [None, Some(&tls)] {
            block_on(async {
                let [client, server] = pair(tls).await;
                let [at_client, at_server] = [client.guard(), server.guard()];
                at_server.admit();
                assert_eq!(client.local_addr().unwrap(), at_server.remote());
                assert_eq!(at_client.channel().binding, at_server.channel().binding);
                assert_eq!(at_client.channel().binding.len(), tls.map_or(0, |_| 32));
                let [of_other, _] = pair(tls).await;
                if tls.is_some() {
                    let other = of_other.guard();
                    assert_ne!(at_client.channel().binding, other.channel().binding);
                    assert!(!at_client.channel().is_for_host("192.0.2.1"));
                }
                assert!(at_server.channel().is_for_host("127.0.0.1"));
                let sent: Vec<u8> = (0..8 << 20).map(|i: u32| i.wrapping_mul(i) as u8).collect();
                let exchange = async |end: Connection| {
                    let (mut reader, mut writer) = split(end);
                    let mut got = vec![0; sent.len()];
                    let write = async {
                        writer.write_all(&sent).await.unwrap();
                        writer.shutdown().await.unwrap();
                    };
                    let ((), count) = tokio::join!(write, reader.read_exact(&mut got));
                    assert!(count.unwrap() == sent.len() && got == sent);
                    assert_eq!(reader.read(&mut [0; 8]).await.unwrap(), 0);
                };
                tokio::join!(exchange(client), exchange(server));
            });
        }
    }
}
