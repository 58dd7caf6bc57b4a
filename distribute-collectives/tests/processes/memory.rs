//! What slow and hostile peers can make a rank hold: its buffers and at most 64 MiB more.

use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use distribute_net::handshake::{Dialer, Hello, Purpose, Secret};
use hostile::flood::{Attack, assert_deaf_peers_end, assert_flood_costs_nothing, demands};
use rstest::rstest;
use rustix::process::Signal;

use super::harness::{Rank, bind, group, leave, start};
use super::proxy::{self, Mode, Switch};
use super::{BIG, group_with_faults};

const MIB: usize = 1 << 20;
const BUFFERS: usize = 100 * MIB;
const MORE: usize = 64 * MIB;
/// What all unauthenticated peers of a port may cost.
const UNAUTHENTICATED_BYTES: usize = 4 * MIB;

#[track_caller]
fn assert_bounded(rank: &Rank, before: usize, buffers: usize) {
    let more = rank.peak_bytes().saturating_sub(before + buffers);
    println!(
        "rank {}: {} KiB beyond its buffers",
        rank.number,
        more / 1024
    );
    assert!(
        more < MORE,
        "rank {} held {} MiB more",
        rank.number,
        more / MIB
    );
}

/// A rank that is stopped for a while, below the limit of the heartbeats, holds the others up and
/// fills no memory of theirs.
#[rstest]
fn a_rank_that_stops_reading_fills_no_memory(#[values("shm", "grpc")] transport: &str) {
    let mut ranks = group(3, transport, "");
    let before: Vec<usize> = ranks.iter().map(Rank::resident_bytes).collect();
    for rank in &mut ranks {
        rank.tell(BIG);
    }
    for rank in &mut ranks {
        rank.answer("running");
    }
    for _ in 0..2 {
        ranks[1].signal(Signal::STOP);
        // How long it reads nothing: the default limit is 3 s.
        std::thread::sleep(Duration::from_millis(1800));
        ranks[1].signal(Signal::CONT);
        // How long it reads in between, so that it is heard of before the next stop.
        std::thread::sleep(Duration::from_millis(700));
    }
    for (rank, before) in ranks.iter().zip(before) {
        assert_bounded(rank, before, BUFFERS);
    }
    ranks[1].signal(Signal::KILL);
    for number in [0, 2] {
        ranks[number].answer("error");
    }
}

#[test]
fn a_slow_connection_fills_no_memory() {
    let (mut ranks, switch) = group_with_faults(1);
    let before: Vec<usize> = ranks.iter().map(Rank::resident_bytes).collect();
    switch.set(Mode::Throttle);
    let bytes = BUFFERS / 4;
    for rank in &mut ranks {
        rank.tell(&format!("call all_reduce {}", bytes / 4));
    }
    for (rank, before) in ranks.iter_mut().zip(before) {
        rank.answer("called");
        assert_bounded(rank, before, bytes);
    }
    leave(&mut ranks);
}

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const CONTINUATION: u8 = 9;
/// A type that HTTP/2 does not know, and ignores.
const UNKNOWN: u8 = 0x2a;

/// The head of a frame of HTTP/2.
fn head(bytes: usize, kind: u8, flags: u8, stream: u32) -> Vec<u8> {
    let mut head = (bytes as u32).to_be_bytes()[1..].to_vec();
    head.extend([kind, flags]);
    head.extend(stream.to_be_bytes());
    head
}

fn frame(kind: u8, flags: u8, stream: u32, body: &[u8]) -> Vec<u8> {
    [&head(body.len(), kind, flags, stream), body].concat()
}

/// The request of a gRPC call.
fn request(path: &str, stream: u32) -> Vec<u8> {
    let literal =
        |index: u8, value: &str| [&[0x40 | index, value.len() as u8], value.as_bytes()].concat();
    let mut block = vec![0x83, 0x86];
    block.extend(literal(4, path));
    block.extend(literal(1, "localhost"));
    block.extend(literal(31, "application/grpc"));
    frame(HEADERS, 4, stream, &block)
}

