//! The launcher's two outputs, and a line about the job on a terminal.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::error::LaunchError;
pub use crate::report::sink::Stream;
use crate::report::sink::{End, Queue, Room, Sink};

/// Moves to the start of a terminal's line and clears it.
const CLEAR: &str = "\r\x1b[2K";

/// Where the launcher writes: usually the standard output and error of its own process.
pub struct Console<'a> {
    stdout: &'a mut (dyn Write + Send),
    stderr: &'a mut (dyn Write + Send),
    columns: Option<usize>,
    is_stdout_elsewhere: bool,
    descriptors: Option<[BorrowedFd<'a>; 2]>,
}

impl<'a> Console<'a> {
    /// `stdout` gets the standard output of the first process (the chief, else worker 0), byte for
    /// byte, and nothing else. `stderr` gets its standard error, the lines of the others, and what
    /// the launcher itself says.
    pub fn new(stdout: &'a mut (dyn Write + Send), stderr: &'a mut (dyn Write + Send)) -> Self {
        Console {
            stdout,
            stderr,
            columns: None,
            is_stdout_elsewhere: false,
            descriptors: None,
        }
    }

    /// The descriptors that `stdout` and `stderr` write to (default: not known). If they are
    /// known, [`run`](crate::run) writes to copies of them and returns also when an output takes
    /// nothing: a pager or a terminal that was stopped with Ctrl-S, a file system that hangs.
    /// Without them it waits at its end until the writers return.
    ///
    /// In both cases the job itself never waits for its outputs. Text that standard error does not
    /// take within a second is left out, and a note says how much when it is read again. Standard
    /// output delays the first process, as in a pipeline; what it does not take within a second at
    /// the end of the job is left out. When there is no room on its disk, bytes are left out and a
    /// warning says so. Log files have everything.
    #[must_use]
    pub fn descriptors(mut self, stdout: BorrowedFd<'a>, stderr: BorrowedFd<'a>) -> Self {
        self.descriptors = Some([stdout, stderr]);
        self
    }

    /// `stderr` is a terminal with this many columns (default: no terminal). It gets a line about
    /// the progress of the whole job, below all other text, if the first process reports its
    /// [`Progress`](crate::Progress). The line is taken away when anything is written, also to
    /// `stdout`, and at the end.
    #[must_use]
    pub fn terminal(mut self, columns: usize) -> Self {
        self.columns = Some(columns);
        self
    }

    /// `stdout` does not go to the terminal of `stderr` (default: it does): the line about the job
    /// stays while `stdout` is written, and writes to `stderr` do not wait for the reader of
    /// `stdout`.
    #[must_use]
    pub fn stdout_elsewhere(mut self) -> Self {
        self.is_stdout_elsewhere = true;
        self
    }
}

/// A console that several threads write to. Writes go to queues ([`Queue`]), so no message of the
/// launcher waits for the reader of an output.
pub struct Screen {
    stdout: Arc<Queue>,
    stderr: Arc<Queue>,
    line: Mutex<LineState>,
    /// The width of the terminal that the line about the job is drawn on.
    columns: Option<usize>,
    is_stdout_elsewhere: bool,
    /// Whether it was said that standard output has no room.
    is_told: AtomicBool,
}

/// What the bytes in the queues leave on the terminal.
struct LineState {
    /// Whether the last byte ended a line, or went back to its start as progress bars do.
    is_at_start: bool,
    /// The same for standard output, which may be on the same terminal.
    is_stdout_at_start: bool,
    /// Whether the line about the job is shown.
    has_status: bool,
}

/// Bytes for an output.
#[derive(Clone, Copy)]
struct Text<'b> {
    stream: Stream,
    bytes: &'b [u8],
    /// Whether they are a line by themselves, without its line break.
    is_line: bool,
}

