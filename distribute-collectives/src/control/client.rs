//! The stream to the parent: connecting, again and again until the deadline.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use distribute_net::address;
use distribute_net::exchange;
use distribute_net::handshake::Hello;
use distribute_net::peers::Connection;
use http::Uri;
use http::uri::PathAndQuery;
use hyper_util::rt::TokioIo;
use tokio::sync::mpsc;
use tokio_stream::{Stream, StreamExt};
use tonic::client::Grpc;
use tonic::codegen::Service;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status, Streaming};
use tonic_prost::ProstCodec;

use crate::control::generated::Envelope;
use crate::control::generated::envelope::Message;
use crate::control::handshake::{self, HandshakeFailure, Origin, STEP_TIMEOUT};
use crate::control::membership::{Membership, Phase, QUEUE, Sender};
use crate::control::outbound::telling_of_room;
use crate::control::{JOIN_PATH, clock};

/// The largest message, in both directions.
pub(super) const MESSAGE_MAX_BYTES: usize = 64 << 10;
/// When the names of ranks that have not come are looked up. Those that come at once, as nearly all
/// do, need no question to a name server, which all ranks would ask for all others.
const LOOK_UP_AFTER: Duration = Duration::from_millis(500);
/// How many of them are looked up.
const LOOK_UP_MAX: usize = 64;
/// How long a rank tries its parent before it tries the parent of that too, and so on.
const CLIMB_AFTER: Duration = Duration::from_secs(1);
/// How long a rank whose parent has left waits before it connects to another one: mostly all ranks
/// leave together, and none is needed. Without it a rank would only dial in vain.
const SUCCESSION_PAUSE: Duration = Duration::from_millis(30);
/// How many ranks it tries.
const SUCCESSORS_MAX: usize = 16;
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

/// What comes of a stream.
pub(super) enum Attached {
    /// It is a link of this number.
    Stream(u64, Box<Streaming<Envelope>>),
    /// One of these ranks is the parent.
    Redirected(Vec<Candidate>),
}

/// A rank that may be the parent, and where it listens.
type Candidate = (usize, String);

/// Keeps a stream to a parent until the group has formed and beyond; rank 0 has none.
pub(super) async fn keep_attached(shared: Arc<Membership>) {
    if shared.rank > 0 && find_parent(&shared).await.is_err() {
        return;
    }
    // Once the group has formed a parent that has left is replaced, any other one is not.
    while let Some((parent, successors)) = replacement(&shared) {
        // Mostly all ranks leave at about the same time: then none is needed.
        tokio::time::sleep(SUCCESSION_PAUSE).await;
        tracing::debug!(
            rank = shared.rank,
            parent,
            ?successors,
            "the parent has left"
        );
        shared.state().links.remove(&parent);
        for (rank, address) in successors {
            if let Ok(Attached::Stream(id, inbound)) = try_join(&shared, rank, &address, true).await
            {
                read_messages(&shared, rank, id, *inbound).await;
                break;
            }
        }
    }
}

/// Connects to a parent, again and again until the group has formed and that stream ends. An error
/// when the group cannot form.
async fn find_parent(shared: &Arc<Membership>) -> Result<(), ()> {
    let mut pause = PAUSE_MIN;
    let mut candidates = candidates(shared);
    let mut alone_since = clock::now();
    // A parent that was there and is gone will hardly come again before the others have noticed.
    let mut lost = 0;
    while shared.state().phase == Phase::Joining {
        let waited = clock::now().saturating_duration_since(alone_since);
        let is_asking = candidates.is_empty();
        let within_reach = reach(shared, &candidates, waited, lost);
        for (rank, address) in within_reach {
            match try_join(shared, rank, &address, !is_asking).await {
                Ok(Attached::Stream(id, inbound)) => {
                    read_messages(shared, rank, id, *inbound).await;
                    (pause, alone_since, lost) = (PAUSE_MIN, clock::now(), 1);
                    break;
                }
                Ok(Attached::Redirected(ancestors)) => {
                    (candidates, alone_since) = (ancestors, clock::now());
                    pause = PAUSE_MIN;
                    break;
                }
                Err(HandshakeFailure::Later(_, reason)) => shared.record_missing(rank, reason),
                Err(failed) => {
                    shared.refuse(Some(rank), failed.refusal(address));
                    return Err(());
                }
            }
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 3 / 2).min(PAUSE_MAX);
    }
    Ok(())
}

/// The ranks that may be the parent, the nearest first; none where rank 0 has to be asked.
pub(super) fn candidates(shared: &Membership) -> Vec<Candidate> {
    let listed = shared.listed.as_ref();
    let ancestors = listed.map(|listed| listed.ancestors(shared.rank));
    let address = |rank| Some((rank, shared.addresses.get(rank)?));
    ancestors
        .into_iter()
        .flatten()
        .filter_map(address)
        .collect()
}

/// The candidates to try, after a rank has been without a parent for this time: one more ancestor
/// with each [`CLIMB_AFTER`] and for each parent that was `lost`, in the end rank 0.
pub(super) fn reach(
    shared: &Membership,
    candidates: &[Candidate],
    waited: Duration,
    lost: usize,
) -> Vec<Candidate> {
    let count = 1 + lost + waited.div_duration_f64(CLIMB_AFTER) as usize;
    let mut reached: Vec<Candidate> = candidates.iter().take(count).cloned().collect();
    let has_root = candidates.iter().any(|(rank, _)| *rank == 0);
    if (candidates.is_empty() || count > candidates.len()) && !has_root {
        reached.push((0, shared.addresses.get(0).unwrap_or_default()));
    }
    reached
}

