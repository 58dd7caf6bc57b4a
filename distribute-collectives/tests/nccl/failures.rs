//! Ranks that differ, do not come, hang, fail or leave.

use std::time::{Duration, Instant};

use distribute_collectives::nccl::ElementType;
use distribute_collectives::{
    CollectiveError, Communicator, GroupOptions, InProcessCommunicator, ReduceOp, Result, contract,
};

use super::fake::{Fake, Rank};
use crate::common::{on_threads, within_limit};

const GRACE: Duration = Duration::from_millis(500);

/// The deadline of a group whose ranks soon have to give up, and of NCCL's part there.
const TIMEOUT: Duration = Duration::from_millis(1500);

/// What a machine with too few cores may add.
const SLACK: Duration = Duration::from_secs(4);

/// A group whose deadlines are short.
fn hasty(fake: &Fake, ranks: usize, timeout: Duration) -> Vec<Rank> {
    let group = GroupOptions::default().timeout(TIMEOUT);
    let options = fake.options(0).timeout(timeout).grace(GRACE);
    fake.group_with(ranks, group, options)
}

/// A group where only NCCL's part has a short deadline: that of the group must not end first, also
/// on a busy machine.
fn patient(fake: &Fake, ranks: usize) -> Vec<Rank> {
    let group = GroupOptions::default().timeout(Duration::from_secs(20));
    let options = fake.options(0).timeout(TIMEOUT).grace(GRACE);
    fake.group_with(ranks, group, options)
}

fn sum(rank: &mut Rank) -> Result<()> {
    rank.all_reduce(ReduceOp::Sum, &mut [(&mut [1.0_f32; 4][..]).into()])
}

fn is_poisoned(rank: &mut Rank) -> bool {
    matches!(rank.barrier(), Err(CollectiveError::Poisoned { .. }))
}

/// Two ranks make different calls; both get a mismatch that says so.
fn assert_mismatch(what: &str, call: impl Fn(&mut Rank) -> Result<()> + Sync) {
    let fake = Fake::new("");
    on_threads(fake.group(2), |mut rank| {
        let error = call(&mut rank).unwrap_err();
        let named = matches!(
            error,
            CollectiveError::Mismatch {
                rank_a: 0,
                rank_b: 1,
                sequence: 0,
                ..
            }
        );
        assert!(
            named && error.to_string().contains(what),
            "{error}, not {what}"
        );
        assert!(is_poisoned(&mut rank));
    });
    fake.assert_clean();
}

#[test]
fn ranks_that_disagree_get_an_error_and_never_a_number() {
    within_limit(|| {
        let fake = Fake::new("");
        let group = || {
            let ranks = fake.group(3).into_iter();
            Ok(ranks.map(|rank| Box::new(rank) as _).collect())
        };
        contract::check(group).unwrap();
        fake.assert_clean();
    });
}

#[test]
fn different_calls_are_a_mismatch_on_all_ranks() {
    within_limit(|| {
        assert_mismatch("kind is all_reduce on one and barrier", |rank| {
            match rank.rank() {
                0 => sum(rank),
                _ => rank.barrier(),
            }
        });
        assert_mismatch("count is 4 on one and 3 on the other", |rank| {
            let len = 4 - rank.rank();
            rank.all_reduce(ReduceOp::Sum, &mut [(&mut [1.0_f32; 4][..len]).into()])
        });
        assert_mismatch("op is sum on one and max", |rank| {
            let op = [ReduceOp::Sum, ReduceOp::Max][rank.rank()];
            rank.all_reduce(op, &mut [(&mut [1.0_f32; 4][..]).into()])
        });
        assert_mismatch("dtype is f32 on one and i32", |rank| match rank.rank() {
            0 => sum(rank),
            _ => rank.all_reduce(ReduceOp::Sum, &mut [(&mut [1; 4][..]).into()]),
        });
        assert_mismatch("the elements are u64 on one and i8", |rank| {
            let element = [ElementType::U64, ElementType::I8][rank.rank()];
            let (mut from, mut to) = (rank.allocate(element, 1)?, rank.allocate(element, 8)?);
            rank.all_gather_device(from.buffer(), to.buffer()).map(drop)
        });
        assert_mismatch(
            "the buffers are in host memory on one and in device memory",
            |rank| {
                let mut memory = rank.allocate(ElementType::F32, 4)?;
                match rank.rank() {
                    0 => rank.broadcast(0, &mut [(&mut [0.0_f32; 4][..]).into()]),
                    _ => rank.broadcast_device(0, &mut [memory.buffer()]),
                }
            },
        );
        assert_mismatch("its output has 12 bytes, but the inputs have 16", |rank| {
            let mut input = rank.allocate(ElementType::F32, 2)?;
            let mut output = rank.allocate(ElementType::F32, 4 - rank.rank())?;
            rank.all_gather_device(input.buffer(), output.buffer())
                .map(drop)
        });
        assert_mismatch("count is 4 on one and 3 on the other", |rank| {
            let mut data = [1.0_f32; 4];
            match rank.rank() {
                0 => rank.send(1, (&mut data[..]).into()),
                _ => rank.recv(0, (&mut data[..3]).into()),
            }
        });
    });
}

