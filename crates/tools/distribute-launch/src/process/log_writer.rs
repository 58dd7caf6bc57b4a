//! Writes a log file on a thread of its own. If the file system hangs, only that thread hangs; it
//! is left behind. If the disk is full, what has no room is counted, every later write is tried
//! again, and the file says where how many bytes are missing.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How many bytes may wait in the queue.
const BYTES_MAX: usize = 1 << 20;
/// How long to wait for a full queue, and for the rest of the queue at the end.
const PATIENCE: Duration = Duration::from_secs(2);

/// A log file, which may not be there yet.
pub enum LogFile {
    Open(File),
    /// It could not be made; the first write that can makes it.
    Absent(PathBuf),
    /// Its file system hangs: nothing is written.
    None,
}

impl LogFile {
    /// Writes all bytes, or says how many have no room and why.
    fn write(&mut self, mut bytes: &[u8]) -> Result<(), (usize, io::Error)> {
        if let LogFile::Absent(path) = self {
            let made = File::options().append(true).create(true).open(path);
            *self = LogFile::Open(made.map_err(|error| (bytes.len(), error))?);
        }
        let LogFile::Open(file) = self else {
            return Err((bytes.len(), io::ErrorKind::TimedOut.into()));
        };
        while !bytes.is_empty() {
            match file.write(bytes) {
                Ok(0) => return Err((bytes.len(), io::ErrorKind::WriteZero.into())),
                Ok(count) => bytes = &bytes[count..],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err((bytes.len(), error)),
            }
        }
        Ok(())
    }
}

/// The process' side of a log.
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
    /// How many bytes are not in the file.
    missing: u64,
    /// How many of them the file does not mention yet, and why they are missing.
    unmentioned: (u64, String),
}

impl State {
    fn lose(&mut self, bytes: usize, error: io::Error) {
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        self.missing += bytes;
        self.unmentioned.0 += bytes;
        self.unmentioned.1 = error.to_string();
        self.error = Some(error);
    }

    /// The line about missing bytes that goes before the next ones.
    fn mention(&self) -> Vec<u8> {
        match &self.unmentioned {
            (0, _) => Vec::new(),
            (bytes, why) => {
                format!("\ndistribute: {bytes} bytes are missing here: {why}\n").into_bytes()
            }
        }
    }
}

impl LogWriter {
    /// # Errors
    /// If no thread can be started.
    pub fn new(file: LogFile) -> io::Result<LogWriter> {
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
                break;
            }
            state = self.0.wait(state, left);
        }
        if state.bytes < BYTES_MAX {
            state.bytes += bytes.len();
            state.waiting.push_back(bytes);
            self.0.changed.notify_all();
        } else {
            state.lose(bytes.len(), unanswered());
        }
        state.error.take().map_or(Ok(()), Err)
    }

    /// Waits for a moment until all bytes are written. Returns how many are missing, and the last
    /// error.
    pub fn finish(self) -> (u64, io::Result<()>) {
        let (mut state, until) = (self.0.state(), Instant::now() + PATIENCE);
        state.is_closed = true;
        self.0.changed.notify_all();
        while !state.is_done {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let rest = u64::try_from(state.bytes).unwrap_or(u64::MAX);
                return (state.missing + rest, Err(unanswered()));
            }
            state = self.0.wait(state, left);
        }
        (state.missing, state.error.take().map_or(Ok(()), Err))
    }
}

/// The same error of the system once more.
fn same(error: &io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(code) => io::Error::from_raw_os_error(code),
        None => error.kind().into(),
    }
}

fn unanswered() -> io::Error {
    io::Error::new(
        io::ErrorKind::TimedOut,
        "the file system does not take them in time",
    )
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

    fn write(&self, mut file: LogFile) {
        let mut state = self.state();
        loop {
            if let Some(bytes) = state.waiting.pop_front() {
                let (mention, mentioned) = (state.mention(), state.unmentioned.0);
                drop(state);
                let told = file.write(&mention);
                let written = match &told {
                    Ok(()) => file.write(&bytes),
                    Err((_, error)) => Err((bytes.len(), same(error))),
                };
                state = self.state();
                state.bytes -= bytes.len();
                state.is_stuck = false;
                if told.is_ok() {
                    state.unmentioned.0 -= mentioned;
                }
                if let Err((rest, error)) = written {
                    state.lose(rest, error);
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
        let log = LogWriter::new(LogFile::Open(file.try_clone().unwrap())).unwrap();
        let lines: Vec<String> = (0..10_000)
            .map(|number| format!("line {number}\n"))
            .collect();
        for line in &lines {
            log.push(line.clone().into_bytes()).unwrap();
        }
        assert!(matches!(log.finish(), (0, Ok(()))));
        let mut text = String::new();
        io::Seek::rewind(&mut file).unwrap();
        file.read_to_string(&mut text).unwrap();
        assert_eq!(text, lines.concat());
    }

    #[test]
    fn what_cannot_be_written_is_an_error_and_goes_on() {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let log = LogWriter::new(LogFile::Open(full)).unwrap();
        log.push(b"line".to_vec()).unwrap();
        let (missing, result) = log.finish();
        assert_eq!(missing, 4);
        assert_eq!(result.unwrap_err().kind(), io::ErrorKind::StorageFull);
    }

    /// A pipe without a reader stands for a file system that hangs.
    #[test]
    fn a_file_that_hangs_blocks_no_caller() {
        let (_unread, pipe) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        let log = LogWriter::new(LogFile::Open(pipe.into())).unwrap();
        let errors = (0..100).filter_map(|_| log.push(vec![0; 1 << 16]).err());
        let kinds: Vec<io::ErrorKind> = errors.map(|error| error.kind()).collect();
        assert!(kinds.iter().all(|kind| *kind == io::ErrorKind::TimedOut));
        // The pipe takes one piece, and the queue 16 more besides the one that is being written.
        let left_out = u64::try_from(kinds.len()).unwrap();
        assert!((80..100).contains(&left_out), "{left_out}");
        let (missing, result) = log.finish();
        assert!(
            missing >= left_out << 16 && missing <= 99 << 16,
            "{missing}"
        );
        assert_eq!(result.unwrap_err().kind(), io::ErrorKind::TimedOut);
    }

    /// The disk is full for a while, then it has room.
    #[test]
    fn a_file_that_has_room_again_says_what_is_missing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("later/worker-0.log");
        let log = LogWriter::new(LogFile::Absent(path.clone())).unwrap();
        let push = |text: &str| log.push(text.as_bytes().to_vec());
        push("lost\n").unwrap();
        // The error comes with a later call.
        while push("lost\n").is_ok() {
            std::thread::yield_now();
        }
        std::fs::create_dir(path.parent().unwrap()).unwrap();
        while !path.exists() {
            let _lost_or_not = push("kept\n");
            std::thread::yield_now();
        }
        // The file may have begun with what was pushed before the folder was there.
        while push("kept\n").is_err() {
            std::thread::yield_now();
        }
        let (missing, _) = log.finish();
        let text = std::fs::read_to_string(&path).unwrap();
        let said = format!("\ndistribute: {missing} bytes are missing here: ");
        assert!(text.starts_with(&said), "{text}");
        assert!(missing >= 10 && text.ends_with("kept\n"), "{text}");
    }
}
