//! Finds the failed process that made the others fail.

use rustix::process::Signal;

use serde::{Deserialize, Serialize};

use crate::report::outcome::Ending;

/// How an attempt ended, its processes named by their numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Verdict {
    /// All workers exited with 0.
    Succeeded,
    /// Some processes exited with 42 and none failed by itself.
    Preempted,
    /// This process failed first.
    Failed(usize),
    /// The launcher of a host is gone, and the job goes on without it.
    HostLost,
    /// The launcher was told to stop and its processes did not end with 0 or 42.
    Stopped,
}

/// Picks the root cause among processes that failed within a moment, in the order of observation.
///
/// A process that a signal ended goes before one that exited: its peers cannot send it a signal,
/// but they fail because it is gone, and the system may report both in any order. SIGABRT and
/// SIGPIPE can also be caused by a peer, so they count as exits. Among exits, one with the code for
/// a refused command line or a diverged training goes first: no peer can cause it, and a restart
/// does not help.
pub fn root_cause(failures: &[(usize, Ending)]) -> Option<usize> {
    let own = [Signal::ABORT, Signal::PIPE].map(Signal::as_raw);
    let is_foreign = |ending| matches!(ending, Ending::Signal(signal) if !own.contains(&signal));
    let foreign = failures.iter().find(|(_, ending)| is_foreign(*ending));
    let refused = failures.iter().find(|(_, ending)| ending.is_final());
    let cause = foreign.or(refused).or(failures.first());
    cause.map(|(index, _)| *index)
}

#[cfg(test)]
mod tests {
    use super::root_cause;
    use crate::report::outcome::Ending::{Exit, Signal};

    #[test]
    fn the_first_failure_is_the_root_cause() {
        assert_eq!(root_cause(&[]), None);
        assert_eq!(root_cause(&[(2, Exit(1)), (0, Exit(3))]), Some(2));
        assert_eq!(root_cause(&[(1, Signal(11)), (0, Signal(9))]), Some(1));
    }

    #[test]
    fn a_refused_configuration_goes_before_failures_that_follow_from_it() {
        assert_eq!(
            root_cause(&[(0, Exit(1)), (1, Exit(2)), (2, Exit(1))]),
            Some(1)
        );
        assert_eq!(root_cause(&[(0, Exit(1)), (1, Exit(43))]), Some(1));
    }

    #[test]
    fn a_signal_goes_before_exits_of_the_same_moment() {
        assert_eq!(root_cause(&[(2, Exit(1)), (0, Signal(9))]), Some(0));
    }

    #[test]
    fn aborts_are_no_better_than_exits() {
        assert_eq!(root_cause(&[(2, Exit(1)), (0, Signal(6))]), Some(2));
        assert_eq!(root_cause(&[(0, Signal(6)), (2, Signal(9))]), Some(2));
    }
}
