//! Bytes of processes that are none of the job's.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use crate::stopwatch::Stopwatch;
use bytes::Bytes;
use distribute_core::collectives::control::security::{Security, Token};
use distribute_ps::{
    ClientOptions, ClusterCoordinator, CoordinatorOptions, ParameterServer, PsError, RunId,
    RunOptions, ServerOptions, StepRegistry, VariableClient, WorkerOptions, WorkerServer,
};
use hostile::descriptors::assert_port_pauses;
use hostile::flood::{Attack, PREFACE, assert_deaf_peers_end, assert_flood_costs_nothing, demands};
use http::Request;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rand::{Rng, SeedableRng};

use hostile::alone::is_alone;
use hostile::memory::{forget_peak, peak_bytes, resident_bytes};

use super::certificates::{Authority, TOKEN};
use crate::within_limit;

fn only_token() -> Security {
    Security::default().token(Token::new(TOKEN).unwrap())
}

/// Sends bytes and reads until the other side closes, or says nothing for a while.
fn send(address: SocketAddr, bytes: &[u8]) {
    let mut socket = TcpStream::connect(address).unwrap();
    socket
        .set_read_timeout(Some(Duration::from_millis(100)))
        .unwrap();
    // It may be closed before all is sent.
    let _ = socket.write_all(bytes);
    let mut answer = [0; 4096];
    while matches!(socket.read(&mut answer), Ok(count) if count > 0) {}
}

/// What unauthenticated peers might send.
fn nonsense() -> Vec<Vec<u8>> {
    let mut random = rand_chacha::ChaCha8Rng::seed_from_u64(7);
    let mut noise = |length: usize| {
        let mut bytes = vec![0; length];
        random.fill_bytes(&mut bytes);
        bytes
    };
    let after_preface = |rest: &[u8]| [PREFACE, rest].concat();
    vec![
        Vec::new(),
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n".to_vec(),
        noise(100_000),
        after_preface(&noise(100_000)),
        // A DATA frame that announces 16 MiB, on no stream and on one.
        after_preface(&[0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 0]),
        after_preface(&[
            0, 0, 0, 4, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 1,
        ]),
        // Settings without end.
        after_preface(&[0, 0, 0, 4, 0, 0, 0, 0, 0].repeat(10_000)),
        // A header block that is never ended.
        after_preface(&[0, 0x40, 0, 1, 0, 0, 0, 0, 1].repeat(1_000)),
        vec![0x16, 0x03, 0x01, 0xff, 0xff],
    ]
}

#[test]
fn nonsense_neither_ends_nor_fills_servers_and_workers() {
    if !is_alone(
        module_path!(),
        "nonsense_neither_ends_nor_fills_servers_and_workers",
    ) {
        return;
    }
    within_limit(|| {
        let ca = Authority::new();
        for security in [only_token(), ca.security()] {
            let options = ServerOptions::new(0, security.clone());
            let server = ParameterServer::bind("127.0.0.1:0", options).unwrap();
            let mut options = WorkerOptions::default();
            options.security = security.clone();
            let worker = WorkerServer::bind("127.0.0.1:0", Arc::default(), options).unwrap();
            let before = resident_bytes("self") >> 20;
            for address in [server.address(), worker.address()] {
                std::thread::scope(|scope| {
                    for bytes in nonsense() {
                        scope.spawn(move || (0..5).for_each(|_| send(address, &bytes)));
                    }
                });
            }
            let after = resident_bytes("self") >> 20;
            assert!(after < before + 64, "{before} MiB, then {after}");
            let mut options = ClientOptions::default();
            options.security = security;
            let addresses = [server.address().to_string()];
            let client = VariableClient::connect(&addresses, options).unwrap();
            let run = RunId::random().unwrap();
            client.attach(run, RunOptions::default()).unwrap();
        }
    });
}

/// What a flood sends: nothing, nonsense, half a preface of HTTP/2, half a TLS hello.
const HALVES: [&[u8]; 4] = [
    b"",
    b"nonsense",
    b"PRI * HTTP/2.0\r\n",
    &[0x16, 0x03, 0x01, 0x02, 0x00, 0x01, 0x00],
];

