//! What every connection begins with: both sides show who they are, by the handshake that all
//! processes of a job make. Nothing else is read of a peer before; HTTP/2 begins behind it.

use std::net::SocketAddr;

use distribute_net::exchange::{self, ExchangeError};
use distribute_net::handshake::{HandshakeError, Hello};
use distribute_net::peers::Connection;

use crate::rpc::RpcOptions;
use crate::rpc::failure::{ConnectError, ConnectionEnd};

const BUILD: &str = concat!("distribute-ps ", env!("CARGO_PKG_VERSION"));

/// What a side says of itself, and of the address where the other one is or thinks that it is.
fn hello(options: &RpcOptions, address: Option<SocketAddr>) -> Hello {
    let mut hello = Hello::new(options.purpose, options.protocol_version, BUILD);
    // Written in one way, however it was found.
    let plain = |it: SocketAddr| SocketAddr::new(it.ip().to_canonical(), it.port()).to_string();
    hello.address = address.map(plain).unwrap_or_default();
    hello
}

/// The listening side; `address` is where it listens. Admits the peer.
pub(super) async fn listen(
    connection: &mut Connection,
    options: &RpcOptions,
    address: SocketAddr,
) -> Result<(), ExchangeError> {
    // One that listens everywhere does not know under which addresses it is known, and without a
    // token nothing is proven anyway: who forwards such a port may.
    let is_known = !address.ip().is_unspecified() && options.security.has_token();
    let mut own = hello(options, is_known.then_some(address));
    if let Some(task) = options.task {
        (own.identity.group, own.identity.task) = (options.purpose.to_string(), task as u32);
    }
    let secret = options.security.secret();
    let peer = exchange::listen(connection, own.clone(), &secret)
        .await?
        .peer;
    Ok(own.answers(&peer)?)
}

/// The dialling side. A process of the right kind with another number is refused: what is divided
/// over all of them would get to the wrong ones.
pub(super) async fn dial(
    connection: &mut Connection,
    options: &RpcOptions,
) -> Result<(), ConnectError> {
    let mut own = hello(options, Some(connection.guard().remote()));
    own.peer_task = options.task.map(|task| task as u32);
    let secret = options.security.secret();
    let dialled = exchange::dial(connection, own.clone(), &secret).await;
    let answered = dialled.and_then(|it| Ok(it.peer.answers(&own)?));
    answered.map_err(connect_error)
}

/// Why a process that dialled is turned away. Nothing for one that never was of a job.
pub(super) fn refusal(error: &ExchangeError) -> Option<String> {
    match error {
        ExchangeError::Refused(HandshakeError::Malformed { .. }) => None,
        ExchangeError::Refused(HandshakeError::OtherPurpose { theirs, ours }) => {
            Some(format!("it took this {ours} for a {theirs}"))
        }
        ExchangeError::Refused(error) => Some(error.to_string()),
        _ => None,
    }
}

