//! burn is built once: every member resolves the same features of burn and of all below it. And
//! `cargo test` builds no library of `cargo build` once more: a feature that only tests ask for
//! would have it, and all that uses it.
//!
//! Cargo gives a dependency the features that the packages of one command ask for together, so two
//! commands that differ in a feature of anything below burn build burn twice. What each resolves is
//! read from `cargo tree`; nothing is built.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::cargo;
use crate::tree::Workspace;

/// Packages with their versions, and the features of each: more than one set where build scripts
/// and procedural macros resolve another one.
type Resolved = BTreeMap<String, BTreeSet<String>>;

const BUILD: &str = "normal,build";
const TEST: &str = "normal,build,dev";

/// Compares what every member resolves, for itself and for its tests, with the whole workspace.
pub fn run(workspace: &Workspace) -> Result<String, String> {
    let (root, tree) = (&workspace.root, workspace.tree()?);
    let with_tests = cargo_tree(root, "--workspace", TEST)?;
    let without = cargo_tree(root, "--workspace", BUILD)?;
    let whole = resolved(&with_tests);
    if whole.is_empty() {
        return Err("`cargo tree` shows no burn: this check no longer reads its output".to_owned());
    }
    let mut problems = differences("cargo build", &whole, &resolved(&without));
    problems.extend(built_once_more(&packages(&without), &packages(&with_tests)));
    let mut count = 0;
    for member in tree.members.iter().filter(|member| member.is_listed) {
        let what = format!("-p {}", member.name);
        for (verb, edges) in [("build", BUILD), ("test", TEST)] {
            let own = resolved(&cargo_tree(root, &what, edges)?);
            if !own.is_empty() {
                count += 1;
                problems.extend(differences(&format!("cargo {verb} {what}"), &whole, &own));
            }
        }
    }
    if problems.is_empty() {
        return Ok(format!("{} packages, {count} commands", whole.len()));
    }
    Err(problems.join("\n"))
}

fn cargo_tree(root: &Path, what: &str, edges: &str) -> Result<String, String> {
    let fixed = "tree --locked --prefix depth --format |{p}|{f}";
    cargo::output_offline(root, &format!("{fixed} --edges {edges} {what}"))
}

/// What `cargo tree` shows: depth, and package with features. A package that comes again is shown
/// without what is below it.
fn shown(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let lines = text.lines();
    lines.filter_map(|line| {
        let (depth, package) = line.trim_end_matches(" (*)").split_once('|')?;
        Some((depth.parse().ok()?, package))
    })
}

fn grouped<'a>(packages: impl IntoIterator<Item = &'a str>) -> Resolved {
    let mut grouped = Resolved::new();
    for package in packages {
        let (name, features) = package.split_once('|').unwrap_or((package, ""));
        let sets = grouped.entry(name.to_owned()).or_default();
        sets.insert(features.to_owned());
    }
    grouped
}

fn packages(text: &str) -> Resolved {
    grouped(shown(text).map(|(_, package)| package))
}

/// What the tests need with other features. (What only a build script or a procedural macro of
/// theirs needs is built beside the rest, which stays.)
fn built_once_more(without_tests: &Resolved, with_tests: &Resolved) -> Vec<String> {
    let none = BTreeSet::new();
    let mut problems = Vec::new();
    for (name, without) in without_tests {
        let with = with_tests.get(name).unwrap_or(&none);
        if !without.is_subset(with) {
            problems.push(format!(
                "`cargo test --workspace` builds {name} once more than `cargo build`, and all that \
                 uses it: tests add [{}]; do without it in `[dev-dependencies]`, or ask for it in \
                 `[dependencies]` too",
                listed(with, without)
            ));
        }
    }
    problems
}

/// What stands at or below burn.
fn resolved(text: &str) -> Resolved {
    let mut below: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    let mut above: Vec<&str> = Vec::new();
    for (depth, package) in shown(text) {
        above.truncate(depth);
        if let Some(parent) = above.last() {
            below.entry(parent).or_default().insert(package);
        }
        below.entry(package).or_default();
        above.push(package);
    }
    let is_burn = |package: &&&str| package.starts_with("burn ") || package.starts_with("burn-");
    let mut waiting: Vec<&str> = below.keys().filter(is_burn).copied().collect();
    let mut seen = BTreeSet::new();
    while let Some(package) = waiting.pop() {
        if seen.insert(package) {
            waiting.extend(below.get(package).into_iter().flatten());
        }
    }
    grouped(seen)
}

