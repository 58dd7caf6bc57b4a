//! The report about a job that failed.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use serde::{Deserialize, Serialize};

use crate::job::task::{Role, Task};
use crate::report::outcome::{Ending, RootCause};
use crate::report::verdict::Verdict;

/// The result of an attempt, on this host or on all hosts.
#[derive(Clone, Serialize, Deserialize)]
pub struct AttemptResult {
    pub verdict: Verdict,
    members: Vec<ProcessReport>,
}

/// One process of an attempt.
#[derive(Clone, Serialize, Deserialize)]
pub struct ProcessReport {
    pub task: Task,
    pub host: String,
    pub pid: u32,
    pub ending: Ending,
    /// Whether the launcher told it to end before it did.
    pub is_asked: bool,
    /// Whether it does not end, not even by SIGKILL.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_given_up: bool,
    pub log: String,
    pub last_lines: Vec<String>,
    /// The ranks that it reports as lost; `None` if it wrote no report: then only its last lines
    /// may name some.
    #[serde(default)]
    pub lost: Option<Vec<usize>>,
}

impl ProcessReport {
    /// Whether it failed without having been told to end.
    fn has_failed(&self) -> bool {
        !self.is_asked && self.ending.is_failure()
    }

    /// The ranks that it names as lost.
    fn named(&self) -> BTreeSet<usize> {
        match &self.lost {
            Some(lost) => lost.iter().copied().collect(),
            None => named(&self.last_lines),
        }
    }
}

/// The cause of a failure; processes are given by their numbers.
struct Fault {
    /// The process whose end explains the failure best.
    cause: usize,
    /// The lost rank that made this process fail.
    lost: Option<usize>,
}

impl AttemptResult {
    pub fn new(verdict: Verdict, members: Vec<ProcessReport>) -> AttemptResult {
        AttemptResult { verdict, members }
    }

    /// Joins the results of several hosts; the verdict is still to be found.
    pub fn join(parts: Vec<AttemptResult>) -> AttemptResult {
        AttemptResult {
            verdict: Verdict::Succeeded,
            members: parts.into_iter().flat_map(|part| part.members).collect(),
        }
    }

    /// The number of the process of a task.
    pub fn number(&self, task: Task) -> Option<usize> {
        self.members.iter().position(|member| member.task == task)
    }

    /// The root cause, if the process with this number is at fault.
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

    /// Which process is at fault when process `index` was the first one seen to fail: that
    /// process, or the rank that most of the processes name that failed by themselves.
    ///
    /// A rank that is cut off also fails by itself and names the ranks that it cannot reach:
    /// each side accuses the other. The smaller side, whose ranks name more others, is taken to be
    /// cut off; of two equal sides the one without rank 0, which holds what the job has saved. A
    /// rank that failed and names no other is the cause of what the others say about it.
    fn fault(&self, index: usize) -> Fault {
        let own = Fault {
            cause: index,
            lost: None,
        };
        let is_plain = |member: &ProcessReport| !member.ending.is_final();
        if self.accused_by(index).is_empty() || !self.members.get(index).is_some_and(is_plain) {
            return own;
        }
        let Some(lost) = self.most_accused() else {
            return own;
        };
        let is_silent = self.accused_by(lost).is_empty();
        if self.members[lost].has_failed() && is_silent {
            return Fault {
                cause: lost,
                lost: None,
            };
        }
        let all = std::iter::once(index).chain(0..self.members.len());
        let mut names_it = all.filter(|number| self.accused_by(*number).contains(&lost));
        names_it.next().map_or(own, |cause| Fault {
            cause,
            lost: Some(lost),
        })
    }

    /// The processes that process `number` names, if it failed by itself.
    fn accused_by(&self, number: usize) -> BTreeSet<usize> {
        let member = self.members.get(number);
        let named = member
            .filter(|member| member.has_failed())
            .map(ProcessReport::named)
            .unwrap_or_default();
        let numbers = named
            .iter()
            .filter_map(|rank| self.number(Task::worker(*rank)));
        numbers.filter(|other| *other != number).collect()
    }

    /// Whether two equal sides accuse each other completely, so that it is unknown which one is
    /// cut off.
    fn is_undecided(&self, lost: usize) -> bool {
        let accused = self.accused_by(lost);
        let all = 0..self.members.len();
        let accusers: BTreeSet<usize> = all
            .filter(|number| self.accused_by(*number).contains(&lost))
            .collect();
        let mut sides = accusers.iter().map(|number| self.accused_by(*number).len());
        !accused.is_empty() && accused == accusers && sides.all(|side| side == accusers.len())
    }

