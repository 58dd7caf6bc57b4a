//! What this process knows about its group: the operation that runs here, and the first failure.
//!
//! One value per rank of a group between processes, shared by the thread that calls operations
//! (it waits for data and asks whether to give up) and the control thread (it hears of lost and
//! silent ranks, and tells the others what went wrong here).

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};

use crate::error::{CollectiveError, Result};
use crate::header::OperationHeader;

/// Why a group ended. The operation that it ended is added where it is reported.
#[derive(Debug, Clone, PartialEq)]
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
}

/// What went wrong, and the first operation that it concerns.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Failure {
    pub(crate) kind: FailureKind,
    /// The rank at fault had done its part of all operations before this one.
    pub(crate) from_sequence: u64,
}

/// Called once, by the thread that notes the first failure.
type Waker = Box<dyn Fn() + Send>;

/// What a rank has last said about itself.
#[derive(Clone, Copy)]
struct Report {
    at: Instant,
    running: Option<OperationHeader>,
    completed: u64,
}

impl Report {
    /// Whether the rank has begun the collective operation. A point-to-point call has the number
    /// of the next collective operation, which has not begun.
    fn has_begun(&self, header: &OperationHeader) -> bool {
        let begun = |running: &OperationHeader| {
            !running.kind.is_point_to_point() && running.sequence >= header.sequence
        };
        self.completed > header.sequence || self.running.as_ref().is_some_and(begun)
    }
}

#[derive(Default)]
struct Inner {
    running: Option<OperationHeader>,
    /// Since when.
    begun: Option<Instant>,
    /// Number of collective operations that this rank has completed.
    completed: u64,
    /// In the order in which they were noted; a rank that left after its last operation is in it.
    failures: Vec<Failure>,
    wakers: Vec<Waker>,
    /// By rank.
    reports: BTreeMap<usize, Report>,
    /// The failure that ended an operation of this rank.
    reported: Option<Failure>,
}

impl Inner {
    /// The first failure that concerns this operation.
    fn failure_of(&self, header: &OperationHeader) -> Option<&Failure> {
        let concerns = |failure: &&Failure| failure.from_sequence <= header.sequence;
        self.failures.iter().find(concerns)
    }
}

/// The state of one rank's membership.
#[derive(Default)]
pub(crate) struct GroupStatus {
    failed: AtomicBool,
    inner: Mutex<Inner>,
}

impl GroupStatus {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        // The lock is never held across code that can panic half-way through a change.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers what wakes a thread of this process that waits; called for every noted failure.
    /// It must not block and must not call back into this value.
    pub(crate) fn on_failure(&self, waker: impl Fn() + Send + 'static) {
        self.lock().wakers.push(Box::new(waker));
    }

    /// A descriptor that can be read once a failure is noted from now on, for threads that wait in
    /// `poll(2)`. What was read from it is gone until the next failure.
    pub(crate) fn alarm(&self) -> rustix::io::Result<Arc<OwnedFd>> {
        let alarm = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        // Weak: this value may outlive whoever waits.
        let weak = Arc::downgrade(&alarm);
        self.on_failure(move || {
            if let Some(alarm) = weak.upgrade() {
                // Fails only when it is ringing already.
                let _ = rustix::io::write(&*alarm, &1_u64.to_ne_bytes());
            }
        });
        Ok(alarm)
    }

    /// Notes the operation that this rank has begun.
    pub(crate) fn begin(&self, header: &OperationHeader) {
        let mut inner = self.lock();
        inner.running = Some(*header);
        inner.begun = Some(Instant::now());
    }

    /// Notes that this rank has left the operation it had begun. It counts as completed unless a
    /// failure that concerns it was noted before.
    pub(crate) fn end(&self) {
        let mut inner = self.lock();
        let Some(header) = inner.running.take() else {
            return;
        };
        if !header.kind.is_point_to_point() && inner.failure_of(&header).is_none() {
            inner.completed = header.sequence + 1;
        }
    }

    /// Notes what another rank says about itself.
    pub(crate) fn note_peer(&self, rank: usize, running: Option<OperationHeader>, completed: u64) {
        let report = Report {
            at: Instant::now(),
            running,
            completed,
        };
        self.lock().reports.insert(rank, report);
    }

