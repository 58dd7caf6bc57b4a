//! What people read about a job that failed.

use std::fmt::Write;

use serde::{Deserialize, Serialize};

use crate::process::Process;
use crate::verdict::Verdict;
use crate::{Ending, RootCause, Task};

/// An attempt that is over, on this host or on all.
#[derive(Clone, Serialize, Deserialize)]
pub struct Ended {
    pub verdict: Verdict,
    members: Vec<Member>,
}

/// One process of it.
#[derive(Clone, Serialize, Deserialize)]
struct Member {
    task: Task,
    host: String,
    pid: u32,
    ending: Ending,
    /// Whether the launcher told it to end before it did.
    is_asked: bool,
    log: String,
    last_lines: Vec<String>,
}

impl Ended {
    pub fn new(verdict: Verdict, processes: &[Process], last_lines: Vec<Vec<String>>) -> Ended {
        let host = gethostname::gethostname().to_string_lossy().into_owned();
        let members = processes.iter().zip(last_lines);
        let members = members.map(|(process, last_lines)| Member {
            task: process.task,
            host: host.clone(),
            pid: process.pid.as_raw_nonzero().get().unsigned_abs(),
            ending: process.ending.unwrap_or(Ending::Unknown),
            is_asked: process.asked.is_some(),
            log: process.log.display().to_string(),
            last_lines,
        });
        Ended {
            verdict,
            members: members.collect(),
        }
    }

    /// The parts of several hosts as one, whose verdict is still to be found.
    pub fn join(parts: Vec<Ended>) -> Ended {
        Ended {
            verdict: Verdict::Succeeded,
            members: parts.into_iter().flat_map(|part| part.members).collect(),
        }
    }

    /// The number of a task's process.
    pub fn number(&self, task: Task) -> Option<usize> {
        self.members.iter().position(|member| member.task == task)
    }

    /// The process with this number as the reason for the failure.
    pub fn root_cause(&self, index: usize) -> Option<RootCause> {
        let member = self.members.get(index)?;
        Some(RootCause {
            task: member.task,
            host: member.host.clone(),
            pid: member.pid,
            ending: member.ending,
            last_lines: member.last_lines.clone(),
        })
    }

    /// The block about the root cause, with one line for each of the others.
    pub fn describe(&self, index: usize, cause: &RootCause) -> String {
        let RootCause {
            task,
            host,
            pid,
            ending,
            ..
        } = cause;
        let mut text = format!("the job failed because of {task}: {ending}\n");
        text += &format!("  host {host}, pid {pid}");
        if let Some(member) = self.members.get(index) {
            text += &format!(", log {}", member.log);
        }
        match cause.last_lines.len() {
            0 => text += "\n  it wrote nothing to standard error",
            1 => text += "\n  its last line on standard error:",
            lines => text += &format!("\n  its last {lines} lines on standard error:"),
        }
        for line in &cause.last_lines {
            text += &format!("\n    | {line}");
        }
        let others = self.members.iter().enumerate();
        for (_, other) in others.filter(|(number, _)| *number != index) {
            let how = match other.is_asked {
                true => " after the launcher had stopped it",
                false => "",
            };
            // Writing to a string does not fail.
            let _ok = write!(text, "\n  {}: {}{how}", other.task, other.ending);
        }
        text
    }
}
