//! Models of the meeting point and the mailbox of threads; see [`models`](crate::models).
//!
//! The comment of each names what it must fail without.

use super::in_process_transports;
use super::transport::InProcessTransport;
use crate::error::{CollectiveError, Result};
use crate::header::OperationHeader;
use crate::models::{LONG, explore};
use crate::operation::OperationKind;
use crate::options::GroupOptions;
use crate::transport::Transport;

fn pair() -> [InProcessTransport; 2] {
    let options = GroupOptions::default().timeout(LONG);
    let ranks = in_process_transports(2, &options);
    ranks.try_into().unwrap_or_else(|_| unreachable!())
}

/// Runs `f` in the first operation of the rank.
fn during(
    rank: &mut InProcessTransport,
    kind: OperationKind,
    f: impl FnOnce(&mut InProcessTransport) -> Result<()>,
) -> Result<()> {
    let header = OperationHeader::new(kind, 0, 0);
    let result = rank.begin(&header).and_then(|()| f(rank));
    rank.end(&header, result)
}

/// Must fail when `put` or `take` does not wake.
#[test]
fn segments_come_in_order() {
    explore(|| {
        let [mut sender, mut receiver] = pair();
        let sending = loom::thread::spawn(move || {
            during(&mut sender, OperationKind::Send, |sender| {
                (1..=3).try_for_each(|bytes| {
                    sender.send_with(1, bytes, &mut |slot| slot.fill(bytes as u8))
                })
            })
            .unwrap();
            sender
        });
        during(&mut receiver, OperationKind::Recv, |receiver| {
            (1..=3).try_for_each(|bytes| {
                receiver.receive_with(0, bytes, &mut |slot| {
                    assert_eq!(slot, vec![bytes as u8; bytes]);
                })
            })
        })
        .unwrap();
        sending.join().unwrap();
    });
}

/// Must fail when the last one to come does not wake the sleepers.
#[test]
fn an_operation_begins_when_all_have_come() {
    explore(|| {
        let [mut one, mut other] = pair();
        let thread = loom::thread::spawn(move || {
            during(&mut other, OperationKind::Barrier, |_| Ok(())).unwrap();
            other
        });
        during(&mut one, OperationKind::Barrier, |_| Ok(())).unwrap();
        thread.join().unwrap();
    });
}

/// Must fail when a rank that leaves does not wake the sleepers.
#[test]
fn who_waits_for_a_rank_that_leaves_hears_of_it() {
    explore(|| {
        let [mut one, other] = pair();
        let leaving = loom::thread::spawn(move || drop(other));
        let error = during(&mut one, OperationKind::Barrier, |_| Ok(())).unwrap_err();
        assert!(matches!(error, CollectiveError::PeerLost { rank: 1, .. }));
        leaving.join().unwrap();
    });
}

/// Must fail when a failure does not wake the mailboxes.
#[test]
fn an_abort_ends_the_wait_for_a_segment() {
    explore(|| {
        let [mut one, other] = pair();
        let abort = other.abort_handle();
        let aborting = loom::thread::spawn(move || abort.abort("why"));
        let error = during(&mut one, OperationKind::Recv, |one| {
            one.receive_with(1, 4, &mut |_| {})
        });
        let reason = "why".to_string();
        assert_eq!(error, Err(CollectiveError::Aborted { rank: 1, reason }));
        aborting.join().unwrap();
    });
}

/// Must fail without the look at the mailbox under the lock of the failures.
#[test]
fn what_a_rank_sent_before_it_left_arrives() {
    explore(|| {
        let [mut one, mut other] = pair();
        let leaving = loom::thread::spawn(move || {
            during(&mut other, OperationKind::Send, |other| {
                other.send_with(0, 4, &mut |slot| slot.fill(7))
            })
            .unwrap();
        });
        let received = during(&mut one, OperationKind::Recv, |one| {
            one.receive_with(1, 4, &mut |slot| assert_eq!(slot, [7; 4]))
        });
        assert_eq!(received, Ok(()));
        leaving.join().unwrap();
    });
}
