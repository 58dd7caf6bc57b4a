//! The output of one process: it goes into a log file and to the screen, and its last lines are
//! kept.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::SyncSender;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::{Errno, ioctl_fionbio, read};

use crate::error::LaunchError;
use crate::job::task::Task;
use crate::process::log_writer::{LogFile, LogWriter};
use crate::report::console::{Screen, Stream};
use crate::report::line_deduplicator::Line;

/// How many of its last lines the report of a failed process shows.
const LAST_LINES: usize = 20;
/// How many bytes of such a line are shown.
const LAST_LINE_BYTES: usize = 1000;
/// A longer line is handled in pieces of this size.
const PIECE_BYTES: usize = 64 * 1024;
/// How much is still read after the job is over, from processes that could not be ended.
const LEFT_BYTES_MAX: usize = 1 << 20;

/// Where the output goes besides the log file.
pub enum View<'a> {
    /// To the screen, unchanged: the first process.
    Through(&'a Screen),
    /// To the screen, line by line with a prefix.
    Lines(SyncSender<Line>),
    Hidden,
}

/// Why output cannot be passed on or logged.
pub enum OutputFailure {
    /// The launcher's own output is at fault.
    Console(LaunchError),
    /// The log file takes no more bytes.
    Log(io::Error),
    /// The bytes that are missing in the log file at its end.
    Missing(u64),
}

/// Reads both streams of one process.
pub struct Output<'a, B> {
    task: Task,
    log: Option<LogWriter>,
    /// Bytes for the log that are not handed over yet.
    unwritten: Vec<u8>,
    view: View<'a>,
    /// Called when output cannot be passed on or logged, once for each, and for what is missing.
    broken: B,
    is_log_broken: bool,
    inputs: [Input; 2],
    last_lines: VecDeque<String>,
    /// The stream whose last bytes in the log did not end with a line break.
    unfinished: Option<Stream>,
}

/// One of the streams.
struct Input {
    stream: Stream,
    /// `None` once it has ended.
    pipe: Option<OwnedFd>,
    /// The beginning of a line that has not ended.
    line: Vec<u8>,
    /// Whether `line` continues a line of which a piece was cut off.
    is_continued: bool,
}

impl<'a, B: Fn(OutputFailure)> Output<'a, B> {
    /// Takes the pipes, which it makes non-blocking.
    pub fn new(
        task: Task,
        pipes: [(Stream, OwnedFd); 2],
        log: LogFile,
        view: View<'a>,
        broken: B,
    ) -> io::Result<Self> {
        for (_, pipe) in &pipes {
            ioctl_fionbio(pipe, true)?;
        }
        let inputs = pipes.map(|(stream, pipe)| Input {
            stream,
            pipe: Some(pipe),
            line: Vec::new(),
            is_continued: false,
        });
        Ok(Output {
            task,
            log: Some(LogWriter::new(log)?),
            unwritten: Vec::new(),
            view,
            broken,
            is_log_broken: false,
            inputs,
            last_lines: VecDeque::new(),
            unfinished: None,
        })
    }

    /// Reads until both streams have ended or `stop` has: a process that outlived the job may hold
    /// them open. Returns the last lines on standard error.
    pub fn run(mut self, stop: BorrowedFd<'_>) -> Vec<String> {
        let mut buffer = vec![0; PIECE_BYTES];
        let mut left = usize::MAX;
        while left > 0 && self.inputs.iter().any(|input| input.pipe.is_some()) {
            if left == usize::MAX && self.wait(stop) {
                left = LEFT_BYTES_MAX;
            }
            let read = self.read_all(&mut buffer, stop);
            if left != usize::MAX {
                left = if read == 0 {
                    0
                } else {
                    left.saturating_sub(read)
                };
            }
        }
        for index in 0..self.inputs.len() {
            let line = std::mem::take(&mut self.inputs[index].line);
            self.piece(index, &line, false);
        }
        self.flush();
        if let Some(log) = self.log.take() {
            let (missing, finished) = log.finish();
            self.check_log(finished);
            if missing > 0 {
                (self.broken)(OutputFailure::Missing(missing));
            }
        }
        self.last_lines.into()
    }

    /// Waits until something can be read. Returns whether `stop` has ended.
    fn wait(&self, stop: BorrowedFd<'_>) -> bool {
        let pipes = self.inputs.iter().filter_map(|input| input.pipe.as_ref());
        let fds = std::iter::once(stop).chain(pipes.map(AsFd::as_fd));
        let mut polled: Vec<_> = fds
            .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
            .collect();
        match poll(&mut polled, None) {
            Ok(_) => !polled[0].revents().is_empty(),
            Err(error) => error != Errno::INTR,
        }
    }

