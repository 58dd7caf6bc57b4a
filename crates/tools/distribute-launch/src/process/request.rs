//! Asks a process and its descendants to end: each of them once, the ones that handle the signal
//! first.
//!
//! A command may be a script that does not `exec` what it runs. The rules:
//!
//! 1. A process that does not catch the signal, but waits for one that does, is not asked: the
//!    signal would end it, and the exit code of the process it waits for would be lost.
//! 2. A process that catches the signal is asked, and its descendants are not: it may pass the
//!    signal on, as `trap 'kill $child' TERM` does, and two requests would be one too many.
//!    To see whether it does, the descendants are stopped meanwhile ([`StoppedProcesses`]): a
//!    descendant that has received the signal is never asked again, however long it takes to save.
//!    Jobs of a shell with job control are not stopped, as the shell would notice.
//! 3. Processes that have not received the signal when the patience is over are asked then:
//!    their ancestor did not pass it on, or cannot, like a shell that waits for its command in the
//!    foreground. If the ancestor has ended without passing the signal on, they are asked at once.
//! 4. A process that is started by one that was asked is part of its shutdown, and is never asked.
//!
//! Ctrl-C is different: as in a terminal, it reaches all of them at once. So does a signal that no
//! process catches.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, getpid, kill_process_group, waitid};

use crate::process::leftovers;
use crate::process::stopped_processes::StoppedProcesses;
use crate::process::table::{self, Disposition, Entry, Identity, disposition, family};
use crate::report::outcome::Ending;

/// How long a process that waited for others may go on after their end before it is asked too: it
/// needs a moment to end with their exit code.
const ALONE: Duration = Duration::from_secs(1);
/// How long the descendants of a process that catches the signal may take to stop before it is
/// asked anyway.
const STOP: Duration = Duration::from_millis(300);
/// How long descendants stay stopped after their last ancestor has taken the signal.
const WATCH: Duration = Duration::from_secs(1);

/// A request to a process and its descendants to end.
pub struct Request {
    signal: Signal,
    leader: Pid,
    begun: Instant,
    /// After this time the rest is asked.
    patience: Duration,
    /// All processes that the signal has reached, from the launcher or from others.
    asked: BTreeSet<Identity>,
    /// Processes whose ancestor may pass the signal on.
    passed_to: BTreeSet<Identity>,
    /// The processes of `passed_to` that are stopped, to see whether it does.
    holds: StoppedProcesses,
    /// When the signal last reached a process.
    moved: Instant,
    /// All processes seen so far: one that leaves its group still belongs to the request.
    known: BTreeSet<Identity>,
    /// Processes started by one that had been asked.
    reactions: BTreeSet<Identity>,
    /// Processes that wait for others, with the time since when they no longer do.
    waiting: BTreeMap<Identity, Option<Instant>>,
    /// How the processes ended that outlived the first one.
    orphans: Vec<Ending>,
}

impl Request {
    /// Sends the first requests. For half of `grace` the signal may be passed on by the
    /// processes themselves. `all` is the process table.
    pub fn new(leader: Pid, signal: Signal, grace: Duration, all: &[Entry]) -> Request {
        let mut request = Request {
            signal,
            leader,
            begun: Instant::now(),
            patience: grace / 2,
            asked: BTreeSet::new(),
            passed_to: BTreeSet::new(),
            holds: StoppedProcesses::new(signal),
            moved: Instant::now(),
            known: BTreeSet::new(),
            reactions: BTreeSet::new(),
            waiting: BTreeMap::new(),
            orphans: Vec::new(),
        };
        request.go_on(all);
        request
    }

    /// The processes that the signal has reached.
    pub fn asked(&self) -> &BTreeSet<Identity> {
        &self.asked
    }

    /// All processes that the request is about.
    pub fn known(&self) -> &BTreeSet<Identity> {
        &self.known
    }

    /// Whether some processes are stopped for a moment.
    pub fn is_holding(&self) -> bool {
        !self.holds.is_empty()
    }

