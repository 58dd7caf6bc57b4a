//! The phase of an attempt, and its deadline.

use std::time::{Duration, Instant};

/// How long to wait after a failure before stopping the others: the system may report the root
/// cause a little later than its consequences.
pub const SETTLE: Duration = Duration::from_millis(100);

/// How long to wait for a process after SIGKILL. It takes longer only if the process is stuck
/// in the system, on a file system that hangs or in a driver; then it is given up.
pub const DEATH: Duration = Duration::from_secs(10);

/// What an attempt is waiting for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// The workers, or the chief with them, are at work.
    Running,
    /// A process has failed; others may have failed at the same moment.
    Settling,
    /// A process has exited with 42; the others are expected to follow.
    Preempting,
    /// The workers, or the chief, are done; the evaluator may finish.
    Finishing,
    /// All processes were sent SIGTERM.
    Stopping,
    /// All processes were sent SIGKILL.
    Killing,
}

/// The phase of an attempt, and when it is over.
pub struct AttemptPhase {
    phase: Phase,
    until: Option<Instant>,
    grace: Duration,
}

impl AttemptPhase {
    /// Processes have `grace` to end when they are asked to.
    pub fn new(grace: Duration) -> AttemptPhase {
        AttemptPhase {
            phase: Phase::Running,
            until: None,
            grace,
        }
    }

    pub fn enter(&mut self, phase: Phase) {
        let time = match phase {
            Phase::Running => None,
            Phase::Settling => Some(SETTLE),
            Phase::Killing => Some(DEATH),
            Phase::Preempting | Phase::Finishing | Phase::Stopping => Some(self.grace),
        };
        self.phase = phase;
        self.until = time.map(|time| Instant::now() + time);
    }

    /// How long processes have to end when they are asked to.
    pub fn grace(&self) -> Duration {
        self.grace
    }

    pub fn current(&self) -> Phase {
        self.phase
    }

    /// When the phase is over, if it has an end.
    pub fn deadline(&self) -> Option<Instant> {
        self.until
    }

    pub fn is_over(&self) -> bool {
        self.until.is_some_and(|until| until <= Instant::now())
    }

    /// Whether the workers, or the chief, are expected to end by themselves.
    pub fn is_under_way(&self) -> bool {
        matches!(self.phase, Phase::Running | Phase::Preempting)
    }

    /// Whether all processes have been told to end.
    pub fn is_ending(&self) -> bool {
        matches!(self.phase, Phase::Stopping | Phase::Killing)
    }

    /// How long background processes that are left may take to end.
    pub fn grace_left(&self) -> Duration {
        match (self.phase, self.until) {
            (Phase::Killing, _) => Duration::ZERO,
            (Phase::Stopping, Some(until)) => until.saturating_duration_since(Instant::now()),
            _ => self.grace,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_phase_but_the_work_itself_is_without_an_end() {
        let mut attempt = AttemptPhase::new(Duration::from_secs(1));
        let all = [
            Phase::Running,
            Phase::Settling,
            Phase::Preempting,
            Phase::Finishing,
            Phase::Stopping,
            Phase::Killing,
        ];
        for phase in all {
            attempt.enter(phase);
            assert_eq!(attempt.deadline().is_some(), phase != Phase::Running);
        }
    }
}
