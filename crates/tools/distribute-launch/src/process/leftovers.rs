//! Ends processes that an attempt has left: background processes of a command, or all of them
//! if the launcher was killed.
//!
//! They are found by the attempt's mark in their environment, which every process inherits, or
//! by their process group. A process is missed only if it has both cleared its environment and left
//! the group.
//!
//! The process table is not a snapshot: while it is read, a process can start another one, which
//! the list does not show, and die before it is looked at. A process during `exec` has no
//! environment for a moment. So the table is read again as long as a scan shows such a process that
//! the previous scan did not show.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};

use crate::job::cluster::Token;
use crate::process::table::Identity;

/// What identifies an attempt's processes.
#[derive(Clone)]
pub struct Marks {
    /// The value of [`MARK_VARIABLE`](crate::process::MARK_VARIABLE).
    pub mark: Token,
    pub groups: Vec<Pid>,
}

/// How long processes may take to die of SIGKILL before the next scan.
const DEATH: Duration = Duration::from_secs(1);
/// How long a process may take to die of SIGKILL: longer takes one that is stuck in the system.
const STUCK: Duration = Duration::from_secs(3);
/// The limit of all scans with SIGKILL and a margin.
pub const LIMIT: Duration = Duration::from_secs(25);
/// The limit of scans: processes that keep starting others need several.
const ROUNDS_MAX: usize = 20;
/// How many scans in a row must show nothing new.
const SAME_LOOKS: usize = 2;

/// A process that may belong to the attempt and may have started another one that the scan did not
/// show: its number, and its identity if that could still be read.
type Unsure = (i32, Option<Identity>);

/// Decides from successive scans whether nothing is left.
#[derive(Default)]
struct Quiet {
    unsure: BTreeSet<Unsure>,
    looks: usize,
}

impl Quiet {
    /// Notes a scan that found no process of the attempt alive, apart from the `unsure` ones.
    /// Returns whether nothing is left.
    fn is_over(&mut self, unsure: BTreeSet<Unsure>) -> bool {
        // A process that one of them has started meanwhile is in the next list.
        self.looks = if unsure.is_subset(&self.unsure) {
            self.looks + 1
        } else {
            0
        };
        let is_sure = unsure.is_empty();
        self.unsure = unsure;
        is_sure || self.looks >= SAME_LOOKS
    }

    fn found_some(&mut self) {
        *self = Quiet::default();
    }
}

/// Ends all processes that are left: first with SIGTERM, except those in `asked`, which have had
/// it; after `grace` with SIGKILL. Does not wait for those in `stuck`. Returns all that do not end.
///
/// Takes at most `grace` and [`LIMIT`], unless the process table does not answer.
pub fn end(
    marks: &Marks,
    asked: &BTreeSet<Identity>,
    stuck: HashSet<Pid>,
    grace: Duration,
) -> HashSet<Pid> {
    if !grace.is_zero() {
        let (mut found, _) = system::look(marks);
        found.retain(|one| !stuck.contains(&one.pid()));
        let is_asked =
            |one: &system::ProcessHandle| one.identity().is_some_and(|one| asked.contains(&one));
        let others = found.iter().filter(|one| !is_asked(one));
        others.for_each(|one| one.send(Signal::TERM));
        system::wait(&found, Instant::now() + grace);
    }
    kill(marks, stuck)
}

/// Sends a signal to a process, but not to a later process with its number.
pub fn send(identity: Identity, signal: Signal) {
    system::send(identity, signal);
}

/// Ends all processes that are left with SIGKILL. Does not wait for those in `stuck`, nor for long
/// for others that do not end. Returns all of these.
pub fn kill(marks: &Marks, mut stuck: HashSet<Pid>) -> HashSet<Pid> {
    let mut quiet = Quiet::default();
    // Since when they are being killed.
    let mut killed = HashMap::new();
    for _round in 0..ROUNDS_MAX {
        let (mut found, unsure) = system::look(marks);
        for one in &found {
            let since = *killed.entry(one.pid()).or_insert_with(Instant::now);
            if since.elapsed() >= STUCK {
                stuck.insert(one.pid());
            }
        }
        found.retain(|one| !stuck.contains(&one.pid()));
        if found.is_empty() {
            if quiet.is_over(unsure) {
                return stuck;
            }
            continue;
        }
        quiet.found_some();
        found.iter().for_each(|one| one.send(Signal::KILL));
        system::wait(&found, Instant::now() + DEATH);
        let others = found
            .iter()
            .filter(|one| !marks.groups.contains(&one.pid()));
        others.for_each(system::ProcessHandle::reap);
    }
    stuck
}

#[cfg(target_os = "linux")]
mod system {
    use std::collections::BTreeSet;
    use std::fs;
    use std::io::ErrorKind;
    use std::os::fd::{AsFd, OwnedFd};
    use std::time::Instant;

    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use rustix::io::Errno;
    use rustix::process::{
        Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, getpid, pidfd_open, pidfd_send_signal,
        waitid,
    };

    use super::{Identity, Marks, Unsure};
    use crate::process::{MARK_VARIABLE, parse_pid, table};

