//! Decides who failed first, what every rank reports, and which operations a failure ends.
//!
//! Only rules: no lock, no clock, no input or output. [`GroupStatus`](crate::status::GroupStatus)
//! keeps one value for each rank of a group between processes, a group of threads one for all of
//! its ranks, and MPI one for each rank. They differ in how they learn of a failure and which ranks
//! they wake, not in what it means.
//!
//! - The failure that was noted first is the one that everybody reports.
//! - A failure ends the operations from the first one that it concerns. The loss of a rank ends a
//!   point-to-point call only when it is that with this rank.
//! - A rank that said goodbye is missed by the operations that it did not do. Until one of them
//!   runs the group has not failed.
//! - However many are noted, there is one entry for the loss of each rank and one for the rest: the
//!   first, unless a later one concerns earlier operations too.

mod codec;
mod first;

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

#[cfg(any(feature = "grpc", feature = "mpi"))]
pub(crate) use codec::fitting;
pub use first::FirstFailure;

use crate::error::{CollectiveError, Result};
use crate::header::OperationHeader;

/// Why a group ended. The operation that it ended is added where it is reported.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub(crate) enum FailureKind {
    /// A rank's process ended, or it left the group.
    Lost { rank: usize, reason: String },
    /// A rank is connected but has not been heard of for this long.
    Silent { rank: usize, elapsed: Duration },
    /// An error that says all there is to say: a mismatch, a deadline, an abort.
    Ended(CollectiveError),
}

impl FailureKind {
    /// The error of the operation that this ended.
    pub(crate) fn into_error(self, header: &OperationHeader) -> CollectiveError {
        let (op, sequence) = (header.kind, header.sequence);
        match self {
            FailureKind::Lost { rank, reason } => CollectiveError::PeerLost {
                rank,
                op,
                sequence,
                reason,
            },
            FailureKind::Silent { rank, elapsed } => CollectiveError::Timeout {
                missing: vec![rank],
                op,
                sequence,
                elapsed,
            },
            FailureKind::Ended(error) => error,
        }
    }

    /// The rank whose loss this is.
    fn lost_rank(&self) -> Option<usize> {
        match self {
            FailureKind::Lost { rank, .. } => Some(*rank),
            _ => None,
        }
    }
}

/// What went wrong, and the first operation that it concerns.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub(crate) struct Failure {
    pub(crate) kind: FailureKind,
    /// The rank at fault had done its part of all operations before this one.
    pub(crate) from_sequence: u64,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The first one, or not known: a rank that hears nothing does not know how far it was.
        let operation = match self.from_sequence {
            0 => String::new(),
            sequence => format!(" before operation {sequence}"),
        };
        match &self.kind {
            FailureKind::Lost { rank, reason } => {
                write!(f, "rank {rank} was lost{operation}: {reason}")
            }
            FailureKind::Silent { rank, elapsed } => write!(
                f,
                "rank {rank} has given no sign of life for {elapsed:.1?}{operation}"
            ),
            FailureKind::Ended(error) => fmt::Display::fmt(error, f),
        }
    }
}

impl Failure {
    /// What ends the group from this operation on.
    pub(crate) fn new(kind: FailureKind, from_sequence: u64) -> Failure {
        Failure {
            kind,
            from_sequence,
        }
    }

    /// An error that ends the group from this operation on.
    pub(crate) fn ended(error: CollectiveError, from_sequence: u64) -> Failure {
        Failure::new(FailureKind::Ended(error), from_sequence)
    }

    /// A rank that ended the group on purpose.
    pub(crate) fn aborted(rank: usize, reason: &str) -> Failure {
        let reason = reason.to_string();
        Failure::ended(CollectiveError::Aborted { rank, reason }, 0)
    }
}

/// The failures of a group, as one rank knows them.
#[derive(Debug, Default)]
pub(crate) struct Failures {
    /// In the order in which they were noted: one loss of each rank at most, and one more.
    noted: Vec<Failure>,
    /// Ranks that said goodbye.
    departed: BTreeSet<usize>,
}

impl Failures {
    /// Notes a failure that this rank has found. Returns true if the state changed.
    pub(crate) fn record(&mut self, failure: Failure) -> bool {
        let rank = failure.kind.lost_rank();
        let mut noted = self.noted.iter_mut();
        match noted.find(|known| known.kind.lost_rank() == rank) {
            Some(known) if known.from_sequence <= failure.from_sequence => return false,
            Some(known) => *known = failure,
            None => self.noted.push(failure),
        }
        true
    }

