use std::io::{self, Write};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::error::LaunchError;

/// Where the launcher writes: usually the standard output and error of its own process.
pub struct Console<'a> {
    stdout: &'a mut (dyn Write + Send),
    stderr: &'a mut (dyn Write + Send),
}

impl<'a> Console<'a> {
    /// `stdout` gets the standard output of the first process (the chief, else worker 0), byte for
    /// byte, and nothing else. `stderr` gets its standard error, the lines of the others, and what
    /// the launcher itself says.
    pub fn new(stdout: &'a mut (dyn Write + Send), stderr: &'a mut (dyn Write + Send)) -> Self {
        Console { stdout, stderr }
    }
}

/// A console that several threads write to.
pub struct Screen<'a> {
    stdout: Mutex<&'a mut (dyn Write + Send)>,
    stderr: Mutex<Stderr<'a>>,
}

struct Stderr<'a> {
    sink: &'a mut (dyn Write + Send),
    /// Whether the last byte ended a line, or went back to its start as progress bars do.
    is_at_line_start: bool,
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
            }),
        }
    }

    /// Writes bytes of the first process, at once and unchanged.
    pub fn pass(&self, stream: Stream, bytes: &[u8]) -> Result<(), LaunchError> {
        match stream {
            Stream::Stdout => {
                let mut stdout = lock(&self.stdout);
                let written = stdout.write_all(bytes).and_then(|()| stdout.flush());
                written.map_err(broken("standard output"))
            }
            Stream::Stderr => {
                let mut stderr = lock(&self.stderr);
                if let Some(last) = bytes.last() {
                    stderr.is_at_line_start = matches!(last, b'\n' | b'\r');
                }
                stderr.write(bytes).map_err(broken("standard error"))
            }
        }
    }

    /// Writes one line, without a line break at its end, to standard error.
    pub fn line(&self, text: &[u8]) -> Result<(), LaunchError> {
        let mut stderr = lock(&self.stderr);
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

impl Stderr<'_> {
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
