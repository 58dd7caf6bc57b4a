//! The arrows between the crates never turn, and burn is pinned in one place with one feature set.

use std::collections::BTreeSet;

use toml::{Table, Value};

use crate::tree::{Member, Tree};

/// Which crates of this workspace a crate may use.
enum MayUse {
    All,
    Only(&'static [&'static str]),
}

/// What one crate may depend on.
struct Row {
    name: &'static str,
    ours: MayUse,
    burn: bool,
}

const fn row(name: &'static str, ours: MayUse, burn: bool) -> Row {
    Row { name, ours, burn }
}

/// The arrows of ARCHITECTURE.md. They hold for the dependencies of tests and build scripts too.
const CRATES: &[Row] = &[
    row(
        "distribute-collectives",
        MayUse::Only(&["distribute-net", "distribute-reductions"]),
        false,
    ),
    row("distribute-core-derive", MayUse::Only(&[]), false),
    row("distribute-error", MayUse::Only(&[]), false),
    row("distribute-features", MayUse::Only(&[]), false),
    row(
        "distribute-records",
        MayUse::Only(&["distribute-error"]),
        false,
    ),
    row("distribute-reductions", MayUse::Only(&[]), false),
    row(
        "distribute-blame",
        MayUse::Only(&["distribute-collectives"]),
        false,
    ),
    row(
        "distribute-cluster",
        MayUse::Only(&["distribute-error"]),
        false,
    ),
    row(
        "distribute-checkpoint",
        MayUse::Only(&["distribute-error", "distribute-features"]),
        true,
    ),
    row(
        "distribute-launch",
        MayUse::Only(&["distribute-core", "distribute-error", "distribute-net"]),
        false,
    ),
    row(
        "distribute-peers",
        MayUse::Only(&["distribute-error", "distribute-net"]),
        false,
    ),
    row(
        "distribute-core",
        MayUse::Only(&[
            "distribute-checkpoint",
            "distribute-cluster",
            "distribute-collectives",
            "distribute-core-derive",
            "distribute-error",
            "distribute-net",
        ]),
        true,
    ),
    row("distribute-net", MayUse::Only(&["distribute-error"]), false),
    row(
        "distribute-pipeline",
        MayUse::Only(&["distribute-core", "distribute-error"]),
        false,
    ),
    row(
        "distribute-readers",
        MayUse::Only(&[
            "distribute-core",
            "distribute-error",
            "distribute-pipeline",
            "distribute-records",
        ]),
        false,
    ),
    row(
        "distribute-fit",
        MayUse::Only(&[
            "distribute-core",
            "distribute-data",
            "distribute-error",
            "distribute-pipeline",
            "distribute-records",
        ]),
        true,
    ),
    row(
        "distribute-learner",
        MayUse::Only(&[
            "distribute-core",
            "distribute-data",
            "distribute-fit",
            "distribute-launch",
        ]),
        true,
    ),
    row("distribute-cuda", MayUse::Only(&["distribute-core"]), true),
    row(
        "distribute-kernels",
        MayUse::Only(&["distribute-features"]),
        true,
    ),
    row(
        "distribute-data",
        MayUse::Only(&[
            "distribute-core",
            "distribute-error",
            "distribute-pipeline",
            "distribute-readers",
        ]),
        true,
    ),
    row(
        "distribute-ps",
        MayUse::Only(&[
            "distribute-collectives",
            "distribute-core",
            "distribute-data",
            "distribute-error",
            "distribute-fit",
            "distribute-net",
        ]),
        true,
    ),
    row(
        "distribute-tpu-xla",
        MayUse::Only(&[
            "distribute-core",
            "distribute-data",
            "distribute-error",
            "distribute-fit",
        ]),
        true,
    ),
    row(
        "distribute-keras",
        MayUse::Only(&[
            "distribute-core",
            "distribute-data",
            "distribute-error",
            "distribute-kernels",
            "distribute-readers",
        ]),
        true,
    ),
    row(
        "distribute-classifier",
        MayUse::Only(&[
            "distribute-core",
            "distribute-data",
            "distribute-error",
            "distribute-fit",
            "distribute-keras",
            "distribute-readers",
        ]),
        true,
    ),
    row(
        "distribute-models",
        MayUse::Only(&[
            "distribute-core",
            "distribute-cuda",
            "distribute-data",
            "distribute-kernels",
            "distribute-readers",
            "distribute-tpu-xla",
        ]),
        true,
    ),
    row(
        "distribute-bench",
        MayUse::Only(&[
            "distribute-core",
            "distribute-data",
            "distribute-keras",
            "distribute-kernels",
            "distribute-launch",
            "distribute-collectives",
            "distribute-ps",
            "distribute-tpu-xla",
        ]),
        true,
    ),
    row(
        "distribute",
        MayUse::Only(&[
            "distribute-classifier",
            "distribute-core",
            "distribute-core-derive",
            "distribute-cuda",
            "distribute-data",
            "distribute-fit",
            "distribute-keras",
            "distribute-kernels",
            "distribute-learner",
            "distribute-models",
            "distribute-pipeline",
            "distribute-ps",
            "distribute-readers",
            "distribute-tpu-xla",
        ]),
        true,
    ),
    row("distribute-cli", MayUse::All, true),
    row("distribute-conformance", MayUse::All, true),
    row("examples", MayUse::All, true),
    row(
        "example-own-communicator",
        MayUse::Only(&["distribute-collectives", "distribute-conformance"]),
        false,
    ),
    row(OF_TESTS, MayUse::Only(&["distribute-net"]), false),
    row("xtask", MayUse::Only(&[]), false),
];