impl Screen {
    /// Calls `work` with a screen. Returns when all is written, or the outputs take nothing.
    pub fn run<T>(
        console: &mut Console<'_>,
        work: impl FnOnce(&Screen) -> Result<T, LaunchError>,
    ) -> Result<T, LaunchError> {
        let (columns, is_stdout_elsewhere) = (console.columns, console.is_stdout_elsewhere);
        let [stdout, stderr] = ends(console);
        thread::scope(|scope| {
            let start = |ends| {
                let started = Sink::start(scope, ends);
                started.map_err(LaunchError::system("cannot start a thread"))
            };
            // On a shared terminal the order of the two streams counts.
            let groups = if columns.is_some() && !is_stdout_elsewhere {
                vec![vec![stdout, stderr]]
            } else {
                vec![vec![stdout], vec![stderr]]
            };
            let sinks: Vec<Sink<'_>> = groups.into_iter().map(start).collect::<Result<_, _>>()?;
            let queue_of = |sink: Option<&Sink<'_>>| {
                let none = || LaunchError::system("no output")(io::Error::other("none"));
                sink.map(Sink::queue).ok_or_else(none)
            };
            let screen = Screen {
                stdout: queue_of(sinks.first())?,
                stderr: queue_of(sinks.last())?,
                line: Mutex::new(LineState {
                    is_at_start: true,
                    is_stdout_at_start: true,
                    has_status: false,
                }),
                columns,
                is_stdout_elsewhere,
                is_told: AtomicBool::new(false),
            };
            let result = work(&screen);
            sinks.into_iter().for_each(Sink::end);
            result
        })
    }

    /// The columns of the terminal, if there is one.
    pub fn columns(&self) -> Option<usize> {
        self.columns
    }

    /// Draws the line about the job, unless another line is incomplete or still waits.
    pub fn show_status(&self, text: &str) {
        let mut line = lock(&self.line);
        if !line.is_at_start || !line.is_stdout_at_start || !self.stderr.is_empty() {
            return;
        }
        let shown = format!("{CLEAR}{text}");
        let offered = self
            .stderr
            .offer(&[(Stream::Stderr, shown.as_bytes())], Room::Text);
        // A write error is noticed elsewhere.
        line.has_status |= matches!(offered, Ok(Some(_)));
    }

    /// Removes the line about the job.
    pub fn clear_status(&self) {
        let mut line = lock(&self.line);
        if std::mem::take(&mut line.has_status) {
            let clear = [(Stream::Stderr, CLEAR.as_bytes())];
            let _unread = self.stderr.offer(&clear, Room::Message);
        }
    }

    /// Writes bytes of the first process, unchanged, and waits until they are written. Standard
    /// output is waited for until `stop` has ended; after that, as standard error always, only
    /// while it takes bytes. Returns false if standard output has no reader.
    pub fn pass(
        &self,
        stream: Stream,
        bytes: &[u8],
        stop: BorrowedFd<'_>,
    ) -> Result<bool, LaunchError> {
        let is_line = false;
        let text = Text {
            stream,
            bytes,
            is_line,
        };
        let is_over = || stream == Stream::Stderr || has_ended(stop);
        let is_read = self.write(text, is_over).map_err(broken(stream))?;
        self.tell_no_room()?;
        // What standard error does not take is left out; it may take what follows.
        Ok(is_read || stream == Stream::Stderr)
    }

    /// Writes one line of a process, without a line break at its end, to standard error. Waits
    /// while that takes bytes.
    pub fn line(&self, text: &[u8]) -> Result<(), LaunchError> {
        let written = self.write(Text::line(text), || true);
        written.map(drop).map_err(broken(Stream::Stderr))
    }

    /// Writes a message of the launcher itself. Never waits.
    pub fn log(&self, text: &str) -> Result<(), LaunchError> {
        let line = format!("distribute: {text}");
        let offered = self.offer(Text::line(line.as_bytes()), Room::Message);
        if offered.map_err(broken(Stream::Stderr))?.is_none() {
            self.stderr.leave_out(line.len() + 1);
        }
        Ok(())
    }

    /// Waits until all is written, while the outputs take bytes.
    pub fn flush(&self) -> Result<(), LaunchError> {
        let flushed = self.stdout.flush().map_err(broken(Stream::Stdout));
        flushed?;
        self.tell_no_room()?;
        let flushed = self.stderr.flush().map_err(broken(Stream::Stderr));
        flushed.map(drop)
    }

    /// Says once that bytes of the first process are missing in standard output.
    fn tell_no_room(&self) -> Result<(), LaunchError> {
        match self.stdout.refused() {
            Some(why) if !self.is_told.swap(true, Ordering::Relaxed) => self.log(&format!(
                "warning: standard output takes no more bytes ({why}); the job goes on, and what \
                 its first process writes there is left out while that is so (make room; its log \
                 file has it)"
            )),
            _ => Ok(()),
        }
    }

    /// Queues text of a process, waiting for room, and waits until it is written. Gives up when the
    /// output takes nothing for a moment, once `is_over`. Returns whether it is written.
    fn write(&self, text: Text<'_>, is_over: impl Fn() -> bool) -> io::Result<bool> {
        let queue = self.queue(text.stream);
        loop {
            if let Some(number) = self.offer(text, Room::Text)? {
                return queue.await_entry(number, &is_over);
            }
            if !queue.await_room(text.bytes.len(), &is_over)? {
                if text.stream == Stream::Stderr {
                    queue.leave_out(text.bytes.len());
                }
                return Ok(false);
            }
        }
    }

    fn queue(&self, stream: Stream) -> &Queue {
        match stream {
            Stream::Stdout => &self.stdout,
            Stream::Stderr => &self.stderr,
        }
    }

    /// Queues text with what goes before and after it. Returns the number of its entry, or `None`
    /// if there is no room.
    fn offer(&self, text: Text<'_>, room: Room) -> io::Result<Option<u64>> {
        let mut line = lock(&self.line);
        let would_hide = text.stream == Stream::Stderr || !self.is_stdout_elsewhere;
        let clear = if line.has_status && would_hide {
            CLEAR.as_bytes()
        } else {
            b""
        };
        let begin: &[u8] = if text.is_line && !line.is_at_start {
            b"\n"
        } else {
            b""
        };
        let end: &[u8] = if text.is_line { b"\n" } else { b"" };
        let whole = [begin, text.bytes, end].concat();
        let texts = [(Stream::Stderr, clear), (text.stream, whole.as_slice())];
        let offered = self.queue(text.stream).offer(&texts, room)?;
        if offered.is_some() {
            line.has_status &= clear.is_empty();
            let is_at_start = match text.stream {
                Stream::Stdout => &mut line.is_stdout_at_start,
                Stream::Stderr => &mut line.is_at_start,
            };
            if !whole.is_empty() {
                *is_at_start = ends_line(&whole);
            }
        }
        Ok(offered)
    }
}

