//! Ranks as threads on the loopback interface.

mod lanes;

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use distribute_net::address::BoundListener;
use distribute_net::exchange::{self, ExchangeError};
use distribute_net::handshake::Secret;
use distribute_net::peers;
use distribute_net::security::{Security, TlsIdentity};
use distribute_net::tls::TlsSettings;
use hostile::alone::is_alone;
use proptest::prelude::*;
use rstest::rstest;
use tokio::sync::oneshot;
use tokio_stream::StreamExt;

use super::lane::Lane;
use super::links::SEGMENTS_IN_FLIGHT;
use super::peer::{Peer, Place};
use super::{Doorway, Entrance, GrpcTransport, IDLE_LIMIT, LanePeer, LaneRules, LinkConfig, Links};
use crate::bookkeeping::RunningOperation;
use crate::buffer::Buffer;
use crate::communicator::{AbortTarget, Communicator, CommunicatorExt, chunk_range};
use crate::error::{CollectiveError, Result};
use crate::failure::{Failure, FailureKind};
use crate::header::OperationHeader;
use crate::messages::TransportCommunicator;
use crate::operation::OperationKind;
use crate::options::{Algorithm, GroupOptions, Order};
use crate::reduce::ReduceOp;
use crate::status::GroupStatus;
use crate::testing::{on_threads, within_limit};

const TIMEOUT: Duration = Duration::from_secs(20);

struct NoAbort;

impl AbortTarget for NoAbort {
    fn abort(&self, _: usize, _: &str) {}
}

/// What a rank of a test is.
struct Settings {
    rules: LaneRules,
    secret: Secret,
    tls: Option<TlsSettings>,
    idle_limit: Duration,
    status: Arc<GroupStatus>,
}

fn settings(rank: usize, world_size: usize) -> Settings {
    Settings {
        rules: LaneRules::example(rank, world_size),
        secret: Secret::new("let me in"),
        tls: None,
        idle_limit: IDLE_LIMIT,
        status: Arc::default(),
    }
}

/// The port of a rank, which the control plane would serve.
struct Port {
    socket: TcpListener,
    address: SocketAddr,
}

fn port() -> Port {
    let bound = BoundListener::bind(0, "127.0.0.1:0", &Security::default()).unwrap();
    Port {
        address: bound.local_addr(),
        socket: bound.into_socket(),
    }
}

/// The thread that serves a port until this is dropped.
struct Served(Option<oneshot::Sender<()>>, Option<JoinHandle<()>>);

impl Drop for Served {
    fn drop(&mut self) {
        drop(self.0.take());
        self.1.take().unwrap().join().unwrap();
    }
}

impl Port {
    fn open(self, settings: &Settings) -> (Doorway, Served) {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_all().build().unwrap();
        let entrance = Entrance::new(settings.rules.clone());
        let door = Doorway {
            entrance: entrance.clone(),
            runtime: runtime.handle().clone(),
            tls: settings.tls.clone(),
        };
        let (socket, tls, secret) = (self.socket, settings.tls.clone(), settings.secret.clone());
        let serving = async move {
            let mut accepting = peers::accept(socket, tls, |_, _| {}).unwrap();
            while let Some(Ok(mut connection)) = accepting.next().await {
                let (entrance, secret) = (entrance.clone(), secret.clone());
                tokio::spawn(async move {
                    let listener = exchange::greet(&mut connection).await?;
                    let taken = entrance.take(connection, listener, &secret, |_| Ok(()));
                    taken.await.map_err(std::io::Error::other)?;
                    Ok::<_, ExchangeError>(())
                });
            }
        };
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::spawn(move || {
            runtime.block_on(async move {
                tokio::spawn(serving);
                let _ = stopped.await;
            });
        });
        (door, Served(Some(stop), Some(thread)))
    }
}

/// The links of a rank to the ranks at these addresses.
fn linked(port: Port, settings: &Settings, addresses: &[SocketAddr]) -> (Links, Served) {
    let rank = settings.rules.rank;
    let config = LinkConfig {
        rank,
        own_ip: port.address.ip(),
        own_host: "127.0.0.1".to_string(),
        max_message_bytes: 1 << 20,
        stall_limit: Duration::from_secs(60),
        idle_limit: settings.idle_limit,
        status: settings.status.clone(),
    };
    let peer = |(other, address): (usize, &SocketAddr)| {
        (other != rank).then(|| LanePeer {
            address: address.to_string(),
            route: None,
            secret: settings.secret.clone(),
        })
    };
    let peers = addresses.iter().enumerate().map(peer).collect();
    let (door, served) = port.open(settings);
    (Links::new(config, door, peers).unwrap(), served)
}

