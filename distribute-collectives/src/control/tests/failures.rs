//! Lost, silent and leaving ranks, and how all ranks hear of them.

use super::*;
use crate::bookkeeping::RunningOperation;
use crate::buffer::DType;
use crate::control::generated::envelope::Message;
use crate::control::generated::{Goodbye, Heartbeat};
use crate::control::membership::envelope;
use crate::control::silence::Silence;
use crate::control::{convert, watch};
use crate::failure::FailureKind;
use crate::header::OperationHeader;
use crate::operation::OperationKind;
use crate::reduce::ReduceOp;

fn header(sequence: u64) -> OperationHeader {
    OperationHeader::new(OperationKind::AllReduce, 0, sequence)
}

fn running(header: &OperationHeader) -> RunningOperation {
    RunningOperation::new(header, Duration::from_secs(1))
}

#[test]
fn an_abort_is_the_same_error_on_all_ranks() {
    within_limit(|| {
        let members = group(4);
        members[2].abort("the loss is NaN");
        members[2].abort("again");
        for member in &members {
            let error = CollectiveError::Aborted {
                rank: 2,
                reason: "the loss is NaN".to_string(),
            };
            assert_eq!(
                failure_of(&member.status).kind,
                FailureKind::Ended(error.clone())
            );
            assert_eq!(member.status.check(&header(0)), Err(error.clone()));
            assert_eq!(member.plane.all_gather(b""), Err(error));
        }
    });
}

#[test]
fn what_one_rank_found_is_known_to_all() {
    within_limit(|| {
        let errors = [
            CollectiveError::Mismatch {
                rank_a: 1,
                rank_b: 2,
                op: OperationKind::Reduce,
                sequence: 7,
                what: "count is 1 on one and 2 on the other".to_string(),
            },
            CollectiveError::Timeout {
                missing: vec![0, 2],
                op: OperationKind::Barrier,
                sequence: 3,
                elapsed: Duration::from_micros(1_500_000),
            },
        ];
        for error in errors {
            let members = group(3);
            let failure = Failure {
                kind: FailureKind::Ended(error),
                from_sequence: 0,
            };
            members[1].status.record_failure(failure.clone());
            for member in &members {
                assert_eq!(failure_of(&member.status), failure);
            }
        }
    });
}

#[test]
fn a_rank_that_leaves_concerns_only_operations_it_did_not_do() {
    within_limit(|| {
        let mut members = group(3);
        let leaving = members.pop().unwrap();
        for sequence in 0..5 {
            leaving.status.begin(running(&header(sequence)));
            leaving.status.end();
        }
        drop(leaving);
        for member in &members {
            let failure = failure_of(&member.status);
            assert_eq!(failure.from_sequence, 5);
            let reason = "it left the group after 5 operations".to_string();
            assert_eq!(failure.kind, FailureKind::Lost { rank: 2, reason });
            assert_eq!(member.status.check(&header(4)), Ok(()));
        }
        // That is no failure to tell: the others still find what they do wrong themselves.
        members[0].abort("later");
        let aborted = |failure: &Failure| matches!(failure.kind, FailureKind::Ended(_));
        for member in &members {
            failure_where(&member.status, aborted);
            assert_eq!(member.status.failures().len(), 2);
        }
    });
}

/// Twelve ranks as a binary tree, so that most are several streams away from each other.
fn deep_group(addresses: impl Fn(usize, &mut JoinOptions) + Sync) -> Vec<Member> {
    let joined = join_all(12, |rank, options| {
        options.arity = 2;
        addresses(rank, options);
    });
    joined.into_iter().map(Result::unwrap).collect()
}

#[test]
fn all_ranks_of_a_deep_tree_hear_of_an_abort_and_gather() {
    within_limit(|| {
        let members = deep_group(|_, _| {});
        let neighbours = |member: &Member| member.plane.shared.state().links.len();
        assert!(members.iter().map(neighbours).all(|count| count <= 3));
        for _ in 0..3 {
            gather_once(&members.iter().collect::<Vec<_>>());
        }
        members[11].abort("the loss is NaN");
        for member in &members {
            let kind = failure_of(&member.status).kind;
            let aborted = matches!(
                &kind,
                FailureKind::Ended(CollectiveError::Aborted { rank: 11, .. })
            );
            assert!(aborted, "{kind:?}");
        }
    });
}

