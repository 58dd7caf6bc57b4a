//! Work that may never return, as the system may hang: it runs on a thread of its own, which is
//! left behind then.

use std::io;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::Builder;
use std::time::Duration;

/// Runs `work` on a thread with this name and waits up to `limit` for it.
///
/// # Errors
/// [`TimedOut`](io::ErrorKind::TimedOut) if it takes longer: its result is dropped when it comes.
/// The system's error if no thread can be started.
pub fn run<T: Send + 'static>(
    name: &str,
    limit: Duration,
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<T> {
    let (sender, result) = mpsc::sync_channel(1);
    let thread = Builder::new().name(name.to_owned()).spawn(move || {
        // The caller may have stopped waiting.
        let _left = sender.send(work());
    })?;
    match result.recv_timeout(limit) {
        Ok(value) => {
            // The thread has nothing left to do.
            let _ended = thread.join();
            Ok(value)
        }
        Err(RecvTimeoutError::Timeout) => Err(io::ErrorKind::TimedOut.into()),
        Err(RecvTimeoutError::Disconnected) => Err(io::ErrorKind::BrokenPipe.into()),
    }
}
