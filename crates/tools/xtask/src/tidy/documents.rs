//! A newcomer finds the way: every crate says what it is, and every link leads somewhere.

use std::collections::BTreeSet;

use super::Problem;
use crate::files;
use crate::tree::Tree;

/// A link from a Markdown file to a file of the repository.
pub struct Link {
    pub from: String,
    pub line: usize,
    /// Relative to the root; the file itself for a link to one of its headings.
    pub target: String,
    /// What stands behind `#`, if anything.
    pub anchor: Option<String>,
    pub is_picture: bool,
}

/// Tells lines of code in a Markdown file from text, one line after the other.
#[derive(Default)]
pub struct Fences {
    is_inside: bool,
}

impl Fences {
    /// Whether the next line is code, or the fence around it.
    pub fn is_code(&mut self, line: &str) -> bool {
        let is_fence = line.trim_start().starts_with("```");
        self.is_inside ^= is_fence;
        self.is_inside || is_fence
    }
}

/// All links between Markdown files and the repository; text in backticks is no link.
pub fn links(tree: &Tree) -> Vec<Link> {
    let mut links = Vec::new();
    for (from, text) in tree.texts.iter().filter(|(path, _)| path.ends_with(".md")) {
        let directory = from.rsplit_once('/').map_or("", |(directory, _)| directory);
        let mut fences = Fences::default();
        // A picture's text may begin on the line before.
        let mut before = String::new();
        for (index, line) in text.lines().enumerate() {
            if fences.is_code(line) {
                continue;
            }
            let line = without_code(line);
            for (start, target) in targets(&line) {
                let (path, anchor) = match target.split_once('#') {
                    Some((path, anchor)) => (path, Some(anchor.to_owned())),
                    None => (target.as_str(), None),
                };
                let target = match path.strip_prefix('/') {
                    _ if path.is_empty() => from.clone(),
                    Some(from_root) => files::join("", from_root),
                    None => files::join(directory, path),
                };
                links.push(Link {
                    from: from.clone(),
                    line: index + 1,
                    target,
                    anchor,
                    is_picture: is_picture(&before, &line[..start]),
                });
            }
            before = line;
        }
    }
    links
}

/// Whether what stands before `](` on its line, and on the line above, opens a picture.
fn is_picture(above: &str, before: &str) -> bool {
    let opens = |text: &str| {
        let at = text.rfind('[')?;
        Some(text[..at].ends_with('!'))
    };
    opens(before).or_else(|| opens(above)).unwrap_or_default()
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

/// Finds links to headings that do not exist.
pub fn dead_anchor(tree: &Tree) -> Vec<Problem> {
    let mut problems = Vec::new();
    for link in links(tree) {
        let (Some(anchor), true) = (&link.anchor, link.target.ends_with(".md")) else {
            continue;
        };
        let Some(text) = tree.texts.get(&link.target) else {
            continue;
        };
        if !anchors(text).contains(anchor) {
            let message = format!("`{}` has no heading `#{anchor}`", link.target);
            problems.push(Problem::new("dead-anchor", &link.from, link.line, message));
        }
    }
    problems
}

/// What the headings of a file are called in links, by the rule that GitHub and mdBook share.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut fences = Fences::default();
    let mut anchors = BTreeSet::new();
    for line in text.lines() {
        if fences.is_code(line) || !line.starts_with('#') {
            continue;
        }
        let heading = line.trim_start_matches('#').trim();
        let kept = heading.to_lowercase().replace(char::is_whitespace, "-");
        let is_kept = |c: &char| c.is_alphanumeric() || matches!(c, '-' | '_');
        let anchor: String = kept.chars().filter(is_kept).collect();
        let mut again = anchor.clone();
        let mut count = 0;
        while !anchors.insert(again.clone()) {
            count += 1;
            again = format!("{anchor}-{count}");
        }
    }
    anchors
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

/// The relative link targets in a line of Markdown, and where each begins.
fn targets(line: &str) -> Vec<(usize, String)> {
    let mut targets = Vec::new();
    for (opening, closing) in [("](", ')'), ("src=\"", '"'), ("href=\"", '"')] {
        for (start, _) in line.match_indices(opening) {
            let rest = &line[start + opening.len()..];
            let target = rest.split([closing, ' ']).next().unwrap_or_default();
            let is_elsewhere = target.contains("://") || target.starts_with("mailto:");
            if !target.is_empty() && !is_elsewhere {
                targets.push((start, target.to_owned()));
            }
        }
    }
    targets
}

#[cfg(test)]
mod tests {
    use super::{architecture, crate_doc, crate_readme, dead_anchor, dead_link};
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
    fn links_to_headings_must_lead_to_one() {
        let text = "# A page, and `code`\n```sh\n# not_one\n```\n## Twice\n## Twice\n";
        for anchor in ["a-page-and-code", "twice", "twice-1"] {
            let link = format!("[a](b.md#{anchor})");
            passes(dead_anchor, &[("a.md", &link), ("b.md", text)]);
            let own = format!("{text}[a](#{anchor})");
            passes(dead_anchor, &[("a.md", &own)]);
        }
        for anchor in ["not_one", "a-page", "twice-2"] {
            let link = format!("\n[a](b.md#{anchor})");
            fails(dead_anchor, &[("a.md", &link), ("b.md", text)], "a.md:2");
        }
        passes(dead_anchor, &[("a.md", "[a](sample/src/lib.rs#L1)")]);
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
