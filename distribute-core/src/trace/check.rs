//! Checks whether a program still computes the same as its step.
//!
//! Values that a closure captures are not part of the key, so some calls capture the step again and
//! compare: in the second call, whenever a metric or variable was made, read or reset in between,
//! when another thread was the last that captured a step with metrics or variables (not with
//! several workers), and as often as it costs at most a hundredth of the time (with several
//! workers: in the calls 2, 3, 5, 9, 17, ...).

use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::sync::lock;
use crate::{Error, Result};

/// Captures may take one part in this many of the time.
const SHARE: u32 = 100;

/// When a program was compared with its step.
#[derive(Debug, Default)]
pub(crate) struct Check(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// Calls since the last comparison.
    calls: u64,
    /// All calls that used this program.
    all_calls: u64,
    /// When the last comparison ended; `None` before the first one.
    last: Option<Instant>,
    cost: Duration,
    outside_uses: u64,
    /// Every call is compared, because the step is known to change.
    always: bool,
}

/// Why a comparison is due.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct DueCheck {
    /// The calls that were not compared.
    pub(crate) unchecked: u64,
    /// Whether metrics or variables were made, read or reset since the last comparison.
    pub(crate) is_used_outside: bool,
}

impl Check {
    pub(crate) fn new(outside_uses: u64) -> Self {
        Self(Mutex::new(State {
            outside_uses,
            ..State::default()
        }))
    }

    /// Counts a call, and returns whether it is compared. With several workers all of them compare
    /// in the same call, so the number of calls decides, and not a clock.
    pub(crate) fn call(&self, outside_uses: u64, has_workers: bool) -> Option<DueCheck> {
        let mut state = lock(&self.0);
        state.all_calls += 1;
        let is_used_outside = state.outside_uses != outside_uses;
        let is_time = |last: Instant| {
            if has_workers {
                state.all_calls.is_power_of_two()
            } else {
                last.elapsed() >= state.cost * SHARE
            }
        };
        let due = state.always || is_used_outside || state.last.is_none_or(is_time);
        if due {
            return Some(DueCheck {
                unchecked: state.calls,
                is_used_outside,
            });
        }
        state.calls += 1;
        None
    }

    /// Notes a comparison that began at `started`.
    pub(crate) fn done(&self, started: Instant, outside_uses: u64) {
        let mut state = lock(&self.0);
        state.calls = 0;
        state.last = Some(Instant::now());
        state.cost = started.elapsed();
        state.outside_uses = outside_uses;
    }

    /// Refuses a change of the step that calls before this one may have missed. From now on every
    /// call is compared.
    pub(crate) fn changed(&self, what: &'static str, due: DueCheck) -> Result<()> {
        let calls = due.unchecked;
        if calls > 0 {
            return Err(Error::StepChanged { what, calls });
        }
        lock(&self.0).always = true;
        Ok(())
    }
}
