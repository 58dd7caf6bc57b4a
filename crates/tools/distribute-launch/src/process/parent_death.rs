//! Processes that die with the launcher, however it ends.

use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

use rustix::process::{Pid, getpid};

use crate::room::has_room;

/// The longest line about a group, with the longest number.
const LINE_BYTES: usize = "group 2147483647\n".len();

/// Makes the process of `command` get SIGKILL when the thread that starts it ends, as it does when
/// the launcher ends: start it from a thread that lives as long as the job
/// ([`Spawner`](crate::process::spawner::Spawner)). Before the command itself runs, the process
/// tells the guard, if there is one, which group it leads.
pub fn die_with_parent(command: &mut Command, guard: Option<OwnedFd>) {
    let launcher = getpid();
    let prepare = move || {
        ask_kernel(launcher)?;
        guard.as_ref().map_or(Ok(()), announce)
    };
    // SAFETY: between fork and exec only async-signal-safe code may run. `prepare` makes five
    // system calls (it reads the clock, too) on values that it owns or has on its stack; it
    // allocates nothing and takes no lock, and its errors are plain numbers.
    unsafe {
        command.pre_exec(prepare);
    }
}

#[cfg(target_os = "linux")]
fn ask_kernel(launcher: Pid) -> io::Result<()> {
    use rustix::process::{Signal, getppid, set_parent_process_death_signal};

    set_parent_process_death_signal(Some(Signal::KILL))?;
    // If the launcher died before the call above, no signal will come.
    if getppid() == Some(launcher) {
        Ok(())
    } else {
        Err(io::ErrorKind::NotConnected.into())
    }
}

/// Only Linux has a signal for the death of a parent.
#[cfg(not(target_os = "linux"))]
fn ask_kernel(_launcher: Pid) -> io::Result<()> {
    Ok(())
}

/// A write this short is not mixed with the writes of others.
fn announce(guard: &OwnedFd) -> io::Result<()> {
    let mut line = [0; LINE_BYTES];
    let mut rest = &mut line[..];
    writeln!(rest, "group {}", getpid().as_raw_nonzero())?;
    let left = rest.len();
    // A guard that does not read must not delay the start: the launcher notices, and tells another
    // guard.
    if has_room(guard.as_fd(), Duration::ZERO) {
        rustix::io::write(guard, &line[..LINE_BYTES - left])?;
    }
    Ok(())
}
