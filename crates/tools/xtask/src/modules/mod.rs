//! No circles: the modules of a crate import each other in one direction.

mod arrows;
mod circles;
mod scopes;

use std::collections::BTreeSet;
use std::fmt::Write as _;

use crate::files;
use crate::tree::{Member, Tree};
use arrows::Modules;
use circles::Circle;

/// Finds the circles of each crate.
pub fn problems(tree: &Tree) -> Vec<String> {
    let mut problems = Vec::new();
    for modules in tree.members.iter().flat_map(|member| targets(tree, member)) {
        let circles = circles::find(&modules);
        problems.extend(circles.iter().map(|circle| describe(&modules, circle)));
    }
    problems
}

/// What `cargo xtask modules [CRATE]` prints: the arrows and the circles of each crate.
pub fn print(tree: &Tree, name: Option<&str>) -> Result<String, String> {
    let is_meant = |member: &&Member| name.is_none_or(|name| name == member.name);
    let members: Vec<&Member> = tree.members.iter().filter(is_meant).collect();
    if members.is_empty() {
        return Err(tree.no_such_crate());
    }
    let mut counts = Vec::new();
    for member in members {
        let mut inside = BTreeSet::new();
        for modules in targets(tree, member) {
            for ((from, to), line) in &modules.arrows {
                let file = modules.files.get(from).map_or("", String::as_str);
                say!("{file}:{line}: {} -> {}", called(from), called(to));
            }
            for circle in circles::find(&modules) {
                say!("{}", describe(&modules, &circle));
                let names: Vec<String> = circle.modules.iter().map(|path| called(path)).collect();
                say!("  all of them: {}", names.join(", "));
                inside.extend(files_of(&modules, &circle).into_iter().map(str::to_owned));
            }
        }
        counts.push(format!("{} {}", member.name, inside.len()));
    }
    Ok(format!("modules in circles: {}", counts.join(", ")))
}

/// The library and the programs of a crate.
fn targets(tree: &Tree, member: &Member) -> Vec<Modules> {
    let roots = files::program_roots(tree, member);
    let read = |root: &String| arrows::read(tree, &member.name, root);
    roots.iter().map(read).collect()
}

fn files_of<'a>(modules: &'a Modules, circle: &Circle) -> Vec<&'a str> {
    let files = circle
        .modules
        .iter()
        .filter_map(|path| modules.files.get(path));
    files.map(String::as_str).collect()
}

fn describe(modules: &Modules, circle: &Circle) -> String {
    let mut text = format!(
        "a circle of {} modules; the shortest way round:",
        circle.modules.len()
    );
    for pair in circle.chain.windows(2) {
        let [from, to] = pair else { continue };
        let file = modules.files.get(from).map_or("", String::as_str);
        let line = modules
            .arrows
            .get(&(from.clone(), to.clone()))
            .copied()
            .unwrap_or(1);
        // Writing into a string cannot fail.
        let _ = write!(
            text,
            "\n  {file}:{line}: `{}` uses `{}`",
            called(from),
            called(to)
        );
    }
    text
}

fn called(module: &[String]) -> String {
    if module.is_empty() {
        return "crate".to_owned();
    }
    module.join("::")
}

#[cfg(test)]
mod tests {
    use crate::tree::samples;

    fn found(files: &[(&str, &str)]) -> Vec<String> {
        super::problems(&samples::tree(files))
    }

    #[test]
    fn a_circle_is_found_and_shown() {
        let files = [
            ("sample/src/lib.rs", "mod a; mod b;"),
            ("sample/src/a.rs", "\nuse crate::b::B; pub struct A;"),
            (
                "sample/src/b.rs",
                "use std::fmt;\n\nuse crate::a::A; pub struct B;",
            ),
        ];
        let found = found(&files);
        let expected = ["a circle of 2 modules; the shortest way round:\n  \
             sample/src/a.rs:2: `a` uses `b`\n  sample/src/b.rs:3: `b` uses `a`"];
        assert_eq!(found, expected);
    }

    #[test]
    fn the_shortest_way_round_is_shown() {
        let files = [
            ("sample/src/lib.rs", "mod a; mod b; mod c; mod d;"),
            ("sample/src/a.rs", "use crate::b::B; pub struct A;"),
            ("sample/src/b.rs", "use crate::c::C; pub struct B;"),
            ("sample/src/c.rs", "use crate::{d::D, b::B}; pub struct C;"),
            ("sample/src/d.rs", "use crate::a::A; pub struct D;"),
        ];
        let found = found(&files);
        assert!(found[0].starts_with("a circle of 4 modules"), "{found:#?}");
        assert_eq!(found[0].lines().count(), 3, "{found:#?}");
    }

    #[test]
    fn a_parent_and_its_child_are_no_circle() {
        let files = [
            ("sample/src/lib.rs", "mod x; use x::f; fn g() {}"),
            (
                "sample/src/x/mod.rs",
                "mod a; mod b; use a::A; pub struct X; use crate::g;",
            ),
            ("sample/src/x/a.rs", "use super::{X, b::B}; pub struct A;"),
            ("sample/src/x/b.rs", "use super::X; pub struct B;"),
        ];
        assert_eq!(found(&files), [""; 0]);
    }

    #[test]
    fn a_circle_of_two_folders_is_found_though_it_goes_through_a_parent() {
        let files = [
            ("sample/src/lib.rs", "mod x; mod y;"),
            ("sample/src/x/mod.rs", "mod a; use a::A; pub struct X;"),
            (
                "sample/src/x/a.rs",
                "use crate::y::Y; use super::X; pub struct A;",
            ),
            ("sample/src/y.rs", "use crate::x::X; pub struct Y;"),
        ];
        let found = found(&files);
        assert!(found[0].contains("`x::a` uses `y`"), "{found:#?}");
    }

    #[test]
    fn a_re_export_of_the_root_is_no_arrow_to_the_root() {
        let files = [
            (
                "sample/src/lib.rs",
                "mod a; mod b; mod e; pub use e::Error; pub use a::A;",
            ),
            ("sample/src/a.rs", "use crate::Error; pub struct A;"),
            ("sample/src/b.rs", "use crate::{A, Error};"),
            ("sample/src/e.rs", "pub struct Error;"),
        ];
        assert_eq!(found(&files), [""; 0]);
    }
}
