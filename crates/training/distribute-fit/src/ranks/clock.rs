//! What the time of a worker's batches goes to.

use std::time::{Duration, Instant};

/// What the time between two laps was for, apart from the exchanges between workers in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lap {
    /// Waiting for the next batch.
    Data,
    /// A step on all replicas of this process.
    Step,
    /// Callbacks.
    Other,
}

/// The batches between two exchanges of times.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Window {
    pub(super) first_step: u64,
    pub(super) batches: usize,
    pub(super) compute: Duration,
    pub(super) data: Duration,
    pub(super) exchange: Duration,
    pub(super) other: Duration,
}

/// Measures a window.
#[derive(Debug)]
pub(super) struct Clock {
    window: Window,
    last: Instant,
    /// The time in exchanges at the last lap.
    exchanged: Duration,
}

impl Clock {
    pub(super) fn new() -> Self {
        Self {
            window: Window::default(),
            last: Instant::now(),
            exchanged: Duration::ZERO,
        }
    }

    /// A window begins after this many updates.
    pub(super) fn begin(&mut self, step: u64) {
        self.window = Window {
            first_step: step,
            ..Window::default()
        };
    }

    /// Ends a lap; `exchanged` is the worker's whole time in exchanges until now.
    pub(super) fn lap(&mut self, lap: Lap, exchanged: Duration) {
        let now = Instant::now();
        let time = now.duration_since(self.last);
        let exchange = exchanged.saturating_sub(self.exchanged).min(time);
        let rest = match lap {
            Lap::Data => &mut self.window.data,
            Lap::Step => &mut self.window.compute,
            Lap::Other => &mut self.window.other,
        };
        *rest += time - exchange;
        self.window.exchange += exchange;
        (self.last, self.exchanged) = (now, exchanged);
    }

    /// Leaves out the time since the last lap.
    pub(super) fn pause(&mut self, exchanged: Duration) {
        (self.last, self.exchanged) = (Instant::now(), exchanged);
    }

    /// Counts a batch. Returns the window if it has this many now.
    pub(super) fn batch_done(&mut self, batches: usize) -> Option<Window> {
        self.window.batches += 1;
        (self.window.batches >= batches).then_some(self.window)
    }
}
