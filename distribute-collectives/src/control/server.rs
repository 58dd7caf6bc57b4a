//! What listens: the streams of higher ranks, and the services that any gRPC client may ask.

use std::io;
use std::net::TcpListener;
use std::sync::Arc;
use std::time::Instant;

use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Server;
use tonic::transport::server::Connected;
use tonic::{Code, Request, Response, Status, Streaming};
use tonic_health::server::HealthReporter;

use crate::control::client::{self, MESSAGE_MAX_BYTES};
use crate::control::connection::Connection;
use crate::control::generated::Envelope;
use crate::control::generated::control_server::{Control, ControlServer};
use crate::control::handshake::{self, HandshakeFailure, STEP_TIMEOUT};
use crate::control::membership::{Membership, Phase, QUEUE, Sender, UnprovenClaim};
use crate::control::peers;
#[cfg(feature = "reflection")]
use crate::control::reflection;

/// The connection that a request came over.
type Info = <Connection as Connected>::ConnectInfo;

/// The service of `control.proto`.
struct Service {
    shared: Arc<Membership>,
}

#[tonic::async_trait]
impl Control for Service {
    type JoinStream = ReceiverStream<Result<Envelope, Status>>;

    async fn join(
        &self,
        request: Request<Streaming<Envelope>>,
    ) -> Result<Response<Self::JoinStream>, Status> {
        let Some(info) = request.extensions().get::<Info>().cloned() else {
            return Err(Status::internal("the connection is unknown"));
        };
        let (sender, receiver) = mpsc::channel(QUEUE);
        let shared = self.shared.clone();
        tokio::spawn(serve(shared, request.into_inner(), sender, info));
        Ok(Response::new(ReceiverStream::new(receiver)))
    }
}

/// One stream of a higher rank, from its Hello to its end.
async fn serve(
    shared: Arc<Membership>,
    mut inbound: Streaming<Envelope>,
    sender: Sender,
    info: Info,
) {
    let authenticated = handshake::authenticate_as_server(&shared, &sender, &mut inbound).await;
    let registered = authenticated.and_then(|peer| {
        let rank = peer.hello.rank as usize;
        handshake::register(&shared, &peer, info.remote.ip(), sender.clone())
            .map(|id| (rank, id))
            .map_err(|failed| (Some(rank), failed))
    });
    match registered {
        Ok((rank, id)) => {
            info.admit();
            drop(sender);
            client::read_messages(&shared, rank, id, inbound).await;
        }
        Err((claimed, failed)) => {
            shared.state().turned_away += 1;
            turn_away(&shared, claimed, &failed, &info);
            let _ = sender.send(Err(failed.status(shared.rank))).await;
            drop(sender);
            // Until the peer has read it and closes its half.
            let drained = async { while let Ok(Some(_)) = inbound.message().await {} };
            let _ = tokio::time::timeout(STEP_TIMEOUT, drained).await;
            shared.state().turned_away -= 1;
            shared.changed.notify_one();
        }
    }
}

/// Notes why a peer was turned away. Nothing of a group that has formed changes.
fn turn_away(shared: &Membership, claimed: Option<usize>, failed: &HandshakeFailure, info: &Info) {
    let remote = info.remote;
    tracing::warn!(rank = shared.rank, %remote, ?failed, "turned a connection away");
    let Some(rank) = claimed else {
        return;
    };
    let listed = shared.addresses.get(rank).filter(|_| rank != shared.rank);
    let address = listed.cloned().unwrap_or_else(|| remote.to_string());
    match failed {
        HandshakeFailure::Refused(..) | HandshakeFailure::OtherOptions { .. } => {
            // Of two processes with one rank, only the second one has heard it by now.
            let is_second = matches!(failed, HandshakeFailure::Refused(Code::AlreadyExists, _));
            let informed = Some(rank).filter(|_| !is_second);
            shared.refuse(informed, failed.clone().refusal(address));
        }
        HandshakeFailure::Later(_, reason) => {
            if rank > shared.rank {
                let reason = format!("a connection from {remote} in its name: {reason}");
                shared.record_missing(rank, reason);
            }
        }
        HandshakeFailure::Unproven(reason) => {
            let mut state = shared.state();
            let known = |claim: &UnprovenClaim| claim.rank == rank;
            if state.phase == Phase::Joining && !state.unproven_claims.iter().any(known) {
                let reason = format!("{reason} (a connection from {remote} as rank {rank})");
                let refusal = HandshakeFailure::Unproven(reason).refusal(address);
                state.unproven_claims.push(UnprovenClaim {
                    since: Instant::now(),
                    rank,
                    refusal,
                });
                drop(state);
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
    let noting = shared.clone();
    let accepting = peers::accept(listener, shared.tls.clone(), move |address, reason| {
        if let Some(reason) = reason {
            note_certificate(&noting, address, reason);
        }
    })?;
    let control = ControlServer::new(Service {
        shared: shared.clone(),
    })
    .max_decoding_message_size(MESSAGE_MAX_BYTES)
    .max_encoding_message_size(MESSAGE_MAX_BYTES);
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
    #[cfg(feature = "reflection")]
    let server = reflection::add_to(server)?;
    tokio::spawn(server.serve_with_incoming(accepting));
    Ok(())
}
