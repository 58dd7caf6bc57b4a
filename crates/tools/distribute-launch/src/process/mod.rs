//! One process of an attempt and the group that it leads: its output, and how it is ended.

pub mod guard;
pub mod leftovers;
pub mod log_writer;
pub mod logs;
pub mod memory;
pub mod orphans;
pub mod output;
#[expect(unsafe_code, reason = "each use says why it is sound")]
mod parent_death;
pub mod request;
pub mod runtime_folder;
pub mod spawner;
mod stopped_processes;
pub mod table;

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};

use crate::cgroup::OutOfMemory;
use crate::error::{LaunchError, Result};
use crate::file_tasks::FileTasks;
use crate::job::Job;
use crate::job::task::Task;
use crate::process::request::Request;
use crate::process::spawner::Spawner;
use crate::process::table::Entry;
use crate::report::attempt::ProcessReport;
use crate::report::console::Stream;
use crate::report::failure_report;
use crate::report::outcome::Ending;
use crate::report::slow_request;

pub const CONFIG_VARIABLE: &str = "TF_CONFIG";
/// Names the file with the cluster, if that is too large for `TF_CONFIG`.
pub const CLUSTER_FILE_VARIABLE: &str = "DISTRIBUTE_CLUSTER_FILE";
pub const RESTART_VARIABLE: &str = "DISTRIBUTE_RESTART";
pub const TOKEN_VARIABLE: &str = "DISTRIBUTE_JOB_TOKEN";
/// The file in which a process that fails because of others may say so:
/// [`FailureReport`](crate::FailureReport).
pub const REPORT_VARIABLE: &str = "DISTRIBUTE_FAILURE_REPORT";
/// The file in which a worker that is slow for long says so, if the job goes on without such
/// workers.
pub const SLOW_VARIABLE: &str = "DISTRIBUTE_SLOW";
/// The file in which the first process may say how far the job is, if the launcher shows it:
/// [`Progress`](crate::Progress).
pub const PROGRESS_VARIABLE: &str = "DISTRIBUTE_PROGRESS";
/// A random mark of one attempt of one launcher. (The token is no such mark: launchers of the same
/// job may run on the same host.)
pub const MARK_VARIABLE: &str = "DISTRIBUTE_LAUNCH_MARK";

/// How long a process that was killed may take to end before nothing waits for it any more.
const DEATH: Duration = Duration::from_secs(1);
/// How long the system may take to say how a process has ended.
const STATUS: Duration = Duration::from_secs(2);
/// How often to look again where the system does not announce an event.
const LOOK: Duration = Duration::from_millis(20);

/// A process that was started. It is not reaped before it is dropped, so until then neither its
/// number nor its group's can belong to another process.
pub struct Process {
    pub task: Task,
    pub pid: Pid,
    log: PathBuf,
    /// The file in which the process may say that it is slow.
    pub slow: PathBuf,
    /// The file in which the process may say why it failed.
    report: PathBuf,
    /// How the process ended, as far as was observed.
    pub ending: Option<Ending>,
    /// The first signal that it got from the launcher.
    pub asked: Option<Signal>,
    /// Whether the launcher has sent SIGKILL.
    is_killed: bool,
    /// The request to end that it and its descendants were sent.
    pub request: Option<Request>,
    /// How it ended, if descendants were asked to end and are still running.
    left_others: Option<Ending>,
    /// Whether it was given up: not even SIGKILL ended it.
    pub is_given_up: bool,
    child: Child,
    /// The kernel's count of out-of-memory kills before it was started.
    memory: OutOfMemory,
}

