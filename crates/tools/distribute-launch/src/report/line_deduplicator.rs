//! Merges equal lines of several processes.
//!
//! A line waits 200 ms for the same line of other processes with the same role. Lines come out in
//! the order in which each first came in, so a process's own lines keep their order. The waiting
//! lines are bounded in number and bytes: when there are too many, the oldest one is let out.

use std::collections::{BTreeSet, VecDeque};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use crate::error::LaunchError;
use crate::job::task::{Role, Task};
use crate::report::console::Screen;

const WAIT: Duration = Duration::from_millis(200);
const ENTRIES_MAX: usize = 256;
const BYTES_MAX: usize = 1 << 20;

/// One line of one process, without its line break.
pub struct Line {
    pub task: Task,
    pub text: Vec<u8>,
}

struct Entry {
    role: Role,
    indexes: BTreeSet<usize>,
    text: Vec<u8>,
    due: Instant,
}

/// Lines that wait for equal lines.
pub struct LineDeduplicator {
    entries: VecDeque<Entry>,
    bytes: usize,
    /// The processes that print lines: a line that all of them printed need not wait.
    tasks: Vec<Task>,
}

impl LineDeduplicator {
    pub fn new(tasks: &[Task]) -> LineDeduplicator {
        LineDeduplicator {
            entries: VecDeque::new(),
            bytes: 0,
            tasks: tasks.to_vec(),
        }
    }

    /// Adds a line that arrived at `now`.
    pub fn push(&mut self, line: Line, now: Instant) {
        let Line { task, text } = line;
        let is_mine =
            |entry: &Entry| entry.role == task.role && entry.indexes.contains(&task.index);
        // An equal line before this process's last one would be out of order.
        let first = self.entries.iter().rposition(is_mine);
        let mut rest = self.entries.range_mut(first.map_or(0, |last| last + 1)..);
        if let Some(entry) = rest.find(|entry| entry.role == task.role && entry.text == text) {
            entry.indexes.insert(task.index);
            return;
        }
        self.bytes += text.len();
        self.entries.push_back(Entry {
            role: task.role,
            indexes: BTreeSet::from([task.index]),
            text,
            due: now + WAIT,
        });
    }

    /// Until when the oldest line waits.
    pub fn due(&self) -> Option<Instant> {
        self.entries.front().map(|entry| entry.due)
    }

    /// Takes the oldest line if it need not wait any more at `now`; without a time, any line.
    pub fn pop(&mut self, now: Option<Instant>) -> Option<Vec<u8>> {
        let front = self.entries.front()?;
        let is_role = |task: &&Task| task.role == front.role;
        let is_complete = front.indexes.len() >= self.tasks.iter().filter(is_role).count();
        let is_full = self.entries.len() > ENTRIES_MAX || self.bytes > BYTES_MAX;
        if !is_complete && !is_full && now.is_some_and(|now| now < front.due) {
            return None;
        }
        let entry = self.entries.pop_front()?;
        self.bytes -= entry.text.len();
        let mut line = prefix(entry.role, &entry.indexes).into_bytes();
        line.extend_from_slice(&entry.text);
        Some(line)
    }
}

/// `chief: `, `rank 2: `, `ranks 1-3,5: `, `ps 0-1: ` or `evaluator: `.
fn prefix(role: Role, indexes: &BTreeSet<usize>) -> String {
    let mut ranges: Vec<(usize, usize)> = Vec::new();
    for &index in indexes {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == index => *last = index,
            _ => ranges.push((index, index)),
        }
    }
    let texts = ranges
        .iter()
        .map(|(first, last)| {
            if first == last {
                first.to_string()
            } else {
                format!("{first}-{last}")
            }
        })
        .collect::<Vec<_>>()
        .join(",");
    match role {
        Role::Chief => "chief: ".to_owned(),
        Role::Worker if indexes.len() > 1 => format!("ranks {texts}: "),
        Role::Worker => format!("rank {texts}: "),
        Role::ParameterServer => format!("ps {texts}: "),
        Role::Evaluator => "evaluator: ".to_owned(),
    }
}

