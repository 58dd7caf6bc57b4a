//! Checks between ranks of this machine: each is a thread with sockets of its own.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use distribute_net::security::{Security, TlsIdentity, Token};
use distribute_peers::{Facts, FindingKind, Outcome, PeersError, PeersOptions, Report, check};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};

/// No check of these takes longer, on a machine with other load.
const LIMIT: Duration = Duration::from_secs(90);
/// How long a missing rank is waited for.
const SHORT: Duration = Duration::from_secs(3);

/// Free ports, which stay bound until the ranks are started.
fn addresses(count: usize) -> Vec<String> {
    let bound: Vec<TcpListener> = (0..count)
        .map(|_| TcpListener::bind("127.0.0.1:0").unwrap())
        .collect();
    let addresses = bound.iter().map(|it| it.local_addr().unwrap().to_string());
    addresses.collect()
}

fn options(rank: usize, listed: &[String]) -> PeersOptions {
    let facts = Facts::of_this_process("0.1.0", "full");
    PeersOptions::new(rank, listed.iter().map(|it| Some(it.clone())))
        .name(format!("worker {rank}"))
        .facts(facts)
        .timeout(LIMIT / 3)
}

/// What a rank ended with, and the report of rank 0.
type Ended = (usize, Result<usize, PeersError>, Option<Report>);

fn start(options: PeersOptions, rank: usize, ended: &mpsc::Sender<Ended>) {
    let ended = ended.clone();
    std::thread::spawn(move || {
        let mut report = None;
        let result = check(options, |found| report = Some(found.clone()));
        let _the_test_is_over = ended.send((rank, result, report));
    });
}

/// A rank, and what it ended with.
type Rank = (usize, Result<usize, PeersError>);

/// Runs these ranks; returns the report, and how the others ended.
fn run(all: Vec<PeersOptions>) -> (Report, Vec<Rank>) {
    let count = all.len();
    let (sender, receiver) = mpsc::channel();
    for (rank, options) in all.into_iter().enumerate() {
        start(options, rank, &sender);
    }
    let (mut others, mut found) = (Vec::new(), None);
    for _ in 0..count {
        let (rank, result, report) = receiver.recv_timeout(LIMIT).expect("a check hangs");
        if let Some(report) = report {
            assert_eq!(result.expect("rank 0"), report.problems.len());
            found = Some(report);
        } else {
            others.push((rank, result));
        }
    }
    (found.expect("rank 0 has a report"), others)
}

fn texts(report: &Report) -> String {
    let all = report.problems.iter().chain(&report.notes);
    let texts: Vec<String> = all
        .map(|it| format!("{:?}: {}", it.kind, it.text))
        .collect();
    texts.join("\n")
}

fn kinds(report: &Report) -> Vec<FindingKind> {
    report.problems.iter().map(|problem| problem.kind).collect()
}

/// Carries bytes to an address, at most this many per second each way, until the test ends.
fn proxy(to: String, bytes_per_second: u64) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let carry = move |mut from: TcpStream, mut to: TcpStream| {
        let mut buffer = vec![0; 16 << 10];
        while let Ok(count) = from.read(&mut buffer)
            && count > 0
        {
            let begun = Instant::now();
            if to.write_all(&buffer[..count]).is_err() {
                break;
            }
            let takes = Duration::from_secs_f64(count as f64 / bytes_per_second as f64);
            std::thread::sleep(takes.saturating_sub(begun.elapsed()));
        }
        let _gone = to.shutdown(Shutdown::Write);
    };
    std::thread::spawn(move || {
        for near in listener.incoming().flatten() {
            let Ok(far) = TcpStream::connect(&to) else {
                continue;
            };
            let (near_too, far_too) = (near.try_clone().unwrap(), far.try_clone().unwrap());
            std::thread::spawn(move || carry(near, far));
            std::thread::spawn(move || carry(far_too, near_too));
        }
    });
    address
}