/// The root, an inner node, and both and more of them at the same time.
#[test]
fn the_children_of_a_rank_that_leaves_find_another_parent() {
    within_limit(|| {
        for leaving in [vec![0], vec![1], vec![0, 1, 2], vec![4, 1]] {
            let mut members: Vec<Option<Member>> =
                deep_group(|_, _| {}).into_iter().map(Some).collect();
            for rank in &leaving {
                drop(members[*rank].take());
            }
            let staying: Vec<Member> = members.into_iter().flatten().collect();
            for member in &staying {
                // All hear of all that have left, also of those behind others that have.
                let count = leaving.len();
                failure_where(&member.status, |_| member.status.failures().len() == count);
            }
            await_one_tree(&staying);
            staying[8].abort("later");
            let aborted = |failure: &Failure| matches!(failure.kind, FailureKind::Ended(_));
            for member in &staying {
                failure_where(&member.status, aborted);
            }
        }
    });
}

/// Waits until the ranks that stay are connected to each other again, by as many streams as a tree
/// has.
fn await_one_tree(staying: &[Member]) {
    let streams = |member: &Member| {
        let state = member.plane.shared.state();
        let links = state.links.values();
        links.filter(|link| link.open && !link.left).count()
    };
    let deadline = Instant::now() + Duration::from_secs(20);
    while staying.iter().map(streams).sum::<usize>() != 2 * (staying.len() - 1) {
        assert!(Instant::now() < deadline, "they do not find each other");
        std::thread::yield_now();
    }
}

#[test]
fn gatherings_in_a_row_deliver_all_values_to_all_ranks() {
    within_limit(|| {
        let members = group(4);
        let value = |rank: usize, round: usize| vec![rank as u8; round * 2000 + rank];
        std::thread::scope(|scope| {
            for (rank, member) in members.iter().enumerate() {
                scope.spawn(move || {
                    for round in 0..8 {
                        let gathered = member.plane.all_gather(&value(rank, round)).unwrap();
                        let expected: Vec<_> = (0..4).map(|rank| value(rank, round)).collect();
                        assert!(gathered == expected, "rank {rank}, round {round}");
                    }
                });
            }
        });
        let error = members[0].plane.all_gather(&[0; 17 << 10]).unwrap_err();
        assert!(
            matches!(error, CollectiveError::InvalidArgument { .. }),
            "{error:?}"
        );
    });
}

#[test]
fn a_gathering_names_the_rank_that_does_not_take_part_or_has_left() {
    within_limit(|| {
        let joined = join_all(3, |_, options| {
            options.rendezvous_timeout = Duration::from_secs(3);
        });
        let members: Vec<_> = joined.into_iter().map(Result::unwrap).collect();
        std::thread::scope(|scope| {
            for member in &members[..2] {
                scope.spawn(|| {
                    let error = member.plane.all_gather(b"here").unwrap_err();
                    let CollectiveError::Timeout { missing, .. } = &error else {
                        panic!("{error:?}");
                    };
                    assert_eq!(missing, &[2]);
                });
            }
        });
        let mut members = group(2);
        drop(members.pop());
        let error = members[0].plane.all_gather(b"here").unwrap_err();
        assert!(
            matches!(error, CollectiveError::PeerLost { rank: 1, .. }),
            "{error:?}"
        );
    });
}

