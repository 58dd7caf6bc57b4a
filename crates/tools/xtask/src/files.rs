//! Which files a crate's targets reach through `mod` declarations, found as cargo and rustc do.

use std::collections::{BTreeMap, BTreeSet};

use proc_macro2::TokenTree;
use syn::{Attribute, Item, ItemMod};

use crate::tokens;
use crate::tree::{Member, Tree};

/// Directories in which every file, and every directory with a `main.rs`, is a target.
const TARGET_DIRECTORIES: [&str; 4] = ["src/bin", "tests", "benches", "examples"];

/// The files below `src/` that the library and the programs begin with.
pub fn program_roots(tree: &Tree, member: &Member) -> BTreeSet<String> {
    let source = member.path("src/");
    let roots = roots(tree, member).into_iter();
    roots.filter(|root| root.starts_with(&source)).collect()
}

/// The files that any target reaches, tests included.
pub fn all_files(tree: &Tree, member: &Member) -> BTreeSet<String> {
    let mut walk = Walk::new(tree, true);
    for root in roots(tree, member) {
        walk.file(&root, true);
    }
    walk.reached
}

/// The modules of one target that have a file of their own, outside its tests, by their path from
/// the target's root, which has the empty path.
pub fn module_files(tree: &Tree, root: &str) -> BTreeMap<Vec<String>, String> {
    let mut walk = Walk::new(tree, false);
    walk.file(root, true);
    walk.modules
}

/// The file that a library begins with, whether it exists or not.
pub fn library_root(member: &Member) -> String {
    let path = member
        .manifest
        .get("lib")
        .and_then(|library| library.get("path"));
    let path = path.and_then(toml::Value::as_str).unwrap_or("src/lib.rs");
    join(&member.directory, path)
}

fn roots(tree: &Tree, member: &Member) -> Vec<String> {
    let mut roots = vec![library_root(member)];
    roots.extend(["src/main.rs", "build.rs"].map(|path| member.path(path)));
    for target in ["bin", "test", "bench", "example"] {
        let targets = member.manifest.get(target).and_then(toml::Value::as_array);
        let paths = targets
            .into_iter()
            .flatten()
            .filter_map(|target| target.get("path")?.as_str());
        roots.extend(paths.map(|path| join(&member.directory, path)));
    }
    for directory in TARGET_DIRECTORIES {
        let directory = member.path(directory) + "/";
        let is_target = |path: &&String| {
            let inside = path.strip_prefix(&directory);
            inside.is_some_and(|rest| match rest.split_once('/') {
                None => true,
                Some((_, file)) => file == "main.rs",
            })
        };
        roots.extend(tree.rust.keys().filter(is_target).cloned());
    }
    roots.retain(|root| tree.rust.contains_key(root));
    roots
}

struct Walk<'tree> {
    tree: &'tree Tree,
    with_tests: bool,
    reached: BTreeSet<String>,
    modules: BTreeMap<Vec<String>, String>,
    /// The path of the module whose items are being read.
    inside: Vec<String>,
}

impl<'tree> Walk<'tree> {
    fn new(tree: &'tree Tree, with_tests: bool) -> Self {
        Self {
            tree,
            with_tests,
            reached: BTreeSet::new(),
            modules: BTreeMap::new(),
            inside: Vec::new(),
        }
    }

    /// Marks a file and what it declares. The modules of a target's root and of a `mod.rs` lie
    /// beside it, the modules of any other file in the directory with its name.
    fn file(&mut self, path: &str, is_root: bool) {
        let Some(file) = self.tree.rust.get(path) else {
            return;
        };
        if !self.reached.insert(path.to_owned()) {
            return;
        }
        self.modules
            .entry(self.inside.clone())
            .or_insert_with(|| path.to_owned());
        let parent = parent(path);
        let children = match path.strip_suffix(".rs") {
            Some(module) if !is_root && !path.ends_with("/mod.rs") => module.to_owned(),
            _ => parent.to_owned(),
        };
        self.items(&file.syntax.items, parent, &children);
        let mut included = Vec::new();
        tokens::visit(&file.tokens, &mut |rest| {
            included.extend(included_path(rest))
        });
        for inside in included {
            self.file(&join(parent, &inside), true);
        }
    }

    /// Follows the `mod` declarations among `items`. A `#[path]` starts from `directory`.
    fn items(&mut self, items: &[Item], directory: &str, children: &str) {
        for item in items {
            if let Item::Mod(module) = item
                && (self.with_tests || !is_for_tests(&module.attrs))
            {
                self.module(module, directory, children);
            }
        }
    }

    fn module(&mut self, module: &ItemMod, directory: &str, children: &str) {
        let name = module.ident.to_string();
        let name = name.trim_start_matches("r#");
        self.inside.push(name.to_owned());
        let path = explicit_path(&module.attrs);
        match (&module.content, path) {
            (Some((_, items)), path) => {
                let inside =
                    path.map_or_else(|| join(children, name), |path| join(children, &path));
                self.items(items, &inside, &inside);
            }
            // The target of a `#[path]` looks for its own modules beside itself.
            (None, Some(path)) => self.file(&join(directory, &path), true),
            (None, None) => {
                self.file(&join(children, &format!("{name}.rs")), false);
                self.file(&join(children, &format!("{name}/mod.rs")), false);
            }
        }
        self.inside.pop();
    }
}