#[test]
fn ranks_that_reach_each_other_have_a_rate_and_a_round_trip_each_way() {
    let listed = addresses(4);
    let (report, others) = run((0..4).map(|rank| options(rank, &listed)).collect());
    assert!(report.problems.is_empty(), "{}", texts(&report));
    assert_eq!(report.edges.len(), 12);
    for edge in &report.edges {
        assert!(edge.works && edge.is_local, "{edge:?}");
        assert_eq!(edge.attempts.len(), 1);
        assert!(edge.bytes_per_second.unwrap() > 1e5 && edge.round_trip_seconds.unwrap() > 0.0);
        assert_eq!(edge.attempts[0].interface.as_deref(), Some("lo"));
    }
    assert_eq!(
        (report.method.measured, report.method.rounds),
        (6, 6),
        "one host"
    );
    assert!(others.into_iter().all(|(_, result)| result.unwrap() == 0));
    let clocks = report.ranks[1..].iter().map(|rank| rank.clock.unwrap());
    for clock in clocks {
        assert!(
            clock.seconds.abs() <= clock.uncertainty_seconds + 1e-3,
            "{clock:?}"
        );
    }
    assert!(
        report.to_string().ends_with("all ranks reach each other"),
        "{report}"
    );
}

#[test]
fn a_rank_that_never_comes_is_named_and_the_others_are_measured() {
    let listed = addresses(3);
    let some = [0, 2].map(|rank| options(rank, &listed).timeout(SHORT));
    let (sender, receiver) = mpsc::channel();
    for (rank, options) in [0, 2].into_iter().zip(some) {
        start(options, rank, &sender);
    }
    let mut report = None;
    for _ in 0..2 {
        let (rank, result, found) = receiver.recv_timeout(LIMIT).expect("a check hangs");
        assert_eq!(result.unwrap_or_else(|error| panic!("{rank}: {error}")), 1);
        report = report.or(found);
    }
    let report = report.unwrap();
    assert_eq!(kinds(&report), [FindingKind::Missing], "{}", texts(&report));
    let text = &report.problems[0].text;
    assert!(
        text.contains("rank 1 did not come") && text.contains("ranks 0 and 2"),
        "{text}"
    );
    assert!(
        text.contains("connection refused") && text.contains(&listed[1]),
        "{text}"
    );
    assert!(report.edge(0, 2).unwrap().bytes_per_second.is_some());
    assert!(!report.ranks[1].present && report.ranks[2].present);
}

/// The others are given an address of rank 1 where something accepts and never answers, and one of
/// rank 2 where nothing listens.
#[test]
fn a_blocked_port_is_named_with_what_it_means() {
    let own = addresses(3);
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let [refused] = &addresses(1)[..] else {
        unreachable!()
    };
    let seen = [
        own[0].clone(),
        silent.local_addr().unwrap().to_string(),
        refused.clone(),
    ];
    let all = (0..3).map(|rank| {
        let mut listed = seen.clone();
        listed[rank].clone_from(&own[rank]);
        options(rank, &listed)
    });
    let (report, _) = run(all.collect());
    let outcome = |from, to| report.edge(from, to).unwrap().attempts[0].outcome.clone();
    assert_eq!(outcome(0, 1), Outcome::Silent);
    assert_eq!(outcome(2, 1), Outcome::Silent);
    assert_eq!(outcome(0, 2), Outcome::Refused);
    assert_eq!(outcome(1, 0), Outcome::Reached);
    assert_eq!(
        kinds(&report),
        [FindingKind::Unreachable; 2],
        "{}",
        texts(&report)
    );
    let [one, two] = &report.problems[..] else {
        unreachable!()
    };
    assert_eq!(
        (&one.ranks[..], &two.ranks[..]),
        (&[0, 2, 1][..], &[0, 1, 2][..])
    );
    assert!(
        one.text.contains("accepted, and then nothing comes"),
        "{}",
        one.text
    );
    assert!(two.text.contains("connection refused"), "{}", two.text);
    // The way back is measured all the same.
    assert!(report.edge(1, 0).unwrap().bytes_per_second.is_some());
}

#[test]
fn the_edge_that_a_proxy_slows_is_named_as_the_slowest() {
    let own = addresses(3);
    let slow = proxy(own[2].clone(), 2 << 20);
    let all = (0..3).map(|rank| {
        let mut listed = own.clone();
        if rank == 1 {
            listed[2].clone_from(&slow);
        }
        options(rank, &listed)
    });
    let (report, _) = run(all.collect());
    assert!(report.problems.is_empty(), "{}", texts(&report));
    let rate = report.edge(1, 2).unwrap().bytes_per_second.unwrap();
    assert!(rate < 4e6, "{rate}");
    let slow = report
        .notes
        .iter()
        .find(|note| note.kind == FindingKind::Slow);
    let slow = slow.unwrap_or_else(|| panic!("{report}"));
    assert_eq!(slow.ranks, [1, 2]);
    assert!(
        slow.text
            .contains("the slowest link is from rank 1 to rank 2"),
        "{}",
        slow.text
    );
    let listed = report
        .notes
        .iter()
        .any(|note| note.kind == FindingKind::List);
    assert!(listed, "{}", texts(&report));
}

