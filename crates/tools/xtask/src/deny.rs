//! Licences, duplicate versions and sources of the dependencies, by `deny.toml`.
//!
//! `cargo deny` checks all of it, and the advisories, where it is installed with a stored database
//! (`cargo deny fetch`). Without it, what `cargo metadata` tells is checked here.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde_json::Value as Json;
use toml::{Table, Value};

use crate::cargo;

const CRATES_IO: &str = "registry+https://github.com/rust-lang/crates.io-index";
const METADATA: &str = "metadata --locked --all-features --format-version 1 \
                        --filter-platform x86_64-unknown-linux-gnu";

/// Checks the dependencies of the workspace.
pub fn run(root: &Path) -> Result<String, String> {
    let wrong = |error: &dyn std::fmt::Display| format!("deny.toml or cargo metadata: {error}");
    let rules = std::fs::read_to_string(root.join("deny.toml")).map_err(|e| wrong(&e))?;
    let rules: Table = rules.parse().map_err(|error| wrong(&error))?;
    let metadata = cargo::output_offline(root, METADATA)?;
    let packages = packages(&serde_json::from_str(&metadata).map_err(|error| wrong(&error))?);
    let problems = problems(&packages, &rules);
    if !problems.is_empty() {
        return Err(problems.join("\n"));
    }
    let checked = format!("licences, versions, sources of {} packages", packages.len());
    let missing = if cargo::output(root, "deny --version").is_err() {
        "there is no cargo-deny"
    } else if !database().is_dir() {
        "run `cargo deny fetch` first"
    } else {
        return cargo::cargo(root, "deny --offline check");
    };
    Ok(format!("{checked}; SKIPPED: advisories: {missing}"))
}

/// Where cargo-deny keeps the advisories.
fn database() -> PathBuf {
    let default = || Some(std::env::home_dir()?.join(".cargo"));
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    home.or_else(default)
        .unwrap_or_default()
        .join("advisory-dbs")
}

/// A package that is not ours: its name, version, licence and source.
type Package = [String; 4];

fn packages(metadata: &Json) -> Vec<Package> {
    let list = metadata["packages"].as_array().into_iter().flatten();
    let others = list.filter(|package| package["source"].is_string());
    let keys = ["name", "version", "license", "source"];
    let package = |package: &Json| keys.map(|key| package[key].as_str().unwrap_or("").to_owned());
    others.map(package).collect()
}

fn problems(packages: &[Package], rules: &Table) -> Vec<String> {
    let mut problems = duplicates(packages, rules);
    let everywhere = rules.get("licenses").and_then(|table| table.get("allow"));
    for [name, version, license, source] in packages {
        if source != CRATES_IO {
            problems.push(format!("{name} {version}: comes from {source}"));
        }
        let of_it = |list| rows(rules, "licenses", list).filter(|row| text(row, "crate") == name);
        let license = of_it("clarify")
            .next()
            .map_or(&**license, |row| text(row, "expression"));
        let exceptions = of_it("exceptions").filter_map(|row| row.get("allow"));
        let allowed = everywhere
            .into_iter()
            .chain(exceptions)
            .filter_map(Value::as_array);
        let allowed = allowed.flatten().filter_map(Value::as_str).collect();
        if !is_allowed(license, &allowed) {
            problems.push(format!("{name} {version}: no allowed licence: `{license}`"));
        }
    }
    problems
}

fn rows<'a>(rules: &'a Table, section: &str, list: &str) -> impl Iterator<Item = &'a Value> {
    let list = rules
        .get(section)
        .and_then(|table| table.get(list)?.as_array());
    list.into_iter().flatten()
}

fn text<'a>(row: &'a Value, key: &str) -> &'a str {
    row.get(key).and_then(Value::as_str).unwrap_or_default()
}

/// Whether a licence expression can be met. It is read as alternatives joined by AND, which never
/// allows more than it says; what follows WITH only widens a licence.
fn is_allowed(expression: &str, allowed: &BTreeSet<&str>) -> bool {
    let expression = expression.replace('/', " OR ").replace(['(', ')'], "");
    let license = |text: &str| {
        text.split(" WITH ")
            .next()
            .unwrap_or_default()
            .trim()
            .to_owned()
    };
    let is_met = |part: &str| {
        part.split(" OR ")
            .any(|one| allowed.contains(&*license(one)))
    };
    expression.split(" AND ").all(is_met)
}

