//! The first calls on every connection: both sides show who they are.

use std::sync::Arc;

use distribute_core::collectives::control::security::Security;
use tonic::{Code, Request, Response, Status};

use crate::generated::handshake_client::HandshakeClient;
use crate::generated::handshake_server::Handshake;
use crate::generated::{Hello, HelloReply, Proof, ProofReply};
use crate::rpc::channel::{Channel, ConnectError};
use crate::rpc::listen::Peer;
use crate::rpc::{PROTOCOL_VERSION, RpcOptions};

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

/// What differs between two sides, seen from the one that has `own`.
fn differs(
    own: &Security,
    protocol: u32,
    version: &str,
    has_token: bool,
) -> Option<(Code, String)> {
    let it = |what: String| Some((Code::FailedPrecondition, what));
    if protocol != PROTOCOL_VERSION {
        return it(format!(
            "it speaks version {protocol} of the protocol, this process version \
             {PROTOCOL_VERSION}; run the same build everywhere"
        ));
    }
    if version != VERSION {
        return it(format!(
            "it has version {version} of distribute-ps, this process version {VERSION}; run the \
             same build everywhere"
        ));
    }
    match (has_token, own.has_token()) {
        (true, false) => Some((
            Code::Unauthenticated,
            "it has a token, this process has none; give all processes the job's token".into(),
        )),
        (false, true) => Some((
            Code::Unauthenticated,
            "it has no token, this process has one; give all processes the job's token".into(),
        )),
        _ => None,
    }
}

/// What the server keeps of a Hello until the proof.
#[derive(Debug)]
pub(super) struct Challenge {
    client: Vec<u8>,
    server: Vec<u8>,
}

/// The serving side.
pub(super) struct Greeter {
    pub(super) options: Arc<RpcOptions>,
}

fn peer<T>(request: &Request<T>) -> Result<Arc<Peer>, Status> {
    let peer = request.extensions().get::<Arc<Peer>>();
    peer.cloned()
        .ok_or_else(|| Status::internal("the connection is unknown"))
}

#[tonic::async_trait]
impl Handshake for Greeter {
    async fn greet(&self, request: Request<Hello>) -> Result<Response<HelloReply>, Status> {
        let peer = peer(&request)?;
        let hello = request.into_inner();
        let own = &self.options.security;
        let (version, token) = (&hello.crate_version, hello.has_token);
        if let Some((code, what)) = differs(own, hello.protocol_version, version, token) {
            return Err(Status::new(code, format!("says of this process: {what}")));
        }
        if hello.service != self.options.service {
            let (wanted, is) = (hello.service, self.options.service);
            let what = format!("is a {is}, not a {wanted}; check the cluster's addresses");
            return Err(Status::failed_precondition(what));
        }
        let server = nonce().map_err(Status::internal)?;
        peer.challenge(Challenge {
            client: hello.nonce,
            server: server.clone(),
        });
        Ok(Response::new(HelloReply {
            protocol_version: PROTOCOL_VERSION,
            crate_version: VERSION.to_string(),
            nonce: server,
            has_token: own.has_token(),
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
            return Err(Status::unauthenticated(
                "says of this process: its token is another one; give all processes the job's \
                 token",
            ));
        }
        peer.admit();
        Ok(Response::new(ProofReply {
            mac: security.proof(SERVER, &parts),
        }))
    }
}

/// The dialling side.
pub(super) async fn as_client(channel: &Channel, options: &RpcOptions) -> Result<(), ConnectError> {
    let security = &options.security;
    let mut client = HandshakeClient::new(channel.clone())
        .max_decoding_message_size(4096)
        .max_encoding_message_size(4096);
    let own = nonce().map_err(ConnectError::Unavailable)?;
    let hello = Hello {
        protocol_version: PROTOCOL_VERSION,
        crate_version: VERSION.to_string(),
        service: options.service.to_string(),
        nonce: own.clone(),
        has_token: security.has_token(),
    };
    let reply = client.greet(hello).await.map_err(rejected)?.into_inner();
    let (version, token) = (&reply.crate_version, reply.has_token);
    if let Some((_, what)) = differs(security, reply.protocol_version, version, token) {
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
    use distribute_core::collectives::control::security::Token;

    use super::*;

    #[test]
    fn other_versions_and_tokens_are_told_apart() {
        let without = Security::default();
        let with = Security::default().token(Token::new("0123456789abcdef").unwrap());
        assert_eq!(differs(&without, PROTOCOL_VERSION, VERSION, false), None);
        assert_eq!(differs(&with, PROTOCOL_VERSION, VERSION, true), None);
        let (code, what) = differs(&with, PROTOCOL_VERSION + 1, VERSION, true).unwrap();
        assert_eq!(code, Code::FailedPrecondition);
        assert!(
            what.contains("protocol") && what.contains("same build"),
            "{what}"
        );
        let (_, what) = differs(&with, PROTOCOL_VERSION, "0.0.9", true).unwrap();
        assert!(what.contains("0.0.9") && what.contains(VERSION), "{what}");
        for (own, theirs) in [(&without, true), (&with, false)] {
            let (code, _) = differs(own, PROTOCOL_VERSION, VERSION, theirs).unwrap();
            assert_eq!(code, Code::Unauthenticated);
        }
    }

    /// A server of another version, as a client sees it, and a call without a handshake.
    #[test]
    fn a_server_refuses_other_versions_other_kinds_and_calls_without_a_handshake() {
        use std::time::Duration;

        use crate::rpc::RpcListener;

        let options = RpcOptions::new("worker", Security::default());
        let listener = RpcListener::bind(0, "127.0.0.1:0", options.clone()).unwrap();
        let address = listener.address().to_string();
        let _server = listener.serve(tonic::service::Routes::default()).unwrap();
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
                }
                other => panic!("{other:?}"),
            }
        });
    }
}