#[test]
fn a_rank_that_never_comes_is_named_and_nccl_is_aborted() {
    within_limit(|| {
        let fake = Fake::new("");
        let mut group = hasty(&fake, 3, Duration::from_secs(30));
        let mut absent = group.remove(1);
        on_threads(group, |mut rank| {
            let begin = Instant::now();
            let error = sum(&mut rank).unwrap_err();
            let CollectiveError::Timeout {
                missing,
                sequence: 0,
                ..
            } = &error
            else {
                panic!("{error}");
            };
            assert_eq!(*missing, [1]);
            assert!(begin.elapsed() < TIMEOUT + 2 * GRACE + SLACK, "{error}");
            assert!(is_poisoned(&mut rank) && !rank.is_stuck());
        });
        assert_eq!(fake.stat("aborts"), 2);
        assert!(matches!(
            sum(&mut absent),
            Err(CollectiveError::Timeout { .. })
        ));
        drop(absent);
        fake.assert_clean();
    });
}

#[test]
fn an_error_that_comes_by_itself_ends_all_ranks() {
    within_limit(|| {
        let fake = Fake::new("error=1:0");
        let begin = Instant::now();
        on_threads(fake.group(3), |mut rank| {
            let error = sum(&mut rank).unwrap_err();
            let CollectiveError::Aborted { rank: 1, reason } = &error else {
                panic!("{error}");
            };
            assert!(reason.contains("remote process exited"), "{reason}");
            assert!(is_poisoned(&mut rank));
        });
        // Not the deadline of 30 s.
        assert!(begin.elapsed() < Duration::from_secs(10));
        fake.assert_clean();
    });
}

#[test]
fn what_nccl_does_not_finish_is_aborted_at_its_deadline() {
    within_limit(|| {
        let fake = Fake::new("hang=1:1");
        on_threads(patient(&fake, 2), |mut rank| {
            sum(&mut rank).expect("the first one");
            let begin = Instant::now();
            let error = sum(&mut rank).unwrap_err();
            let CollectiveError::Aborted { reason, .. } = &error else {
                panic!("{error}");
            };
            assert!(
                reason.contains("did not finish operation 1 (all_reduce) within"),
                "{reason}"
            );
            assert!(begin.elapsed() < TIMEOUT + 2 * GRACE + SLACK);
            assert!(!rank.is_stuck());
        });
        fake.assert_clean();
    });
}

/// Whether the thread is in the call, or about to enter it, cannot be seen from outside: it is
/// given up, and nothing is freed that it may use.
#[test]
fn a_call_that_does_not_return_is_given_up() {
    within_limit(|| {
        let fake = Fake::new("block=0:0");
        on_threads(patient(&fake, 2), |mut rank| {
            let begin = Instant::now();
            let error = sum(&mut rank).unwrap_err();
            assert!(matches!(error, CollectiveError::Aborted { .. }), "{error}");
            assert!(begin.elapsed() < TIMEOUT + 3 * GRACE + SLACK);
            assert_eq!(rank.is_stuck(), rank.rank() == 0);
            assert!(is_poisoned(&mut rank));
        });
        assert_eq!((fake.stat("comms"), fake.stat("misuse")), (1, 0));
    });
}

/// A thread that is not run for a while finds its communicator as it was.
#[test]
fn a_slow_call_is_never_made_on_a_communicator_that_is_gone() {
    within_limit(|| {
        let fake = Fake::new("slow=0:0");
        let (timeout, grace) = (Duration::from_millis(300), Duration::from_millis(50));
        let group = GroupOptions::default().timeout(Duration::from_secs(20));
        let options = fake.options(0).timeout(timeout).grace(grace);
        on_threads(fake.group_with(2, group, options), |mut rank| {
            let (mut first, mut second) = ([1.0_f32; 4], [1.0_f32; 8]);
            let mut pack = [(&mut first[..]).into(), (&mut second[..]).into()];
            let error = rank.all_reduce(ReduceOp::Sum, &mut pack).unwrap_err();
            assert!(matches!(error, CollectiveError::Aborted { .. }), "{error}");
        });
        let end = Instant::now() + Duration::from_secs(10);
        let is_over = || fake.stat("slow_calls") > 0 && fake.stat("comms") == 0;
        while !is_over() && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(10));
        }
        assert!(is_over(), "{:?}", fake.stats());
        assert_eq!(fake.stat("misuse"), 0);
    });
}

