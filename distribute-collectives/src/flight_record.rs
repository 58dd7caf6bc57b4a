//! What a rank did last, kept for the moment when the group hangs.
//!
//! A [`FlightRecorder`] keeps the *flight record* of a rank, its last 256 operations, in fixed
//! memory. [`Recorded`] does so for any communicator and writes the record to a directory when an
//! operation fails. `distribute-cli blame` reads the records of all ranks from there and names the
//! rank that others waited for, or that made another call.

mod record;
mod recorded;

use std::fmt::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

pub use record::{FORMAT, Head, Line, Outcome, VERSION};
pub use recorded::Recorded;

use crate::error::CollectiveError;
use crate::header::OperationHeader;
use crate::sync::unpoisoned;

/// Operations that a recorder keeps.
pub const RECORDED_OPERATIONS: usize = 256;

/// Bytes of an error's text that are kept.
const ERROR_BYTES: usize = 254;

/// Why a record was not written, or none could be read.
#[non_exhaustive]
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
pub enum FlightRecordError {
    /// A file or directory cannot be used.
    #[error("{path}: {reason}")]
    Io {
        /// The file or directory.
        path: String,
        /// What the system said, and what to do.
        reason: String,
    },
    /// A directory has no record that can be read.
    #[error(
        "{path} has no flight record that can be read{}; ranks write them when their group has \
         failed",
        in_brackets(notes)
    )]
    NoRecords {
        /// The directory.
        path: String,
        /// Why files were skipped.
        notes: Vec<String>,
    },
}

fn in_brackets(notes: &[String]) -> String {
    if notes.is_empty() {
        String::new()
    } else {
        format!(" ({})", notes.join("; "))
    }
}

/// The message: what `unwrap` and an error that `main` returns print.
impl fmt::Debug for FlightRecordError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FlightRecordError {
    /// Whether the same call would fail again: there is no record, or no such directory. What the
    /// system said is text here, so a disk that fails counts as well.
    pub fn is_permanent(&self) -> bool {
        match self {
            Self::Io { .. } | Self::NoRecords { .. } => true,
        }
    }

    fn io(path: &Path, error: &std::io::Error) -> Self {
        FlightRecordError::Io {
            path: path.display().to_string(),
            reason: error.to_string(),
        }
    }
}

/// The start of an error's text, without memory of its own elsewhere.
#[derive(Clone, Copy)]
struct ErrorText {
    len: usize,
    bytes: [u8; ERROR_BYTES],
}

impl ErrorText {
    fn of(error: &CollectiveError) -> Self {
        let mut text = ErrorText {
            len: 0,
            bytes: [0; ERROR_BYTES],
        };
        // An error means that the text is cut off.
        let _ = write!(text, "{error}");
        text
    }

    fn as_str(&self) -> &str {
        std::str::from_utf8(&self.bytes[..self.len]).unwrap_or_default()
    }
}

impl fmt::Write for ErrorText {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = ERROR_BYTES - self.len;
        let fits = text.floor_char_boundary(room);
        self.bytes[self.len..self.len + fits].copy_from_slice(&text.as_bytes()[..fits]);
        self.len += fits;
        if fits < text.len() {
            Err(fmt::Error)
        } else {
            Ok(())
        }
    }
}

/// One operation. Times are measured from the start of the recorder.
#[derive(Clone, Copy)]
struct Entry {
    header: OperationHeader,
    begin: Duration,
    end: Option<Duration>,
    outcome: Outcome,
    error: Option<ErrorText>,
}

struct Inner {
    /// The first line but for what is known when it is written: `written_us` and `lines`.
    head: Head,
    started: Instant,
    /// A ring: operation `i` is at index `i % RECORDED_OPERATIONS`.
    entries: Box<[Option<Entry>]>,
}

/// Which operation [`FlightRecorder::end`] ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ticket(u64);

/// The last operations of one rank, in fixed memory (about 100 KiB).
///
/// Clones share the record, so that a watchdog thread can write it while the rank's own thread is
/// stuck.
#[derive(Clone)]
pub struct FlightRecorder(Arc<Mutex<Inner>>);

