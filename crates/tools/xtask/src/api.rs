//! The public interface of every library as text, kept in the repository: a change of it shows in
//! the diff, and says whether the next version may be a compatible one.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::cargo::{PROGRAMS, cargo_command, finish, output, reading_everything};
use crate::package;
use crate::tree::{Member, Workspace};

/// The compiler whose rustdoc writes the JSON that `crates/tools/public-interfaces` reads. Other
/// versions write other texts too.
const COMPILER: &str = "rustc 1.95.";
/// Examples bring in the dev-dependencies, so that everything resolves to the features with which
/// the step `clippy` has read it.
const DOCUMENT: &str = "doc --workspace --no-deps --lib --bins --examples";
const LISTER: &str = "crates/tools/public-interfaces/Cargo.toml";
const FOLDER: &str = "crates/tools/public-interfaces/listings";
/// As many lines of a difference say what has changed.
const SHOWN: usize = 40;

/// Reads the documentation of all crates, in which no warning may be, and compares the interfaces
/// with what the repository has of them.
pub fn check(workspace: &Workspace) -> Result<String, String> {
    let root = &workspace.root;
    if !is_known_compiler()? {
        finish(documentation(root).env("RUSTDOCFLAGS", "-D warnings"))?;
        return Ok(format!("SKIPPED: the interfaces: needs {COMPILER}x"));
    }
    let found = listings(workspace)?;
    let mut problems = Vec::new();
    for (name, text) in &found {
        let file = format!("{FOLDER}/{name}.txt");
        let kept = fs::read_to_string(root.join(&file)).unwrap_or_default();
        problems.extend(difference(&file, &kept, text));
    }
    for file in unknown(root, &found)? {
        problems.push(format!("{}: no library has this name", file.display()));
    }
    if problems.is_empty() {
        Ok(format!("{} libraries", found.len()))
    } else {
        Err(problems.join("\n"))
    }
}

fn documentation(root: &Path) -> Command {
    reading_everything(root, &format!("{DOCUMENT} {PROGRAMS}"))
}

/// Writes them anew.
pub fn write(workspace: &Workspace) -> Result<String, String> {
    let root = &workspace.root;
    if !is_known_compiler()? {
        return Err(format!("it needs {COMPILER}x"));
    }
    let found = listings(workspace)?;
    let folder = root.join(FOLDER);
    let failed = |error: std::io::Error| format!("{FOLDER}: {error}");
    fs::create_dir_all(&folder).map_err(failed)?;
    for file in unknown(root, &found)? {
        fs::remove_file(file).map_err(failed)?;
    }
    for (name, text) in &found {
        fs::write(folder.join(format!("{name}.txt")), text).map_err(failed)?;
    }
    Ok(format!("{} libraries in {FOLDER}", found.len()))
}

/// Files of libraries that are not there any more.
fn unknown(root: &Path, found: &BTreeMap<String, String>) -> Result<Vec<PathBuf>, String> {
    let folder = root.join(FOLDER);
    if !folder.exists() {
        return Ok(Vec::new());
    }
    let entries = fs::read_dir(&folder).map_err(|error| format!("{FOLDER}: {error}"))?;
    let files = entries.filter_map(|entry| Some(entry.ok()?.path()));
    let is_known = |file: &PathBuf| {
        let name = file.file_stem().and_then(|name| name.to_str());
        name.is_some_and(|name| found.contains_key(name))
    };
    Ok(files.filter(|file| !is_known(file)).collect())
}

/// The lines that went and came, or that the same ones stand in another order.
fn difference(file: &str, kept: &str, found: &str) -> Option<String> {
    if kept == found {
        return None;
    }
    let count = |text: &str| {
        let mut counted = BTreeMap::new();
        for line in text.lines() {
            *counted.entry(line.to_owned()).or_insert(0_isize) += 1;
        }
        counted
    };
    let mut balance = count(found);
    for (line, times) in count(kept) {
        *balance.entry(line).or_insert(0) -= times;
    }
    let changed = balance.iter().filter(|(_, times)| **times != 0);
    let mut lines: Vec<String> = changed
        .map(|(line, times)| format!("  {} {line}", if *times > 0 { '+' } else { '-' }))
        .collect();
    if lines.is_empty() {
        return Some(format!("{file}: the same items in another order"));
    }
    let more = lines.len().saturating_sub(SHOWN);
    lines.truncate(SHOWN);
    if more > 0 {
        lines.push(format!("  and {more} lines more"));
    }
    Some(format!("{file}: another interface\n{}", lines.join("\n")))
}

