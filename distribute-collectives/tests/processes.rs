//! Groups of real processes: what they compute, and what the survivors say when one of them is
//! killed, stopped or cut off. A program of its own: a test that computes beside it delays what it
//! waits for.

#[path = "processes/harness.rs"]
mod harness;
#[path = "processes/memory.rs"]
mod memory;
#[path = "processes/proxy.rs"]
mod proxy;
#[path = "processes/rank.rs"]
mod rank;
#[path = "processes/secrets.rs"]
mod secrets;
#[path = "processes/trace.rs"]
mod trace;

use std::time::Duration;

use harness::{Rank, Stopwatch, bind, group, join, leave, start};
use proxy::{Mode, Switch};
use rstest::rstest;
use rustix::process::Signal;

/// From the fault to the last survivor's error, at default settings, on a machine that has time.
const NOTICED_WITHIN: Duration = Duration::from_secs(5);

const BIG: &str = "loop 104857600";

/// Not a test: the process of a rank, which another test has started.
#[test]
fn a_rank_of_another_test() {
    if let Ok(number) = std::env::var(rank::RANK) {
        rank::run(number.parse().expect("a rank"));
    }
}

/// How often each fault is tried; `DISTRIBUTE_FAILURE_TRIES=20` is the long form.
fn tries() -> usize {
    let text = std::env::var("DISTRIBUTE_FAILURE_TRIES");
    text.ok().and_then(|text| text.parse().ok()).unwrap_or(1)
}

/// Somewhere in the middle of an operation: a different moment in each try.
fn some_time(attempt: usize) {
    // The sleep chooses the moment of the fault; nothing waits for it.
    std::thread::sleep(Duration::from_millis((attempt as u64 * 37 + 11) % 200));
}

/// Lets all ranks all-reduce 100 MiB again and again, until each has done some.
fn run_big_operations(ranks: &mut [Rank]) {
    run_operations(ranks, BIG);
}

fn run_operations(ranks: &mut [Rank], operations: &str) {
    for rank in &mut *ranks {
        rank.tell(operations);
    }
    for rank in ranks {
        rank.answer("running");
    }
}

/// Every survivor reports an error of one of the kinds that names the victim, in time.
fn assert_named(survivors: &mut [&mut Rank], victim: usize, kinds: &[&str], since: &Stopwatch) {
    for rank in survivors {
        let answer = rank.answer("error");
        let elapsed = since.elapsed_at_slowest();
        let expected = kinds.iter().map(|kind| format!("{kind} [{victim}] "));
        assert!(
            expected
                .clone()
                .any(|expected| answer.starts_with(&expected)),
            "rank {} says: {answer}; expected {kinds:?} naming {victim}",
            rank.number
        );
        assert!(
            elapsed < NOTICED_WITHIN,
            "rank {} needed {elapsed:?}: {answer}",
            rank.number
        );
    }
}

/// `Kind [0, 1] text`: what a rank says about an error.
fn kind_and_ranks(answer: &str) -> (&str, Vec<usize>) {
    let parts = answer.split_once(" [").and_then(|(kind, rest)| {
        let (list, _) = rest.split_once(']')?;
        let numbers = list.split(", ").filter(|number| !number.is_empty());
        let numbers: Result<Vec<usize>, _> = numbers.map(str::parse).collect();
        Some((kind, numbers.ok()?))
    });
    parts.unwrap_or_else(|| panic!("no error with its ranks: {answer}"))
}

fn survivors(ranks: &mut [Rank], victim: usize) -> Vec<&mut Rank> {
    ranks
        .iter_mut()
        .filter(|rank| rank.number != victim)
        .collect()
}

#[rstest]
fn a_killed_rank_is_named(
    #[values("shm", "grpc")] transport: &str,
    #[values(0, 1, 2)] victim: usize,
) {
    for attempt in 0..tries() {
        let mut since = Stopwatch::start();
        let mut ranks = group(3, transport, "");
        run_big_operations(&mut ranks);
        some_time(attempt);
        since.restart();
        ranks[victim].signal(Signal::KILL);
        let mut survivors = survivors(&mut ranks, victim);
        assert_named(&mut survivors, victim, &["PeerLost"], &since);
        for rank in survivors {
            leave(std::slice::from_mut(rank));
        }
    }
}

