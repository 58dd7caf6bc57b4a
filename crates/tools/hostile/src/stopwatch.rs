//! How long something takes, without what this machine did not give to compute: a verdict that does
//! not depend on what runs beside a test.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use distribute_net::compute_clock::{ComputeClock, ComputeInstant, SLOWDOWN_MAX};

/// How often it looks how busy the machine is.
const TICK: Duration = Duration::from_millis(50);
/// For how many looks together it says how slow the machine is.
const TICKS: usize = 5;

/// Begins when it is made. What has to happen soon happens so much later on a machine that is so
/// much busier.
pub struct Stopwatch {
    clock: Arc<ComputeClock>,
    begun: (Instant, ComputeInstant),
    /// How many times longer everything took when it took longest.
    slowest: Arc<Mutex<f64>>,
    /// Ends the thread of the ticks when it is dropped.
    ticking: Option<(Sender<()>, JoinHandle<()>)>,
}

impl Stopwatch {
    /// Begins now, with a thread that ticks until it is dropped.
    pub fn start() -> Self {
        let clock = Arc::new(ComputeClock::new(TICK));
        let slowest = Arc::new(Mutex::new(1.0));
        let (stop, stopped) = channel();
        let (ticked, noted) = (clock.clone(), slowest.clone());
        let thread = std::thread::spawn(move || tick(&ticked, &noted, &stopped));
        Self {
            begun: (Instant::now(), clock.now()),
            clock,
            slowest,
            ticking: Some((stop, thread)),
        }
    }

    /// Measures from now on, and remembers how slow the machine was.
    pub fn restart(&mut self) {
        self.begun = (Instant::now(), self.clock.now());
    }

    /// The time in which this process could compute.
    pub fn elapsed(&self) -> Duration {
        self.clock.elapsed(self.begun.1)
    }

    /// The time as if the machine had been as slow all along as it was at its slowest since the
    /// watch was made: processes that tell each other how slow they are wait so much longer for
    /// each other, also when they have nothing left to do.
    pub fn elapsed_at_slowest(&self) -> Duration {
        let slowest = *self.slowest.lock().unwrap_or_else(PoisonError::into_inner);
        self.begun.0.elapsed().div_f64(slowest)
    }
}

/// Notes how slow it is, until the other end is dropped.
fn tick(clock: &ComputeClock, slowest: &Mutex<f64>, stopped: &Receiver<()>) {
    loop {
        let (since, before) = (Instant::now(), clock.now());
        for _ in 0..TICKS {
            if stopped.recv_timeout(TICK) != Err(RecvTimeoutError::Timeout) {
                return;
            }
            clock.tick();
        }
        let computed = clock.elapsed(before).max(Duration::from_nanos(1));
        let slowdown = since.elapsed().div_duration_f64(computed);
        let mut slowest = slowest.lock().unwrap_or_else(PoisonError::into_inner);
        *slowest = slowest.max(slowdown.min(SLOWDOWN_MAX));
    }
}

impl Drop for Stopwatch {
    fn drop(&mut self) {
        if let Some((stop, thread)) = self.ticking.take() {
            drop(stop);
            // A panic of the thread is reported by the panic itself.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn no_more_time_passes_than_on_the_wall() {
        let (wall, watch) = (Instant::now(), Stopwatch::start());
        let mut ticks = 0;
        while watch.elapsed() < 2 * TICK {
            std::thread::yield_now();
            ticks += 1;
        }
        let (own, at_slowest) = (watch.elapsed(), watch.elapsed_at_slowest());
        let passed = wall.elapsed();
        assert!(own <= passed && at_slowest <= passed, "{ticks}");
        // However slow the machine is, a tenth of the time counts.
        let least = passed.div_f64(2.0 * SLOWDOWN_MAX);
        assert!(at_slowest >= least, "{at_slowest:?} of {passed:?}");
    }
}