/// What an unauthenticated peer says first, and what it repeats for ever.
fn attacks() -> Vec<(Vec<u8>, Vec<u8>)> {
    let hello = || [PREFACE, &frame(SETTINGS, 0, 0, &[])].concat();
    let after = |more: Vec<u8>| [hello(), more].concat();
    let zeros = vec![0; 64 << 10];
    let call = |path: &str| {
        let message = [0, 0xff, 0xff, 0xff, 0xff];
        after([request(path, 1), frame(DATA, 0, 1, &message)].concat())
    };
    let endless = frame(DATA, 0, 1, &zeros[..16 << 10]);
    vec![
        // No HTTP/2 at all; no TLS either.
        (vec![0x16, 3, 1, 0xff, 0xff], zeros.clone()),
        (b"GET /".to_vec(), vec![b'a'; 64 << 10]),
        // The longest frames, which never end.
        (after(head(0xff_ffff, DATA, 0, 1)), zeros.clone()),
        (after(head(0xff_ffff, UNKNOWN, 0, 0)), zeros.clone()),
        (after(head(0x3fff, SETTINGS, 0, 0)), zeros.clone()),
        // Headers without an end.
        (
            after(frame(HEADERS, 0, 1, &[0x83])),
            frame(CONTINUATION, 0, 1, &zeros[..1 << 10]),
        ),
        // What wants answers, which are not read.
        (hello(), frame(PING, 0, 0, &[7; 8]).repeat(1000)),
        (hello(), frame(SETTINGS, 0, 0, &[]).repeat(1000)),
        // A message of 4 GiB.
        (call("/distribute.v1.Control/Join"), endless.clone()),
        (call("/grpc.health.v1.Health/Check"), endless.clone()),
        (call("/distribute.v1.Collectives/Exchange"), endless),
    ]
}

/// Says it until the peer has had enough of it, at most 24 MiB.
fn attack(address: &str, first: &[u8], again: &[u8]) {
    let mut socket = TcpStream::connect(address).expect("it listens");
    let limit = Some(Duration::from_millis(700));
    socket.set_write_timeout(limit).expect("a socket");
    let _ = socket.write_all(first);
    let times = 24 * MIB / again.len();
    // Fails when the peer has closed the connection, or takes no more.
    let _ = (0..times).try_for_each(|_| socket.write_all(again));
}

#[test]
fn unauthenticated_peers_fill_no_memory_and_keep_no_group_from_forming() {
    let mut ranks = start(2);
    let addresses = bind(&mut ranks, 0, "grpc", "rendezvous_ms=30000");
    // Rank 1 reaches rank 0 for data only when the unauthenticated peers have had their time.
    let switch = Switch::new();
    switch.set(Mode::BlackHole);
    let address = &addresses.0[0];
    let route = proxy::start(address, &switch);
    let attacks = attacks();
    let before = ranks[0].resident_bytes();
    ranks[0].tell(&format!("join {}", addresses.list()));
    ranks[1].tell(&format!("join {} data:0={route}", addresses.list()));
    std::thread::scope(|scope| {
        for (first, again) in &attacks {
            for _ in 0..8 {
                scope.spawn(move || attack(address, first, again));
            }
        }
    });
    switch.set(Mode::Forward);
    for rank in &mut ranks {
        rank.answer("joined");
        rank.tell("call all_reduce 1000");
    }
    for rank in &mut ranks {
        rank.answer("called");
    }
    assert_bounded(&ranks[0], before, 0);
    leave(&mut ranks);
}

/// Says it on this many connections, as a client that keeps to HTTP/2 does: it acknowledges the
/// settings, so that it has the windows of a member.
fn polite_attack(address: &str, path: &str, connections: usize) -> Vec<TcpStream> {
    let message = [0, 0xff, 0xff, 0xff, 0xff];
    let hello = [PREFACE, &frame(SETTINGS, 0, 0, &[])].concat();
    let call = [request(path, 1), frame(DATA, 0, 1, &message)].concat();
    let begin = |_| {
        let mut socket = TcpStream::connect(address).expect("it listens");
        let limit = Some(Duration::from_millis(100));
        socket.set_write_timeout(limit).expect("a socket");
        let acknowledged = frame(SETTINGS, 1, 0, &[]);
        let _ = socket.write_all(&[&hello[..], &acknowledged, &call].concat());
        socket
    };
    let mut sockets: Vec<TcpStream> = (0..connections).map(begin).collect();
    let piece = frame(DATA, 0, 1, &[0; 16 << 10]);
    for _ in 0..4 * MIB / piece.len() {
        // Those that were closed fail at once.
        sockets.retain_mut(|socket| socket.write_all(&piece).is_ok());
    }
    sockets
}