impl<'b> Text<'b> {
    fn line(bytes: &'b [u8]) -> Text<'b> {
        Text {
            stream: Stream::Stderr,
            bytes,
            is_line: true,
        }
    }
}

/// The ends of both outputs: copies of the descriptors if those are known.
fn ends<'c>(console: &'c mut Console<'_>) -> [(Stream, End<'c>); 2] {
    let copies = console.descriptors.map(|both| {
        both.map(|descriptor| {
            let copy = descriptor.try_clone_to_owned();
            copy.map(File::from).ok()
        })
    });
    match copies {
        Some([Some(stdout), Some(stderr)]) => [
            (Stream::Stdout, End::Owned(stdout)),
            (Stream::Stderr, End::Owned(stderr)),
        ],
        // Also when no descriptor is left.
        _ => [
            (Stream::Stdout, End::Borrowed(&mut *console.stdout)),
            (Stream::Stderr, End::Borrowed(&mut *console.stderr)),
        ],
    }
}

/// Whether the other end of a pipe is closed.
fn has_ended(pipe: BorrowedFd<'_>) -> bool {
    let mut polled = [PollFd::from_borrowed_fd(pipe, PollFlags::IN)];
    let now = Timespec::default();
    poll(&mut polled, Some(&now)).is_ok_and(|ready| ready > 0)
}

/// Whether text after these bytes starts at the beginning of a line, as after a progress bar's
/// carriage return.
fn ends_line(bytes: &[u8]) -> bool {
    matches!(bytes.last(), None | Some(b'\n' | b'\r'))
}

fn broken(stream: Stream) -> impl FnOnce(io::Error) -> LaunchError {
    let stream = match stream {
        Stream::Stdout => "standard output",
        Stream::Stderr => "standard error",
    };
    move |source| LaunchError::Console { stream, source }
}

