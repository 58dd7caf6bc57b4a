//! The rules that neither the compiler nor clippy checks. Each is one function from the tree to its
//! problems, tested on a sample that breaks it and on one that does not.

mod burn_internals;
mod dead_files;
mod documents;
mod leftovers;
mod lines;
mod machine_paths;
mod pictures;
mod unit_tests;
mod unsafe_code;

use std::fmt;

use crate::tree::Tree;

pub use documents::{Fences, links};

/// One place that breaks one rule.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Problem {
    path: String,
    line: usize,
    rule: &'static str,
    message: String,
}

impl Problem {
    fn new(rule: &'static str, path: &str, line: usize, message: impl Into<String>) -> Self {
        Self {
            path: path.to_owned(),
            line,
            rule,
            message: message.into(),
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "{}:{}: {}: {}",
            self.path, self.line, self.rule, self.message
        )
    }
}

type Rule = fn(&Tree) -> Vec<Problem>;

const RULES: [Rule; 14] = [
    lines::line_length,
    leftovers::leftover,
    dead_files::dead_file,
    documents::dead_link,
    documents::dead_anchor,
    documents::crate_doc,
    documents::crate_readme,
    documents::architecture,
    unsafe_code::unsafe_module,
    unsafe_code::root_lints,
    machine_paths::machine_path,
    burn_internals::burn_internal,
    pictures::picture,
    unit_tests::unit_tests,
];

/// Applies every rule; the problems come sorted by place.
pub fn problems(tree: &Tree) -> Vec<Problem> {
    let mut problems: Vec<Problem> = RULES.iter().flat_map(|rule| rule(tree)).collect();
    problems.sort();
    problems
}

/// What the tests of the rules need.
#[cfg(test)]
mod testing {
    use super::{Problem, Rule};
    use crate::tree::samples;

    /// What `rule` finds in the sample workspace with these files on top.
    pub fn found(rule: Rule, files: &[(&str, &str)]) -> Vec<String> {
        rule(&samples::tree(files))
            .iter()
            .map(Problem::to_string)
            .collect()
    }

    /// Checks that `rule` finds one problem, at `place`, in `files`.
    #[track_caller]
    pub fn fails(rule: Rule, files: &[(&str, &str)], place: &str) {
        let found = found(rule, files);
        assert_eq!(found.len(), 1, "one problem at {place}, not {found:#?}");
        assert!(
            found[0].starts_with(&format!("{place}: ")),
            "at {place}, not {found:#?}"
        );
    }

    /// Checks that `rule` finds nothing in `files`.
    #[track_caller]
    pub fn passes(rule: Rule, files: &[(&str, &str)]) {
        assert_eq!(found(rule, files), [""; 0]);
    }
}

#[cfg(test)]
mod tests {
    use super::problems;
    use crate::tree::samples;

    #[test]
    fn a_sound_tree_has_no_problem() {
        assert_eq!(problems(&samples::tree(&[])), []);
    }

    #[test]
    fn problems_of_several_rules_come_in_the_order_of_the_files() {
        let found = problems(&samples::tree(&[
            ("sample/src/lib.rs", "#[ignore]\nfn f() {}\n"),
            ("ARCHITECTURE.md", "nothing\n"),
        ]));
        let found: Vec<_> = found
            .iter()
            .map(|problem| (&*problem.path, problem.rule))
            .collect();
        assert_eq!(
            found,
            [
                ("ARCHITECTURE.md", "architecture"),
                ("sample/src/lib.rs", "crate-doc"),
                ("sample/src/lib.rs", "leftover"),
                ("sample/src/lib.rs", "root-lints"),
            ]
        );
    }
}