fn is_for_tests(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let syn::Meta::List(list) = &attribute.meta else {
            return false;
        };
        let condition: String = list.tokens.to_string().split_whitespace().collect();
        list.path.is_ident("cfg") && (condition == "test" || condition.starts_with("all(test,"))
    })
}

fn explicit_path(attributes: &[Attribute]) -> Option<String> {
    attributes.iter().find_map(|attribute| {
        let pair = attribute.meta.require_name_value().ok()?;
        match &pair.value {
            syn::Expr::Lit(literal) if pair.path.is_ident("path") => match &literal.lit {
                syn::Lit::Str(text) => Some(text.value()),
                _ => None,
            },
            _ => None,
        }
    })
}

/// The path in an `include!("..")` or `include_str!("..")` that these tokens begin with.
fn included_path(rest: &[TokenTree]) -> Option<String> {
    tokens::macro_call(rest, &["include", "include_str"])?;
    let [_, _, TokenTree::Group(arguments), ..] = rest else {
        return None;
    };
    let text: syn::LitStr = syn::parse2(arguments.stream()).ok()?;
    Some(text.value())
}

fn parent(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(parent, _)| parent)
}

/// `path` seen from `directory`, both relative to the root, without `.` and `..`.
pub fn join(directory: &str, path: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in directory.split('/').chain(path.split('/')) {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop();
            }
            part => parts.push(part),
        }
    }
    parts.join("/")
}

#[cfg(test)]
mod tests {
    use super::{all_files, join, module_files};
    use crate::tree::samples;

    fn reached(files: &[(&str, &str)]) -> Vec<String> {
        let tree = samples::tree(files);
        all_files(&tree, &tree.members[0]).into_iter().collect()
    }

    #[test]
    fn modules_are_found_where_rustc_looks() {
        let files = [
            (
                "sample/src/lib.rs",
                "mod a; mod b; mod inline { mod c; } #[path = \"d/x.rs\"] mod d;",
            ),
            ("sample/src/a.rs", "mod inner;"),
            ("sample/src/a/inner.rs", ""),
            ("sample/src/b/mod.rs", "mod inner;"),
            ("sample/src/b/inner.rs", ""),
            ("sample/src/inline/c.rs", "include!(\"../e.rs\");"),
            ("sample/src/d/x.rs", ""),
            ("sample/src/e.rs", ""),
        ];
        let mut expected = files.map(|(path, _)| path);
        expected.sort_unstable();
        assert_eq!(reached(&files), expected);
    }

    #[test]
    fn modules_have_the_paths_that_code_calls_them_by() {
        let tree = samples::tree(&[
            (
                "sample/src/lib.rs",
                "mod a; mod inline { mod c; } #[cfg(test)] mod tests;",
            ),
            ("sample/src/a/mod.rs", "#[path = \"x.rs\"] mod b;"),
            ("sample/src/a/x.rs", ""),
            ("sample/src/inline/c.rs", ""),
            ("sample/src/tests.rs", ""),
        ]);
        let modules = module_files(&tree, "sample/src/lib.rs");
        let paths: Vec<_> = modules.keys().map(|path| path.join("::")).collect();
        assert_eq!(paths, ["", "a", "a::b", "inline::c"]);
    }

    #[test]
    fn every_kind_of_target_is_a_root() {
        let files = [
            (
                "sample/Cargo.toml",
                "[package]\nname = \"sample\"\n[[bench]]\npath = \"x/y.rs\"\n",
            ),
            ("sample/build.rs", ""),
            ("sample/examples/a.rs", ""),
            ("sample/src/bin/b/main.rs", "mod c;"),
            ("sample/src/bin/b/c.rs", ""),
            ("sample/src/lib.rs", ""),
            ("sample/src/main.rs", ""),
            ("sample/tests/d.rs", "mod common;"),
            ("sample/tests/common/mod.rs", ""),
            ("sample/x/y.rs", ""),
        ];
        let mut expected: Vec<_> = files[1..].iter().map(|(path, _)| *path).collect();
        expected.sort_unstable();
        assert_eq!(reached(&files), expected);
    }

    #[test]
    fn modules_for_tests_are_no_part_of_a_program() {
        let tree = samples::tree(&[
            (
                "sample/src/lib.rs",
                "mod a; #[cfg(test)] mod b; #[cfg(not(test))] mod c;",
            ),
            ("sample/src/a.rs", ""),
            ("sample/src/b.rs", ""),
            ("sample/src/c.rs", ""),
        ]);
        let files = module_files(&tree, "sample/src/lib.rs");
        let files: Vec<_> = files.values().map(String::as_str).collect();
        assert_eq!(
            files,
            ["sample/src/lib.rs", "sample/src/a.rs", "sample/src/c.rs"]
        );
    }

    #[test]
    fn paths_are_joined_without_dots() {
        assert_eq!(join("a/b", "../c/./d.rs"), "a/c/d.rs");
        assert_eq!(join("", "d.rs"), "d.rs");
    }
}
