//! Which module of a crate uses which: every name is followed to the module that defines it.

use std::collections::{BTreeMap, BTreeSet};

use super::scopes::{self, Import, Scope, Scopes};
use crate::files;
use crate::tree::Tree;

/// The modules of one target of a crate, files each, and their arrows.
pub struct Modules {
    /// A module's path from the root and its file.
    pub files: BTreeMap<Vec<String>, String>,
    /// From the module that uses to the one that is used, with the first line that does.
    pub arrows: BTreeMap<(Vec<String>, Vec<String>), usize>,
}

/// What a name leads to.
#[derive(Clone, Debug, PartialEq)]
enum Found {
    Module(Vec<String>),
    /// Something that this module defines.
    ItemOf(Vec<String>),
    /// Something of another crate.
    Outside,
}

impl Found {
    fn module(&self) -> Option<&[String]> {
        match self {
            Self::Module(module) | Self::ItemOf(module) => Some(module),
            Self::Outside => None,
        }
    }
}

/// Longer chains of re-exports than this are circles.
const HOPS_MAX: usize = 24;

/// Reads the modules of the target that begins at `root`, a file of the crate `name`.
pub fn read(tree: &Tree, name: &str, root: &str) -> Modules {
    let files = files::module_files(tree, root);
    let mut scopes = Scopes::new();
    for (module, path) in &files {
        if let Some(file) = tree.rust.get(path) {
            scopes::read(&mut scopes, module, &file.tokens);
        }
    }
    let names = Names {
        own_name: name.replace('-', "_"),
        scopes: &scopes,
    };
    let mut arrows = BTreeMap::new();
    for (module, scope) in &scopes {
        for (target, line) in names.used(module, scope) {
            let (from, to) = (file_of(&files, module), file_of(&files, &target));
            if from != to {
                let first = arrows.entry((from, to)).or_insert(line);
                *first = line.min(*first);
            }
        }
    }
    Modules { files, arrows }
}

/// The module around `module`, itself included, that has a file of its own.
fn file_of(files: &BTreeMap<Vec<String>, String>, module: &[String]) -> Vec<String> {
    let mut module = module.to_vec();
    while !files.contains_key(&module) && module.pop().is_some() {}
    module
}

struct Names<'scopes> {
    /// By which a crate with `extern crate self` calls itself.
    own_name: String,
    scopes: &'scopes Scopes,
}