    /// A handle of a process, which never means a later process with its number.
    pub struct ProcessHandle(OwnedFd, Pid);

    impl ProcessHandle {
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

        /// Orphans have become children of this process.
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

    /// Whether a process belongs to an attempt.
    enum Member {
        Yes,
        No,
        /// Unknown: it has ended, or is in `exec`.
        Unsure(Option<Identity>),
    }

    /// All live processes with one of the marks, and the ones that may have had one.
    pub fn look(marks: &Marks) -> (Vec<ProcessHandle>, BTreeSet<Unsure>) {
        let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
        let pids: Vec<Pid> = entries
            .filter_map(|entry| parse_pid(entry.file_name().to_str()?))
            .filter(|pid| *pid != getpid())
            .collect();
        let own = table::entry(getpid().as_raw_nonzero().get()).map(|entry| entry.identity);
        let variable = format!("{MARK_VARIABLE}={}", marks.mark.secret());
        let (mut found, mut unsure) = (Vec::new(), BTreeSet::new());
        for pid in pids {
            let number = pid.as_raw_nonzero().get();
            match member(number, marks, &variable, own) {
                Member::No => {}
                Member::Unsure(identity) => {
                    unsure.insert((number, identity));
                }
                Member::Yes => match held(pid, marks, &variable, own) {
                    Some(process) => found.push(process),
                    None => {
                        unsure.insert((number, None));
                    }
                },
            }
        }
        (found, unsure)
    }

    /// A handle of a member, unless its number passed to another process before the handle existed.
    fn held(
        pid: Pid,
        marks: &Marks,
        variable: &str,
        own: Option<Identity>,
    ) -> Option<ProcessHandle> {
        let found = ProcessHandle(pidfd_open(pid, PidfdFlags::empty()).ok()?, pid);
        let number = pid.as_raw_nonzero().get();
        matches!(member(number, marks, variable, own), Member::Yes).then_some(found)
    }

    fn member(number: i32, marks: &Marks, variable: &str, own: Option<Identity>) -> Member {
        let Some(entry) = table::entry(number) else {
            return Member::Unsure(None);
        };
        let is_in_group = Pid::from_raw(entry.group).is_some_and(|it| marks.groups.contains(&it));
        if entry.has_ended {
            return Member::Unsure(Some(entry.identity));
        }
        if is_in_group {
            return Member::Yes;
        }
        let environment = match fs::read(format!("/proc/{number}/environ")) {
            Ok(environment) => environment,
            // Another user's process is not part of the job.
            Err(error) if error.kind() == ErrorKind::PermissionDenied => return Member::No,
            // It has just ended.
            Err(_) => return Member::Unsure(Some(entry.identity)),
        };
        let mut variables = environment.split(|byte| *byte == 0);
        if variables.any(|text| text == variable.as_bytes()) {
            return Member::Yes;
        }
        // It may have no environment yet because it is in `exec`. A process that is older than
        // this one does not belong to the attempt.
        let is_younger = own.is_none_or(|own| !entry.identity.is_older_than(own));
        if environment.is_empty() && is_younger {
            Member::Unsure(Some(entry.identity))
        } else {
            Member::No
        }
    }

    /// Waits until all have ended or `until` is over.
    pub fn wait(found: &[ProcessHandle], until: Instant) {
        let mut alive: Vec<&ProcessHandle> = found.iter().collect();
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

/// Other systems have no handle that is safe against reuse of process numbers: there the
/// launcher itself signals the groups only.
#[cfg(not(target_os = "linux"))]
mod system {
    use std::collections::BTreeSet;
    use std::time::Instant;

    use rustix::process::{Pid, Signal, kill_process_group};

    use super::{Identity, Marks, Unsure};

    pub struct ProcessHandle(std::convert::Infallible);

    impl ProcessHandle {
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

    pub fn look(marks: &Marks) -> (Vec<ProcessHandle>, BTreeSet<Unsure>) {
        for group in &marks.groups {
            let _gone = kill_process_group(*group, Signal::KILL);
        }
        (Vec::new(), BTreeSet::new())
    }

    pub fn wait(_found: &[ProcessHandle], _until: Instant) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unsure(numbers: &[i32]) -> BTreeSet<Unsure> {
        numbers.iter().map(|number| (*number, None)).collect()
    }

    #[test]
    fn a_look_during_which_nothing_ended_is_enough() {
        assert!(Quiet::default().is_over(unsure(&[])));
    }

    #[test]
    fn what_ended_during_a_look_may_have_started_another_one() {
        let mut quiet = Quiet::default();
        assert!(!quiet.is_over(unsure(&[7])));
        // The process it started has ended by now, and may have started one more.
        assert!(!quiet.is_over(unsure(&[8])));
        assert!(quiet.is_over(unsure(&[])));
    }

    #[test]
    fn what_stays_unsure_is_waited_for_no_longer() {
        let mut quiet = Quiet::default();
        let over: Vec<bool> = (0..3).map(|_| quiet.is_over(unsure(&[7, 9]))).collect();
        assert_eq!(over, [false, false, true]);
        quiet.found_some();
        assert!(!quiet.is_over(unsure(&[7])));
    }
}
