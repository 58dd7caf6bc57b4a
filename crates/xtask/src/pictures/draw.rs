//! Boxes and arrows as SVG. The background is white, as in the other pictures, so that a page may
//! be dark.

use super::{COLUMNS, Mode, Node, Picture, Row};

const WIDTH: f64 = 900.0;
const MARGIN: f64 = 10.0;
/// Between boxes: sideways, and for an arrow.
const GAP: f64 = 10.0;
const ARROW: f64 = 24.0;
const TOP: f64 = 40.0;
const PADDING: f64 = 9.0;
const LINE: f64 = 15.0;

/// The advance of a letter: what fonts differ in is less than the padding.
const NAME_LETTER: f64 = 7.25;
const FILE_LETTER: f64 = 6.35;
const NOTE_LETTER: f64 = 6.0;

/// Where a box lies.
#[derive(Clone, Copy)]
struct Place {
    x: f64,
    y: f64,
    width: f64,
    height: f64,
}

/// The text of the file.
pub fn svg(picture: &Picture) -> String {
    let mut shapes = String::new();
    let mut places: Vec<Vec<Place>> = Vec::new();
    let mut y = TOP;
    for row in picture.rows {
        let heights = row.iter().map(height);
        let height = heights.fold(0.0, f64::max);
        let place = |node: &Node| Place {
            y,
            height,
            ..across(node)
        };
        places.push(row.iter().map(place).collect());
        y += height + ARROW;
    }
    for (index, (row, row_places)) in picture.rows.iter().zip(&places).enumerate() {
        for (node, from) in row.iter().zip(row_places) {
            shapes += &boxed(node, *from);
            let below = picture.rows.iter().zip(&places).skip(index + 1);
            shapes += &arrows(node, *from, below.collect());
        }
    }
    let (title, height) = (escaped(picture.title), y - ARROW + MARGIN);
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" \
         font-family=\"sans-serif\" font-size=\"11.5\">\n\
         <rect width=\"{WIDTH}\" height=\"{height}\" fill=\"white\"/>\n\
         <text x=\"{MARGIN}\" y=\"24\" font-size=\"15\" font-weight=\"bold\">{title}</text>\n\
         {shapes}</svg>\n"
    )
}

/// The place without its height.
fn across(node: &Node) -> Place {
    let (first, last) = node.columns;
    let column = (WIDTH - 2.0 * MARGIN + GAP) / COLUMNS as f64;
    Place {
        x: MARGIN + first as f64 * column,
        y: 0.0,
        width: (last + 1 - first) as f64 * column - GAP,
        height: 0.0,
    }
}

fn height(node: &Node) -> f64 {
    let Lines { name, files, note } = lines(node);
    let beside = usize::from(is_beside(node));
    (name.len() + files.len() - beside + note.len()) as f64 * LINE + PADDING * 1.5
}

/// Whether the file stands on the line of the name.
fn is_beside(node: &Node) -> bool {
    let name = node.name.len() as f64 * NAME_LETTER;
    let file = node
        .files
        .iter()
        .map(|file| file.len() as f64 * FILE_LETTER);
    node.files.len() == 1 && name + file.sum::<f64>() + 4.0 * PADDING < across(node).width
}

/// The texts of a box, broken to its width.
struct Lines {
    name: Vec<String>,
    files: Vec<String>,
    note: Vec<String>,
}

fn lines(node: &Node) -> Lines {
    let inner = across(node).width - 2.0 * PADDING;
    let files = node.files.iter();
    let files = files.flat_map(|file| broken(file, &['/'], inner / FILE_LETTER));
    Lines {
        name: broken(node.name, &[':', ' '], inner / NAME_LETTER),
        files: files.collect(),
        note: broken(node.note, &[' '], inner / NOTE_LETTER),
    }
}

