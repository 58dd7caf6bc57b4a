//! What the checks look at: the tracked files, parsed once, and the workspace's members.

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use proc_macro2::TokenStream;

/// A file of Rust, parsed.
pub struct RustFile {
    pub text: String,
    pub tokens: TokenStream,
    pub syntax: syn::File,
}

impl RustFile {
    /// A file written by a generator, which the rules about style leave alone.
    pub fn is_generated(&self) -> bool {
        self.text
            .lines()
            .next()
            .is_some_and(|line| line.contains("@generated"))
    }
}

/// One crate of the workspace.
pub struct Member {
    pub name: String,
    /// The directory of its manifest, relative to the root, without a slash at the end.
    pub directory: String,
    /// Whether the workspace lists it: cargo tests no crate that it does not know.
    pub is_listed: bool,
    pub manifest: toml::Table,
}

impl Member {
    /// A path inside this crate, relative to the root.
    pub fn path(&self, inside: &str) -> String {
        format!("{}/{inside}", self.directory)
    }

    /// The name of its library in Rust.
    pub fn library(&self) -> String {
        let named = self.manifest.get("lib").and_then(|lib| lib.get("name"));
        let named = named.and_then(toml::Value::as_str);
        named.unwrap_or(&self.name).replace('-', "_")
    }
}

/// The tracked files by path (relative to the root, `/` between the parts).
pub struct Tree {
    /// All of them; a file that is no text is here only.
    pub paths: BTreeSet<String>,
    pub texts: BTreeMap<String, String>,
    pub rust: BTreeMap<String, RustFile>,
    pub members: Vec<Member>,
    /// Crates with a workspace of their own.
    pub excluded: Vec<Member>,
    pub manifest: toml::Table,
}

/// The workspace that is checked. Its files are read and parsed once for all steps.
pub struct Workspace {
    pub root: PathBuf,
    tree: OnceCell<Tree>,
}

impl Workspace {
    pub fn at(root: &Path) -> Self {
        Self {
            root: root.to_owned(),
            tree: OnceCell::new(),
        }
    }

    /// Its files; the first call reads them.
    pub fn tree(&self) -> Result<&Tree, String> {
        if let Some(tree) = self.tree.get() {
            return Ok(tree);
        }
        let tree = Tree::read(&self.root)?;
        Ok(self.tree.get_or_init(|| tree))
    }
}

impl Tree {
    /// Reads the files that git tracks below `root`.
    pub fn read(root: &Path) -> Result<Self, String> {
        let mut paths = tracked_files(root)?;
        // A file deleted but not yet committed is still listed by git.
        paths.retain(|path| root.join(path).is_file());
        let mut texts = BTreeMap::new();
        for path in &paths {
            let bytes = std::fs::read(root.join(path)).map_err(|e| format!("{path}: {e}"))?;
            if let Ok(text) = String::from_utf8(bytes) {
                texts.insert(path.clone(), text);
            }
        }
        let mut tree = Self::parse(texts)?;
        tree.paths.extend(paths);
        Ok(tree)
    }

    /// Parses files that are already in memory.
    pub fn parse(texts: BTreeMap<String, String>) -> Result<Self, String> {
        let manifest = parse_manifest(&texts, "Cargo.toml")?;
        let members = member_directories(&manifest, &texts);
        let members = parse_members(members, &manifest, &texts)?;
        let mut excluded = listed(&manifest, "exclude");
        excluded.retain(|directory| texts.contains_key(&format!("{directory}/Cargo.toml")));
        let excluded = parse_members(excluded, &manifest, &texts)?;
        let mut rust = BTreeMap::new();
        for (path, text) in texts.iter().filter(|(path, _)| path.ends_with(".rs")) {
            let syntax = syn::parse_file(text).map_err(|error| not_rust(path, &error))?;
            let tokens = text.parse().map_err(|error| format!("{path}: {error}"))?;
            rust.insert(
                path.clone(),
                RustFile {
                    text: text.clone(),
                    tokens,
                    syntax,
                },
            );
        }
        Ok(Self {
            paths: texts.keys().cloned().collect(),
            texts,
            rust,
            members,
            excluded,
            manifest,
        })
    }

