//! A clock that leaves out the time in which this process could not compute.
//!
//! A wait for a sign of life of another process must not count time in which the two processes
//! could not compute: because a process was stopped, a control group had no quota left, or a
//! machine had many times more work than processors. Silence under load is not death. A
//! [`ComputeClock`] ticks, and leaves out ([`lost`](ComputeClock::lost))
//!
//! - the delay of a late tick: the process was stopped (SIGSTOP), throttled or not scheduled;
//! - of the time between two ticks, the share that a machine with more than two runnable threads
//!   per processor could not give: with four threads per processor, half of the time (with eight,
//!   if the awaited process hardly computes: [`ComputeClock::for_light_work`]);
//! - the time in which the control group of the process was throttled.
//!
//! On a machine that is not overloaded nothing is left out. While the clock ticks at most nine
//! tenths of the time are left out ([`SLOWDOWN_MAX`]): a wait ends after ten times its length at
//! the latest, whatever the load. (Time in which the process itself was stopped is left out
//! completely.)

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::machine_load::{Load, MachineLoad};

/// Under any load a second of the clock takes at most this many seconds.
pub const SLOWDOWN_MAX: f64 = 10.0;

/// Up to this many runnable threads per processor do not count as load: each of them still gets
/// half a processor.
const THREADS_PER_PROCESSOR: f64 = 2.0;
/// The same for threads that mostly sleep: the scheduler prefers them to computing threads, so
/// they run soon anyway.
const LIGHT_THREADS_PER_PROCESSOR: f64 = 8.0;

/// A point in time, from [`ComputeClock::now`].
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
    /// How late the next tick is at this time.
    fn lateness(&self, now: Instant, period: Duration) -> Duration {
        let gap = now.saturating_duration_since(self.last);
        if gap > period * 3 / 2 {
            gap - period
        } else {
            // Timers are no more exact than that.
            Duration::ZERO
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

/// The factor by which computing slows down under this load.
fn slowdown(load: &Load, threads_per_processor: f64) -> f64 {
    let processors = load.processors.max(1) as f64;
    let shared = load.runnable as f64 / (threads_per_processor * processors);
    let throttled = 1.0 / (1.0 - load.throttled.clamp(0.0, 0.99));
    shared.max(1.0) * throttled
}

/// A clock that leaves out the time in which this process could not compute. See the module.
///
/// It must be kept ticking: by [`keep_ticking`](Self::keep_ticking) in a runtime, or by a thread
/// that calls [`tick`](Self::tick) about once per period. It is most exact if it is scheduled like
/// the work whose time it measures.
#[derive(Debug)]
pub struct ComputeClock {
    period: Duration,
    threads_per_processor: f64,
    machine: Mutex<MachineLoad>,
    ticks: Mutex<Ticks>,
}

/// No code here panics half-way through a change.
fn unpoisoned<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ComputeClock {
    /// A clock that ticks once per `period`: tens or hundreds of milliseconds, well below the
    /// waits that it measures.
    pub fn new(period: Duration) -> ComputeClock {
        ComputeClock::with_threads(period, THREADS_PER_PROCESSOR)
    }

    /// Like [`new`](Self::new), for waits for peers that hardly compute, such as heartbeats: a
    /// machine counts as loaded from eight runnable threads per processor on.
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

    /// The interval between ticks.
    pub fn period(&self) -> Duration {
        self.period
    }

    /// Notes the end of a period. Reads a few small files of the system; does not block.
    pub fn tick(&self) {
        let load = unpoisoned(&self.machine).sample();
        let slowdown = slowdown(&load, self.threads_per_processor);
        unpoisoned(&self.ticks).tick(Instant::now(), self.period, slowdown);
    }

    /// All time that was left out since the clock was made, including the delay of a tick
    /// that is late now.
    pub fn lost(&self) -> Duration {
        unpoisoned(&self.ticks).lost(Instant::now(), self.period)
    }

    /// The current time, to measure from.
    pub fn now(&self) -> ComputeInstant {
        let (ticks, at) = (unpoisoned(&self.ticks), Instant::now());
        let lost = ticks.lost(at, self.period);
        ComputeInstant { at, lost }
    }

    /// The time that has passed since then, without the time left out.
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

    /// How much of ten periods is left out when each takes this many milliseconds.
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
        // The clock does not go back when several threads read it.
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
        // Pretend that the last tick was a minute ago.
        let minute = Duration::from_secs(60);
        unpoisoned(&clock.ticks).last = Instant::now().checked_sub(minute).unwrap();
        assert!(clock.lost() >= minute - PERIOD);
        clock.tick();
        assert!(clock.lost() >= minute - PERIOD);
        assert!(clock.elapsed(since) < minute - PERIOD);
    }
}
