//! Models of the doorbell and the mailbox between processes; see [`models`](crate::models).
//!
//! The comment of each names what it must fail without.

use std::sync::Arc;

use super::doorbell::Operation;
use super::group::LocalGroup;
use super::layout::{Counter, Layout};
use super::segment::Segment;
use super::testing::tiny;
use crate::bookkeeping::RunningOperation;
use crate::error::{CollectiveError, Result};
use crate::models::{explore, first, lost};
use crate::operation::OperationKind;
use crate::status::GroupStatus;

fn members(count: usize) -> Vec<LocalGroup> {
    let layout = Layout::new(count, &tiny(64, 64));
    let segment = Segment::model(&layout);
    let ranks: Vec<usize> = (0..count).collect();
    let member = |me| {
        let status = Arc::new(GroupStatus::default());
        LocalGroup::new(segment.clone(), layout, &ranks, me, status)
    };
    (0..count).map(member).collect()
}

/// Runs `f` in the first operation of the group.
fn during<R>(
    group: &LocalGroup,
    kind: OperationKind,
    f: impl FnOnce(&Operation<'_>) -> Result<R>,
) -> Result<R> {
    let running: RunningOperation = first(kind);
    f(&Operation::of(&group.status, &running))
}

/// Each member on a thread of its own.
fn on_threads<R: 'static>(members: Vec<LocalGroup>, f: fn(&LocalGroup) -> R) -> Vec<R> {
    let threads: Vec<_> = members
        .into_iter()
        .map(|member| loom::thread::spawn(move || f(&member)))
        .collect();
    threads
        .into_iter()
        .map(|thread| thread.join().unwrap())
        .collect()
}

/// Must fail with a weaker fence (`AcqRel`) in `announce` or in `wait`, and without the ring.
#[test]
fn who_waits_for_a_counter_of_all_members_wakes() {
    explore(|| {
        on_threads(members(2), |group| {
            group.shared.announce(Counter::Published, 1);
            during(group, OperationKind::Barrier, |operation| {
                group.shared.wait_all(operation, Counter::Published, 1)
            })
            .unwrap();
        });
    });
}

/// Must fail with a weaker fence in `announce_arrival`, and when the ring comes before the count.
#[test]
fn the_last_one_to_arrive_wakes_the_others() {
    explore(|| {
        on_threads(members(2), |group| {
            group.shared.announce_arrival(0);
            during(group, OperationKind::Barrier, |operation| {
                group.shared.wait_for_arrivals(operation)
            })
            .unwrap();
        });
    });
}

/// Must fail with `Relaxed` where `head` or `tail` is written or read (the length is that of
/// another segment, or loom sees both members in a slot), and without the fence or the ring behind
/// them.
#[test]
fn segments_come_in_order_and_a_slot_has_one_owner() {
    explore(|| {
        on_threads(members(2), |group| {
            let (me, mut scratch) = (group.shared.me, Vec::new());
            for bytes in 1..=3 {
                let moved = match me {
                    0 => during(group, OperationKind::Send, |operation| {
                        let mut fill = |slot: &mut [u8]| slot.fill(bytes as u8);
                        group.send_with(operation, 1, bytes, &mut fill, &mut scratch)
                    }),
                    _ => during(group, OperationKind::Recv, |operation| {
                        let mut check = |slot: &[u8]| assert_eq!(slot, vec![bytes as u8; bytes]);
                        group.receive_with(operation, 0, bytes, &mut check, &mut scratch)
                    }),
                };
                moved.unwrap();
            }
        });
    });
}

/// Must fail when a failure does not ring, or rings before it is noted.
#[test]
fn a_failure_wakes_who_waits() {
    explore(|| {
        let mut members = members(2);
        let (_other, group) = (members.pop(), members.remove(0));
        let status = group.status.clone();
        let control = loom::thread::spawn(move || status.record_failure(lost()));
        let waited = during(&group, OperationKind::Barrier, |operation| {
            group.shared.wait_all(operation, Counter::Published, 1)
        });
        assert!(matches!(
            waited,
            Err(CollectiveError::PeerLost { rank: 1, .. })
        ));
        control.join().unwrap();
    });
}

/// Must fail without the look at the counter after the look at the failures.
#[test]
fn what_a_member_did_before_it_left_counts() {
    explore(|| {
        let mut members = members(2);
        let (other, group) = (members.pop().unwrap(), members.remove(0));
        let status = group.status.clone();
        let leaving = loom::thread::spawn(move || {
            other.shared.announce(Counter::Published, 1);
            status.goodbye(1, 0, "it left".to_string());
        });
        let waited = during(&group, OperationKind::Barrier, |operation| {
            group.shared.wait_all(operation, Counter::Published, 1)
        });
        assert_eq!(waited, Ok(()));
        leaving.join().unwrap();
    });
}
