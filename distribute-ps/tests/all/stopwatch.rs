//! How long something takes, without what this machine did not give to compute: a verdict that does
//! not depend on what runs beside a test.

use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use distribute_net::compute_clock::{ComputeClock, ComputeInstant};
use rustix::time::{ClockId, clock_gettime};

const TICK: Duration = Duration::from_millis(100);

/// Begins when it is made.
pub struct Stopwatch {
    clock: Arc<ComputeClock>,
    begun: ComputeInstant,
    /// What was lost when it was made.
    before: Duration,
    /// Ends the thread of the ticks when it is dropped.
    ticking: Option<(Sender<()>, JoinHandle<()>)>,
}

impl Stopwatch {
    pub fn start() -> Self {
        let clock = Arc::new(ComputeClock::new(TICK));
        let (stop, stopped) = channel::<()>();
        let ticked = clock.clone();
        let thread = std::thread::spawn(move || {
            while stopped.recv_timeout(TICK) == Err(RecvTimeoutError::Timeout) {
                ticked.tick();
            }
        });
        Self {
            begun: clock.now(),
            before: clock.lost(),
            clock,
            ticking: Some((stop, thread)),
        }
    }

    /// Processes that wait for each other measure by clocks of their own, which do not see quite
    /// the same: half as much as this one has seen is left out on top.
    pub fn elapsed(&self) -> Duration {
        let lost = self.clock.lost().saturating_sub(self.before);
        self.clock.elapsed(self.begun).saturating_sub(lost / 2)
    }
}

impl Drop for Stopwatch {
    fn drop(&mut self) {
        if let Some((stop, thread)) = self.ticking.take() {
            drop(stop);
            let _ = thread.join();
        }
    }
}

/// What this process has computed so far.
pub fn computed() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
