//! Whether a program still is what its step computes.
//!
//! A closure's captured values are in no key. So now and then a call captures the step again and
//! compares: in the second call, whenever a metric or variable was made, read or reset in between,
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
    /// Calls since then.
    calls: u64,
    /// Calls that have found the program.
    all_calls: u64,
    /// None before the first comparison.
    last: Option<Instant>,
    cost: Duration,
    outside_uses: u64,
    /// The step is known to change.
    always: bool,
}

/// Why a comparison is due.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Due {
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

    /// Counts a call that has found its program. With several workers a comparison must be due on
    /// all of them in the same call, which a clock cannot say.
    pub(crate) fn call(&self, outside_uses: u64, has_workers: bool) -> Option<Due> {
        let mut state = lock(&self.0);
        state.all_calls += 1;
        let is_used_outside = state.outside_uses != outside_uses;
        let is_time = |last: Instant| match has_workers {
            true => state.all_calls.is_power_of_two(),
            false => last.elapsed() >= state.cost * SHARE,
        };
        let due = state.always || is_used_outside || state.last.is_none_or(is_time);
        if due {
            return Some(Due {
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
    pub(crate) fn changed(&self, what: &'static str, due: Due) -> Result<()> {
        let calls = due.unchecked;
        if calls > 0 {
            return Err(Error::StepChanged { what, calls });
        }
        lock(&self.0).always = true;
        Ok(())
    }
}
