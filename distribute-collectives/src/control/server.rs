//! What listens: behind the proof of who they are, the streams of children, the health of the
//! group, and the data connections.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::io;
use std::net::TcpListener;
use std::sync::Arc;
use std::task::{Context, Poll};

use distribute_net::exchange;
use distribute_net::handshake::{Authenticated, Hello, Listener, Purpose};
use distribute_net::peers::{self, Connection, ConnectionGuard};
use tokio::sync::mpsc;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use tonic::body::Body;
use tonic::codegen::{BoxFuture, Service};
use tonic::server::{Grpc, NamedService, StreamingService};
use tonic::transport::Server;
use tonic::{Code, Request, Response, Status, Streaming};
use tonic_health::server::HealthReporter;
use tonic_prost::ProstCodec;

use crate::control::client::{self, MESSAGE_MAX_BYTES};
use crate::control::generated::envelope::Message;
use crate::control::generated::{Envelope, RankAddress, Redirect};
use crate::control::handshake::{self, HandshakeFailure, Origin, STEP_TIMEOUT};
use crate::control::membership::{self, Membership, QUEUE, Sender};
use crate::control::outbound::{Outbound, telling_of_room};
use crate::control::{JOIN_PATH, SERVICE_NAME};

/// The connection that a request came over.
type Info = Arc<ConnectionGuard>;

/// The service of `control.proto`.
#[derive(Clone)]
struct ControlService {
    shared: Arc<Membership>,
}

impl NamedService for ControlService {
    const NAME: &'static str = SERVICE_NAME;
}

impl Service<http::Request<Body>> for ControlService {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Infallible>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let service = self.clone();
        Box::pin(async move {
            if request.uri().path() != JOIN_PATH {
                return Ok(Status::unimplemented("").into_http());
            }
            let mut grpc = Grpc::new(ProstCodec::default())
                .max_decoding_message_size(MESSAGE_MAX_BYTES)
                .max_encoding_message_size(MESSAGE_MAX_BYTES);
            Ok(grpc.streaming(service, request).await)
        })
    }
}

impl StreamingService<Envelope> for ControlService {
    type Response = Envelope;
    type ResponseStream = Outbound;
    type Future = Ready<Result<Response<Self::ResponseStream>, Status>>;

    fn call(&mut self, request: Request<Streaming<Envelope>>) -> Self::Future {
        let Some(info) = request.extensions().get::<Info>().cloned() else {
            return ready(Err(Status::internal("the connection is unknown")));
        };
        let (sender, receiver) = mpsc::channel(QUEUE);
        let shared = self.shared.clone();
        tokio::spawn(serve(shared, request.into_inner(), sender, info));
        let outbound = telling_of_room(&self.shared, receiver);
        ready(Ok(Response::new(outbound)))
    }
}

/// Lets HTTP/2 begin on a connection whose peer has proven itself.
async fn admit(
    shared: Arc<Membership>,
    mut connection: Connection,
    proven: mpsc::Sender<io::Result<Connection>>,
) {
    let guard = connection.guard();
    let remote = guard.remote();
    let listener = match exchange::greet(&mut connection).await {
        Ok(listener) => listener,
        Err(error) => {
            tracing::debug!(rank = shared.rank, %remote, %error, "a connection came to nothing");
            return;
        }
    };
    let claimed = listener.peer().identity.task as usize;
    if listener.peer().purpose == Purpose::Data {
        return take_lane(&shared, claimed, connection, listener).await;
    }
    match handshake::authenticate(&shared, &mut connection, listener).await {
        Ok(peer) => {
            guard.set_peer(peer);
            let _ = proven.send(Ok(connection)).await;
        }
        Err(failed) => turn_away(&shared, claimed, &failed, &guard),
    }
}

/// Takes a data connection of a rank, if it has joined.
async fn take_lane(shared: &Membership, rank: usize, connection: Connection, listener: Listener) {
    let guard = connection.guard();
    let secret = shared.secret_with(&shared.state(), rank);
    let check = |_: &Hello| {
        let address = shared.addresses.get(rank);
        let checked = handshake::check_host(&guard, address.as_deref());
        checked.map_err(|failed| failed.to_string())
    };
    let entrance = &shared.entrance;
    let taken = match secret {
        Some(secret) => entrance.take(connection, listener, &secret, check).await,
        None => Err("its rank has not joined".to_string()),
    };
    if let Err(reason) = taken {
        let remote = guard.remote();
        tracing::warn!(rank = shared.rank, %remote, reason, "turned a data connection away");
    }
}

