use std::io::{self, Write};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::error::LaunchError;

/// Goes to the begin of the line of a terminal and empties it.
const CLEAR: &str = "\r\x1b[2K";

/// Where the launcher writes: usually the standard output and error of its own process.
pub struct Console<'a> {
    stdout: &'a mut (dyn Write + Send),
    stderr: &'a mut (dyn Write + Send),
    columns: Option<usize>,
    is_stdout_elsewhere: bool,
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
        }
    }

    /// `stderr` is a terminal with so many columns (default: it is none): it gets a line that says
    /// how far the whole job is, below all that is written, if the first process tells its
    /// [`Progress`](crate::Progress). The line is taken away when anything is written, also to
    /// `stdout`, and at the end.
    #[must_use]
    pub fn terminal(mut self, columns: usize) -> Self {
        self.columns = Some(columns);
        self
    }

    /// `stdout` does not go to the terminal of `stderr` (default: it does): the line about the job
    /// stays while `stdout` is written, and who writes to `stderr` does not wait for its reader.
    #[must_use]
    pub fn stdout_elsewhere(mut self) -> Self {
        self.is_stdout_elsewhere = true;
        self
    }
}

/// A console that several threads write to.
pub struct Screen<'a> {
    stdout: Mutex<&'a mut (dyn Write + Send)>,
    stderr: Mutex<Stderr<'a>>,
    /// Those of the terminal that the line about the job is drawn on.
    columns: Option<usize>,
    is_stdout_elsewhere: bool,
}

struct Stderr<'a> {
    sink: &'a mut (dyn Write + Send),
    /// Whether the last byte ended a line, or went back to its start as progress bars do.
    is_at_line_start: bool,
    /// The same of what goes to standard output, which may be on the same terminal.
    is_stdout_at_line_start: bool,
    /// Whether the line about the job is there.
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
        Screen {
            stdout: Mutex::new(&mut *console.stdout),
            stderr: Mutex::new(Stderr {
                sink: &mut *console.stderr,
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

    /// Draws the line about the job, unless somebody is in the middle of a line.
    pub fn show_status(&self, text: &str) {
        let mut stderr = lock(&self.stderr);
        if !stderr.is_at_line_start || !stderr.is_stdout_at_line_start {
            return;
        }
        stderr.has_status = true;
        // Whoever has something to say finds out whether nobody can read it.
        let _unread = stderr.write(format!("{CLEAR}{text}").as_bytes());
    }

    /// Takes the line about the job away.
    pub fn clear_status(&self) {
        let _unread = lock(&self.stderr).clear_status();
    }

    /// Writes bytes of the first process, at once and unchanged.
    pub fn pass(&self, stream: Stream, bytes: &[u8]) -> Result<(), LaunchError> {
        match stream {
            Stream::Stdout => {
                // On one terminal held until it is written: no line may be drawn in between. A
                // pipe that nobody reads must not keep the launcher from what it has to say.
                let shares_terminal = self.columns.is_some() && !self.is_stdout_elsewhere;
                let mut terminal = shares_terminal.then(|| lock(&self.stderr));
                if let Some(stderr) = &mut terminal {
                    stderr.clear_status().map_err(broken("standard error"))?;
                    stderr.is_stdout_at_line_start = ends_line(bytes);
                }
                let mut stdout = lock(&self.stdout);
                let written = stdout.write_all(bytes).and_then(|()| stdout.flush());
                written.map_err(broken("standard output"))
            }
            Stream::Stderr => {
                let mut stderr = lock(&self.stderr);
                stderr.clear_status().map_err(broken("standard error"))?;
                if !bytes.is_empty() {
                    stderr.is_at_line_start = ends_line(bytes);
                }
                stderr.write(bytes).map_err(broken("standard error"))
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

    /// Says something in the launcher's own name.
    pub fn log(&self, text: &str) -> Result<(), LaunchError> {
        self.line(format!("distribute: {text}").as_bytes())
    }
}

/// Whether what follows these bytes begins a line, or one anew as progress bars do.
fn ends_line(bytes: &[u8]) -> bool {
    matches!(bytes.last(), None | Some(b'\n' | b'\r'))
}

impl Stderr<'_> {
    fn clear_status(&mut self) -> io::Result<()> {
        match std::mem::take(&mut self.has_status) {
            true => self.write(CLEAR.as_bytes()),
            false => Ok(()),
        }
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.sink.write_all(bytes)?;
        self.sink.flush()
    }
}

fn broken(stream: &'static str) -> impl FnOnce(io::Error) -> LaunchError {
    move |source| LaunchError::Console { stream, source }
}

/// A writer that panicked has written what it could; the next one goes on behind it.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::time::Duration;

    use super::*;

    /// A pipe whose reader comes late.
    struct Pipe {
        is_full: Sender<()>,
        is_read: Receiver<()>,
    }

    impl Write for Pipe {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let _nobody_waits = self.is_full.send(());
            let is_read = self.is_read.recv_timeout(Duration::from_secs(10));
            is_read.map(|()| bytes.len()).map_err(io::Error::other)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn the_launcher_speaks_while_nobody_reads_standard_output() {
        let (is_full, filled) = channel();
        let (read, is_read) = channel();
        let (mut stdout, mut stderr) = (Pipe { is_full, is_read }, Vec::new());
        let mut console = Console::new(&mut stdout, &mut stderr).terminal(80);
        console = console.stdout_elsewhere();
        let screen = Screen::new(&mut console);
        std::thread::scope(|threads| {
            let passed = threads.spawn(|| screen.pass(Stream::Stdout, b"data"));
            filled.recv().unwrap();
            screen.log("a process has failed").unwrap();
            read.send(()).unwrap();
            passed.join().unwrap().unwrap();
        });
        assert_eq!(stderr, b"distribute: a process has failed\n");
    }
}
