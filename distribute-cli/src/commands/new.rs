//! `new`: creates a Cargo project with a training program.

use std::fs;
use std::path::{Component, Path, PathBuf};

use super::whole_directory::WholeDirectory;
use crate::events::line;
use crate::failure::Failure;
use crate::flags::NewArgs;

/// The clone of the repository in which this program was built.
const BUILT_IN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
const PROGRAM: &str = include_str!("../../template/main.rs");
const PROFILES: &str = include_str!("../../template/profile.toml");

/// The source of the project's dependency.
enum Source {
    Clone(PathBuf),
    Url(String),
}

/// Writes the project completely or not at all.
pub(super) fn run(args: &NewArgs) -> Result<(), Failure> {
    let directory = &args.directory;
    let name = name(directory)?;
    if directory.symlink_metadata().is_ok() {
        return Err(Failure::usage(format!(
            "{} exists: a project is never written over; remove it or choose another name",
            directory.display()
        )));
    }
    let source = Source::find(args.source.as_deref())?;
    let whole = WholeDirectory::beside(directory, ".new-")?;
    for (file, text) in source.files(name, whole.path())? {
        let path = whole.path().join(file);
        let folder = path.parent().unwrap_or(whole.path());
        let written = fs::create_dir_all(folder).and_then(|()| fs::write(&path, text));
        written.map_err(|error| Failure::of_file(&error, &error).in_file(&path))?;
    }
    whole.put(directory)?;
    line(&format!(
        "{}: a program that trains on handwritten digits\n\
         run it with `cargo run --release` in this folder",
        directory.display()
    ))
}

/// The name of the package, from the folder.
fn name(directory: &Path) -> Result<&str, Failure> {
    let name = directory
        .file_name()
        .and_then(|name| name.to_str())
        .unwrap_or_default();
    let allowed = |letter: char| letter.is_ascii_alphanumeric() || "-_".contains(letter);
    let starts = name.starts_with(|first: char| first.is_ascii_alphabetic());
    if !starts || !name.chars().all(allowed) {
        return Err(Failure::usage(format!(
            "{}: no name for a package: use a letter, then letters, digits, - and _",
            directory.display()
        )));
    }
    // A package with the name of a library or of a part of Rust could not use that library.
    if [
        "burn",
        "distribute",
        "core",
        "std",
        "alloc",
        "test",
        "proc_macro",
    ]
    .contains(&name)
    {
        return Err(Failure::usage(format!(
            "{name}: the name of a library: choose another one"
        )));
    }
    Ok(name)
}

impl Source {
    fn find(named: Option<&str>) -> Result<Self, Failure> {
        if let Some(url) = named.filter(|text| text.contains("://") || text.starts_with("git@")) {
            return Ok(Self::Url(url.to_string()));
        }
        let clone = Path::new(named.unwrap_or(BUILT_IN));
        if clone.join("distribute/Cargo.toml").is_file() {
            let whole = clone.canonicalize();
            return whole
                .map(Self::Clone)
                .map_err(|error| Failure::of_file(&error, &error).in_file(clone));
        }
        Err(Failure::usage(match named {
            Some(path) => format!(
                "--source {path}: no clone of the repository: it has no distribute/Cargo.toml"
            ),
            None => {
                "the clone that this program was built in is gone: name one, or the URL of the \
                     repository, with --source"
                    .to_string()
            }
        }))
    }

    /// The files of a project and their contents. `folder` is next to the final path.
    fn files(&self, name: &str, folder: &Path) -> Result<Vec<(&'static str, String)>, Failure> {
        let mut config = PROFILES.to_string();
        let mut files = vec![
            ("src/main.rs", PROGRAM.to_string()),
            (".gitignore", "/target\n/checkpoints\n".to_string()),
        ];
        let library = match self {
            Self::Url(url) => format!("git = {}", quoted(url)),
            Self::Clone(clone) => {
                let folder = folder
                    .canonicalize()
                    .map_err(|error| Failure::of_file(&error, &error))?;
                let path = from(&folder, clone);
                let target = quoted(&path.join("target").to_string_lossy());
                config = format!(
                    "# Programs and tools that are built in the same folder share what they are \
                     built of.\n[build]\ntarget-dir = {target}\n\n{config}"
                );
                // For the same versions of dependencies.
                let lock = clone.join("Cargo.lock");
                let text = fs::read_to_string(&lock)
                    .map_err(|error| Failure::of_file(&error, &error).in_file(&lock))?;
                files.push(("Cargo.lock", text));
                format!(
                    "path = {}",
                    quoted(&path.join("distribute").to_string_lossy())
                )
            }
        };
        files.push((".cargo/config.toml", config));
        files.push(("Cargo.toml", manifest(name, &library)));
        Ok(files)
    }
}

