//! File operations on threads of their own. If the file system hangs, the caller waits only a
//! moment; the thread is left behind.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// How long to wait for a file operation.
const PATIENCE: Duration = Duration::from_secs(2);

/// Runs operations on the files of one directory.
#[derive(Clone, Default)]
pub struct FileTasks {
    /// The number of abandoned operations that still hang. While there are any, new ones fail
    /// at once.
    hanging: Arc<AtomicUsize>,
}

/// The state of an operation.
enum TaskState {
    Awaited,
    /// The caller has stopped waiting.
    Abandoned,
    Done,
}

impl FileTasks {
    /// Runs `work` on a thread of its own, and waits a moment for it.
    ///
    /// # Errors
    /// [`TimedOut`](io::ErrorKind::TimedOut) if `work` takes longer, or an earlier operation still
    /// hangs; or the system's error if no thread can be started.
    pub fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> io::Result<T> {
        if self.hanging.load(Ordering::Relaxed) > 0 {
            return Err(unanswered());
        }
        let (sender, result) = mpsc::sync_channel(1);
        let state = Arc::new(Mutex::new(TaskState::Awaited));
        let (own, hanging) = (Arc::clone(&state), Arc::clone(&self.hanging));
        let builder = std::thread::Builder::new().name("files".to_owned());
        let thread = builder.spawn(move || {
            // The caller may have stopped waiting.
            let _left = sender.send(work());
            let mut state = own.lock().unwrap_or_else(PoisonError::into_inner);
            if matches!(*state, TaskState::Abandoned) {
                hanging.fetch_sub(1, Ordering::Relaxed);
            }
            *state = TaskState::Done;
        })?;
        match result.recv_timeout(PATIENCE) {
            Ok(value) => {
                // The thread has nothing left to do.
                let _ended = thread.join();
                Ok(value)
            }
            Err(RecvTimeoutError::Disconnected) => Err(io::ErrorKind::BrokenPipe.into()),
            Err(RecvTimeoutError::Timeout) => {
                let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
                if matches!(*state, TaskState::Awaited) {
                    *state = TaskState::Abandoned;
                    self.hanging.fetch_add(1, Ordering::Relaxed);
                }
                Err(unanswered())
            }
        }
    }
}

fn unanswered() -> io::Error {
    let seconds = PATIENCE.as_secs();
    let message = format!("the file system does not answer ({seconds} s)");
    io::Error::new(io::ErrorKind::TimedOut, message)
}

/// Whether the error may pass (no space, no answer), unlike a wrong path.
pub fn may_be_mended(error: &io::Error) -> bool {
    use io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull, TimedOut};

    let kind = error.kind();
    matches!(kind, StorageFull | QuotaExceeded | FileTooLarge | TimedOut)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_hangs_is_waited_for_once_and_then_works_again() {
        let tasks = FileTasks::default();
        assert_eq!(tasks.run(|| 7).unwrap(), 7);
        let (answer, hangs) = mpsc::channel::<()>();
        let (sender, ended) = mpsc::channel();
        let hang = move || drop((hangs.recv(), sender));
        let error = tasks.run(hang).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        let error = tasks.run(|| 7).unwrap_err();
        assert_eq!(
            error.to_string(),
            "the file system does not answer (2 s)",
            "at once"
        );
        drop(answer);
        let _never_sent: Result<(), _> = ended.recv();
        // The count is lowered a little after the operation has ended.
        while tasks.run(|| 7).is_err() {
            std::thread::yield_now();
        }
    }
}
