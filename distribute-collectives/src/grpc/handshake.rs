//! From a socket to a lane, as futures that wait for nothing but their socket.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

use h2::RecvStream;
use h2::server::SendResponse;
use http::Request;
use rustls::pki_types::ServerName;
use tokio_rustls::{TlsAcceptor, TlsConnector};

use crate::control::UNPROVEN_BYTES_MAX;
use crate::grpc::hello::{self, Hello, Refusal};
use crate::grpc::lane::{
    CONNECTION_WINDOW_BYTES, Driver, FRAME_BYTES, HEADER_LIST_BYTES, Lane, STREAM_WINDOW_BYTES,
};
use crate::grpc::pool::Segment;
use crate::grpc::socket::{Socket, SocketState};
use crate::grpc::stream::Stream;

/// Why a lane did not come about.
#[derive(Debug)]
pub(super) enum HandshakeError {
    /// Nobody listens there, or the way there is broken.
    Unreachable(String),
    /// What answers there is no rank, or not yet; try again.
    Failed(String),
    /// The peer has answered that it does not want this rank.
    Refused(Refusal),
}

impl HandshakeError {
    fn failed(what: &str, error: impl std::fmt::Display) -> Self {
        HandshakeError::Failed(format!("{what}: {error}"))
    }
}

/// What a client needs to know for TLS.
pub(super) type ClientTls = (Arc<rustls::ClientConfig>, ServerName<'static>);

/// Connects, says hello, and waits for the answer.
pub(super) async fn dial(
    socket: Arc<SocketState>,
    tls: Option<ClientTls>,
    hello: Hello,
    authority: String,
    max_message_bytes: usize,
) -> Result<Lane, HandshakeError> {
    let connected = poll_fn(|_| socket.poll_connected()).await;
    connected.map_err(|error| HandshakeError::Unreachable(format!("connecting: {error}")))?;
    let has_tls = tls.is_some();
    let stream = match tls {
        None => Stream::plain(socket.clone()),
        Some((config, name)) => {
            let tls = TlsConnector::from(config)
                .connect(name, Socket(socket.clone()))
                .await;
            let tls = tls.map_err(|error| HandshakeError::failed("TLS", error))?;
            Stream::tls(tls.into(), socket.clone())
        }
    };
    let http2 = |error| HandshakeError::failed("HTTP/2", error);
    let (mut requests, connection) = h2::client::Builder::new()
        .initial_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_frame_size(FRAME_BYTES)
        .max_header_list_size(HEADER_LIST_BYTES)
        .enable_push(false)
        .handshake::<_, Segment>(stream)
        .await
        .map_err(http2)?;
    let mut driver = Driver::Client(connection);
    let request = hello.request(&authority, has_tls);
    let request = request.map_err(|error| HandshakeError::failed("metadata", error))?;
    let (mut response, send) = requests.send_request(request, false).map_err(http2)?;
    let response = poll_fn(|context| {
        let ended = driver.poll(context);
        match Future::poll(std::pin::Pin::new(&mut response), context) {
            Poll::Pending if ended.is_ready() => {
                let closed = "it closed the connection without an answer".to_string();
                Poll::Ready(Err(HandshakeError::Failed(closed)))
            }
            other => other.map_err(http2),
        }
    });
    let response = response.await?;
    Refusal::check(&response).map_err(HandshakeError::Refused)?;
    let receive = response.into_body();
    Ok(Lane::new(socket, driver, send, receive, max_message_bytes))
}

/// A client that has said hello.
pub(super) struct IncomingClient {
    socket: Arc<SocketState>,
    connection: h2::server::Connection<Stream, Segment>,
    pub(super) request: Request<RecvStream>,
    respond: SendResponse<Segment>,
}

/// Waits for the request of a client.
pub(super) async fn accept_handshake(
    socket: Arc<SocketState>,
    tls: Option<Arc<rustls::ServerConfig>>,
) -> Result<IncomingClient, HandshakeError> {
    socket.limit_reading(UNPROVEN_BYTES_MAX);
    let stream = match tls {
        None => Stream::plain(socket.clone()),
        Some(config) => {
            let tls = TlsAcceptor::from(config)
                .accept(Socket(socket.clone()))
                .await;
            let tls = tls.map_err(|error| HandshakeError::failed("TLS", error))?;
            Stream::tls(tls.into(), socket.clone())
        }
    };
    let http2 = |error| HandshakeError::failed("HTTP/2", error);
    let mut connection = h2::server::Builder::new()
        .initial_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_frame_size(FRAME_BYTES)
        .max_header_list_size(HEADER_LIST_BYTES)
        .max_concurrent_streams(1)
        .handshake::<_, Segment>(stream.of_server())
        .await
        .map_err(http2)?;
    match poll_fn(|context| connection.poll_accept(context)).await {
        Some(Ok((request, respond))) => Ok(IncomingClient {
            socket,
            connection,
            request,
            respond,
        }),
        Some(Err(error)) => Err(http2(error)),
        None => Err(HandshakeError::Failed("it made no request".to_string())),
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