/// What the tests of every crate may use; its one own dependency is small.
const OF_TESTS: &str = "hostile";

const BURN_VERSION: &str = "=0.22.1";
const SECTIONS: [&str; 3] = ["dependencies", "dev-dependencies", "build-dependencies"];

/// Finds forbidden dependencies and everything by which a second burn could come in.
pub fn problems(tree: &Tree) -> Vec<String> {
    let mut problems = pinned_burn(&tree.manifest);
    let names: BTreeSet<&str> = tree
        .members
        .iter()
        .map(|member| member.name.as_str())
        .collect();
    for member in &tree.members {
        let mut report =
            |message| problems.push(format!("{}: {message}", member.path("Cargo.toml")));
        if !member.is_listed {
            report("is not listed in `workspace.members`, so nothing tests it".to_owned());
        }
        let Some(row) = CRATES.iter().find(|row| row.name == member.name) else {
            report(format!(
                "`{}` has no row in CRATES in crates/tools/xtask/src/edges.rs",
                member.name
            ));
            continue;
        };
        for (name, value) in dependencies(&member.manifest) {
            if names.contains(name) && !may_use(row, name) {
                report(format!(
                    "`{}` must not know `{name}`, the arrow would turn",
                    member.name
                ));
            }
            if is_burn(name) {
                burn_dependency(row, name, value)
                    .into_iter()
                    .for_each(&mut report);
            }
        }
        burn_by_default(member).into_iter().for_each(&mut report);
    }
    problems
}

fn may_use(row: &Row, name: &str) -> bool {
    match row.ours {
        MayUse::All => true,
        MayUse::Only(names) => name == OF_TESTS || names.contains(&name),
    }
}

fn is_burn(name: &str) -> bool {
    name == "burn" || name.starts_with("burn-")
}

/// The name in the registry and the value of every dependency, of every section and platform.
fn dependencies(manifest: &Table) -> Vec<(&str, &Value)> {
    let platforms = manifest.get("target").and_then(Value::as_table);
    let platforms = platforms
        .into_iter()
        .flat_map(Table::values)
        .filter_map(Value::as_table);
    let tables = std::iter::once(manifest).chain(platforms);
    let sections = tables.flat_map(|table| SECTIONS.iter().filter_map(|name| table.get(*name)));
    let entries = sections.filter_map(Value::as_table).flatten();
    entries
        .map(|(key, value)| {
            let name = value.get("package").and_then(Value::as_str).unwrap_or(key);
            (name, value)
        })
        .collect()
}

/// Checks that the workspace pins every crate of burn that it names.
fn pinned_burn(manifest: &Table) -> Vec<String> {
    let workspace = manifest
        .get("workspace")
        .and_then(|workspace| workspace.get("dependencies"));
    let table = workspace.and_then(Value::as_table);
    let burn = table
        .into_iter()
        .flatten()
        .filter(|(name, _)| is_burn(name));
    let mut problems = Vec::new();
    for (name, value) in burn {
        let version = value.get("version").unwrap_or(value).as_str();
        if version != Some(BURN_VERSION) {
            problems.push(format!(
                "Cargo.toml: the version of `{name}` is not `{BURN_VERSION}`"
            ));
        }
    }
    problems
}

/// Checks that a crate takes burn as the workspace has it.
fn burn_dependency(row: &Row, name: &str, value: &Value) -> Vec<String> {
    let mut problems = Vec::new();
    if !row.burn {
        problems.push(format!("`{}` must not know `{name}`", row.name));
    }
    if value.get("workspace").and_then(Value::as_bool) != Some(true) {
        problems.push(format!(
            "`{name}` is not inherited: write `{name}.workspace = true`"
        ));
    }
    for key in ["features", "default-features"] {
        if value.get(key).is_some() {
            let message = format!("`{name}` sets `{key}`: put it behind a feature of the crate");
            problems.push(message);
        }
    }
    problems
}

/// Checks that no default feature of a crate changes burn's features.
fn burn_by_default(member: &Member) -> Vec<String> {
    let Some(features) = member.manifest.get("features").and_then(Value::as_table) else {
        return Vec::new();
    };
    let mut reached = BTreeSet::new();
    let mut waiting = vec!["default"];
    while let Some(name) = waiting.pop() {
        if reached.insert(name) {
            let enabled = features.get(name).and_then(Value::as_array);
            waiting.extend(enabled.into_iter().flatten().filter_map(Value::as_str));
        }
    }
    let is_burns = |feature: &&&str| match feature.split_once('/') {
        Some((name, _)) => is_burn(name.trim_end_matches('?')),
        None => feature
            .strip_prefix("dep:")
            .is_some_and(|name| is_burn(name) && name != "burn"),
    };
    let problem = |feature: &&str| format!("the default features turn on `{feature}`");
    reached.iter().filter(is_burns).map(problem).collect()
}

