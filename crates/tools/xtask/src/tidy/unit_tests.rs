//! Unit tests run: cargo skips them silently in a library with `test = false`.

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
    // `#[test]`, `#[rstest]`, `#[tokio::test(flavor = "..")]`; not `#[cfg(test)]`.
    let is_test = |line: &str| {
        let attribute = line.trim().strip_prefix("#[");
        let name = attribute.and_then(|rest| rest.split(['(', ']']).next());
        name.is_some_and(|name| name.ends_with("test"))
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
        let others = [
            "#[rstest]\nfn f() {}",
            "#[tokio::test(flavor = \"x\")]\nfn f() {}",
        ];
        for text in others {
            let test = ("sample/src/a.rs", text);
            fails(unit_tests, &[UNTESTED, test], "sample/Cargo.toml:1");
        }
    }

    #[test]
    fn a_program_without_unit_tests_fails() {
        fails(unit_tests, &[TESTED], "sample/Cargo.toml:1");
        passes(unit_tests, &[UNTESTED]);
        let module = (
            "sample/src/a.rs",
            "#[cfg(test)]\nmod samples {}\n// #[test]\n",
        );
        passes(unit_tests, &[UNTESTED, module]);
        fails(unit_tests, &[TESTED, module], "sample/Cargo.toml:1");
    }
}
