//! The hard time limit of a test that could hang.

use std::panic::resume_unwind;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

/// Runs a test on a thread of its own, and gives its result. A test that hangs is left behind.
///
/// # Panics
/// If the test takes longer than the limit, or panics itself.
#[expect(clippy::panic, reason = "a test fails by a panic")]
pub fn within<T: Send + 'static>(limit: Duration, test: impl FnOnce() -> T + Send + 'static) -> T {
    let (sender, result) = channel();
    let thread = thread::spawn(move || drop(sender.send(test())));
    let result = match result.recv_timeout(limit) {
        Err(RecvTimeoutError::Timeout) => panic!("still running after {limit:?}"),
        ended => ended,
    };
    match (thread.join(), result) {
        (Ok(()), Ok(result)) => result,
        (Err(panicked), _) => resume_unwind(panicked),
        (Ok(()), Err(_)) => panic!("the test has ended without a result"),
    }
}
