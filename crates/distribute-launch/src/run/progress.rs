//! The thread that draws the line about the whole job.

use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::process::aside::Aside;
use crate::report::console::Screen;
use crate::report::progress::{self, Alive};

/// How often the line is drawn.
const INTERVAL: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 200_000_000,
};

/// What the line is about, besides what the first process says.
pub struct Watched<'a> {
    pub path: &'a Path,
    pub files: &'a Aside,
    pub alive: &'a AtomicUsize,
    pub workers: usize,
    pub restart: u32,
}

/// Draws the line until `stop` has ended, and takes it away then.
pub fn show(screen: &Screen<'_>, columns: usize, watched: &Watched<'_>, stop: BorrowedFd<'_>) {
    while !is_over(stop) {
        if let Some(found) = progress::read(watched.path, watched.files) {
            let alive = Alive {
                workers: watched.alive.load(Ordering::Relaxed),
                of: watched.workers,
                restart: watched.restart,
            };
            screen.show_status(&progress::line(&found, alive, columns));
        }
    }
    screen.clear_status();
    progress::remove(watched.path, watched.files);
}

/// Waits for the time of the next line. Whether `stop` has ended before.
fn is_over(stop: BorrowedFd<'_>) -> bool {
    let mut polled = [PollFd::from_borrowed_fd(stop.as_fd(), PollFlags::IN)];
    match poll(&mut polled, Some(&INTERVAL)) {
        Ok(ready) => ready > 0,
        Err(error) => error != Errno::INTR,
    }
}
