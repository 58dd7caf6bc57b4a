//! The system's process table: processes, their parents and groups, and their signals.

use std::collections::BTreeSet;

use rustix::process::Pid;

use crate::report::outcome::Ending;

/// Identifies a process, even if its number is used again later.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Identity {
    /// Its number.
    pub number: i32,
    /// When it was started, in the system's clock ticks.
    started: u64,
}

impl Identity {
    /// Whether it was started before the other one.
    pub fn is_older_than(self, other: Identity) -> bool {
        self.started < other.started
    }
}

/// What a process does with a signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Disposition {
    /// The process has a handler for it, or waits for it.
    Catches,
    /// The process ignores the signal, or it has its default effect.
    Plain,
}

/// One line of the table.
#[derive(Debug, Clone, Copy)]
pub struct Entry {
    pub identity: Identity,
    pub parent: i32,
    pub group: i32,
    pub session: i32,
    /// It has ended, and its parent has not reaped it.
    pub has_ended: bool,
}

/// The process with this number, if there is one.
pub fn entry(number: i32) -> Option<Entry> {
    let stat = std::fs::read(format!("/proc/{number}/stat")).ok()?;
    // "pid (name) state ppid pgrp ...", and the name may hold anything.
    let after_name = stat.iter().rposition(|byte| *byte == b')')?;
    let text = String::from_utf8_lossy(&stat[after_name + 1..]);
    let mut fields = text.split_whitespace();
    let state = fields.next()?;
    let mut number_at = |skipped| fields.nth(skipped)?.parse::<u64>().ok();
    let (parent, group, session) = (number_at(0)?, number_at(0)?, number_at(0)?);
    let started = number_at(15)?;
    Some(Entry {
        identity: Identity { number, started },
        parent: i32::try_from(parent).ok()?,
        group: i32::try_from(group).ok()?,
        session: i32::try_from(session).ok()?,
        has_ended: matches!(state, "Z" | "X"),
    })
}

/// How a process has ended that is not reaped, as far as the table says.
pub fn ending(number: i32) -> Ending {
    let stat = std::fs::read(format!("/proc/{number}/stat")).unwrap_or_default();
    let after_name = stat.iter().rposition(|byte| *byte == b')');
    let text = String::from_utf8_lossy(&stat[after_name.map_or(stat.len(), |at| at + 1)..]);
    // As `wait` reports it, in the last field; 0 is also shown to who may not know.
    let status = text.split_whitespace().nth(49);
    match status.and_then(|status| status.parse::<i32>().ok()) {
        None | Some(0) => Ending::Unknown,
        Some(status) if status & 0x7f == 0 => Ending::Exit(status >> 8 & 0xff),
        Some(status) => Ending::Signal(status & 0x7f),
    }
}

/// The whole table; empty on systems without one.
pub fn all() -> Vec<Entry> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    numbers.filter_map(entry).collect()
}

/// The family of the process with this number: itself, its group, the `known` ones, and all
/// their descendants.
pub fn family(leader: Pid, known: &BTreeSet<Identity>, all: &[Entry]) -> Vec<Entry> {
    let leader = leader.as_raw_nonzero().get();
    let belongs = |one: &Entry| {
        one.identity.number == leader || one.group == leader || known.contains(&one.identity)
    };
    let (mut family, mut others): (Vec<Entry>, Vec<Entry>) = all.iter().copied().partition(belongs);
    loop {
        let is_child = |one: &Entry| family.iter().any(|own| own.identity.number == one.parent);
        let (children, rest): (Vec<Entry>, Vec<Entry>) = others.into_iter().partition(is_child);
        others = rest;
        if children.is_empty() {
            return family;
        }
        family.extend(children);
    }
}

/// What a process does with a signal of this number. A process that blocks it waits for it
/// without a handler.
pub fn disposition(number: i32, signal: i32) -> Disposition {
    let status = status(number);
    match ["SigCgt:", "SigBlk:"].map(|field| has_bit(&status, field, signal)) {
        [false, false] => Disposition::Plain,
        _ => Disposition::Catches,
    }
}

/// Whether a process was sent this signal and has not taken it yet.
pub fn is_pending(number: i32, signal: i32) -> bool {
    let status = status(number);
    ["ShdPnd:", "SigPnd:"]
        .iter()
        .any(|field| has_bit(&status, field, signal))
}

fn status(number: i32) -> String {
    std::fs::read_to_string(format!("/proc/{number}/status")).unwrap_or_default()
}

/// Whether all threads of a process are stopped, so that it takes no signal before it goes on.
pub fn is_stopped(number: i32) -> bool {
    let threads = std::fs::read_dir(format!("/proc/{number}/task"));
    let mut threads = threads.into_iter().flatten().flatten().peekable();
    threads.peek().is_some()
        && threads.all(|thread| {
            let stat = std::fs::read(thread.path().join("stat")).unwrap_or_default();
            let after_name = stat.iter().rposition(|byte| *byte == b')');
            let state = after_name.and_then(|end| stat.get(end + 2).copied());
            // A process that has ended takes none either.
            matches!(state, None | Some(b'T' | b't' | b'Z' | b'X'))
        })
}

/// Whether the bit of a signal is set in a field of a process' status.
pub fn has_bit(status: &str, field: &str, signal: i32) -> bool {
    let mut masks = status.lines().filter_map(|line| line.strip_prefix(field));
    let mask = masks.next();
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_in_the_table() {
        let own = i32::try_from(std::process::id()).unwrap();
        let found = entry(own).unwrap();
        assert_eq!(found.identity, entry(own).unwrap().identity);
        assert!(!found.has_ended);
        let family = family(Pid::from_raw(own).unwrap(), &BTreeSet::new(), &all());
        assert!(family.iter().any(|one| one.identity == found.identity));
        // Rust programs ignore SIGPIPE, and no process can catch SIGKILL.
        assert_eq!(disposition(own, 9), Disposition::Plain);
        let text = "SigIgn:\t0000000000001000\nSigCgt:\t0000000000004002\n";
        assert!(has_bit(text, "SigIgn:", 13) && has_bit(text, "SigCgt:", 15));
        assert!(!has_bit(text, "SigCgt:", 13) && !has_bit("", "SigCgt:", 1));
    }
}
