//! Waiting for actions of other processes that do not report them.

use std::time::{Duration, Instant};

/// How long one thing may take.
const PATIENCE: Duration = Duration::from_secs(20);

/// Looks until it is so, with growing pauses. How soon it is seen is all that depends on them.
#[track_caller]
pub fn eventually(mut is_so: impl FnMut() -> bool, otherwise: impl FnOnce() -> String) {
    let begun = Instant::now();
    let mut pause = Duration::from_millis(1);
    while !is_so() {
        if begun.elapsed() > PATIENCE {
            panic!("{}", otherwise());
        }
        std::thread::sleep(pause);
        pause = (2 * pause).min(Duration::from_millis(20));
    }
}