/// A world on threads; `adapt` changes the settings of each rank. All can be dialled until all have
/// ended.
fn world<R: Send>(
    size: usize,
    adapt: impl Fn(&mut Settings) + Sync,
    f: impl Fn(Links, Arc<GroupStatus>) -> R + Sync,
) -> Vec<R> {
    let ports: Vec<Port> = (0..size).map(|_| port()).collect();
    let addresses: Vec<_> = ports.iter().map(|port| port.address).collect();
    let ended = on_threads(ports.into_iter().enumerate(), |(rank, port)| {
        let mut settings = settings(rank, size);
        adapt(&mut settings);
        let (links, served) = linked(port, &settings, &addresses);
        (f(links, settings.status), served)
    });
    ended.into_iter().map(|(result, _)| result).collect()
}

/// Waits until there are lanes to a rank, which does the same.
fn connect(links: &mut Links, rank: usize) {
    let deadline = Instant::now() + TIMEOUT;
    links.want(rank);
    while links.peers[rank].as_ref().unwrap().places[0].is_empty() {
        assert!(Instant::now() < deadline, "no lane to rank {rank}");
        links.take_arrivals();
        std::thread::yield_now();
    }
}

#[test]
fn connections_over_loopback_are_not_paced() {
    within_limit(|| {
        world(
            3,
            |_| {},
            |links, status| {
                let mut endpoint = endpoint(links, status, &options());
                sum(&mut endpoint).unwrap();
                let peers = endpoint.transport().links.peers.iter().flatten();
                let lanes = peers.flat_map(|peer| &peer.places).filter_map(Place::lane);
                let lanes: Vec<_> = lanes.collect();
                assert_eq!(lanes.len(), 2);
                for lane in lanes {
                    let socket = lane.socket.pollfd(false);
                    let control = rustix::net::sockopt::tcp_congestion(socket).unwrap();
                    assert_eq!(control, "reno");
                }
            },
        );
    });
}

type Endpoint = TransportCommunicator<GrpcTransport>;

fn endpoint(links: Links, status: Arc<GroupStatus>, options: &GroupOptions) -> Endpoint {
    let timeout = options.timeout;
    let transport = GrpcTransport::new(links, status, Arc::new(NoAbort), timeout);
    TransportCommunicator::new(transport, options.clone()).unwrap()
}

fn options() -> GroupOptions {
    GroupOptions::default().generation(7).timeout(TIMEOUT)
}

fn tls() -> TlsSettings {
    let ca = Authority::new();
    ca.tls(&ca, false)
}

#[derive(Debug, Clone)]
struct Case {
    size: usize,
    count: usize,
    lanes: usize,
    segment_bytes: usize,
    tls: bool,
    algorithm: Algorithm,
    order: Order,
}

fn cases() -> impl Strategy<Value = Case> {
    let algorithms = [
        Algorithm::Auto,
        Algorithm::Ring,
        Algorithm::HalvingDoubling,
        Algorithm::Hierarchical { ranks_per_host: 2 },
    ];
    let shapes = (1_usize..=5, 0_usize..3000, 1_usize..=3, 4_usize..4000);
    let ways = (
        any::<bool>(),
        proptest::sample::select(algorithms.to_vec()),
        any::<bool>(),
    );
    (shapes, ways).prop_map(
        |((size, count, lanes, segment_bytes), (tls, algorithm, order))| {
            let order = if order { Order::Canonical } else { Order::Fast };
            Case {
                size,
                // Many items of few bytes take long and show nothing new.
                segment_bytes: segment_bytes.max(count / 50 * 4),
                count,
                lanes,
                tls,
                algorithm,
                order,
            }
        },
    )
}

/// The value of element `index` of rank `rank`: sums of them are exact.
fn value(rank: usize, index: usize) -> f32 {
    ((rank * 31 + index * 7) % 101) as f32
}

