//! What goes to standard error: lines for people.

use std::io::{self, Write};

/// Writes a line for people to standard error. If nobody can read it (closed, a full disk), the
/// work goes on: results and exit codes do not depend on it.
pub(crate) fn note(text: &str) {
    let _ = writeln!(Notes, "{text}");
}

/// The text in lines that fit into a terminal of 80 columns, broken between words. A word that is
/// longer has a line of its own.
pub(crate) fn wrapped(text: &str) -> String {
    const COLUMNS: usize = 80;
    const INDENT: &str = "\n    ";
    let mut lines = String::with_capacity(text.len());
    let mut column = 0;
    for word in text.split(' ') {
        let length = word.chars().count();
        if column == 0 {
            column = length;
        } else if column + 1 + length <= COLUMNS {
            lines.push(' ');
            column += 1 + length;
        } else {
            lines.push_str(INDENT);
            column = INDENT.len() - 1 + length;
        }
        lines.push_str(word);
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
        assert_eq!(wrapped(&fits), fits);
        let wider = format!("{} end", "a".repeat(77));
        assert_eq!(wrapped(&wider), wider.replace(' ', "\n    "));
    }

    proptest! {
        #[test]
        fn nothing_is_lost_and_every_line_fits(text in "[a-z:ä]{1,30}( [a-z;]{1,30}){0,30}") {
            let lines = wrapped(&text);
            prop_assert!(lines.lines().all(|line| line.chars().count() <= 80), "{}", lines);
            prop_assert_eq!(lines.replace("\n    ", " "), text);
        }
    }
}
