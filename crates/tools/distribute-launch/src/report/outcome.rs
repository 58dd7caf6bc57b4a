use std::fmt;

use serde::{Deserialize, Serialize};

use crate::job::task::Task;

/// The exit code of a process that was asked to stop and has saved a checkpoint.
pub const PREEMPTED_EXIT_CODE: u8 = 42;

/// The exit code of a process whose command line, configuration or input is wrong: it would be
/// wrong again, so the job is not started again.
pub const REFUSED_EXIT_CODE: u8 = 2;

/// The exit code of a process whose training has diverged (a loss or a weight that is NaN or
/// infinite): the same command would compute the same numbers again, so the job is not started
/// again.
pub const DIVERGED_EXIT_CODE: u8 = 43;

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Ending {
    /// The process exited with this code.
    Exit(i32),
    /// This signal ended the process.
    Signal(i32),
    /// The system did not report how.
    Unknown,
}

impl Ending {
    /// The code that a shell gives for this ending: 128 + n for signal n.
    pub fn exit_code(self) -> u8 {
        match self {
            Ending::Exit(code) => u8::try_from(code & 0xff).unwrap_or(1),
            Ending::Signal(signal) => signal_exit_code(signal),
            Ending::Unknown => 1,
        }
    }

    /// Whether another start of the same command would end in the same way.
    pub(crate) fn is_final(self) -> bool {
        let codes = [REFUSED_EXIT_CODE, DIVERGED_EXIT_CODE];
        codes
            .map(|code| Ending::Exit(i32::from(code)))
            .contains(&self)
    }

    /// Whether it was killed, or a shell reports that its command was.
    pub(crate) fn is_kill(self) -> bool {
        let kill = rustix::process::Signal::KILL.as_raw();
        self == Ending::Signal(kill) || self == Ending::Exit(128 + kill)
    }

    /// Whether this is a failure: neither success nor "stopped after saving".
    pub(crate) fn is_failure(self) -> bool {
        self != Ending::Exit(0) && !self.is_preempted()
    }

    pub(crate) fn is_preempted(self) -> bool {
        self == Ending::Exit(i32::from(PREEMPTED_EXIT_CODE))
    }
}

fn signal_exit_code(signal: i32) -> u8 {
    u8::try_from(128 + (signal & 0x7f)).unwrap_or(u8::MAX)
}

/// `exit code 3` or `killed by SIGKILL (signal 9)`.
impl fmt::Display for Ending {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Ending::Exit(code) => write!(formatter, "exit code {code}"),
            Ending::Signal(signal) => match signal_hook::low_level::signal_name(*signal) {
                Some(name) => write!(formatter, "killed by {name} (signal {signal})"),
                None => write!(formatter, "killed by signal {signal}"),
            },
            Ending::Unknown => write!(formatter, "ended in a way that the system did not report"),
        }
    }
}

/// The process that made a job fail.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct RootCause {
    /// Which process it was.
    pub task: Task,
    /// The name of its host.
    pub host: String,
    /// The id of the process.
    pub pid: u32,
    /// How the process ended.
    pub ending: Ending,
    /// The last lines that it wrote to standard error, 20 at most; long ones are cut.
    pub last_lines: Vec<String>,
}

/// How a job ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Outcome {
    /// All workers exited with 0; with parameter servers, the chief did.
    Succeeded {
        /// How often the job was started again.
        restarts: u32,
    },
    /// All workers exited with 0 or 42, some with 42, and the job was not to be started again; with
    /// parameter servers, the chief exited with 42.
    Preempted {
        /// How often the job was started again.
        restarts: u32,
    },
    /// A process failed, and the job was not to be started again.
    Failed {
        /// The process that failed first.
        cause: Box<RootCause>,
        /// How often the job was started again.
        restarts: u32,
    },
    /// The launcher was signalled, and not all workers have saved and exited with 0 or 42.
    Stopped {
        /// The signal that the launcher got.
        signal: i32,
        /// How often the job was started again.
        restarts: u32,
    },
}

impl Outcome {
    /// The launcher's exit code: 0, 42, the root cause's code, or 128 + n for signal n.
    pub fn exit_code(&self) -> u8 {
        match self {
            Outcome::Succeeded { .. } => 0,
            Outcome::Preempted { .. } => PREEMPTED_EXIT_CODE,
            Outcome::Failed { cause, .. } => cause.ending.exit_code(),
            Outcome::Stopped { signal, .. } => signal_exit_code(*signal),
        }
    }
}