/// Shows the lines until all senders are gone. `broken` is called when the screen
/// fails.
pub fn show(
    lines: &Receiver<Line>,
    tasks: &[Task],
    screen: &Screen,
    broken: impl FnOnce(LaunchError),
) {
    let mut deduplicator = LineDeduplicator::new(tasks);
    let mut broken = Some(broken);
    let mut write = |line: Vec<u8>| {
        // Goes on reading after an error, so that no process blocks on its output.
        if broken.is_some()
            && let Err(error) = screen.line(&line)
            && let Some(broken) = broken.take()
        {
            broken(error);
        }
    };
    loop {
        let received = match deduplicator.due() {
            Some(due) => lines.recv_timeout(due.saturating_duration_since(Instant::now())),
            None => lines.recv().map_err(RecvTimeoutError::from),
        };
        match received {
            Ok(line) => deduplicator.push(line, Instant::now()),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break,
        }
        while let Some(line) = deduplicator.pop(Some(Instant::now())) {
            write(line);
        }
    }
    while let Some(line) = deduplicator.pop(None) {
        write(line);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::{BYTES_MAX, ENTRIES_MAX, Line, LineDeduplicator, WAIT};
    use crate::job::task::{Role, Task};

    fn workers(range: std::ops::RangeInclusive<usize>) -> Vec<Task> {
        let role = Role::Worker;
        range.map(|index| Task { role, index }).collect()
    }

    fn push(deduplicator: &mut LineDeduplicator, rank: usize, text: &str, now: Instant) {
        let task = workers(rank..=rank)[0];
        let text = text.as_bytes().to_vec();
        deduplicator.push(Line { task, text }, now);
    }

    fn popped(deduplicator: &mut LineDeduplicator, now: Option<Instant>) -> Vec<String> {
        let lines = std::iter::from_fn(|| deduplicator.pop(now));
        lines.map(|line| String::from_utf8(line).unwrap()).collect()
    }

    #[test]
    fn equal_lines_become_one_and_complete_ones_do_not_wait() {
        let (mut deduplicator, now) = (LineDeduplicator::new(&workers(1..=3)), Instant::now());
        push(&mut deduplicator, 3, "a", now);
        push(&mut deduplicator, 1, "a", now);
        assert_eq!(popped(&mut deduplicator, Some(now)), [""; 0]);
        push(&mut deduplicator, 2, "a", now);
        assert_eq!(popped(&mut deduplicator, Some(now)), ["ranks 1-3: a"]);
    }

    #[test]
    fn incomplete_lines_come_when_they_are_due_in_order() {
        let (mut deduplicator, now) = (LineDeduplicator::new(&workers(1..=5)), Instant::now());
        for (rank, text) in [(1, "a"), (3, "b"), (2, "a"), (5, "a"), (1, "b"), (1, "a")] {
            push(&mut deduplicator, rank, text, now);
        }
        assert_eq!(popped(&mut deduplicator, Some(now + WAIT / 2)), [""; 0]);
        let lines = popped(&mut deduplicator, Some(now + WAIT));
        assert_eq!(lines, ["ranks 1-2,5: a", "ranks 1,3: b", "rank 1: a"]);
    }

    #[test]
    fn a_line_does_not_overtake_another_of_its_process() {
        let (mut deduplicator, now) = (LineDeduplicator::new(&workers(1..=3)), Instant::now());
        for (rank, text) in [(1, "a"), (2, "b"), (2, "a"), (1, "b")] {
            push(&mut deduplicator, rank, text, now);
        }
        assert_eq!(
            popped(&mut deduplicator, None),
            ["rank 1: a", "ranks 1-2: b", "rank 2: a"]
        );
    }

    #[test]
    fn what_waits_is_bounded() {
        let (mut deduplicator, now) = (LineDeduplicator::new(&workers(1..=2)), Instant::now());
        for number in 0..ENTRIES_MAX + 3 {
            push(&mut deduplicator, 1, &number.to_string(), now);
        }
        assert_eq!(popped(&mut deduplicator, Some(now)).len(), 3);
        push(&mut deduplicator, 2, &"x".repeat(BYTES_MAX), now);
        assert_eq!(
            popped(&mut deduplicator, Some(now)).len(),
            ENTRIES_MAX + 1 - 1
        );
    }

    #[test]
    fn roles_do_not_mix() {
        let ps = |index| Task {
            role: Role::ParameterServer,
            index,
        };
        let evaluator = Task {
            role: Role::Evaluator,
            index: 0,
        };
        let tasks = [workers(1..=1), vec![ps(0), ps(1), evaluator]].concat();
        let (mut deduplicator, now) = (LineDeduplicator::new(&tasks), Instant::now());
        for task in tasks {
            let text = b"x".to_vec();
            deduplicator.push(Line { task, text }, now);
        }
        let lines = popped(&mut deduplicator, Some(now));
        assert_eq!(lines, ["rank 1: x", "ps 0-1: x", "evaluator: x"]);
    }
}
