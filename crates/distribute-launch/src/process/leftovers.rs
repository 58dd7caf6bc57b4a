//! Processes of an attempt that are still there when it is over: what a command has left in the
//! background, or everything when the launcher was killed.
//!
//! They are found by the attempt's mark in their environment, which every process gets from the
//! one that started it, or by their process group, should they have cleared the environment. Only
//! a process that has done both, cleared its environment and left the group, is not found.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};

use crate::job::cluster::Token;
use crate::process::table::Identity;

/// How an attempt's processes are found.
#[derive(Clone)]
pub struct Marks {
    /// The value of [`MARK_VARIABLE`](crate::process::MARK_VARIABLE).
    pub mark: Token,
    pub groups: Vec<Pid>,
}

/// How long processes may take to die of SIGKILL before they are looked for again.
const DEATH: Duration = Duration::from_secs(1);
/// How often they are looked for: processes that start others all the time take several times.
const ROUNDS_MAX: usize = 20;

/// Ends all that is left: with SIGTERM first, unless it is among those that were asked before, with
/// SIGKILL what is still there after `grace`.
pub fn end(marks: &Marks, asked: &BTreeSet<Identity>, grace: Duration) {
    if !grace.is_zero() {
        let found = system::find(marks);
        let is_asked = |one: &system::Found| one.identity().is_some_and(|one| asked.contains(&one));
        let others = found.iter().filter(|one| !is_asked(one));
        others.for_each(|one| one.send(Signal::TERM));
        system::wait(&found, Instant::now() + grace);
    }
    kill(marks);
}

/// Sends a signal to a process, and to none that has its number later.
pub fn send(identity: Identity, signal: Signal) {
    system::send(identity, signal);
}

/// Ends all that is left with SIGKILL.
pub fn kill(marks: &Marks) {
    for _round in 0..ROUNDS_MAX {
        let found = system::find(marks);
        if found.is_empty() {
            return;
        }
        found.iter().for_each(|one| one.send(Signal::KILL));
        system::wait(&found, Instant::now() + DEATH);
        let others = found
            .iter()
            .filter(|one| !marks.groups.contains(&one.pid()));
        others.for_each(system::Found::reap);
    }
}

#[cfg(target_os = "linux")]
mod system {
    use std::fs;
    use std::os::fd::{AsFd, OwnedFd};
    use std::time::Instant;

    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use rustix::io::Errno;
    use rustix::process::{
        Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, getpid, pidfd_open, pidfd_send_signal,
        waitid,
    };

    use super::{Identity, Marks};
    use crate::process::{MARK_VARIABLE, parse_pid, table};

    /// A process, and not whichever has its number later.
    pub struct Found(OwnedFd, Pid);

    impl Found {
        pub fn send(&self, signal: Signal) {
            // The process may have ended by now.
            let _gone = pidfd_send_signal(&self.0, signal);
        }

        pub fn pid(&self) -> Pid {
            self.1
        }

        pub fn identity(&self) -> Option<Identity> {
            let entry = table::entry(self.1.as_raw_nonzero().get());
            entry.map(|entry| entry.identity)
        }

        /// Those whose parents have ended are children of this process.
        pub fn reap(&self) {
            let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
            let _not_ours = waitid(WaitId::PidFd(self.0.as_fd()), options);
        }
    }

    pub fn send(identity: Identity, signal: Signal) {
        let Some(pid) = Pid::from_raw(identity.number) else {
            return;
        };
        let Ok(process) = pidfd_open(pid, PidfdFlags::empty()) else {
            return;
        };
        if table::entry(identity.number).is_some_and(|entry| entry.identity == identity) {
            let _gone = pidfd_send_signal(&process, signal);
        }
    }

    /// All processes with one of the marks that have not ended.
    pub fn find(marks: &Marks) -> Vec<Found> {
        let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
        let pids = entries.filter_map(|entry| parse_pid(entry.file_name().to_str()?));
        let pids = pids.filter(|pid| *pid != getpid());
        let variable = format!("{MARK_VARIABLE}={}", marks.mark.secret());
        let find = |pid| {
            if !is_marked(pid, marks, &variable) {
                return None;
            }
            let found = Found(pidfd_open(pid, PidfdFlags::empty()).ok()?, pid);
            // The number may have passed to another process before the descriptor was there.
            is_marked(pid, marks, &variable).then_some(found)
        };
        pids.filter_map(find).collect()
    }

    fn is_marked(pid: Pid, marks: &Marks, variable: &str) -> bool {
        let path = |file| format!("/proc/{}/{file}", pid.as_raw_nonzero());
        let Ok(stat) = fs::read(path("stat")) else {
            return false;
        };
        // "pid (name) state ppid pgrp ...", and the name may hold anything.
        let after_name = stat.iter().rposition(|byte| *byte == b')').unwrap_or(0);
        let text = String::from_utf8_lossy(&stat[after_name..]);
        let mut fields = text.split_whitespace().skip(1);
        let (state, group) = (fields.next(), fields.nth(1));
        if matches!(state, None | Some("Z" | "X")) {
            return false;
        }
        let group = group.and_then(parse_pid);
        if group.is_some_and(|group| marks.groups.contains(&group)) {
            return true;
        }
        let environment = fs::read(path("environ")).unwrap_or_default();
        let mut variables = environment.split(|byte| *byte == 0);
        variables.any(|text| text == variable.as_bytes())
    }

    /// Waits until all have ended or `until` is over.
    pub fn wait(found: &[Found], until: Instant) {
        let mut alive: Vec<&Found> = found.iter().collect();
        while !alive.is_empty() {
            let left = until.saturating_duration_since(Instant::now());
            let Ok(left) = Timespec::try_from(left) else {
                return;
            };
            let mut polled: Vec<_> = alive
                .iter()
                .map(|one| PollFd::from_borrowed_fd(one.0.as_fd(), PollFlags::IN))
                .collect();
            match poll(&mut polled, Some(&left)) {
                Ok(0) => return,
                Ok(_) => {
                    let mut ended = polled.iter().map(|fd| !fd.revents().is_empty());
                    let ended: Vec<bool> = ended.by_ref().collect();
                    let mut ended = ended.into_iter();
                    alive.retain(|_| !ended.next().unwrap_or(false));
                }
                Err(Errno::INTR) => {}
                Err(_) => return,
            }
        }
    }
}

/// Elsewhere there is no way to name a process that cannot meet another one with its number:
/// only the groups get a signal, from the launcher itself.
#[cfg(not(target_os = "linux"))]
mod system {
    use std::time::Instant;

    use rustix::process::{Pid, Signal, kill_process_group};

    use super::{Identity, Marks};

    pub struct Found(std::convert::Infallible);

    impl Found {
        pub fn send(&self, _signal: Signal) {
            match self.0 {}
        }

        pub fn pid(&self) -> Pid {
            match self.0 {}
        }

        pub fn identity(&self) -> Option<Identity> {
            match self.0 {}
        }

        pub fn reap(&self) {
            match self.0 {}
        }
    }

    pub fn send(_identity: Identity, _signal: Signal) {}

    pub fn find(marks: &Marks) -> Vec<Found> {
        for group in &marks.groups {
            let _gone = kill_process_group(*group, Signal::KILL);
        }
        Vec::new()
    }

    pub fn wait(_found: &[Found], _until: Instant) {}
}
