//! Processes that die with the launcher, however it ends.

use std::process::Command;

/// Makes the process of `command` get SIGKILL when the thread that starts it ends, and with it the
/// launcher: start it from a thread that lives as long as the job.
#[cfg(target_os = "linux")]
pub fn die_with_parent(command: &mut Command) {
    use std::io;
    use std::os::unix::process::CommandExt;

    use rustix::process::{Signal, getpid, getppid, set_parent_process_death_signal};

    let launcher = getpid();
    let ask = move || {
        set_parent_process_death_signal(Some(Signal::KILL))?;
        // A launcher that died before the call above sends no signal any more.
        if getppid() == Some(launcher) {
            Ok(())
        } else {
            Err(io::ErrorKind::NotConnected.into())
        }
    };
    // SAFETY: between fork and exec only what is async-signal-safe may run. `ask` makes two system
    // calls on values that it owns; it allocates nothing and takes no lock, and both errors are
    // plain numbers.
    unsafe {
        command.pre_exec(ask);
    }
}

/// Only Linux has a signal for the death of a parent.
#[cfg(not(target_os = "linux"))]
pub fn die_with_parent(_command: &mut Command) {}
