//! Shared by the tests inside the crate and, through `tests/common`, by those outside: hard limits,
//! ranks on threads, random numbers.

use std::panic::resume_unwind;
use std::time::Duration;

/// Runs `f` on a thread, and fails the test when it takes longer than four minutes.
pub fn within_limit<R: Send + 'static>(f: impl FnOnce() -> R + Send + 'static) -> R {
    hostile::limit::within(Duration::from_secs(240), f)
}

/// Runs `f` for every rank's item, each on its own thread; a panic of one goes on here.
pub fn on_threads<T: Send, R: Send>(
    ranks: impl IntoIterator<Item = T>,
    f: impl Fn(T) -> R + Sync,
) -> Vec<R> {
    std::thread::scope(|scope| {
        let f = &f;
        let start = |rank| scope.spawn(move || f(rank));
        let threads: Vec<_> = ranks.into_iter().map(start).collect();
        let joined = threads.into_iter().map(|thread| thread.join());
        joined
            .map(|result| result.unwrap_or_else(|panic| resume_unwind(panic)))
            .collect()
    })
}

/// A small deterministic generator (SplitMix64), so that a case is its seed.
pub struct Random(pub u64);

impl Random {
    /// Any 64 bits.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}