fn all_operations(case: &Case, endpoint: &mut Endpoint) -> Result<()> {
    let (rank, size, count) = (endpoint.rank(), case.size, case.count);
    let own: Vec<f32> = (0..count).map(|index| value(rank, index)).collect();
    let sum = |index: usize| (0..size).map(|rank| value(rank, index)).sum::<f32>();
    let sums: Vec<f32> = (0..count).map(sum).collect();

    let mut vector = own.clone();
    let (left, right) = vector.split_at_mut(count / 3);
    endpoint.all_reduce(ReduceOp::Sum, &mut [left.into(), right.into()])?;
    assert_eq!(vector, sums);

    vector.copy_from_slice(&own);
    let share = endpoint.reduce_scatter(ReduceOp::Sum, (&mut vector[..]).into())?;
    assert_eq!(share, chunk_range(count, size, rank));
    assert_eq!(vector[share.clone()], sums[share]);

    let gathered = endpoint.all_gather(&own[..count / (rank + 1)])?;
    for (other, values) in gathered.iter().enumerate() {
        assert!(values.len() == count / (other + 1));
        assert!(
            values
                .iter()
                .enumerate()
                .all(|(i, v)| *v == value(other, i))
        );
    }

    let root = count % size;
    vector.copy_from_slice(&own);
    endpoint.broadcast(root, &mut [(&mut vector[..]).into()])?;
    assert!(vector.iter().enumerate().all(|(i, v)| *v == value(root, i)));

    vector.copy_from_slice(&own);
    endpoint.reduce(ReduceOp::Sum, root, &mut [(&mut vector[..]).into()])?;
    assert!(rank != root || vector == sums);

    if size > 1 && rank < 2 {
        vector.copy_from_slice(&own);
        let peer = 1 - rank;
        for turn in 0..2 {
            if rank == turn {
                endpoint.send(peer, Buffer::from(&mut vector[..]))?
            } else {
                endpoint.recv(peer, Buffer::from(&mut vector[..]))?
            }
        }
        assert!(vector.iter().enumerate().all(|(i, v)| *v == value(0, i)));
    }
    endpoint.barrier()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn all_operations_equal_naive_ones(case in cases()) {
        within_limit(move || {
            let tls = case.tls.then(tls);
            let options = options()
                .segment_bytes(case.segment_bytes)
                .algorithm(case.algorithm)
                .order(case.order);
            let adapt = |settings: &mut Settings| {
                settings.rules.lanes = case.lanes;
                settings.tls = tls.clone();
            };
            let endpoints = world(case.size, adapt, |links, status| {
                let mut endpoint = endpoint(links, status, &options);
                all_operations(&case, &mut endpoint).unwrap();
                endpoint
            });
            drop(endpoints);
        });
    }
}

#[test]
fn big_segments_over_several_frames_and_lanes() {
    for tls_too in [false, true] {
        within_limit(move || {
            let certificates = tls_too.then(tls);
            let options = options().segment_bytes(900_000).algorithm(Algorithm::Ring);
            let adapt = |settings: &mut Settings| {
                settings.rules.lanes = 2;
                settings.tls = certificates.clone();
            };
            let endpoints = world(2, adapt, |links, status| {
                let mut endpoint = endpoint(links, status, &options);
                let mut vector = vec![1.5_f32; 5_000_000];
                let buffers = &mut [(&mut vector[..]).into()];
                endpoint.all_reduce(ReduceOp::Sum, buffers).unwrap();
                assert!(vector.iter().all(|value| *value == 3.0));
                endpoint
            });
            drop(endpoints);
        });
    }
}

/// What a rank does in a test of mismatches.
type Call = fn(&mut Endpoint) -> Result<()>;

fn sum(endpoint: &mut Endpoint) -> Result<()> {
    endpoint.all_reduce(ReduceOp::Sum, &mut [(&mut [1.0_f32; 100][..]).into()])
}

#[test]
fn a_mismatch_is_an_error_on_both_ranks() {
    let others: [(Call, &str); 7] = [
        (
            |e| e.all_reduce(ReduceOp::Max, &mut [(&mut [1.0_f32; 100][..]).into()]),
            "op",
        ),
        (
            |e| e.all_reduce(ReduceOp::Sum, &mut [(&mut [1.0_f32; 99][..]).into()]),
            "count",
        ),
        (
            |e| e.all_reduce(ReduceOp::Sum, &mut [(&mut [1_i32; 100][..]).into()]),
            "dtype",
        ),
        (
            |e| e.all_reduce(ReduceOp::Sum, &mut [(&mut [1.0_f32; 2][..]).into()]),
            "count",
        ),
        (
            |e| e.broadcast(0, &mut [(&mut [1.0_f32; 100][..]).into()]),
            "kind",
        ),
        (|e| e.all_gather(&[1.0_f32]).map(drop), "kind"),
        (|e| e.barrier(), "kind"),
    ];
    for (other, expected) in others {
        let results = within_limit(move || {
            world(
                2,
                |_| {},
                |links, status| {
                    let mut endpoint = endpoint(links, status, &options());
                    let call = if endpoint.rank() == 0 { sum } else { other };
                    let result = call(&mut endpoint);
                    let again = endpoint.barrier();
                    (result, again, endpoint)
                },
            )
        });
        for (result, again, _) in results {
            let Err(CollectiveError::Mismatch {
                rank_a: 0,
                rank_b: 1,
                what,
                ..
            }) = &result
            else {
                panic!("{expected}: {result:?}");
            };
            assert!(what.starts_with(expected), "{what}");
            assert!(matches!(again, Err(CollectiveError::Poisoned { .. })));
        }
    }
}