fn connect_error(error: ExchangeError) -> ConnectError {
    ConnectError::Refused(match error {
        ExchangeError::Broken(error) => {
            return ConnectError::Unavailable(ConnectionEnd::of(&error).to_string());
        }
        ExchangeError::Refused(HandshakeError::OtherPurpose { theirs, ours }) => {
            format!("it is a {theirs}, not a {ours}; check the cluster's addresses")
        }
        ExchangeError::Refused(error @ HandshakeError::Malformed { .. }) => {
            format!("it is no process of distribute-ps, or one of another version ({error})")
        }
        error => error.to_string(),
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::{Duration, Instant};

    use distribute_collectives::Interruption;
    use distribute_net::exchange::{receive_text, send_text};
    use distribute_net::handshake::{Dialer, MESSAGE_BYTES_MAX, Purpose};
    use distribute_net::peers;
    use distribute_net::security::Security;
    use hyper::body::Incoming;

    use super::*;
    use crate::rpc::message::{Outgoing, Reader};
    use crate::rpc::{Channel, PROTOCOL_VERSION, Peer, RpcListener};
    use crate::{
        ClientOptions, ClusterCoordinator, CoordinatorOptions, PsError, StepRegistry,
        VariableClient,
    };

    const LIMIT: Duration = Duration::from_secs(20);

    /// A process that answers nothing.
    fn no_calls(_: Reader<Incoming>, _: Arc<Peer>) -> crate::rpc::Answer {
        Box::pin(async { Outgoing::default() })
    }

    /// Clients and coordinators meet servers and workers of another version: both sides say which.
    #[test]
    fn servers_and_workers_of_another_version_are_refused_by_both_versions() {
        let begun = Instant::now();
        let other = |purpose| {
            let mut options = RpcOptions::new(purpose, None, Security::default());
            options.protocol_version = 77;
            let listener =
                RpcListener::bind("127.0.0.1:0", options, LIMIT, &Interruption::default()).unwrap();
            listener.serve(no_calls).unwrap()
        };
        let (server, worker) = (other(Purpose::ParameterServer), other(Purpose::Worker));
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
                "it speaks version 77 of the protocol ({BUILD}), this process \
                 version {PROTOCOL_VERSION} ({BUILD})"
            );
            assert!(error.to_string().contains(&expected), "{error}");
        }
        for refusing in [&server, &worker] {
            // The one that is refused may hear of it first.
            let noted = loop {
                match refusing.last_refusal() {
                    Some(noted) => break noted,
                    None => assert!(begun.elapsed() < LIMIT, "not noted"),
                }
                std::thread::yield_now();
            };
            let expected = format!("it speaks version {PROTOCOL_VERSION} of the protocol");
            assert!(
                noted.contains(&expected) && noted.contains("version 77"),
                "{noted}"
            );
        }
        assert!(begun.elapsed() < LIMIT);
    }

    /// A worker, as seen by a peer that wants something else or makes no handshake.
    #[test]
    fn a_worker_refuses_other_kinds_and_what_is_no_handshake() {
        let options = RpcOptions::new(Purpose::Worker, None, Security::default());
        let listener = RpcListener::bind(
            "127.0.0.1:0",
            options.clone(),
            LIMIT,
            &Interruption::default(),
        )
        .unwrap();
        let address = listener.address().to_string();
        let server = listener.serve(no_calls).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        runtime.unwrap().block_on(async {
            Channel::connect(&address, &options, LIMIT).await.unwrap();
            for text in ["{}", ""] {
                let mut peer = peers::connect(&address, &options.security).await.unwrap();
                send_text(&mut peer, text).await.unwrap();
                let answer = receive_text(&mut peer, MESSAGE_BYTES_MAX).await.unwrap();
                assert!(answer.contains("no handshake"), "{answer}");
                assert_eq!(server.last_refusal(), None);
            }
            let mut peer = peers::connect(&address, &options.security).await.unwrap();
            let own = hello(&options, None);
            let (_, first) = Dialer::start(own, &options.security.secret()).unwrap();
            send_text(&mut peer, &first).await.unwrap();
            receive_text(&mut peer, MESSAGE_BYTES_MAX).await.unwrap();
            send_text(&mut peer, "a proof of nothing").await.unwrap();
            assert!(receive_text(&mut peer, MESSAGE_BYTES_MAX).await.is_err());
            let noted = server.last_refusal().unwrap();
            assert!(noted.contains("its token is another one"), "{noted}");
            let other = RpcOptions::new(Purpose::ParameterServer, None, Security::default());
            match Channel::connect(&address, &other, LIMIT).await {
                Err(ConnectError::Refused(what)) => {
                    assert!(
                        what.contains("is a worker, not a parameter server"),
                        "{what}"
                    );
                }
                other => panic!("{other:?}"),
            }
            // The last word was on its way when this side had decided.
            while !server
                .last_refusal()
                .is_some_and(|it| it.contains("took this worker for a parameter server"))
            {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        });
    }
}
