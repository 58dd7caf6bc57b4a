//! An output of the launcher. Its reader may stop reading (a pager, a stopped terminal, an ssh
//! session) and its file system may hang or be full, so bytes wait in a bounded queue for a thread
//! of their own, and what the queue has no room for is counted and left out.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::os::fd::AsFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle, Scope, ScopedJoinHandle};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};

use crate::file_tasks::may_be_mended;

/// How long to wait for an output that takes nothing.
const PATIENCE: Duration = Duration::from_secs(1);
/// How much is written at once: a pipe that takes anything takes this much.
const PIECE_BYTES: usize = 4096;

/// Standard output or standard error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stream {
    Stdout,
    Stderr,
}

/// Who waits in the queue: messages of the launcher have room when the text of processes has none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Room {
    Text,
    Message,
}

impl Room {
    fn bytes_max(self) -> usize {
        match self {
            Room::Text => 1 << 18,
            Room::Message => 1 << 19,
        }
    }
}

/// Where the bytes of a stream go.
pub enum End<'a> {
    /// A descriptor of the sink itself: its thread may be left behind.
    Owned(File),
    /// A writer of the caller: its thread must end before the caller goes on.
    Borrowed(&'a mut (dyn Write + Send)),
}

/// A queue of bytes, and the thread that writes them.
pub struct Sink<'scope> {
    queue: Arc<Queue>,
    thread: Thread<'scope>,
}

enum Thread<'scope> {
    Own(JoinHandle<()>),
    Scoped(ScopedJoinHandle<'scope, ()>),
}

/// The caller's side of a sink.
pub struct Queue {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    waiting: VecDeque<Entry>,
    /// How many bytes wait, with those that are being written.
    bytes: usize,
    /// How many entries were queued, and how many of them are done with.
    queued: u64,
    done: u64,
    /// When bytes were last taken.
    moved: Instant,
    /// A wait for the output was in vain: no other one begins until it takes bytes again.
    is_stuck: bool,
    /// Something was left out, and less is let in until half of the queue is empty.
    is_dropping: bool,
    /// How many bytes of standard error were left out since the last note about it.
    left_out: usize,
    /// Why the output has no room, until it takes bytes again.
    full: Option<String>,
    /// Why the last bytes of standard output that found no room found none.
    refused: Option<String>,
    /// The error that ended the output.
    error: Option<(ErrorKind, String)>,
    is_closed: bool,
}

enum Entry {
    Bytes(Stream, Vec<u8>),
    /// Says how many bytes are missing here.
    Note,
}

impl<'scope> Sink<'scope> {
    /// Starts the thread that writes to these ends.
    pub fn start<'a: 'scope>(
        scope: &'scope Scope<'scope, '_>,
        mut ends: Vec<(Stream, End<'a>)>,
    ) -> io::Result<Sink<'scope>> {
        let queue = Arc::new(Queue {
            state: Mutex::new(State::new()),
            changed: Condvar::new(),
        });
        let (own, builder) = (Arc::clone(&queue), Builder::new().name("output".to_owned()));
        let is_owned = ends.iter().all(|(_, end)| matches!(end, End::Owned(_)));
        let thread = if is_owned {
            let files = ends.into_iter().filter_map(|(stream, end)| match end {
                End::Owned(file) => Some((stream, End::Owned(file))),
                End::Borrowed(_) => None,
            });
            let mut ends: Vec<(Stream, End<'static>)> = files.collect();
            Thread::Own(builder.spawn(move || own.write_all(&mut ends))?)
        } else {
            Thread::Scoped(builder.spawn_scoped(scope, move || own.write_all(&mut ends))?)
        };
        Ok(Sink { queue, thread })
    }

    pub fn queue(&self) -> Arc<Queue> {
        Arc::clone(&self.queue)
    }

    /// Ends the thread when all is written. A thread whose output takes nothing is left behind,
    /// unless it has a writer of the caller.
    pub fn end(self) {
        self.queue.state().is_closed = true;
        self.queue.changed.notify_all();
        let is_written = self.queue.flush().is_ok_and(|is_written| is_written);
        // None of the threads panics; one that does has ended as well.
        let _panicked = match self.thread {
            Thread::Own(thread) if is_written || thread.is_finished() => thread.join(),
            Thread::Own(_) => Ok(()),
            Thread::Scoped(thread) => thread.join(),
        };
    }
}

impl State {
    fn new() -> State {
        State {
            waiting: VecDeque::new(),
            bytes: 0,
            queued: 0,
            done: 0,
            moved: Instant::now(),
            is_stuck: false,
            is_dropping: false,
            left_out: 0,
            full: None,
            refused: None,
            error: None,
            is_closed: false,
        }
    }

