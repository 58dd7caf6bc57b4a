//! Whether every crate could be published: what its manifest says of it, what would be in its
//! package, and an order in which each one's dependencies come before it. Nothing is downloaded.

use std::collections::BTreeSet;
use std::path::Path;

use toml::{Table, Value};

use crate::cargo::output;
use crate::tree::{Member, Tree, Workspace};

/// Crates that are of use only inside of this repository.
const PRIVATE: [&str; 4] = ["example-own-communicator", "examples", "hostile", "xtask"];
/// What the page of a crate in the registry shows.
const FIELDS: [&str; 9] = [
    "description",
    "version",
    "edition",
    "rust-version",
    "license",
    "repository",
    "readme",
    "keywords",
    "categories",
];
/// The registry takes no more keywords of a crate, and no longer ones.
const KEYWORDS_MAX: usize = 5;
const KEYWORD_LENGTH_MAX: usize = 20;
const CATEGORIES_MAX: usize = 5;
/// What every package contains beside its sources.
const FILES: [&str; 4] = ["Cargo.toml", "LICENSE-APACHE", "LICENSE-MIT", "README.md"];
/// The registry takes no larger package. Compressed it is smaller, so this is on the safe side.
const BYTES_MAX: u64 = 10 << 20;

/// Checks all crates, and names the order in which they could be published.
pub fn run(workspace: &Workspace) -> Result<String, String> {
    let (root, tree) = (&workspace.root, workspace.tree()?);
    let mut problems = problems(tree);
    let order = match order(tree) {
        Ok(order) => order,
        Err(circle) => {
            problems.push(circle);
            Vec::new()
        }
    };
    for member in &order {
        let list = format!("package --list --offline --allow-dirty -p {}", member.name);
        let files = output(root, &list)?;
        let size = |file: &str| {
            let metadata = std::fs::metadata(root.join(member.path(file)));
            metadata.map_or(0, |metadata| metadata.len())
        };
        let bytes = files.lines().map(size).sum();
        problems.extend(packaged(member, &files, bytes));
        problems.extend(licences(root, member));
    }
    if problems.is_empty() {
        let names: Vec<&str> = order.iter().map(|member| &*member.name).collect();
        Ok(format!(
            "{} crates in this order: {}",
            names.len(),
            names.join(", ")
        ))
    } else {
        Err(problems.join("\n"))
    }
}

/// Every crate that others could use.
pub fn published(tree: &Tree) -> impl Iterator<Item = &Member> {
    let members = tree.members.iter();
    members.filter(|member| !PRIVATE.contains(&&*member.name))
}

/// What the manifests lack.
fn problems(tree: &Tree) -> Vec<String> {
    let mut problems = Vec::new();
    for member in published(tree) {
        let found = field_problems(tree, member)
            .into_iter()
            .chain(dependency_problems(tree, member));
        let path = member.path("Cargo.toml");
        problems.extend(found.map(|problem| format!("{path}: {problem}")));
    }
    problems
}

fn workspace<'a>(tree: &'a Tree, table: &str) -> Option<&'a Table> {
    tree.manifest.get("workspace")?.get(table)?.as_table()
}

/// A field of the package, or what it inherits.
fn field<'a>(tree: &'a Tree, member: &'a Member, name: &str) -> Option<&'a Value> {
    let own = member.manifest.get("package")?.get(name)?;
    match own.get("workspace") {
        Some(_) => workspace(tree, "package")?.get(name),
        None => Some(own),
    }
}

fn field_problems(tree: &Tree, member: &Member) -> Vec<String> {
    let mut problems = Vec::new();
    for name in FIELDS {
        let is_there = match field(tree, member, name) {
            Some(Value::String(text)) => !text.trim().is_empty(),
            Some(Value::Array(list)) => !list.is_empty(),
            _ => false,
        };
        if !is_there {
            problems.push(format!("`{name}` is missing"));
        }
    }
    let texts = |name: &str| -> Vec<&str> {
        let list = field(tree, member, name).and_then(Value::as_array);
        list.into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .collect()
    };
    let keywords = texts("keywords");
    let is_keyword = |word: &&str| {
        let starts = word.starts_with(|c: char| c.is_ascii_alphanumeric());
        let known = |c: char| c.is_ascii_alphanumeric() || "_-+".contains(c);
        starts && word.len() <= KEYWORD_LENGTH_MAX && word.chars().all(known)
    };
    if keywords.len() > KEYWORDS_MAX || !keywords.iter().all(is_keyword) {
        problems.push(format!(
            "`keywords`: at most {KEYWORDS_MAX} of at most {KEYWORD_LENGTH_MAX} letters, digits, \
             `-`, `_` and `+`"
        ));
    }
    if texts("categories").len() > CATEGORIES_MAX {
        problems.push(format!("`categories`: at most {CATEGORIES_MAX}"));
    }
    let package = member.manifest.get("package");
    let docs = package.and_then(|package| package.get("metadata")?.get("docs")?.get("rs"));
    if docs.and_then(|docs| docs.get("targets")).is_none() {
        problems.push("`[package.metadata.docs.rs]` names no targets".to_owned());
    }
    problems
}

