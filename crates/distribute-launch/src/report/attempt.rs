//! What people read about a job that failed.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use serde::{Deserialize, Serialize};

use crate::job::task::{Role, Task};
use crate::report::outcome::{Ending, RootCause};
use crate::report::verdict::Verdict;

/// An attempt that is over, on this host or on all.
#[derive(Clone, Serialize, Deserialize)]
pub struct AttemptResult {
    pub verdict: Verdict,
    members: Vec<ProcessReport>,
}

/// One process of it.
#[derive(Clone, Serialize, Deserialize)]
pub struct ProcessReport {
    pub task: Task,
    pub host: String,
    pub pid: u32,
    pub ending: Ending,
    /// Whether the launcher told it to end before it did.
    pub is_asked: bool,
    pub log: String,
    pub last_lines: Vec<String>,
    /// The ranks that it says it lost; nothing if it says nothing, except in its last lines.
    #[serde(default)]
    pub lost: Option<Vec<usize>>,
}

impl ProcessReport {
    /// The ranks that it names.
    fn named(&self) -> BTreeSet<usize> {
        match &self.lost {
            Some(lost) => lost.iter().copied().collect(),
            None => named(&self.last_lines),
        }
    }
}

impl AttemptResult {
    pub fn new(verdict: Verdict, members: Vec<ProcessReport>) -> AttemptResult {
        AttemptResult { verdict, members }
    }

    /// The parts of several hosts as one, whose verdict is still to be found.
    pub fn join(parts: Vec<AttemptResult>) -> AttemptResult {
        AttemptResult {
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

    /// The rank that most of the processes name that failed by themselves, process `index` among
    /// them; none if that rank failed by itself as well, because its own failure says more.
    fn blamed(&self, index: usize) -> Option<usize> {
        let failed = |member: &ProcessReport| !member.is_asked && member.ending.is_failure();
        let mut votes: BTreeMap<usize, usize> = BTreeMap::new();
        for member in self.members.iter().filter(|member| failed(member)) {
            for rank in member.named() {
                *votes.entry(rank).or_default() += 1;
            }
        }
        let own = self.members.get(index)?.named();
        let (rank, _) = votes
            .into_iter()
            .filter(|(rank, _)| own.contains(rank))
            .max_by_key(|(rank, votes)| (*votes, Reverse(*rank)))?;
        let role = Role::Worker;
        let blamed = self.number(Task { role, index: rank })?;
        (blamed != index && !failed(&self.members[blamed])).then_some(blamed)
    }

    /// The worker without which others may go on after this failure: the process with this number,
    /// or the rank that it was lost without. None for a process that is no worker.
    pub fn lost_rank(&self, index: usize) -> Option<usize> {
        let lost = self.members.get(self.blamed(index).unwrap_or(index))?;
        (lost.task.role == Role::Worker).then_some(lost.task.index)
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
        let mut text = match self.blamed(index) {
            None => format!("the job failed because of {task}: {ending}\n  "),
            Some(blamed) => {
                let blamed = &self.members[blamed];
                format!(
                    "the job failed because of {}: the others lost it, as {task} says \
                     ({ending})\n  {0}: host {}, pid {}, log {}\n  {task}: ",
                    blamed.task, blamed.host, blamed.pid, blamed.log
                )
            }
        };
        text += &format!("host {host}, pid {pid}");
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

/// For programs that write no report: the ranks that lines of a process say were lost or did not
/// take part: `rank 1 was lost in` and `rank(s) [1, 3] did not take part`, as errors of the
/// collectives have it. Of such a program there is nothing but its text; all that depends on it is
/// which process the report of the failure names.
fn named(lines: &[String]) -> BTreeSet<usize> {
    let mut found = BTreeSet::new();
    for line in lines {
        for (at, _) in line.match_indices("rank ") {
            let (number, rest) = number(&line[at + 5..]);
            if rest.starts_with(" was lost in ") {
                found.extend(number);
            }
        }
        for (at, _) in line.match_indices("rank(s) [") {
            let Some((list, rest)) = line[at + 9..].split_once(']') else {
                continue;
            };
            if rest.starts_with(" did not take part") {
                found.extend(
                    list.split(", ")
                        .filter_map(|rank| rank.parse::<usize>().ok()),
                );
            }
        }
    }
    found
}

/// The number that a text begins with, and what follows.
fn number(text: &str) -> (Option<usize>, &str) {
    let end = text.find(|c: char| !c.is_ascii_digit());
    let (digits, rest) = text.split_at(end.unwrap_or(text.len()));
    (digits.parse().ok(), rest)
}

#[cfg(test)]
mod tests {
    use super::named;

    #[test]
    fn ranks_are_named_by_the_errors_of_the_collectives_only() {
        let of = |line: &str| named(&[line.to_owned()]).into_iter().collect::<Vec<_>>();
        let lost = "error: replica 0: rank 12 was lost in operation 7 (all_reduce): gone";
        assert_eq!(of(lost), [12]);
        let late = "operation 3 (barrier) timed out after 3.0s: rank(s) [1, 4] did not take part";
        assert_eq!(of(late), [1, 4]);
        for other in [
            "rank was lost in",
            "rank 3 is fine",
            "rank(s) [] did not take part",
            "rank ",
        ] {
            assert!(of(other).is_empty(), "{other}");
        }
    }
}