    fn check(&self) -> io::Result<()> {
        match &self.error {
            Some((kind, text)) => Err(io::Error::new(*kind, text.clone())),
            None => Ok(()),
        }
    }

    fn has_room(&mut self, more: usize, room: Room) -> bool {
        self.is_dropping &= self.bytes > room.bytes_max() / 2;
        // An entry that is longer than the queue is let in alone.
        let fits = self.bytes == 0 || self.bytes + more <= room.bytes_max();
        fits && !self.is_dropping
    }

    fn push(&mut self, entry: Entry) {
        if let Entry::Bytes(_, bytes) = &entry {
            self.bytes += bytes.len();
        }
        self.queued += 1;
        self.waiting.push_back(entry);
    }

    /// The next entry. A note goes before the bytes that follow what was left out, or comes when
    /// nothing else waits.
    fn next(&mut self) -> Option<Entry> {
        let next = self.waiting.pop_front();
        if next.is_none() && self.left_out > 0 && self.full.is_none() {
            self.queued += 1;
            return Some(Entry::Note);
        }
        next
    }

    fn took(&mut self, bytes: usize) {
        self.bytes -= bytes;
        self.moved = Instant::now();
        self.is_stuck = false;
        self.full = None;
    }

    /// Notes that `rest` bytes of an entry were not taken. An error that does not pass ends the
    /// output.
    fn failed(&mut self, stream: Stream, rest: usize, error: &io::Error) {
        self.bytes -= rest;
        if may_be_mended(error) {
            match stream {
                Stream::Stdout => self.refused = Some(error.to_string()),
                Stream::Stderr => self.left_out += rest,
            }
            self.full = Some(error.to_string());
        } else {
            self.error = Some((error.kind(), error.to_string()));
        }
    }

