//! Waiting for the system to show what has happened: a thread that was joined stays in the list of
//! its process for a moment, and a new one has its name a moment after it has begun.

use std::fmt::Debug;
use std::thread;
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(20);

/// Reads until the value is the expected one. How soon this is seen is all that the pauses change.
///
/// # Panics
/// If it is another one for 20 s.
#[track_caller]
#[expect(clippy::panic, reason = "a test fails by a panic")]
pub fn settles<T: PartialEq + Debug>(expected: T, mut read: impl FnMut() -> T) {
    let begun = Instant::now();
    loop {
        let value = read();
        if value == expected {
            return;
        }
        if begun.elapsed() > LIMIT {
            panic!("{value:?} instead of {expected:?} for {LIMIT:?}");
        }
        thread::sleep(Duration::from_millis(1));
    }
}