impl Names<'_> {
    /// The modules that one module uses, with lines.
    fn used(&self, module: &[String], scope: &Scope) -> Vec<(Vec<String>, usize)> {
        let mut used = Vec::new();
        for path in &scope.paths {
            let found = self.follow(module, &path.names, HOPS_MAX);
            used.extend(found.module().map(|found| (found.to_vec(), path.line)));
        }
        let begins: BTreeSet<&str> = scope
            .paths
            .iter()
            .filter_map(|path| Some(path.names.first()?.as_str()))
            .collect();
        for import in &scope.imports {
            let line = import.path.line;
            let found = self.follow(module, &import.path.names, HOPS_MAX);
            let Some(target) = found.module() else {
                continue;
            };
            let is_named = |name: &String| scope.words.contains(name);
            match (&found, &import.name) {
                // The paths that go through an imported module say what is used of it.
                (Found::Module(_), Some(name)) if begins.contains(name.as_str()) => {}
                // A parent that hands on what its children define does not use it by that.
                (_, name)
                    if import.is_re_export
                        && target.starts_with(module)
                        && !name.as_ref().is_some_and(is_named) => {}
                (Found::Module(_), None) => {
                    used.extend(self.through_glob(target, scope).map(|found| (found, line)));
                }
                _ => used.push((target.to_vec(), line)),
            }
        }
        // Line 0 stands for an import that is implied: the way to a macro with `#[macro_export]`.
        used.retain(|(_, line)| *line > 0);
        used
    }

    /// The modules that define what a scope can mean by its words when it imports `target::*`.
    fn through_glob<'a>(
        &'a self,
        target: &'a [String],
        scope: &'a Scope,
    ) -> impl Iterator<Item = Vec<String>> + 'a {
        let words = scope
            .words
            .iter()
            .filter_map(|word| self.look_up(target, word, true, HOPS_MAX));
        let found: Vec<Found> = words.collect();
        let modules = found.iter().filter_map(Found::module);
        let modules: BTreeSet<Vec<String>> = modules.map(<[String]>::to_vec).collect();
        // The methods of a trait are called without its name.
        let whole = found.is_empty().then(|| target.to_vec());
        modules.into_iter().chain(whole)
    }

    /// What a path in `module` leads to.
    fn follow(&self, module: &[String], names: &[String], hops: usize) -> Found {
        let above = |module: &[String]| match module.split_last() {
            Some((_, above)) => Found::Module(above.to_vec()),
            None => Found::Outside,
        };
        let Some((first, mut rest)) = names.split_first() else {
            return Found::Outside;
        };
        let mut at = match first.as_str() {
            "crate" => Found::Module(Vec::new()),
            "self" => Found::Module(module.to_vec()),
            "super" => above(module),
            name => match self.look_up(module, name, rest.is_empty(), hops) {
                Some(found) => found,
                None if name == self.own_name => Found::Module(Vec::new()),
                None => Found::Outside,
            },
        };
        while let (Found::Module(inside), Some((name, further))) = (&at, rest.split_first()) {
            at = match name.as_str() {
                "super" => above(inside),
                name => self
                    .look_up(inside, name, further.is_empty(), hops)
                    // A macro has made it.
                    .unwrap_or_else(|| Found::ItemOf(inside.clone())),
            };
            rest = further;
        }
        at
    }

    /// Whether a path begins with a module of this crate, as far as its first word tells.
    fn begins_here(&self, module: &[String], scope: &Scope, names: &[String]) -> bool {
        let Some(first) = names.first() else {
            return false;
        };
        let child: Vec<String> = module.iter().chain([first]).cloned().collect();
        let named = |import: &Import| import.name.as_ref() == Some(first);
        ["crate", "self", "super", &self.own_name].contains(&first.as_str())
            || self.scopes.contains_key(&child)
            || scope.imports.iter().any(named)
    }

    /// What `name` means in `module`. The last name of a path is an item before a module.
    fn look_up(&self, module: &[String], name: &str, is_last: bool, hops: usize) -> Option<Found> {
        let hops = hops.checked_sub(1)?;
        let scope = self.scopes.get(module)?;
        let mut child = module.to_vec();
        child.push(name.to_owned());
        let child = self
            .scopes
            .contains_key(&child)
            .then_some(Found::Module(child));
        if child.is_some() && !is_last {
            return child;
        }
        if scope.items.contains(name) {
            return Some(Found::ItemOf(module.to_vec()));
        }
        let is_meant =
            |import: &&Import| import.name.as_deref() == Some(name) && import.path.names != [name];
        if let Some(import) = scope.imports.iter().find(is_meant) {
            return Some(self.follow(module, &import.path.names, hops));
        }
        let globs = scope.imports.iter().filter(|import| import.name.is_none());
        // Of another crate: with several of them each would be looked for through all others.
        let globs = globs.filter(|import| self.begins_here(module, scope, &import.path.names));
        let mut through_globs =
            globs.filter_map(
                |import| match self.follow(module, &import.path.names, hops) {
                    Found::Module(target) => self.look_up(&target, name, is_last, hops),
                    Found::ItemOf(_) | Found::Outside => None,
                },
            );
        child.or_else(|| through_globs.next())
    }
}

#[cfg(test)]
mod tests {
    use super::read;
    use crate::tree::samples;

