//! Suppresses repeated lines.
//!
//! Lines count as equal if they differ only in numbers: ports, ids, times.

use std::collections::HashMap;
use std::time::{Duration, Instant};

/// The period in which equal lines are counted, from the first one on.
const SPAN: Duration = Duration::from_secs(10);
/// Number of equal lines that are shown in this period.
const SHOWN: u64 = 3;
/// Number of different lines that are counted; further ones are always shown.
const KINDS: usize = 256;

/// The counters of all kinds of lines.
#[derive(Debug, Default)]
pub(crate) struct Repeats {
    begun: Option<Instant>,
    counts: HashMap<String, u64>,
}

/// A kind of line, and the number of omitted lines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LeftOut {
    /// The line with `#` in place of numbers.
    pub(crate) line: String,
    pub(crate) count: u64,
}

impl Repeats {
    /// Whether to show a line, and the counts of omitted lines to report first.
    pub(crate) fn admit(&mut self, line: &str, now: Instant) -> (Vec<LeftOut>, bool) {
        let is_over = self
            .begun
            .is_none_or(|begun| now.duration_since(begun) >= SPAN);
        let left_out = if is_over { self.take() } else { Vec::new() };
        self.begun.get_or_insert(now);
        let kind = kind(line);
        if self.counts.len() >= KINDS && !self.counts.contains_key(&kind) {
            return (left_out, true);
        }
        let count = self.counts.entry(kind).or_default();
        *count += 1;
        (left_out, *count <= SHOWN)
    }

    /// The counts of omitted lines; resets the counters.
    pub(crate) fn take(&mut self) -> Vec<LeftOut> {
        self.begun = None;
        let counts = std::mem::take(&mut self.counts).into_iter();
        let mut left_out: Vec<LeftOut> = counts
            .filter(|(_, count)| *count > SHOWN)
            .map(|(line, count)| LeftOut {
                line,
                count: count - SHOWN,
            })
            .collect();
        left_out.sort_by(|a, b| a.line.cmp(&b.line));
        left_out
    }
}

/// The line with `#` in place of each number.
fn kind(line: &str) -> String {
    let mut kind = String::with_capacity(line.len());
    for letter in line.chars() {
        if !letter.is_ascii_digit() {
            kind.push(letter);
        } else if !kind.ends_with('#') {
            kind.push('#');
        }
    }
    kind
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_hundred_lines_that_say_the_same_three_are_shown_and_the_rest_is_counted() {
        let (mut repeats, begun) = (Repeats::default(), Instant::now());
        let mut shown = 0;
        for port in 0..100_u32 {
            let now = begun + Duration::from_millis(u64::from(port) * 90);
            let line = format!(
                "turned a connection away (remote=10.0.0.1:{})",
                40_000 + port
            );
            let (left_out, show) = repeats.admit(&line, now);
            assert_eq!(left_out, []);
            shown += usize::from(show);
        }
        assert_eq!(shown, 3);
        // Another one says what came before it.
        let (left_out, show) = repeats.admit("something else", begun + SPAN);
        assert!(show);
        let line = "turned a connection away (remote=#.#.#.#:#)".to_string();
        assert_eq!(left_out, [LeftOut { line, count: 97 }]);
        assert_eq!(repeats.take(), []);
    }

    #[test]
    fn many_kinds_cost_no_memory_without_end() {
        let (mut repeats, now) = (Repeats::default(), Instant::now());
        for kind in 0..2 * KINDS {
            let line = "x".repeat(kind);
            assert!(repeats.admit(&line, now).1);
        }
        assert!(repeats.counts.len() <= KINDS);
    }
}