#[test]
fn no_rank_finishes_when_one_of_four_differs() {
    for odd in 0..4 {
        let results = within_limit(move || {
            world(
                4,
                |_| {},
                |links, status| {
                    let options = options().timeout(Duration::from_millis(700));
                    let mut endpoint = endpoint(links, status, &options);
                    let op = if endpoint.rank() == odd {
                        ReduceOp::Max
                    } else {
                        ReduceOp::Sum
                    };
                    let result = endpoint.all_reduce(op, &mut [(&mut [1.0_f32; 8][..]).into()]);
                    (result, endpoint)
                },
            )
        });
        let results: Vec<_> = results.into_iter().map(|(result, _)| result).collect();
        assert!(results.iter().all(Result::is_err), "{results:?}");
        let mismatch = |r: &Result<()>| matches!(r, Err(CollectiveError::Mismatch { .. }));
        assert!(results.iter().any(mismatch), "{results:?}");
    }
}

#[test]
fn a_rank_that_does_not_come_is_named_at_the_deadline() {
    let begin = Instant::now();
    let results = within_limit(|| {
        world(
            2,
            |_| {},
            |links, status| {
                let options = options().timeout(Duration::from_millis(300));
                let mut endpoint = endpoint(links, status, &options);
                let result = (endpoint.rank() == 0).then(|| sum(&mut endpoint));
                (result, endpoint)
            },
        )
    });
    let Some(Err(CollectiveError::Timeout {
        missing, elapsed, ..
    })) = &results[0].0
    else {
        panic!("{:?}", results[0].0);
    };
    assert_eq!(missing, &[1]);
    assert!(*elapsed >= Duration::from_millis(300));
    assert!(begin.elapsed() < Duration::from_secs(10));
}

#[test]
fn a_rank_that_left_is_named() {
    let results = within_limit(|| {
        world(
            2,
            |_| {},
            |links, status| {
                let mut endpoint = endpoint(links, status, &options());
                sum(&mut endpoint).unwrap();
                (endpoint.rank() == 0).then(|| sum(&mut endpoint))
            },
        )
    });
    let Some(Err(CollectiveError::PeerLost {
        rank: 1,
        sequence: 1,
        ..
    })) = &results[0]
    else {
        panic!("{results:?}");
    };
}

#[test]
fn what_was_sent_before_leaving_arrives() {
    within_limit(|| {
        world(
            3,
            |_| {},
            |mut links, _| {
                let header = OperationHeader::new(OperationKind::Broadcast, 7, 0);
                let deadline = Instant::now() + TIMEOUT;
                let running = RunningOperation::new(&header, TIMEOUT);
                if links.rank() == 0 {
                    for to in [1, 2].repeat(20) {
                        links
                            .send(to, &running, 60_000, &mut |bytes| bytes.fill(9))
                            .unwrap();
                    }
                    links.flush(deadline);
                } else {
                    // Not asked for before the sender has gone.
                    std::thread::yield_now();
                    for _ in 0..20 {
                        let check = &mut |bytes: &[u8]| assert!(bytes.iter().all(|b| *b == 9));
                        links.receive(0, &running, 60_000, check).unwrap();
                    }
                }
            },
        );
    });
}

/// How long a blocked receive takes to end after a failure was noted.
fn end_of_a_blocked_receive() -> Duration {
    let late = within_limit(|| {
        world(
            2,
            |_| {},
            |links, status| {
                let mut endpoint = endpoint(links, status.clone(), &options());
                if endpoint.rank() == 1 {
                    return (None, endpoint);
                }
                let noted = std::thread::scope(|scope| {
                    let noting = scope.spawn(|| {
                        while status.running().is_none() {
                            std::thread::yield_now();
                        }
                        // Most likely it blocks by now; if not the test shows less, but holds.
                        let until = Instant::now() + Duration::from_millis(50);
                        while Instant::now() < until {
                            std::thread::yield_now();
                        }
                        let reason = "stopped".to_string();
                        let kind = FailureKind::Lost { rank: 1, reason };
                        let noted = Instant::now();
                        status.record_failure(Failure {
                            kind,
                            from_sequence: 0,
                        });
                        noted
                    });
                    let result = sum(&mut endpoint);
                    let error = result.unwrap_err();
                    assert!(
                        matches!(error, CollectiveError::PeerLost { rank: 1, .. }),
                        "{error}"
                    );
                    let ended = Instant::now();
                    noting.join().unwrap().max(ended - TIMEOUT)..ended
                });
                (Some(noted.end - noted.start), endpoint)
            },
        )
    });
    late[0].0.unwrap()
}

