//! The guard: a process beside the launcher that ends the job's processes should the launcher be
//! killed.
//!
//! The launcher and, before their commands run, the processes that it starts write to the guard's
//! standard input what there is to end:
//!
//! ```text
//! attempt MARK    an attempt begins
//! group PID        it has a process group with this number
//! gone PID         the group is no more, and its number may become another's
//! over             nothing is left of the attempt
//! ```
//!
//! When the input ends, for whatever reason, the guard ends what it knows of, and itself. It says
//! that it is ready first, so that the launcher notices if the program is not a guard at all.

use std::ffi::OsString;
use std::io::{self, BufRead, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::Pid;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::cluster::Token;
use crate::leftovers::{self, Marks};
use crate::process::{MARK_VARIABLE, parse_pid};
use crate::{LaunchError, Result};

const READY: &str = "distribute-launch: the guard is ready";
/// How much the program may write before that.
const GREETING_BYTES_MAX: usize = 4096;
/// How long the guard may take to say that it is ready, and to end.
const PATIENCE: Duration = Duration::from_secs(10);

/// What the program of [`Job::guard`](crate::Job::guard) does, and nothing else: it waits until
/// its standard input ends, and then ends the processes it was told of. It ignores SIGTERM, SIGINT
/// and SIGHUP. Without a launcher at the other end it returns at once.
pub fn guard_main() -> ExitCode {
    for signal in [SIGTERM, SIGINT, SIGHUP] {
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
    let mut marks = None;
    for line in io::stdin().lock().lines() {
        let Ok(line) = line else { break };
        follow(&line, &mut marks);
    }
    if let Some(marks) = marks {
        leftovers::kill(&marks);
    }
    ExitCode::SUCCESS
}

fn follow(line: &str, marks: &mut Option<Marks>) {
    match (line.split_once(' '), marks) {
        (Some(("attempt", mark)), marks) => {
            *marks = Token::from_text(mark).map(|mark| Marks {
                mark,
                groups: Vec::new(),
            });
        }
        (Some(("group", pid)), Some(marks)) => {
            marks.groups.extend(parse_pid(pid));
        }
        (Some(("gone", pid)), Some(marks)) => {
            let gone = parse_pid(pid);
            marks.groups.retain(|group| Some(*group) != gone);
        }
        (None, marks) if line == "over" => *marks = None,
        _ => {}
    }
}

/// The launcher's side; without a guard everything succeeds and does nothing.
pub struct Guard(Option<Running>);

struct Running {
    program: OsString,
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: ChildStdout,
}

impl Guard {
    /// Starts the guard and waits until it is ready.
    pub fn start(command: Option<&[OsString]>) -> Result<Guard> {
        let Some([program, arguments @ ..]) = command else {
            return Ok(Guard(None));
        };
        let error = |source| LaunchError::Guard {
            program: program.clone(),
            source,
        };
        // A group of its own and no mark of an outer job: what ends this launcher, a signal to its
        // group or the guard of an outer launcher, does not end its guard.
        let mut child = Command::new(program)
            .args(arguments)
            .env_remove(MARK_VARIABLE)
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map_err(error)?;
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
        let Some(stdout) = stdout else {
            return Err(error(io::ErrorKind::BrokenPipe.into()));
        };
        let mut running = Running {
            program: program.clone(),
            child,
            stdin,
            stdout,
        };
        running.await_ready().map_err(error)?;
        Ok(Guard(Some(running)))
    }

    pub fn attempt(&mut self, mark: &Token) -> Result<()> {
        self.tell(&format!("attempt {}\n", mark.secret()))
    }

    /// Where a process says which group it leads, before its command runs.
    pub fn pipe(&self) -> Option<BorrowedFd<'_>> {
        Some(self.0.as_ref()?.stdin.as_ref()?.as_fd())
    }

    pub fn gone(&mut self, group: Pid) {
        // As below: a guard that is gone has nothing to forget.
        let _gone = self.tell(&format!("gone {}\n", group.as_raw_nonzero()));
    }

    pub fn over(&mut self) {
        // A guard that is gone has nothing to forget; the next attempt finds out.
        let _gone = self.tell("over\n");
    }

    fn tell(&mut self, line: &str) -> Result<()> {
        let Some(running) = &mut self.0 else {
            return Ok(());
        };
        let written = match &mut running.stdin {
            Some(stdin) => stdin.write_all(line.as_bytes()),
            None => Ok(()),
        };
        written.map_err(|source| LaunchError::Guard {
            program: running.program.clone(),
            source,
        })
    }
}

impl Running {
    fn await_ready(&mut self) -> io::Result<()> {
        let until = Instant::now() + PATIENCE;
        let mut answer = Vec::new();
        while answer.len() < GREETING_BYTES_MAX {
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

    /// Reads what there is; 0 at the end of its output.
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

/// Ends the guard: it goes by itself when its input ends.
impl Drop for Running {
    fn drop(&mut self) {
        self.stdin = None;
        let until = Instant::now() + PATIENCE;
        while matches!(self.read_until(until, &mut [0; 64]), Ok(1..)) {}
        // Its output has ended, or it is no guard: either way there is nothing to wait for.
        let _ended = self.child.kill();
        let _status = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::{Token, follow};

    #[test]
    fn the_guard_knows_the_current_attempt_only() {
        let mut marks = None;
        follow("group 7", &mut marks);
        assert!(marks.is_none());
        let mark = Token::random().unwrap();
        let attempt = format!("attempt {}", mark.secret());
        for line in [&attempt, "group 12", "group x", "group -3", "noise"] {
            follow(line, &mut marks);
        }
        let known = marks.as_ref().unwrap();
        assert_eq!(known.mark.secret(), mark.secret());
        let groups: Vec<i32> = known
            .groups
            .iter()
            .map(|pid| pid.as_raw_nonzero().get())
            .collect();
        assert_eq!(groups, [12]);
        follow("gone 12", &mut marks);
        assert!(marks.as_ref().unwrap().groups.is_empty());
        follow("over", &mut marks);
        assert!(marks.is_none());
    }
}
