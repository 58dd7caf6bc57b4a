//! The pause before a job starts again after a failure. It doubles while the same process fails in
//! the same way, so that a passing obstacle (an address that is still in use, a file system that
//! hangs, a process that still holds its checkpoints) can go away before the restarts are used up.

use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use crate::error::Result;
use crate::events::Event;
use crate::job::task::Task;
use crate::membership::Plan;
use crate::posts::PostBody;
use crate::report::outcome::Ending;
use crate::run::session::Session;

/// The longest pause, unless the first one is longer.
pub const PAUSE_MAX: Duration = Duration::from_secs(60);
/// A failure after this long is unrelated to the one before.
const FORGET_AFTER: Duration = Duration::from_secs(60);

/// Counts equal failures in a row.
#[derive(Default)]
pub struct Pauses {
    in_a_row: u32,
    /// Which process failed last, and how.
    last: Option<(Task, Ending)>,
}

impl Pauses {
    /// Notes how long an attempt took, and the process that made it fail, if it
    /// failed.
    pub fn ended(&mut self, time: Duration, failure: Option<(Task, Ending)>) {
        if failure != self.last || time >= FORGET_AFTER {
            self.in_a_row = 0;
        }
        self.in_a_row += u32::from(failure.is_some());
        self.last = failure;
    }

    /// How long to wait before the next start, when the first pause is `first`.
    pub fn next(&self, first: Duration) -> Duration {
        match self.in_a_row {
            0 => Duration::ZERO,
            failures => after(failures, first),
        }
    }
}

/// The pause after this many failures in a row, at least one.
pub fn after(failures: u32, first: Duration) -> Duration {
    let factor = 2_u32.saturating_pow(failures.saturating_sub(1));
    first.saturating_mul(factor).min(PAUSE_MAX.max(first))
}

/// Waits before the start of this plan, and handles events meanwhile. Returns the signal that
/// ends the job on this host, if one comes.
pub fn wait(session: &mut Session<'_>, plan: &Plan, pause: Duration) -> Result<Option<i32>> {
    let until = Instant::now() + pause;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(None);
        }
        match session.received.recv_timeout(left) {
            Ok(Event::Signal(signal)) if session.begin_leaving(signal) => return Ok(Some(signal)),
            // The post goes to the launchers of all hosts, this one included, before any of them
            // starts.
            Ok(Event::Signal(signal)) if session.group.is_some() => {
                session.post(PostBody::Stop(signal));
                return Ok(None);
            }
            Ok(Event::Signal(signal)) => return Ok(Some(signal)),
            Ok(Event::Post(post)) => {
                if let Some(group) = &mut session.group {
                    group.record(*post)?;
                    if group.posts.stop_signal().is_some() || group.posts.has_lost_for(plan) {
                        return Ok(None);
                    }
                }
            }
            Ok(Event::Broken(error)) => return Err(error),
            Ok(Event::Ended { .. }) | Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return Ok(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_a_minute_while_the_same_process_fails_in_the_same_way() {
        let first = Duration::from_secs(1);
        let failed = |index| Some((Task::worker(index), Ending::Exit(1)));
        let mut pauses = Pauses::default();
        assert_eq!(pauses.next(first), Duration::ZERO);
        let short = Duration::from_secs(2);
        let told = (0..9).map(|_| {
            pauses.ended(short, failed(0));
            pauses.next(first).as_secs()
        });
        assert_eq!(told.collect::<Vec<_>>(), [1, 2, 4, 8, 16, 32, 60, 60, 60]);
        assert_eq!(pauses.next(Duration::ZERO), Duration::ZERO);
        assert_eq!(
            pauses.next(Duration::from_secs(90)),
            Duration::from_secs(90)
        );
        pauses.ended(FORGET_AFTER, failed(0));
        assert_eq!(pauses.next(first), first);
        for other in [failed(1), Some((Task::worker(1), Ending::Signal(9)))] {
            pauses.ended(short, failed(0));
            pauses.ended(short, other);
            assert_eq!(pauses.next(first), first);
        }
        pauses.ended(short, None);
        assert_eq!(pauses.next(first), Duration::ZERO);
        for _ in 0..100 {
            pauses.ended(short, failed(0));
        }
        assert_eq!(pauses.next(first), PAUSE_MAX);
    }
}