#[test]
fn a_noted_failure_ends_a_blocked_receive_at_once() {
    // The best of some: how long a thread waits for a processor is no matter of the group.
    let took = (0..5).map(|_| end_of_a_blocked_receive()).min().unwrap();
    assert!(took < Duration::from_millis(200), "{took:?}");
}

/// Connects rank 0 of 2 while `unauthenticated` does what it wants with its address, then rank 1.
fn with_unauthenticated(unauthenticated: impl FnOnce(SocketAddr) + Send) {
    let (first, second) = (port(), port());
    let addresses = &[first.address, second.address];
    let joined = |rank, port| {
        let settings = settings(rank, 2);
        let (links, served) = linked(port, &settings, addresses);
        let mut endpoint = endpoint(links, settings.status, &options());
        sum(&mut endpoint).unwrap();
        (endpoint, served)
    };
    std::thread::scope(|scope| {
        let zero = scope.spawn(move || joined(0, first));
        unauthenticated(addresses[0]);
        let one = joined(1, second);
        drop((zero.join().unwrap(), one));
    });
}

#[test]
fn unauthenticated_peers_that_connect_do_not_disturb() {
    let bad: [&'static [u8]; 4] = [
        b"",
        b"GET / HTTP/1.1\r\nhost: x\r\n\r\n",
        // A preface, then a frame of 16 MiB.
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\xff\xff\xff\x00\x00\x00\x00\x00\x01",
        &[0xff; 4096],
    ];
    within_limit(move || {
        with_unauthenticated(move |address| {
            let mut open = Vec::new();
            for bytes in bad {
                let mut unauthenticated = TcpStream::connect(address).unwrap();
                unauthenticated.write_all(bytes).unwrap();
                // The ones that send something wrong are thrown out, without waiting.
                if bytes.starts_with(b"PRI") || bytes.starts_with(&[0xff]) {
                    unauthenticated.shutdown(Shutdown::Write).unwrap();
                    unauthenticated
                        .set_read_timeout(Some(Duration::from_secs(4)))
                        .unwrap();
                    let ended = unauthenticated.read_to_end(&mut Vec::new());
                    let reset =
                        |e: &std::io::Error| e.kind() == std::io::ErrorKind::ConnectionReset;
                    assert!(ended.as_ref().map_or_else(reset, |_| true), "{ended:?}");
                }
                open.push(unauthenticated);
            }
            // More silent ones than are kept.
            open.extend((0..80).map(|_| TcpStream::connect(address).unwrap()));
            drop(open.drain(..3));
            std::mem::forget(
                open.pop()
                    .map(|last| last.shutdown(std::net::Shutdown::Both)),
            );
        });
    });
}

/// What connections of unauthenticated peers send that come to nothing.
const HALVES: [&[u8]; 5] = [
    b"",
    b"nonsense",
    b"PRI * HTTP/2.0\r\n",
    // A whole preface, and half a frame.
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00",
    // Half a TLS hello.
    &[0x16, 0x03, 0x01, 0x02, 0x00, 0x01, 0x00],
];

fn unauthenticated_peer(address: SocketAddr, bytes: &[u8]) -> Option<TcpStream> {
    let mut unauthenticated = TcpStream::connect(address).ok()?;
    // The other side may have closed it already.
    let _ = unauthenticated.write_all(bytes);
    Some(unauthenticated)
}

/// How long rank 1 takes to connect to rank 0 and to add something up, while this many
/// unauthenticated peers are there, and more come.
fn connected_in_a_flood(
    count: usize,
    bytes: &[u8],
    tls: Option<TlsSettings>,
    more: bool,
) -> Duration {
    let (first, second) = (port(), port());
    let zero = first.address;
    let addresses = &[zero, second.address];
    let joined = |rank, port| {
        let mut settings = settings(rank, 2);
        settings.tls = tls.clone();
        let (links, served) = linked(port, &settings, addresses);
        let mut endpoint = endpoint(links, settings.status, &options());
        sum(&mut endpoint).unwrap();
        (endpoint, served)
    };
    let is_over = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let of_zero = scope.spawn(|| joined(0, first));
        let unauthenticated: Vec<_> = (0..count)
            .map(|_| unauthenticated_peer(zero, bytes))
            .collect();
        if more {
            scope.spawn(|| {
                while !is_over.load(std::sync::atomic::Ordering::Relaxed) {
                    drop(unauthenticated_peer(zero, bytes));
                }
            });
        }
        let begun = Instant::now();
        let of_one = joined(1, second);
        let took = begun.elapsed();
        is_over.store(true, std::sync::atomic::Ordering::Relaxed);
        drop((of_zero.join().unwrap(), of_one, unauthenticated));
        took
    })
}

