//! Turns of threads that compute, wait for each other and fail in all kinds of orders.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::Error;
use crate::replica::local_exchange::LocalExchange;
use crate::sync::lock;

/// A hang fails, and is not waited for.
const LIMIT: Duration = Duration::from_secs(60);

/// How a replica leaves its step before the end.
#[derive(Debug, Clone, Copy)]
enum Failure {
    Error,
    Panic,
    /// It makes no call any more, but ends well.
    LeftOut,
}

#[derive(Debug, Clone)]
struct Program {
    /// The device of each replica.
    devices: Vec<usize>,
    rounds: usize,
    /// Who fails, in which round and how.
    failure: Option<(usize, usize, Failure)>,
}

/// What was seen on the devices.
struct Seen {
    /// How many replicas of each device compute.
    computing: Vec<AtomicUsize>,
    /// Replicas in the order in which they first computed.
    order: Mutex<Vec<usize>>,
    /// How often a result was computed.
    computed: AtomicUsize,
    /// What must not be: two replicas that compute on a device, and values of another round.
    /// Counted and not asserted, because a panic of a replica is one of the failures here.
    wrong: AtomicUsize,
}

impl Seen {
    fn compute(&self, device: usize) {
        let others = self.computing[device].fetch_add(1, Ordering::SeqCst);
        self.expect(others == 0);
        std::thread::yield_now();
        self.computing[device].fetch_sub(1, Ordering::SeqCst);
    }

    fn expect(&self, right: bool) {
        self.wrong.fetch_add(usize::from(!right), Ordering::SeqCst);
    }
}

/// One replica's step: in each round it computes and meets the others.
fn step(program: &Program, replica: usize, turn: &Turn, group: &LocalExchange, seen: &Seen) {
    let _held = turn.hold();
    lock(&seen.order).push(replica);
    let failure = program.failure.filter(|(who, ..)| *who == replica);
    let meet = |round: usize| {
        let _paused = turn.pause();
        group.exchange("round", replica, round, Ok)
    };
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        for round in 0..program.rounds {
            seen.compute(program.devices[replica]);
            match failure.filter(|(_, when, _)| *when == round) {
                Some((_, _, Failure::Error)) => return Err(Error::invalid("it failed")),
                Some((_, _, Failure::Panic)) => std::panic::resume_unwind(Box::new("it failed")),
                Some((_, _, Failure::LeftOut)) => break,
                None => {}
            }
            let all_came = meet(round)?;
            seen.expect(all_came == round);
            let result = turn.once(round, || {
                seen.computed.fetch_add(1, Ordering::SeqCst);
                Ok::<_, Error>(round * 10)
            })?;
            seen.expect(*result == round * 10);
            seen.compute(program.devices[replica]);
        }
        group.finish(replica);
        Ok(())
    }));
    match outcome {
        Ok(Ok(())) => {}
        Ok(Err(error)) => group.stop(&error),
        Err(_) => group.stop(&Error::invalid("a panic")),
    }
}

/// Runs a program of several runs to its end.
fn run(program: Program) -> Vec<Arc<Seen>> {
    let (done, ended) = mpsc::channel();
    std::thread::spawn(move || {
        let count = program.devices.len();
        let devices = program.devices.iter().max().map_or(0, |last| last + 1);
        let turns = Turns::new(program.devices.clone());
        let group = LocalExchange::new(count, LIMIT);
        let mut runs = Vec::new();
        for _ in 0..2 {
            let seen = Arc::new(Seen {
                computing: (0..devices).map(|_| AtomicUsize::new(0)).collect(),
                order: Mutex::default(),
                computed: AtomicUsize::new(0),
                wrong: AtomicUsize::new(0),
            });
            group.begin_run();
            let Some(turns) = &turns else { break };
            turns.begin_run();
            std::thread::scope(|threads| {
                // The last comes first, most likely.
                for replica in (0..count).rev() {
                    let (program, group, seen) = (&program, &group, &*seen);
                    let turn = Turn::new(turns, replica);
                    threads.spawn(move || step(program, replica, &turn, group, seen));
                }
            });
            runs.push(seen);
        }
        done.send(runs).unwrap();
    });
    ended.recv_timeout(LIMIT).expect("a hang, or a panic")
}