    /// The process that is named by most of the processes that failed by themselves.
    fn most_accused(&self) -> Option<usize> {
        let mut votes: BTreeMap<usize, usize> = BTreeMap::new();
        for number in 0..self.members.len() {
            for accused in self.accused_by(number) {
                *votes.entry(accused).or_default() += 1;
            }
        }
        let of_chief = self
            .number(Task::worker(0))
            .map(|chief| self.accused_by(chief))
            .unwrap_or_default();
        let most = votes.into_iter().max_by_key(|(number, votes)| {
            let member = &self.members[*number];
            let accuses = self.accused_by(*number).len();
            (
                *votes,
                self.votes_of_stopped(member.task.index),
                // The chain of accusations begins there.
                member.has_failed() && accuses == 0,
                accuses,
                of_chief.contains(number),
                Reverse(member.task.index),
            )
        });
        most.map(|(number, _)| number)
    }

    /// How many processes that the launcher had told to end name a rank in their report. They may
    /// also name processes that were told to end before them.
    fn votes_of_stopped(&self, rank: usize) -> usize {
        let stopped = self.members.iter().filter(|member| member.is_asked);
        let reports = stopped.filter_map(|member| member.lost.as_ref());
        reports.filter(|lost| lost.contains(&rank)).count()
    }

    /// The process whose end explains best why the job failed, if process `index` was the first
    /// one seen to fail.
    pub fn cause(&self, index: usize) -> usize {
        self.fault(index).cause
    }

    /// The workers that ended like this.
    pub fn ranks_ended(&self, ending: Ending) -> Vec<usize> {
        let members = self.members.iter();
        let ended =
            members.filter(|member| member.task.role == Role::Worker && member.ending == ending);
        ended.map(|member| member.task.index).collect()
    }

    /// The worker without which the job may go on after this failure: the process with this
    /// number, or the lost rank that made it fail. `None` if it is not a worker.
    pub fn lost_rank(&self, index: usize) -> Option<usize> {
        let Fault { cause, lost } = self.fault(index);
        let lost = self.members.get(lost.unwrap_or(cause))?;
        (lost.task.role == Role::Worker).then_some(lost.task.index)
    }

    /// The report: a block about the root cause, and one line for each other process.
    pub fn describe(&self, index: usize, cause: &RootCause) -> String {
        let RootCause {
            task,
            host,
            pid,
            ending,
            ..
        } = cause;
        let lost = self.fault(index).lost.filter(|lost| *lost != index);
        let mut text = match lost {
            None => format!("the job failed because of {task}: {ending}\n  "),
            Some(lost) => {
                let blamed = &self.members[lost];
                format!(
                    "the job failed because of {}: the others lost it, as {task} says \
                     ({ending})\n  {0}: host {}, pid {}, log {}\n  {task}: ",
                    blamed.task, blamed.host, blamed.pid, blamed.log
                )
            }
        };
        text += &format!("host {host}, pid {pid}");
        if let Some(lost) = lost.filter(|lost| self.is_undecided(*lost)) {
            let blamed = self.members[lost].task;
            text += &format!(
                "\n  {blamed} says the same of the other side: it is unknown which of the two \
                 equal sides is cut off; look at the network of both"
            );
        }
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
            if other.is_given_up {
                let ProcessReport {
                    task, host, pid, ..
                } = other;
                let _ok = write!(
                    text,
                    "\n  {task}: does not end, not even by SIGKILL: host {host}, pid {pid}"
                );
                continue;
            }
            let how = if other.is_asked {
                " after the launcher had stopped it"
            } else {
                ""
            };
            // Writing to a string does not fail.
            let _ok = write!(text, "\n  {}: {}{how}", other.task, other.ending);
        }
        text
    }
}

