//! The pictures of ways through the code show no file and no name that is gone.

use super::Problem;
use crate::tree::Tree;

/// What begins the text of a file, which may go on in the next one, and that of a name.
const FILE: &str = "font-family=\"monospace\" font-size=\"10.5\"";
const NAME: &str = "font-family=\"monospace\" font-size=\"12\"";

/// Finds files that do not exist, and words of names that stand in no file of their picture.
pub fn picture(tree: &Tree) -> Vec<Problem> {
    let is_way = |path: &str| path.starts_with("docs/way-of-") && path.ends_with(".svg");
    let pictures = tree.texts.iter().filter(|(path, _)| is_way(path));
    pictures
        .flat_map(|(path, picture)| problems_of(tree, path, picture))
        .collect()
}

fn problems_of(tree: &Tree, path: &str, picture: &str) -> Vec<Problem> {
    let problem = |line, message: String| Problem::new("picture", path, line, message);
    let (mut problems, mut texts, mut names) = (Vec::new(), Vec::new(), Vec::new());
    let mut file = String::new();
    for (index, line) in picture.lines().enumerate() {
        let text = line.split(['<', '>']).nth(2).unwrap_or_default();
        if line.contains(NAME) {
            names.push((index + 1, text));
        } else if line.contains(FILE) {
            file += text;
        }
        if file.ends_with(".rs") {
            match tree.texts.get(&file) {
                Some(text) => texts.push(text),
                None => problems.push(problem(index + 1, format!("there is no file `{file}`"))),
            }
            file.clear();
        }
    }
    for (line, name) in names {
        let mut words = name.split(|c: char| !(c.is_alphanumeric() || c == '_'));
        let gone = words.find(|word| !texts.iter().any(|text| text.contains(word)));
        problems.extend(gone.map(|word| problem(line, format!("no file of it has `{word}`"))));
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::picture;
    use crate::tidy::testing::{fails, passes};

    const PICTURE: &str = r#"<svg>
<text x="1" font-family="monospace" font-size="12" font-weight="bold">Way::begin</text>
<text x="1" font-family="monospace" font-size="10.5" fill="grey">sample/src/</text>
<text x="1" font-family="monospace" font-size="10.5" fill="grey">a.rs</text>
<text x="1" fill="black">It has a note.</text>
</svg>
"#;

    #[test]
    fn a_picture_shows_what_is_there() {
        let shown = ("docs/way-of-a-test.svg", PICTURE);
        let file = "sample/src/a.rs";
        passes(picture, &[shown, (file, "struct Way; fn begin() {}")]);
        let renamed = [shown, (file, "struct Way; fn start() {}")];
        fails(picture, &renamed, "docs/way-of-a-test.svg:2");
        passes(picture, &[("docs/other.svg", PICTURE)]);
        let found = crate::tidy::testing::found(picture, &[shown]);
        let gone = "docs/way-of-a-test.svg:4: picture: there is no file `sample/src/a.rs`";
        assert!(found.contains(&gone.to_owned()), "{found:#?}");
    }
}
