//! Whether to poll for a moment before sleeping.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::sync::POLLS;

/// How long a rank polls when there are more ranks than cores. It gives its core to another rank
/// before each look: that costs less than sleeping and being woken, and what it waits for is what
/// the others do meanwhile. Other programs get the core in the same way.
const YIELD: Duration = Duration::from_micros(100);

/// Waits without polling after one that polled in vain: at first, and at most.
const SKIP_MIN: u32 = 4;
const SKIP_MAX: u32 = 256;

/// Asks a few times, so that looking at the clock costs little.
pub(crate) fn poll_some(ready: &impl Fn() -> bool) -> bool {
    (0..64).any(|_| {
        std::hint::spin_loop();
        ready()
    })
}

/// Polling saves sleeping and waking when the others run at the same time. When they do not
/// (another program has their core) it only takes their time: after a poll in vain, some waits do
/// not poll.
#[derive(Default)]
pub(crate) struct SpinPolicy {
    /// Waits from now on that do not poll, and after the next one in vain.
    skip: AtomicU32,
    next_skip: AtomicU32,
}

impl SpinPolicy {
    /// As [`poll`](Self::poll), for ranks that share their cores.
    pub(crate) fn poll_yielding(&self, mut ready: impl FnMut() -> bool) -> bool {
        self.poll(YIELD, || {
            std::thread::yield_now();
            ready()
        })
    }

    /// Asks `ready` for at most `limit`, if that is likely to help; whether it did.
    pub(crate) fn poll(&self, limit: Duration, mut ready: impl FnMut() -> bool) -> bool {
        let skip = self.skip.load(Ordering::Relaxed);
        if skip > 0 || !POLLS {
            self.skip.store(skip.saturating_sub(1), Ordering::Relaxed);
            return false;
        }
        let begin = Instant::now();
        while begin.elapsed() < limit {
            if ready() {
                self.next_skip.store(0, Ordering::Relaxed);
                return true;
            }
        }
        let skip = self.next_skip.load(Ordering::Relaxed).max(SKIP_MIN);
        self.skip.store(skip, Ordering::Relaxed);
        let next = (2 * skip).min(SKIP_MAX);
        self.next_skip.store(next, Ordering::Relaxed);
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_in_vain_become_rare() {
        let spin_policy = SpinPolicy::default();
        let mut polls = 0;
        for _ in 0..1000 {
            let mut asked = false;
            let limit = Duration::from_nanos(1);
            assert!(!spin_policy.poll(limit, || {
                asked = true;
                false
            }));
            polls += u32::from(asked);
        }
        assert!(polls < 12, "{polls}");
        // Success ends the restraint.
        while !spin_policy.poll(Duration::from_secs(1), || true) {}
        assert!(spin_policy.poll(Duration::from_secs(1), || true));
    }
}