#[rstest]
#[case::of_few(70, false)]
#[case::of_many(300, false)]
#[case::of_ever_more(70, true)]
fn a_flood_delays_no_rank(
    #[case] count: usize,
    #[case] more: bool,
    #[values(false, true)] has_tls: bool,
) {
    within_limit(move || {
        for bytes in HALVES {
            let tls = has_tls.then(tls);
            let took = connected_in_a_flood(count, bytes, tls, more);
            assert!(took < Duration::from_secs(3), "{took:?}: {bytes:?}");
        }
    });
}

/// An address that passes on what a client says at once, and what comes back after this time.
fn answering_late(to: SocketAddr, delay: Duration) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let forward = move |client: TcpStream, server: TcpStream| {
        let (mut from, mut into) = (client.try_clone().unwrap(), server.try_clone().unwrap());
        std::thread::spawn(move || {
            let _ = std::io::copy(&mut from, &mut into);
            let _ = into.shutdown(Shutdown::Write);
        });
        let (sender, late) = std::sync::mpsc::channel::<(Instant, Vec<u8>)>();
        std::thread::spawn(move || {
            for (at, bytes) in late {
                std::thread::sleep(at.saturating_duration_since(Instant::now()));
                let _ = (&client).write_all(&bytes);
            }
            let _ = client.shutdown(Shutdown::Write);
        });
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(bytes @ 1..) = (&server).read(&mut buffer) {
                let _ = sender.send((Instant::now() + delay, buffer[..bytes].to_vec()));
            }
        });
    };
    std::thread::spawn(move || {
        while let Ok((client, _)) = listener.accept() {
            if let Ok(server) = TcpStream::connect(to) {
                forward(client, server);
            }
        }
    });
    address
}

/// The answers come while an attempt to connect lasts, and after that: by then the other rank takes
/// the lane for made.
#[test]
fn a_rank_that_is_answered_late_is_not_lost() {
    within_limit(|| {
        let (first, second) = (port(), port());
        let addresses = [first.address, second.address];
        let slow = answering_late(addresses[0], Duration::from_secs(2));
        let summed = |rank, port, addresses: [SocketAddr; 2]| {
            let settings = settings(rank, 2);
            let (links, served) = linked(port, &settings, &addresses);
            let mut endpoint = endpoint(links, settings.status, &options());
            sum(&mut endpoint).unwrap();
            (endpoint, served)
        };
        std::thread::scope(|scope| {
            let of_zero = scope.spawn(move || summed(0, first, addresses));
            let of_one = summed(1, second, [slow, addresses[1]]);
            drop((of_one, of_zero.join().unwrap()));
        });
    });
}

/// How the first operation of a rank ends after this time, if not before.
fn first_operation(
    port: Port,
    settings: Settings,
    addresses: &[SocketAddr],
    timeout: Duration,
) -> Result<()> {
    let (links, _served) = linked(port, &settings, addresses);
    let options = options()
        .generation(settings.rules.generation)
        .timeout(timeout);
    sum(&mut endpoint(links, settings.status, &options))
}

/// Of a rank that waits for a lane to rank 0: where it was dialled, and why there is none.
fn unconnected(result: Result<()>) -> (String, String) {
    match result {
        Err(CollectiveError::LinkStalled {
            rank: 1,
            peer: 0,
            connection,
            what,
        }) => (connection, what),
        other => panic!("{other:?}"),
    }
}

fn refused_at(address: SocketAddr, adapt: impl Fn(&mut Settings)) -> (String, String) {
    let mut wrong = settings(1, 2);
    adapt(&mut wrong);
    let own = port();
    let addresses = [address, own.address];
    let limit = Duration::from_millis(400);
    unconnected(first_operation(own, wrong, &addresses, limit))
}