fn differences(command: &str, whole: &Resolved, own: &Resolved) -> Vec<String> {
    let names: BTreeSet<&String> = whole.keys().chain(own.keys()).collect();
    let none = BTreeSet::new();
    let mut problems = Vec::new();
    for name in names {
        let (all, own) = (
            whole.get(name).unwrap_or(&none),
            own.get(name).unwrap_or(&none),
        );
        if all != own {
            let lacks = listed(all, own);
            let adds = listed(own, all);
            problems.push(format!(
                "`{command}` builds burn once more, for {name}: it lacks [{lacks}] and adds \
                 [{adds}]; crates/base/distribute-features asks for what is common to all"
            ));
        }
    }
    problems
}

/// The features of the one that the other has not.
fn listed(one: &BTreeSet<String>, other: &BTreeSet<String>) -> String {
    let split = |sets: &BTreeSet<String>| -> BTreeSet<String> {
        let features = sets.iter().flat_map(|set| set.split(','));
        features.map(str::to_owned).collect()
    };
    let only: Vec<String> = split(one).difference(&split(other)).cloned().collect();
    only.join(", ")
}

#[cfg(test)]
mod tests {
    use super::{built_once_more, differences, packages, resolved};

    /// `(*)` stands where a package comes again.
    const WHOLE: &str = "\
0|core v0.1.0 (core)|
1|burn v0.22.1|std
2|burn-core v0.22.1|std
3|regex v1.13.1|std,unicode
4|memchr v2.8.3|
2|regex v1.13.1|std,unicode (*)
1|insta v1.49.0|
2|regex v1.13.1|std,unicode (*)
2|console v0.16.0|
";

    #[test]
    fn what_is_not_below_burn_does_not_count() {
        let found = resolved(WHOLE);
        let names: Vec<_> = found.keys().map(String::as_str).collect();
        let expected = [
            "burn v0.22.1",
            "burn-core v0.22.1",
            "memchr v2.8.3",
            "regex v1.13.1",
        ];
        assert_eq!(names, expected);
        assert!(resolved("0|xtask v0.1.0 (xtask)|\n1|syn v3.0.9|full\n").is_empty());
    }

    #[test]
    fn a_feature_of_tests_alone_is_named() {
        let tests = WHOLE.replace("4|memchr v2.8.3|", "4|memchr v2.8.3|alloc");
        let found = built_once_more(&packages(WHOLE), &packages(&tests));
        assert_eq!(found.len(), 1, "{found:#?}");
        let expected = "`cargo test --workspace` builds memchr v2.8.3 once more than `cargo build`";
        assert!(found[0].starts_with(expected), "{found:#?}");
        assert!(found[0].contains("[alloc]"), "{found:#?}");
        // A build script's, beside the one that there is.
        let beside = format!("{WHOLE}1|memchr v2.8.3|alloc\n");
        assert_eq!(
            built_once_more(&packages(WHOLE), &packages(&beside)),
            [""; 0]
        );
    }

    #[test]
    fn the_same_features_pass() {
        let without_tests = WHOLE.replace("console", "other");
        assert_eq!(
            differences("x", &resolved(WHOLE), &resolved(&without_tests)),
            [""; 0]
        );
    }

    #[test]
    fn a_feature_that_differs_is_named() {
        let own = WHOLE.replace("std,unicode", "perf,unicode");
        let found = differences("cargo build", &resolved(WHOLE), &resolved(&own));
        assert_eq!(found.len(), 1, "{found:#?}");
        let expected = "`cargo build` builds burn once more, for regex v1.13.1: it lacks [std] and \
                        adds [perf]";
        assert!(found[0].starts_with(expected), "{found:#?}");
    }

    #[test]
    fn a_package_that_only_one_has_is_named() {
        let own = WHOLE.replace("4|memchr v2.8.3|\n", "");
        let found = differences("cargo build", &resolved(WHOLE), &resolved(&own));
        assert!(found[0].contains("memchr v2.8.3"), "{found:#?}");
    }
}