impl Process {
    /// Starts a process, with the guard informed. Also returns its two output streams.
    pub fn start(
        job: &Job,
        task: Task,
        variables: &[(&'static str, String)],
        log: PathBuf,
        report: PathBuf,
        guard: Option<BorrowedFd<'_>>,
        spawner: &Spawner,
    ) -> Result<(Process, [(Stream, OwnedFd); 2])> {
        let [program, arguments @ ..] = job.command.as_slice() else {
            return Err(LaunchError::NoCommand);
        };
        let failed = |source: io::Error| {
            let command = program.clone();
            match source.kind() {
                io::ErrorKind::NotFound => LaunchError::CommandNotFound { command },
                io::ErrorKind::PermissionDenied => LaunchError::NotExecutable { command },
                _ => LaunchError::Spawn { command, source },
            }
        };
        let mut command = Command::new(program);
        command
            .args(arguments)
            // That of an outer launcher is for another cluster.
            .env_remove(CLUSTER_FILE_VARIABLE)
            .envs(variables.iter().map(|(name, value)| (name, value)))
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        // A copy: the start may outlast the guard.
        let guard = guard.map(|guard| guard.try_clone_to_owned()).transpose();
        parent_death::die_with_parent(&mut command, guard.map_err(failed)?);
        let memory = OutOfMemory::now();
        let mut child = spawner.spawn(command).map_err(failed)?;
        let streams = child.stdout.take().zip(child.stderr.take());
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        let (Some((stdout, stderr)), Some(pid)) = (streams, pid) else {
            let _ended = child.kill();
            let _status = child.wait();
            return Err(failed(io::ErrorKind::BrokenPipe.into()));
        };
        let process = Process {
            task,
            pid,
            slow: slow_request::path(&log),
            log,
            report,
            ending: None,
            asked: None,
            is_killed: false,
            request: None,
            left_others: None,
            is_given_up: false,
            child,
            memory,
        };
        let streams = [
            (Stream::Stdout, stdout.into()),
            (Stream::Stderr, stderr.into()),
        ];
        Ok((process, streams))
    }

    /// What people learn about the process once it has ended, with its last lines on standard
    /// error. Reads and deletes the file in which the process says why it failed.
    pub fn take_report(&self, mut last_lines: Vec<String>, files: &FileTasks) -> ProcessReport {
        if self.asked.is_none() && self.ending.is_some_and(Ending::is_kill) {
            last_lines.extend(self.memory.explained());
        }
        ProcessReport {
            task: self.task,
            host: gethostname::gethostname().to_string_lossy().into_owned(),
            pid: self.pid.as_raw_nonzero().get().unsigned_abs(),
            ending: self.ending.unwrap_or(Ending::Unknown),
            is_asked: self.asked.is_some() && !self.was_killed_by_others(),
            is_given_up: self.is_given_up,
            log: self.log.display().to_string(),
            last_lines,
            lost: failure_report::take(&self.report, files).map(|report| report.lost),
        }
    }

    /// Whether it was ended by a signal that did not come from the launcher, even if the
    /// launcher had asked it to end: the system may report this death a little later than its
    /// consequences.
    fn was_killed_by_others(&self) -> bool {
        let own = self.asked.map(|asked| Ending::Signal(asked.as_raw()));
        let is_kill = self.ending == Some(Ending::Signal(Signal::KILL.as_raw()));
        is_kill && !self.is_killed && self.ending != own
    }

    /// Kills the group, whose leader may have ended already.
    pub fn kill(&mut self) {
        self.is_killed = true;
        self.asked.get_or_insert(Signal::KILL);
        // The group may have no process left.
        let _gone = kill_process_group(self.pid, Signal::KILL);
        // Some processes may have left the group.
        let others = self.request.iter().flat_map(Request::known);
        others.for_each(|one| leftovers::send(*one, Signal::KILL));
    }

    /// Asks it and its descendants to end within `grace`; see [`Request`].
    pub fn ask(&mut self, signal: Signal, grace: Duration, all: &[Entry]) {
        self.asked.get_or_insert(signal);
        orphans::adopt(true);
        self.request = Some(Request::new(self.pid, signal, grace, all));
    }

    /// Whether it or descendants were asked to end and have not.
    pub fn is_being_asked(&self) -> bool {
        self.request.is_some() && self.ending.is_none()
    }

    /// Whether some descendants are stopped for a moment.
    pub fn is_holding(&self) -> bool {
        let request = self.request.as_ref();
        self.is_being_asked() && request.is_some_and(Request::is_holding)
    }

    /// Notes that the process has ended. Returns how it counts as ended, or `None` as long as
    /// descendants still do what they were asked.
    pub fn ended(&mut self, first: Ending) -> Option<Ending> {
        let leaves =
            |request: &mut Request| request.has_ended(first) && request.go_on(&table::all()) > 0;
        if self.request.as_mut().is_some_and(leaves) {
            self.left_others = Some(first);
            return None;
        }
        if let Some(request) = &mut self.request {
            request.let_go();
        }
        let request = self.request.as_ref();
        Some(request.map_or(first, |request| request.ending(first)))
    }

    /// Sends due requests to descendants. Returns how it ended once the last of them has
    /// ended.
    pub fn go_on(&mut self, all: &[Entry]) -> Option<Ending> {
        let request = self.request.as_mut()?;
        let left = request.go_on(all);
        let first = self.left_others.filter(|_| left == 0)?;
        self.left_others = None;
        Some(request.ending(first))
    }

    /// Gives the process up: nothing waits for it any more.
    pub fn give_up(&mut self) -> Ending {
        if let Some(request) = &mut self.request {
            request.let_go();
        }
        self.is_given_up = self.left_others.is_none();
        *self
            .ending
            .insert(self.left_others.unwrap_or(Ending::Unknown))
    }
}

/// Kills what is left of the group and reaps the leader, unless the system does not let it end.
impl Drop for Process {
    fn drop(&mut self) {
        let _gone = kill_process_group(self.pid, Signal::KILL);
        if !self.is_given_up {
            has_ended_within(self.pid, DEATH);
        }
        let _status = self.child.try_wait();
        request::reap_group(self.pid);
    }
}

/// The process number that `text` is.
pub fn parse_pid(text: &str) -> Option<Pid> {
    Pid::from_raw(text.parse().ok().filter(|number| *number > 0)?)
}

/// Blocks until the process ends, without reaping it. Returns `None` if `stop` ends first.
pub fn wait(pid: Pid, stop: BorrowedFd<'_>) -> Option<Ending> {
    let end = End::of(pid);
    let mut ended = None;
    loop {
        if let Some(ending) = status(pid) {
            return Some(ending);
        }
        if end.has_come(Duration::ZERO) {
            // Its status is kept for a debugger that traces it, and may never come here.
            let since = *ended.get_or_insert_with(Instant::now);
            if since.elapsed() >= STATUS {
                return Some(table::ending(pid.as_raw_nonzero().get()));
            }
        }
        if end.await_or_stop(stop, ended.is_some()) {
            return None;
        }
    }
}

/// How a process has ended, if the system says so.
fn status(pid: Pid) -> Option<Ending> {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
    loop {
        match waitid(WaitId::Pid(pid), options) {
            Ok(status) => {
                let status = status?;
                let exit = status.exit_status().map(Ending::Exit);
                let signal = || status.terminating_signal().map(Ending::Signal);
                return Some(exit.or_else(signal).unwrap_or(Ending::Unknown));
            }
            Err(Errno::INTR) => {}
            Err(_) => return Some(Ending::Unknown),
        }
    }
}

/// Waits up to `limit` for the end of a process, and returns whether it has come.
fn has_ended_within(pid: Pid, limit: Duration) -> bool {
    let (end, until) = (End::of(pid), Instant::now() + limit);
    while status(pid).is_none() {
        let left = until.saturating_duration_since(Instant::now());
        if end.has_come(left.min(LOOK)) || left.is_zero() {
            break;
        }
    }
    end.has_come(Duration::ZERO) || status(pid).is_some()
}

/// The end of a process, to wait for.
struct End(Option<OwnedFd>);

impl End {
    /// Without a handle of the process (an old kernel, another system, no descriptor is left) its
    /// status is looked at again and again.
    #[cfg(target_os = "linux")]
    fn of(pid: Pid) -> End {
        use rustix::process::{PidfdFlags, pidfd_open};

        End(pidfd_open(pid, PidfdFlags::empty()).ok())
    }

    #[cfg(not(target_os = "linux"))]
    fn of(_pid: Pid) -> End {
        End(None)
    }

    /// Whether it comes within this time; false where there is no handle.
    fn has_come(&self, time: Duration) -> bool {
        let Ok(time) = Timespec::try_from(time) else {
            return false;
        };
        let mut polled: Vec<PollFd<'_>> = self.polled().collect();
        let ready = poll(&mut polled, Some(&time));
        ready.is_ok_and(|ready| ready > 0)
    }

    /// Waits for it, or a moment if only the status is missing. Returns whether `stop` has ended.
    fn await_or_stop(&self, stop: BorrowedFd<'_>, has_come: bool) -> bool {
        let limit = Timespec::try_from(LOOK).ok();
        let limit = limit.filter(|_| has_come || self.0.is_none());
        let mut polled = vec![PollFd::from_borrowed_fd(stop, PollFlags::IN)];
        polled.extend(self.polled().filter(|_| !has_come));
        match poll(&mut polled, limit.as_ref()) {
            Ok(_) => !polled[0].revents().is_empty(),
            Err(error) => error != Errno::INTR,
        }
    }

    fn polled(&self) -> impl Iterator<Item = PollFd<'_>> {
        let process = self.0.iter();
        process.map(|process| PollFd::new(process, PollFlags::IN))
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use rustix::pipe::{PipeFlags, pipe_with};

    use super::*;
    use crate::job::task::Task;

    fn start(command: &[&str]) -> (Process, Spawner) {
        let (job, task) = (Job::new(command), Task::worker(0));
        let (log, report) = (PathBuf::new(), PathBuf::new());
        let spawner = Spawner::new(spawner::START_LIMIT).unwrap();
        let started = Process::start(&job, task, &[], log, report, None, &spawner);
        (started.unwrap().0, spawner)
    }

    #[test]
    fn a_given_up_process_is_not_waited_for() {
        let (mut process, _spawner) = start(&["sleep", "1000"]);
        let (stop, stopper) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        drop(stopper);
        // The process has not ended.
        assert_eq!(wait(process.pid, stop.as_fd()), None);
        assert_eq!(process.give_up(), Ending::Unknown);
    }
}