#[test]
fn a_wrong_hello_is_refused_with_a_reason() {
    within_limit(|| {
        with_unauthenticated(|address| {
            let (connection, what) = refused_at(address, |it| it.rules.generation = 6);
            let expected = "it is in generation 7, this process in 6";
            assert!(what.contains(expected), "{what}");
            assert_eq!(connection, format!("-> {address}"));
            let (_, what) = refused_at(address, |it| it.secret = Secret::new("a guess"));
            let expected = "it does not know the secret of this group";
            assert!(what.contains(expected), "{what}");
            let (_, what) = refused_at(address, |it| it.rules.group = "other".to_string());
            assert!(what.contains("the group here is tests"), "{what}");
            let (_, what) = refused_at(address, |settings| settings.rules.lanes = 2);
            assert!(what.contains("lanes here is 1, not 2"), "{what}");
        });
    });
}

/// No attempt more helps, so the deadline is not waited for.
#[test]
fn a_rank_that_another_one_never_accepts_is_told_at_once() {
    within_limit(|| {
        with_unauthenticated(|address| {
            let mut wrong = settings(1, 2);
            wrong.secret = Secret::new("a guess");
            let own = port();
            let addresses = [address, own.address];
            let begun = Instant::now();
            unconnected(first_operation(own, wrong, &addresses, TIMEOUT));
            assert!(begun.elapsed() < TIMEOUT / 2);
        });
    });
}

#[test]
fn ranks_without_a_connection_are_named_with_the_reason() {
    within_limit(|| {
        let (own, silent) = (port(), port());
        let unheard = silent.address;
        drop(silent);
        let addresses = [unheard, own.address];
        let limit = Duration::from_millis(300);
        let ended = first_operation(own, settings(1, 2), &addresses, limit);
        let (_, what) = unconnected(ended);
        assert!(what.contains("refused"), "{what}");
        // Rank 1 is to connect here: all that is known is that it does not take part.
        let own = port();
        let addresses = [own.address, unheard];
        let ended = first_operation(own, settings(0, 2), &addresses, limit);
        let Err(CollectiveError::Timeout { missing, .. }) = &ended else {
            panic!("{ended:?}");
        };
        assert_eq!(missing, &[1]);
    });
}

/// What this process lacks says more than that a rank has not come.
#[test]
fn a_rank_that_lacks_descriptors_says_so() {
    within_limit(|| {
        let own = port();
        let (settings, addresses) = (settings(0, 2), [own.address; 2]);
        let (links, _served) = linked(own, &settings, &addresses);
        let lacking = "this process has no file descriptors left".to_string();
        links.door.entrance.note_shortage(lacking.clone());
        let options = options().timeout(Duration::from_millis(300));
        let ended = sum(&mut endpoint(links, settings.status, &options));
        let Err(CollectiveError::LinkStalled { peer: 1, what, .. }) = &ended else {
            panic!("{ended:?}");
        };
        assert!(what.contains(&lacking), "{what}");
    });
}

fn only_place(links: &mut Links, rank: usize) -> &mut Place {
    &mut links.peers[rank].as_mut().unwrap().places[0]
}

fn only_lane(links: &mut Links, rank: usize) -> &mut Lane {
    only_place(links, rank).lane_mut().unwrap()
}

#[test]
fn nonsense_from_a_peer_is_a_protocol_error() {
    let frames: [&[u8]; 4] = [
        // Compressed; too long; too short for a header; a header of zeros.
        &[1, 0, 0, 0, 64],
        &[0, 0xff, 0xff, 0xff, 0xff],
        &[0, 0, 0, 0, 3, 1, 2, 3],
        &{
            let mut zeros = [0; 69];
            zeros[4] = 64;
            zeros
        },
    ];
    for frame in frames.map(<[u8]>::to_vec) {
        let results = within_limit(move || {
            world(
                2,
                |_| {},
                |mut links, status| {
                    if links.rank() == 1 {
                        let pool = links.pool.clone();
                        connect(&mut links, 0);
                        let lane = only_lane(&mut links, 0);
                        let mut segment = pool.take(frame.len(), lane.outstanding());
                        segment.bytes_mut().copy_from_slice(&frame);
                        lane.send(segment).unwrap();
                        return (None, endpoint(links, status, &options()));
                    }
                    let mut endpoint = endpoint(links, status, &options());
                    (Some(sum(&mut endpoint)), endpoint)
                },
            )
        });
        let Some(Err(CollectiveError::Protocol {
            rank: 0, peer: 1, ..
        })) = results[0].0
        else {
            panic!("{:?}", results[0].0);
        };
    }
}

