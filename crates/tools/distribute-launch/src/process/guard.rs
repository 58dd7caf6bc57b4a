//! The guard: a process beside the launcher that ends the job's processes if the launcher is
//! killed.
//!
//! The launcher, and the processes that it starts before their commands run, tell the guard on
//! its standard input what to end:
//!
//! ```text
//! attempt MARK    an attempt begins
//! group PID        the attempt has a process group with this number
//! gone PID         the group is gone, and its number may be used again
//! over             the attempt is over and nothing of it is left
//! keep             keep the temporary directory of the log files
//! ```
//!
//! When the input ends, for whatever reason, the guard ends those processes, removes the
//! directory and the launcher's runtime folder, and exits. At first it reports that it is ready,
//! so that the launcher notices a program that is not a guard.

use std::collections::HashSet;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufRead, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{self, Receiver, TryRecvError};
use std::thread::Builder;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::Pid;
use signal_hook::consts::SIGXFSZ;

use crate::detached;
use crate::error::{LaunchError, Result};
use crate::job::cluster::Token;
use crate::process::leftovers::{self, Marks};
use crate::process::{MARK_VARIABLE, Process, parse_pid};
use crate::room::has_room;
use crate::signals;

const READY: &str = "distribute-launch: the guard is ready";
/// How much the program may write before it is ready.
const READY_BYTES_MAX: usize = 4096;
/// How long the guard may take to say that it is ready, and to end.
const TIMEOUT: Duration = Duration::from_secs(10);
/// How long the guard may take to die of SIGKILL.
const DEATH: Duration = Duration::from_secs(1);
/// A guard that has not read its input for this long is replaced.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long the start of a guard may take.
const START_LIMIT: Duration = Duration::from_secs(20);
const UNREAD: &str = "the guard did not read what it was told";
/// How often a guard is replaced: one that always ends is of no use.
const REPLACED_MAX: u32 = 16;

/// The temporary directory of the job's log files, which may be made later than the guard.
const LOGS_VARIABLE: &str = "DISTRIBUTE_LAUNCH_LOGS";
/// The launcher's runtime folder, which may never be made.
const RUNTIME_VARIABLE: &str = "DISTRIBUTE_LAUNCH_RUNTIME";

/// What the guard removes, as far as it is there.
#[derive(Debug, Clone, Default)]
pub struct Folders {
    /// The temporary directory of log files, if there is one.
    pub logs: Option<PathBuf>,
    /// The runtime folder.
    pub runtime: Option<PathBuf>,
}

/// What the program of [`Job::guard`](crate::Job::guard) does, and nothing else: it waits until
/// its standard input ends, and then ends the processes that it was told of and removes the
/// temporary directory of log files if it is still there. It ignores the signals that the launcher
/// acts on. Without a launcher at the other end it returns at once.
pub fn guard_main() -> ExitCode {
    // The signals may be sent to all processes of a job.
    for signal in signals::all().chain([SIGXFSZ]) {
        let unused = Arc::new(AtomicBool::new(false));
        if signal_hook::flag::register(signal, unused).is_err() {
            return ExitCode::FAILURE;
        }
    }
    let mut stdout = io::stdout();
    if writeln!(stdout, "{READY}")
        .and_then(|()| stdout.flush())
        .is_err()
    {
        return ExitCode::FAILURE;
    }
    let mut left = Cleanup {
        marks: None,
        folders: Folders {
            logs: std::env::var_os(LOGS_VARIABLE).map(PathBuf::from),
            runtime: std::env::var_os(RUNTIME_VARIABLE).map(PathBuf::from),
        },
    };
    for line in io::stdin().lock().lines() {
        let Ok(line) = line else { break };
        left.follow(&line);
    }
    left.remove();
    ExitCode::SUCCESS
}

/// What the guard cleans up if the launcher is killed now.
struct Cleanup {
    marks: Option<Marks>,
    folders: Folders,
}