/// The crates of this workspace that a crate depends on in these sections, with what the workspace
/// says of each.
fn own_dependencies<'a>(
    tree: &'a Tree,
    member: &'a Member,
    sections: &'a [&str],
) -> Vec<(&'a Member, &'a Value)> {
    let platforms = member.manifest.get("target").and_then(Value::as_table);
    let platforms = platforms.into_iter().flat_map(Table::values);
    let tables = std::iter::once(&member.manifest).chain(platforms.filter_map(Value::as_table));
    let named = tables.flat_map(|table| sections.iter().filter_map(|name| table.get(*name)));
    let entries = named.filter_map(Value::as_table).flatten();
    let known = workspace(tree, "dependencies");
    entries
        .filter_map(|(name, value)| {
            let other = tree.members.iter().find(|member| member.name == *name)?;
            let inherited = value.get("workspace").is_some();
            let value = if inherited { known?.get(name)? } else { value };
            Some((other, value))
        })
        .collect()
}

/// Cargo leaves a path without a version out of the tests of a package, and nowhere else.
fn dependency_problems(tree: &Tree, member: &Member) -> Vec<String> {
    let needed = own_dependencies(tree, member, &["dependencies", "build-dependencies"]);
    let mut problems = Vec::new();
    for (other, value) in needed {
        if PRIVATE.contains(&&*other.name) {
            problems.push(format!("`{}` is not published", other.name));
        } else if value.get("version").and_then(Value::as_str)
            != field(tree, other, "version").and_then(Value::as_str)
        {
            problems.push(format!(
                "the version of `{}` is not the one that it has",
                other.name
            ));
        }
    }
    problems
}

/// Each crate after all that it depends on; dependencies of its tests count where they have a
/// version.
fn order(tree: &Tree) -> Result<Vec<&Member>, String> {
    let mut left: Vec<&Member> = published(tree).collect();
    let (mut order, mut done) = (Vec::new(), BTreeSet::new());
    let sections = ["dependencies", "build-dependencies", "dev-dependencies"];
    while !left.is_empty() {
        let ready = |member: &&Member| {
            let needed = own_dependencies(tree, member, &sections).into_iter();
            let mut needed = needed.filter(|(_, value)| value.get("version").is_some());
            needed.all(|(other, _)| done.contains(&*other.name))
        };
        let Some(next) = left.iter().position(ready) else {
            let names: Vec<&str> = left.iter().map(|member| &*member.name).collect();
            return Err(format!(
                "none of {} can be published first",
                names.join(", ")
            ));
        };
        let member = left.remove(next);
        done.insert(&*member.name);
        order.push(member);
    }
    Ok(order)
}

/// What is wrong with the files of a package.
fn packaged(member: &Member, files: &str, bytes: u64) -> Vec<String> {
    let files: BTreeSet<&str> = files.lines().collect();
    let missing = FILES.iter().filter(|file| !files.contains(*file));
    let mut problems: Vec<String> = missing
        .map(|file| format!("{}: `{file}` is not in the package", member.directory))
        .collect();
    if !files.contains("src/lib.rs") && !files.contains("src/main.rs") {
        problems.push(format!("{}: no sources in the package", member.directory));
    }
    if bytes > BYTES_MAX {
        problems.push(format!(
            "{}: {bytes} bytes in the package, the registry takes {BYTES_MAX}",
            member.directory
        ));
    }
    problems
}