    /// The arrows of a library with these files, as `line: from -> to`.
    fn arrows(files: &[(&str, &str)]) -> Vec<String> {
        let files: Vec<_> = files
            .iter()
            .map(|(path, text)| (format!("sample/src/{path}"), *text))
            .collect();
        let files: Vec<_> = files
            .iter()
            .map(|(path, text)| (path.as_str(), *text))
            .collect();
        let modules = read(&samples::tree(&files), "sample", "sample/src/lib.rs");
        let arrows = modules.arrows.iter();
        arrows
            .map(|((from, to), line)| format!("{line}: {} -> {}", from.join("::"), to.join("::")))
            .collect()
    }

    #[test]
    fn a_re_exported_name_is_followed_to_its_definition() {
        let root = "mod a; mod b; mod c; pub use b::Thing; extern crate self as sample;";
        let files = |user| {
            [
                ("lib.rs", root),
                ("a.rs", user),
                (
                    "b/mod.rs",
                    "mod deep; pub use self::deep::Thing; pub use std::fmt;",
                ),
                ("b/deep.rs", "pub struct Thing;"),
                ("c.rs", "pub use crate::b::*;"),
            ]
        };
        let own = |user| {
            arrows(&files(user))
                .into_iter()
                .find(|arrow| arrow.contains(": a ->"))
        };
        for user in [
            "use crate::Thing;",
            "use crate::{b::Thing as Other};",
            "use super::Thing;",
            "use crate::c::Thing;",
            "use sample::Thing;",
            "use crate::c::*; fn f(_: Thing) {}",
            "use crate::b; fn f() { b::Thing::new() }",
            "fn f() { call!(crate::b::Thing) }",
        ] {
            assert_eq!(own(user).as_deref(), Some("1: a -> b::deep"), "{user}");
        }
        assert_eq!(own("use crate::b::fmt;"), None);
        assert_eq!(own("use crate::b;").as_deref(), Some("1: a -> b"));
        assert_eq!(own("use std::fmt; fn f() { g::h() }"), None);
        assert_eq!(own("#[cfg(test)] mod tests { use crate::Thing; }"), None);
    }

    #[test]
    fn a_parent_uses_what_it_hands_on_only_where_it_names_it() {
        let found = |root| {
            arrows(&[
                ("lib.rs", root),
                ("a/mod.rs", "pub mod b;"),
                ("a/b.rs", "pub struct B;"),
            ])
        };
        assert_eq!(found("mod a; pub use a::b::B;"), [""; 0]);
        let used = "mod a; pub(crate) use a::b::B; fn f(_: B) {}";
        assert_eq!(found(used), ["1:  -> a::b"]);
    }

    #[test]
    fn names_of_many_other_crates_are_not_looked_for_through_each_other() {
        let globs: String = (0..9)
            .map(|number| format!("use other{number}::*; "))
            .collect();
        let used = format!("{globs} use crate::b::*; fn f(_: Thing) {{}}");
        let root = "mod a; mod b;";
        let found = arrows(&[
            ("lib.rs", root),
            ("a.rs", &used),
            ("b.rs", "pub struct Thing;"),
        ]);
        assert_eq!(found, ["1: a -> b"]);
    }

    #[test]
    fn an_exported_macro_is_where_it_is_written() {
        let found = arrows(&[
            ("lib.rs", "mod a; mod b;"),
            ("a.rs", "#[macro_export] macro_rules! made { () => {} }"),
            ("b.rs", "\nfn f() { crate::made!() }"),
        ]);
        assert_eq!(found, ["2: b -> a"]);
    }

    #[test]
    fn a_module_inside_a_file_is_that_file() {
        let found = arrows(&[
            ("lib.rs", "mod a; mod b;"),
            (
                "a.rs",
                "pub mod inner { pub struct A; use super::B; } struct B;",
            ),
            ("b.rs", "use crate::a::inner::A;"),
        ]);
        assert_eq!(found, ["1: b -> a"]);
    }
}
