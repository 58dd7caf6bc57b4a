//! The first calls on every connection: both sides show who they are.

use std::sync::Arc;

use tonic::{Code, Request, Response, Status};

use crate::generated::handshake_client::HandshakeClient;
use crate::generated::handshake_server::Handshake;
use crate::generated::{Hello, HelloReply, Proof, ProofReply};
use crate::rpc::RpcOptions;
use crate::rpc::channel::{Channel, ConnectError};
use crate::rpc::peer::{Challenge, Peer};

const VERSION: &str = env!("CARGO_PKG_VERSION");
const CLIENT: &str = "distribute-ps proof of the client";
const SERVER: &str = "distribute-ps proof of the server";

/// 32 bytes that nobody can guess.
pub(super) fn nonce() -> Result<Vec<u8>, String> {
    let mut bytes = vec![0; 32];
    match getrandom::fill(&mut bytes) {
        Ok(()) => Ok(bytes),
        Err(error) => Err(format!("no random numbers from the system: {error}")),
    }
}

/// One side of a connection.
#[derive(Debug, Clone, Copy)]
struct Side<'a> {
    protocol: u32,
    version: &'a str,
    has_token: bool,
}

impl<'a> Side<'a> {
    fn own(options: &RpcOptions) -> Side<'a> {
        Side {
            protocol: options.protocol_version,
            version: VERSION,
            has_token: options.security.has_token(),
        }
    }
}

/// What differs between a process, which is called `it`, and another one, called `other`.
fn differs(it: Side<'_>, own: Side<'_>, other: &str) -> Option<(Code, String)> {
    let builds = |what: String| Some((Code::FailedPrecondition, what));
    if it.protocol != own.protocol {
        return builds(format!(
            "it speaks version {} of the protocol (distribute-ps {}), {other} version {} \
             (distribute-ps {}); run the same build everywhere",
            it.protocol, it.version, own.protocol, own.version
        ));
    }
    if it.version != own.version {
        return builds(format!(
            "it has version {} of distribute-ps, {other} version {}; run the same build everywhere",
            it.version, own.version
        ));
    }
    let tokens = |what: String| Some((Code::Unauthenticated, what));
    match (it.has_token, own.has_token) {
        (true, false) => tokens(format!(
            "it has a token, {other} has none; give all processes the job's token"
        )),
        (false, true) => tokens(format!(
            "it has no token, {other} has one; give all processes the job's token"
        )),
        _ => None,
    }
}

/// The serving side.
pub(super) struct HandshakeService {
    pub(super) options: Arc<RpcOptions>,
}

impl Hello {
    fn side(&self) -> Side<'_> {
        Side {
            protocol: self.protocol_version,
            version: &self.crate_version,
            has_token: self.has_token,
        }
    }
}

fn peer<T>(request: &Request<T>) -> Result<Arc<Peer>, Status> {
    let peer = request.extensions().get::<Arc<Peer>>();
    peer.cloned()
        .ok_or_else(|| Status::internal("the connection is unknown"))
}

#[tonic::async_trait]
impl Handshake for HandshakeService {
    async fn greet(&self, request: Request<Hello>) -> Result<Response<HelloReply>, Status> {
        let peer = peer(&request)?;
        let hello = request.into_inner();
        let (own, theirs) = (Side::own(&self.options), hello.side());
        if let Some((_, what)) = differs(theirs, own, "this process") {
            peer.refuse(&what);
        }
        // The client reads it: there `it` is this process.
        if let Some((code, what)) = differs(own, theirs, "this process") {
            return Err(Status::new(code, what));
        }
        if hello.service != self.options.service {
            let (wanted, is) = (hello.service, self.options.service);
            peer.refuse(&format!("it took this {is} for a {wanted}"));
            let what = format!("it is a {is}, not a {wanted}; check the cluster's addresses");
            return Err(Status::failed_precondition(what));
        }
        let server = nonce().map_err(Status::internal)?;
        peer.challenge(Challenge {
            client: hello.nonce,
            server: server.clone(),
        });
        Ok(Response::new(HelloReply {
            protocol_version: own.protocol,
            crate_version: VERSION.to_string(),
            nonce: server,
            has_token: own.has_token,
        }))
    }

