//! Every file is used: rustc ignores a source file without a `mod` and a reader finds no document
//! without a link.

use std::collections::BTreeSet;

use super::{Problem, documents};
use crate::files;
use crate::tree::{Member, Tree};

/// Finds source files that no target reaches and documents that nothing links to.
pub fn dead_file(tree: &Tree) -> Vec<Problem> {
    let problem = |path: &String, message| Problem::new("dead-file", path, 1, message);
    let mut reached = BTreeSet::new();
    for member in &tree.members {
        reached.extend(files::all_files(tree, member));
    }
    for member in &tree.excluded {
        reached.extend(files::all_files(tree, member));
    }
    let mut problems = Vec::new();
    for path in tree.rust.keys().filter(|path| !reached.contains(*path)) {
        match tree.member_of(path) {
            None => problems.push(problem(path, "belongs to no crate of the workspace")),
            Some(member) if is_named_by_a_test(tree, member, path, &reached) => {}
            Some(_) => problems.push(problem(path, "no target reaches it through `mod`")),
        }
    }
    let linked: BTreeSet<String> = documents::links(tree)
        .into_iter()
        .filter(|link| link.from != link.target)
        .map(|link| link.target)
        .collect();
    for path in tree.paths.iter().filter(|path| path.starts_with("docs/")) {
        if !linked.contains(path) {
            problems.push(problem(path, "no Markdown file links to it"));
        }
    }
    problems
}

/// Whether a test names the file, by itself or with its neighbours, to compile it.
fn is_named_by_a_test(
    tree: &Tree,
    member: &Member,
    path: &str,
    reached: &BTreeSet<String>,
) -> bool {
    let tests = member.path("tests/");
    let Some(inside) = path.strip_prefix(&member.path("")) else {
        return false;
    };
    let Some((directory, _)) = inside.rsplit_once('/') else {
        return false;
    };
    let names = [format!("\"{inside}\""), format!("\"{directory}\"")];
    let names_it = |test: &str| names.iter().any(|name| tree.texts[test].contains(name));
    path.starts_with(&tests)
        && reached
            .iter()
            .any(|test| test.starts_with(&tests) && names_it(test))
}

#[cfg(test)]
mod tests {
    use super::dead_file;
    use crate::tidy::testing::{fails, passes};

    #[test]
    fn a_source_file_without_a_declaration_fails() {
        fails(dead_file, &[("sample/src/a.rs", "")], "sample/src/a.rs:1");
        fails(
            dead_file,
            &[("sample/tests/common/mod.rs", "")],
            "sample/tests/common/mod.rs:1",
        );
        fails(dead_file, &[("scripts/a.rs", "")], "scripts/a.rs:1");
    }

    #[test]
    fn a_crate_that_the_workspace_excludes_is_looked_at_too() {
        let outside = [
            (
                "Cargo.toml",
                "[workspace]\nmembers = [\"sample\"]\nexclude = [\"apart\"]\n",
            ),
            (
                "apart/Cargo.toml",
                "[package]\nname = \"apart\"\n[[bin]]\nname = \"a\"\npath = \"b/a.rs\"\n",
            ),
            ("apart/b/a.rs", ""),
        ];
        passes(dead_file, &outside);
        let with_another = [&outside[..], &[("apart/b/c.rs", "")]].concat();
        fails(dead_file, &with_another, "apart/b/c.rs:1");
    }

    #[test]
    fn a_declared_source_file_passes() {
        passes(
            dead_file,
            &[("sample/src/lib.rs", "mod a;"), ("sample/src/a.rs", "")],
        );
        passes(dead_file, &[("sample/tests/a.rs", "")]);
    }

    #[test]
    fn files_that_a_test_compiles_pass() {
        let file = ("sample/tests/ui/a.rs", "");
        let all = "fn f() { every_file_of(\"tests/ui\"); }";
        let other = "fn f() { compile(\"tests/ui/b.rs\"); }";
        passes(dead_file, &[file, ("sample/tests/compile.rs", all)]);
        fails(
            dead_file,
            &[file, ("sample/tests/compile.rs", other)],
            "sample/tests/ui/a.rs:1",
        );
    }

    #[test]
    fn a_document_needs_a_link() {
        let files = [("docs/a.md", "A.\n"), ("docs/b.svg", "<svg/>")];
        fails(dead_file, &[files[0]], "docs/a.md:1");
        fails(dead_file, &[files[1]], "docs/b.svg:1");
        let readme = (
            "README.md",
            "See [a](docs/a.md#top) and <img src=\"docs/b.svg\">.\n",
        );
        passes(dead_file, &[files[0], files[1], readme]);
    }
}