    /// Reads each stream once. Returns how many bytes there were.
    fn read_all(&mut self, buffer: &mut [u8], stop: BorrowedFd<'_>) -> usize {
        let mut total = 0;
        for index in 0..self.inputs.len() {
            let Some(pipe) = &self.inputs[index].pipe else {
                continue;
            };
            match read(pipe, &mut *buffer) {
                Ok(0) => self.inputs[index].pipe = None,
                Ok(bytes) => {
                    total += bytes;
                    self.take(index, &buffer[..bytes], stop);
                }
                Err(Errno::AGAIN | Errno::INTR) => {}
                Err(_) => self.inputs[index].pipe = None,
            }
        }
        total
    }

    fn take(&mut self, index: usize, mut bytes: &[u8], stop: BorrowedFd<'_>) {
        let stream = self.inputs[index].stream;
        if let View::Through(screen) = &self.view {
            match screen.pass(stream, bytes, stop) {
                Ok(true) => {}
                Ok(false) => self.view = View::Hidden,
                Err(error) => {
                    self.view = View::Hidden;
                    (self.broken)(OutputFailure::Console(error));
                }
            }
        }
        while !bytes.is_empty() {
            let room = PIECE_BYTES - self.inputs[index].line.len();
            let near = &bytes[..bytes.len().min(room)];
            let end = near.iter().position(|byte| *byte == b'\n');
            let (part, ends_line) = match end {
                Some(end) => (&near[..end], true),
                None => (near, false),
            };
            self.inputs[index].line.extend_from_slice(part);
            bytes = &bytes[part.len() + usize::from(ends_line)..];
            if ends_line || self.inputs[index].line.len() == PIECE_BYTES {
                let mut line = std::mem::take(&mut self.inputs[index].line);
                self.piece(index, &line, ends_line);
                line.clear();
                self.inputs[index].line = line;
            }
        }
        self.flush();
    }

    /// Handles a line, or a piece of one that is too long or was never ended.
    fn piece(&mut self, index: usize, text: &[u8], ends_line: bool) {
        let Input {
            stream,
            is_continued,
            ..
        } = self.inputs[index];
        if text.is_empty() && !ends_line {
            return;
        }
        self.inputs[index].is_continued = !ends_line;
        self.write_log(stream, text, ends_line);
        if stream == Stream::Stderr && !is_continued {
            if self.last_lines.len() == LAST_LINES {
                self.last_lines.pop_front();
            }
            self.last_lines.push_back(readable(text));
        }
        let is_rest = is_continued && text.is_empty();
        if let View::Lines(lines) = &self.view
            && !is_rest
        {
            let text = text.to_vec();
            let task = self.task;
            if lines.send(Line { task, text }).is_err() {
                self.view = View::Hidden;
            }
        }
    }

    fn write_log(&mut self, stream: Stream, text: &[u8], ends_line: bool) {
        let is_after_other = self.unfinished.is_some_and(|other| other != stream);
        self.unfinished = (!ends_line).then_some(stream);
        let parts: [&[u8]; 3] = [
            if is_after_other { b"\n" } else { b"" },
            text,
            if ends_line { b"\n" } else { b"" },
        ];
        self.unwritten.extend(parts.concat());
    }

    fn flush(&mut self) {
        let bytes = std::mem::take(&mut self.unwritten);
        if let Some(log) = self.log.as_ref().filter(|_| !bytes.is_empty()) {
            let pushed = log.push(bytes);
            self.check_log(pushed);
        }
    }

    /// Reports the first failure only; reading goes on, so that no process blocks on its output.
    fn check_log(&mut self, result: io::Result<()>) {
        if let Err(source) = result
            && !std::mem::replace(&mut self.is_log_broken, true)
        {
            (self.broken)(OutputFailure::Log(source));
        }
    }
}

/// A line as a terminal would show it in the end, without cursor movements, cut to
/// [`LAST_LINE_BYTES`].
fn readable(line: &[u8]) -> String {
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let start = line.iter().rposition(|byte| *byte == b'\r');
    let line = &line[start.map_or(0, |at| at + 1)..];
    let cut = &line[..line.len().min(LAST_LINE_BYTES)];
    let is_shown = |character: &char| *character == '\t' || !character.is_control();
    let mut text: String = String::from_utf8_lossy(cut)
        .chars()
        .filter(is_shown)
        .collect();
    if cut.len() < line.len() {
        text.push_str("...");
    }
    text
}