    async fn prove(&self, request: Request<Proof>) -> Result<Response<ProofReply>, Status> {
        let peer = peer(&request)?;
        let Some(Challenge { client, server }) = peer.take_challenge() else {
            return Err(Status::failed_precondition("a proof without a greeting"));
        };
        let security = &self.options.security;
        let parts: [&[u8]; 2] = [&client, &server];
        if !security.verify(CLIENT, &parts, &request.into_inner().mac) {
            peer.refuse("its token is another one");
            return Err(Status::unauthenticated(
                "its token is another one; give all processes the job's token",
            ));
        }
        peer.admit();
        Ok(Response::new(ProofReply {
            mac: security.proof(SERVER, &parts),
        }))
    }
}

/// The dialling side.
pub(super) async fn authenticate_as_client(
    channel: &Channel,
    options: &RpcOptions,
) -> Result<(), ConnectError> {
    let security = &options.security;
    let mut client = HandshakeClient::new(channel.clone())
        .max_decoding_message_size(4096)
        .max_encoding_message_size(4096);
    let own = nonce().map_err(ConnectError::Unavailable)?;
    let hello = Hello {
        protocol_version: options.protocol_version,
        crate_version: VERSION.to_string(),
        service: options.service.to_string(),
        nonce: own.clone(),
        has_token: security.has_token(),
    };
    let reply = client.greet(hello).await.map_err(rejected)?.into_inner();
    let theirs = Side {
        protocol: reply.protocol_version,
        version: &reply.crate_version,
        has_token: reply.has_token,
    };
    if let Some((_, what)) = differs(theirs, Side::own(options), "this process") {
        return Err(ConnectError::Refused(what));
    }
    let parts: [&[u8]; 2] = [&own, &reply.nonce];
    let mac = security.proof(CLIENT, &parts);
    let reply = client.prove(Proof { mac }).await.map_err(rejected)?;
    if !security.verify(SERVER, &parts, &reply.into_inner().mac) {
        return Err(ConnectError::Refused(
            "its token is another one".to_string(),
        ));
    }
    Ok(())
}

/// What a failed call of the handshake says about the process at the other end.
fn rejected(status: Status) -> ConnectError {
    let message = status.message().to_string();
    match status.code() {
        Code::Unauthenticated | Code::FailedPrecondition => ConnectError::Refused(message),
        Code::Unimplemented => ConnectError::Refused(format!(
            "it is no process of distribute-ps, or one of another version ({message})"
        )),
        _ => ConnectError::Unavailable(message),
    }
}

#[cfg(test)]
mod tests {
    use distribute_core::collectives::control::security::Security;

    use super::*;
    use crate::rpc::PROTOCOL_VERSION;

    #[test]
    fn other_versions_and_tokens_are_told_apart() {
        let own = Side {
            protocol: 3,
            version: "0.1.0",
            has_token: false,
        };
        assert_eq!(differs(own, own, "this process"), None);
        let other = Side { protocol: 4, ..own };
        let (code, what) = differs(other, own, "this process").unwrap();
        assert_eq!(code, Code::FailedPrecondition);
        let expected = "it speaks version 4 of the protocol (distribute-ps 0.1.0), this process \
                        version 3 (distribute-ps 0.1.0); run the same build everywhere";
        assert_eq!(what, expected);
        let other = Side {
            version: "0.0.9",
            ..own
        };
        let (_, what) = differs(other, own, "this process").unwrap();
        assert!(what.contains("0.0.9") && what.contains("0.1.0"), "{what}");
        for (it, own) in [(true, false), (false, true)] {
            let side = |has_token| Side {
                protocol: 3,
                version: "0.1.0",
                has_token,
            };
            let (code, what) = differs(side(it), side(own), "this process").unwrap();
            assert_eq!(code, Code::Unauthenticated);
            assert_eq!(what.starts_with("it has a token"), it, "{what}");
        }
    }

