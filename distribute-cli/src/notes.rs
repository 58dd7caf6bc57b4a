//! What goes to standard error: lines for people.

use std::io::{self, Write};

/// Writes a line for people to standard error. If nobody can read it (closed, a full disk), the
/// work goes on: results and exit codes do not depend on it.
pub(crate) fn note(text: &str) {
    let _ = writeln!(Notes, "{text}");
}

/// Standard error, whose failures are not the program's.
#[derive(Debug)]
pub(crate) struct Notes;

impl Write for Notes {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(io::stderr().write(bytes).unwrap_or(bytes.len()))
    }

    fn flush(&mut self) -> io::Result<()> {
        let _ = io::stderr().flush();
        Ok(())
    }
}