/// With the windows of a member an unauthenticated peer may send anything: it is not kept.
#[rstest]
fn unauthenticated_peers_that_acknowledge_the_settings_fill_no_memory(
    #[values(
        "/distribute.v1.Control/Join",
        "/grpc.health.v1.Health/Check",
        "/distribute.v1.Collectives/Exchange"
    )]
    path: &str,
) {
    let mut ranks = start(2);
    let addresses = bind(&mut ranks, 0, "grpc", "rendezvous_ms=30000");
    let switch = Switch::new();
    switch.set(Mode::BlackHole);
    let address = &addresses.0[0];
    let route = proxy::start(address, &switch);
    ranks[0].tell(&format!("join {}", addresses.list()));
    ranks[1].tell(&format!("join {} data:0={route}", addresses.list()));
    // What the first connections cost once is not what they keep.
    drop(polite_attack(address, path, 8));
    let before = ranks[0].peak_bytes();
    let held = polite_attack(address, path, 64);
    let more = ranks[0].peak_bytes().saturating_sub(before);
    println!("{path}: {} KiB for 64 unauthenticated peers", more / 1024);
    assert!(more < UNAUTHENTICATED_BYTES, "{} MiB more", more / MIB);
    drop(held);
    switch.set(Mode::Forward);
    for rank in &mut ranks {
        rank.answer("joined");
    }
    leave(&mut ranks);
}

/// Two ranks of which the first waits for the second, which reaches its port for data only when the
/// switch is turned.
fn two_that_join() -> (Vec<Rank>, Switch, SocketAddr) {
    let mut ranks = start(2);
    let addresses = bind(&mut ranks, 0, "grpc", "rendezvous_ms=30000");
    let switch = Switch::new();
    switch.set(Mode::BlackHole);
    let address = &addresses.0[0];
    let route = proxy::start(address, &switch);
    let port = address.parse().expect("an address");
    ranks[0].tell(&format!("join {}", addresses.list()));
    ranks[1].tell(&format!("join {} data:0={route}", addresses.list()));
    (ranks, switch, port)
}

fn join_after_all(mut ranks: Vec<Rank>, switch: &Switch) {
    switch.set(Mode::Forward);
    for rank in &mut ranks {
        rank.answer("joined");
    }
    leave(&mut ranks);
}

#[rstest]
fn unauthenticated_peers_cost_the_port_of_a_rank_nothing(
    #[values("/distribute.v1.Control/Join", "/distribute.v1.Collectives/Exchange")] path: &str,
) {
    let (ranks, switch, port) = two_that_join();
    // What the first connections cost once is not what they keep.
    drop(polite_attack(&port.to_string(), path, 8));
    let before = ranks[0].forget_peak();
    for attack in Attack::all(path) {
        assert_flood_costs_nothing(port, &attack);
    }
    let more = ranks[0].peak_bytes().saturating_sub(before);
    println!("{path}: {} KiB for all attacks", more / 1024);
    assert!(more < UNAUTHENTICATED_BYTES, "{} MiB more", more / MIB);
    join_after_all(ranks, &switch);
}

