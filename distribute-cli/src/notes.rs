//! Standard error: lines for people.

use std::io::{self, IsTerminal, Write};

/// The width of help and reports, also in a pipe, so that they are the same everywhere.
pub(crate) const TERMINAL_COLUMNS: usize = 80;

/// Writes a line for people to standard error. Errors (a closed pipe, a full disk) are ignored:
/// results and exit codes do not depend on it.
pub(crate) fn note(text: &str) {
    let _ = writeln!(Notes, "{text}");
}

/// Writes the sentences of an error: wrapped for a terminal, otherwise as one line for programs.
pub(crate) fn sentences(text: &str) {
    if io::stderr().is_terminal() {
        note(&wrapped(text, 4))
    } else {
        note(text)
    }
}

/// The text in lines that fit into a terminal, wrapped between words. Lines after the first are
/// indented. A longer word is not divided.
pub(crate) fn wrapped(text: &str, indent: usize) -> String {
    let (mut lines, mut width) = (String::with_capacity(text.len()), 0);
    for (index, word) in text.split(' ').enumerate() {
        let length = word.chars().count();
        if index > 0 && width + 1 + length > TERMINAL_COLUMNS && !word.is_empty() {
            lines.truncate(lines.trim_end().len());
            lines.push('\n');
            lines.extend(std::iter::repeat_n(' ', indent));
            width = indent;
        } else if index > 0 {
            lines.push(' ');
            width += 1;
        }
        lines.push_str(word);
        width += length;
    }
    lines
}

/// Standard error, whose failures are not the program's.
#[derive(Debug)]
pub(crate) struct Notes;

impl Write for Notes {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(io::stderr().write(bytes).unwrap_or(bytes.len()))
    }

    fn flush(&mut self) -> io::Result<()> {
        let _ = io::stderr().flush();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::wrapped;

    #[test]
    fn a_line_breaks_before_the_word_that_does_not_fit() {
        let fits = format!("{} end", "a".repeat(76));
        assert_eq!(wrapped(&fits, 4), fits);
        let wider = format!("{} end", "a".repeat(77));
        assert_eq!(wrapped(&wider, 4), wider.replace(' ', "\n    "));
    }

    #[test]
    fn a_long_word_stays_whole_and_columns_stay_apart() {
        let path = "x".repeat(70);
        let line = format!("MPI            not found {path}; searched 11 places");
        let expected = format!(
            "MPI            not found\n{:15}{path};\n{:15}searched 11 places",
            "", ""
        );
        assert_eq!(wrapped(&line, 15), expected);
        assert_eq!(wrapped("GPUs           none", 15), "GPUs           none");
    }

    proptest! {
        #[test]
        fn nothing_is_lost_and_every_line_fits(text in "[a-z:ä]{1,30}( [a-z;]{1,30}){0,30}") {
            let lines = wrapped(&text, 4);
            prop_assert!(lines.lines().all(|line| line.chars().count() <= 80), "{}", lines);
            prop_assert_eq!(lines.replace("\n    ", " "), text);
        }
    }
}