    /// Notes a failure of which another rank tells, or an abort: it counts only where nothing has
    /// failed, so that what all ranks report is what one of them said first.
    pub(crate) fn record_if_first(&mut self, failure: Failure) -> bool {
        self.first().is_none() && self.record(failure)
    }

    /// Notes that a rank left after this many operations.
    pub(crate) fn goodbye(&mut self, rank: usize, completed: u64, reason: String) -> bool {
        self.departed.insert(rank);
        self.record(Failure::new(FailureKind::Lost { rank, reason }, completed))
    }

    /// What everybody is told: the first failure that is more than a rank that left.
    pub(crate) fn first(&self) -> Option<&Failure> {
        self.noted
            .iter()
            .find(|failure| !self.is_departure(failure))
    }

    /// Whether a failure only says that a rank has left.
    pub(crate) fn is_departure(&self, failure: &Failure) -> bool {
        let rank = failure.kind.lost_rank();
        rank.is_some_and(|rank| self.departed.contains(&rank))
    }

    /// The failure that ends an operation. Of a point-to-point call it matters whether `peer` is
    /// lost, however many collective operations that rank had done before.
    pub(crate) fn verdict(
        &self,
        header: &OperationHeader,
        peer: Option<usize>,
    ) -> Option<&Failure> {
        self.noted.iter().find(|failure| match failure.kind {
            FailureKind::Lost { rank, .. } if header.kind.is_point_to_point() => Some(rank) == peer,
            _ => failure.from_sequence <= header.sequence,
        })
    }

    /// Whether the operation goes on.
    ///
    /// # Errors
    /// The failure that ends it, as its error.
    pub(crate) fn check(&self, header: &OperationHeader, peer: Option<usize>) -> Result<()> {
        match self.verdict(header, peer) {
            Some(failure) => Err(failure.kind.clone().into_error(header)),
            None => Ok(()),
        }
    }

    /// Whether others may still wait for what a rank that has done this many operations has sent:
    /// when all that happened is that ranks left after they had done them too.
    #[cfg(any(test, feature = "grpc"))]
    pub(crate) fn is_healthy(&self, completed: u64) -> bool {
        self.noted
            .iter()
            .all(|failure| failure.kind.lost_rank().is_some() && failure.from_sequence >= completed)
    }

