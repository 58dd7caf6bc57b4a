use std::io::{self, Write};
use std::os::fd::BorrowedFd;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::error::LaunchError;
use crate::report::sink::{Sink, pause};
use crate::room::has_room;

/// How long to wait for a reader that does not read.
const PATIENCE: Duration = Duration::from_secs(1);
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
    /// known, the launcher does not wait for a reader that does not read, such as a pager or a
    /// terminal that was stopped with Ctrl-S: text that standard error does not take within a
    /// second is left out, and a note says so when it is read again; so is text that standard
    /// output does not take at the end of the job. Log files have everything.
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

/// A console that several threads write to.
pub struct Screen<'a> {
    stdout: Mutex<Sink<'a>>,
    stdout_descriptor: Option<BorrowedFd<'a>>,
    stderr: Mutex<Stderr<'a>>,
    /// The width of the terminal that the line about the job is drawn on.
    columns: Option<usize>,
    is_stdout_elsewhere: bool,
}

struct Stderr<'a> {
    sink: Sink<'a>,
    /// How many bytes were left out since the last write that succeeded.
    left_out: usize,
    /// Whether the last byte ended a line, or went back to its start as progress bars do.
    is_at_line_start: bool,
    /// The same for standard output, which may be on the same terminal.
    is_stdout_at_line_start: bool,
    /// Whether the line about the job is shown.
    has_status: bool,
}

/// Standard output or standard error.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Stream {
    Stdout,
    Stderr,
}

impl<'a> Screen<'a> {
    pub fn new(console: &'a mut Console<'_>) -> Screen<'a> {
        let [stdout, stderr] = match console.descriptors {
            Some(both) => both.map(Some),
            None => [None, None],
        };
        Screen {
            stdout: Mutex::new(Sink::new(&mut *console.stdout, stdout)),
            stdout_descriptor: stdout,
            stderr: Mutex::new(Stderr {
                sink: Sink::new(&mut *console.stderr, stderr),
                left_out: 0,
                is_at_line_start: true,
                is_stdout_at_line_start: true,
                has_status: false,
            }),
            columns: console.columns,
            is_stdout_elsewhere: console.is_stdout_elsewhere,
        }
    }

    /// The columns of the terminal, if there is one.
    pub fn columns(&self) -> Option<usize> {
        self.columns
    }

    /// Draws the line about the job, unless another line is incomplete.
    pub fn show_status(&self, text: &str) {
        let mut stderr = lock(&self.stderr);
        if !stderr.is_at_line_start || !stderr.is_stdout_at_line_start {
            return;
        }
        stderr.has_status = true;
        // A write error is noticed elsewhere.
        let _unread = stderr.write(format!("{CLEAR}{text}").as_bytes());
    }

    /// Removes the line about the job.
    pub fn clear_status(&self) {
        let _unread = lock(&self.stderr).clear_status();
    }

    /// Writes bytes of the first process, at once and unchanged. Once `stop` has ended, it
    /// waits only briefly for a reader of standard output. Returns false if there is none.
    pub fn pass(
        &self,
        stream: Stream,
        bytes: &[u8],
        stop: BorrowedFd<'_>,
    ) -> Result<bool, LaunchError> {
        match stream {
            Stream::Stdout => self.pass_all_to_stdout(bytes, stop),
            Stream::Stderr => {
                let mut stderr = lock(&self.stderr);
                stderr.clear_status().map_err(broken("standard error"))?;
                if !bytes.is_empty() {
                    stderr.is_at_line_start = ends_line(bytes);
                }
                let written = stderr.write(bytes);
                written.map_err(broken("standard error")).map(|()| true)
            }
        }
    }

    fn pass_all_to_stdout(
        &self,
        mut bytes: &[u8],
        stop: BorrowedFd<'_>,
    ) -> Result<bool, LaunchError> {
        let mut moved = Instant::now();
        while !bytes.is_empty() {
            if !self.await_stdout(stop) {
                return Ok(false);
            }
            match self.pass_stdout(bytes)? {
                // There is room for less than a character.
                0 if moved.elapsed() > PATIENCE && has_ended(stop) => return Ok(false),
                0 => pause(),
                written => {
                    bytes = &bytes[written..];
                    moved = Instant::now();
                }
            }
        }
        Ok(true)
    }

    /// Writes as much as standard output takes now. Returns the number of bytes.
    fn pass_stdout(&self, bytes: &[u8]) -> Result<usize, LaunchError> {
        // On a shared terminal the lock is held during the write: no line may be drawn in
        // between. A pipe without a reader must not keep the launcher from writing messages.
        let shares_terminal = self.columns.is_some() && !self.is_stdout_elsewhere;
        let mut terminal = shares_terminal.then(|| lock(&self.stderr));
        if let Some(stderr) = &mut terminal {
            stderr.clear_status().map_err(broken("standard error"))?;
        }
        let written = lock(&self.stdout)
            .write(bytes, Duration::ZERO)
            .map_err(broken("standard output"))?;
        if let Some(stderr) = &mut terminal
            && written > 0
        {
            stderr.is_stdout_at_line_start = ends_line(&bytes[..written]);
        }
        Ok(written)
    }

    /// Waits until standard output takes bytes. Returns false if it does not and `stop` has ended.
    fn await_stdout(&self, stop: BorrowedFd<'_>) -> bool {
        let Some(stdout) = self.stdout_descriptor else {
            return true;
        };
        loop {
            let mut polled = [
                PollFd::from_borrowed_fd(stdout, PollFlags::OUT),
                PollFd::from_borrowed_fd(stop, PollFlags::IN),
            ];
            match poll(&mut polled, None) {
                Ok(_) if !polled[0].revents().is_empty() => return true,
                Ok(_) if !polled[1].revents().is_empty() => return has_room(stdout, PATIENCE),
                Ok(_) | Err(Errno::INTR) => {}
                // The write will fail with the reason.
                Err(_) => return true,
            }
        }
    }

    /// Writes one line, without a line break at its end, to standard error.
    pub fn line(&self, text: &[u8]) -> Result<(), LaunchError> {
        let mut stderr = lock(&self.stderr);
        stderr.clear_status().map_err(broken("standard error"))?;
        let mut line = Vec::with_capacity(text.len() + 2);
        if !stderr.is_at_line_start {
            line.push(b'\n');
        }
        line.extend_from_slice(text);
        line.push(b'\n');
        stderr.is_at_line_start = true;
        stderr.write(&line).map_err(broken("standard error"))
    }

    /// Writes a message of the launcher itself.
    pub fn log(&self, text: &str) -> Result<(), LaunchError> {
        self.line(format!("distribute: {text}").as_bytes())
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

impl Stderr<'_> {
    fn clear_status(&mut self) -> io::Result<()> {
        if std::mem::take(&mut self.has_status) {
            self.write(CLEAR.as_bytes())
        } else {
            Ok(())
        }
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        // Do not wait again for a reader that did not read last time.
        if self.left_out > 0 && !self.tell_left_out()? {
            self.left_out += bytes.len();
            return Ok(());
        }
        let written = self.sink.write(bytes, PATIENCE)?;
        self.left_out += bytes.len() - written;
        Ok(())
    }

    /// Writes a note about the missing bytes. Returns whether that succeeded.
    fn tell_left_out(&mut self) -> io::Result<bool> {
        let note = format!(
            "\ndistribute: {} bytes were left out here because the output was not read; the \
             log files have what the processes wrote\n",
            self.left_out
        );
        let is_told = self.sink.write(note.as_bytes(), Duration::ZERO)? == note.len();
        if is_told {
            self.left_out = 0;
        }
        Ok(is_told)
    }
}