#[test]
fn heartbeats_show_that_two_ranks_are_in_different_calls() {
    within_limit(|| {
        let members = group(3);
        let same = header(4).with_op(ReduceOp::Sum).with_dtype(DType::F32);
        for member in &members[..2] {
            member.status.begin(running(&same));
        }
        // Point-to-point calls have the number of the next collective: they differ rightly.
        let shared = &members[0].plane.shared;
        let id = shared.state().links[&2].id;
        for _ in 0..3 {
            let beat = Heartbeat {
                running: convert::running(Some(&OperationHeader::new(OperationKind::Send, 0, 4))),
                completed: 4,
                answer: false,
                lost_permille: 0,
                reports: Vec::new(),
            };
            assert!(shared.handle(2, id, envelope(Message::Heartbeat(beat))));
        }
        assert_eq!(members[0].status.failures(), []);
        members[2].status.begin(running(
            &header(4).with_op(ReduceOp::Max).with_dtype(DType::F32),
        ));
        for member in &members {
            let FailureKind::Ended(CollectiveError::Mismatch {
                rank_a,
                rank_b: 2,
                what,
                ..
            }) = failure_of(&member.status).kind
            else {
                panic!("{:?}", member.status.failures());
            };
            assert!(rank_a < 2);
            assert_eq!(what, "op is sum on one and max on the other");
        }
    });
}

#[test]
fn a_rank_that_hears_of_no_other_says_that_it_is_cut_off() {
    within_limit(|| {
        let joined = join_all(3, |_, options| {
            options.heartbeat_interval = Duration::from_secs(10);
            options.heartbeat_misses = 2;
        });
        let members: Vec<_> = joined.into_iter().map(Result::unwrap).collect();
        let age = |member: &Member, ranks: &[usize]| {
            let mut state = member.plane.shared.state();
            // Longer than a rank may be silent on the busiest machine.
            let long_ago = Instant::now()
                .checked_sub(Duration::from_secs(250))
                .unwrap();
            for rank in ranks {
                state.links.get_mut(rank).unwrap().silence = Silence::since(long_ago);
            }
            drop(state);
            // Silent at two looks.
            watch::check_heartbeats(&member.plane.shared, Duration::ZERO);
            let now = Instant::now() + Duration::from_millis(100);
            simulation::at(now, || {
                watch::check_heartbeats(&member.plane.shared, Duration::ZERO);
            });
        };
        // A stop of this process itself is no silence of the others.
        let mut state = members[0].plane.shared.state();
        let last_received = Instant::now().checked_sub(Duration::from_secs(25)).unwrap();
        state.links.get_mut(&1).unwrap().silence = Silence::since(last_received);
        drop(state);
        watch::check_heartbeats(&members[0].plane.shared, Duration::from_secs(11));
        watch::check_heartbeats(&members[0].plane.shared, Duration::ZERO);
        assert_eq!(members[0].status.failures(), []);
        age(&members[0], &[1, 2]);
        for member in &members {
            let kind = failure_of(&member.status).kind;
            let FailureKind::Ended(CollectiveError::CutOff { rank: 0, host, .. }) = &kind else {
                panic!("{kind:?}");
            };
            assert_eq!(host, "127.0.0.1");
        }
        let joined = join_all(3, |_, options| {
            options.heartbeat_interval = Duration::from_secs(10);
            options.heartbeat_misses = 2;
        });
        let members: Vec<_> = joined.into_iter().map(Result::unwrap).collect();
        age(&members[0], &[2]);
        for member in &members {
            let kind = failure_of(&member.status).kind;
            assert!(
                matches!(kind, FailureKind::Silent { rank: 2, .. }),
                "{kind:?}"
            );
        }
    });
}

#[test]
fn a_peer_that_tells_of_goodbyes_and_failures_without_end_fills_no_memory() {
    within_limit(|| {
        let members = group(2);
        let shared = &members[0].plane.shared;
        let id = shared.state().links[&1].id;
        let failure = |number: u64| Failure {
            kind: FailureKind::Lost {
                rank: 1,
                reason: "x".repeat(100),
            },
            from_sequence: u64::MAX - number,
        };
        for number in 0..100_000 {
            let goodbye = Goodbye {
                completed: u64::MAX - number,
                reason: "x".repeat(100),
                waited_for: Vec::new(),
                successors: Vec::new(),
            };
            let notice = convert::notice(1, &failure(number));
            assert!(shared.handle(1, id, envelope(Message::Goodbye(goodbye))));
            assert!(shared.handle(1, id, envelope(Message::Notice(notice))));
        }
        assert_eq!(members[0].status.failures().len(), 1);
    });
}