fn is_known_compiler() -> Result<bool, String> {
    let compiler = Command::new("rustc").arg("--version").output();
    let compiler = compiler.map_err(|error| format!("cannot start rustc: {error}"))?;
    Ok(String::from_utf8_lossy(&compiler.stdout).starts_with(COMPILER))
}

/// One line for each public item of each library, by the name of its crate.
fn listings(workspace: &Workspace) -> Result<BTreeMap<String, String>, String> {
    let (root, tree) = (&workspace.root, workspace.tree()?);
    let metadata = output(root, "metadata --format-version 1 --no-deps --offline")?;
    let metadata: serde_json::Value =
        serde_json::from_str(&metadata).map_err(|error| format!("cargo metadata: {error}"))?;
    let target = Path::new(metadata["target_directory"].as_str().unwrap_or("target"));
    let libraries: Vec<&Member> = package::published(tree)
        .filter(|member| tree.paths.contains(&member.path("src/lib.rs")))
        .collect();
    document(root, target)?;
    let folder = target.join("public-interfaces");
    list(root, target, &folder, &libraries)?;
    let mut found = BTreeMap::new();
    for member in libraries {
        let file = folder.join(format!("{}.txt", member.library()));
        let text = fs::read_to_string(&file);
        let text = text.map_err(|error| format!("{}: {error}", file.display()))?;
        found.insert(member.name.clone(), text);
    }
    Ok(found)
}

/// Turns the JSON of rustdoc into lines.
fn list(root: &Path, target: &Path, folder: &Path, libraries: &[&Member]) -> Result<(), String> {
    fs::create_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let run = format!("run --quiet --locked --manifest-path {LISTER} --");
    let mut command = cargo_command(root, &run);
    command.env("CARGO_TARGET_DIR", folder.join("target"));
    command.arg(folder);
    let json = |member: &&Member| target.join(format!("doc/{}.json", member.library()));
    command.args(libraries.iter().map(json));
    finish(&mut command).map(drop)
}

/// Runs rustdoc for what it writes as JSON, and for its warnings, which are the same in every form.
/// JSON is a feature of nightly compilers, which this one has as well when it is asked; only
/// rustdoc is, since build scripts look whether rustc is.
fn document(root: &Path, target: &Path) -> Result<String, String> {
    let rustdoc = target.join("rustdoc-json");
    let script = "#!/bin/sh\nRUSTC_BOOTSTRAP=1 exec rustdoc \"$@\"\n";
    fs::create_dir_all(target)
        .and_then(|()| fs::write(&rustdoc, script))
        .and_then(|()| fs::set_permissions(&rustdoc, fs::Permissions::from_mode(0o755)))
        .map_err(|error| format!("{}: {error}", rustdoc.display()))?;
    let mut command = documentation(root);
    command.env("RUSTDOC", rustdoc);
    let flags = "-D warnings -Zunstable-options --output-format json";
    finish(command.env("RUSTDOCFLAGS", flags))
}

#[cfg(test)]
mod tests {
    use super::{SHOWN, difference};

    #[test]
    fn what_went_and_came_is_shown_by_item() {
        let kept = "pub mod a\npub fn a::one()\npub fn a::two()\n";
        assert_eq!(difference("a.txt", kept, kept), None);
        let found = "pub mod a\npub fn a::one(u8)\npub fn a::two()\n";
        let said = difference("a.txt", kept, found).unwrap();
        assert_eq!(
            said,
            "a.txt: another interface\n  - pub fn a::one()\n  + pub fn a::one(u8)"
        );
        let moved = "pub mod a\npub fn a::two()\npub fn a::one()\n";
        let said = difference("a.txt", kept, moved).unwrap();
        assert_eq!(said, "a.txt: the same items in another order");
        let many: String = (0..50).map(|i| format!("pub fn a::f{i}()\n")).collect();
        let said = difference("a.txt", "", &many).unwrap();
        assert_eq!(said.lines().count(), 1 + SHOWN + 1);
        assert!(said.ends_with("and 10 lines more"), "{said}");
    }
}
