//! The book: its pages, their programs, and what mdBook makes of their links.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::tidy::{Fences, links};
use crate::tree::{Tree, Workspace};

const CONTENTS: &str = "docs/SUMMARY.md";

/// Compares the pages with the table of contents and builds the book, where there is mdBook.
pub fn run(workspace: &Workspace) -> Result<String, String> {
    let (root, tree) = (&workspace.root, workspace.tree()?);
    let mut problems = contents(tree);
    problems.extend(untested_programs(tree));
    if !problems.is_empty() {
        return Err(problems.join("\n"));
    }
    let pages = format!("{} pages", pages(tree).count());
    let version = Command::new("mdbook").arg("--version").output();
    if !version.is_ok_and(|output| output.status.success()) {
        let missing = "building it is SKIPPED: needs `cargo install --locked mdbook`";
        return Ok(format!("{pages}; {missing}"));
    }
    let built = Command::new("mdbook")
        .arg("build")
        .current_dir(root)
        .stdout(Stdio::null())
        .status()
        .map_err(|error| format!("cannot start mdbook: {error}"))?;
    if built.success() {
        Ok(format!("{pages} in target/book"))
    } else {
        Err(format!("mdbook build: {built}"))
    }
}

/// The pages of the book.
fn pages(tree: &Tree) -> impl Iterator<Item = (&String, &String)> {
    let is_page = |path: &str| {
        let name = path.strip_prefix("docs/");
        name.is_some_and(|name| name.ends_with(".md") && !name.contains('/')) && path != CONTENTS
    };
    tree.texts.iter().filter(move |(path, _)| is_page(path))
}

/// Pages that the table of contents lacks, and entries that are no pages: mdBook would leave the
/// first out, and write the second next to the book. It copies pictures of `docs` alone.
fn contents(tree: &Tree) -> Vec<String> {
    let pages: BTreeSet<&String> = pages(tree).map(|(path, _)| path).collect();
    let mut problems = Vec::new();
    let mut listed = BTreeSet::new();
    for link in links(tree) {
        let at = format!("{}:{}", link.from, link.line);
        if link.from == CONTENTS {
            if !pages.contains(&link.target) {
                problems.push(format!("{at}: `{}` is no page of the book", link.target));
            }
            if !listed.insert(link.target.clone()) {
                problems.push(format!("{at}: `{}` is listed twice", link.target));
            }
        } else if pages.contains(&link.from) && link.is_picture && !link.target.starts_with("docs/")
        {
            problems.push(format!(
                "{at}: `{}` is a picture outside of docs",
                link.target
            ));
        }
    }
    let missing = pages.into_iter().filter(|page| !listed.contains(*page));
    problems.extend(missing.map(|page| format!("{CONTENTS}:1: does not list `{page}`")));
    problems
}

/// Pages with programs that no crate compiles as its documentation's tests.
fn untested_programs(tree: &Tree) -> Vec<String> {
    let has_program = |text: &str| {
        let fences = text
            .lines()
            .filter_map(|line| line.trim().strip_prefix("```"));
        fences.into_iter().any(|fence| {
            let mut words = fence.split(',');
            words.next() == Some("rust") && !words.any(|word| word == "ignore")
        })
    };
    let is_included = |path: &str| {
        let included = format!("/{path}\")]");
        tree.rust.values().any(|file| file.text.contains(&included))
    };
    pages(tree)
        .filter(|(path, text)| has_program(text) && !is_included(path))
        .map(|(path, _)| {
            format!("{path}:1: no crate compiles its programs (`#[doc = include_str!(..)]`)")
        })
        .collect()
}

/// What mdBook calls before it renders: links of pages to files of the repository become links to
/// the repository's address. `arguments` are mdBook's, the book is on standard input.
pub fn preprocess(root: &Path, arguments: &[String]) -> Result<(), String> {
    if arguments.first().is_some_and(|word| word == "supports") {
        return Ok(());
    }
    let manifest = std::fs::read_to_string(root.join("Cargo.toml"));
    let manifest = manifest.map_err(|error| format!("Cargo.toml: {error}"))?;
    let manifest: toml::Table = manifest.parse().map_err(|e| format!("Cargo.toml: {e}"))?;
    let package = manifest.get("workspace").and_then(|it| it.get("package"));
    let repository = package.and_then(|package| package.get("repository")?.as_str());
    let repository = repository.ok_or("Cargo.toml names no repository")?;
    let mut text = String::new();
    let read = std::io::stdin().read_to_string(&mut text);
    read.map_err(|error| format!("standard input: {error}"))?;
    let input: Value = serde_json::from_str(&text).map_err(|e| format!("mdBook's book: {e}"))?;
    // mdBook sends `[context, book]`.
    let mut book = input.get(1).cloned().ok_or("mdBook sent no book")?;
    rewrite_chapters(&mut book, &format!("{repository}/blob/main/"));
    let written = writeln!(std::io::stdout(), "{book}");
    written.map_err(|error| format!("standard output: {error}"))
}