impl FlightRecorder {
    /// An empty record of a rank.
    pub fn new(group: &str, generation: u64, rank: usize, world_size: usize) -> Self {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH);
        let head = Head {
            format: record::FORMAT.to_string(),
            version: record::VERSION,
            group: group.to_string(),
            generation,
            rank,
            world_size,
            started_unix_us: micros(since_epoch.unwrap_or_default()),
            written_us: 0,
            operations: 0,
            lines: 0,
        };
        FlightRecorder(Arc::new(Mutex::new(Inner {
            head,
            started: Instant::now(),
            entries: vec![None; RECORDED_OPERATIONS].into_boxed_slice(),
        })))
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // The lock is never held across code that can panic half-way through a change.
        unpoisoned(self.0.lock())
    }

    /// Notes that an operation begins. Does not allocate.
    pub fn begin(&self, header: &OperationHeader) -> Ticket {
        let mut inner = self.lock();
        let ticket = inner.head.operations;
        inner.head.operations += 1;
        let begin = inner.started.elapsed();
        inner.entries[ticket as usize % RECORDED_OPERATIONS] = Some(Entry {
            header: *header,
            begin,
            end: None,
            outcome: Outcome::Running,
            error: None,
        });
        Ticket(ticket)
    }

    /// Notes how an operation ended. Does not allocate; long error texts are cut off.
    pub fn end<T>(&self, ticket: Ticket, result: &Result<T, CollectiveError>) {
        let mut inner = self.lock();
        let overwritten = inner.head.operations - ticket.0 > RECORDED_OPERATIONS as u64;
        let now = inner.started.elapsed();
        let entry = &mut inner.entries[ticket.0 as usize % RECORDED_OPERATIONS];
        if let Some(entry) = entry
            && !overwritten
        {
            entry.end = Some(now);
            entry.outcome = match result {
                Ok(_) => Outcome::Done,
                Err(CollectiveError::Timeout { .. }) => Outcome::Timeout,
                Err(_) => Outcome::Error,
            };
            entry.error = result.as_ref().err().map(ErrorText::of);
        }
    }

    /// Writes the record as JSON lines to `flight-<group>-g<generation>-rank<rank>.jsonl` in a
    /// directory, which is made when it does not exist. The file appears complete or not at all;
    /// an earlier one is replaced.
    ///
    /// # Errors
    /// [`FlightRecordError::Io`].
    pub fn write(&self, dir: impl AsRef<Path>) -> Result<PathBuf, FlightRecordError> {
        let (head, lines) = self.snapshot();
        record::write(dir.as_ref(), &head, &lines)
    }

    fn snapshot(&self) -> (Head, Vec<Line>) {
        let inner = self.lock();
        let mut head = inner.head.clone();
        let kept = head.operations.min(RECORDED_OPERATIONS as u64);
        head.written_us = micros(inner.started.elapsed());
        head.lines = kept as usize;
        let entry = |ticket: u64| inner.entries[ticket as usize % RECORDED_OPERATIONS].as_ref();
        let tickets = head.operations - kept..head.operations;
        (head, tickets.filter_map(entry).map(line).collect())
    }
}

impl fmt::Debug for FlightRecorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let inner = self.lock();
        f.debug_struct("FlightRecorder")
            .field("rank", &inner.head.rank)
            .field("begun", &inner.head.operations)
            .finish_non_exhaustive()
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

fn line(entry: &Entry) -> Line {
    let header = &entry.header;
    Line {
        sequence: header.sequence,
        kind: header.kind.to_string(),
        dtype: header.dtype.map(|dtype| dtype.to_string()),
        op: header.op.map(|op| op.to_string()),
        root: header.root,
        count: header.count,
        buffers: header.buffers,
        layout: format!("{:016x}", header.layout),
        begin_us: micros(entry.begin),
        end_us: entry.end.map(micros),
        outcome: entry.outcome,
        error: entry.error.map(|error| error.as_str().to_string()),
    }
}