    /// All that is known, in the order in which it was noted.
    #[cfg(test)]
    pub(crate) fn noted(&self) -> &[Failure] {
        &self.noted
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::operation::OperationKind;

    const RANKS: usize = 4;

    fn collective(sequence: u64) -> OperationHeader {
        OperationHeader::new(OperationKind::AllReduce, 0, sequence)
    }

    fn send(sequence: u64) -> OperationHeader {
        OperationHeader::new(OperationKind::Send, 0, sequence)
    }

    fn lost(rank: usize, from_sequence: u64) -> Failure {
        let reason = "gone".to_string();
        Failure {
            kind: FailureKind::Lost { rank, reason },
            from_sequence,
        }
    }

    fn silent(rank: usize, from_sequence: u64) -> Failure {
        let elapsed = Duration::from_secs(3);
        Failure {
            kind: FailureKind::Silent { rank, elapsed },
            from_sequence,
        }
    }

    /// What can happen to a group.
    #[derive(Debug, Clone)]
    enum Event {
        Failed(Failure),
        Told(Failure),
        Goodbye(usize, u64),
    }

    fn apply(failures: &mut Failures, event: Event) -> bool {
        match event {
            Event::Failed(failure) => failures.record(failure),
            Event::Told(failure) => failures.record_if_first(failure),
            Event::Goodbye(rank, completed) => failures.goodbye(rank, completed, String::new()),
        }
    }

    fn any_failure() -> impl Strategy<Value = Failure> {
        (0..RANKS, 0..6_u64, 0..3).prop_map(|(rank, sequence, kind)| match kind {
            0 => lost(rank, sequence),
            1 => silent(rank, sequence),
            _ => Failure::aborted(rank, &format!("the loss of rank {rank} is NaN")),
        })
    }

    fn any_event() -> impl Strategy<Value = Event> {
        prop_oneof![
            any_failure().prop_map(Event::Failed),
            any_failure().prop_map(Event::Told),
            (0..RANKS, 0..6_u64).prop_map(|(rank, completed)| Event::Goodbye(rank, completed)),
        ]
    }

    fn after(events: &[Event]) -> Failures {
        let mut failures = Failures::default();
        for event in events {
            apply(&mut failures, event.clone());
        }
        failures
    }

    /// All operations that there are in a test, with the rank that each is with.
    fn operations() -> impl Iterator<Item = (OperationHeader, Option<usize>)> {
        (0..6).flat_map(|sequence| {
            let calls = (0..RANKS).map(move |peer| (send(sequence), Some(peer)));
            calls.chain([(collective(sequence), None)])
        })
    }

    proptest! {
        #[test]
        fn what_ended_an_operation_once_ends_it_for_ever(
            before in prop::collection::vec(any_event(), 0..12),
            next in any_event(),
        ) {
            let mut failures = after(&before);
            let verdicts = |failures: &Failures| -> Vec<bool> {
                operations().map(|(op, peer)| failures.verdict(&op, peer).is_some()).collect()
            };
            let old = verdicts(&failures);
            let changed = apply(&mut failures, next);
            let new = verdicts(&failures);
            prop_assert!(old.iter().zip(&new).all(|(old, new)| !old || *new));
            prop_assert!(changed || old == new, "without a change no thread is woken");
        }

        #[test]
        fn who_is_told_of_the_first_failure_reports_the_same(
            before in prop::collection::vec(any_event(), 0..12),
            ignored in prop::collection::vec(any_failure(), 0..12),
        ) {
            let teller = after(&before);
            if let Some(first) = teller.first() {
                let mut told = Failures::default();
                prop_assert!(told.record_if_first(first.clone()));
                for failure in ignored {
                    prop_assert!(!told.record_if_first(failure));
                }
                prop_assert_eq!(told.first(), Some(first));
                for sequence in first.from_sequence..8 {
                    prop_assert_eq!(told.verdict(&collective(sequence), None), Some(first));
                }
            }
        }

        #[test]
        fn a_goodbye_ends_nothing_that_the_rank_had_done(
            goodbyes in prop::collection::vec((0..RANKS, 0..6_u64), 1..8),
        ) {
            let mut failures = Failures::default();
            for (rank, completed) in &goodbyes {
                failures.goodbye(*rank, *completed, String::new());
            }
            prop_assert_eq!(failures.first(), None);
            for sequence in 0..6 {
                let expected = goodbyes.iter().any(|(_, completed)| *completed <= sequence);
                let verdict = failures.verdict(&collective(sequence), None);
                prop_assert_eq!(verdict.is_some(), expected);
            }
            let done_by_all = goodbyes.iter().map(|(_, completed)| *completed).min().unwrap_or(0);
            prop_assert!(failures.is_healthy(done_by_all));
            prop_assert!(!failures.is_healthy(done_by_all + 1));
        }

        #[test]
        fn there_is_one_entry_for_each_rank_and_one_more(
            events in prop::collection::vec(any_event(), 0..200),
        ) {
            prop_assert!(after(&events).noted().len() <= RANKS + 1);
        }
    }

    #[test]
    fn a_hundred_thousand_goodbyes_and_failures_take_no_more_memory_than_one_of_each() {
        let mut failures = Failures::default();
        for number in 0..100_000_u64 {
            failures.goodbye(1, number, "x".repeat(20));
            failures.record(lost(2, 1_000_000 - number));
            failures.record(silent(3, 1_000_000 - number));
            failures.record_if_first(Failure::aborted(3, "no"));
        }
        assert_eq!(failures.noted().len(), 3);
        assert!(failures.noted.capacity() <= 4);
    }

    #[test]
    fn the_loss_of_a_third_rank_does_not_end_a_point_to_point_call() {
        let failures = after(&[Event::Failed(lost(2, 1))]);
        assert_eq!(failures.verdict(&send(4), Some(1)), None);
        assert_eq!(failures.verdict(&send(4), None), None);
        // However many operations the other rank had done.
        assert_eq!(failures.verdict(&send(0), Some(2)), Some(&lost(2, 1)));
        assert_eq!(failures.verdict(&collective(4), Some(1)), Some(&lost(2, 1)));
        assert_eq!(failures.verdict(&collective(0), Some(2)), None);
    }

    #[test]
    fn a_lost_rank_that_says_goodbye_after_all_has_left() {
        let mut failures = after(&[Event::Failed(lost(2, 3))]);
        assert_eq!(failures.first(), Some(&lost(2, 3)));
        assert!(!failures.goodbye(2, 5, String::new()));
        assert_eq!(failures.first(), None);
        // Its connection had ended before it did the last two operations with this rank.
        assert_eq!(failures.verdict(&collective(3), None), Some(&lost(2, 3)));
        assert!(failures.record_if_first(Failure::aborted(0, "why")));
    }
}