    fn note(&self) -> String {
        let why = match &self.full {
            Some(why) => format!("there was no room for them ({why})"),
            None => "the output was not read".to_owned(),
        };
        format!(
            "\ndistribute: {} bytes were left out here because {why}; the log files have what the \
             processes wrote\n",
            self.left_out
        )
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

    /// Queues bytes, all or none. Returns the number of the last entry, or `None` if there is no
    /// room. Never waits.
    pub fn offer(&self, texts: &[(Stream, &[u8])], room: Room) -> io::Result<Option<u64>> {
        let mut state = self.state();
        state.check()?;
        let more = texts.iter().map(|(_, bytes)| bytes.len()).sum();
        if !state.has_room(more, room) {
            return Ok(None);
        }
        if state.left_out > 0 && more > 0 {
            state.push(Entry::Note);
        }
        for (stream, bytes) in texts.iter().filter(|(_, bytes)| !bytes.is_empty()) {
            state.push(Entry::Bytes(*stream, bytes.to_vec()));
        }
        let last = state.queued;
        drop(state);
        self.changed.notify_all();
        Ok(Some(last))
    }

    /// Counts bytes of standard error that are left out.
    pub fn leave_out(&self, bytes: usize) {
        let mut state = self.state();
        state.left_out += bytes;
        state.is_dropping = true;
        drop(state);
        self.changed.notify_all();
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        let state = self.state();
        state.queued == state.done
    }

    #[cfg(test)]
    pub fn was_awaited_in_vain(&self) -> bool {
        self.state().is_stuck
    }

    /// Why the last bytes of standard output that found no room found none, if any.
    pub fn refused(&self) -> Option<String> {
        self.state().refused.clone()
    }

    /// Waits until the entry of this number is done with. Gives up, and returns false, when the
    /// output takes nothing for [`PATIENCE`] and `is_over` says that it is time to.
    pub fn await_entry(&self, number: u64, is_over: impl Fn() -> bool) -> io::Result<bool> {
        self.await_until(|state| state.done >= number, is_over)
    }

    /// Waits until there is room for text, in the same way.
    pub fn await_room(&self, more: usize, is_over: impl Fn() -> bool) -> io::Result<bool> {
        self.await_until(|state| state.has_room(more, Room::Text), is_over)
    }

    /// Waits until all is written. Returns false if the output takes nothing for [`PATIENCE`].
    pub fn flush(&self) -> io::Result<bool> {
        let is_written = |state: &mut State| {
            let has_note = state.left_out > 0 && state.full.is_none();
            state.queued == state.done && !has_note
        };
        self.await_until(is_written, || true)
    }

    fn await_until(
        &self,
        mut is_so: impl FnMut(&mut State) -> bool,
        is_over: impl Fn() -> bool,
    ) -> io::Result<bool> {
        /// How often to ask whether it is time to give up.
        const LOOK: Duration = Duration::from_millis(100);

        let (mut state, mut begun) = (self.state(), Instant::now());
        loop {
            state.check()?;
            if is_so(&mut state) {
                return Ok(true);
            }
            if !is_over() {
                begun = Instant::now();
                state = self.wait(state, LOOK);
                continue;
            }
            let left =
                (begun.max(state.moved) + PATIENCE).saturating_duration_since(Instant::now());
            if state.is_stuck || left.is_zero() {
                state.is_stuck = true;
                return Ok(false);
            }
            state = self.wait(state, left);
        }
    }

    /// Writes entries until the queue is closed and empty, or the output is broken.
    fn write_all(&self, ends: &mut [(Stream, End<'_>)]) {
        let mut state = self.state();
        loop {
            if let Some(entry) = state.next() {
                let (stream, text, noted) = match entry {
                    Entry::Bytes(stream, bytes) => (stream, bytes, None),
                    Entry::Note => {
                        let note = state.note().into_bytes();
                        state.bytes += note.len();
                        (Stream::Stderr, note, Some(state.left_out))
                    }
                };
                drop(state);
                let end = ends.iter_mut().find(|(other, _)| *other == stream);
                let written = end.map_or(Ok(()), |(_, end)| self.write(end, &text));
                state = self.state();
                match (written, noted) {
                    (Ok(()), Some(noted)) => state.left_out -= noted,
                    (Ok(()), None) => {}
                    (Err((rest, error)), noted) => {
                        state.failed(stream, rest, &error);
                        // The note is not part of what is missing.
                        if noted.is_some() && state.error.is_none() {
                            state.left_out -= rest;
                        }
                    }
                }
                state.done += 1;
                self.changed.notify_all();
                if state.error.is_some() {
                    return;
                }
            } else if state.is_closed {
                return;
            } else {
                let waited = self.changed.wait(state);
                state = waited.unwrap_or_else(PoisonError::into_inner);
            }
        }
    }

    /// Writes piece by piece, so that a slow reader is not taken for none. The error has the number
    /// of bytes that were not taken.
    fn write(&self, end: &mut End<'_>, text: &[u8]) -> Result<(), (usize, io::Error)> {
        let mut rest = text;
        while !rest.is_empty() {
            let piece = &rest[..rest.len().min(PIECE_BYTES)];
            let written = match end {
                End::Owned(file) => write_some(file, piece),
                End::Borrowed(writer) => writer
                    .write_all(piece)
                    .and_then(|()| writer.flush())
                    .map(|()| piece.len()),
            };
            let count = written.map_err(|error| (rest.len(), error))?;
            rest = &rest[count..];
            self.state().took(count);
            self.changed.notify_all();
        }
        Ok(())
    }
}

/// Writes at least one byte. The descriptor may be shared with a program that has made it
/// non-blocking.
fn write_some(file: &mut File, piece: &[u8]) -> io::Result<usize> {
    loop {
        match file.write(piece) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                // An error of the wait is one of the next write as well.
                let mut polled = [PollFd::from_borrowed_fd(file.as_fd(), PollFlags::OUT)];
                let _ready = poll(&mut polled, None);
            }
            written => return written,
        }
    }
}
