//! SLURM's short forms: `node[001-003,007],x` for hosts and `2(x3),1` for tasks per node.

use super::environment::is_digits;
use super::error::shortened;
use super::{ClusterError, MAX_TASKS, Result};

/// The longest host name that DNS allows.
const MAX_NAME: usize = 253;

/// The hosts of a SLURM host list, in its order: `n[1-2],m5,o[03-04]` is n1, n2, m5, o03, o04
/// (TensorFlow's `expand_hostlist`). Numbers keep the leading zeros of the range's start.
///
/// As in TensorFlow, a name may have one pair of brackets, at its end.
///
/// # Errors
///
/// [`ClusterError::Hostlist`] for a list that cannot be read, [`ClusterError::BackwardsRange`]
/// for `[3-1]`, [`ClusterError::TooMany`] beyond [`MAX_TASKS`] hosts.
pub fn expand_hostlist(list: &str) -> Result<Vec<String>> {
    let mut hosts = Vec::new();
    for part in split(list).map_err(|why| unreadable(list, why))? {
        expand_part(list, part, &mut hosts)?;
    }
    Ok(hosts)
}

fn unreadable(list: &str, why: impl Into<String>) -> ClusterError {
    ClusterError::Hostlist {
        text: shortened(list),
        why: why.into(),
    }
}

/// The parts between commas that are outside of brackets. A comma at the very end is allowed.
fn split(list: &str) -> Result<Vec<&str>, &'static str> {
    let mut parts = Vec::new();
    let (mut start, mut in_brackets) = (0, false);
    for (place, c) in list.char_indices() {
        match c {
            '[' if in_brackets => return Err("brackets inside brackets"),
            '[' => in_brackets = true,
            ']' => in_brackets = false,
            ',' if !in_brackets => {
                if place == start {
                    return Err("an empty name");
                }
                parts.push(&list[start..place]);
                start = place + 1;
            }
            _ => {}
        }
    }
    if start < list.len() {
        parts.push(&list[start..]);
    }
    Ok(parts)
}

fn expand_part(list: &str, part: &str, hosts: &mut Vec<String>) -> Result<()> {
    let odd = |why: &str| unreadable(list, format!("'{}': {why}", shortened(part)));
    let Some((prefix, rest)) = part.split_once('[') else {
        if part.contains(']') {
            return Err(odd("a bracket too many"));
        }
        return push(list, part.to_string(), hosts);
    };
    let ranges = rest
        .strip_suffix(']')
        .filter(|ranges| !ranges.is_empty())
        .ok_or_else(|| odd("brackets must end the name and hold ranges"))?;
    if ranges.contains(['[', ']']) || prefix.contains(']') {
        return Err(odd("only one pair of brackets is supported"));
    }
    for range in ranges.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let width = first.len();
        let (first, last) = (number(list, first)?, number(list, last)?);
        if last < first {
            let text = shortened(list);
            return Err(ClusterError::BackwardsRange { text, first, last });
        }
        // Refused here already, so that no time is spent on the first of them.
        check_hosts((last - first + 1) as usize)?;
        for number in first..=last {
            push(list, format!("{prefix}{number:0width$}"), hosts)?;
        }
    }
    Ok(())
}

fn number(list: &str, digits: &str) -> Result<u64> {
    let number = digits
        .parse()
        .ok()
        .filter(|_| is_digits(digits) && digits.len() <= 18);
    number.ok_or_else(|| unreadable(list, format!("'{}' is not a number", shortened(digits))))
}

fn push(list: &str, host: String, hosts: &mut Vec<String>) -> Result<()> {
    if host.len() > MAX_NAME {
        let why = format!("a name of {} bytes; {MAX_NAME} is the most", host.len());
        return Err(unreadable(list, why));
    }
    hosts.push(host);
    check_hosts(hosts.len())
}

fn check_hosts(hosts: usize) -> Result<()> {
    ClusterError::check_limit(hosts, MAX_TASKS, "hosts in the host list")
}

/// The tasks of each node, in the order of the host list: `2(x3),1` is 2, 2, 2, 1
/// (TensorFlow's `expand_tasks_per_node`).
///
/// # Errors
///
/// [`ClusterError::TasksPerNode`] for a list that cannot be read, [`ClusterError::TooMany`]
/// beyond [`MAX_TASKS`] nodes or tasks.
pub fn expand_tasks_per_node(list: &str) -> Result<Vec<usize>> {
    let unreadable = || ClusterError::TasksPerNode {
        text: shortened(list),
    };
    let number = |digits: &str| {
        if is_digits(digits) {
            Ok(digits.parse().unwrap_or(usize::MAX))
        } else {
            Err(unreadable())
        }
    };
    let mut counts: Vec<usize> = Vec::new();
    let mut total: usize = 0;
    for part in list.split(',') {
        let (tasks, times) = match part.split_once("(x") {
            Some((tasks, times)) => (tasks, times.strip_suffix(')').ok_or_else(unreadable)?),
            None => (part, "1"),
        };
        let (tasks, times) = (number(tasks)?, number(times)?);
        total = total.saturating_add(tasks.saturating_mul(times));
        let most = counts.len().saturating_add(times).max(total);
        ClusterError::check_limit(most, MAX_TASKS, "tasks or nodes in the tasks per node")?;
        counts.extend(std::iter::repeat_n(tasks, times));
    }
    Ok(counts)
}
