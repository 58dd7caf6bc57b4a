//! Failures as text, for the messages by which ranks tell each other of them.
//!
//! One form for every transport: the JSON that serde derives. What a rank tells is decided here
//! too: the first cause of a poisoned group, and errors that name a rank. Long texts are cut.

use serde::Serialize;

use super::{Failure, FailureKind};
use crate::error::CollectiveError;

/// How many characters of a text are told.
const CHARACTERS_MAX: usize = 2000;
/// How many ranks that a rank waited for are named with their addresses.
const MISSING_MAX: usize = 8;

/// `what` as JSON of at most `bytes` bytes. It is asked for texts of this many characters and lists
/// of this many elements, fewer each time until it fits.
pub(crate) fn fitting<T: Serialize>(bytes: usize, what: impl Fn(usize) -> T) -> String {
    let mut most = CHARACTERS_MAX;
    loop {
        // Nothing that is told has a form that JSON lacks.
        let text = serde_json::to_string(&what(most)).unwrap_or_default();
        if text.len() <= bytes || most == 0 {
            return text;
        }
        most /= 2;
    }
}

impl Failure {
    /// What rank `own` tells the others of it, with texts and lists of at most `most` elements.
    pub(crate) fn told_by(&self, own: usize, most: usize) -> Failure {
        let cut = |text: &mut String| *text = text.chars().take(most).collect();
        let mut told = self.clone();
        let error = match &mut told.kind {
            FailureKind::Silent { .. } => return told,
            FailureKind::Lost { reason, .. } => {
                cut(reason);
                return told;
            }
            FailureKind::Ended(error) => error,
        };
        *error = error.root_cause().clone();
        match error {
            CollectiveError::Protocol { address, what, .. } => {
                cut(address);
                cut(what);
            }
            CollectiveError::LinkStalled {
                connection, what, ..
            } => {
                cut(connection);
                cut(what);
            }
            CollectiveError::Mismatch { what: text, .. }
            | CollectiveError::CutOff { host: text, .. }
            | CollectiveError::PeerLost { reason: text, .. }
            | CollectiveError::Aborted { reason: text, .. } => cut(text),
            CollectiveError::Timeout { missing, .. } => missing.truncate(most),
            CollectiveError::Interrupted { missing, .. } => {
                missing.truncate(most.min(MISSING_MAX));
                for missing in missing {
                    cut(&mut missing.address);
                    cut(&mut missing.reason);
                }
            }
            // No other error ends a group by itself; the sender is then the one that ended it.
            other => {
                let mut reason = other.to_string();
                cut(&mut reason);
                *other = CollectiveError::Aborted { rank: own, reason };
            }
        }
        told
    }