/// Finds packages in several versions that `bans.skip` does not name, and rows that name none.
fn duplicates(packages: &[Package], rules: &Table) -> Vec<String> {
    let rows: Vec<&str> = rows(rules, "bans", "skip")
        .map(|row| text(row, "crate"))
        .collect();
    let versions = packages
        .iter()
        .map(|[name, version, ..]| (&**name, &**version));
    let several = in_several_versions(versions.collect());
    let names = |row: &&str, (name, version): &(&str, &str)| {
        format!("{name}@{version}.").starts_with(&format!("{row}."))
    };
    let is_there = |row: &&&str| several.iter().any(|package| names(row, package));
    let stale = rows.iter().filter(|row| !is_there(row));
    let stale = stale.map(|row| format!("deny.toml: bans.skip: {row} is no duplicate any more"));
    let is_skipped = |package: &(&str, &str)| rows.iter().any(|row| names(row, package));
    let left = several.iter().filter(|package| !is_skipped(package));
    let left = in_several_versions(left.copied().collect());
    let left = left
        .iter()
        .map(|(name, version)| format!("{name} {version}: one of several"));
    left.chain(stale).collect()
}

fn in_several_versions<'a>(all: BTreeSet<(&'a str, &'a str)>) -> BTreeSet<(&'a str, &'a str)> {
    let is_one = |name| all.iter().filter(|(of, _)| *of == name).nth(1).is_none();
    all.iter()
        .filter(|(name, _)| !is_one(*name))
        .copied()
        .collect()
}

#[cfg(test)]
mod tests {
    use super::{CRATES_IO, Package, is_allowed, problems};

    const RULES: &str = "
        [licenses]
        allow = [\"MIT\", \"Apache-2.0\", \"ISC\"]
        exceptions = [{ crate = \"data\", allow = [\"CDLA-Permissive-2.0\"] }]
        [[licenses.clarify]]
        crate = \"silent\"
        expression = \"MIT\"
        [bans]
        skip = [{ crate = \"twice@0.1\", reason = \"old\" }]
    ";

    fn package(name: &str, version: &str, license: &str) -> Package {
        [name, version, license, CRATES_IO].map(str::to_owned)
    }

    fn found(packages: &[(&str, &str, &str)]) -> Vec<String> {
        let twice = [("twice", "0.1.7", "MIT"), ("twice", "0.2.0", "MIT")];
        let packages = packages.iter().chain(&twice);
        let packages: Vec<_> = packages.map(|(n, v, l)| package(n, v, l)).collect();
        problems(&packages, &RULES.parse().expect("rules"))
    }

    #[test]
    fn an_expression_is_met_by_what_is_allowed() {
        let allowed = ["MIT", "Apache-2.0", "ISC"].into();
        for expression in [
            "MIT",
            "GPL-3.0 OR MIT",
            "MIT/Unlicense",
            "Apache-2.0 AND ISC",
            "Apache-2.0 WITH LLVM-exception",
            "(GPL-3.0 OR MIT) AND (ISC OR Zlib)",
        ] {
            assert!(is_allowed(expression, &allowed), "{expression}");
        }
        for expression in ["GPL-3.0", "MIT AND GPL-3.0", "(MIT OR ISC) AND Zlib", ""] {
            assert!(!is_allowed(expression, &allowed), "{expression}");
        }
    }

    #[test]
    fn licences_are_those_of_the_rules() {
        let data = ("data", "1.0.0", "CDLA-Permissive-2.0");
        assert_eq!(found(&[data, ("silent", "1.0.0", "")]), [""; 0]);
        let other = ("other", "1.0.0", "CDLA-Permissive-2.0");
        for package in [other, ("nameless", "1.0.0", "")] {
            assert_eq!(found(&[package]).len(), 1, "{package:?}");
        }
    }

    #[test]
    fn a_new_duplicate_and_a_row_without_one_are_named() {
        let more = found(&[("twice", "0.3.0", "MIT")]);
        assert!(
            more[0].starts_with("twice 0.2.0: one of several"),
            "{more:#?}"
        );
        let rules = RULES.parse().expect("rules");
        let none = problems(&[package("twice", "0.1.7", "MIT")], &rules);
        assert!(none[0].contains("twice@0.1 is no duplicate"), "{none:#?}");
    }

    #[test]
    fn a_package_from_elsewhere_is_named() {
        let mut package = package("other", "1.0.0", "MIT");
        package[3] = "git+https://example.org/other".to_owned();
        let rules = "[licenses]\nallow = [\"MIT\"]".parse().expect("rules");
        assert_eq!(problems(&[package], &rules).len(), 1);
    }
}