impl Cleanup {
    /// Handles a line from the launcher.
    fn follow(&mut self, line: &str) {
        match (line.split_once(' '), &mut self.marks) {
            (Some(("attempt", mark)), marks) => {
                *marks = Token::from_text(mark).map(|mark| Marks {
                    mark,
                    groups: Vec::new(),
                });
            }
            (Some(("group", pid)), Some(marks)) => marks.groups.extend(parse_pid(pid)),
            (Some(("gone", pid)), Some(marks)) => {
                let gone = parse_pid(pid);
                marks.groups.retain(|group| Some(*group) != gone);
            }
            (None, marks) if line == "over" => *marks = None,
            (None, _) if line == "keep" => self.folders.logs = None,
            _ => {}
        }
    }

    fn remove(self) {
        if let Some(marks) = self.marks {
            let _stuck = leftovers::kill(&marks, HashSet::new());
        }
        let Folders { logs, runtime } = self.folders;
        for folder in [logs, runtime].into_iter().flatten() {
            // Most often the launcher has removed it, or has not made it.
            let _none = std::fs::remove_dir_all(folder);
        }
    }
}

/// The launcher's side of the guard. Without a guard every call succeeds and does nothing.
///
/// A guard that was killed, or does not read, is replaced by another one, which is told what to
/// end; the launcher does not wait for it. If no other one can be started, the job goes on without
/// a guard.
pub struct Guard {
    command: Vec<OsString>,
    folders: Folders,
    running: Option<GuardProcess>,
    /// A guard that is being started because the last one is gone.
    successor: Option<Successor>,
    /// The current attempt.
    current: Option<Marks>,
    replaced: u32,
}

struct Successor {
    /// What happened to the guard before it.
    why: String,
    started: Receiver<io::Result<GuardProcess>>,
}

struct GuardProcess {
    child: Child,
    input: Option<Input>,
    stdout: ChildStdout,
}

/// The pipe to the guard. The reading end is kept open here too, so that writing to a guard that
/// has ended raises no SIGPIPE.
struct Input {
    writer: File,
    _reader: OwnedFd,
}

impl Guard {
    /// Starts the guard and waits until it is ready.
    pub fn start(command: Option<&[OsString]>, folders: Folders) -> Result<Guard> {
        let command = command.unwrap_or_default().to_vec();
        let start = |program: &OsString| {
            let (own, folders) = (command.clone(), folders.clone());
            let started = detached::run("guard", START_LIMIT, move || {
                GuardProcess::start(&own, &folders)
            });
            started.flatten().map_err(|source| LaunchError::Guard {
                program: program.clone(),
                source,
            })
        };
        let running = command.first().map(start).transpose()?;
        Ok(Guard {
            command,
            folders,
            running,
            successor: None,
            current: None,
            replaced: 0,
        })
    }

    /// An attempt begins.
    pub fn begin_attempt(&mut self, mark: &Token) {
        self.current = Some(Marks {
            mark: mark.clone(),
            groups: Vec::new(),
        });
        self.send(&format!("attempt {}\n", mark.secret()));
    }

