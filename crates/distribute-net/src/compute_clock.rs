//! A clock that leaves out the time in which this process could not compute.
//!
//! Whoever waits for a sign of life of another process must not count what neither of the two got
//! to compute: a process that was stopped, a control group without quota left, a machine with many
//! times more work than processors. Silence under load is not death. A [`ComputeClock`] ticks, and
//! what it leaves out ([`lost`](ComputeClock::lost)) is
//!
//! - by how much a tick comes late: the process was stopped (SIGSTOP), throttled or not scheduled;
//! - of the time between two ticks, the part that a machine with more runnable threads than twice
//!   its processors did not give: with four times as many, half of it (eight times as many, where
//!   what is waited for hardly computes: [`ComputeClock::for_light_work`]);
//! - the part in which the control group of the process was throttled.
//!
//! On a machine that is not overloaded nothing is left out, and at most nine tenths of the time
//! ([`SLOWDOWN_MAX`]) of a clock that ticks: a wait ends after ten times as long at the latest,
//! whatever the load. (Time in which the process itself stood still is left out as a whole.)

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::machine_load::{Load, MachineLoad};

/// However much there is to do, a second of the clock takes at most so many seconds.
pub const SLOWDOWN_MAX: f64 = 10.0;

/// So many runnable threads per processor are no load: each of them still gets half of one.
const THREADS_PER_PROCESSOR: f64 = 2.0;
/// The same for threads that mostly sleep: the system prefers these to those that compute, so they
/// run soon in spite of them.
const LIGHT_THREADS_PER_PROCESSOR: f64 = 8.0;

/// A moment, as [`ComputeClock::now`] saw it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ComputeInstant {
    at: Instant,
    lost: Duration,
}

/// What the ticks have shown so far.
#[derive(Debug)]
struct Ticks {
    last: Instant,
    lost: Duration,
}

impl Ticks {
    /// By how much the next tick is late at this time.
    fn lateness(&self, now: Instant, period: Duration) -> Duration {
        let gap = now.saturating_duration_since(self.last);
        match gap > period * 3 / 2 {
            true => gap - period,
            // Timers and looks of others are that exact.
            false => Duration::ZERO,
        }
    }

    fn lost(&self, now: Instant, period: Duration) -> Duration {
        self.lost + self.lateness(now, period)
    }

    fn tick(&mut self, now: Instant, period: Duration, slowdown: f64) {
        let gap = now.saturating_duration_since(self.last);
        let late = self.lateness(now, period);
        let on_time = gap.saturating_sub(late);
        self.lost += late + on_time.mul_f64(1.0 - 1.0 / slowdown.clamp(1.0, SLOWDOWN_MAX));
        self.last = now.max(self.last);
    }
}

/// How many times longer computing takes under this load.
fn slowdown(load: &Load, threads_per_processor: f64) -> f64 {
    let processors = load.processors.max(1) as f64;
    let shared = load.runnable as f64 / (threads_per_processor * processors);
    let throttled = 1.0 / (1.0 - load.throttled.clamp(0.0, 0.99));
    shared.max(1.0) * throttled
}

/// A clock that leaves out the time in which this process could not compute. See the module.
///
/// Somebody must let it tick: [`keep_ticking`](Self::keep_ticking) in a runtime, or a thread that
/// calls [`tick`](Self::tick) about once in each period. It is the better the more it is scheduled
/// as the work is whose time it measures.
#[derive(Debug)]
pub struct ComputeClock {
    period: Duration,
    threads_per_processor: f64,
    machine: Mutex<MachineLoad>,
    ticks: Mutex<Ticks>,
}