/// Checks that a package carries the text of its licences. A link to the text is a file with a path
/// in it where git makes no links.
fn licences(root: &Path, member: &Member) -> Vec<String> {
    let read = |path: &str| std::fs::read(root.join(path)).ok();
    let differs = |file: &&&str| read(&member.path(file)) != read(file);
    let files = FILES.iter().filter(|file| file.starts_with("LICENSE"));
    files
        .filter(differs)
        .map(|file| format!("{}: not the text of `{file}`", member.path(file)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::{order, packaged, problems};
    use crate::tree::Tree;
    use std::collections::BTreeMap;

    const WORKSPACE: &str = "[workspace]\nmembers = [\"a\", \"b\", \"hostile\"]\n\
        [workspace.package]\nversion = \"0.1.0\"\nrepository = \"https://example.com\"\n\
        [workspace.dependencies]\na = { path = \"a\", version = \"0.1.0\" }\n\
        b = { path = \"b\", version = \"0.1.0\" }\nhostile = { path = \"hostile\" }\n";

    fn manifest(name: &str, more: &str) -> String {
        format!(
            "[package]\nname = \"{name}\"\ndescription = \"d\"\nversion.workspace = true\n\
             edition = \"2024\"\nrust-version = \"1.95\"\nlicense = \"MIT\"\n\
             repository.workspace = true\nreadme = \"README.md\"\nkeywords = [\"k\"]\n\
             categories = [\"science\"]\n[package.metadata.docs.rs]\ntargets = [\"t\"]\n{more}"
        )
    }

    fn tree(workspace: &str, a: String, b: String) -> Tree {
        let hostile = "[package]\nname = \"hostile\"\n".to_owned();
        let texts = [
            ("Cargo.toml", workspace.to_owned()),
            ("a/Cargo.toml", a),
            ("b/Cargo.toml", b),
            ("hostile/Cargo.toml", hostile),
        ];
        let texts: BTreeMap<String, String> =
            texts.map(|(path, text)| (path.to_owned(), text)).into();
        Tree::parse(texts).unwrap()
    }

    #[test]
    fn a_crate_comes_after_what_it_depends_on() {
        let needs_b = "[dependencies]\nb.workspace = true\n\
                       [dev-dependencies]\nhostile.workspace = true\n";
        let sound = tree(WORKSPACE, manifest("a", needs_b), manifest("b", ""));
        assert_eq!(problems(&sound), [""; 0]);
        let names: Vec<&str> = order(&sound).unwrap().iter().map(|it| &*it.name).collect();
        assert_eq!(names, ["b", "a"]);
        let needs_a = "[dev-dependencies]\na.workspace = true\n";
        let circle = tree(WORKSPACE, manifest("a", needs_b), manifest("b", needs_a));
        assert!(order(&circle).is_err_and(|error| error.contains("a, b")));
    }

    #[test]
    fn what_the_registry_would_refuse_is_named() {
        let only = |problem: &str, workspace: &str, a: String| {
            let found = problems(&tree(workspace, a, manifest("b", "")));
            assert_eq!(found.len(), 1, "{found:?}");
            assert!(
                found[0].starts_with("a/Cargo.toml: ") && found[0].contains(problem),
                "{found:?}"
            );
        };
        let sound = manifest("a", "");
        let replaced = |from: &str, to: &str| sound.replace(from, to);
        only(
            "`description` is missing",
            WORKSPACE,
            replaced("description = \"d\"", ""),
        );
        only(
            "`categories` is missing",
            WORKSPACE,
            replaced("[\"science\"]", "[]"),
        );
        only(
            "`keywords`: at most",
            WORKSPACE,
            replaced("\"k\"", "\"two words\""),
        );
        only("targets", WORKSPACE, replaced("targets = [\"t\"]", ""));
        let hostile = "[dependencies]\nhostile.workspace = true\n";
        only(
            "`hostile` is not published",
            WORKSPACE,
            manifest("a", hostile),
        );
        let workspace = WORKSPACE.replace("\"b\", version = \"0.1.0\"", "\"b\"");
        let needs_b = "[dependencies]\nb.workspace = true\n";
        only("the version of `b`", &workspace, manifest("a", needs_b));
    }

    #[test]
    fn a_package_has_its_licences_and_a_size() {
        let tree = tree(WORKSPACE, manifest("a", ""), manifest("b", ""));
        let member = &tree.members[0];
        let files = "Cargo.toml\nLICENSE-APACHE\nLICENSE-MIT\nREADME.md\nsrc/lib.rs\n";
        assert_eq!(packaged(member, files, 1), [""; 0]);
        let found = packaged(member, &files.replace("LICENSE-MIT\n", ""), 11 << 20);
        assert_eq!(found.len(), 2, "{found:?}");
        assert_eq!(
            packaged(member, &files.replace("src/lib.rs", ""), 1).len(),
            1
        );
    }
}
