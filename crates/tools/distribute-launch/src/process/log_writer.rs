//! Writes a log file on a thread of its own. If the file system hangs, only that thread hangs; it
//! is left behind.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How many bytes may wait in the queue.
const BYTES_MAX: usize = 1 << 20;
/// How long to wait for a full queue, and for the rest of the queue at the end.
const PATIENCE: Duration = Duration::from_secs(2);

/// The file's side of a log.
pub struct LogWriter(Arc<Queue>);

struct Queue {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Vec<u8>>,
    bytes: usize,
    /// No more bytes follow.
    is_closed: bool,
    /// The thread is done: all bytes are written, or could not be.
    is_done: bool,
    /// The file is taken to hang: nothing waits for it until it takes bytes again.
    is_stuck: bool,
    /// The last error, until it is reported.
    error: Option<io::Error>,
}

impl LogWriter {
    /// # Errors
    /// If no thread can be started.
    pub fn new(file: File) -> io::Result<LogWriter> {
        let queue = Arc::new(Queue {
            state: Mutex::default(),
            changed: Condvar::new(),
        });
        let own = Arc::clone(&queue);
        let builder = std::thread::Builder::new().name("log".to_owned());
        builder.spawn(move || own.write(file))?;
        Ok(LogWriter(queue))
    }

    /// Queues bytes. If the queue is full, waits for a moment and then drops them. Returns the
    /// error that occurred since the last call.
    pub fn push(&self, bytes: Vec<u8>) -> io::Result<()> {
        let (mut state, until) = (self.0.state(), Instant::now() + PATIENCE);
        while state.bytes >= BYTES_MAX && !state.is_stuck {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                state.is_stuck = true;
                state.error = Some(io::ErrorKind::TimedOut.into());
                break;
            }
            state = self.0.wait(state, left);
        }
        if state.bytes < BYTES_MAX {
            state.bytes += bytes.len();
            state.waiting.push_back(bytes);
            self.0.changed.notify_all();
        }
        state.error.take().map_or(Ok(()), Err)
    }

    /// Waits for a moment until all bytes are written. Returns the last error.
    pub fn finish(self) -> io::Result<()> {
        let (mut state, until) = (self.0.state(), Instant::now() + PATIENCE);
        state.is_closed = true;
        self.0.changed.notify_all();
        while !state.is_done {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            state = self.0.wait(state, left);
        }
        state.error.take().map_or(Ok(()), Err)
    }
}

impl Drop for LogWriter {
    fn drop(&mut self) {
        self.0.state().is_closed = true;
        self.0.changed.notify_all();
    }
}

impl Queue {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>, time: Duration) -> MutexGuard<'a, State> {
        let waited = self.changed.wait_timeout(state, time);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }

    fn write(&self, mut file: File) {
        let mut state = self.state();
        loop {
            if let Some(bytes) = state.waiting.pop_front() {
                drop(state);
                let written = file.write_all(&bytes);
                state = self.state();
                state.bytes -= bytes.len();
                state.is_stuck = false;
                if let Err(error) = written {
                    state.error = Some(error);
                }
                self.changed.notify_all();
            } else if state.is_closed {
                state.is_done = true;
                return self.changed.notify_all();
            } else {
                let waited = self.changed.wait(state);
                state = waited.unwrap_or_else(PoisonError::into_inner);
            }
        }
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::io::Read;

    use rustix::pipe::{PipeFlags, pipe_with};

    use super::*;

    #[test]
    fn all_is_written_in_order() {
        let mut file = tempfile::tempfile().unwrap();
        let log = LogWriter::new(file.try_clone().unwrap()).unwrap();
        let lines: Vec<String> = (0..10_000)
            .map(|number| format!("line {number}\n"))
            .collect();
        for line in &lines {
            log.push(line.clone().into_bytes()).unwrap();
        }
        log.finish().unwrap();
        let mut text = String::new();
        io::Seek::rewind(&mut file).unwrap();
        file.read_to_string(&mut text).unwrap();
        assert_eq!(text, lines.concat());
    }

    #[test]
    fn what_cannot_be_written_is_an_error_and_goes_on() {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let log = LogWriter::new(full).unwrap();
        log.push(b"line".to_vec()).unwrap();
        let error = log.finish().unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
    }

    /// A pipe without a reader stands for a file system that hangs.
    #[test]
    fn a_file_that_hangs_blocks_no_caller() {
        let (_unread, pipe) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        let log = LogWriter::new(pipe.into()).unwrap();
        let errors = (0..100).filter_map(|_| log.push(vec![0; 1 << 16]).err());
        let kinds: Vec<io::ErrorKind> = errors.map(|error| error.kind()).collect();
        assert_eq!(kinds, [io::ErrorKind::TimedOut], "it is waited for once");
        assert_eq!(log.finish().unwrap_err().kind(), io::ErrorKind::TimedOut);
    }
}