/// The parent that has left the group that has formed, and the ranks to connect to in its place:
/// those before this rank that it has named, then the first ranks of the group. If none of them is
/// there any more, this rank is the root.
pub(super) fn replacement(shared: &Membership) -> Option<(usize, Vec<Candidate>)> {
    let state = shared.state();
    if state.phase != Phase::Formed {
        return None;
    }
    let mut parents = state.links.iter().filter(|(_, link)| link.is_parent);
    let (rank, link) = parents.find(|(_, link)| link.left)?;
    let named = link
        .successors
        .iter()
        .take_while(|(rank, _)| *rank != shared.rank);
    let mut candidates: Vec<Candidate> = named.cloned().collect();
    let children = || state.links.values().filter(|link| !link.is_parent);
    for rank in 0..shared.rank {
        let is_below = children().any(|child| child.behind.contains(rank));
        if let Some(address) = shared.addresses.get(rank).filter(|_| !is_below) {
            candidates.push((rank, address));
        }
    }
    candidates.retain(|(rank, _)| !state.left.contains_key(rank));
    candidates.truncate(SUCCESSORS_MAX);
    Some((*rank, candidates))
}

/// No rank connects to a child, so an address that is wrong in the list would show in no message of
/// rank 0, which tells all who is missing: after a while it looks up the names of the first ones.
pub(super) async fn look_up_addresses(shared: Arc<Membership>) {
    if shared.rank > 0 {
        return;
    }
    tokio::time::sleep(LOOK_UP_AFTER).await;
    let missing: Vec<usize> = {
        let state = shared.state();
        let present = state.present(shared.rank);
        let others = (0..shared.world_size()).filter(|rank| !present.contains(*rank));
        others.take(LOOK_UP_MAX).collect()
    };
    for rank in missing {
        // One that is not listed tells its address when it comes.
        let listed = shared.addresses.get(rank).unwrap_or_default();
        let Ok((host, port)) = address::split(&listed) else {
            continue;
        };
        if host.parse::<IpAddr>().is_ok() {
            continue;
        }
        if let Err(error) = tokio::net::lookup_host((host, port)).await {
            let reason = format!(
                "it has not connected, and its address does not resolve here either: {error}; \
                 check the list of addresses"
            );
            shared.record_missing(rank, reason);
        }
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

pub(super) async fn try_join(
    shared: &Arc<Membership>,
    rank: usize,
    address: &str,
    is_placed: bool,
) -> Result<Attached, HandshakeFailure> {
    let opening = Connection::open(address, shared.tls.as_ref());
    let opened = tokio::time::timeout(STEP_TIMEOUT, opening).await;
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
    let own = handshake::hello(shared, rank, address, is_placed);
    open_stream(shared, own, address, connection).await
}

async fn open_stream(
    shared: &Arc<Membership>,
    own: Hello,
    address: &str,
    mut connection: Connection,
) -> Result<Attached, HandshakeFailure> {
    let ip = connection.guard().remote().ip();
    let secret = shared.security.secret();
    let dialling = exchange::dial(&mut connection, own.clone(), &secret);
    let dialled = handshake::in_time(dialling).await?;
    let peer = dialled.map_err(|error| handshake::exchange_failure(error, true))?;
    let (sender, receiver): (Sender, _) = mpsc::channel(QUEUE);
    let outbound = telling_of_room(shared, receiver).map_while(Result::ok);
    let joined = join(address, connection, outbound).await;
    // Before what the other side says of this one, which has heard of both now.
    handshake::compare(&own, &peer.peer, own.peer_task)?;
    let (inbound, first) = joined?;
    match first {
        Message::Announcement(announcement) => {
            let parent = Some(announcement);
            let id = handshake::register(shared, &peer, Origin { ip, parent }, sender)?;
            Ok(Attached::Stream(id, Box::new(inbound)))
        }
        Message::Redirect(redirect) => {
            let ancestors = redirect.ancestors.into_iter();
            let known = ancestors.map(|it| (it.rank as usize, it.address));
            Ok(Attached::Redirected(known.collect()))
        }
        _ => Err(HandshakeFailure::later("it sends no Announcement")),
    }
}

/// Opens the stream, up to the message with which the other rank admits this one, or sends it
/// elsewhere.
async fn join(
    address: &str,
    connection: Connection,
    outbound: impl Stream<Item = Envelope> + Send + 'static,
) -> Result<(Streaming<Envelope>, Message), HandshakeFailure> {
    let rejected = |status: Status| handshake::rejected(&status);
    let channel = channel(address, connection).await?;
    let called = handshake::in_time(call_join(channel, outbound)).await?;
    let mut inbound = called.map_err(rejected)?;
    let received = handshake::in_time(inbound.message())
        .await?
        .map_err(rejected)?;
    match received.and_then(|envelope| envelope.message) {
        Some(first) => Ok((inbound, first)),
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
