//! No path of one machine is in the repository: it would work there only.

use super::Problem;
use crate::tree::Tree;

/// Written in two halves, so that this file does not break its own rule.
const DIRECTORIES: [&str; 3] = [
    concat!("/wo", "rk/"),
    concat!("/ro", "ot/"),
    concat!("/ho", "me/"),
];

/// Finds absolute paths below the directories where people and build machines keep their work.
pub fn machine_path(tree: &Tree) -> Vec<Problem> {
    let mut problems = Vec::new();
    for (path, text) in &tree.texts {
        for (index, line) in text.lines().enumerate() {
            for directory in DIRECTORIES
                .iter()
                .filter(|directory| has_path(line, directory))
            {
                let message = format!("`{directory}` is a path of one machine");
                problems.push(Problem::new("machine-path", path, index + 1, message));
            }
        }
    }
    problems
}

/// Whether an absolute path in `directory` stands in `line`: after another part of a path, a
/// variable or a host name the same letters are a relative one.
fn has_path(line: &str, directory: &str) -> bool {
    let continues =
        |character: char| character.is_alphanumeric() || "._-~/})]$>".contains(character);
    line.match_indices(directory)
        .any(|(start, _)| !line[..start].chars().next_back().is_some_and(continues))
}

#[cfg(test)]
mod tests {
    use super::{DIRECTORIES, machine_path};
    use crate::tidy::testing::{fails, passes};

    #[test]
    fn absolute_paths_fail_in_every_kind_of_file() {
        for directory in DIRECTORIES {
            fails(
                machine_path,
                &[("a.md", &format!("\nsee `{directory}x`"))],
                "a.md:2",
            );
            fails(
                machine_path,
                &[("a.json", &format!("{{\"p\":\"{directory}x\"}}"))],
                "a.json:1",
            );
            fails(
                machine_path,
                &[("a.rs", &format!("// {directory}x"))],
                "a.rs:1",
            );
        }
    }

    #[test]
    fn parts_of_other_paths_pass() {
        for directory in DIRECTORIES {
            let text = format!("https://example.org{directory} $A{directory} {{b}}{directory}");
            passes(machine_path, &[("a.md", &text)]);
        }
    }
}