    /// Whether a rank of a group of this size can have told it.
    pub(crate) fn is_of(&self, world_size: usize) -> bool {
        let exists = |rank: &usize| *rank < world_size;
        let error = match &self.kind {
            FailureKind::Lost { rank, .. } | FailureKind::Silent { rank, .. } => {
                return exists(rank);
            }
            FailureKind::Ended(error) => error,
        };
        match error {
            CollectiveError::PeerLost { rank, .. }
            | CollectiveError::CutOff { rank, .. }
            | CollectiveError::Aborted { rank, .. } => exists(rank),
            CollectiveError::Mismatch { rank_a, rank_b, .. } => exists(rank_a) && exists(rank_b),
            CollectiveError::Protocol { rank, peer, .. }
            | CollectiveError::LinkStalled { rank, peer, .. } => exists(rank) && exists(peer),
            CollectiveError::Timeout { missing, .. } => missing.iter().all(exists),
            CollectiveError::Interrupted { rank, missing, .. } => {
                exists(rank) && missing.iter().all(|it| exists(&it.rank))
            }
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;
    use crate::error::{MissingRank, Searched};
    use crate::operation::OperationKind;

    const RANKS: usize = 5;
    const VARIANTS: usize = 17;

    /// What the variants are made of.
    #[derive(Debug, Clone)]
    struct Parts {
        rank: usize,
        other: usize,
        op: OperationKind,
        sequence: u64,
        elapsed: Duration,
        text: String,
    }

    fn parts() -> impl Strategy<Value = Parts> {
        let ranks = (0..RANKS, 0..RANKS, 0..OperationKind::ALL.len());
        let numbers = (any::<u64>(), any::<u64>(), 0..1_000_000_000_u32);
        (ranks, numbers, ".{0,40}").prop_map(|((rank, other, op), (sequence, s, n), text)| Parts {
            rank,
            other,
            op: OperationKind::ALL[op],
            sequence,
            elapsed: Duration::new(s, n),
            text,
        })
    }

    fn missing(parts: &Parts) -> Vec<MissingRank> {
        vec![MissingRank {
            rank: parts.other,
            address: parts.text.clone(),
            reason: parts.text.clone(),
        }]
    }

    /// The errors that are told as an abort of the rank that has them.
    fn that_ends_no_group(variant: usize, parts: Parts) -> CollectiveError {
        let missing = missing(&parts);
        let Parts {
            rank, op, elapsed, ..
        } = parts;
        let text = || parts.text.clone();
        let (reason, what, address, backend) = (text(), text(), text(), text());
        match variant {
            7 => CollectiveError::InvalidArgument { op, rank, what },
            8 => CollectiveError::InvalidOption { what },
            9 => CollectiveError::Rendezvous {
                rank,
                missing,
                elapsed,
            },
            10 => CollectiveError::Address {
                rank,
                address,
                reason,
            },
            11 => CollectiveError::Refused {
                rank,
                address,
                reason: reason.clone(),
                options: vec![reason],
            },
            _ => CollectiveError::BackendUnavailable {
                backend,
                reason: reason.clone(),
                searched: vec![Searched {
                    path: address,
                    reason,
                }],
            },
        }
    }

    fn failure(variant: usize, parts: Parts) -> Failure {
        let Parts {
            rank,
            other,
            op,
            sequence,
            elapsed,
            text,
        } = parts.clone();
        let (reason, what, address) = (text.clone(), text.clone(), text);
        let missing = missing(&parts);
        let error = match variant {
            0 => CollectiveError::Mismatch {
                rank_a: rank,
                rank_b: other,
                op,
                sequence,
                what,
            },
            1 => CollectiveError::PeerLost {
                rank,
                op,
                sequence,
                reason,
            },
            2 => CollectiveError::Timeout {
                missing: vec![rank, other],
                op,
                sequence,
                elapsed,
            },
            3 => CollectiveError::Aborted { rank, reason },
            4 => CollectiveError::Interrupted {
                rank,
                missing,
                elapsed,
            },
            5 => CollectiveError::Protocol {
                rank,
                peer: other,
                address,
                what,
            },
            6 => CollectiveError::Poisoned {
                cause: Box::new(CollectiveError::Aborted { rank, reason }),
            },
            7..13 => that_ends_no_group(variant, parts),
            13 => return with(FailureKind::Lost { rank, reason }, sequence),
            15 => CollectiveError::CutOff {
                rank,
                host: address,
                elapsed,
            },
            16 => CollectiveError::LinkStalled {
                rank,
                peer: other,
                connection: address,
                what,
            },
            _ => return with(FailureKind::Silent { rank, elapsed }, sequence),
        };
        with(FailureKind::Ended(error), sequence)
    }

    fn with(kind: FailureKind, from_sequence: u64) -> Failure {
        Failure {
            kind,
            from_sequence,
        }
    }

    /// The number of each variant: a new one does not compile before it has one.
    fn number(failure: &Failure) -> usize {
        let error = match &failure.kind {
            FailureKind::Ended(error) => error,
            FailureKind::Lost { .. } => return 13,
            FailureKind::Silent { .. } => return 14,
        };
        match error {
            CollectiveError::Mismatch { .. } => 0,
            CollectiveError::PeerLost { .. } => 1,
            CollectiveError::Timeout { .. } => 2,
            CollectiveError::Aborted { .. } => 3,
            CollectiveError::Interrupted { .. } => 4,
            CollectiveError::Protocol { .. } => 5,
            CollectiveError::Poisoned { .. } => 6,
            CollectiveError::InvalidArgument { .. } => 7,
            CollectiveError::InvalidOption { .. } => 8,
            CollectiveError::Rendezvous { .. } => 9,
            CollectiveError::Address { .. } => 10,
            CollectiveError::Refused { .. } => 11,
            CollectiveError::BackendUnavailable { .. } => 12,
            CollectiveError::CutOff { .. } => 15,
            CollectiveError::LinkStalled { .. } => 16,
        }
    }

    fn decode(text: &str) -> Option<Failure> {
        serde_json::from_str(text).ok()
    }

    proptest! {
        #[test]
        fn every_failure_survives_the_way(parts in parts()) {
            for variant in 0..VARIANTS {
                let failure = failure(variant, parts.clone());
                prop_assert_eq!(number(&failure), variant);
                // The type has a form for all of them ...
                let whole = decode(&fitting(usize::MAX, |_| &failure));
                prop_assert_eq!(whole, Some(failure.clone()));
                // ... and what is told is what ends a group.
                let told = decode(&fitting(32 << 10, |most| failure.told_by(1, most))).unwrap();
                prop_assert!(told.is_of(RANKS));
                prop_assert!(!told.is_of(0));
                prop_assert_eq!(told.from_sequence, failure.from_sequence);
                match (variant, &told.kind) {
                    (6, kind) => {
                        let cause = Failure::aborted(parts.rank, &parts.text);
                        prop_assert_eq!(kind, &cause.kind);
                    }
                    (7..13, FailureKind::Ended(CollectiveError::Aborted { rank: 1, .. })) => {}
                    _ => prop_assert_eq!(told, failure),
                }
            }
        }

        #[test]
        fn what_does_not_fit_is_cut(parts in parts(), bytes in 300..3000_usize) {
            let text = "\u{1}".repeat(5000);
            for variant in 0..VARIANTS {
                let parts = Parts { text: text.clone(), ..parts.clone() };
                let failure = failure(variant, parts);
                let json = fitting(bytes, |most| failure.told_by(0, most));
                prop_assert!(json.len() <= bytes, "{} bytes: {json}", json.len());
                prop_assert!(decode(&json).unwrap().is_of(RANKS));
            }
        }
    }

    #[test]
    fn the_first_cause_is_told_of_a_poisoned_group_and_any_text_is_cut() {
        let reason = "x".repeat(100_000);
        let cause = CollectiveError::Aborted { rank: 1, reason };
        let poisoned = CollectiveError::Poisoned {
            cause: Box::new(cause),
        };
        let failure = with(FailureKind::Ended(poisoned), 0);
        let told = decode(&fitting(32 << 10, |most| failure.told_by(0, most))).unwrap();
        let FailureKind::Ended(CollectiveError::Aborted { rank: 1, reason }) = told.kind else {
            panic!("{told:?}");
        };
        assert_eq!(reason.len(), 2000);
    }

    #[test]
    fn ranks_that_do_not_exist_are_not_believed() {
        let parts = Parts {
            rank: 3,
            other: 4,
            op: OperationKind::Send,
            sequence: 1,
            elapsed: Duration::ZERO,
            text: String::new(),
        };
        for variant in 0..VARIANTS {
            let failure = failure(variant, parts.clone());
            let is_told = !(6..13).contains(&variant);
            assert_eq!(failure.is_of(5), is_told);
            assert!(!failure.is_of(3));
        }
    }
}