/// Rank 1 has a wrong address of rank 0. Rank 0 goes to it.
#[test]
fn a_rank_that_does_not_reach_rank_0_takes_part_where_rank_0_reaches_it() {
    let own = addresses(2);
    let [wrong] = &addresses(1)[..] else {
        unreachable!()
    };
    let all = vec![
        options(0, &own),
        options(1, &[wrong.clone(), own[1].clone()]),
    ];
    let (report, others) = run(all);
    assert!(report.ranks[1].present);
    assert_eq!(
        kinds(&report),
        [FindingKind::Unreachable],
        "{}",
        texts(&report)
    );
    assert!(
        report.problems[0]
            .text
            .starts_with("rank 1 does not reach rank 0 at")
    );
    assert!(report.edge(0, 1).unwrap().bytes_per_second.is_some());
    assert_eq!(others[0].1.as_ref().unwrap(), &1);
}

#[test]
fn clocks_versions_and_features_that_differ_are_named() {
    let listed = addresses(3);
    let ahead = || {
        let now = SystemTime::now() + Duration::from_secs(5);
        now.duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64
    };
    let all = vec![
        options(0, &listed),
        options(1, &listed).clock(ahead),
        options(2, &listed).facts(Facts::of_this_process("0.2.0", "full, nccl")),
    ];
    let (report, _) = run(all);
    assert_eq!(kinds(&report), [FindingKind::Version], "{}", texts(&report));
    assert!(
        report.problems[0]
            .text
            .contains("rank 2: version 0.2.0, rank 0: 0.1.0")
    );
    let clock = report.ranks[1].clock.unwrap();
    assert!(
        (clock.seconds - 5.0).abs() <= clock.uncertainty_seconds + 0.01,
        "{clock:?}"
    );
    let note = |kind| report.notes.iter().find(|note| note.kind == kind).unwrap();
    assert_eq!(note(FindingKind::Clock).ranks, [1]);
    assert!(
        note(FindingKind::Different)
            .text
            .contains("rank 2: full, nccl")
    );
}

/// Only the address of rank 0 is known: the others tell theirs.
#[test]
fn ranks_without_an_address_tell_theirs() {
    let [leader] = &addresses(1)[..] else {
        unreachable!()
    };
    let all = (0..3).map(|rank| {
        let listed = [Some(leader.clone()), None, None];
        let facts = Facts::of_this_process("0.1.0", "full");
        PeersOptions::new(rank, listed)
            .facts(facts)
            .timeout(LIMIT / 3)
    });
    let (report, _) = run(all.collect());
    assert!(report.problems.is_empty(), "{}", texts(&report));
    assert_eq!(report.edges.len(), 6);
    assert!(
        report
            .ranks
            .iter()
            .all(|rank| rank.interface.as_deref() == Some("lo"))
    );
}

fn identity() -> (TlsIdentity, TlsIdentity) {
    let authority = || {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let ca = params.self_signed(&key).unwrap();
        let issuer = Issuer::new(params, key);
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec!["127.0.0.1".to_string()]).unwrap();
        let own = params.signed_by(&key, &issuer).unwrap();
        TlsIdentity::new(ca.pem(), own.pem(), key.serialize_pem())
    };
    (authority(), authority())
}