#[test]
fn a_device_that_does_not_react_is_given_up() {
    within_limit(|| {
        let fake = Fake::new("dead=0:0");
        let begin = Instant::now();
        on_threads(hasty(&fake, 2, TIMEOUT), |mut rank| {
            let error = sum(&mut rank).unwrap_err();
            assert!(matches!(error, CollectiveError::Aborted { .. }), "{error}");
            assert_eq!(rank.is_stuck(), rank.rank() == 0);
            assert!(is_poisoned(&mut rank));
        });
        assert!(begin.elapsed() < Duration::from_secs(10));
        // The memory that the device may still use, and its stream, are left.
        assert_eq!(fake.stat("comms"), 0);
        assert!(fake.stat("memory") >= 1 && fake.stat("host_memory") == 1);
    });
}

#[test]
fn an_abort_that_does_not_return_delays_no_other_call() {
    within_limit(|| {
        // Once the thread of NCCL is stuck in the abort, once it is in a call and another one is.
        for settings in ["hang=0:0 stuck_abort=0", "block=1:0 stuck_abort=1"] {
            let fake = Fake::new(settings);
            let begin = Instant::now();
            on_threads(hasty(&fake, 2, TIMEOUT), |mut rank| {
                let error = sum(&mut rank).unwrap_err();
                assert!(matches!(error, CollectiveError::Aborted { .. }), "{error}");
                let stuck = settings.ends_with(&format!("={}", rank.rank()));
                assert_eq!(rank.is_stuck(), stuck, "{settings}");
            });
            assert!(
                begin.elapsed() < TIMEOUT + 6 * GRACE + SLACK,
                "{:?}",
                begin.elapsed()
            );
        }
    });
}

#[test]
fn abort_ends_an_operation_of_all_ranks() {
    within_limit(|| {
        let fake = Fake::new("hang=0:0");
        let group = fake.group(2);
        let handle = group[1].abort_handle();
        let aborter = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(100));
            handle.abort("enough");
        });
        let expected = CollectiveError::Aborted {
            rank: 1,
            reason: "enough".to_string(),
        };
        on_threads(group, |mut rank| {
            assert_eq!(sum(&mut rank), Err(expected.clone()));
        });
        aborter.join().expect("no panic");
        fake.assert_clean();
    });
}

/// Rank 0 sends and leaves at once, which a receiver that is a little slower must not mind.
#[test]
fn a_rank_that_has_done_its_part_may_leave() {
    within_limit(|| {
        for _ in 0..10 {
            let fake = Fake::new("");
            on_threads(fake.group(2), |mut rank| {
                let mut data = [rank.rank() as f32; 100];
                let peer = 1 - rank.rank();
                match rank.rank() {
                    0 => rank.send(peer, (&mut data[..]).into()),
                    _ => rank.recv(peer, (&mut data[..]).into()),
                }
                .expect("delivered");
                assert_eq!(data, [0.0; 100]);
            });
            fake.assert_clean();
        }
    });
}

#[test]
fn a_lost_rank_is_named_after_the_grace_period() {
    within_limit(|| {
        let fake = Fake::new("hang=1:0");
        on_threads(hasty(&fake, 2, Duration::from_secs(30)), |mut rank| {
            let mut data = [1.0_f32; 4];
            if rank.rank() == 0 {
                rank.send(1, (&mut data[..]).into()).expect("sent");
                return;
            }
            let begin = Instant::now();
            let error = rank.recv(0, (&mut data[..]).into()).unwrap_err();
            assert!(
                matches!(error, CollectiveError::PeerLost { rank: 0, .. }),
                "{error}"
            );
            assert!(begin.elapsed() > GRACE, "{:?}", begin.elapsed());
        });
        fake.assert_clean();
    });
}

#[test]
fn the_control_group_survives_an_orderly_end() {
    within_limit(|| {
        let fake = Fake::new("");
        on_threads(fake.group(2), |mut rank| {
            sum(&mut rank).expect("all_reduce");
            let mut group: InProcessCommunicator = rank.into_group();
            group.barrier().expect("usable");
        });
        assert_eq!(fake.stat("aborts"), 0);
        fake.assert_clean();
    });
}