fn programs() -> impl Strategy<Value = Program> {
    let devices = prop::collection::vec(0_usize..3, 2..7);
    let kind = prop_oneof![
        Just(Failure::Error),
        Just(Failure::Panic),
        Just(Failure::LeftOut)
    ];
    let failure = prop::option::of((0_usize..7, 0_usize..4, kind));
    (devices, 0_usize..4, failure).prop_map(|(devices, rounds, failure)| {
        let count = devices.len();
        let failure = failure.map(|(who, when, kind)| (who % count, when, kind));
        Program {
            devices,
            rounds,
            failure,
        }
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn one_replica_of_a_device_computes_at_a_time_and_all_end(program in programs()) {
        for seen in run(program.clone()) {
            prop_assert_eq!(seen.wrong.load(Ordering::SeqCst), 0);
            let order = lock(&seen.order);
            prop_assert_eq!(order.len(), program.devices.len(), "all had a turn");
            for device in 0..3 {
                let of_device = |replica: &&usize| program.devices[**replica] == device;
                let of_device: Vec<_> = order.iter().filter(of_device).collect();
                prop_assert!(of_device.is_sorted(), "in replica order: {:?}", order);
            }
            if program.failure.is_none() {
                let mut used = program.devices.clone();
                used.sort_unstable();
                used.dedup();
                let computed = seen.computed.load(Ordering::SeqCst);
                prop_assert_eq!(computed, program.rounds * used.len(), "once per device");
            }
        }
    }
}

#[test]
fn devices_of_one_replica_take_no_turns() {
    assert!(Turns::new(vec![0, 1, 2]).is_none());
    assert!(Turns::new(Vec::new()).is_none());
    let turns = Turns::new(vec![0, 1, 1, 1, 0]).unwrap();
    assert_eq!(turns.longest_queue(), 3);
}

#[test]
fn who_has_no_turn_gives_none_up() {
    let turns = Turns::new(vec![0, 0]).unwrap();
    let [first, second] = [0, 1].map(|replica| Turn::new(&turns, replica));
    let held = first.hold();
    drop(second.pause());
    {
        let _paused = first.pause();
        // A pause in a pause takes nothing back, or this would wait for itself.
        drop(first.pause());
        let _other = second.hold();
    }
    drop(held);
    drop(second.hold());
}

#[test]
fn a_result_of_another_key_is_not_taken() {
    let turns = Turns::new(vec![0, 0, 0]).unwrap();
    let once = |replica: usize, key: &'static str, value: usize| {
        let turn = Turn::new(&turns, replica);
        *turn.once(key, || Ok::<_, Error>(value)).unwrap()
    };
    assert_eq!(once(0, "a", 1), 1);
    assert_eq!(once(1, "b", 2), 2, "its own");
    assert_eq!(once(2, "a", 3), 1, "the first's");
    // All have come to the first call by now.
    assert_eq!(once(2, "c", 4), 4);
    assert_eq!(once(0, "c", 5), 4);
    assert_eq!(once(1, "c", 6), 4);
}

#[test]
fn a_result_that_failed_is_computed_by_the_others() {
    let turns = Turns::new(vec![0, 0]).unwrap();
    let [first, second] = [0, 1].map(|replica| Turn::new(&turns, replica));
    let failed = first.once((), || Err::<(), _>(Error::invalid("no")));
    assert!(failed.is_err());
    assert_eq!(*second.once((), || Ok::<_, Error>(1)).unwrap(), 1);
    assert_eq!(*first.once((), || Ok::<_, Error>(2)).unwrap(), 2);
    assert_eq!(*second.once((), || Ok::<_, Error>(3)).unwrap(), 2);
}