    /// What to say where a name is that of no member.
    pub fn no_such_crate(&self) -> String {
        let names: Vec<&str> = self.members.iter().map(|member| &*member.name).collect();
        format!("no such crate; there are {}", names.join(", "))
    }

    /// The member that a file belongs to: the one with the deepest directory around it.
    pub fn member_of(&self, path: &str) -> Option<&Member> {
        let around = |member: &&Member| {
            path.strip_prefix(&member.directory)
                .is_some_and(|rest| rest.starts_with('/'))
        };
        self.members
            .iter()
            .filter(around)
            .max_by_key(|member| member.directory.len())
    }
}

fn not_rust(path: &str, error: &syn::Error) -> String {
    format!(
        "{path}:{}: does not parse as Rust: {error}",
        error.span().start().line
    )
}

fn parse_manifest(texts: &BTreeMap<String, String>, path: &str) -> Result<toml::Table, String> {
    let text = texts.get(path).ok_or_else(|| {
        format!("{path}: is not tracked by git, so a clone would lack it: `git add {path}`")
    })?;
    text.parse().map_err(|error| format!("{path}: {error}"))
}

/// The crates in these directories.
fn parse_members(
    directories: BTreeSet<String>,
    workspace: &toml::Table,
    texts: &BTreeMap<String, String>,
) -> Result<Vec<Member>, String> {
    let mut members = Vec::new();
    for directory in directories {
        let manifest = parse_manifest(texts, &format!("{directory}/Cargo.toml"))?;
        let name = manifest
            .get("package")
            .and_then(|package| package.get("name"))
            .and_then(toml::Value::as_str)
            .ok_or_else(|| format!("{directory}/Cargo.toml: has no package name"))?;
        members.push(Member {
            name: name.to_owned(),
            is_listed: listed(workspace, "members").contains(&directory),
            directory,
            manifest,
        });
    }
    Ok(members)
}

/// Every directory with a manifest, listed in the workspace or not, unless it is excluded.
fn member_directories(
    manifest: &toml::Table,
    texts: &BTreeMap<String, String>,
) -> BTreeSet<String> {
    let found = texts
        .keys()
        .filter_map(|path| path.strip_suffix("/Cargo.toml"));
    let mut directories = listed(manifest, "members");
    directories.extend(found.map(str::to_owned));
    &directories - &listed(manifest, "exclude")
}

/// The directories that the workspace lists under this key.
fn listed(manifest: &toml::Table, key: &str) -> BTreeSet<String> {
    let names = manifest
        .get("workspace")
        .and_then(|workspace| workspace.get(key)?.as_array());
    let names = names.into_iter().flatten().filter_map(toml::Value::as_str);
    names.map(str::to_owned).collect()
}

fn tracked_files(root: &Path) -> Result<Vec<String>, String> {
    // A build machine often clones as one user and builds as another, which git refuses to read
    // unless told that it is fine.
    let output = Command::new("git")
        .args(["-c", "safe.directory=*", "ls-files", "-z"])
        .current_dir(root)
        .output()
        .map_err(|error| format!("cannot start git, which lists the files: {error}"))?;
    if !output.status.success() {
        let reason = String::from_utf8_lossy(&output.stderr);
        return Err(format!(
            "`git ls-files` in {}: {}",
            root.display(),
            reason.trim()
        ));
    }
    let names = String::from_utf8_lossy(&output.stdout);
    Ok(names
        .split('\0')
        .filter(|name| !name.is_empty())
        .map(str::to_owned)
        .collect())
}

/// Samples for the tests of the rules.
#[cfg(test)]
pub mod samples {
    use super::Tree;

