//! A worker's end of its group, and how long the worker is held up in it.

use std::ops::{Deref, DerefMut};
use std::sync::MutexGuard;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use distribute_collectives::Communicator;

use super::WorkerGroup;
use crate::sync::lock;

/// The time of a worker in exchanges, in nanoseconds.
#[derive(Debug, Default)]
pub(super) struct HeldUp(AtomicU64);

impl HeldUp {
    fn add(&self, time: Duration) {
        let nanoseconds = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.0.fetch_add(nanoseconds, Ordering::Relaxed);
    }
}

/// Counts the time of a call.
struct Stopwatch<'a> {
    held_up: &'a HeldUp,
    begun: Instant,
}

impl Drop for Stopwatch<'_> {
    fn drop(&mut self) {
        self.held_up.add(self.begun.elapsed());
    }
}

/// The communicator, locked for exclusive use.
pub(crate) struct Endpoint<'a> {
    communicator: MutexGuard<'a, Box<dyn Communicator>>,
    /// Dropped last.
    _stopwatch: Option<Stopwatch<'a>>,
}

impl Deref for Endpoint<'_> {
    type Target = Box<dyn Communicator>;

    fn deref(&self) -> &Self::Target {
        &self.communicator
    }
}

impl DerefMut for Endpoint<'_> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.communicator
    }
}

impl WorkerGroup {
    /// How long this worker's own work has been held up by exchanges with other workers, from the
    /// begin of the group until now: moving data and waiting for other workers. What a thread
    /// exchanges while the replicas go on does not count; waiting for that thread does.
    pub fn exchange_time(&self) -> Duration {
        Duration::from_nanos(self.shared.held_up.0.load(Ordering::Relaxed))
    }

    /// This process' endpoint of the group, locked for exclusive use. The time until it is dropped
    /// counts as [`exchange_time`](Self::exchange_time).
    pub(crate) fn communicator(&self) -> Endpoint<'_> {
        let stopwatch = self.stopwatch();
        Endpoint {
            communicator: lock(&self.shared.communicator),
            _stopwatch: Some(stopwatch),
        }
    }

    /// [`communicator`](Self::communicator) for a thread beside the replicas, whose time does not
    /// count.
    pub(crate) fn communicator_beside(&self) -> Endpoint<'_> {
        Endpoint {
            communicator: lock(&self.shared.communicator),
            _stopwatch: None,
        }
    }

    /// Runs something in which this worker waits for others.
    pub(crate) fn held_up<T>(&self, wait: impl FnOnce() -> T) -> T {
        let _stopwatch = self.stopwatch();
        wait()
    }

    fn stopwatch(&self) -> Stopwatch<'_> {
        Stopwatch {
            held_up: &self.shared.held_up,
            begun: Instant::now(),
        }
    }
}
