//! What this process knows about its group: the operation that runs here, and the failures.
//!
//! One value per rank of a group between processes, shared by the thread that calls operations
//! (it waits for data and asks whether to give up) and the control thread (it hears of lost and
//! silent ranks, and tells the others what went wrong here). What a failure means is decided by
//! [`Failures`]; here are its lock, and who is woken.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;

use rustix::event::{EventfdFlags, eventfd};

use crate::bookkeeping::RunningOperation;
use crate::error::Result;
use crate::failure::{Failure, Failures};
use crate::header::OperationHeader;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Mutex, MutexGuard, unpoisoned};

/// Called by the thread that notes a failure.
type Waker = Box<dyn Fn() + Send>;

/// What a rank has last said about itself.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Report {
    pub(crate) at: Instant,
    pub(crate) running: Option<OperationHeader>,
    /// Number of collective operations that it has completed.
    pub(crate) completed: u64,
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
    /// The operation that this rank is in.
    running: Option<RunningOperation>,
    /// Number of collective operations that this rank has completed.
    completed: u64,
    failures: Failures,
    wakers: Vec<Waker>,
    /// By rank.
    reports: BTreeMap<usize, Report>,
    /// The failure that ended a collective operation of this rank.
    reported: Option<Failure>,
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
        unpoisoned(self.inner.lock())
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
        // Weak: this value may outlive the waiting threads.
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
    pub(crate) fn begin(&self, running: RunningOperation) {
        self.lock().running = Some(running);
    }

    /// Notes that this rank has left the operation it had begun. It counts as completed unless a
    /// failure that concerns it was noted before.
    pub(crate) fn end(&self) {
        let mut inner = self.lock();
        let Some(RunningOperation { header, .. }) = inner.running.take() else {
            return;
        };
        if !header.kind.is_point_to_point() && inner.failures.verdict(&header, None).is_none() {
            inner.completed = header.sequence + 1;
        }
    }

    /// Notes what other ranks have said about themselves, unless they have said more since then.
    pub(crate) fn note_peers(&self, ranks: impl Iterator<Item = usize>, report: Report) {
        let mut inner = self.lock();
        for rank in ranks {
            let known = inner.reports.entry(rank).or_insert(report);
            if known.at < report.at {
                *known = report;
            }
        }
    }

    /// What the other ranks have last said about themselves, in rank order.
    pub(crate) fn for_each_report(&self, mut see: impl FnMut(usize, &Report)) {
        let inner = self.lock();
        inner
            .reports
            .iter()
            .for_each(|(rank, report)| see(*rank, report));
    }

    /// When a rank has last said something about itself.
    pub(crate) fn heard_of(&self, rank: usize) -> Option<Instant> {
        self.lock().reports.get(&rank).map(|report| report.at)
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
    pub(crate) fn running(&self) -> Option<RunningOperation> {
        self.lock().running
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

    /// Applies `change` to the failures, and wakes waiting threads.
    fn change(&self, change: impl FnOnce(&mut Failures) -> bool) {
        let mut inner = self.lock();
        if change(&mut inner.failures) {
            self.failed.store(true, Ordering::Release);
            inner.wakers.iter().for_each(|wake| wake());
        }
    }

    /// Notes a failure that this rank has found.
    pub(crate) fn record_failure(&self, failure: Failure) {
        self.change(|failures| failures.record(failure));
    }

    /// Notes a failure of which another rank tells, or an abort; see [`Failures::record_if_first`].
    pub(crate) fn record_if_first(&self, failure: Failure) {
        self.change(|failures| failures.record_if_first(failure));
    }

    /// Notes that a rank left after this many operations.
    pub(crate) fn goodbye(&self, rank: usize, completed: u64, reason: String) {
        self.change(|failures| failures.goodbye(rank, completed, reason));
    }

    /// What all ranks are told: the first failure that is more than a rank that left.
    pub(crate) fn first_failure(&self) -> Option<Failure> {
        self.lock().failures.first().cloned()
    }

    /// All failures, in the order in which they were noted.
    #[cfg(test)]
    pub(crate) fn failures(&self) -> Vec<Failure> {
        self.lock().failures.noted().to_vec()
    }

    /// Whether the others may still wait for what this rank has sent.
    pub(crate) fn is_healthy(&self) -> bool {
        let inner = self.lock();
        inner.failures.is_healthy(inner.completed)
    }

    /// As [`check_peer`](Self::check_peer), while the operation waits for any rank.
    ///
    /// # Errors
    /// The first failure that concerns this operation.
    #[cfg(any(test, feature = "shm"))]
    pub(crate) fn check(&self, header: &OperationHeader) -> Result<()> {
        self.check_peer(header, None)
    }

    /// Whether to give up an operation that waits for `peer`, or for any rank: the cheap question
    /// for loops that wait.
    ///
    /// # Errors
    /// The first failure that concerns this operation.
    pub(crate) fn check_peer(&self, header: &OperationHeader, peer: Option<usize>) -> Result<()> {
        if !self.failed.load(Ordering::Acquire) {
            return Ok(());
        }
        let mut inner = self.lock();
        let Some(failure) = inner.failures.verdict(header, peer).cloned() else {
            return Ok(());
        };
        if !header.kind.is_point_to_point() {
            inner.reported.get_or_insert_with(|| failure.clone());
        }
        Err(failure.kind.into_error(header))
    }

    /// The failure that this rank's next operation would end with, without changing anything.
    #[cfg(feature = "nccl")]
    pub(crate) fn health(&self, header: &OperationHeader, peer: Option<usize>) -> Result<()> {
        if !self.failed.load(Ordering::Acquire) {
            return Ok(());
        }
        let inner = self.lock();
        let next = OperationHeader {
            sequence: inner.completed,
            ..*header
        };
        inner.failures.check(&next, peer)
    }

    /// The rank that left, if that is what ended a collective operation of this rank.
    pub(crate) fn reported_departure(&self) -> Option<Failure> {
        let inner = self.lock();
        let reported = inner.reported.as_ref();
        reported
            .filter(|it| inner.failures.is_departure(it))
            .cloned()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::time::Duration;

    use super::*;
    use crate::error::CollectiveError;
    use crate::failure::FailureKind;
    use crate::operation::OperationKind;

    fn header(sequence: u64) -> OperationHeader {
        OperationHeader::new(OperationKind::AllReduce, 0, sequence)
    }

    fn running(header: OperationHeader) -> RunningOperation {
        RunningOperation::new(&header, Duration::from_secs(1))
    }

    #[test]
    fn the_departure_that_ended_an_operation_is_known() {
        let status = GroupStatus::default();
        status.goodbye(1, 2, String::new());
        assert_eq!(status.check(&header(1)), Ok(()));
        assert_eq!(status.reported_departure(), None);
        assert!(status.check(&header(2)).is_err());
        assert_eq!(status.reported_departure(), status.failures().pop());
        assert_eq!(status.first_failure(), None);
    }

    #[test]
    fn completed_counts_collective_operations_that_did_not_fail() {
        let status = GroupStatus::default();
        let run = |kind, sequence| {
            status.begin(running(OperationHeader::new(kind, 0, sequence)));
            status.end();
        };
        run(OperationKind::AllReduce, 0);
        run(OperationKind::Send, 1);
        assert_eq!(status.completed(), 1);
        status.begin(running(header(1)));
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
        let note = |rank, running, completed| {
            let at = Instant::now();
            let report = Report {
                at,
                running,
                completed,
            };
            status.note_peers([rank].into_iter(), report);
        };
        note(3, None, 0);
        let begin = Instant::now();
        let blame = |ranks: &[usize]| status.to_blame(&header(4), begin, ranks.to_vec());
        assert_eq!(blame(&[1, 3]), [1, 3]);
        note(1, Some(header(4)), 4);
        assert_eq!(blame(&[1, 3]), [3]);
        // Rank 3 has said nothing since the operation began.
        assert_eq!(blame(&[1]), [1]);
        note(3, Some(header(3)), 3);
        note(0, None, 5);
        assert_eq!(blame(&[1]), [3]);
        assert_eq!(blame(&[0, 1]), [3]);
        let send = OperationHeader::new(OperationKind::Send, 0, 4);
        assert_eq!(status.to_blame(&send, begin, vec![1]), [1]);
        // Rank 3 is in a call after operation 3, and has not begun operation 4.
        note(3, Some(send), 4);
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
        status.begin(running(header(0)));
        status.end();
        status.begin(running(header(1)));
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