/// With a lane that the peer does not read, and without one.
#[rstest]
fn what_waits_for_a_slow_peer_is_bounded(#[values(false, true)] is_connected: bool) {
    within_limit(move || {
        world(
            2,
            |_| {},
            |mut links, _| {
                if is_connected {
                    let other = 1 - links.rank();
                    connect(&mut links, other);
                }
                let header = OperationHeader::new(OperationKind::AllReduce, 7, 0);
                if links.rank() == 1 {
                    return links;
                }
                let timeout = Duration::from_millis(500);
                let running = RunningOperation::new(&header, timeout);
                let mut sent = 0_usize;
                let error = loop {
                    match links.send(1, &running, 64 << 10, &mut |_| sent += 1) {
                        Ok(()) => assert!(sent < 1000, "nothing holds the sender back"),
                        Err(error) => break error,
                    }
                    assert!(only_place(&mut links, 1).outstanding_bytes() <= 3 << 20);
                };
                assert!(matches!(error, CollectiveError::Timeout { .. }), "{error}");
                assert!(sent >= SEGMENTS_IN_FLIGHT, "{sent}");
                links
            },
        );
    });
}

fn open_files() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
fn two_hundred_groups_leave_no_descriptor() {
    if !is_alone(module_path!(), "two_hundred_groups_leave_no_descriptor") {
        return;
    }
    within_limit(|| {
        let before = open_files();
        for _ in 0..200 {
            world(
                2,
                |_| {},
                |links, status| {
                    let mut endpoint = endpoint(links, status, &options());
                    sum(&mut endpoint).unwrap();
                },
            );
        }
        assert_eq!(open_files(), before);
    });
}

/// An authority whose certificates the ranks accept, or not.
struct Authority {
    pem: String,
    issuer: rcgen::Issuer<'static, rcgen::KeyPair>,
}

impl Authority {
    fn new() -> Authority {
        let key = rcgen::KeyPair::generate().unwrap();
        let mut params = rcgen::CertificateParams::new(Vec::<String>::new()).unwrap();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let pem = params.self_signed(&key).unwrap().pem();
        let issuer = rcgen::Issuer::new(params, key);
        Authority { pem, issuer }
    }

    /// The settings of a rank that accepts the certificates of `accepts`.
    fn tls(&self, accepts: &Authority, expired: bool) -> TlsSettings {
        let key = rcgen::KeyPair::generate().unwrap();
        let mut params = rcgen::CertificateParams::new(vec!["127.0.0.1".to_string()]).unwrap();
        if expired {
            params.not_before = rcgen::date_time_ymd(2000, 1, 1);
            params.not_after = rcgen::date_time_ymd(2001, 1, 1);
        }
        let own = params.signed_by(&key, &self.issuer).unwrap();
        let (ca, own, key) = (accepts.pem.clone(), own.pem(), key.serialize_pem());
        let security = Security::default().tls(TlsIdentity::new(ca, own, key));
        security.tls_settings().unwrap().unwrap()
    }
}

/// How the first operation of two ranks with these settings ends.
fn connect_with(zero: TlsSettings, one: TlsSettings) -> Vec<Result<()>> {
    let ports = [port(), port()];
    let addresses: Vec<_> = ports.iter().map(|port| port.address).collect();
    let ranks = ports.into_iter().zip([zero, one]).enumerate();
    on_threads(ranks, |(rank, (port, tls))| {
        let mut settings = settings(rank, 2);
        settings.tls = Some(tls);
        first_operation(port, settings, &addresses, Duration::from_secs(1))
    })
}

#[test]
fn a_lane_takes_only_certificates_of_its_authority() {
    within_limit(|| {
        let (ca, other) = (Authority::new(), Authority::new());
        let good = || ca.tls(&ca, false);
        let mut bare = good();
        let mut roots = rustls::RootCertStore::empty();
        let der = rustls::pki_types::pem::PemObject::from_pem_slice(ca.pem.as_bytes()).unwrap();
        roots.add(der).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let client = rustls::ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        bare.client = Arc::new(client);
        assert_eq!(connect_with(good(), good()), [Ok(()), Ok(())]);
        for (zero, one) in [
            (good(), other.tls(&ca, false)),
            (other.tls(&ca, false), good()),
            (good(), ca.tls(&ca, true)),
            (ca.tls(&ca, true), good()),
            (good(), ca.tls(&other, false)),
            (good(), bare),
        ] {
            let [zero, one] = &connect_with(zero, one)[..] else {
                panic!("two ranks");
            };
            assert!(zero.is_err());
            let (_, one) = unconnected(one.clone());
            assert!(
                one.contains("certificate") || one.contains("expired"),
                "{one}"
            );
        }
    });
}
