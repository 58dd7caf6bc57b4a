//! What every endpoint keeps about its operations: how many it has finished, and whether one has
//! failed. The one that runs is kept where it is asked for: in the status of a group between
//! processes, otherwise in the transport.

use std::time::{Duration, Instant};

use crate::error::{CollectiveError, Result};
use crate::failure::FirstFailure;
use crate::header::OperationHeader;
use crate::operation::OperationKind;

/// An operation between its begin and its end.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct RunningOperation {
    pub(crate) header: OperationHeader,
    pub(crate) begin: Instant,
    pub(crate) deadline: Option<Instant>,
}

impl RunningOperation {
    /// An operation that begins now.
    pub(crate) fn new(header: &OperationHeader, timeout: Duration) -> Self {
        let begin = Instant::now();
        RunningOperation {
            header: *header,
            begin,
            // None where the timeout is too long for the clock.
            deadline: begin.checked_add(timeout),
        }
    }

    /// How long it may still take; `None` without a deadline.
    pub(crate) fn left(&self) -> Option<Duration> {
        let left = |deadline: Instant| deadline.saturating_duration_since(Instant::now());
        self.deadline.map(left)
    }

    /// The running operation, where one must run; `rank` is this one, for the error.
    ///
    /// # Errors
    /// [`InvalidArgument`](CollectiveError::InvalidArgument) when none runs.
    pub(crate) fn required<T>(running: Option<T>, rank: usize) -> Result<T> {
        running.ok_or_else(|| CollectiveError::InvalidArgument {
            rank,
            op: OperationKind::Send,
            what: "segments travel only between begin and end of an operation".to_string(),
        })
    }

    /// The error at its deadline, when it waits for these ranks.
    pub(crate) fn timed_out(&self, missing: Vec<usize>) -> CollectiveError {
        CollectiveError::Timeout {
            missing,
            op: self.header.kind,
            sequence: self.header.sequence,
            elapsed: self.begin.elapsed(),
        }
    }
}

/// The operations of one endpoint.
///
/// It is told of the end of each. After the first fatal error it refuses every
/// further operation with [`Poisoned`](CollectiveError::Poisoned).
#[derive(Default)]
pub(crate) struct Bookkeeping {
    sequence: u64,
    /// The first fatal error that was returned to the caller.
    failure: FirstFailure,
}

impl Bookkeeping {
    /// Number of collective operations that this rank has finished, so that of the next one.
    pub(crate) fn sequence(&self) -> u64 {
        self.sequence
    }

    /// Refuses to start an operation after a failure.
    pub(crate) fn check(&self) -> Result<()> {
        self.failure.check()
    }

    /// Notes how an operation ended, well or not, and hands the result on. It need not have
    /// begun: a refusal ends it too.
    pub(crate) fn end<R>(&mut self, kind: OperationKind, result: Result<R>) -> Result<R> {
        match &result {
            Ok(_) if !kind.is_point_to_point() => self.sequence += 1,
            // A refusal because of an earlier failure is not a failure by itself.
            Err(error) if error.is_fatal() => {
                self.failure.record(error.clone());
            }
            _ => {}
        }
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn aborted(reason: &str) -> CollectiveError {
        CollectiveError::Aborted {
            rank: 1,
            reason: reason.to_string(),
        }
    }

    #[test]
    fn collective_operations_that_succeed_are_counted() {
        let mut operations = Bookkeeping::default();
        for kind in OperationKind::ALL {
            operations.end(kind, Ok(())).unwrap();
        }
        assert_eq!(operations.sequence(), 6);
    }

    #[test]
    fn the_first_fatal_error_poisons() {
        let mut operations = Bookkeeping::default();
        let kind = OperationKind::Barrier;
        let what = String::new();
        let usable = CollectiveError::InvalidOption { what };
        let result: Result<()> = Err(usable);
        assert_eq!(operations.end(kind, result.clone()), result);
        assert_eq!(operations.check(), Ok(()));
        let first = aborted("first");
        let result: Result<()> = Err(first.clone());
        assert_eq!(operations.end(OperationKind::Send, result.clone()), result);
        let poisoned = CollectiveError::Poisoned {
            cause: Box::new(first),
        };
        assert_eq!(operations.check(), Err(poisoned.clone()));
        // Neither a refusal nor another failure takes the place of the first one.
        for error in [poisoned.clone(), aborted("second")] {
            assert!(operations.end(kind, Err::<(), _>(error)).is_err());
            assert_eq!(operations.check(), Err(poisoned.clone()));
        }
        assert_eq!(operations.sequence(), 0);
    }

    #[test]
    fn outside_an_operation_nothing_runs() {
        let error = RunningOperation::required(None::<RunningOperation>, 3).unwrap_err();
        assert_eq!(
            error.to_string(),
            "send on rank 3: segments travel only between begin and end of an operation"
        );
    }
}
