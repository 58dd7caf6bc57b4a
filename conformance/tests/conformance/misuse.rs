//! Misuse that TensorFlow finds at run time, if at all, and the compiler finds here, each for the
//! reason that is meant: the compiler's whole message is compared.
//!
//! The programs are compiled with the libraries that this test itself was built with: nothing is
//! built a second time.

use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// Whose messages the snapshots hold. Other versions put things in other words.
const COMPILER: &str = "rustc 1.95.";

/// What the compiler says of types that it has not shown in full.
const FULL_NAMES: [&str; 2] = [
    "the full name for the type has been written to",
    "consider using `--verbose` to print the full type name",
];

/// What the programs may name.
const CRATES: [&str; 5] = [
    "burn",
    "distribute_collectives",
    "distribute_core",
    "distribute_data",
    "distribute_fit",
];

#[test]
fn misuse_does_not_compile() {
    let version = Command::new(rustc()).arg("--version").output().unwrap();
    let version = String::from_utf8(version.stdout).unwrap();
    if !version.starts_with(COMPILER) {
        println!(
            "SKIPPED misuse: the messages are of {COMPILER}, this is {version}; that misuse \
             does not compile is also checked by the documentation tests"
        );
        return;
    }
    let libraries = libraries();
    let mut programs: Vec<PathBuf> = std::fs::read_dir(directory().join("tests/misuse"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    programs.sort();
    assert!(programs.len() >= 13, "{programs:?}");
    let names = programs.iter().map(|it| it.file_stem().unwrap());
    let names: Vec<&str> = names.map(|it| it.to_str().unwrap()).collect();
    for (name, message) in names.iter().zip(messages(&names, &libraries)) {
        insta::assert_snapshot!(format!("misuse__{name}"), message);
    }
}

/// What the compiler says about each program; as many at once as there are cores.
fn messages(names: &[&str], libraries: &[(&'static str, String)]) -> Vec<String> {
    let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
    let part = |names: &[&str]| -> Vec<String> {
        let all = names.iter().map(|name| message(name, libraries));
        all.collect()
    };
    std::thread::scope(|scope| {
        let parts = names.chunks(names.len().div_ceil(cores));
        let parts: Vec<_> = parts
            .map(|names| scope.spawn(move || part(names)))
            .collect();
        let parts = parts.into_iter().flat_map(|part| part.join().unwrap());
        parts.collect()
    })
}

fn directory() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Where cargo runs the compiler: the sources in its messages are looked for from here.
fn root() -> &'static Path {
    directory().parent().unwrap()
}

fn rustc() -> PathBuf {
    std::env::var_os("RUSTC").map_or("rustc".into(), PathBuf::from)
}

/// The files of `CRATES`, as cargo has built them for this test.
fn libraries() -> Vec<(&'static str, String)> {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo
        .args(["test", "--workspace", "--no-run", "--test", "conformance"])
        .args(["--offline", "--quiet", "--message-format", "json"])
        .current_dir(directory());
    // Set for this test alone; build scripts that watch them would run again.
    let ours = |name: &str| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIF");
    for (name, _) in std::env::vars().filter(|(name, _)| ours(name)) {
        cargo.env_remove(name);
    }
    let output = cargo.output().unwrap();
    let messages = String::from_utf8(output.stdout).unwrap();
    let artifacts: Vec<Value> = messages
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok())
        .collect();
    let file = |name: &str| {
        let of = |artifact: &&Value| {
            let target = &artifact["target"];
            target["name"] == name
                && target["kind"][0] == "lib"
                && artifact["profile"]["test"] == false
        };
        let artifact = artifacts.iter().find(of).unwrap_or_else(|| {
            panic!("no {name}: {}", String::from_utf8_lossy(&output.stderr));
        });
        let mut files = artifact["filenames"].as_array().into_iter().flatten();
        let file = files.find_map(|file| file.as_str().filter(|file| file.ends_with(".rlib")));
        file.unwrap().to_owned()
    };
    CRATES.iter().map(|name| (*name, file(name))).collect()
}

/// What the compiler says about a program, without what changes when the line of something else
/// moves.
fn message(name: &str, libraries: &[(&'static str, String)]) -> String {
    let out = tempfile::tempdir().unwrap();
    let dependencies = Path::new(&libraries[0].1).parent().unwrap();
    let mut rustc = Command::new(rustc());
    rustc
        .arg(format!("conformance/tests/misuse/{name}.rs"))
        .args([
            "--edition",
            "2024",
            "--emit",
            "metadata",
            "--color",
            "never",
        ])
        .args(["--diagnostic-width", "140", "--out-dir"])
        .arg(out.path())
        .arg("-L")
        .arg(format!("dependency={}", dependencies.display()))
        .current_dir(root());
    for (name, file) in libraries {
        rustc.arg("--extern").arg(format!("{name}={file}"));
    }
    let output = rustc.output().unwrap();
    assert!(!output.status.success(), "{name} compiles");
    normalised(&String::from_utf8(output.stderr).unwrap())
}

/// A message without what is beside the point: the lines and numbers of lines of other files, which
/// move, and the standard library's source, which is shown only where it is installed.
fn normalised(message: &str) -> String {
    let mut place = Place::Program;
    let mut lines = Vec::new();
    // Where long types are written to is another place every time.
    let is_shown = |line: &&str| !FULL_NAMES.iter().any(|text| line.contains(text));
    for line in message.lines().filter(is_shown) {
        if let Some(next) = Place::of(line) {
            place = next;
            lines.push(place.shown(line));
            continue;
        }
        let shown = line.trim_start_matches(|c: char| c.is_ascii_digit() || c == ' ');
        let is_source = shown.starts_with('|') || line == "...";
        match place {
            Place::Library if is_source => {}
            Place::Workspace if is_source => lines.push(format!("   {shown}")),
            // The indent is as wide as the largest number of a line.
            _ if line.starts_with(' ') => lines.push(format!("  {}", without_count(line))),
            _ => lines.push(line.to_owned()),
        }
    }
    lines.join("\n")
}

/// Whose source a message shows.
enum Place {
    Program,
    Workspace,
    Library,
}

impl Place {
    fn of(line: &str) -> Option<Self> {
        let marks = ["--> ", "::: "];
        let mut found = marks.iter();
        let at = found.find_map(|mark| line.trim_start().strip_prefix(mark))?;
        Some(match at {
            _ if at.starts_with("conformance/tests/misuse/") => Self::Program,
            _ if at.contains("/library/") => Self::Library,
            _ => Self::Workspace,
        })
    }

    fn shown(&self, line: &str) -> String {
        let line = line.trim_start();
        let place = line.split_once(".rs:").map_or(line, |(place, _)| place);
        match (self, place.split_once("/library/")) {
            (Self::Program, _) => format!("  {line}"),
            (Self::Library, Some((_, inside))) => format!("  --> $RUST/{inside}.rs"),
            _ => format!("  {place}.rs"),
        }
    }
}

/// A line without its indent; how many other types there are does not matter.
fn without_count(line: &str) -> String {
    let words: Vec<&str> = line.split_whitespace().collect();
    match words[..] {
        ["and", _, "others"] => "and $N others".to_owned(),
        _ => line.trim_start().to_owned(),
    }
}