    /// A workspace of one library crate `sample` with a sound `lib.rs`, and these files on top.
    pub fn tree(files: &[(&str, &str)]) -> Tree {
        let sound = [
            ("Cargo.toml", "[workspace]\nmembers = [\"sample\"]\n"),
            ("ARCHITECTURE.md", "- `sample`: a sample.\n"),
            (
                "sample/Cargo.toml",
                "[package]\nname = \"sample\"\n[lib]\ntest = false\n",
            ),
            ("sample/README.md", "# sample\n"),
            (
                "sample/src/lib.rs",
                "//! A sample.\n#![forbid(unsafe_code)]\n#![deny(clippy::expect_used, clippy::panic)]\n\
                 #![deny(clippy::print_stderr, clippy::print_stdout, clippy::unwrap_used)]\n",
            ),
        ];
        let texts = sound.iter().chain(files);
        let texts = texts
            .map(|(path, text)| ((*path).to_owned(), (*text).to_owned()))
            .collect();
        Tree::parse(texts).expect("the sample parses")
    }
}

#[cfg(test)]
mod tests {
    use super::{Tree, samples};
    use std::process::Command;

    #[test]
    fn a_file_belongs_to_the_deepest_member_around_it() {
        let tree = samples::tree(&[
            (
                "Cargo.toml",
                "[workspace]\nmembers = [\"sample\", \"sample/derive\"]\n",
            ),
            (
                "sample/derive/Cargo.toml",
                "[package]\nname = \"sample-derive\"\n",
            ),
        ]);
        let name = |path| tree.member_of(path).map(|member| member.name.as_str());
        assert_eq!(name("sample/src/lib.rs"), Some("sample"));
        assert_eq!(name("sample/derive/src/lib.rs"), Some("sample-derive"));
        assert_eq!(name("sampler/src/lib.rs"), None);
    }

    #[test]
    fn a_crate_is_a_member_unless_it_is_excluded() {
        let manifest = ("b/Cargo.toml", "[package]\nname = \"b\"\n");
        let excluded = (
            "Cargo.toml",
            "[workspace]\nmembers = [\"sample\"]\nexclude = [\"b\"]",
        );
        let names = |files: &[(&str, &str)]| {
            let members = samples::tree(files).members.into_iter();
            members.map(|member| member.name).collect::<Vec<_>>()
        };
        assert_eq!(names(&[manifest]), ["b", "sample"]);
        assert_eq!(names(&[manifest, excluded]), ["sample"]);
    }

    #[test]
    fn a_listed_member_without_a_manifest_is_named() {
        let root = "[workspace]\nmembers = [\"b\"]".to_owned();
        let error = Tree::parse([("Cargo.toml".to_owned(), root)].into()).err();
        assert!(
            error
                .expect("no b")
                .starts_with("b/Cargo.toml: is not tracked")
        );
    }

    #[test]
    fn a_file_that_is_not_rust_is_named_with_its_line() {
        let texts = [("Cargo.toml", ""), ("a.rs", "fn ok() {}\nfn broken( {}\n")];
        let texts = texts.map(|(path, text)| (path.to_owned(), text.to_owned()));
        let error = Tree::parse(texts.into()).err().expect("it does not parse");
        assert!(error.starts_with("a.rs:2: does not parse"), "{error}");
    }

    #[test]
    fn only_tracked_files_are_read() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let git = |arguments: &[&str]| {
            let mut command = Command::new("git");
            command
                .args(arguments)
                .current_dir(directory.path())
                .output()
                .expect("git runs")
        };
        std::fs::write(directory.path().join("Cargo.toml"), "[workspace]\n").expect("written");
        std::fs::write(directory.path().join("scratch.rs"), "fn f() {}").expect("written");
        assert!(git(&["init", "-q"]).status.success());
        assert!(git(&["add", "Cargo.toml"]).status.success());
        let tree = Tree::read(directory.path()).expect("readable");
        assert_eq!(tree.texts.keys().collect::<Vec<_>>(), ["Cargo.toml"]);
    }
}
