//! Streams to the lower ranks: connecting, again and again until the deadline.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use distribute_net::address;
use distribute_net::exchange;
use distribute_net::peers::Connection;
use http::Uri;
use http::uri::PathAndQuery;
use hyper_util::rt::TokioIo;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tokio_stream::{Stream, StreamExt};
use tonic::client::Grpc;
use tonic::codegen::Service;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status, Streaming};
use tonic_prost::ProstCodec;

use crate::control::JOIN_PATH;
use crate::control::generated::envelope::Message;
use crate::control::generated::{Announcement, Envelope};
use crate::control::handshake::{self, HandshakeFailure, STEP_TIMEOUT};
use crate::control::membership::{Membership, Phase, QUEUE, Sender};

/// The largest message, in both directions.
pub(super) const MESSAGE_MAX_BYTES: usize = 64 << 10;
/// When the names of ranks that have not come are looked up. Those that come at once, as nearly all
/// do, need no question to a name server, which all ranks would ask for all others.
const LOOK_UP_AFTER: Duration = Duration::from_millis(500);
const PAUSE_MIN: Duration = Duration::from_millis(10);
const PAUSE_MAX: Duration = Duration::from_millis(250);

/// Hands an open connection to tonic, once.
struct SingleConnection(Option<Connection>);

impl Service<Uri> for SingleConnection {
    type Response = TokioIo<Connection>;
    type Error = io::Error;
    type Future = std::future::Ready<io::Result<Self::Response>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        // A second connection would be one that this rank does not know of.
        let closed = || io::Error::from(io::ErrorKind::NotConnected);
        std::future::ready(self.0.take().map(TokioIo::new).ok_or_else(closed))
    }
}

/// The number of a link, and the stream that has become it.
type JoinedStream = (u64, Streaming<Envelope>);

/// Keeps a stream to a lower rank until the group has formed and beyond.
pub(super) async fn keep_connected(shared: Arc<Membership>, rank: usize) {
    let mut pause = PAUSE_MIN;
    while shared.state().phase == Phase::Joining {
        let address = shared.addresses.known(rank).await;
        match try_join(&shared, rank, &address).await {
            Ok((id, inbound)) => {
                read_messages(&shared, rank, id, inbound).await;
                pause = PAUSE_MIN;
            }
            Err(HandshakeFailure::Later(_, reason)) => shared.record_missing(rank, reason),
            Err(failed) => {
                let refusal = failed.refusal(address);
                return shared.refuse(Some(rank), refusal);
            }
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 3 / 2).min(PAUSE_MAX);
    }
}

/// No rank connects to a higher rank here, so an address that is wrong in the list would show in no
/// message of this one: after a while its name is looked up, if it is one.
pub(super) async fn look_up_address(shared: Arc<Membership>, rank: usize) {
    tokio::time::sleep(LOOK_UP_AFTER).await;
    let is_missing = || {
        let state = shared.state();
        state.phase == Phase::Joining && state.links[rank].is_none()
    };
    // One that is not listed tells its address when it comes.
    let listed = shared.addresses.get(rank).unwrap_or_default();
    let Ok((host, port)) = address::split(&listed) else {
        return;
    };
    if !is_missing() || host.parse::<IpAddr>().is_ok() {
        return;
    }
    if let Err(error) = tokio::net::lookup_host((host, port)).await
        && is_missing()
    {
        let reason = format!(
            "it has not connected, and its address does not resolve here either: {error}; check \
             the list of addresses"
        );
        shared.record_missing(rank, reason);
    }
}

/// Handles the messages of a link until it ends.
pub(super) async fn read_messages(
    shared: &Membership,
    rank: usize,
    id: u64,
    mut inbound: Streaming<Envelope>,
) {
    let reason = loop {
        match inbound.message().await {
            Ok(Some(message)) => {
                if !shared.handle(rank, id, message) {
                    return;
                }
            }
            Ok(None) => break "its process ended (connection closed)".to_string(),
            Err(status) => break why_ended(&status),
        }
    };
    shared.ended(rank, id, reason);
}

/// What a broken stream says about the peer.
fn why_ended(status: &Status) -> String {
    let chain = || std::iter::successors(std::error::Error::source(status), |e| e.source());
    let io_kind = |error: &(dyn std::error::Error + 'static)| {
        let wrapped = error
            .downcast_ref::<h2::Error>()
            .and_then(h2::Error::get_io);
        let found = wrapped.or_else(|| error.downcast_ref::<io::Error>());
        found.map(io::Error::kind)
    };
    match chain().find_map(io_kind) {
        Some(
            io::ErrorKind::BrokenPipe
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionAborted
            | io::ErrorKind::UnexpectedEof,
        ) => "its process ended (connection closed)".to_string(),
        _ => {
            let innermost = chain().last().map(|error| error.to_string());
            let text = innermost.unwrap_or_else(|| status.message().to_string());
            format!("the connection to it broke ({text})")
        }
    }
}