/// One stream of a child, from its registration to its end.
async fn serve(
    shared: Arc<Membership>,
    mut inbound: Streaming<Envelope>,
    sender: Sender,
    info: Info,
) {
    let Some(peer) = info.peer() else {
        return;
    };
    let rank = peer.peer.identity.task as usize;
    let last = match admit_child(&shared, peer, &info, &sender) {
        Ok(Admitted::Child(id)) => {
            drop(sender);
            return client::read_messages(&shared, rank, id, inbound).await;
        }
        Ok(Admitted::Elsewhere(ancestors)) => {
            let redirect = Message::Redirect(Redirect { ancestors });
            Ok(membership::envelope(redirect))
        }
        Err(failed) => {
            turn_away(&shared, rank, &failed, &info);
            Err(failed.status(shared.rank))
        }
    };
    shared.state().turned_away += 1;
    let _ = sender.send(last).await;
    drop(sender);
    // Until the peer has read it and closes its half.
    let drained = async { while let Ok(Some(_)) = inbound.message().await {} };
    let _ = tokio::time::timeout(STEP_TIMEOUT, drained).await;
    shared.state().turned_away -= 1;
    shared.changed.notify_one();
}

/// Where a rank that has proven itself belongs.
enum Admitted {
    /// Here: the number of its link.
    Child(u64),
    /// Below one of these ranks.
    Elsewhere(Vec<RankAddress>),
}

fn admit_child(
    shared: &Membership,
    peer: &Authenticated,
    info: &Info,
    sender: &Sender,
) -> Result<Admitted, HandshakeFailure> {
    handshake::check_peer(shared, info, &peer.peer)?;
    let ancestors = handshake::redirected(shared, peer)?;
    if !ancestors.is_empty() {
        return Ok(Admitted::Elsewhere(ancestors));
    }
    let origin = Origin {
        ip: info.remote().ip(),
        parent: None,
    };
    let id = handshake::register(shared, peer, origin, sender.clone())?;
    Ok(Admitted::Child(id))
}

/// Notes why a peer was turned away. Nothing of a group that has formed changes.
fn turn_away(shared: &Membership, rank: usize, failed: &HandshakeFailure, info: &Info) {
    let remote = info.remote();
    tracing::warn!(rank = shared.rank, %remote, reason = %failed, "turned a connection away");
    let known = shared.addresses.get(rank).filter(|_| rank != shared.rank);
    let address = known.unwrap_or_else(|| remote.to_string());
    match failed {
        HandshakeFailure::Refused(code, ..) => {
            // Of two processes with one rank, only the second one has heard it by now.
            let informed = Some(rank).filter(|_| *code != Code::AlreadyExists);
            shared.refuse(informed, failed.clone().refusal(address));
        }
        HandshakeFailure::Later(_, reason) => {
            if rank != shared.rank {
                let reason = format!("a connection from {remote} in its name: {reason}");
                shared.record_missing(rank, reason);
            }
        }
        HandshakeFailure::Unproven(reason) => {
            let reason = format!("{reason} (a connection from {remote} as rank {rank})");
            let refusal = HandshakeFailure::Unproven(reason).refusal(address);
            if shared.state().note_unproven(rank, refusal) {
                shared.changed.notify_one();
            }
        }
    }
}

/// Notes a peer whose certificate was not accepted.
fn note_certificate(shared: &Membership, address: String, reason: String) {
    tracing::warn!(rank = shared.rank, address, reason, "refused a certificate");
    let refusal = HandshakeFailure::Unproven(reason).refusal(address);
    shared.state().note_certificate(refusal);
}

/// Starts everything that listens.
pub(super) fn start(
    shared: &Arc<Membership>,
    listener: TcpListener,
    reporter: HealthReporter,
) -> io::Result<()> {
    let (noting, lacking) = (shared.clone(), shared.clone());
    let refused = move |address, reason| {
        if let Some(reason) = reason {
            note_certificate(&noting, address, reason);
        }
    };
    let failed = move |why: String| {
        lacking.entrance.note_shortage(why.clone());
        lacking.state().shortage = Some(why);
    };
    let mut accepting = peers::accept_or_say(listener, shared.tls.clone(), refused, failed)?;
    let control = ControlService {
        shared: shared.clone(),
    };
    let health = tonic_health::server::HealthService::from_health_reporter(reporter);
    let health = tonic_health::pb::health_server::HealthServer::new(health);
    let server = Server::builder()
        .max_concurrent_streams(Some(8))
        // What a peer can make this process hold, for each stream and for each connection.
        .initial_stream_window_size(Some(2 * MESSAGE_MAX_BYTES as u32))
        .initial_connection_window_size(Some(4 * MESSAGE_MAX_BYTES as u32))
        .http2_max_header_list_size(Some(8 << 10))
        .add_service(control)
        .add_service(health.max_decoding_message_size(MESSAGE_MAX_BYTES));
    let (proven, serving) = mpsc::channel(QUEUE);
    tokio::spawn(server.serve_with_incoming(ReceiverStream::new(serving)));
    let shared = shared.clone();
    tokio::spawn(async move {
        while let Some(Ok(connection)) = accepting.next().await {
            tokio::spawn(admit(shared.clone(), connection, proven.clone()));
        }
    });
    Ok(())
}