/// For programs that write no report: the ranks that the last lines of a process name as lost.
/// It looks for the wording of the collectives' errors: `rank 1 was lost in` and `rank(s) [1, 3]
/// did not take part`. Only the process that the report of the failure names depends on this text.
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
    use super::{AttemptResult, ProcessReport, named};
    use crate::job::task::Task;
    use crate::report::outcome::Ending;
    use crate::report::verdict::Verdict;

    /// A worker that failed by itself, or was told to end, and names these ranks.
    fn worker(index: usize, is_asked: bool, lost: &[usize]) -> ProcessReport {
        ProcessReport {
            task: Task::worker(index),
            host: format!("host-{index}"),
            pid: 1,
            ending: if is_asked {
                Ending::Signal(15)
            } else {
                Ending::Exit(1)
            },
            is_asked,
            is_given_up: false,
            log: String::new(),
            last_lines: Vec::new(),
            lost: Some(lost.to_vec()),
        }
    }

    /// The headline, and the rank without which an elastic job goes on, if process `first` was
    /// seen first.
    fn blamed(members: &[ProcessReport], first: usize) -> (String, Option<usize>) {
        let ended = AttemptResult::new(Verdict::Failed(first), members.to_vec());
        let cause = ended.cause(first);
        let described = ended.describe(cause, &ended.root_cause(cause).unwrap());
        let headline = described.lines().next().unwrap_or_default().to_owned();
        (headline, ended.lost_rank(first))
    }

    #[test]
    fn the_worker_that_was_cut_off_is_to_blame_whatever_was_seen_first() {
        for count in 3..6 {
            for cut_off in 0..count {
                let others: Vec<usize> = (0..count).filter(|rank| *rank != cut_off).collect();
                let lost = |rank| {
                    if rank == cut_off {
                        others.clone()
                    } else {
                        vec![cut_off]
                    }
                };
                let members: Vec<_> = (0..count)
                    .map(|rank| worker(rank, false, &lost(rank)))
                    .collect();
                for first in 0..count {
                    let (headline, rank) = blamed(&members, first);
                    let said = format!("because of rank {cut_off}: the others lost it, as rank ");
                    assert!(headline.contains(&said), "{first}: {headline}");
                    assert_eq!(rank, Some(cut_off), "{first} of {count}");
                }
            }
        }
    }

    #[test]
    fn of_two_sides_neither_is_said_to_be_the_one_for_certain() {
        let described = |lost: &[&[usize]]| {
            let of = |(rank, lost): (usize, &&[usize])| worker(rank, false, lost);
            let members: Vec<_> = lost.iter().enumerate().map(of).collect();
            let ended = AttemptResult::new(Verdict::Failed(0), members);
            let cause = ended.cause(0);
            ended.describe(cause, &ended.root_cause(cause).unwrap())
        };
        let said = "it is unknown which of the two equal sides is cut off";
        for sides in [&[&[1][..], &[0]][..], &[&[2, 3], &[2, 3], &[0, 1], &[0, 1]]] {
            assert!(described(sides).contains(said), "{}", described(sides));
        }
        for sides in [&[&[1][..], &[]][..], &[&[2], &[2], &[0, 1]]] {
            assert!(!described(sides).contains(said), "{}", described(sides));
        }
    }

    /// All processes except the first failed one are told to end before they can fail.
    #[test]
    fn the_worker_that_was_cut_off_is_to_blame_when_others_were_stopped() {
        for first in 0..2 {
            let told = |rank| worker(rank, rank != first, if rank == first { &[2] } else { &[] });
            let members = [told(0), told(1), worker(2, false, &[0, 1])];
            for seen in [first, 2] {
                assert_eq!(blamed(&members, seen).1, Some(2));
            }
        }
        // A stopped process had reported the loss before.
        let members = [
            worker(0, true, &[2]),
            worker(1, true, &[]),
            worker(2, false, &[0, 1]),
        ];
        let said = [worker(3, false, &[2])];
        let members = [&members[..], &said].concat();
        assert_eq!(blamed(&members, 2).1, Some(2));
    }

    #[test]
    fn of_two_halves_the_one_without_rank_0_was_cut_off() {
        let halves: [&[usize]; 4] = [&[2, 3], &[2, 3], &[0, 1], &[0, 1]];
        let members: Vec<_> = (0..4)
            .map(|rank| worker(rank, false, halves[rank]))
            .collect();
        for first in 0..4 {
            assert_eq!(blamed(&members, first).1, Some(2));
        }
        let two = [worker(0, false, &[1]), worker(1, false, &[0])];
        for first in 0..2 {
            assert_eq!(blamed(&two, first).1, Some(1));
        }
    }

    #[test]
    fn a_rank_that_failed_and_names_no_other_is_the_cause_also_when_it_is_seen_later() {
        let mut crashed = worker(1, false, &[]);
        crashed.ending = Ending::Exit(7);
        let members = [worker(0, false, &[1]), crashed, worker(2, false, &[0])];
        for first in 0..3 {
            let (headline, rank) = blamed(&members, first);
            assert_eq!(headline, "the job failed because of rank 1: exit code 7");
            assert_eq!(rank, Some(1));
        }
    }

    /// A worker that hangs names no other rank and does not end by itself.
    #[test]
    fn a_rank_that_hung_is_to_blame() {
        let members = [
            worker(0, false, &[2]),
            worker(1, false, &[2]),
            worker(2, true, &[]),
        ];
        for first in 0..2 {
            assert_eq!(blamed(&members, first).1, Some(2));
        }
    }

    #[test]
    fn a_refused_or_diverged_process_is_to_blame_itself() {
        for code in [2, 43] {
            let mut refused = worker(0, false, &[1]);
            refused.ending = Ending::Exit(code);
            let members = [refused, worker(1, true, &[])];
            assert_eq!(blamed(&members, 0).1, Some(0));
        }
    }

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