/// Rewrites the text of every chapter, wherever it lies in the book.
fn rewrite_chapters(value: &mut Value, base: &str) {
    match value {
        Value::Array(values) => values.iter_mut().for_each(|it| rewrite_chapters(it, base)),
        Value::Object(fields) => {
            for (name, field) in fields {
                match field {
                    Value::String(text) if name == "content" => *text = rewrite(text, base),
                    other => rewrite_chapters(other, base),
                }
            }
        }
        _ => {}
    }
}

/// The text of a page with `base` in the place of `../` of its links.
fn rewrite(text: &str, base: &str) -> String {
    let mut fences = Fences::default();
    let absolute = format!("]({base}");
    let lines = text.split('\n').map(|line| {
        if fences.is_code(line) {
            return line.to_owned();
        }
        // What stands between backticks is every other piece.
        let pieces = line.split('`').enumerate();
        let pieces = pieces.map(|(index, piece)| match index % 2 {
            0 => piece.replace("](../", &absolute),
            _ => piece.to_owned(),
        });
        pieces.collect::<Vec<_>>().join("`")
    });
    lines.collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::{contents, rewrite, rewrite_chapters, untested_programs};
    use crate::tree::samples;

    const PAGES: [(&str, &str); 2] = [("docs/a.md", "# A\n"), ("docs/b.md", "# B\n")];

    fn found(summary: &str, page: &str) -> Vec<String> {
        let files = [PAGES[0], ("docs/b.md", page), ("docs/SUMMARY.md", summary)];
        contents(&samples::tree(&files))
    }

    #[test]
    fn every_page_is_listed_once() {
        let both = "- [A](a.md)\n  - [B](b.md)\n";
        assert_eq!(found(both, ""), [""; 0]);
        assert_eq!(
            found("- [A](a.md)", ""),
            ["docs/SUMMARY.md:1: does not list `docs/b.md`"]
        );
        let twice = found(&format!("{both}- [A](a.md)"), "");
        assert_eq!(twice, ["docs/SUMMARY.md:3: `docs/a.md` is listed twice"]);
    }

    #[test]
    fn entries_are_pages() {
        let both = "- [A](a.md)\n- [B](b.md)\n";
        for entry in ["c.md", "../ARCHITECTURE.md"] {
            let problems = found(&format!("{both}- [C]({entry})"), "");
            assert_eq!(problems.len(), 1, "{problems:?}");
            assert!(
                problems[0].starts_with("docs/SUMMARY.md:3: "),
                "{problems:?}"
            );
        }
    }

    #[test]
    fn pictures_are_in_docs() {
        let both = "- [A](a.md)\n- [B](b.md)\n";
        assert_eq!(
            found(both, "![p](p.svg) [s](../sample/src/lib.rs)"),
            [""; 0]
        );
        let outside = found(both, "\n![p\nq](../p.svg)");
        assert_eq!(
            outside,
            ["docs/b.md:3: `p.svg` is a picture outside of docs"]
        );
    }

    #[test]
    fn programs_are_compiled() {
        let program = ("docs/a.md", "```rust,no_run\nfn main() {}\n```\n");
        let other = ("docs/b.md", "```rust,ignore\n```\n```sh\nls\n```\n");
        let without = untested_programs(&samples::tree(&[program, other]));
        assert_eq!(without.len(), 1, "{without:?}");
        assert!(without[0].starts_with("docs/a.md:1: "), "{without:?}");
        let library = "//! A.\n#[doc = include_str!(\"../../docs/a.md\")]\nstruct A;";
        let with = [program, other, ("sample/src/lib.rs", library)];
        assert_eq!(untested_programs(&samples::tree(&with)), [""; 0]);
    }

    #[test]
    fn links_out_of_the_book_go_to_the_repository() {
        let text = "[`a`](../a.rs) `](../b)` [c](c.md)\n```\n](../d)\n```\n[e](../e#f)";
        let expected = "[`a`](R/a.rs) `](../b)` [c](c.md)\n```\n](../d)\n```\n[e](R/e#f)";
        assert_eq!(rewrite(text, "R/"), expected);
    }

    #[test]
    fn chapters_are_found_at_any_depth() {
        let mut book = serde_json::json!({"sections": [
            {"Chapter": {"content": "[a](../a)", "sub_items": [
                {"Chapter": {"content": "[b](../b)", "path": "../b"}}
            ]}},
            "Separator"
        ]});
        rewrite_chapters(&mut book, "R/");
        let chapter = &book["sections"][0]["Chapter"];
        assert_eq!(chapter["content"], "[a](R/a)");
        let inner = &chapter["sub_items"][0]["Chapter"];
        assert_eq!(
            (&inner["content"], &inner["path"]),
            (&"[b](R/b)".into(), &"../b".into())
        );
    }
}