/// Ranks that have met have no data connections yet: those that need one to the killed rank wait
/// for it, the others for them.
#[rstest]
fn a_rank_that_is_killed_before_the_first_operation_is_named(
    #[values("ring", "halving_doubling")] algorithm: &str,
    #[values(0, 2, 4)] victim: usize,
    #[values("PeerLost", "Timeout")] kind: &str,
) {
    for _ in 0..tries() {
        let mut since = Stopwatch::start();
        let mut ranks = group(5, "grpc", &format!("algorithm={algorithm}"));
        for rank in &mut survivors(&mut ranks, victim) {
            rank.tell("call all_reduce 1000000");
        }
        since.restart();
        let signal = match kind {
            "Timeout" => Signal::STOP,
            _ => Signal::KILL,
        };
        ranks[victim].signal(signal);
        let mut survivors = survivors(&mut ranks, victim);
        assert_named(&mut survivors, victim, &[kind], &since);
        for rank in survivors {
            leave(std::slice::from_mut(rank));
        }
    }
}

/// A stopped rank is named; when it goes on it finds the group gone, and a new generation that
/// was made meanwhile is not disturbed by it.
#[rstest]
fn a_stopped_rank_is_named_and_harmless_later(
    #[values("shm", "grpc")] transport: &str,
    #[values(0, 2)] victim: usize,
) {
    for attempt in 0..tries() {
        let mut since = Stopwatch::start();
        let mut ranks = group(3, transport, "");
        run_big_operations(&mut ranks);
        some_time(attempt);
        since.restart();
        ranks[victim].signal(Signal::STOP);
        assert_named(
            &mut survivors(&mut ranks, victim),
            victim,
            &["Timeout"],
            &since,
        );
        let mut stopped = std::mem::replace(&mut ranks[victim], Rank::start(victim));
        for rank in survivors(&mut ranks, victim) {
            leave(std::slice::from_mut(rank));
        }
        let addresses = bind(&mut ranks, 1, transport, "");
        join(&mut ranks, &addresses);
        stopped.signal(Signal::CONT);
        for rank in &mut ranks {
            rank.tell("call all_reduce 1000000");
        }
        for rank in &mut ranks {
            rank.answer("called");
        }
        let answer = stopped.answer("error");
        assert!(!answer.is_empty());
        leave(&mut ranks);
        leave(std::slice::from_mut(&mut stopped));
    }
}

/// A rank behind proxies, in both directions and on both kinds of connections.
fn group_with_faults(victim: usize) -> (Vec<Rank>, Switch) {
    // A connection passes a proxy when one of its ends is the victim.
    group_with_proxies(3, "", |a, b| a == victim || b == victim)
}

/// Ranks; the connections between those for which `proxied` says so pass proxies.
fn group_with_proxies(
    world_size: usize,
    settings: &str,
    proxied: impl Fn(usize, usize) -> bool,
) -> (Vec<Rank>, Switch) {
    let mut ranks = start(world_size);
    let addresses = bind(&mut ranks, 0, "grpc", settings);
    let switch = Switch::new();
    for rank in &mut ranks {
        let proxied = |peer: usize| peer != rank.number && proxied(peer, rank.number);
        let list: Vec<String> = addresses
            .0
            .iter()
            .enumerate()
            .map(|(peer, address)| {
                if proxied(peer) {
                    proxy::start(address, &switch).to_string()
                } else {
                    address.clone()
                }
            })
            .collect();
        rank.tell(&format!("join {}", list.join(" ")));
    }
    for rank in &mut ranks {
        rank.answer("joined");
    }
    (ranks, switch)
}

#[rstest]
fn a_rank_in_a_black_hole_is_named(#[values(0, 1, 2)] victim: usize) {
    for attempt in 0..tries() {
        let mut since = Stopwatch::start();
        let (mut ranks, switch) = group_with_faults(victim);
        run_big_operations(&mut ranks);
        some_time(attempt);
        since.restart();
        switch.set(Mode::BlackHole);
        let mut survivors = survivors(&mut ranks, victim);
        assert_named(&mut survivors, victim, &["Timeout"], &since);
        ranks[victim].answer("error");
        leave(&mut ranks);
    }
}

/// More ranks than the neighbours of one: ranks 9 to 11 are connected to rank 1, all others to
/// rank 0.
const WITH_INNER_RANK: usize = 12;

/// The root of the tree, an inner node, and a leaf two streams away from the root.
#[rstest]
fn a_lost_rank_is_named_whatever_its_place_in_the_tree(
    #[values("shm", "grpc")] transport: &str,
    #[values(0, 1, 10)] victim: usize,
    #[values((Signal::KILL, "PeerLost"), (Signal::STOP, "Timeout"))] fault: (Signal, &str),
) {
    for attempt in 0..tries() {
        let mut since = Stopwatch::start();
        let mut ranks = group(WITH_INNER_RANK, transport, "");
        run_operations(&mut ranks, "loop 40000");
        some_time(attempt);
        since.restart();
        ranks[victim].signal(fault.0);
        let mut survivors = survivors(&mut ranks, victim);
        assert_named(&mut survivors, victim, &[fault.1], &since);
        for rank in survivors {
            leave(std::slice::from_mut(rank));
        }
    }
}