    /// The pipe on which a process announces its group before its command runs.
    pub fn pipe(&self) -> Option<BorrowedFd<'_>> {
        let input = self.running.as_ref()?.input.as_ref()?;
        Some(input.writer.as_fd())
    }

    /// A process was started; it has announced its group itself, if the guard reads its input.
    pub fn group_started(&mut self, group: Pid) {
        if let Some(current) = &mut self.current {
            current.groups.push(group);
        }
        if self
            .pipe()
            .is_some_and(|pipe| !has_room(pipe, Duration::ZERO))
        {
            // This guard may have missed it: the next one is told.
            self.replace(UNREAD.to_owned());
        }
    }

    /// Forgets the group of a process and then reaps its leader: after that the number may be used
    /// again.
    pub fn reap(&mut self, process: Process) {
        let group = process.pid;
        if let Some(current) = &mut self.current {
            current.groups.retain(|other| *other != group);
        }
        self.send(&format!("gone {}\n", group.as_raw_nonzero()));
        drop(process);
    }

    pub fn attempt_ended(&mut self) {
        self.current = None;
        self.send("over\n");
    }

    /// Keeps the temporary directory of the log files.
    pub fn keep_logs(&mut self) {
        self.folders.logs = None;
        self.send("keep\n");
    }

    /// Whether there is a guard to watch, or one that is being started.
    pub fn is_running(&self) -> bool {
        self.running.is_some() || self.successor.is_some()
    }

    /// The guard's process, if there is one.
    pub fn pid(&self) -> Option<Pid> {
        let running = self.running.as_ref()?;
        Some(Pid::from_child(&running.child))
    }

    /// Begins to replace a guard that has ended, or looks whether the next one is there. Returns a
    /// message when that is decided. Does not wait.
    pub fn replace_if_ended(&mut self) -> Option<String> {
        let status = self.running.as_mut().map(|it| it.child.try_wait());
        if let Some(Ok(Some(status))) = status {
            self.replace(format!("the guard has ended ({status})"));
        }
        let started = match self.successor.as_ref()?.started.try_recv() {
            Err(TryRecvError::Empty) => return None,
            Err(TryRecvError::Disconnected) => Err(io::ErrorKind::BrokenPipe.into()),
            Ok(started) => started,
        };
        let why = self.successor.take()?.why;
        match started {
            Ok(running) => self.running = Some(running),
            Err(error) => {
                return Some(format!(
                    "{why}, and another one cannot be started ({error}); the job goes on without: \
                     should the launcher be killed, what its processes have started goes on"
                ));
            }
        }
        if let Some(Marks { mark, groups }) = self.current.clone() {
            self.send(&format!("attempt {}\n", mark.secret()));
            for group in groups {
                self.send(&format!("group {}\n", group.as_raw_nonzero()));
            }
        }
        if self.folders.logs.is_none() {
            // That may have been decided while it was started.
            self.send("keep\n");
        }
        Some(format!("{why}; another one does its work"))
    }

    /// Ends the guard and starts another one, on threads of their own.
    fn replace(&mut self, why: String) {
        let Some(mut old) = self.running.take() else {
            return;
        };
        let (sender, started) = mpsc::sync_channel(1);
        self.replaced += 1;
        let is_useless = self.replaced > REPLACED_MAX;
        let (command, folders) = (self.command.clone(), self.folders.clone());
        let _gone = old.child.kill();
        let thread = Builder::new().name("guard".to_owned()).spawn(move || {
            let next = if is_useless {
                Err(io::Error::other("it would end as those before it"))
            } else {
                GuardProcess::start(&command, &folders)
            };
            // A launcher that has ended needs none.
            let _over = sender.send(next);
            drop(old);
        });
        // Without a thread there is no successor, as the closed channel says.
        drop(thread);
        self.successor = Some(Successor { why, started });
    }

    fn send(&mut self, line: &str) {
        let Some(input) = self.running.as_mut().and_then(|it| it.input.as_mut()) else {
            return;
        };
        if has_room(input.writer.as_fd(), PATIENCE) {
            // A guard that has ended is noticed later, and its successor is told everything.
            let _ended = input.writer.write_all(line.as_bytes());
        } else {
            // It does not do its work: its successor is told everything.
            self.replace(UNREAD.to_owned());
        }
    }
}

impl GuardProcess {
    fn start(command: &[OsString], folders: &Folders) -> io::Result<GuardProcess> {
        let [program, arguments @ ..] = command else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC)?;
        // A group of its own and no mark of an outer job: a signal to the launcher's group, or the
        // guard of an outer launcher, does not end this guard.
        let mut child = Command::new(program)
            .args(arguments)
            .env_remove(MARK_VARIABLE)
            .env_remove(LOGS_VARIABLE)
            .env_remove(RUNTIME_VARIABLE)
            .envs(folders.logs.iter().map(|logs| (LOGS_VARIABLE, logs)))
            .envs(folders.runtime.iter().map(|it| (RUNTIME_VARIABLE, it)))
            .process_group(0)
            .stdin(reader.try_clone()?)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        let Some(stdout) = child.stdout.take() else {
            return Err(io::ErrorKind::BrokenPipe.into());
        };
        let mut running = GuardProcess {
            child,
            input: Some(Input {
                writer: writer.into(),
                _reader: reader,
            }),
            stdout,
        };
        running.await_ready()?;
        Ok(running)
    }
}