fn broken(stream: &'static str) -> impl FnOnce(io::Error) -> LaunchError {
    move |source| LaunchError::Console { stream, source }
}

/// If a writer panicked, the next one goes on after it.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Read;
    use std::os::fd::AsFd;
    use std::sync::mpsc::{Receiver, Sender, channel};

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
        let screen = Screen::new(&mut console);
        std::thread::scope(|threads| {
            let passed = threads.spawn(|| screen.pass(Stream::Stdout, b"data", stop.as_fd()));
            filled.recv().unwrap();
            screen.log("a process has failed").unwrap();
            read.send(()).unwrap();
            assert!(passed.join().unwrap().unwrap());
        });
        assert_eq!(stderr, b"distribute: a process has failed\n");
    }

    /// Both outputs go to pipes without a reader.
    #[test]
    fn writes_do_not_wait_for_a_reader_that_does_not_read() {
        let (mut read, write) = pipe_with(PipeFlags::CLOEXEC)
            .map(|(r, w)| (File::from(r), w))
            .unwrap();
        let (_unread, stdout) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        let (stop, stopper) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        let descriptors = [stdout.try_clone().unwrap(), write.try_clone().unwrap()];
        let (mut out, mut err) = (File::from(stdout), File::from(write));
        let mut console = Console::new(&mut out, &mut err);
        console = console.descriptors(descriptors[0].as_fd(), descriptors[1].as_fd());
        let screen = Screen::new(&mut console);
        // Far more than fits into a pipe.
        for _line in 0..1000 {
            screen.line(&[b'x'; 1000]).unwrap();
        }
        std::thread::scope(|threads| {
            let passed = threads.spawn(|| screen.pass(Stream::Stdout, &[0; 1 << 20], stop.as_fd()));
            drop(stopper);
            assert!(!passed.join().unwrap().unwrap());
        });
        // A reader that comes back is told what is missing.
        let mut shown = vec![0; 1 << 15];
        read.read_exact(&mut shown).unwrap();
        screen.log("the job goes on").unwrap();
        let mut rest = vec![0; 1 << 16];
        let count = read.read(&mut rest).unwrap();
        let mut rest = String::from_utf8_lossy(&rest[..count]).into_owned();
        while !rest.ends_with("goes on\n") {
            let mut more = vec![0; 1 << 16];
            let count = read.read(&mut more).unwrap();
            rest += &String::from_utf8_lossy(&more[..count]);
        }
        let note = "bytes were left out here because the output was not read; the log files";
        assert!(rest.contains(note), "{rest}");
        assert!(rest.ends_with("distribute: the job goes on\n"), "{rest}");
    }
}
