//! From a socket to a lane, as futures that wait for nothing but their socket.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use distribute_net::address::why_unreachable;
use distribute_net::handshake::{AwaitingProof, Dialer, HandshakeError, Listener, Verified};
use distribute_net::tls::Channel;
use h2::client::SendRequest;
use h2::server::SendResponse;
use h2::{RecvStream, SendStream};
use http::{Request, Response};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use crate::grpc::config::LinkConfig;
use crate::grpc::hello::{
    self, EXCHANGE_PATH, FAILED_PRECONDITION, HANDSHAKE_PATH, Refusal, UNAUTHENTICATED,
};
use crate::grpc::lane::{
    CONNECTION_WINDOW_BYTES, Driver, FRAME_BYTES, HEADER_LIST_BYTES, Lane, STREAM_WINDOW_BYTES,
};
use crate::grpc::pool::Segment;
use crate::grpc::socket::{Socket, SocketState};
use crate::grpc::stream::Stream;

/// Why a lane did not come about.
#[derive(Debug)]
pub(super) enum ConnectError {
    /// No process listens there, or the connection is broken.
    Unreachable(String),
    /// What answers there is no rank, or not yet; try again.
    Failed(String),
    /// The peer has answered that it does not want this rank.
    Refused(Refusal),
}

impl ConnectError {
    fn failed(what: &str, error: impl std::fmt::Display) -> Self {
        ConnectError::Failed(format!("{what}: {error}"))
    }
}

/// Why the other side is refused: its proof, or what it says.
fn refusal(error: &HandshakeError) -> Refusal {
    match error {
        HandshakeError::WrongProof => {
            let message = "it does not know the key of this pair of ranks";
            Refusal::new(UNAUTHENTICATED, message)
        }
        other => Refusal::new(FAILED_PRECONDITION, other.to_string()),
    }
}

/// Connects to lane `lane` of rank `rank`: says hello, proves it, and waits to be accepted.
pub(super) async fn dial(
    socket: Arc<SocketState>,
    config: Arc<LinkConfig>,
    rank: usize,
    lane: usize,
    authority: String,
) -> Result<Lane, ConnectError> {
    let connected = poll_fn(|_| socket.poll_connected()).await;
    connected.map_err(|error| {
        let why = match authority.parse() {
            Ok(address) => why_unreachable(address, &error),
            Err(_) => error.to_string(),
        };
        ConnectError::Unreachable(format!("its data port: {why}"))
    })?;
    let plain = Socket(socket.clone());
    let (stream, channel) = match &config.tls {
        None => (Stream::new(plain, socket.clone()), Channel::default()),
        Some(tls) => {
            let name = tls.server_names[rank].clone();
            let connector = TlsConnector::from(tls.client.clone());
            let connected = connector
                .connect(name, plain)
                .await
                .map_err(|error| ConnectError::failed("TLS", error))?;
            let channel = Channel::of(connected.get_ref().1)
                .map_err(|error| ConnectError::failed("TLS", error))?;
            (Stream::new(connected, socket.clone()), channel)
        }
    };
    let (requests, connection) = h2::client::Builder::new()
        .initial_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_frame_size(FRAME_BYTES)
        .max_header_list_size(HEADER_LIST_BYTES)
        .enable_push(false)
        .handshake::<_, Segment>(stream)
        .await
        .map_err(|error| ConnectError::failed("HTTP/2", error))?;
    let mut client = Client {
        requests,
        driver: Driver::Client(connection),
        has_tls: config.tls.is_some(),
        authority,
    };
    let own = config.hello(rank, lane, &client.authority);
    let started = Dialer::start(own, &config.secrets[rank]);
    let (dialer, first) = started.map_err(|error| ConnectError::failed("handshake", error))?;
    let (answer, _) = client.ask(HANDSHAKE_PATH, &first, true).await?;
    let answer = hello::read_text(answer.headers()).map_err(ConnectError::Refused)?;
    let (proof, proven) = match dialer.finish(answer, &channel.binding) {
        Ok((proof, proven)) => {
            socket.note_greeting();
            (proof, Ok(proven))
        }
        // No proof tells the other side that its own was not accepted.
        Err(error) => (String::new(), Err(error)),
    };
    let accepted = client.ask(EXCHANGE_PATH, &proof, false).await;
    let judged = proven.and_then(Verified::check_compatible);
    judged.map_err(|error| ConnectError::Refused(refusal(&error)))?;
    let (response, send) = accepted?;
    let (receive, limit) = (response.into_body(), config.max_message_bytes);
    Ok(Lane::new(socket, client.driver, send, receive, limit))
}

/// A connection to a lower rank before it is a lane.
struct Client {
    requests: SendRequest<Segment>,
    driver: Driver,
    authority: String,
    has_tls: bool,
}

impl Client {
    /// Makes a request with a text of the handshake; `is_all` when nothing follows in it.
    async fn ask(
        &mut self,
        path: &str,
        text: &str,
        is_all: bool,
    ) -> Result<(Response<RecvStream>, SendStream<Segment>), ConnectError> {
        let http2 = |error| ConnectError::failed("HTTP/2", error);
        let (requests, driver) = (&mut self.requests, &mut self.driver);
        let request = hello::request(path, &self.authority, self.has_tls, text)
            .map_err(|error| ConnectError::failed("metadata", error))?;
        poll_fn(|context| match requests.poll_ready(context) {
            Poll::Pending => driver_ended(driver, context),
            ready => ready.map_err(http2),
        })
        .await?;
        let (mut response, send) = requests.send_request(request, is_all).map_err(http2)?;
        let response = poll_fn(|context| {
            let ended = driver_ended(driver, context);
            match Pin::new(&mut response).poll(context) {
                Poll::Pending => ended,
                ready => ready.map_err(http2),
            }
        })
        .await?;
        Refusal::check(&response).map_err(ConnectError::Refused)?;
        Ok((response, send))
    }
}

