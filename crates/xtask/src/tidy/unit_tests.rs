//! Unit tests run: cargo says nothing of those of a library with `test = false`.

use super::Problem;
use crate::tree::{Member, Tree};

/// Finds libraries whose unit tests do not run, and libraries without any that cargo links a
/// program for.
pub fn unit_tests(tree: &Tree) -> Vec<Problem> {
    let libraries = tree.members.iter();
    let libraries = libraries.filter(|member| tree.rust.contains_key(&member.path("src/lib.rs")));
    let problem = |member: &Member| {
        let message = match (has_unit_tests(tree, member), is_tested(member)) {
            (true, false) => "the library has unit tests, and `test = false`: they never run",
            (false, true) => "no unit tests: write `test = false` under `[lib]`",
            _ => return None,
        };
        let manifest = member.path("Cargo.toml");
        Some(Problem::new("unit-tests", &manifest, 1, message))
    };
    libraries.filter_map(problem).collect()
}

fn has_unit_tests(tree: &Tree, member: &Member) -> bool {
    let sources = member.path("src/");
    let is_test = |line: &str| {
        let line = line.trim();
        line.starts_with("#[test]") || line.starts_with("#[rstest]")
    };
    let mut files = tree.rust.iter();
    files.any(|(path, file)| path.starts_with(&sources) && file.text.lines().any(is_test))
}

fn is_tested(member: &Member) -> bool {
    let library = member.manifest.get("lib");
    let test = library.and_then(|library| library.get("test"));
    test.and_then(toml::Value::as_bool).unwrap_or(true)
}

#[cfg(test)]
mod tests {
    use super::unit_tests;
    use crate::tidy::testing::{fails, passes};

    const UNTESTED: (&str, &str) = (
        "sample/Cargo.toml",
        "[package]\nname = \"sample\"\n[lib]\ntest = false\n",
    );
    const TESTED: (&str, &str) = ("sample/Cargo.toml", "[package]\nname = \"sample\"\n");
    const TEST: (&str, &str) = ("sample/src/a.rs", "    #[test]\nfn holds() {}\n");

    #[test]
    fn unit_tests_that_never_run_fail() {
        fails(unit_tests, &[UNTESTED, TEST], "sample/Cargo.toml:1");
        passes(unit_tests, &[TESTED, TEST]);
    }

    #[test]
    fn a_program_without_unit_tests_fails() {
        fails(unit_tests, &[TESTED], "sample/Cargo.toml:1");
        passes(unit_tests, &[UNTESTED]);
    }
}
