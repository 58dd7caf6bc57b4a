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

/// A circle that may stay: the files of one topic, in one folder.
struct Allowed<'a> {
    files: &'a [&'a str],
    reason: &'a str,
}

const ALLOWED: &[Allowed<'_>] = &[];

/// How many modules of a crate were in circles when this check was written. The numbers may only
/// shrink, and a crate without circles has no row.
const KNOWN: &[(&str, usize)] = &[("distribute-collectives", 31)];

/// Finds circles that are neither allowed nor known, and rows that are no longer true.
pub fn problems(tree: &Tree) -> Vec<String> {
    judge(tree, ALLOWED, KNOWN)
}

fn judge(tree: &Tree, allowed: &[Allowed<'_>], known: &[(&str, usize)]) -> Vec<String> {
    let mut problems = Vec::new();
    let mut unseen: BTreeSet<usize> = (0..allowed.len()).collect();
    for member in &tree.members {
        let mut texts = Vec::new();
        let mut inside = BTreeSet::new();
        for modules in targets(tree, member) {
            for circle in circles::find(&modules) {
                let files = files_of(&modules, &circle);
                let is_same =
                    |row: &Allowed<'_>| row.files.iter().copied().eq(files.iter().copied());
                if let Some(row) = allowed.iter().position(is_same) {
                    unseen.remove(&row);
                } else {
                    inside.extend(files.iter().map(|file| (*file).to_owned()));
                    texts.push(describe(&modules, &circle));
                }
            }
        }
        let row = known.iter().find(|(name, _)| *name == member.name);
        let (name, count, known) = (
            &member.name,
            inside.len(),
            row.map_or(0, |(_, count)| *count),
        );
        if count > known {
            problems.extend(texts);
            problems.push(format!(
                "{name}: {count} modules are in circles, {known} were known"
            ));
        } else if count < known {
            problems.push(format!(
                "{name}: only {count} modules are in circles: lower the number in KNOWN \
                 (crates/xtask/src/modules/mod.rs) from {known}"
            ));
        }
    }
    problems.extend(
        unseen
            .iter()
            .filter_map(|row| Some(stale(allowed.get(*row)?))),
    );
    problems.extend(allowed.iter().filter_map(unsound));
    problems
}

fn stale(row: &Allowed<'_>) -> String {
    format!(
        "ALLOWED: there is no circle of exactly {}: remove the row",
        row.files.join(", ")
    )
}

/// What a row of [`ALLOWED`] lacks: a reason, or the one folder that is not the whole crate.
fn unsound(row: &Allowed<'_>) -> Option<String> {
    let first = row.files.first()?;
    if row.reason.trim().is_empty() {
        return Some(format!("ALLOWED: the circle of {first} has no reason"));
    }
    let (folder, _) = first.rsplit_once('/')?;
    let is_inside = |file: &&str| file.starts_with(&format!("{folder}/"));
    let is_one = row.files.iter().all(is_inside) && !folder.ends_with("src");
    (!is_one).then(|| format!("ALLOWED: the circle of {first} is not in one folder of one topic"))
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
                println!("{file}:{line}: {} -> {}", called(from), called(to));
            }
            for circle in circles::find(&modules) {
                println!("{}", describe(&modules, &circle));
                let names: Vec<String> = circle.modules.iter().map(|path| called(path)).collect();
                println!("  all of them: {}", names.join(", "));
                inside.extend(files_of(&modules, &circle).into_iter().map(str::to_owned));
            }
        }
        counts.push(format!("{} {}", member.name, inside.len()));
    }
    Ok(format!("modules in circles: {}", counts.join(", ")))
}

/// The library and the program of a crate.
fn targets(tree: &Tree, member: &Member) -> Vec<Modules> {
    let roots = [files::library_root(member), member.path("src/main.rs")];
    let roots = roots.iter().filter(|root| tree.rust.contains_key(*root));
    roots
        .map(|root| arrows::read(tree, &member.name, root))
        .collect()
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
    use super::{Allowed, judge};
    use crate::tree::samples;

    fn found(
        files: &[(&str, &str)],
        allowed: &[Allowed<'_>],
        known: &[(&str, usize)],
    ) -> Vec<String> {
        judge(&samples::tree(files), allowed, known)
    }

    const PAIR: [(&str, &str); 3] = [
        ("sample/src/lib.rs", "mod a; mod b;"),
        ("sample/src/a.rs", "\nuse crate::b::B; pub struct A;"),
        (
            "sample/src/b.rs",
            "use std::fmt;\n\nuse crate::a::A; pub struct B;",
        ),
    ];
    const FOLDER: [(&str, &str); 4] = [
        ("sample/src/lib.rs", "mod x;"),
        ("sample/src/x/mod.rs", "mod a; mod b;"),
        ("sample/src/x/a.rs", "use super::b::B; pub struct A;"),
        ("sample/src/x/b.rs", "use super::a::A; pub struct B;"),
    ];
    const FILES: [&str; 2] = ["sample/src/x/a.rs", "sample/src/x/b.rs"];

    #[test]
    fn a_circle_is_found_and_shown() {
        let found = found(&PAIR, &[], &[]);
        let expected = [
            "a circle of 2 modules; the shortest way round:\n  \
             sample/src/a.rs:2: `a` uses `b`\n  sample/src/b.rs:3: `b` uses `a`",
            "sample: 2 modules are in circles, 0 were known",
        ];
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
        let found = found(&files, &[], &[]);
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
        assert_eq!(found(&files, &[], &[]), [""; 0]);
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
        let found = found(&files, &[], &[]);
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
        assert_eq!(found(&files, &[], &[]), [""; 0]);
    }

    #[test]
    fn a_listed_circle_passes_with_a_reason_only() {
        let row = |reason| Allowed {
            files: &FILES,
            reason,
        };
        assert_eq!(found(&FOLDER, &[row("one topic")], &[]), [""; 0]);
        assert!(found(&FOLDER, &[row(" ")], &[])[0].contains("has no reason"));
    }

    #[test]
    fn a_listed_circle_stays_in_its_folder() {
        let files = ["sample/src/a.rs", "sample/src/b.rs"];
        let row = Allowed {
            files: &files,
            reason: "one topic",
        };
        let found = found(&PAIR, &[row], &[]);
        assert!(found[0].contains("not in one folder"), "{found:#?}");
    }

    #[test]
    fn a_listed_circle_that_is_gone_fails() {
        let row = Allowed {
            files: &FILES,
            reason: "one topic",
        };
        let found = found(&FOLDER[..3], &[row], &[]);
        assert!(found[0].contains("remove the row"), "{found:#?}");
    }

    #[test]
    fn a_known_number_may_only_shrink() {
        assert_eq!(found(&PAIR, &[], &[("sample", 2)]), [""; 0]);
        assert_eq!(found(&PAIR, &[], &[("sample", 1)]).len(), 2);
        let lower = found(&PAIR, &[], &[("sample", 3)]);
        assert!(lower[0].contains("lower the number"), "{lower:#?}");
    }
}
