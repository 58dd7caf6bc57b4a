//! Whether a write would block.

use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

/// Whether a small write would not block, now or within `patience`.
pub fn has_room(pipe: BorrowedFd<'_>, patience: Duration) -> bool {
    let until = Instant::now() + patience;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let left = Timespec::try_from(left).ok();
        let mut polled = [PollFd::from_borrowed_fd(pipe, PollFlags::OUT)];
        match poll(&mut polled, left.as_ref()) {
            Err(Errno::INTR) => {}
            ready => return ready.is_ok_and(|ready| ready > 0),
        }
    }
}