/// This many connections that stay, as long as the other side lets them.
fn flood(address: SocketAddr, count: usize, bytes: &[u8]) -> Vec<TcpStream> {
    let one = |_| {
        let mut unauthenticated = TcpStream::connect(address).unwrap();
        // The other side may have closed it already.
        let _ = unauthenticated.write_all(bytes);
        unauthenticated
    };
    (0..count).map(one).collect()
}

fn connects_at_once_in_a_flood(security: &Security) {
    for bytes in HALVES {
        for count in [70, 300] {
            let took = connected_in_a_flood(security, count, bytes);
            assert!(
                took < Duration::from_secs(4),
                "{took:?}: {count} of {bytes:?}"
            );
        }
    }
}

#[test]
fn a_flood_delays_no_peer_that_has_the_token() {
    if !is_alone(module_path!(), "a_flood_delays_no_peer_that_has_the_token") {
        return;
    }
    within_limit(|| connects_at_once_in_a_flood(&only_token()));
}

#[test]
fn a_flood_delays_no_peer_that_has_a_certificate() {
    if !is_alone(
        module_path!(),
        "a_flood_delays_no_peer_that_has_a_certificate",
    ) {
        return;
    }
    within_limit(|| connects_at_once_in_a_flood(&Authority::new().security()));
}

/// With the windows of a member an unauthenticated peer may send what it likes: it is not read.
#[test]
fn unauthenticated_peers_that_acknowledge_the_settings_cost_nothing() {
    let name = "unauthenticated_peers_that_acknowledge_the_settings_cost_nothing";
    if !is_alone(module_path!(), name) {
        return;
    }
    within_limit(|| {
        let ca = Authority::new();
        for security in [only_token(), ca.security()] {
            let (server, worker) = server_and_worker(&security);
            let addresses = [server.address(), worker.address()];
            // What the first connections cost once is not what they keep.
            for address in addresses {
                send(address, b"GET /");
            }
            forget_peak("self");
            let before = peak_bytes("self");
            for attack in Attack::all("/") {
                for address in addresses {
                    assert_flood_costs_nothing(address, &attack);
                }
            }
            let more = peak_bytes("self") - before;
            println!("{} KiB for all attacks", more >> 10);
            // 4 MiB for each port.
            assert!(more < 8 << 20, "{} MiB more", more >> 20);
        }
    });
}

#[test]
fn unauthenticated_peers_that_never_read_keep_nothing() {
    let name = "unauthenticated_peers_that_never_read_keep_nothing";
    if !is_alone(module_path!(), name) {
        return;
    }
    within_limit(|| {
        let (server, worker) = server_and_worker(&only_token());
        let addresses = [server.address(), worker.address()];
        for address in addresses {
            send(address, b"GET /");
        }
        forget_peak("self");
        let before = peak_bytes("self");
        std::thread::scope(|scope| {
            for address in addresses {
                scope.spawn(move || assert_deaf_peers_end(address, &demands()));
            }
        });
        let more = peak_bytes("self") - before;
        println!("{} KiB for 24 peers of each port", more >> 10);
        assert!(more < 8 << 20, "{} MiB more", more >> 20);
    });
}

#[test]
fn ports_without_descriptors_pause_and_accept_again() {
    let name = "ports_without_descriptors_pause_and_accept_again";
    if !is_alone(module_path!(), name) {
        return;
    }
    within_limit(|| {
        let (server, worker) = server_and_worker(&only_token());
        for address in [server.address(), worker.address()] {
            assert_port_pauses(address);
        }
        let mut options = ClientOptions::default();
        options.security = only_token();
        let addresses = [server.address().to_string()];
        let client = VariableClient::connect(&addresses, options).unwrap();
        let run = RunId::random().unwrap();
        client.attach(run, RunOptions::default()).unwrap();
        // A worker answers in words.
        let socket = TcpStream::connect(worker.address()).unwrap();
        let limit = Some(Duration::from_secs(10));
        socket.set_read_timeout(limit).unwrap();
        (&socket).write_all(PREFACE).unwrap();
        (&socket).write_all(&[0, 0, 0, 4, 0, 0, 0, 0, 0]).unwrap();
        assert!((&socket).read(&mut [0; 9]).unwrap() > 0);
    });
}