    /// The ranks to name when an operation that began at `begin` was waiting for `ranks` at its
    /// deadline. Ranks that have reported since then to be in the operation wait for others
    /// themselves; if all of `ranks` have, these are the ranks that have reported not to be in it.
    pub(crate) fn to_blame(
        &self,
        header: &OperationHeader,
        begin: Instant,
        ranks: Vec<usize>,
    ) -> Vec<usize> {
        if header.kind.is_point_to_point() {
            return ranks;
        }
        let inner = self.lock();
        let recent = |rank: &usize| inner.reports.get(rank).filter(|it| it.at > begin);
        let wait = |rank: &usize| recent(rank).is_some_and(|it| it.has_begun(header));
        let (waiting, not): (Vec<usize>, Vec<usize>) = ranks.into_iter().partition(wait);
        if !not.is_empty() {
            return not;
        }
        let absent = |rank: &&usize| recent(rank).is_some_and(|it| !it.has_begun(header));
        let absent: Vec<usize> = inner.reports.keys().filter(absent).copied().collect();
        if absent.is_empty() { waiting } else { absent }
    }

    /// Number of collective operations that this rank has completed.
    pub(crate) fn completed(&self) -> u64 {
        self.lock().completed
    }

    /// The operation that this rank is in.
    pub(crate) fn running(&self) -> Option<OperationHeader> {
        self.lock().running
    }

    /// The operation that this rank is in, and since when.
    pub(crate) fn running_since(&self) -> Option<(OperationHeader, Instant)> {
        let inner = self.lock();
        inner.running.zip(inner.begun)
    }

    /// Whether a rank has begun this operation, as it has said since then; `None` if it has said
    /// nothing.
    pub(crate) fn has_begun(
        &self,
        rank: usize,
        header: &OperationHeader,
        since: Instant,
    ) -> Option<bool> {
        let inner = self.lock();
        let report = inner.reports.get(&rank).filter(|it| it.at > since)?;
        Some(report.has_begun(header))
    }

    /// Notes a failure and wakes whoever waits.
    pub(crate) fn record_failure(&self, failure: Failure) {
        let mut inner = self.lock();
        inner.failures.push(failure);
        self.failed.store(true, Ordering::Release);
        inner.wakers.iter().for_each(|wake| wake());
    }

    /// All failures, in the order in which they were noted.
    pub(crate) fn failures(&self) -> Vec<Failure> {
        self.lock().failures.clone()
    }

    /// Whether the others may still wait for what this rank has sent: when the only failures are
    /// ranks that left after they had done all operations that this rank did.
    pub(crate) fn is_healthy(&self) -> bool {
        let inner = self.lock();
        inner.failures.iter().all(|failure| {
            let lost = matches!(failure.kind, FailureKind::Lost { .. });
            lost && failure.from_sequence >= inner.completed
        })
    }

    /// Whether to give up the operation: the cheap question for loops that wait.
    ///
    /// # Errors
    /// The first failure that concerns this operation.
    pub(crate) fn check(&self, header: &OperationHeader) -> Result<()> {
        if !self.failed.load(Ordering::Acquire) {
            return Ok(());
        }
        let mut inner = self.lock();
        match inner.failure_of(header).cloned() {
            Some(failure) => {
                inner.reported.get_or_insert_with(|| failure.clone());
                Err(failure.kind.into_error(header))
            }
            None => Ok(()),
        }
    }

    /// The failure that this rank's next operation would end with, without changing anything; of a
    /// point-to-point call with `peer` only the loss of that rank counts.
    #[cfg(feature = "nccl")]
    pub(crate) fn health(&self, header: &OperationHeader, peer: Option<usize>) -> Result<()> {
        if !self.failed.load(Ordering::Acquire) {
            return Ok(());
        }
        let inner = self.lock();
        let concerns = |failure: &&Failure| match (&failure.kind, peer) {
            (FailureKind::Lost { rank, .. }, Some(peer)) => *rank == peer,
            _ => failure.from_sequence <= inner.completed,
        };
        match inner.failures.iter().find(concerns) {
            Some(failure) => Err(failure.kind.clone().into_error(header)),
            None => Ok(()),
        }
    }

    /// The failure that ended an operation of this rank, if one did.
    pub(crate) fn reported(&self) -> Option<Failure> {
        self.lock().reported.clone()
    }