    /// Clients and coordinators meet servers and workers of another version: both sides say which.
    #[test]
    fn servers_and_workers_of_another_version_are_refused_by_both_versions() {
        use std::sync::Arc;
        use std::time::{Duration, Instant};

        use crate::rpc::RpcListener;
        use crate::{
            ClientOptions, ClusterCoordinator, CoordinatorOptions, PsError, StepRegistry,
            VariableClient,
        };

        let begun = Instant::now();
        let other = |service| {
            let mut options = RpcOptions::new(service, Security::default());
            options.protocol_version = 77;
            let listener = RpcListener::bind(0, "127.0.0.1:0", options).unwrap();
            listener.serve(tonic::service::Routes::default()).unwrap()
        };
        let (server, worker) = (other("parameter server"), other(crate::worker::SERVICE));
        let addresses = [server.address().to_string()];
        let of_client = VariableClient::connect(&addresses, ClientOptions::default());
        let none: [&str; 0] = [];
        let of_coordinator = ClusterCoordinator::connect(
            &[worker.address().to_string()],
            &none,
            Arc::new(StepRegistry::new()),
            CoordinatorOptions::default(),
        );
        for error in [of_client.unwrap_err(), of_coordinator.unwrap_err()] {
            assert!(matches!(error, PsError::Refused { .. }), "{error}");
            let expected = format!(
                "it speaks version 77 of the protocol (distribute-ps {VERSION}), this process \
                 version {PROTOCOL_VERSION} (distribute-ps {VERSION})"
            );
            assert!(error.to_string().contains(&expected), "{error}");
        }
        for refusing in [&server, &worker] {
            let noted = refusing.last_refusal().unwrap();
            let expected = format!("it speaks version {PROTOCOL_VERSION} of the protocol");
            assert!(
                noted.contains(&expected) && noted.contains("version 77"),
                "{noted}"
            );
        }
        assert!(begun.elapsed() < Duration::from_secs(20));
    }

    /// A server of another version, as a client sees it, and a call without a handshake.
    #[test]
    fn a_server_refuses_other_versions_other_kinds_and_calls_without_a_handshake() {
        use std::time::Duration;

        use crate::rpc::RpcListener;

        let options = RpcOptions::new("worker", Security::default());
        let listener = RpcListener::bind(0, "127.0.0.1:0", options.clone()).unwrap();
        let address = listener.address().to_string();
        let server = listener.serve(tonic::service::Routes::default()).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        runtime.unwrap().block_on(async {
            let limit = Duration::from_secs(20);
            let channel = Channel::connect(&address, &options, limit).await.unwrap();
            let hello = Hello {
                protocol_version: PROTOCOL_VERSION + 1,
                crate_version: VERSION.to_string(),
                service: "worker".to_string(),
                nonce: vec![1; 32],
                has_token: false,
            };
            let refused = HandshakeClient::new(channel.clone())
                .greet(hello)
                .await
                .unwrap_err();
            assert_eq!(refused.code(), Code::FailedPrecondition);
            assert!(refused.message().contains("version"), "{refused}");
            let proof = Proof { mac: Vec::new() };
            let refused = HandshakeClient::new(channel)
                .prove(proof)
                .await
                .unwrap_err();
            assert!(refused.message().contains("greeting"), "{refused}");
            let other = RpcOptions::default();
            match Channel::connect(&address, &other, limit).await {
                Err(ConnectError::Refused(what)) => {
                    assert!(
                        what.contains("is a worker, not a parameter server"),
                        "{what}"
                    );
                    let noted = server.last_refusal().unwrap();
                    assert!(noted.contains("took this worker for a parameter server"));
                }
                other => panic!("{other:?}"),
            }
        });
    }
}
