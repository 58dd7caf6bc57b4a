//! Work on files, on threads of their own: a file system that hangs holds up nobody for longer than
//! a moment, and the thread is left behind then.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// How long a file is waited for.
const PATIENCE: Duration = Duration::from_secs(2);

/// Works on files of one directory.
#[derive(Clone, Default)]
pub struct Aside {
    /// How many works hang that nobody waits for any more. As long as there are some, no others
    /// are begun.
    hanging: Arc<AtomicUsize>,
}

/// How far a work is.
enum Course {
    Waited,
    Left,
    Done,
}

impl Aside {
    /// Does this, and waits a moment for it.
    ///
    /// # Errors
    /// [`TimedOut`](io::ErrorKind::TimedOut) if it takes longer, or something before it still does;
    /// or if there is no thread to be had.
    pub fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> io::Result<T> {
        if self.hanging.load(Ordering::Relaxed) > 0 {
            return Err(unanswered());
        }
        let (sender, result) = mpsc::sync_channel(1);
        let course = Arc::new(Mutex::new(Course::Waited));
        let (own, hanging) = (Arc::clone(&course), Arc::clone(&self.hanging));
        let builder = std::thread::Builder::new().name("files".to_owned());
        let thread = builder.spawn(move || {
            // Nobody may want it any more.
            let _left = sender.send(work());
            let mut course = own.lock().unwrap_or_else(PoisonError::into_inner);
            if matches!(*course, Course::Left) {
                hanging.fetch_sub(1, Ordering::Relaxed);
            }
            *course = Course::Done;
        })?;
        match result.recv_timeout(PATIENCE) {
            Ok(value) => {
                // It has nothing left to do.
                let _ended = thread.join();
                Ok(value)
            }
            Err(RecvTimeoutError::Disconnected) => Err(io::ErrorKind::BrokenPipe.into()),
            Err(RecvTimeoutError::Timeout) => {
                let mut course = course.lock().unwrap_or_else(PoisonError::into_inner);
                if matches!(*course, Course::Waited) {
                    *course = Course::Left;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_hangs_is_waited_for_once_and_then_works_again() {
        let aside = Aside::default();
        assert_eq!(aside.run(|| 7).unwrap(), 7);
        let (answer, hangs) = mpsc::channel::<()>();
        let (sender, ended) = mpsc::channel();
        let hang = move || drop((hangs.recv(), sender));
        let error = aside.run(hang).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        let error = aside.run(|| 7).unwrap_err();
        assert_eq!(
            error.to_string(),
            "the file system does not answer (2 s)",
            "at once"
        );
        drop(answer);
        let _never_sent: Result<(), _> = ended.recv();
        // It says so a little later than it has ended.
        while aside.run(|| 7).is_err() {
            std::thread::yield_now();
        }
    }
}