    /// Sends due requests and notes ended processes. Returns how many are left.
    pub fn go_on(&mut self, all: &[Entry]) -> usize {
        let family = family(self.leader, &self.known, all);
        if family.is_empty() {
            // The system has no process table.
            if self.asked.is_empty() && self.begun.elapsed() < self.patience {
                let _gone = kill_process_group(self.leader, self.signal);
                self.patience = Duration::ZERO;
            }
            return 0;
        }
        let leader = self.leader.as_raw_nonzero().get();
        let ended = family.iter().filter(|one| one.has_ended);
        for orphan in ended.filter(|one| one.identity.number != leader) {
            self.orphans.extend(reap(orphan));
        }
        let alive: Vec<Entry> = family.into_iter().filter(|one| !one.has_ended).collect();
        self.note_new(&alive);
        self.note_reached();
        for identity in self.due(&alive) {
            leftovers::send(identity, self.signal);
            self.asked.insert(identity);
            self.holds.release(identity);
            self.moved = Instant::now();
        }
        if self.is_holding() && self.is_watched_out() {
            self.let_go();
        }
        alive.len()
    }

    /// Notes which processes the signal has reached so far, and lets all stopped ones go on.
    pub fn let_go(&mut self) {
        self.note_reached();
        self.holds.release_all();
    }

    /// New descendants of a process that was asked are part of its shutdown.
    fn note_new(&mut self, alive: &[Entry]) {
        for one in alive {
            if self.known.insert(one.identity) && self.signal != Signal::INT {
                let mut above = ancestors(one, alive).map(|above| above.identity);
                if above.any(|above| self.asked.contains(&above)) {
                    self.reactions.insert(one.identity);
                }
            }
        }
    }

    /// Notes processes that others have sent the signal to.
    fn note_reached(&mut self) {
        for identity in self.holds.take_signalled() {
            self.asked.insert(identity);
            self.moved = Instant::now();
        }
    }

    /// Whether the time is over in which the signal may be passed on.
    fn is_watched_out(&self) -> bool {
        let signal = self.signal.as_raw();
        let takes = |one: &Identity| table::is_pending(one.number, signal);
        let is_over = self.moved.elapsed() >= WATCH.min(self.patience / 2);
        let is_late = self.begun.elapsed() >= self.patience;
        is_late || is_over && !self.asked.iter().any(takes)
    }

    /// The processes to ask now.
    fn due(&mut self, alive: &[Entry]) -> Vec<Identity> {
        let new = alive
            .iter()
            .filter(|one| !self.asked.contains(&one.identity));
        if self.signal == Signal::INT {
            return new.map(|one| one.identity).collect();
        }
        let signal = self.signal.as_raw();
        let catching: BTreeSet<Identity> = alive
            .iter()
            .map(|one| one.identity)
            .filter(|one| disposition(one.number, signal) == Disposition::Catches)
            .collect();
        self.note_waiting(alive, &catching);
        self.note_passed(alive, &catching);
        let is_late = self.begun.elapsed() >= self.patience;
        let is_stopping = self.begun.elapsed() < STOP && self.holds.are_stopping();
        let is_due = |one: &Identity| match self.waiting.get(one) {
            _ if self.asked.contains(one) || self.reactions.contains(one) => false,
            Some(None) => false,
            Some(Some(since)) => since.elapsed() >= ALONE,
            None if self.passed_to.contains(one) => is_late,
            None => !is_stopping,
        };
        let due = alive.iter().map(|one| one.identity).filter(is_due);
        due.collect()
    }

    /// Notes the processes that the signal may be passed on to, and stops them before it is sent.
    fn note_passed(&mut self, alive: &[Entry], catching: &BTreeSet<Identity>) {
        let is_first = self.asked.is_empty();
        for one in alive
            .iter()
            .filter(|one| !self.asked.contains(&one.identity))
        {
            let mut above = ancestors(one, alive).map(|above| above.identity);
            if above.any(|above| catching.contains(&above)) {
                self.passed_to.insert(one.identity);
                if is_first && !is_a_job(one, alive) {
                    self.holds.stop(one.identity);
                }
            } else if self.holds.is_still(one.identity) {
                // Its ancestors have ended; if they had passed the signal on, it would be here.
                self.passed_to.remove(&one.identity);
            }
        }
    }

    /// Notes the processes that do not catch the signal and wait for one that does, and since when
    /// they no longer wait.
    fn note_waiting(&mut self, alive: &[Entry], catching: &BTreeSet<Identity>) {
        // A script may have set its `trap` only now.
        self.waiting.retain(|one, _| !catching.contains(one));
        let others = alive.iter().filter(|one| !catching.contains(&one.identity));
        for one in others {
            let is_above = |below: &Entry| {
                let mut above = ancestors(below, alive);
                above.any(|above| above.identity == one.identity)
            };
            let mut below = alive
                .iter()
                .filter(|below| catching.contains(&below.identity));
            let is_waiting = below.any(is_above);
            match self.waiting.get_mut(&one.identity) {
                Some(since) if is_waiting => *since = None,
                Some(since) => *since = since.or_else(|| Some(Instant::now())),
                None if is_waiting => drop(self.waiting.insert(one.identity, None)),
                None => {}
            }
        }
    }

