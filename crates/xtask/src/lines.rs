//! `cargo xtask lines`: how much code a crate and each of its top-level modules has.
//!
//! A line of code is a line of a crate's library or programs (what their `mod` declarations reach
//! below `src/`) that is neither blank nor a comment (it begins with `//`, which documentation does
//! too) and belongs to nothing that is compiled for tests only. Generated files count. Tests,
//! benches, examples and build scripts do not.

use std::collections::{BTreeMap, BTreeSet};

use proc_macro2::{TokenStream, TokenTree};

use crate::tree::{Member, RustFile, Tree};
use crate::{files, tokens};

/// The lines of each crate, with those of its top-level modules, as a text.
pub fn table(tree: &Tree, name: Option<&str>) -> Result<String, String> {
    let is_meant = |member: &&Member| name.is_none_or(|name| name == member.name);
    let members: Vec<&Member> = tree.members.iter().filter(is_meant).collect();
    if members.is_empty() {
        return Err(tree.no_such_crate());
    }
    let mut rows = Vec::new();
    for member in members {
        let modules = modules(tree, member);
        rows.push(format!(
            "{:>7} {}",
            modules.values().sum::<usize>(),
            member.name
        ));
        let mut modules: Vec<_> = modules.into_iter().collect();
        modules.sort_by_key(|(_, lines)| std::cmp::Reverse(*lines));
        rows.extend(
            modules
                .iter()
                .map(|(name, lines)| format!("{lines:>7}     {name}")),
        );
    }
    Ok(rows.join("\n"))
}

/// The lines of a crate's top-level modules.
fn modules(tree: &Tree, member: &Member) -> BTreeMap<String, usize> {
    let source = member.path("src/");
    let mut modules = BTreeMap::new();
    for path in files::program_files(tree, member) {
        let (Some(inside), Some(file)) = (path.strip_prefix(&source), tree.rust.get(&path)) else {
            continue;
        };
        let module = inside.split('/').next().unwrap_or(inside);
        let module = module.trim_end_matches(".rs").to_owned();
        *modules.entry(module).or_default() += code_lines(file);
    }
    modules
}

fn code_lines(file: &RustFile) -> usize {
    let mut of_tests = BTreeSet::new();
    lines_of_tests(&file.tokens, &mut of_tests);
    let is_code = |line: &str| !line.trim().is_empty() && !line.trim_start().starts_with("//");
    let lines = file.text.lines().zip(1..);
    lines
        .filter(|(line, number)| is_code(line) && !of_tests.contains(number))
        .count()
}

/// Finds the lines of all items that are compiled for tests only.
fn lines_of_tests(stream: &TokenStream, lines: &mut BTreeSet<usize>) {
    let all: Vec<TokenTree> = stream.clone().into_iter().collect();
    let mut rest = all.as_slice();
    while let Some((first, after)) = rest.split_first() {
        if let Some(length) = tokens::test_item_length(rest) {
            let item = rest.get(..length).unwrap_or(rest);
            let last = item.last().map_or(0, |token| token.span().end().line);
            lines.extend(tokens::line(item)..=last);
            rest = rest.get(length..).unwrap_or_default();
            continue;
        }
        if let TokenTree::Group(group) = first {
            lines_of_tests(&group.stream(), lines);
        }
        rest = after;
    }
}

#[cfg(test)]
mod tests {
    use super::table;
    use crate::tree::samples;

    const LIBRARY: &str = "\
//! A sample.
#![forbid(unsafe_code)]

mod a; // A comment behind code.
#[cfg(test)]
mod tests;

/// Documentation.
fn f() {
    // A comment.
    let text = \"one

three\";

    #[cfg(test)]
    {
        seen(text);
    }
}

#[cfg(test)]
mod more {
    fn g() {}
}
";

    #[test]
    fn comments_blanks_and_tests_do_not_count() {
        let tree = samples::tree(&[
            ("sample/src/lib.rs", LIBRARY),
            ("sample/src/a/mod.rs", "mod b;\n"),
            ("sample/src/a/b.rs", "fn h() {\n}\n"),
            ("sample/src/tests.rs", "fn unseen() {}\n"),
            ("sample/tests/unseen.rs", "fn unseen() {}\n"),
            ("sample/src/main.rs", "fn main() {}\n"),
        ]);
        let expected = "     10 sample\n      6     lib\n      3     a\n      1     main";
        assert_eq!(table(&tree, None).as_deref(), Ok(expected));
        assert!(table(&tree, Some("other")).unwrap_err().contains("sample"));
    }
}
