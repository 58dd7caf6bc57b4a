//! One process of an attempt, with the group that it leads; what it writes, and what ends it.

pub mod guard;
pub mod leftovers;
pub mod logs;
pub mod memory;
pub mod output;
#[expect(unsafe_code, reason = "each use says why it is sound")]
mod parent_death;

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};

use crate::cgroup::OutOfMemory;
use crate::error::{LaunchError, Result};
use crate::job::Job;
use crate::job::task::Task;
use crate::report::attempt::ProcessReport;
use crate::report::console::Stream;
use crate::report::failure_report;
use crate::report::outcome::Ending;

pub const CONFIG_VARIABLE: &str = "TF_CONFIG";
pub const RESTART_VARIABLE: &str = "DISTRIBUTE_RESTART";
pub const TOKEN_VARIABLE: &str = "DISTRIBUTE_JOB_TOKEN";
/// The file in which a process that fails because of others may say so:
/// [`FailureReport`](crate::FailureReport).
pub const REPORT_VARIABLE: &str = "DISTRIBUTE_FAILURE_REPORT";
/// The file in which the first process may say how far the job is, if the launcher shows it:
/// [`Progress`](crate::Progress).
pub const PROGRESS_VARIABLE: &str = "DISTRIBUTE_PROGRESS";
/// A random mark of one attempt of one launcher. (The token is no such mark: launchers of the same
/// job may run on the same host.)
pub const MARK_VARIABLE: &str = "DISTRIBUTE_LAUNCH_MARK";

/// A process that was started. It is not reaped before it is dropped, so until then neither its
/// number nor its group's can belong to another process.
pub struct Process {
    pub task: Task,
    pub pid: Pid,
    log: PathBuf,
    /// The file in which the process may say why it failed.
    report: PathBuf,
    /// How the process ended, as far as was observed.
    pub ending: Option<Ending>,
    /// The first signal that it got from the launcher.
    pub asked: Option<Signal>,
    child: Child,
    /// What the kernel had counted before it was started.
    memory: OutOfMemory,
}

impl Process {
    /// Starts it, known to the guard. Returns its two output streams too.
    pub fn start(
        job: &Job,
        task: Task,
        variables: &[(&str, &str)],
        (log, report): (PathBuf, PathBuf),
        guard: Option<BorrowedFd<'_>>,
    ) -> Result<(Process, [(Stream, OwnedFd); 2])> {
        let [program, arguments @ ..] = job.command.as_slice() else {
            return Err(LaunchError::NoCommand);
        };
        let mut command = Command::new(program);
        command
            .args(arguments)
            .envs(variables.iter().copied())
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        parent_death::die_with_parent(&mut command, guard);
        let failed = |source: io::Error| {
            let command = program.clone();
            match source.kind() {
                io::ErrorKind::NotFound => LaunchError::CommandNotFound { command },
                io::ErrorKind::PermissionDenied => LaunchError::NotExecutable { command },
                _ => LaunchError::Spawn { command, source },
            }
        };
        let memory = OutOfMemory::now();
        let mut child = command.spawn().map_err(failed)?;
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
            log,
            report,
            ending: None,
            asked: None,
            child,
            memory,
        };
        let streams = [
            (Stream::Stdout, stdout.into()),
            (Stream::Stderr, stderr.into()),
        ];
        Ok((process, streams))
    }

    /// What people learn of it when it has ended, with its last lines on standard error.
    pub fn report(&self, mut last_lines: Vec<String>) -> ProcessReport {
        if self.asked.is_none() && self.ending.is_some_and(Ending::is_kill) {
            last_lines.extend(self.memory.explained());
        }
        ProcessReport {
            task: self.task,
            host: gethostname::gethostname().to_string_lossy().into_owned(),
            pid: self.pid.as_raw_nonzero().get().unsigned_abs(),
            ending: self.ending.unwrap_or(Ending::Unknown),
            is_asked: self.asked.is_some(),
            log: self.log.display().to_string(),
            last_lines,
            lost: failure_report::take(&self.report).map(|report| report.lost),
        }
    }

    /// Sends a signal to the group, whose leader may have ended already.
    pub fn send(&mut self, signal: Signal) {
        self.asked.get_or_insert(signal);
        // The group may have no process left that can get it.
        let _gone = kill_process_group(self.pid, signal);
    }
}

/// Kills what is left of the group and reaps the leader.
impl Drop for Process {
    fn drop(&mut self) {
        let _gone = kill_process_group(self.pid, Signal::KILL);
        let _status = self.child.wait();
    }
}

/// The process number that `text` is.
pub fn parse_pid(text: &str) -> Option<Pid> {
    Pid::from_raw(text.parse().ok().filter(|number| *number > 0)?)
}

/// Blocks until the process ends, and leaves it to be reaped.
pub fn wait(pid: Pid) -> Ending {
    loop {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        match waitid(WaitId::Pid(pid), options) {
            Ok(Some(status)) => {
                let exit = status.exit_status().map(Ending::Exit);
                let signal = || status.terminating_signal().map(Ending::Signal);
                return exit.or_else(signal).unwrap_or(Ending::Unknown);
            }
            Ok(None) | Err(Errno::INTR) => {}
            Err(_) => return Ending::Unknown,
        }
    }
}
