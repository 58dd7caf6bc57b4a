//! A user of threads compiles no network: what each transport of distribute-collectives brings.
//!
//! Which crates come with a feature is read from `cargo tree`; then the crate is checked with
//! each feature alone, by clippy.

use std::collections::BTreeSet;
use std::path::Path;

use crate::cargo;

/// Features of distribute-collectives, and the crates that must not come with them.
struct Combination {
    features: &'static str,
    without: &'static [&'static [&'static str]],
    /// Whether any machine can build it.
    builds_everywhere: bool,
}

const fn combination(
    features: &'static str,
    without: &'static [&'static [&'static str]],
) -> Combination {
    Combination {
        features,
        without,
        builds_everywhere: true,
    }
}

/// Without rustix, by which `tempfile` reaches the file system: a flight record is a file.
const NETWORK: &[&str] = &[
    "bytes",
    "h2",
    "hmac",
    "http",
    "hyper",
    "hyper-util",
    "prost",
    "ring",
    "rustls",
    "sha2",
    "tokio",
    "tokio-rustls",
    "tokio-stream",
    "tonic",
    "tonic-health",
    "tonic-prost",
    "tower",
];
const MPI: &[&str] = &["mpi", "mpi-sys"];
const NCCL: &[&str] = &["libloading"];

const COMBINATIONS: [Combination; 7] = [
    combination("", &[NETWORK, MPI, NCCL]),
    combination("nccl", &[NETWORK, MPI]),
    combination("grpc", &[MPI, NCCL]),
    combination("shm", &[MPI, NCCL]),
    combination("grpc,shm", &[MPI, NCCL]),
    Combination {
        features: "mpi",
        without: &[NETWORK, NCCL],
        builds_everywhere: false,
    },
    Combination {
        features: ALL,
        without: &[],
        builds_everywhere: false,
    },
];

/// All that a list names comes with these: a name that is gone would be missed for ever.
const ALL: &str = "grpc,shm,mpi,nccl";

/// Looks at every combination; says how many crates each has.
pub fn run(root: &Path) -> Result<String, String> {
    let (mut problems, mut counts) = (Vec::new(), Vec::new());
    for combination in &COMBINATIONS {
        let what = package(combination);
        let command = format!("tree --locked --edges normal --prefix none {what}");
        let listed = cargo::output_offline(root, &command)?;
        let tree = packages(&listed);
        counts.push(format!("{} {}", name(combination), tree.len()));
        problems.extend(surplus(combination, &tree));
        if combination.features == ALL {
            problems.extend(unknown(&tree));
        }
    }
    if !problems.is_empty() {
        return Err(problems.join("\n"));
    }
    for combination in COMBINATIONS.iter().filter(|it| it.builds_everywhere) {
        let what = package(combination);
        cargo::cargo(root, &format!("clippy {what} -- -D warnings"))?;
    }
    Ok(format!("crates: {}", counts.join(", ")))
}

fn package(combination: &Combination) -> String {
    let features = match combination.features {
        "" => String::new(),
        features => format!(" --features {features}"),
    };
    format!("-p distribute-collectives --no-default-features{features}")
}

fn name(combination: &Combination) -> &str {
    match combination.features {
        "" => "none",
        features => features,
    }
}

/// The names of the packages in the output of `cargo tree`.
fn packages(text: &str) -> BTreeSet<&str> {
    let names = text.lines().filter_map(|line| line.split(' ').next());
    names.filter(|name| !name.is_empty()).collect()
}

fn surplus(combination: &Combination, tree: &BTreeSet<&str>) -> Vec<String> {
    let unwanted = combination.without.iter().copied().flatten();
    let found = unwanted.filter(|unwanted| tree.contains(*unwanted));
    let problem = |found| {
        let name = name(combination);
        format!("distribute-collectives with the features [{name}] compiles `{found}`")
    };
    found.map(problem).collect()
}

/// The names that no combination can have.
fn unknown(all: &BTreeSet<&str>) -> Vec<String> {
    let names = [NETWORK, MPI, NCCL].concat().into_iter();
    names
        .filter(|name| !all.contains(name))
        .map(|name| format!("`{name}` comes with no feature of distribute-collectives any more"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::{COMBINATIONS, packages, surplus, unknown};

    const TREE: &str = "\
distribute-collectives v0.1.0 (distribute-collectives)
bytemuck v1.25.0
tokio v1.54.0

bytemuck v1.25.0 (*)
";

    #[test]
    fn a_crate_that_must_not_be_there_is_named() {
        let [none, .., all] = &COMBINATIONS;
        let tree = packages(TREE);
        assert_eq!(tree.len(), 3);
        let expected = "distribute-collectives with the features [none] compiles `tokio`";
        assert_eq!(surplus(none, &tree), [expected]);
        assert_eq!(surplus(all, &tree), [""; 0]);
    }

    #[test]
    fn a_name_that_nothing_brings_is_named() {
        let found = unknown(&packages(TREE));
        assert!(!found.iter().any(|problem| problem.contains("`tokio`")));
        let expected = "`tonic` comes with no feature of distribute-collectives any more";
        assert!(found.iter().any(|problem| problem == expected), "{found:?}");
    }
}