/// Also those that say who they are, and then never read what they asked for.
#[test]
fn unauthenticated_peers_that_never_read_keep_nothing_of_a_rank() {
    let (ranks, switch, port) = two_that_join();
    drop(polite_attack(
        &port.to_string(),
        "/distribute.v1.Control/Join",
        8,
    ));
    let before = ranks[0].forget_peak();
    let mut words = demands();
    words.extend([Purpose::Control, Purpose::Data].map(|purpose| {
        let hello = Hello::new(purpose, 1, "0.1.0");
        let (_, hello) = Dialer::start(hello, &Secret::default()).expect("a Hello");
        let length = (hello.len() as u32).to_be_bytes();
        [&length[..], hello.as_bytes()].concat()
    }));
    assert_deaf_peers_end(port, &words);
    let more = ranks[0].peak_bytes().saturating_sub(before);
    println!("{} KiB for {} peers", more / 1024, 12 * words.len());
    assert!(more < UNAUTHENTICATED_BYTES, "{} MiB more", more / MIB);
    join_after_all(ranks, &switch);
}

/// A message between two ranks that was not asked for.
fn message(number: u64, payload: usize) -> Vec<u8> {
    let mut bytes = vec![0; 5 + 64 + payload];
    bytes[1..5].copy_from_slice(&(64 + payload as u32).to_be_bytes());
    // Version, flags (point-to-point), kind (send).
    bytes[5..8].copy_from_slice(&[1, 1, 6]);
    bytes[61..69].copy_from_slice(&number.to_le_bytes());
    bytes
}

fn padded(body: &[u8]) -> Vec<u8> {
    let body = [&[255], body, &[0; 255]].concat();
    frame(DATA, 8, 1, &body)
}

/// What a member of the group, or a process that has taken over its connection, may send.
#[derive(Debug, Clone, Copy)]
enum Flood {
    /// Messages as large as they come.
    Large,
    /// The smallest messages, many in a frame.
    Small,
    /// One small message per frame, with all padding that there can be.
    Padded,
    /// Small messages between large frames that mean nothing.
    Scattered,
    /// A message of 4 GiB.
    Giant,
}

impl Flood {
    fn piece(self, number: u64) -> Vec<u8> {
        match self {
            Flood::Large => frame(DATA, 0, 1, &message(number, 120 << 10)),
            Flood::Small => {
                let messages = (0..1000).map(|i| message(1000 * number + i, 0));
                frame(DATA, 0, 1, &messages.collect::<Vec<_>>().concat())
            }
            Flood::Padded => (0..100)
                .flat_map(|i| padded(&message(100 * number + i, 1)))
                .collect(),
            Flood::Scattered => {
                let mut piece = frame(UNKNOWN, 0, 0, &vec![0; 100 << 10]);
                piece.extend(frame(DATA, 0, 1, &message(number, 1)));
                piece
            }
            Flood::Giant => frame(DATA, 0, 1, &[0, 0xff, 0xff, 0xff, 0xff].repeat(10)),
        }
    }
}

#[rstest]
fn a_hostile_member_fills_no_memory(
    #[values(
        Flood::Large,
        Flood::Small,
        Flood::Padded,
        Flood::Scattered,
        Flood::Giant
    )]
    flood: Flood,
) {
    let mut ranks = start(2);
    let addresses = bind(&mut ranks, 0, "grpc", "timeout_ms=6000");
    let switch = Switch::new();
    let route = proxy::start(&addresses.0[0], &switch);
    ranks[0].tell(&format!("join {}", addresses.list()));
    ranks[1].tell(&format!("join {} data:0={route}", addresses.list()));
    for rank in &mut ranks {
        rank.answer("joined");
    }
    let before = ranks[0].resident_bytes();
    // Rank 0 waits for rank 1, and reads what seems to come from it.
    ranks[0].tell("call all_reduce 1000");
    let mut socket = switch.upstreams().pop().expect("rank 1 is connected");
    let limit = Some(Duration::from_secs(2));
    socket.set_write_timeout(limit).expect("a socket");
    let mut sent = 0;
    for number in 0.. {
        let piece = flood.piece(number);
        sent += piece.len();
        if socket.write_all(&piece).is_err() || sent > 400 * MIB {
            break;
        }
    }
    let answer = ranks[0].answer("error");
    println!("{flood:?}: after {} KiB: {answer}", sent / 1024);
    assert!(answer.contains("[1]"), "{answer}");
    assert_bounded(&ranks[0], before, 0);
}