#[cfg(test)]
mod tests {
    use super::problems;
    use crate::tree::Tree;

    const ROOT: &str = "
        [workspace]
        members = [\"a\", \"b\"]
        [workspace.dependencies]
        burn = { version = \"=0.22.1\", features = [\"std\"] }
    ";

    /// The problems of a workspace of two crates with these names and these ends of the manifests.
    fn found(root: &str, a: (&str, &str), b: (&str, &str)) -> Vec<String> {
        let manifest = |(name, rest)| format!("[package]\nname = \"{name}\"\n{rest}");
        let texts = [
            ("Cargo.toml", root.to_owned()),
            ("a/Cargo.toml", manifest(a)),
            ("b/Cargo.toml", manifest(b)),
        ];
        let texts = texts.map(|(path, text)| (path.to_owned(), text));
        problems(&Tree::parse(texts.into()).expect("the sample parses"))
    }

    fn core(rest: &str) -> Vec<String> {
        found(ROOT, ("distribute-core", rest), ("distribute-data", ""))
    }

    #[track_caller]
    fn assert_one(found: &[String], part: &str) {
        assert_eq!(found.len(), 1, "{found:#?}");
        assert!(
            found[0].contains(part),
            "{found:#?} does not contain {part}"
        );
    }

    #[test]
    fn arrows_in_the_right_direction_pass() {
        let data = "[dependencies]\ndistribute-core.workspace = true\nburn.workspace = true";
        assert_eq!(
            found(ROOT, ("distribute-core", ""), ("distribute-data", data)),
            [""; 0]
        );
    }

    #[test]
    fn turned_arrows_fail_in_every_section() {
        for section in [
            "dependencies",
            "dev-dependencies",
            "target.'cfg(unix)'.dependencies",
        ] {
            let rest = format!("[{section}]\ndistribute-data.workspace = true");
            assert_one(
                &core(&rest),
                "a/Cargo.toml: `distribute-core` must not know",
            );
        }
        let renamed = "[dependencies]\ndata = { package = \"distribute-data\", path = \"../b\" }";
        assert_one(&core(renamed), "must not know `distribute-data`");
    }

    #[test]
    fn a_crate_without_a_row_fails() {
        let found = found(ROOT, ("distribute-new", ""), ("distribute-data", ""));
        assert_one(&found, "`distribute-new` has no row");
    }

    #[test]
    fn a_crate_that_the_workspace_does_not_list_fails() {
        let root = ROOT.replace(", \"b\"", "");
        let found = found(&root, ("distribute-core", ""), ("distribute-data", ""));
        assert_one(&found, "b/Cargo.toml: is not listed");
    }

    #[test]
    fn only_crates_above_the_collectives_know_burn() {
        let rest = "[dependencies]\nburn.workspace = true";
        let found = found(
            ROOT,
            ("distribute-collectives", rest),
            ("distribute-data", ""),
        );
        assert_one(&found, "`distribute-collectives` must not know `burn`");
        assert_eq!(core(rest), [""; 0]);
    }

    #[test]
    fn burn_is_inherited_without_features() {
        assert_one(
            &core("[dependencies]\nburn = \"=0.22.1\""),
            "is not inherited",
        );
        let features = "[dependencies]\nburn = { workspace = true, features = [\"cuda\"] }";
        assert_one(&core(features), "sets `features`");
        let defaults = "[dependencies]\nburn = { workspace = true, default-features = true }";
        assert_one(&core(defaults), "sets `default-features`");
    }

    #[test]
    fn a_feature_may_extend_burn_unless_it_is_on_by_default() {
        assert_eq!(core("[features]\ncuda = [\"burn/cuda\"]"), [""; 0]);
        let rest = "[features]\ndefault = [\"gpu\"]\ngpu = [\"cuda\"]\ncuda = [\"burn?/cuda\"]";
        assert_one(&core(rest), "turn on `burn?/cuda`");
        let whole = "[features]\ndefault = [\"train\"]\ntrain = [\"dep:burn-train\"]";
        assert_one(&core(whole), "turn on `dep:burn-train`");
    }

    #[test]
    fn another_version_of_burn_fails() {
        for version in [
            "\"0.22.1\"",
            "{ version = \"=0.22.0\" }",
            "{ path = \"../burn\" }",
        ] {
            let root = ROOT.replace("{ version = \"=0.22.1\", features = [\"std\"] }", version);
            let found = found(&root, ("distribute-core", ""), ("distribute-data", ""));
            assert_one(&found, "is not `=0.22.1`");
        }
    }
}
