//! The thread that draws the line about the whole job.

use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::file_tasks::FileTasks;
use crate::report::console::Screen;
use crate::report::progress::{self, Alive};

/// How often the line is drawn.
const INTERVAL: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 200_000_000,
};

/// The data of the line, besides the report of the first process.
pub struct ProgressSource<'a> {
    pub path: &'a Path,
    pub files: &'a FileTasks,
    pub alive: &'a AtomicUsize,
    pub workers: usize,
    pub restart: u32,
}

/// Draws the line until `stop` has ended, and then removes it.
pub fn show(screen: &Screen, columns: usize, source: &ProgressSource<'_>, stop: BorrowedFd<'_>) {
    while !is_over(stop) {
        if let Some(found) = progress::read(source.path, source.files) {
            let alive = Alive {
                workers: source.alive.load(Ordering::Relaxed),
                of: source.workers,
                restart: source.restart,
            };
            screen.show_status(&progress::line(&found, alive, columns));
        }
    }
    screen.clear_status();
    progress::remove(source.path, source.files);
}

/// Waits until the next line is due. Returns whether `stop` has ended before.
fn is_over(stop: BorrowedFd<'_>) -> bool {
    let mut polled = [PollFd::from_borrowed_fd(stop.as_fd(), PollFlags::IN)];
    match poll(&mut polled, Some(&INTERVAL)) {
        Ok(ready) => ready > 0,
        Err(error) => error != Errno::INTR,
    }
}
