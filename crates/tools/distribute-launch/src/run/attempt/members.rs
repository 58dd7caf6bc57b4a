//! The processes of an attempt on this host.

use std::collections::{BTreeSet, HashSet};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};

use crate::file_tasks::FileTasks;
use crate::job::task::{Role, Task};
use crate::process::Process;
use crate::process::request::Request;
use crate::process::table::{self, Identity};
use crate::report::attempt::ProcessReport;
use crate::report::outcome::Ending;
use crate::report::verdict::{Verdict, root_cause};
use crate::run::start::{LastLines, Started};

/// How often processes that were asked to end are checked.
const REQUEST_INTERVAL: Duration = Duration::from_millis(100);

/// The same while some of them are stopped.
const HOLD_INTERVAL: Duration = Duration::from_millis(20);

/// How long to wait for the end of all outputs after the processes have ended.
const LAST_LINES_WAIT: Duration = Duration::from_secs(5);

/// All processes of an attempt on this host, by their numbers.
pub struct Members {
    processes: Vec<Process>,
    outputs: Vec<LastLines>,
    /// The role whose processes end the job when they end.
    leading: Role,
    /// The processes that failed without having been asked to stop, in the order of observation.
    failures: Vec<(usize, Ending)>,
}

impl Members {
    pub fn new(leading: Role) -> Members {
        Members {
            processes: Vec::new(),
            outputs: Vec::new(),
            leading,
            failures: Vec::new(),
        }
    }

    pub fn push(&mut self, started: Started) {
        self.processes.push(started.process);
        self.outputs.push(started.last_lines);
    }

    /// Replaces a dead process by its restarted one. Returns the dead one.
    pub fn replace(&mut self, index: usize, started: Started) -> Process {
        self.outputs[index] = started.last_lines;
        std::mem::replace(&mut self.processes[index], started.process)
    }

    pub fn get_mut(&mut self, index: usize) -> Option<&mut Process> {
        self.processes.get_mut(index)
    }

    pub fn index_of(&self, task: Task) -> Option<usize> {
        self.processes.iter().position(|one| one.task == task)
    }

    pub fn has(&self, role: Role) -> bool {
        self.processes.iter().any(|one| one.task.role == role)
    }

    pub fn leading(&self) -> Role {
        self.leading
    }

    /// Where the processes of a role that run may say that they are slow, by their numbers.
    pub fn slow_requests(&self, role: Role) -> Vec<(usize, PathBuf)> {
        let all = self.processes.iter().enumerate();
        let running = all.filter(|(_, one)| one.task.role == role && one.ending.is_none());
        running
            .map(|(index, one)| (index, one.slow.clone()))
            .collect()
    }

    pub fn groups(&self) -> Vec<Pid> {
        self.processes.iter().map(|process| process.pid).collect()
    }

    pub fn are_running(&self) -> bool {
        self.processes.iter().any(|one| one.ending.is_none())
    }

    /// Whether all processes of a role that are here have ended.
    pub fn have_ended(&self, role: Role) -> bool {
        self.endings(role).all(|ending| ending.is_some())
    }

    fn endings(&self, role: Role) -> impl Iterator<Item = Option<Ending>> {
        let processes = self.processes.iter();
        let of_role = processes.filter(move |process| process.task.role == role);
        of_role.map(|process| process.ending)
    }

    pub fn add_failure(&mut self, index: usize, ending: Ending) {
        self.failures.push((index, ending));
    }

    /// The process that failed first, and how it ended.
    pub fn root_cause(&self) -> Option<(Task, Ending)> {
        let process = self.processes.get(root_cause(&self.failures)?)?;
        Some((process.task, process.ending.unwrap_or(Ending::Unknown)))
    }

    /// Asks the matching processes to end within `grace`, unless they have been asked.
    pub fn ask(&mut self, signal: Signal, grace: Duration, is_meant: impl Fn(Task) -> bool) {
        let all = table::all();
        let processes = self.processes.iter_mut();
        for process in processes.filter(|process| is_meant(process.task)) {
            if process.ending.is_none() && process.asked.is_none() {
                process.ask(signal, grace, &all);
            }
        }
    }

    /// Whether some processes that were asked to end have not.
    pub fn are_being_asked(&self) -> bool {
        self.processes.iter().any(Process::is_being_asked)
    }

    /// How soon processes that were asked to end are to be checked again.
    pub fn asking_interval(&self) -> Option<Duration> {
        let is_holding = self.processes.iter().any(Process::is_holding);
        let interval = if is_holding {
            HOLD_INTERVAL
        } else {
            REQUEST_INTERVAL
        };
        self.are_being_asked().then_some(interval)
    }

    /// Sends due requests to descendants. Returns the processes that have ended by now, and
    /// how.
    pub fn go_on_asking(&mut self) -> Vec<(usize, Ending)> {
        if !self.are_being_asked() {
            return Vec::new();
        }
        let all = table::all();
        let processes = self.processes.iter_mut().enumerate();
        let asked = processes.filter(|(_, process)| process.is_being_asked());
        let ended = asked.filter_map(|(index, process)| Some((index, process.go_on(&all)?)));
        ended.collect()
    }

    /// All processes that a request to end has reached, descendants included.
    pub fn asked(&self) -> BTreeSet<Identity> {
        let requests = self.processes.iter().filter_map(|one| one.request.as_ref());
        requests.flat_map(Request::asked).copied().collect()
    }

    /// Gives up the processes that still run. Returns their tasks and process numbers.
    pub fn give_up(&mut self) -> Vec<(Task, i32)> {
        let running = self
            .processes
            .iter_mut()
            .filter(|process| process.ending.is_none());
        let given_up = running.map(|process| {
            process.give_up();
            (process.task, process.pid.as_raw_nonzero().get())
        });
        given_up.collect()
    }

    /// The processes that were given up.
    pub fn given_up(&self) -> HashSet<Pid> {
        let given_up = self.processes.iter().filter(|one| one.is_given_up);
        given_up.map(|one| one.pid).collect()
    }

    pub fn kill(&mut self) {
        for process in &mut self.processes {
            if process.ending.is_none() {
                process.kill();
            }
        }
    }

    /// How the attempt ended on this host, once all processes have ended.
    pub fn verdict(&self, is_interrupted: bool) -> Verdict {
        if let Some(index) = root_cause(&self.failures) {
            return Verdict::Failed(index);
        }
        let leaders: Vec<Ending> = self.endings(self.leading).flatten().collect();
        if leaders.iter().all(|ending| *ending == Ending::Exit(0)) {
            return Verdict::Succeeded;
        }
        if is_interrupted && leaders.iter().any(|ending| ending.is_failure()) {
            Verdict::Stopped
        } else {
            Verdict::Preempted
        }
    }

    /// The reports of all processes, once all have ended. Waits a moment for the ends of their
    /// outputs, which may be delayed.
    pub fn reports(&mut self, files: &FileTasks) -> Vec<ProcessReport> {
        let until = Instant::now() + LAST_LINES_WAIT;
        let outputs = std::mem::take(&mut self.outputs).into_iter();
        let last_lines = outputs.map(|output| {
            let left = until.saturating_duration_since(Instant::now());
            output.recv_timeout(left).unwrap_or_default()
        });
        let members = self.processes.iter().zip(last_lines);
        members
            .map(|(process, last_lines)| process.take_report(last_lines, files))
            .collect()
    }
}