/// A stopped rank passes nothing on, and with long silences it is not found for a minute. What ends
/// the group meanwhile reaches all ranks around it.
#[test]
fn an_abort_gets_around_a_stopped_inner_rank() {
    let mut ranks = group(WITH_INNER_RANK, "grpc", "silence_ms=60000");
    let since = Stopwatch::start();
    ranks[1].signal(Signal::STOP);
    for rank in ranks
        .iter_mut()
        .filter(|rank| ![1, 10].contains(&rank.number))
    {
        rank.tell("call all_reduce 1000");
    }
    ranks[10].tell("abort full-disk");
    ranks[10].answer("aborted");
    leave(&mut ranks[10..11]);
    for rank in ranks
        .iter_mut()
        .filter(|rank| ![1, 10].contains(&rank.number))
    {
        let answer = rank.answer("error");
        assert!(
            answer.starts_with("Aborted [10] "),
            "rank {}: {answer}",
            rank.number
        );
        leave(std::slice::from_mut(rank));
    }
    let elapsed = since.elapsed_at_slowest();
    assert!(elapsed < Duration::from_secs(20), "{elapsed:?}");
}

/// An inner node and a leaf whose only neighbour is on the other side of the cut: it asks others
/// whether it is itself that is cut off.
#[rstest]
fn a_rank_in_a_black_hole_is_named_whatever_its_place(#[values(1, 10)] victim: usize) {
    for attempt in 0..tries() {
        let mut since = Stopwatch::start();
        let one_end = |a, b| a == victim || b == victim;
        let (mut ranks, switch) = group_with_proxies(WITH_INNER_RANK, "", one_end);
        run_operations(&mut ranks, "loop 40000");
        some_time(attempt);
        since.restart();
        switch.set(Mode::BlackHole);
        let mut survivors = survivors(&mut ranks, victim);
        assert_named(&mut survivors, victim, &["Timeout"], &since);
        let answer = ranks[victim].answer("error");
        assert!(
            answer.starts_with(&format!("CutOff [{victim}] ")),
            "{answer}"
        );
        leave(&mut ranks);
    }
}

/// Damages the connections between two ranks while they work: every rank says which one it lost,
/// and names one of the two or both, never the third.
///
/// Without TLS damage can also go into a sum, as the document says, so that is not checked then.
fn damage(ends: [usize; 2], mode: Mode, settings: &str) {
    let is_end = |rank: usize| ends.contains(&rank);
    let (mut ranks, switch) = group_with_proxies(3, settings, |a, b| is_end(a) && is_end(b));
    match settings {
        "" => run_operations(&mut ranks, &format!("{BIG} unchecked")),
        _ => run_big_operations(&mut ranks),
    }
    switch.set(mode);
    for rank in &mut ranks {
        let answer = rank.answer("error");
        let (kind, named) = kind_and_ranks(&answer);
        let is_named = match kind {
            "Protocol" | "PeerLost" | "Timeout" => matches!(named[..], [one] if is_end(one)),
            "Mismatch" => named == ends,
            _ => false,
        };
        assert!(
            is_named,
            "{mode:?} {ends:?}, rank {}: {answer}",
            rank.number
        );
    }
    leave(&mut ranks);
}

#[rstest]
fn damaged_connections_end_with_an_error_that_names_the_rank(
    #[values(Mode::Corrupt, Mode::HalfClose)] mode: Mode,
    #[values([0, 1], [1, 2])] ends: [usize; 2],
) {
    for _ in 0..tries() {
        damage(ends, mode, "");
    }
}

/// Damaged numbers would make a wrong sum, which the ranks check: with TLS none gets that far.
#[test]
fn with_tls_no_damage_goes_into_a_sum() {
    let directory = tempfile::tempdir().expect("a directory");
    let settings = secrets::certificate(directory.path());
    for _ in 0..tries() {
        damage([1, 2], Mode::Corrupt, &settings);
    }
}

#[rstest]
fn slow_connections_are_no_failure(#[values(Mode::Delay, Mode::Throttle)] mode: Mode) {
    let (mut ranks, switch) = group_with_faults(1);
    switch.set(mode);
    for _ in 0..3 {
        for rank in &mut ranks {
            rank.tell("call all_reduce 500000");
        }
        for rank in &mut ranks {
            rank.answer("called");
        }
    }
    leave(&mut ranks);
}