    /// As [`check`](Self::check), while the operation waits for `peer`, if for one rank only. Of a
    /// point-to-point call only that rank's loss matters, however many collective operations the
    /// rank had done before it left.
    pub(crate) fn check_peer(&self, header: &OperationHeader, peer: Option<usize>) -> Result<()> {
        if !header.kind.is_point_to_point() {
            return self.check(header);
        }
        if !self.failed.load(Ordering::Acquire) {
            return Ok(());
        }
        let inner = self.lock();
        let concerns = |failure: &&Failure| match failure.kind {
            FailureKind::Lost { rank, .. } => Some(rank) == peer,
            _ => failure.from_sequence <= header.sequence,
        };
        match inner.failures.iter().find(concerns) {
            Some(failure) => Err(failure.kind.clone().into_error(header)),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;
    use crate::header::OperationKind;

    fn header(sequence: u64) -> OperationHeader {
        OperationHeader::new(OperationKind::AllReduce, 0, sequence)
    }

    #[test]
    fn what_ended_an_operation_is_known() {
        let status = GroupStatus::default();
        let failure = Failure {
            kind: FailureKind::Lost {
                rank: 1,
                reason: String::new(),
            },
            from_sequence: 2,
        };
        status.record_failure(failure.clone());
        assert_eq!(status.check(&header(1)), Ok(()));
        assert_eq!(status.reported(), None);
        assert!(status.check(&header(2)).is_err());
        assert_eq!(status.reported(), Some(failure));
    }

    #[test]
    fn completed_counts_collective_operations_that_did_not_fail() {
        let status = GroupStatus::default();
        let run = |kind, sequence| {
            status.begin(&OperationHeader::new(kind, 0, sequence));
            status.end();
        };
        run(OperationKind::AllReduce, 0);
        run(OperationKind::Send, 1);
        assert_eq!(status.completed(), 1);
        status.begin(&header(1));
        let kind = FailureKind::Lost {
            rank: 1,
            reason: String::new(),
        };
        status.record_failure(Failure {
            kind,
            from_sequence: 1,
        });
        status.end();
        status.end();
        assert_eq!((status.completed(), status.failures().len()), (1, 1));
    }

    #[test]
    fn a_rank_that_waits_for_another_one_is_not_to_blame() {
        let status = GroupStatus::default();
        status.note_peer(3, None, 0);
        let begin = Instant::now();
        let blame = |ranks: &[usize]| status.to_blame(&header(4), begin, ranks.to_vec());
        assert_eq!(blame(&[1, 3]), [1, 3]);
        status.note_peer(1, Some(header(4)), 4);
        assert_eq!(blame(&[1, 3]), [3]);
        // Rank 3 has said nothing since the operation began.
        assert_eq!(blame(&[1]), [1]);
        status.note_peer(3, Some(header(3)), 3);
        status.note_peer(0, None, 5);
        assert_eq!(blame(&[1]), [3]);
        assert_eq!(blame(&[0, 1]), [3]);
        let send = OperationHeader::new(OperationKind::Send, 0, 4);
        assert_eq!(status.to_blame(&send, begin, vec![1]), [1]);
        // Rank 3 is in a call after operation 3, and has not begun operation 4.
        status.note_peer(3, Some(send), 4);
        assert_eq!(blame(&[1]), [3]);
    }

    fn lost(from_sequence: u64) -> Failure {
        let reason = String::new();
        Failure {
            kind: FailureKind::Lost { rank: 2, reason },
            from_sequence,
        }
    }

    /// A status that has completed two operations and notes the failures.
    fn healthy_after(failures: &[Failure]) -> bool {
        let status = GroupStatus::default();
        status.begin(&header(0));
        status.end();
        status.begin(&header(1));
        status.end();
        failures
            .iter()
            .for_each(|f| status.record_failure(f.clone()));
        status.is_healthy()
    }

    #[test]
    fn a_rank_that_left_after_its_last_operation_leaves_a_healthy_group() {
        assert!(healthy_after(&[]));
        assert!(healthy_after(&[lost(2)]));
        assert!(healthy_after(&[lost(2), lost(3)]));
        assert!(!healthy_after(&[lost(2), lost(1)]));
        let kind = FailureKind::Silent {
            rank: 1,
            elapsed: Duration::ZERO,
        };
        let from_sequence = 2;
        assert!(!healthy_after(&[Failure {
            kind,
            from_sequence
        }]));
    }

    #[test]
    fn the_loss_of_a_third_rank_does_not_end_a_point_to_point_call() {
        let status = GroupStatus::default();
        status.record_failure(lost(1));
        let send = OperationHeader::new(OperationKind::Send, 0, 4);
        assert_eq!(status.check_peer(&send, Some(1)), Ok(()));
        assert_eq!(status.check_peer(&send, None), Ok(()));
        assert!(status.check_peer(&send, Some(2)).is_err());
        assert!(status.check_peer(&header(4), Some(1)).is_err());
    }

    #[test]
    fn a_rank_that_left_ends_only_operations_it_did_not_do() {
        let status = GroupStatus::default();
        let woken = Arc::new(AtomicUsize::new(0));
        let count = woken.clone();
        status.on_failure(move || {
            count.fetch_add(1, Ordering::SeqCst);
        });
        let kind = FailureKind::Lost {
            rank: 3,
            reason: "it left".to_string(),
        };
        status.record_failure(Failure {
            kind,
            from_sequence: 5,
        });
        assert_eq!(woken.load(Ordering::SeqCst), 1);
        assert_eq!(status.check(&header(4)), Ok(()));
        let error = status.check(&header(5)).unwrap_err();
        assert!(matches!(
            error,
            CollectiveError::PeerLost {
                rank: 3,
                sequence: 5,
                ..
            }
        ));
    }
}