/// Nothing here panics half-way through a change.
fn unpoisoned<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ComputeClock {
    /// A clock that is to tick once in each `period`: some tens or hundreds of milliseconds, well
    /// below the waits that it measures.
    pub fn new(period: Duration) -> ComputeClock {
        ComputeClock::with_threads(period, THREADS_PER_PROCESSOR)
    }

    /// As [`new`](Self::new), for waits for what hardly computes, such as heartbeats: a machine is
    /// loaded from eight runnable threads per processor on.
    pub fn for_light_work(period: Duration) -> ComputeClock {
        ComputeClock::with_threads(period, LIGHT_THREADS_PER_PROCESSOR)
    }

    fn with_threads(period: Duration, threads_per_processor: f64) -> ComputeClock {
        ComputeClock {
            period,
            threads_per_processor,
            machine: Mutex::new(MachineLoad::of_this_process()),
            ticks: Mutex::new(Ticks {
                last: Instant::now(),
                lost: Duration::ZERO,
            }),
        }
    }

    /// How often it is to tick.
    pub fn period(&self) -> Duration {
        self.period
    }

    /// Notes that a period is over. Reads a few small files of the system; does not block.
    pub fn tick(&self) {
        let load = unpoisoned(&self.machine).sample();
        let slowdown = slowdown(&load, self.threads_per_processor);
        unpoisoned(&self.ticks).tick(Instant::now(), self.period, slowdown);
    }

    /// All time that was left out since the clock was made. Also while no tick comes: what is
    /// missing of it counts at once.
    pub fn lost(&self) -> Duration {
        unpoisoned(&self.ticks).lost(Instant::now(), self.period)
    }

    /// This moment, to measure from.
    pub fn now(&self) -> ComputeInstant {
        let (ticks, at) = (unpoisoned(&self.ticks), Instant::now());
        let lost = ticks.lost(at, self.period);
        ComputeInstant { at, lost }
    }

    /// How much time has passed since then, without what was lost.
    pub fn elapsed(&self, since: ComputeInstant) -> Duration {
        let now = self.now();
        let lost = now.lost.saturating_sub(since.lost);
        now.at
            .saturating_duration_since(since.at)
            .saturating_sub(lost)
    }

    /// Ticks for ever, in a runtime with timers.
    #[cfg(feature = "tokio")]
    pub async fn keep_ticking(&self) {
        let mut ticks = tokio::time::interval(self.period);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            self.tick();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PERIOD: Duration = Duration::from_millis(100);

    fn ticks() -> Ticks {
        Ticks {
            last: Instant::now(),
            lost: Duration::ZERO,
        }
    }

    fn load(runnable: usize, processors: usize, throttled: f64) -> Load {
        Load {
            runnable,
            processors,
            throttled,
        }
    }

    /// What of ten periods is left out when each takes so many milliseconds.
    fn lost_of_ten(milliseconds: u64, slowdown: f64) -> Duration {
        let mut ticks = ticks();
        for _ in 0..10 {
            let now = ticks.last + Duration::from_millis(milliseconds);
            ticks.tick(now, PERIOD, slowdown);
        }
        ticks.lost
    }

    #[test]
    fn ticks_that_come_in_time_lose_nothing() {
        assert_eq!(lost_of_ten(100, 1.0), Duration::ZERO);
        assert_eq!(lost_of_ten(140, 1.0), Duration::ZERO);
        assert_eq!(lost_of_ten(10, 0.3), Duration::ZERO);
    }

    #[test]
    fn what_a_tick_is_late_is_lost_and_counts_before_it_comes() {
        assert_eq!(lost_of_ten(300, 1.0), Duration::from_secs(2));
        let mut ticks = ticks();
        let late = ticks.last + Duration::from_secs(60);
        let expected = Duration::from_secs(60) - PERIOD;
        assert_eq!(ticks.lost(late, PERIOD), expected);
        ticks.tick(late, PERIOD, 1.0);
        assert_eq!(ticks.lost(late, PERIOD), expected);
        // A clock that is read by several threads does not go back.
        ticks.tick(late - PERIOD, PERIOD, 1.0);
        assert_eq!((ticks.last, ticks.lost), (late, expected));
    }

    #[test]
    fn the_share_that_others_had_is_lost_within_limits() {
        assert_eq!(lost_of_ten(100, 4.0), Duration::from_millis(750));
        assert_eq!(lost_of_ten(100, 1e9), Duration::from_millis(900));
        // Late and shared: 200 ms of each 300, and half of the rest.
        assert_eq!(lost_of_ten(300, 2.0), Duration::from_millis(2500));
    }

    #[test]
    fn only_more_work_than_the_machine_can_do_is_load() {
        let slowdown = |load: &Load| super::slowdown(load, THREADS_PER_PROCESSOR);
        assert_eq!(slowdown(&load(0, 0, 0.0)), 1.0);
        assert_eq!(slowdown(&load(4, 2, 0.0)), 1.0, "two threads for each");
        assert_eq!(slowdown(&load(128, 2, 0.0)), 32.0);
        assert_eq!(slowdown(&load(1, 2, 0.75)), 4.0, "a quarter of the speed");
        assert_eq!(slowdown(&load(8, 2, 0.5)), 4.0);
        assert!(slowdown(&load(1, 1, 7.0)).is_finite());
        let light =
            |runnable| super::slowdown(&load(runnable, 2, 0.0), LIGHT_THREADS_PER_PROCESSOR);
        assert_eq!([light(16), light(64), light(128)], [1.0, 4.0, 8.0]);
    }

    #[test]
    fn elapsed_is_the_time_without_what_was_lost() {
        let clock = ComputeClock::new(PERIOD);
        let since = clock.now();
        // As if the last tick were a minute ago.
        let minute = Duration::from_secs(60);
        unpoisoned(&clock.ticks).last = Instant::now().checked_sub(minute).unwrap();
        assert!(clock.lost() >= minute - PERIOD);
        clock.tick();
        assert!(clock.lost() >= minute - PERIOD);
        assert!(clock.elapsed(since) < minute - PERIOD);
    }
}
