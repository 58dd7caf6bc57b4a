//! Lines fit two files side by side: at most 100 characters, unless what is long cannot be broken.

use proc_macro2::{Literal, TokenTree};

use super::Problem;
use crate::tokens;
use crate::tree::{RustFile, Tree};

const CHARACTERS_MAX: usize = 100;

/// Finds lines of Rust that are too long. A URL, a string literal without a space, a raw string,
/// a string over several lines and an inline snapshot (`@"..."`) are not counted: none of them can
/// be broken.
pub fn line_length(tree: &Tree) -> Vec<Problem> {
    let mut problems = Vec::new();
    for (path, file) in tree.rust.iter().filter(|(_, file)| !file.is_generated()) {
        let is_long = |line: &str| line.chars().count() > CHARACTERS_MAX;
        if !file.text.lines().any(is_long) {
            continue;
        }
        let unbreakable = unbreakable_characters(file);
        for (index, line) in file.text.lines().enumerate() {
            let urls: usize = line
                .split_whitespace()
                .filter(|w| w.contains("://"))
                .map(|w| w.chars().count())
                .sum();
            let length = line.chars().count();
            if length.saturating_sub(unbreakable[index].max(urls)) > CHARACTERS_MAX {
                let message = format!("{length} characters, the limit is {CHARACTERS_MAX}");
                problems.push(Problem::new("line-length", path, index + 1, message));
            }
        }
    }
    problems
}

/// How many characters of each line belong to string literals that cannot be broken.
fn unbreakable_characters(file: &RustFile) -> Vec<usize> {
    let lines: Vec<&str> = file.text.lines().collect();
    let mut counts = vec![0; lines.len()];
    let mut snapshot = None;
    tokens::visit(&file.tokens, &mut |rest| {
        if let [at, TokenTree::Literal(literal), ..] = rest
            && tokens::is_punct(at, '@')
        {
            snapshot = Some(literal.span().start());
        }
        let Some(TokenTree::Literal(literal)) = rest.first() else {
            return;
        };
        let (start, end) = (literal.span().start(), literal.span().end());
        let is_snapshot = snapshot == Some(start);
        if !is_snapshot && !is_unbreakable(literal, lines[start.line - 1], start.column) {
            return;
        }
        for line in start.line..=end.line {
            let first = if line == start.line { start.column } else { 0 };
            let last = if line == end.line {
                end.column
            } else {
                lines[line - 1].chars().count()
            };
            counts[line - 1] += last - first;
        }
    });
    counts
}

fn is_unbreakable(literal: &Literal, line: &str, column: usize) -> bool {
    let begins: String = line.chars().skip(column).take(2).collect();
    // The text of a doc comment arrives as a literal too, but begins with a slash.
    let is_raw = ["r\"", "r#", "br", "cr"].contains(&begins.as_str());
    let is_string = is_raw || begins.starts_with('"') || begins == "b\"" || begins == "c\"";
    let text = literal.to_string();
    is_string && (is_raw || text.contains('\n') || !text.contains(' '))
}

#[cfg(test)]
mod tests {
    use super::line_length;
    use crate::tidy::testing::{fails, passes};

    #[test]
    fn a_hundred_characters_pass_and_one_more_fails() {
        let comment = |length: usize| format!("fn f() {{}}\n//{}\n", " é".repeat(length / 2 - 1));
        passes(line_length, &[("a.rs", &comment(100))]);
        fails(line_length, &[("a.rs", &comment(102))], "a.rs:2");
        let doc = format!("/// {}\nfn f() {{}}\n", "word ".repeat(25));
        fails(line_length, &[("a.rs", &doc)], "a.rs:1");
    }

    #[test]
    fn what_cannot_be_broken_is_not_counted() {
        let url = format!("// see https://example.org/{}\n", "a".repeat(100));
        passes(line_length, &[("a.rs", &url)]);
        let hash = format!("const HASH: &str = \"{}\";\n", "0".repeat(128));
        passes(line_length, &[("a.rs", &hash)]);
        let raw = format!("const TABLE: &str = r\"{}\";\n", "a b ".repeat(40));
        passes(line_length, &[("a.rs", &raw)]);
        let several = format!("const TABLE: &str = \"\n{}\";\n", "a b ".repeat(40));
        passes(line_length, &[("a.rs", &several)]);
    }

    #[test]
    fn an_inline_snapshot_is_not_counted() {
        let text = |mark| {
            format!(
                "fn f() {{\n    s!(x, {mark}\"{}\");\n}}\n",
                "a b ".repeat(40)
            )
        };
        passes(line_length, &[("a.rs", &text("@"))]);
        fails(line_length, &[("a.rs", &text(""))], "a.rs:2");
    }

    #[test]
    fn a_sentence_can_be_broken() {
        let sentence = format!("const TEXT: &str = \"{}\";\n", "a b ".repeat(40));
        fails(line_length, &[("a.rs", &sentence)], "a.rs:1");
    }

    #[test]
    fn code_beside_an_unbreakable_string_counts() {
        let line = format!(
            "const {}: &str = \"{}\";\n",
            "N".repeat(90),
            "0".repeat(128)
        );
        fails(line_length, &[("a.rs", &line)], "a.rs:1");
    }
}
