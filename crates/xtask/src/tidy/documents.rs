//! A newcomer finds the way: every crate says what it is, and every link leads somewhere.

use super::Problem;
use crate::files;
use crate::tree::Tree;

/// A link from a Markdown file to a file of the repository.
pub struct Link {
    pub from: String,
    pub line: usize,
    /// Relative to the root.
    pub target: String,
}

/// All links between Markdown files and the repository; text in backticks is no link.
pub fn links(tree: &Tree) -> Vec<Link> {
    let mut links = Vec::new();
    for (from, text) in tree.texts.iter().filter(|(path, _)| path.ends_with(".md")) {
        let directory = from.rsplit_once('/').map_or("", |(directory, _)| directory);
        let mut in_code = false;
        for (index, line) in text.lines().enumerate() {
            if line.trim_start().starts_with("```") {
                in_code = !in_code;
            }
            if in_code {
                continue;
            }
            for target in targets(&without_code(line)) {
                let target = match target.strip_prefix('/') {
                    Some(from_root) => files::join("", from_root),
                    None => files::join(directory, &target),
                };
                links.push(Link {
                    from: from.clone(),
                    line: index + 1,
                    target,
                });
            }
        }
    }
    links
}

/// Finds links to files that do not exist.
pub fn dead_link(tree: &Tree) -> Vec<Problem> {
    let exists = |target: &str| {
        let inside = format!("{target}/");
        let is_inside = |path: &String| path.starts_with(&inside);
        target.is_empty() || tree.paths.contains(target) || tree.paths.iter().any(is_inside)
    };
    let dead = links(tree).into_iter().filter(|link| !exists(&link.target));
    let problem = |link: Link| {
        let message = format!("there is no file `{}`", link.target);
        Problem::new("dead-link", &link.from, link.line, message)
    };
    dead.map(problem).collect()
}

/// Finds crates that do not begin with their one sentence.
pub fn crate_doc(tree: &Tree) -> Vec<Problem> {
    let mut problems = Vec::new();
    for member in &tree.members {
        let roots = [files::library_root(member), member.path("src/main.rs")];
        let Some((root, file)) = roots
            .iter()
            .find_map(|root| Some((root, tree.rust.get(root)?)))
        else {
            continue;
        };
        let first = file.text.lines().next().unwrap_or_default();
        let sentence = first.strip_prefix("//! ").unwrap_or_default();
        if sentence.trim().is_empty() || sentence.starts_with('#') {
            let message = "the first line is not `//! ` and the crate's one sentence";
            problems.push(Problem::new("crate-doc", root, 1, message));
        }
    }
    problems
}

/// Finds crates without a README.
pub fn crate_readme(tree: &Tree) -> Vec<Problem> {
    let readmes = tree.members.iter().map(|member| member.path("README.md"));
    let missing = readmes.filter(|readme| !tree.texts.contains_key(readme));
    missing
        .map(|readme| Problem::new("crate-readme", &readme, 1, "is missing"))
        .collect()
}

/// Finds crates that ARCHITECTURE.md does not name.
pub fn architecture(tree: &Tree) -> Vec<Problem> {
    let text = tree.texts.get("ARCHITECTURE.md").map_or("", String::as_str);
    let is_named = |name: &str| text.contains(&format!("`{name}`"));
    let unnamed = tree.members.iter().filter(|member| !is_named(&member.name));
    let problem = |name: &str| {
        let message = format!("does not name the crate `{name}` (in backticks)");
        Problem::new("architecture", "ARCHITECTURE.md", 1, message)
    };
    unnamed.map(|member| problem(&member.name)).collect()
}

/// The line without what stands between backticks.
fn without_code(line: &str) -> String {
    line.split('`').step_by(2).collect()
}

/// The relative link targets in a line of Markdown, without their `#` part.
fn targets(line: &str) -> Vec<String> {
    let mut targets = Vec::new();
    for (opening, closing) in [("](", ')'), ("src=\"", '"'), ("href=\"", '"')] {
        for (start, _) in line.match_indices(opening) {
            let rest = &line[start + opening.len()..];
            let target = rest.split([closing, '#', ' ']).next().unwrap_or_default();
            let is_elsewhere = target.contains("://") || target.starts_with("mailto:");
            if !target.is_empty() && !is_elsewhere {
                targets.push(target.to_owned());
            }
        }
    }
    targets
}

#[cfg(test)]
mod tests {
    use super::{architecture, crate_doc, crate_readme, dead_link};
    use crate::tidy::testing::{fails, found, passes};
    use crate::tree::Tree;

    #[test]
    fn links_must_lead_to_a_file() {
        fails(dead_link, &[("a.md", "\n[b](b.md)")], "a.md:2");
        fails(
            dead_link,
            &[("sample/README.md", "[a](ARCHITECTURE.md)")],
            "sample/README.md:1",
        );
    }

    #[test]
    fn links_to_files_directories_and_the_web_pass() {
        let text = "[a](../ARCHITECTURE.md#x) [b](src/) [c](https://example.org) [d](#x)";
        passes(dead_link, &[("sample/README.md", text)]);
        passes(
            dead_link,
            &[(
                "a.md",
                "`[x](y)`\n```\nv[i](x)\n```\n[b](/sample/README.md)",
            )],
        );
    }

    #[test]
    fn a_crate_opens_with_its_sentence() {
        for text in ["", "\n//! Late.", "//! # Title", "//!  \n", "use a;"] {
            fails(
                crate_doc,
                &[("sample/src/lib.rs", text)],
                "sample/src/lib.rs:1",
            );
        }
        passes(crate_doc, &[("sample/src/lib.rs", "//! A sample.\nuse a;")]);
    }

    #[test]
    fn a_program_without_a_library_opens_with_its_sentence() {
        let manifest = |path| format!("[package]\nname = \"sample\"\n[lib]\npath = \"{path}\"\n");
        let (absent, other) = (manifest("src/none.rs"), manifest("src/other.rs"));
        let main = ("sample/src/main.rs", "fn main() {}");
        fails(
            crate_doc,
            &[("sample/Cargo.toml", &absent), main],
            "sample/src/main.rs:1",
        );
        let named = ("sample/src/other.rs", "//! A sample.");
        passes(crate_doc, &[("sample/Cargo.toml", &other), main, named]);
    }

    #[test]
    fn a_crate_has_a_readme() {
        passes(crate_readme, &[]);
        let two = ("Cargo.toml", "[workspace]\nmembers = [\"sample\", \"b\"]\n");
        let files = [two, ("b/Cargo.toml", "[package]\nname = \"b\"\n")];
        fails(crate_readme, &files, "b/README.md:1");
    }

    #[test]
    fn the_architecture_names_every_crate() {
        passes(architecture, &[]);
        let text = ("ARCHITECTURE.md", "`sample-other` and sample");
        fails(architecture, &[text], "ARCHITECTURE.md:1");
    }

    #[test]
    fn a_missing_architecture_is_a_problem() {
        let tree = Tree::parse(std::collections::BTreeMap::from([
            (
                "Cargo.toml".to_owned(),
                "[workspace]\nmembers = [\"b\"]\n".to_owned(),
            ),
            (
                "b/Cargo.toml".to_owned(),
                "[package]\nname = \"b\"\n".to_owned(),
            ),
        ]));
        assert_eq!(architecture(&tree.expect("parses")).len(), 1);
        assert_eq!(found(architecture, &[]), [""; 0]);
    }
}