/// If a writer panicked, the next one goes on after it.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::fd::{AsFd, OwnedFd};
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::time::Duration;

    use rustix::pipe::{PipeFlags, pipe_with};

    use super::*;

    /// A pipe whose reader comes late.
    struct Pipe {
        is_full: Sender<()>,
        is_read: Receiver<()>,
    }

    impl Write for Pipe {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let _reader_gone = self.is_full.send(());
            let is_read = self.is_read.recv_timeout(Duration::from_secs(10));
            is_read.map(|()| bytes.len()).map_err(io::Error::other)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn the_launcher_reports_while_standard_output_is_not_read() {
        let (is_full, filled) = channel();
        let (read, is_read) = channel();
        let (stop, _stopper) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        let (mut stdout, mut stderr) = (Pipe { is_full, is_read }, Vec::new());
        let mut console = Console::new(&mut stdout, &mut stderr).terminal(80);
        console = console.stdout_elsewhere();
        let ran = Screen::run(&mut console, |screen| {
            std::thread::scope(|threads| {
                let passed = threads.spawn(|| screen.pass(Stream::Stdout, b"data", stop.as_fd()));
                filled.recv().unwrap();
                screen.log("a process has failed").unwrap();
                assert!(screen.stderr.flush().unwrap());
                read.send(()).unwrap();
                assert!(passed.join().unwrap().unwrap());
            });
            Ok(())
        });
        ran.unwrap();
        assert_eq!(stderr, b"distribute: a process has failed\n");
    }

    fn pipe() -> (File, OwnedFd) {
        let (read, write) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        (File::from(read), write)
    }

    /// Writers that are never used, as the descriptors are known.
    fn with_descriptors<T>(
        [stdout, stderr]: [&OwnedFd; 2],
        work: impl FnOnce(&Screen) -> T,
    ) -> Result<T, LaunchError> {
        let (mut out, mut err) = (io::sink(), io::sink());
        let console = Console::new(&mut out, &mut err);
        let mut console = console.descriptors(stdout.as_fd(), stderr.as_fd());
        Screen::run(&mut console, |screen| Ok(work(screen)))
    }

    /// What was read until a text that ends like this.
    fn read_until(read: &mut File, end: &str) -> String {
        let mut all = String::new();
        while !all.ends_with(end) {
            let mut bytes = vec![0; 1 << 16];
            let count = read.read(&mut bytes).unwrap();
            assert!(count > 0, "{all}");
            all += &String::from_utf8_lossy(&bytes[..count]);
        }
        all
    }

    /// Both outputs go to pipes without a reader. Only the first line of a process waits.
    #[test]
    fn writes_do_not_wait_for_a_reader_that_does_not_read() {
        let (mut read, stderr) = pipe();
        let (_unread, stdout) = pipe();
        let (stop, stopper) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        with_descriptors([&stdout, &stderr], |screen| {
            // Far more than fits into a pipe and the queue.
            for _line in 0..1000 {
                screen.line(&[b'x'; 1000]).unwrap();
            }
            std::thread::scope(|threads| {
                let passed =
                    threads.spawn(|| screen.pass(Stream::Stdout, &[0; 1 << 20], stop.as_fd()));
                drop(stopper);
                assert!(!passed.join().unwrap().unwrap());
            });
            screen.log("a process has failed").unwrap();
            // A reader that comes back is told what is missing, and gets the messages.
            let said = read_until(&mut read, "has failed\n");
            let note = "bytes were left out here because the output was not read; the log files";
            let lines = said.lines().filter(|line| line.len() == 1000).count();
            assert!((64..900).contains(&lines), "{lines}");
            assert_eq!(said.matches(note).count(), 1);
            screen.log("the job goes on").unwrap();
            assert_eq!(
                read_until(&mut read, "on\n"),
                "distribute: the job goes on\n"
            );
        })
        .unwrap();
    }

    /// However much is said to a reader that does not read, the launcher's own messages take no
    /// time.
    #[test]
    fn messages_of_the_launcher_never_wait() {
        let (mut read, stderr) = pipe();
        with_descriptors([&stderr, &stderr], |screen| {
            let text = "y".repeat(1000);
            (0..2000).for_each(|_| screen.log(&text).unwrap());
            assert!(!screen.stderr.is_empty() && !screen.stderr.was_awaited_in_vain());
            let said = read_until(&mut read, "wrote\n");
            let mut left_out = said.lines().filter_map(|line| {
                let rest = line.strip_prefix("distribute: ")?;
                rest.split_once(" bytes were left out")?.0.parse().ok()
            });
            let seen = said.lines().filter(|line| line.contains(&text)).count();
            let line_bytes = "distribute: ".len() + text.len() + 1;
            let left_out: Vec<usize> = left_out.by_ref().collect();
            assert_eq!(left_out, [(2000 - seen) * line_bytes], "none is forgotten");
        })
        .unwrap();
    }

    #[test]
    fn a_full_disk_costs_what_has_no_room_and_is_tried_again() {
        let Ok(full) = File::options().write(true).open("/dev/full") else {
            println!("SKIPPED: no /dev/full to write to");
            return;
        };
        let (stop, _stopper) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        let (mut read, stderr) = pipe();
        let full = OwnedFd::from(full);
        with_descriptors([&full, &stderr], |screen| {
            for _ in 0..2 {
                let passed = screen.pass(Stream::Stdout, b"result", stop.as_fd());
                assert!(passed.unwrap(), "it is tried again");
            }
            screen.log("the end").unwrap();
            let said = read_until(&mut read, "the end\n");
            assert_eq!(said.matches("takes no more bytes").count(), 1, "{said}");
            assert!(said.contains("No space left on device"), "{said}");
        })
        .unwrap();
        let (_unread, stdout) = pipe();
        with_descriptors([&stdout, &full], |screen| {
            screen.log("a message").unwrap();
            screen.line(b"a line").unwrap();
            screen.flush().unwrap();
        })
        .unwrap();
    }

    #[test]
    fn an_output_without_a_reader_is_an_error() {
        let (read, stdout) = pipe();
        drop(read);
        let (stop, _stopper) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        with_descriptors([&stdout, &stdout], |screen| {
            let passed = screen.pass(Stream::Stdout, b"result", stop.as_fd());
            assert!(
                matches!(passed, Err(LaunchError::Console { .. })),
                "{passed:?}"
            );
            screen.log("a message").unwrap();
            let flushed = screen.flush();
            assert!(
                matches!(flushed, Err(LaunchError::Console { .. })),
                "{flushed:?}"
            );
        })
        .unwrap();
    }
}