#[test]
fn who_waits_without_descriptors_says_so() {
    if !is_alone(module_path!(), "who_waits_without_descriptors_says_so") {
        return;
    }
    within_limit(|| {
        let timeout = Duration::from_millis(100);
        let mut options = ServerOptions::new(0, only_token());
        options.coordinator_timeout = timeout;
        let server = ParameterServer::bind("127.0.0.1:0", options).unwrap();
        let mut options = WorkerOptions::default();
        options.security = only_token();
        options.coordinator_timeout = timeout;
        let worker = WorkerServer::bind("127.0.0.1:0", Arc::default(), options).unwrap();
        for address in [server.address(), worker.address()] {
            assert_port_pauses(address);
        }
        let errors = [server.wait(None).unwrap_err(), worker.serve().unwrap_err()];
        for error in errors {
            assert!(matches!(error, PsError::NoCoordinator { .. }), "{error}");
            let cause = "this process has no file descriptors left (limit 256)";
            assert!(error.to_string().contains(cause), "{error}");
        }
    });
}

fn server_and_worker(security: &Security) -> (ParameterServer, WorkerServer) {
    let options = ServerOptions::new(0, security.clone());
    let server = ParameterServer::bind("127.0.0.1:0", options).unwrap();
    let mut options = WorkerOptions::default();
    options.security = security.clone();
    let worker = WorkerServer::bind("127.0.0.1:0", Arc::default(), options).unwrap();
    (server, worker)
}

/// How long a coordinator takes to begin with a server and a worker.
fn connected_in_a_flood(security: &Security, count: usize, bytes: &[u8]) -> Duration {
    let mut begun = Stopwatch::start();
    let options = ServerOptions::new(0, security.clone());
    let server = ParameterServer::bind("127.0.0.1:0", options).unwrap();
    let registry = Arc::<StepRegistry>::default();
    let mut options = WorkerOptions::default();
    options.security = security.clone();
    let worker = WorkerServer::bind("127.0.0.1:0", registry.clone(), options).unwrap();
    let addresses = [server.address(), worker.address()];
    let _peers = addresses.map(|address| flood(address, count, bytes));
    let mut options = CoordinatorOptions::default();
    options.security = security.clone();
    options.client.security = security.clone();
    let [server, worker] = addresses.map(|address| address.to_string());
    begun.restart();
    ClusterCoordinator::connect(&[worker], &[server], registry, options).unwrap();
    begun.elapsed()
}

/// The gRPC status of a call on a connection without a handshake; nothing if the connection ends
/// without an answer.
async fn status_of(address: SocketAddr, path: &str) -> Option<String> {
    let socket = tokio::net::TcpStream::connect(address).await.unwrap();
    let (mut requests, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(socket))
        .await
        .unwrap();
    let driving = tokio::spawn(connection);
    let body = whole(Bytes::from_static(&[0, 0, 0, 0, 0]));
    let request = Request::post(format!("http://{address}{path}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(body)
        .unwrap();
    let response = requests.send_request(request).await;
    let status = response.ok().map(|response| {
        let status = response.headers().get("grpc-status");
        let status = status.map_or("none", |status| status.to_str().unwrap());
        status.to_string()
    });
    drop(requests);
    driving.abort();
    status
}

/// A body of these bytes.
fn whole(bytes: Bytes) -> Whole {
    Whole(Some(bytes))
}

struct Whole(Option<Bytes>);

impl http_body::Body for Whole {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<http_body::Frame<Bytes>, Self::Error>>> {
        let bytes = self.0.take();
        std::task::Poll::Ready(bytes.map(|bytes| Ok(http_body::Frame::data(bytes))))
    }
}

#[test]
fn no_call_is_answered_before_the_handshake() {
    within_limit(|| {
        for security in [only_token(), Security::default()] {
            let options = ServerOptions::new(0, security.clone());
            let server = ParameterServer::bind("127.0.0.1:0", options).unwrap();
            let mut options = WorkerOptions::default();
            options.security = security;
            let worker = WorkerServer::bind("127.0.0.1:0", Arc::default(), options).unwrap();
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(async {
                for address in [server.address(), worker.address()] {
                    assert_eq!(status_of(address, "/").await, None);
                }
            });
        }
    });
}
