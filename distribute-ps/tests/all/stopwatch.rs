//! How long something takes between processes, without what this machine did not give to compute.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// As [`hostile::stopwatch::Stopwatch`], for what processes with clocks of their own do. It is made
/// before the work begins, so that it sees how slow the machine is, and restarted at what is
/// measured.
pub struct Stopwatch(hostile::stopwatch::Stopwatch);

impl Stopwatch {
    pub fn start() -> Self {
        Self(hostile::stopwatch::Stopwatch::start())
    }

    pub fn restart(&mut self) {
        self.0.restart();
    }

    pub fn elapsed(&self) -> Duration {
        self.0.elapsed_at_slowest()
    }
}

/// What this process has computed so far.
pub fn computed() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