fn manifest(name: &str, library: &str) -> String {
    format!(
        "[package]\n\
         name = {name}\n\
         version = \"0.1.0\"\n\
         edition = \"2024\"\n\
         \n\
         [dependencies]\n\
         # burn is in it. Features: cuda, tpu, parameter-server, keras, kernels, models, learner.\n\
         distribute = {{ {library} }}\n\
         \n\
         # Of no other workspace, wherever its folder lies.\n\
         [workspace]\n",
        name = quoted(name)
    )
}

/// A text as a TOML string.
fn quoted(text: &str) -> String {
    toml::Value::from(text).to_string()
}

/// The path from one folder to another, both without links. It is relative, because projects and
/// clones are moved and copied together, unless they have only the root in common.
fn from(folder: &Path, other: &Path) -> PathBuf {
    let common = folder
        .components()
        .zip(other.components())
        .take_while(|(one, other)| one == other)
        .count();
    if common <= 1 {
        return other.to_path_buf();
    }
    let up = folder
        .components()
        .skip(common)
        .map(|_| Component::ParentDir);
    up.chain(other.components().skip(common)).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::process::Command;

    use toml::Table;

    use super::*;

    #[test]
    fn the_way_between_folders() {
        let way = |one: &str, other: &str| from(Path::new(one), Path::new(other));
        assert_eq!(
            way("/a/digits", "/a/distribute"),
            Path::new("../distribute")
        );
        assert_eq!(way("/a/b/c", "/a"), Path::new("../.."));
        assert_eq!(way("/a", "/a/b"), Path::new("b"));
        assert_eq!(
            way("/a/digits", "/b/distribute"),
            Path::new("/b/distribute")
        );
    }

    #[test]
    fn a_repository_is_named_by_its_url() {
        let source = Source::find(Some("https://example.com/d\"q")).ok().unwrap();
        let files = source.files("digits", Path::new(".")).ok().unwrap();
        let manifest = &files
            .iter()
            .find(|(file, _)| *file == "Cargo.toml")
            .unwrap()
            .1;
        let manifest: Table = manifest.parse().unwrap();
        let git = manifest["dependencies"]["distribute"]["git"].as_str();
        assert_eq!(git, Some("https://example.com/d\"q"));
        assert!(files.iter().all(|(file, _)| *file != "Cargo.lock"));
    }

    #[test]
    fn the_quick_start_shows_the_program() {
        let page = include_str!("../../../docs/quick-start.md");
        let (_, program) = PROGRAM.split_once("\n\n").unwrap();
        assert!(page.contains(&format!("```rust,no_run\n{program}```")));
    }

    /// The dependencies of a program with `distribute`.
    fn packages() -> BTreeSet<String> {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let tree = Command::new(cargo)
            .args([
                "tree",
                "--offline",
                "-p",
                "distribute",
                "-e",
                "normal,build",
            ])
            .args(["--prefix", "none", "-f", "{p}"])
            .current_dir(BUILT_IN)
            .output()
            .unwrap();
        assert!(
            tree.status.success(),
            "{}",
            String::from_utf8_lossy(&tree.stderr)
        );
        let text = String::from_utf8(tree.stdout).unwrap();
        let names = text.lines().filter_map(|line| line.split(' ').next());
        names.map(str::to_string).collect()
    }

    /// A different profile would build burn again in the target folder of the clone.
    #[test]
    fn the_profiles_are_those_of_the_repository() {
        let packages = packages();
        let manifest: Table = fs::read_to_string(Path::new(BUILT_IN).join("Cargo.toml"))
            .unwrap()
            .parse()
            .unwrap();
        let mut profiles = manifest["profile"].as_table().unwrap().clone();
        for (_, profile) in &mut profiles {
            let overrides = profile.get_mut("package").and_then(|it| it.as_table_mut());
            if let Some(overrides) = overrides {
                overrides.retain(|name, _| name == "*" || packages.contains(name));
            }
        }
        let template: Table = PROFILES.parse().unwrap();
        assert_eq!(template["profile"], toml::Value::Table(profiles));
    }
}