/// Rank 2 has the token and another authority's certificate, rank 3 another token.
#[test]
fn who_has_another_token_or_certificate_is_turned_away_and_named_on_both_sides() {
    let listed = addresses(4);
    let (ours, theirs) = identity();
    let token = |text: &str| Token::new(text).unwrap();
    let (right, wrong) = ("0123456789abcdefghij", "another one, 0123456789");
    let security = [
        Security::default().tls(ours.clone()).token(token(right)),
        Security::default().tls(ours.clone()).token(token(right)),
        Security::default().tls(theirs).token(token(right)),
        Security::default().tls(ours).token(token(wrong)),
    ];
    let all = security
        .into_iter()
        .enumerate()
        .map(|(rank, security)| options(rank, &listed).security(security).timeout(SHORT));
    let (report, others) = run(all.collect());
    assert_eq!(
        kinds(&report),
        [FindingKind::Missing; 2],
        "{}",
        texts(&report)
    );
    assert!(report.edge(0, 1).unwrap().works && report.edge(1, 0).unwrap().works);
    let away = report
        .notes
        .iter()
        .filter(|note| note.kind == FindingKind::TurnedAway);
    let away: Vec<&str> = away.map(|note| &*note.text).collect();
    assert!(away.iter().any(|text| text.contains("token")), "{away:?}");
    assert!(
        away.iter().any(|text| text.contains("certificate")),
        "{away:?}"
    );
    for (rank, result) in others {
        match (rank, result) {
            (1, Ok(problems)) => assert_eq!(problems, 2),
            (2, Err(error)) => assert!(error.to_string().contains("certificate"), "{error}"),
            (3, Err(error)) => assert!(error.to_string().contains("token"), "{error}"),
            (rank, other) => panic!("{rank}: {other:?}"),
        }
    }
}

#[test]
fn a_second_process_with_the_same_rank_is_refused() {
    let listed = addresses(3);
    let (sender, receiver) = mpsc::channel();
    let mut twin = listed.clone();
    twin[1] = addresses(1)[0].clone();
    start(options(0, &listed), 0, &sender);
    start(options(1, &listed), 1, &sender);
    start(options(1, &twin), 1, &sender);
    let refused = receiver.recv_timeout(LIMIT).expect("a check hangs");
    let text = refused.1.unwrap_err().to_string();
    assert!(text.contains("rank 1 is there already"), "{text}");
    start(options(2, &listed), 2, &sender);
    let ended: Vec<Ended> = (0..3)
        .map(|_| receiver.recv_timeout(LIMIT).unwrap())
        .collect();
    let report = ended.into_iter().find_map(|(_, _, report)| report).unwrap();
    let away = report
        .notes
        .iter()
        .any(|note| note.kind == FindingKind::TurnedAway);
    assert!(away, "{}", texts(&report));
}

/// Another number of processes is another job.
#[test]
fn a_rank_of_another_number_of_processes_is_refused_with_both_numbers() {
    let listed = addresses(2);
    let mut longer = listed.clone();
    longer.extend(addresses(1));
    let (sender, receiver) = mpsc::channel();
    start(options(0, &listed).timeout(SHORT), 0, &sender);
    start(options(1, &longer).timeout(SHORT), 1, &sender);
    let ended: Vec<Ended> = (0..2)
        .map(|_| receiver.recv_timeout(LIMIT).unwrap())
        .collect();
    let of = |rank| ended.iter().find(|(of, ..)| *of == rank).unwrap();
    let text = of(1).1.as_ref().unwrap_err().to_string();
    assert!(
        text.contains("of 2 processes") && text.contains("of 3"),
        "{text}"
    );
    assert_eq!(kinds(of(0).2.as_ref().unwrap()), [FindingKind::Missing]);
}

/// A connection that says nothing takes no place, and what is no handshake ends it.
#[test]
fn peers_without_a_handshake_get_no_answer() {
    let listed = addresses(2);
    let (sender, receiver) = mpsc::channel();
    start(options(0, &listed), 0, &sender);
    let address: SocketAddr = listed[0].parse().unwrap();
    let mut stream = loop {
        if let Ok(stream) = TcpStream::connect(address) {
            break stream;
        }
        std::thread::yield_now();
    };
    stream.set_read_timeout(Some(LIMIT / 3)).unwrap();
    stream
        .write_all(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n")
        .unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    let answer = String::from_utf8_lossy(&answer).into_owned();
    assert!(answer.contains("no handshake"), "{answer}");
    start(options(1, &listed), 1, &sender);
    let ended: Vec<Ended> = (0..2)
        .map(|_| receiver.recv_timeout(LIMIT).unwrap())
        .collect();
    let report = ended.into_iter().find_map(|(_, _, report)| report).unwrap();
    assert!(report.problems.is_empty(), "{}", texts(&report));
    assert!(
        report
            .notes
            .iter()
            .any(|note| note.kind == FindingKind::TurnedAway)
    );
}