    /// How all processes count as ended if the first one ended with `first`. If the request ended
    /// the first one, its ending says nothing: then it counts whether others have saved or are
    /// done.
    pub fn ending(&self, first: Ending) -> Ending {
        let done = Ending::Exit(0);
        if !self.has_ended(first) {
            first
        } else if let Some(saved) = self.orphans.iter().find(|one| one.is_preempted()) {
            *saved
        } else if !self.orphans.is_empty() && self.orphans.iter().all(|one| *one == done) {
            done
        } else {
            first
        }
    }

    /// Whether this is the ending of a process that does not handle the signal, or of a script
    /// whose command or `wait` the signal ended.
    pub fn has_ended(&self, first: Ending) -> bool {
        let signal = self.signal.as_raw();
        [Ending::Signal(signal), Ending::Exit(128 + signal)].contains(&first)
    }
}

/// The ancestors of a process. A table that is read while it changes may have
/// circles.
fn ancestors<'a>(one: &Entry, alive: &'a [Entry]) -> impl Iterator<Item = &'a Entry> {
    let parent = |one: &Entry| {
        let parent = one.parent;
        alive.iter().find(|other| other.identity.number == parent)
    };
    std::iter::successors(parent(one), move |one| parent(one)).take(alive.len())
}

/// Whether a process has a group, and no session, of its own below another process, as a shell with
/// job control (`set -m`) gives to each of its jobs. The `wait` and the `fg` of such a shell return
/// when a job is stopped, so its jobs must not be stopped; whether the signal reaches them is not
/// observed.
fn is_a_job(one: &Entry, alive: &[Entry]) -> bool {
    ancestors(one, alive)
        .next()
        .is_some_and(|parent| parent.group != one.group && parent.session == one.session)
}

/// Reaps an orphan that has become a child of this process. Returns how it ended.
fn reap(orphan: &Entry) -> Option<Ending> {
    if Some(orphan.parent) != own_number() {
        return None;
    }
    let pid = Pid::from_raw(orphan.identity.number)?;
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
    let status = waitid(WaitId::Pid(pid), options).ok()??;
    let exit = status.exit_status().map(Ending::Exit);
    exit.or_else(|| status.terminating_signal().map(Ending::Signal))
}

fn own_number() -> Option<i32> {
    Some(getpid().as_raw_nonzero().get())
}

/// Reaps what is left of a group, whose leader has been reaped.
pub fn reap_group(leader: Pid) {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
    while let Ok(Some(_)) | Err(Errno::INTR) = waitid(WaitId::Pgid(Some(leader)), options) {}
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    fn ended(first: Ending, orphans: &[Ending]) -> Ending {
        let mut request = Request {
            signal: Signal::TERM,
            leader: getpid(),
            begun: Instant::now(),
            patience: Duration::ZERO,
            asked: BTreeSet::new(),
            passed_to: BTreeSet::new(),
            holds: StoppedProcesses::new(Signal::TERM),
            moved: Instant::now(),
            known: BTreeSet::new(),
            reactions: BTreeSet::new(),
            waiting: BTreeMap::new(),
            orphans: Vec::new(),
        };
        request.orphans.extend(orphans);
        request.ending(first)
    }

    #[test]
    fn a_script_that_the_signal_has_ended_ends_as_its_command_did() {
        use Ending::{Exit, Signal};
        for script in [Signal(15), Exit(143)] {
            assert_eq!(ended(script, &[Exit(42)]), Exit(42));
            assert_eq!(ended(script, &[Signal(15), Exit(42), Exit(0)]), Exit(42));
            assert_eq!(ended(script, &[Exit(0), Exit(0)]), Exit(0));
            // `train | tee`, where the first one failed.
            assert_eq!(ended(script, &[Exit(1), Exit(0)]), script);
            assert_eq!(ended(script, &[]), script);
        }
        for own in [Exit(0), Exit(1), Exit(42), Signal(9)] {
            assert_eq!(ended(own, &[Exit(42), Exit(0)]), own);
        }
    }
}
