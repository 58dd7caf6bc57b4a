//! An output of the launcher whose reader may not read: a pager, a terminal that was stopped, an
//! ssh session that hangs. Every write has a limit on the wait for it.

use std::fs::File;
use std::io::{self, ErrorKind, IsTerminal, Write};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::{Duration, Instant};

use rustix::event::{Timespec, poll};
use rustix::fs::{Mode, OFlags, open};

use crate::room::has_room;

/// A pipe that takes anything takes this much without waiting.
const PIECE_BYTES: usize = 4096;
/// The pause before retrying a terminal that takes less than a character.
const PAUSE: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 10_000_000,
};

/// Where bytes go.
pub struct Sink<'a> {
    sink: &'a mut (dyn Write + Send),
    /// The descriptor that it writes to, if that is known.
    descriptor: Option<BorrowedFd<'a>>,
    /// The terminal that it writes to, opened once more as non-blocking. Unlike a pipe, a terminal
    /// may take any number of bytes, so only a non-blocking descriptor shows how many; the shared
    /// descriptor must stay blocking.
    terminal: Option<File>,
}

impl<'a> Sink<'a> {
    pub fn new(sink: &'a mut (dyn Write + Send), descriptor: Option<BorrowedFd<'a>>) -> Sink<'a> {
        let terminal = descriptor.filter(IsTerminal::is_terminal);
        Sink {
            sink,
            descriptor,
            terminal: terminal.and_then(opened_again),
        }
    }

    /// Whether it takes bytes now or within `patience`.
    pub fn has_room(&self, patience: Duration) -> bool {
        self.descriptor
            .is_none_or(|descriptor| has_room(descriptor, patience))
    }

    /// Writes as much as it takes, waiting up to `patience` for each piece. Returns the number of
    /// bytes.
    pub fn write(&mut self, bytes: &[u8], patience: Duration) -> io::Result<usize> {
        let mut written = 0;
        while written < bytes.len() {
            let rest = &bytes[written..];
            match self.write_piece(&rest[..rest.len().min(PIECE_BYTES)], patience)? {
                0 => break,
                count => written += count,
            }
        }
        Ok(written)
    }

    fn write_piece(&mut self, piece: &[u8], patience: Duration) -> io::Result<usize> {
        let until = Instant::now() + patience;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if !self.has_room(left) {
                return Ok(0);
            }
            let Some(terminal) = &mut self.terminal else {
                self.sink.write_all(piece)?;
                self.sink.flush()?;
                return Ok(piece.len());
            };
            match terminal.write(piece) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    if left.is_zero() {
                        return Ok(0);
                    }
                    pause();
                }
                written => return written,
            }
        }
    }
}

/// Waits briefly for a terminal that has room for less than a character.
pub fn pause() {
    // It may end early.
    let _over = poll(&mut [], Some(&PAUSE));
}

/// `None` where the system has no such files, or where the terminal belongs to another user.
fn opened_again(descriptor: BorrowedFd<'_>) -> Option<File> {
    let path = format!("/proc/self/fd/{}", descriptor.as_raw_fd());
    let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    open(path, flags, Mode::empty()).ok().map(File::from)
}

#[cfg(test)]
#[cfg(target_os = "linux")]
mod tests {
    use std::os::fd::{AsFd, OwnedFd};

    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

    use super::*;

    /// A terminal, and the side of the program that shows it.
    fn terminal() -> (OwnedFd, OwnedFd) {
        let shown = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&shown).unwrap();
        unlockpt(&shown).unwrap();
        let name = ptsname(&shown, Vec::new()).unwrap();
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
        (open(name, flags, Mode::empty()).unwrap(), shown)
    }

    #[test]
    fn a_stopped_terminal_delays_no_write_and_loses_no_line_that_it_took() {
        let (written_to, shown) = terminal();
        let mut out = File::from(written_to.try_clone().unwrap());
        let mut sink = Sink::new(&mut out, Some(written_to.as_fd()));
        let line = format!("{}\n", "x".repeat(162));
        let mut taken = 0;
        loop {
            let count = sink.write(line.as_bytes(), Duration::ZERO).unwrap();
            taken += count;
            if count < line.len() {
                break;
            }
        }
        assert!(taken > line.len(), "{taken}");
        // A line break is shown as two characters.
        let (mut seen, mut breaks) = (0, 0);
        let mut shown = File::from(shown);
        while seen - breaks < taken {
            let mut bytes = [0; 4096];
            let count = io::Read::read(&mut shown, &mut bytes).unwrap();
            seen += count;
            breaks += bytes[..count].iter().filter(|byte| **byte == b'\r').count();
        }
        assert_eq!(seen - breaks, taken);
        let again = sink
            .write(line.as_bytes(), Duration::from_secs(10))
            .unwrap();
        assert_eq!(again, line.len());
    }
}