/// Breaks a text behind separators into lines of at most so many letters.
fn broken(text: &str, separators: &[char], letters: f64) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for part in text.split_inclusive(separators) {
        let fits = |line: &&mut String| (line.len() + part.trim_end().len()) as f64 <= letters;
        match lines.last_mut().filter(fits) {
            Some(line) => line.push_str(part),
            None => lines.push(part.to_owned()),
        }
    }
    lines
}

fn boxed(node: &Node, place: Place) -> String {
    let Place {
        x,
        y,
        width,
        height,
    } = place;
    let (fill, stroke) = match node.mode {
        Mode::Every => ("#f3f4f6", "#6b7280"),
        Mode::Host => ("#e3effc", "#2f6db5"),
        Mode::Devices => ("#e2f5e6", "#2e8b47"),
        Mode::Captured => ("#fdf1d8", "#b57b12"),
        Mode::Remote => ("#f0e7fb", "#7a4fb5"),
    };
    let mut shapes = format!(
        "<rect x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\" rx=\"5\" fill=\"{fill}\" \
         stroke=\"{stroke}\"/>\n"
    );
    let mut text = |x: f64, y: f64, style: &str, text: &str| {
        let text = escaped(text.trim_end());
        shapes += &format!("<text x=\"{x}\" y=\"{y}\" {style}>{text}</text>\n");
    };
    let first = y + PADDING + 7.0;
    let Lines {
        name,
        mut files,
        note,
    } = lines(node);
    if is_beside(node) {
        let style = format!("{FILE} text-anchor=\"end\"");
        text(x + width - PADDING, first, &style, &files.concat());
        files.clear();
    }
    let name = name.iter().map(|line| (NAME, line));
    let files = files.iter().map(|line| (FILE, line));
    let note = note.iter().map(|line| (NOTE, line));
    for (index, (style, line)) in name.chain(files).chain(note).enumerate() {
        text(x + PADDING, first + index as f64 * LINE, style, line);
    }
    shapes
}

const NAME: &str = "font-family=\"monospace\" font-size=\"12\" font-weight=\"bold\"";
const FILE: &str = "font-family=\"monospace\" font-size=\"10.5\" fill=\"#4b5563\"";
const NOTE: &str = "fill=\"#1f2937\"";

/// Arrows from a box to the next ones below each of its columns.
fn arrows(node: &Node, from: Place, below: Vec<(&Row, &Vec<Place>)>) -> String {
    let mut targets: Vec<(usize, usize, Place)> = Vec::new();
    for column in node.columns.0..=node.columns.1 {
        let mut all = below
            .iter()
            .flat_map(|(row, places)| row.iter().zip(*places));
        let covers =
            |(node, _): &(&Node, &Place)| (node.columns.0..=node.columns.1).contains(&column);
        let Some((_, place)) = all.find(covers) else {
            continue;
        };
        match targets.last_mut() {
            Some((_, last, same)) if (same.x, same.y) == (place.x, place.y) => *last = column,
            _ => targets.push((column, column, *place)),
        }
    }
    let arrow = |(first, last, to): &(usize, usize, Place)| {
        let shared = across(&Node {
            columns: (*first, *last),
            ..*node
        });
        let x = shared.x + shared.width / 2.0;
        let (start, end) = (from.y + from.height, to.y);
        format!(
            "<path d=\"M{x} {start}V{}M{} {}L{x} {end}L{} {}\" fill=\"none\" stroke=\"#374151\" \
             stroke-width=\"1.5\"/>\n",
            end - 1.0,
            x - 4.0,
            end - 6.0,
            x + 4.0,
            end - 6.0
        )
    };
    targets.iter().map(arrow).collect()
}

pub fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}

#[cfg(test)]
mod tests {
    use super::broken;

    #[test]
    fn texts_are_broken_behind_separators() {
        assert_eq!(broken("a b c", &[' '], 3.0), ["a b ", "c"]);
        assert_eq!(broken("src/long.rs", &['/'], 7.0), ["src/", "long.rs"]);
        assert_eq!(broken("", &[' '], 7.0), [""; 0]);
    }
}
