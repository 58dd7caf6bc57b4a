//! Nothing unfinished is left: no marker, no test that never runs. Clippy finds `todo!` and `dbg!`.

use proc_macro2::TokenTree;

use super::Problem;
use crate::tokens;
use crate::tree::Tree;

const RULE: &str = "leftover";
/// Written in two halves, so that this file does not break its own rule.
const MARKERS: [&str; 2] = [concat!("FIX", "ME"), concat!("XX", "X")];
const IGNORED_FENCE: &str = concat!("```", "ignore");
/// The files that people write; data files may contain anything.
const WRITTEN: [&str; 6] = [".rs", ".toml", ".md", ".sh", ".proto", ".ci/run"];

/// Finds markers of unfinished work in comments, and ignored tests and examples.
pub fn leftover(tree: &Tree) -> Vec<Problem> {
    let mut problems = Vec::new();
    for (path, file) in &tree.rust {
        tokens::visit(&file.tokens, &mut |rest| {
            if ignores_a_test(rest) {
                let message = "an ignored test checks nothing: run it, or print SKIPPED and why";
                problems.push(Problem::new(RULE, path, tokens::line(rest), message));
            }
        });
    }
    let is_written = |path: &str| WRITTEN.iter().any(|end| path.ends_with(end));
    for (path, text) in tree.texts.iter().filter(|(path, _)| is_written(path)) {
        for (index, line) in text.lines().enumerate() {
            if let Some(marker) = MARKERS.iter().find(|marker| has_word(line, marker)) {
                let message = format!("`{marker}` marks work in progress: finish it");
                problems.push(Problem::new(RULE, path, index + 1, message));
            }
            if path.ends_with(".rs") && line.contains(IGNORED_FENCE) {
                let message = "an ignored example is not compiled: use `no_run` or `text`";
                problems.push(Problem::new(RULE, path, index + 1, message));
            }
        }
    }
    problems
}

/// Whether these tokens begin with `#[ignore]` or `#[cfg_attr(.., ignore)]`.
fn ignores_a_test(rest: &[TokenTree]) -> bool {
    let Some(attribute) = tokens::attribute(rest) else {
        return false;
    };
    let words: Vec<TokenTree> = attribute.stream().into_iter().collect();
    match words.as_slice() {
        [TokenTree::Ident(name), ..] if name == "ignore" => true,
        [TokenTree::Ident(name), TokenTree::Group(group)] if name == "cfg_attr" => {
            let is_ignore = |token| matches!(token, TokenTree::Ident(name) if name == "ignore");
            group.stream().into_iter().any(is_ignore)
        }
        _ => false,
    }
}

/// Whether `word` stands in `line` by itself. Between backticks it is only spoken about.
fn has_word(line: &str, word: &str) -> bool {
    let is_part = |character: char| character.is_alphanumeric() || "_`".contains(character);
    line.match_indices(word).any(|(start, _)| {
        let before = line[..start].chars().next_back();
        let after = line[start + word.len()..].chars().next();
        !before.is_some_and(is_part) && !after.is_some_and(is_part)
    })
}

#[cfg(test)]
mod tests {
    use super::{IGNORED_FENCE, MARKERS, leftover};
    use crate::tidy::testing::{fails, passes};

    #[test]
    fn words_that_only_look_alike_pass() {
        let spoken = format!(
            "no `{}` is left, mktemp {}",
            MARKERS[0],
            MARKERS[1].repeat(2)
        );
        passes(leftover, &[("a.md", &spoken)]);
        let data = format!("{},1\n", MARKERS[1]);
        passes(leftover, &[("a.csv", &data)]);
    }

    #[test]
    fn markers_fail_in_comments_and_documents() {
        for marker in MARKERS {
            fails(
                leftover,
                &[("a.rs", &format!("\n// {marker}: later"))],
                "a.rs:2",
            );
            fails(leftover, &[("a.md", &format!("{marker} later"))], "a.md:1");
            fails(
                leftover,
                &[(".ci/run", &format!("# {marker}"))],
                ".ci/run:1",
            );
        }
    }

    #[test]
    fn ignored_tests_and_examples_fail() {
        fails(
            leftover,
            &[("a.rs", "#[test]\n#[ignore]\nfn f() {}")],
            "a.rs:2",
        );
        fails(
            leftover,
            &[("a.rs", "#[ignore = \"slow\"]\nfn f() {}")],
            "a.rs:1",
        );
        fails(
            leftover,
            &[("a.rs", "#[cfg_attr(unix, ignore)]\nfn f() {}")],
            "a.rs:1",
        );
        let example = format!("/// {IGNORED_FENCE}\n/// f()\n/// ```\nfn f() {{}}");
        fails(leftover, &[("a.rs", &example)], "a.rs:1");
        passes(
            leftover,
            &[("a.rs", "#[test]\nfn ignore() {}\n#[must_use]\nfn g() {}")],
        );
    }
}
