//! The pictures of ARCHITECTURE.md: drawn from a list of what is on the way, and held against the
//! tree, so that none shows a file or a name that is gone. And that of docs/observing.md, which is
//! drawn from a recorded trace.

mod draw;
mod timeline;
mod ways;

use std::path::Path;

use crate::tree::Tree;

/// A way through the code, from top to bottom.
struct Picture {
    /// Relative to the root.
    path: &'static str,
    title: &'static str,
    rows: &'static [Row],
}

/// Boxes beside each other: ways that exclude each other.
type Row = &'static [Node];

/// One box.
struct Node {
    /// The first and the last of the `COLUMNS` that it covers.
    columns: (usize, usize),
    mode: Mode,
    /// What is called, as the files call it: every word of it stands in one of them.
    name: &'static str,
    files: &'static [&'static str],
    note: &'static str,
}

/// Whose way a box is on.
#[derive(Clone, Copy)]
enum Mode {
    Every,
    Host,
    Devices,
    Captured,
    Remote,
}

/// Boxes are laid out in so many columns.
const COLUMNS: usize = 10;

/// Draws all pictures into their files.
pub fn write(root: &Path) -> Result<String, String> {
    for picture in &ways::PICTURES {
        let path = root.join(picture.path);
        let written = std::fs::write(path, draw::svg(picture));
        written.map_err(|error| format!("{}: {error}", picture.path))?;
    }
    let trace = std::fs::read_to_string(root.join(timeline::TRACE));
    let drawn = trace.map_err(|error| error.to_string());
    let drawn = drawn.and_then(|trace| timeline::svg(&trace));
    let named = |error: String| format!("{}: {error}", timeline::TRACE);
    let written = std::fs::write(root.join(timeline::PICTURE), drawn.map_err(named)?);
    written.map_err(|error| format!("{}: {error}", timeline::PICTURE))?;
    Ok(format!("{} pictures", ways::PICTURES.len() + 1))
}

/// Finds pictures that were not drawn anew, or that show what is not in the tree.
pub fn problems(tree: &Tree) -> Vec<String> {
    let trace = tree.texts.get(timeline::TRACE);
    let drawn = trace.and_then(|trace| timeline::svg(trace).ok());
    let is_drawn = trace.is_none() || drawn.as_ref() == tree.texts.get(timeline::PICTURE);
    let stale = (!is_drawn).then(|| {
        let path = timeline::PICTURE;
        format!("{path}:1: picture: is not what `cargo xtask pictures` draws")
    });
    ways::PICTURES
        .iter()
        .flat_map(|picture| {
            let mut problems = wrong_nodes(tree, picture.rows);
            if tree.texts.get(picture.path) != Some(&draw::svg(picture)) {
                problems.push("is not what `cargo xtask pictures` draws".to_owned());
            }
            let named = |problem| format!("{}:1: picture: {problem}", picture.path);
            problems.into_iter().map(named)
        })
        .chain(stale)
        .collect()
}

fn wrong_nodes(tree: &Tree, rows: &[Row]) -> Vec<String> {
    let mut problems = Vec::new();
    for node in rows.iter().flat_map(|row| row.iter()) {
        let mut texts = Vec::new();
        for file in node.files {
            match tree.texts.get(*file) {
                Some(text) => texts.push(text),
                None => problems.push(format!("shows `{file}`, which is not there")),
            }
        }
        let words = node
            .name
            .split(|c: char| !(c.is_alphanumeric() || c == '_'));
        for word in words.filter(|word| !word.is_empty()) {
            if !texts.is_empty() && !texts.iter().any(|text| text.contains(word)) {
                let files = node.files.join(", ");
                problems.push(format!("shows `{}`: no `{word}` in {files}", node.name));
            }
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::{COLUMNS, Mode, Node, ways, wrong_nodes};
    use crate::tree::samples;

    const NODE: Node = Node {
        columns: (0, 9),
        mode: Mode::Every,
        name: "Way::begin",
        files: &["sample/src/a.rs"],
        note: "",
    };

    fn found(text: &str) -> Vec<String> {
        wrong_nodes(&samples::tree(&[("sample/src/a.rs", text)]), &[&[NODE]])
    }

    #[test]
    fn a_file_or_a_name_that_is_gone_is_found() {
        assert_eq!(found("struct Way; fn begin() {}"), [""; 0]);
        let renamed = ["shows `Way::begin`: no `begin` in sample/src/a.rs"];
        assert_eq!(found("struct Way; fn start() {}"), renamed);
        let gone = ["shows `sample/src/a.rs`, which is not there"];
        assert_eq!(wrong_nodes(&samples::tree(&[]), &[&[NODE]]), gone);
    }

    #[test]
    fn boxes_of_a_row_lie_beside_each_other() {
        for row in ways::PICTURES.iter().flat_map(|picture| picture.rows) {
            let mut free = 0;
            for node in *row {
                assert!(node.columns.0 >= free, "{}", node.name);
                assert!(node.columns.1 >= node.columns.0, "{}", node.name);
                free = node.columns.1 + 1;
            }
            assert!(free <= COLUMNS);
        }
    }
}