async fn try_join(
    shared: &Membership,
    rank: usize,
    address: &str,
) -> Result<JoinedStream, HandshakeFailure> {
    // Hosts that are not up hold these turns for long: there are many, and no handshake needs one.
    let connecting = shared.connecting.acquire().await;
    let opening = Connection::open(address, shared.tls.as_ref());
    let opened = tokio::time::timeout(STEP_TIMEOUT, opening).await;
    drop(connecting);
    let late = |_| {
        Err((
            "no answer to the attempt to connect, or to TLS".to_string(),
            false,
        ))
    };
    let connection = match opened.unwrap_or_else(late) {
        Err((reason, true)) => return Err(HandshakeFailure::Unproven(reason)),
        Err((reason, false)) => return Err(HandshakeFailure::later(reason)),
        Ok(connection) => connection,
    };
    let _turn = shared.dialling.acquire().await;
    open_stream(shared, rank, address, connection).await
}

async fn open_stream(
    shared: &Membership,
    rank: usize,
    address: &str,
    mut connection: Connection,
) -> Result<JoinedStream, HandshakeFailure> {
    let ip = connection.guard().remote().ip();
    let own = handshake::hello(shared, rank, address);
    let secret = shared.security.secret();
    let dialling = exchange::dial(&mut connection, own.clone(), &secret);
    let dialled = handshake::in_time(dialling).await?;
    let peer = dialled.map_err(|error| handshake::exchange_failure(error, true))?;
    let (sender, receiver): (Sender, _) = mpsc::channel(QUEUE);
    let outbound = ReceiverStream::new(receiver).map_while(Result::ok);
    let joined = join(address, connection, outbound).await;
    // Before what the other side says of this one, which has heard of both now.
    handshake::compare(&own, &peer.peer, own.peer_task)?;
    let (inbound, announcement) = joined?;
    let id = handshake::register(shared, &peer, Some(announcement), ip, sender)?;
    Ok((id, inbound))
}

/// Opens the stream, up to the announcement with which the other rank admits this one.
async fn join(
    address: &str,
    connection: Connection,
    outbound: impl Stream<Item = Envelope> + Send + 'static,
) -> Result<(Streaming<Envelope>, Announcement), HandshakeFailure> {
    let rejected = |status: Status| handshake::rejected(&status);
    let channel = channel(address, connection).await?;
    let called = handshake::in_time(call_join(channel, outbound)).await?;
    let mut inbound = called.map_err(rejected)?;
    let received = handshake::in_time(inbound.message())
        .await?
        .map_err(rejected)?;
    match received.and_then(|envelope| envelope.message) {
        Some(Message::Announcement(it)) => Ok((inbound, it)),
        Some(_) => Err(HandshakeFailure::later("it sends no Announcement")),
        None => Err(HandshakeFailure::later("it closed the stream")),
    }
}

/// Calls the only method of `control.proto`.
pub(super) async fn call_join(
    channel: Channel,
    outbound: impl Stream<Item = Envelope> + Send + 'static,
) -> Result<Streaming<Envelope>, Status> {
    let mut grpc = Grpc::new(channel)
        .max_decoding_message_size(MESSAGE_MAX_BYTES)
        .max_encoding_message_size(MESSAGE_MAX_BYTES);
    let ready = grpc.ready().await;
    ready.map_err(|error| Status::unknown(format!("Service was not ready: {error}")))?;
    let path = PathAndQuery::from_static(JOIN_PATH);
    let called = grpc.streaming(Request::new(outbound), path, ProstCodec::default());
    Ok(called.await?.into_inner())
}

pub(super) async fn channel(
    address: &str,
    connection: Connection,
) -> Result<Channel, HandshakeFailure> {
    let endpoint = Endpoint::from_shared(format!("http://{address}"))
        .map_err(|error| HandshakeFailure::later(format!("the address cannot be used: {error}")))?
        .http2_max_header_list_size(8 << 10);
    let connecting = endpoint.connect_with_connector(SingleConnection(Some(connection)));
    let connected = handshake::in_time(connecting).await?;
    connected.map_err(|error| HandshakeFailure::later(format!("the connection broke: {error}")))
}