/// Moves the connection on; ready when it has ended.
fn driver_ended<T>(
    driver: &mut Driver,
    context: &mut Context<'_>,
) -> Poll<Result<T, ConnectError>> {
    driver.poll(context).map(|_| {
        let closed = "it closed the connection without an answer";
        Err(ConnectError::Failed(closed.to_string()))
    })
}

/// A client that has said who it is, and proven it or not.
pub(super) struct IncomingClient {
    socket: Arc<SocketState>,
    connection: h2::server::Connection<Stream, Segment>,
    request: Request<RecvStream>,
    respond: SendResponse<Segment>,
    /// The rank and the lane that it has proven to be; or why not, and which rank it says it is.
    pub(super) claim: Result<(usize, usize), Refused>,
}

/// Why a client is refused, and which rank it says it is.
type Refused = (Option<usize>, Refusal);

/// Makes the handshake with a client; `None` when it does not speak HTTP/2, or leaves.
pub(super) async fn accept_handshake(
    socket: Arc<SocketState>,
    config: Arc<LinkConfig>,
) -> Option<IncomingClient> {
    socket.limit_reading();
    let plain = Socket(socket.clone());
    let (stream, channel) = match &config.tls {
        None => (Stream::new(plain, socket.clone()), Channel::default()),
        Some(tls) => {
            let acceptor = TlsAcceptor::from(tls.server.clone());
            let accepted = acceptor.accept(plain).await.ok()?;
            let channel = Channel::of(accepted.get_ref().1).ok()?;
            (Stream::new(accepted, socket.clone()), channel)
        }
    };
    let mut connection = h2::server::Builder::new()
        .initial_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_frame_size(FRAME_BYTES)
        .max_header_list_size(HEADER_LIST_BYTES)
        .max_concurrent_streams(1)
        .handshake::<_, Segment>(stream.of_server())
        .await
        .ok()?;
    let (mut request, mut respond) = connection.accept().await?.ok()?;
    let claim = match answer(&config, &request, &channel) {
        Err(refused) => Err(refused),
        Ok((waiting, answer, (rank, lane))) => {
            socket.note_greeting();
            let answer = hello::answer_with(&answer).ok()?;
            respond.send_response(answer, true).ok()?;
            (request, respond) = connection.accept().await?.ok()?;
            let checked = check_proof(&config, waiting, &request, &channel);
            checked.map_or_else(|refusal| Err((Some(rank), refusal)), |()| Ok((rank, lane)))
        }
    };
    Some(IncomingClient {
        socket,
        connection,
        request,
        respond,
        claim,
    })
}

/// Reads a client's Hello, and answers it: with the answer, the rank and the lane that it says it
/// is.
fn answer(
    config: &LinkConfig,
    request: &Request<RecvStream>,
    channel: &Channel,
) -> Result<(AwaitingProof, String, (usize, usize)), Refused> {
    let unknown = |refusal| (None, refusal);
    let first = hello::read_request(request, HANDSHAKE_PATH).map_err(unknown)?;
    let listener = Listener::receive(first).map_err(|error| unknown(refusal(&error)))?;
    let claimed = listener.peer().identity.task as usize;
    let known = |refusal| (Some(claimed), refusal);
    let (rank, lane) = config.check_client(listener.peer()).map_err(known)?;
    let own = config.hello(rank, lane, "");
    let answered = listener.answer(own, &config.secrets[rank], &channel.binding);
    let (waiting, answer) = answered.map_err(|error| known(refusal(&error)))?;
    Ok((waiting, answer, (rank, lane)))
}

/// Checks the proof of a client, and that its certificate is for the host of its rank.
fn check_proof(
    config: &LinkConfig,
    waiting: AwaitingProof,
    request: &Request<RecvStream>,
    channel: &Channel,
) -> Result<(), Refusal> {
    let proof = hello::read_request(request, EXCHANGE_PATH)?;
    let judged = waiting.finish(proof).and_then(Verified::check_compatible);
    let peer = judged.map_err(|error| refusal(&error))?.peer;
    let names = config.tls.as_ref().map(|tls| &tls.server_names);
    let host = names.and_then(|names| names.get(peer.identity.task as usize));
    if host.is_none_or(|host| channel.is_for_host(&host.to_str())) {
        Ok(())
    } else {
        let message = "its certificate is not for the host of its address";
        Err(Refusal::new(UNAUTHENTICATED, message))
    }
}

impl IncomingClient {
    /// Accepts the client.
    pub(super) fn accept(mut self, max_message_bytes: usize) -> Result<Lane, h2::Error> {
        self.socket.admit();
        let send = self.respond.send_response(hello::answer(), false)?;
        let driver = Driver::Server(self.connection);
        let receive = self.request.into_body();
        let mut lane = Lane::new(self.socket, driver, send, receive, max_message_bytes);
        lane.drive(0);
        Ok(lane)
    }

    /// Tells the client why not, and waits until it has gone.
    pub(super) async fn refuse(mut self, refusal: Refusal) {
        if self.respond.send_response(refusal.response(), true).is_ok() {
            self.connection.graceful_shutdown();
            let _ = poll_fn(|context| self.connection.poll_closed(context)).await;
        }
    }
}