#[rstest]
fn different_calls_are_a_mismatch_on_all_ranks(
    #[values("shm", "grpc")] transport: &str,
    #[values(
        ("call all_reduce 1000", "call all_reduce 1001"),
        ("call all_reduce 1000", "call all_reduce 1000 mean"),
        ("call all_reduce 1000", "call all_reduce 1000 f64"),
        ("call all_reduce 1000", "call reduce_scatter 1000"),
        ("call all_reduce 1000000", "call barrier"),
        ("call all_reduce 2", "call all_reduce 3"),
        ("call broadcast 0 1000", "call broadcast 1 1000"),
        ("call reduce 0 1000", "call all_reduce 1000"),
        ("call all_gather 10", "call barrier")
    )]
    calls: (&str, &str),
) {
    let mut ranks = group(3, transport, "");
    for rank in &mut ranks {
        let odd = rank.number == 2;
        rank.tell(if odd { calls.1 } else { calls.0 });
    }
    for rank in &mut ranks {
        let answer = rank.answer("error");
        let (kind, named) = kind_and_ranks(&answer);
        assert_eq!(kind, "Mismatch", "rank {}: {answer}", rank.number);
        assert!(
            matches!(named[..], [0 | 1, 2]),
            "rank {}: {answer}",
            rank.number
        );
    }
    leave(&mut ranks);
}

#[rstest]
fn a_rank_that_never_calls_is_named_at_the_deadline(#[values("shm", "grpc")] transport: &str) {
    // Without measuring links, whose operations have the same deadline.
    let settings = match transport {
        "grpc" => "timeout_ms=700 algorithm=ring",
        _ => "timeout_ms=700",
    };
    let mut ranks = group(3, transport, settings);
    for rank in &mut ranks {
        if rank.number != 1 {
            rank.tell("call all_reduce 100000");
        }
    }
    for rank in &mut ranks {
        if rank.number != 1 {
            let answer = rank.answer("error");
            assert!(answer.starts_with("Timeout [1] "), "{answer}");
        }
    }
    leave(&mut ranks);
}

#[rstest]
fn an_abort_reaches_all_ranks(#[values("shm", "grpc")] transport: &str) {
    let mut ranks = group(3, transport, "");
    ranks[0].tell("call all_reduce 100000");
    ranks[2].tell("call all_reduce 100000");
    ranks[1].tell("abort full-disk");
    ranks[1].answer("aborted");
    for number in [0, 2] {
        let answer = ranks[number].answer("error");
        assert!(answer.starts_with("Aborted [1] "), "{answer}");
        assert!(answer.contains("full-disk"), "{answer}");
    }
    leave(&mut ranks);
}

#[rstest]
fn a_rank_that_leaves_is_named(#[values("shm", "grpc")] transport: &str) {
    let mut ranks = group(3, transport, "");
    for rank in &mut ranks {
        rank.tell("call all_reduce 1000");
    }
    for rank in &mut ranks {
        rank.answer("called");
    }
    leave(&mut ranks[1..2]);
    for number in [0, 2] {
        ranks[number].tell("call all_reduce 1000");
    }
    for number in [0, 2] {
        let answer = ranks[number].answer("error");
        assert!(answer.starts_with("PeerLost [1] "), "{answer}");
    }
    leave(&mut ranks);
}

/// Threads, files and mapped segments are counted before and after.
#[rstest]
fn generations_made_and_dropped_leave_nothing(#[values("shm", "grpc")] transport: &str) {
    let mut rank = Rank::start(0);
    for _ in 0..10 {
        rank.tell(&format!("generations 100 {transport}"));
        rank.answer("made");
    }
    leave(std::slice::from_mut(&mut rank));
}

#[rstest]
fn a_rank_that_does_not_come_is_named(#[values("shm", "grpc")] transport: &str) {
    let mut ranks = start(3);
    let addresses = bind(&mut ranks, 0, transport, "rendezvous_ms=1500");
    for number in [0, 2] {
        ranks[number].tell(&format!("join {}", addresses.list()));
    }
    for number in [0, 2] {
        let answer = ranks[number].answer("error");
        assert!(answer.starts_with("Rendezvous [1] "), "{answer}");
        let address = &addresses.0[1];
        assert!(answer.contains(address.as_str()), "{answer}");
    }
}

/// Silence under load is no death: each rank waits long for a processor, and all are heard of.
#[test]
fn many_more_ranks_than_processors_are_no_failure() {
    let mut ranks = group(40, "shm", "timeout_ms=100000 rendezvous_ms=100000");
    for _ in 0..2 {
        for rank in &mut ranks {
            rank.tell("call all_reduce 1000000");
        }
        for rank in &mut ranks {
            rank.answer("called");
        }
    }
    leave(&mut ranks);
}
