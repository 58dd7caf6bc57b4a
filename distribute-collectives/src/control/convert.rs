//! Operations and failures as messages, and back.

use std::time::Duration;

use crate::control::generated::{self as message, notice};
use crate::error::{CollectiveError, MissingRank};
use crate::header::OperationHeader;
use crate::operation::OperationKind;
use crate::status::{Failure, FailureKind};

/// How many ranks that were waited for are named: a message stays far below the limit.
const MISSING_MAX: usize = 8;

/// The place of a value in a list that holds all values.
fn index<T: PartialEq>(list: &[T], value: &T) -> i32 {
    let position = list.iter().position(|other| other == value);
    position.map_or(-1, |index| index as i32)
}

fn value<T: Copy>(list: &[T], index: i32) -> Option<T> {
    list.get(usize::try_from(index).ok()?).copied()
}

/// The running operation as bytes; none between operations.
pub(crate) fn running(header: Option<&OperationHeader>) -> Vec<u8> {
    header.map_or_else(Vec::new, |header| header.encode().to_vec())
}

/// The header in the bytes, or `None` when there is none, or one that no rank writes.
pub(crate) fn header(bytes: &[u8]) -> Option<OperationHeader> {
    OperationHeader::decode(bytes.try_into().ok()?).ok()
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// A failure as a message; `rank` is this rank.
pub(crate) fn notice(rank: usize, failure: &Failure) -> message::Notice {
    let what = match &failure.kind {
        FailureKind::Lost { rank, reason } => notice::Failure::Lost(message::Lost {
            rank: *rank as u32,
            reason: shortened(reason),
            kind: None,
            sequence: 0,
        }),
        FailureKind::Silent { rank, elapsed } => notice::Failure::Silent(message::Silent {
            rank: *rank as u32,
            elapsed_us: micros(*elapsed),
        }),
        FailureKind::Ended(error) => error_message(rank, error.root_cause()),
    };
    message::Notice {
        from_sequence: failure.from_sequence,
        failure: Some(what),
    }
}

fn error_message(own_rank: usize, error: &CollectiveError) -> notice::Failure {
    match error {
        CollectiveError::Mismatch {
            rank_a,
            rank_b,
            op,
            sequence,
            what,
        } => notice::Failure::Mismatch(message::Mismatch {
            rank_a: *rank_a as u32,
            rank_b: *rank_b as u32,
            kind: index(&OperationKind::ALL, op),
            sequence: *sequence,
            what: shortened(what),
        }),
        CollectiveError::PeerLost {
            rank,
            op,
            sequence,
            reason,
        } => notice::Failure::Lost(message::Lost {
            rank: *rank as u32,
            reason: shortened(reason),
            kind: Some(index(&OperationKind::ALL, op)),
            sequence: *sequence,
        }),
        CollectiveError::Timeout {
            missing,
            op,
            sequence,
            elapsed,
        } => notice::Failure::TimedOut(message::TimedOut {
            missing: missing.iter().map(|rank| *rank as u32).collect(),
            kind: index(&OperationKind::ALL, op),
            sequence: *sequence,
            elapsed_us: micros(*elapsed),
        }),
        CollectiveError::Protocol {
            rank,
            peer,
            address,
            what,
        } => notice::Failure::Garbled(message::Garbled {
            rank: *rank as u32,
            peer: *peer as u32,
            address: address.clone(),
            what: shortened(what),
        }),
        CollectiveError::Aborted { rank, reason } => notice::Failure::Aborted(message::Aborted {
            rank: *rank as u32,
            reason: shortened(reason),
        }),
        CollectiveError::Interrupted {
            rank,
            missing,
            elapsed,
        } => notice::Failure::Interrupted(message::Interrupted {
            rank: *rank as u32,
            missing: missing_messages(missing),
            elapsed_us: micros(*elapsed),
        }),
        // No other error ends a group by itself; the sender is then the one that ended it.
        other => notice::Failure::Aborted(message::Aborted {
            rank: own_rank as u32,
            reason: shortened(&other.to_string()),
        }),
    }
}

fn missing_messages(missing: &[MissingRank]) -> Vec<message::Missing> {
    let missing = missing.iter().take(MISSING_MAX);
    let message = |missing: &MissingRank| message::Missing {
        rank: missing.rank as u32,
        address: missing.address.clone(),
        reason: shortened(&missing.reason),
    };
    missing.map(message).collect()
}

fn missing_rank(missing: &message::Missing) -> MissingRank {
    MissingRank {
        rank: missing.rank as usize,
        address: missing.address.clone(),
        reason: missing.reason.clone(),
    }
}

/// Cut so that a message stays far below the limit.
fn shortened(text: &str) -> String {
    const CHARACTERS_MAX: usize = 2000;
    text.chars().take(CHARACTERS_MAX).collect()
}

/// The failure in a message, or `None` when it is of a kind that this version does not know, or
/// names a rank that does not exist.
pub(crate) fn failure(world_size: usize, notice: &message::Notice) -> Option<Failure> {
    let rank = |rank: u32| Some(rank as usize).filter(|rank| *rank < world_size);
    let kind = match notice.failure.as_ref()? {
        notice::Failure::Lost(lost) => match lost.kind {
            None => FailureKind::Lost {
                rank: rank(lost.rank)?,
                reason: lost.reason.clone(),
            },
            Some(kind) => FailureKind::Ended(CollectiveError::PeerLost {
                rank: rank(lost.rank)?,
                op: value(&OperationKind::ALL, kind)?,
                sequence: lost.sequence,
                reason: lost.reason.clone(),
            }),
        },
        notice::Failure::Silent(silent) => FailureKind::Silent {
            rank: rank(silent.rank)?,
            elapsed: Duration::from_micros(silent.elapsed_us),
        },
        notice::Failure::Mismatch(mismatch) => FailureKind::Ended(CollectiveError::Mismatch {
            rank_a: rank(mismatch.rank_a)?,
            rank_b: rank(mismatch.rank_b)?,
            op: value(&OperationKind::ALL, mismatch.kind)?,
            sequence: mismatch.sequence,
            what: mismatch.what.clone(),
        }),
        notice::Failure::Aborted(aborted) => FailureKind::Ended(CollectiveError::Aborted {
            rank: rank(aborted.rank)?,
            reason: aborted.reason.clone(),
        }),
        notice::Failure::TimedOut(timed_out) => FailureKind::Ended(CollectiveError::Timeout {
            missing: timed_out
                .missing
                .iter()
                .map(|r| rank(*r))
                .collect::<Option<_>>()?,
            op: value(&OperationKind::ALL, timed_out.kind)?,
            sequence: timed_out.sequence,
            elapsed: Duration::from_micros(timed_out.elapsed_us),
        }),
        notice::Failure::Interrupted(interrupted) => {
            let missing = interrupted.missing.iter();
            FailureKind::Ended(CollectiveError::Interrupted {
                rank: rank(interrupted.rank)?,
                missing: missing
                    .map(|it| rank(it.rank).map(|_| missing_rank(it)))
                    .collect::<Option<_>>()?,
                elapsed: Duration::from_micros(interrupted.elapsed_us),
            })
        }
        notice::Failure::Garbled(garbled) => FailureKind::Ended(CollectiveError::Protocol {
            rank: rank(garbled.rank)?,
            peer: rank(garbled.peer)?,
            address: garbled.address.clone(),
            what: garbled.what.clone(),
        }),
    };
    Some(Failure {
        kind,
        from_sequence: notice.from_sequence,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_survives_the_way_and_what_is_none_is_none() {
        let sent = OperationHeader::new(OperationKind::Reduce, 4, 9).with_root(3);
        let bytes = running(Some(&sent));
        assert_eq!(header(&bytes), Some(sent));
        assert!(running(None).is_empty());
        for nonsense in [&[][..], &bytes[1..], &[255; OperationHeader::BYTES]] {
            assert_eq!(header(nonsense), None);
        }
    }

    #[test]
    fn failures_survive_the_way() {
        let (op, sequence) = (OperationKind::Broadcast, 12);
        let (elapsed, reason) = (Duration::from_micros(1_234_567), "because".to_string());
        let errors = [
            CollectiveError::Mismatch {
                rank_a: 1,
                rank_b: 2,
                op,
                sequence,
                what: reason.clone(),
            },
            CollectiveError::PeerLost {
                rank: 3,
                op,
                sequence,
                reason: reason.clone(),
            },
            CollectiveError::Timeout {
                missing: vec![1, 3],
                op,
                sequence,
                elapsed,
            },
            CollectiveError::Aborted {
                rank: 2,
                reason: reason.clone(),
            },
            CollectiveError::Protocol {
                rank: 0,
                peer: 1,
                address: "host:1".to_string(),
                what: reason.clone(),
            },
            CollectiveError::Interrupted {
                rank: 4,
                missing: vec![MissingRank {
                    rank: 2,
                    address: "host:2".to_string(),
                    reason: reason.clone(),
                }],
                elapsed,
            },
        ];
        let mut kinds: Vec<_> = errors.into_iter().map(FailureKind::Ended).collect();
        kinds.push(FailureKind::Lost { rank: 5, reason });
        kinds.push(FailureKind::Silent { rank: 6, elapsed });
        for kind in kinds {
            let sent = Failure {
                kind,
                from_sequence: 7,
            };
            assert_eq!(failure(7, &notice(0, &sent)), Some(sent.clone()));
            assert_eq!(failure(1, &notice(0, &sent)), None);
        }
        assert_eq!(failure(7, &message::Notice::default()), None);
    }

    #[test]
    fn the_first_cause_is_sent_of_a_poisoned_group_and_any_text_is_cut() {
        let cause = CollectiveError::Aborted {
            rank: 1,
            reason: "x".repeat(100_000),
        };
        let poisoned = CollectiveError::Poisoned {
            cause: Box::new(cause),
        };
        let sent = Failure {
            kind: FailureKind::Ended(poisoned),
            from_sequence: 0,
        };
        let received = failure(2, &notice(0, &sent)).unwrap();
        let FailureKind::Ended(CollectiveError::Aborted { rank: 1, reason }) = received.kind else {
            panic!("{received:?}");
        };
        assert_eq!(reason.len(), 2000);
    }
}
