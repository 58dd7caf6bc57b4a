//! Waiting for other hosts.

use std::time::{Duration, Instant};

use crate::error::Result;
use crate::report::console::Screen;

/// When a wait is first reported, and how often after that.
const FIRST_REPORT: Duration = Duration::from_secs(2);
const NEXT_REPORT: Duration = Duration::from_secs(20);

/// How waiting for the other hosts ended.
pub enum WaitOutcome<T> {
    Done(T),
    /// A launcher got this signal.
    Stopped(i32),
    /// A host of an elastic job was lost meanwhile.
    HostLost,
}

/// When to report a wait again.
pub struct WaitReport {
    next: Instant,
    begun: Instant,
    until: Option<Instant>,
}

impl WaitReport {
    pub fn new(timeout: Duration) -> WaitReport {
        let mut report = WaitReport::endless();
        report.until = Some(report.begun + timeout);
        report
    }

    /// A wait that is first reported after `first`.
    pub fn late(first: Duration, timeout: Duration) -> WaitReport {
        let mut report = WaitReport::new(timeout);
        report.next = report.begun + first;
        report
    }

    /// A wait without a deadline.
    pub fn endless() -> WaitReport {
        let begun = Instant::now();
        WaitReport {
            next: begun + FIRST_REPORT,
            begun,
            until: None,
        }
    }

    /// Reports the wait if it is time. `what` describes it.
    pub fn log_if_due(&mut self, screen: &Screen, what: impl FnOnce() -> String) -> Result<()> {
        let now = Instant::now();
        if now < self.next {
            return Ok(());
        }
        self.next = now + NEXT_REPORT;
        let waited = self.begun.elapsed().as_secs();
        let left = self
            .until
            .map(|until| {
                let left = until.saturating_duration_since(now).as_secs();
                format!(", at most {left} s more")
            })
            .unwrap_or_default();
        screen.log(&format!("{} (for {waited} s{left})", what()))
    }

    pub fn is_over(&self) -> bool {
        self.until.is_some_and(|until| Instant::now() >= until)
    }

    /// The time until the next report or the end of the wait.
    pub fn left(&self) -> Duration {
        let wake = self.until.map_or(self.next, |until| until.min(self.next));
        wake.saturating_duration_since(Instant::now())
    }
}