impl GuardProcess {
    fn await_ready(&mut self) -> io::Result<()> {
        let until = Instant::now() + TIMEOUT;
        let mut answer = Vec::new();
        while answer.len() < READY_BYTES_MAX {
            let mut bytes = [0; 64];
            match self.read_until(until, &mut bytes)? {
                0 => break,
                count => answer.extend_from_slice(&bytes[..count]),
            }
            let ended = answer.split_inclusive(|byte| *byte == b'\n');
            let mut ended = ended.filter_map(|line| line.strip_suffix(b"\n"));
            if ended.any(|line| line == READY.as_bytes()) {
                return Ok(());
            }
        }
        let message = "it did not answer as a guard does";
        Err(io::Error::new(io::ErrorKind::InvalidData, message))
    }

    /// Reads what is available; 0 at the end of the output.
    fn read_until(&mut self, until: Instant, bytes: &mut [u8]) -> io::Result<usize> {
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let left = Timespec::try_from(left).map_err(io::Error::other)?;
            let mut polled = [PollFd::from_borrowed_fd(self.stdout.as_fd(), PollFlags::IN)];
            match poll(&mut polled, Some(&left)) {
                Ok(0) => return Err(io::ErrorKind::TimedOut.into()),
                Ok(_) => return self.stdout.read(bytes),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// Ends the guard: it exits by itself when its input ends.
impl Drop for GuardProcess {
    fn drop(&mut self) {
        self.input = None;
        let until = Instant::now() + TIMEOUT;
        while matches!(self.read_until(until, &mut [0; 64]), Ok(1..)) {}
        // Its output has ended, or it is not a guard: there is nothing to wait for.
        let _ended = self.child.kill();
        // Not even SIGKILL ends a process that is stuck on a file system.
        let until = Instant::now() + DEATH;
        let _status = match self.read_until(until, &mut [0; 64]) {
            Err(error) if error.kind() == io::ErrorKind::TimedOut => self.child.try_wait(),
            _ => self.child.wait().map(Some),
        };
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use rustix::io::{ioctl_fionbio, read, write};
    use rustix::thread::gettid;

    use super::*;
    use crate::job::Job;
    use crate::job::task::Task;
    use crate::process::spawner::{self, Spawner};
    use crate::process::status;
    use crate::report::outcome::Ending;

    #[test]
    fn the_guard_knows_the_current_attempt_only() {
        let mut left = Cleanup {
            marks: None,
            folders: Folders {
                logs: Some("logs".into()),
                runtime: Some("runtime".into()),
            },
        };
        left.follow("group 7");
        assert!(left.marks.is_none());
        let mark = Token::random().unwrap();
        let attempt = format!("attempt {}", mark.secret());
        for line in [&attempt, "group 12", "group x", "group -3", "noise"] {
            left.follow(line);
        }
        let known = left.marks.as_ref().unwrap();
        assert_eq!(known.mark.secret(), mark.secret());
        let groups: Vec<i32> = known
            .groups
            .iter()
            .map(|pid| pid.as_raw_nonzero().get())
            .collect();
        assert_eq!(groups, [12]);
        left.follow("gone 12");
        assert!(left.marks.as_ref().unwrap().groups.is_empty());
        left.follow("over");
        assert!(left.marks.is_none() && left.folders.logs.is_some());
        left.follow("keep");
        assert!(left.folders.logs.is_none() && left.folders.runtime.is_some());
    }

    /// A guard that reports that it is ready and then runs this command.
    fn guard(then: &str) -> Guard {
        let script = format!("echo '{READY}'; {then}");
        let command = ["sh", "-c", &script].map(OsString::from);
        Guard::start(Some(&command), Folders::default()).unwrap()
    }

    /// How a process ends.
    fn wait(pid: Pid) -> Ending {
        loop {
            match status(pid) {
                Some(ending) => return ending,
                None => thread::yield_now(),
            }
        }
    }

    fn spawner() -> Spawner {
        Spawner::new(spawner::START_LIMIT).unwrap()
    }

    /// The message about the next guard, once it is there.
    fn replaced(guard: &mut Guard) -> String {
        loop {
            match guard.replace_if_ended() {
                Some(message) => return message,
                None => thread::yield_now(),
            }
        }
    }

    /// A process that succeeds at once.
    fn process(guard: Option<BorrowedFd<'_>>, spawner: &Spawner) -> Process {
        let (job, task) = (Job::new(["true"]), Task::worker(0));
        let (log, report) = (PathBuf::new(), PathBuf::new());
        let (process, _) = Process::start(&job, task, &[], log, report, guard, spawner).unwrap();
        process
    }

    #[test]
    fn a_guard_that_has_ended_ends_no_process_that_is_started_then() {
        let guard = guard("exit");
        wait(Pid::from_child(&guard.running.as_ref().unwrap().child));
        let spawner = spawner();
        let process = process(guard.pipe(), &spawner);
        assert_eq!(wait(process.pid), Ending::Exit(0));
    }

    /// Fills the pipe to a guard.
    fn fill(input: &Input) {
        ioctl_fionbio(&input.writer, true).unwrap();
        while write(&input.writer, &[0; 4096]).is_ok() {}
        ioctl_fionbio(&input.writer, false).unwrap();
    }

    #[test]
    fn a_guard_that_does_not_read_holds_up_no_start_and_is_replaced() {
        let mut guard = guard("exec >/dev/null; exec sleep 1000");
        guard.begin_attempt(&Token::random().unwrap());
        fill(guard.running.as_ref().unwrap().input.as_ref().unwrap());
        let spawner = spawner();
        let process = process(guard.pipe(), &spawner);
        assert_eq!(wait(process.pid), Ending::Exit(0));
        guard.group_started(process.pid);
        assert!(guard.pipe().is_none(), "it is told nothing more");
        let said = replaced(&mut guard);
        assert!(said.contains("did not read"), "{said}");
        assert!(said.ends_with("another one does its work"), "{said}");
        // The replacement is told what to end.
        assert_eq!(guard.current.as_ref().unwrap().groups, [process.pid]);
    }

    #[test]
    fn a_group_is_let_go_of_before_its_leader_is_reaped() {
        // This guard never reads, so the launcher waits at a full pipe.
        let mut guard = guard("exec >/dev/null; exec sleep 1000");
        let input = guard.running.as_ref().unwrap().input.as_ref().unwrap();
        let reader = input._reader.try_clone().unwrap();
        fill(input);
        let spawner = spawner();
        let process = process(None, &spawner);
        let pid = process.pid;
        assert_eq!(wait(pid), Ending::Exit(0));
        let (sender, receiver) = mpsc::channel();
        let reaping = thread::spawn(move || {
            sender.send(gettid()).unwrap();
            guard.reap(process);
        });
        // Wait until the thread sleeps at the full pipe.
        let thread = receiver.recv().unwrap().as_raw_nonzero();
        let state = format!("/proc/self/task/{thread}/stat");
        while !std::fs::read_to_string(&state).unwrap().contains(") S ") {
            thread::yield_now();
        }
        assert_eq!(wait(pid), Ending::Exit(0), "it was reaped");
        read(&reader, &mut [0; 1 << 16]).unwrap();
        reaping.join().unwrap();
        assert_eq!(wait(pid), Ending::Unknown, "it was not reaped");
    }
}
