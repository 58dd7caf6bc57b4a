//! The confusion matrix, and the accuracy and precision of each class.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;

use serde_json::json;

use super::predictions::probabilities;
use super::restore::Restored;
use crate::events::{self, EventName};
use crate::failure::Failure;
use crate::output_file::{OutputFile, cannot_write};

/// A matrix that is wider is not printed: a terminal would break its rows.
const WIDTH_MAX: usize = 80;
/// The number of pairs of classes that are listed instead.
const PAIRS_MAX: usize = 10;
/// Longer names of classes are cut in tables and pictures.
const NAME_MAX: usize = 20;
/// The side of a picture's cell, in its units.
const CELL: usize = 36;
/// With more classes than this a picture's cells have no numbers.
const NUMBERED_MAX: usize = 30;

/// How often each class was predicted for the examples of each class.
#[derive(Debug)]
pub(super) struct Report {
    names: Vec<String>,
    /// `counts[label][predicted]`.
    counts: Vec<Vec<usize>>,
}

impl Report {
    /// Computes the matrix of the restored model on its examples, with all predictions.
    pub(super) fn of(restored: &Restored) -> Result<Self, Failure> {
        let outputs = restored.task.plan.output().elements();
        let classes = if outputs == 1 { 2 } else { outputs };
        let name = |class: usize| {
            let name = restored.task.class_names.get(class);
            name.cloned().unwrap_or_else(|| class.to_string())
        };
        let predicted = probabilities(restored)?.into_iter().map(|(class, _)| class);
        // Labels beyond the classes were refused when the examples were prepared.
        let labels = restored
            .labels
            .iter()
            .filter_map(|label| usize::try_from(*label).ok());
        Ok(Self::new(
            (0..classes).map(name).collect(),
            labels.zip(predicted),
        ))
    }

    /// The matrix from pairs of a label and a predicted class.
    fn new(names: Vec<String>, pairs: impl Iterator<Item = (usize, usize)>) -> Self {
        let mut counts = vec![vec![0; names.len()]; names.len()];
        for (label, predicted) in pairs {
            if let Some(count) = counts.get_mut(label).and_then(|row| row.get_mut(predicted)) {
                *count += 1;
            }
        }
        Self { names, counts }
    }

    /// The number of examples of a class, and of its predictions.
    fn totals(&self, class: usize) -> (usize, usize) {
        let of_class = self.counts[class].iter().sum();
        let predicted = self.counts.iter().map(|row| row[class]).sum();
        (of_class, predicted)
    }

    /// For people: a table of the classes, then the matrix.
    pub(super) fn text(&self) -> String {
        let names: Vec<String> = self.names.iter().map(|name| short(name)).collect();
        let first = names
            .iter()
            .map(|name| name.chars().count())
            .max()
            .unwrap_or(0)
            .max("class".len());
        let mut text = format!(
            "\n{:<first$}  examples  correct  accuracy  precision\n",
            "class"
        );
        for (class, name) in names.iter().enumerate() {
            let (examples, predicted) = self.totals(class);
            let correct = self.counts[class][class];
            let _ = writeln!(
                text,
                "{name:<first$}  {examples:>8}  {correct:>7}  {:>8}  {:>9}",
                share(correct, examples),
                share(correct, predicted)
            );
        }
        text.push('\n');
        let most = self.counts.iter().flatten().max().copied().unwrap_or(0);
        let longest = most.to_string().len();
        let cell = names
            .iter()
            .map(|name| name.chars().count())
            .max()
            .unwrap_or(0)
            .max(longest);
        if first + names.len() * (cell + 2) <= WIDTH_MAX {
            self.matrix(&mut text, &names, first, cell)
        } else {
            self.pairs(&mut text, &names)
        }
        text.trim_end().to_string()
    }

    fn matrix(&self, text: &mut String, names: &[String], first: usize, cell: usize) {
        text.push_str("rows: the class of an example; columns: the class that was predicted\n");
        let head: String = names
            .iter()
            .map(|name| format!("  {name:>cell$}"))
            .collect();
        let _ = writeln!(text, "{:first$}{head}", "");
        for (name, row) in names.iter().zip(&self.counts) {
            let row: String = row
                .iter()
                .map(|count| format!("  {count:>cell$}"))
                .collect();
            let _ = writeln!(text, "{name:<first$}{row}");
        }
    }

    /// The pairs of classes that were confused most often.
    fn pairs(&self, text: &mut String, names: &[String]) {
        let all = self.counts.iter().enumerate().flat_map(|(label, row)| {
            let row = row.iter().enumerate();
            row.map(move |(predicted, count)| (*count, label, predicted))
        });
        let mut mixed: Vec<_> = all.filter(|(n, label, it)| *n > 0 && label != it).collect();
        mixed.sort_by_key(|(count, ..)| std::cmp::Reverse(*count));
        text.push_str("taken for another class (--picture and --output json have all):\n");
        for (count, label, predicted) in mixed.into_iter().take(PAIRS_MAX) {
            let _ = writeln!(
                text,
                "{count:>8}  {} for {}",
                names[label], names[predicted]
            );
        }
    }

    /// As one line of JSON: `counts[label][predicted]`.
    pub(super) fn json(&self) -> String {
        let number = |part: usize, whole: usize| match whole {
            0 => json!(null),
            _ => json!(part as f64 / whole as f64),
        };
        let classes = (0..self.names.len()).map(|class| {
            let (examples, predicted) = self.totals(class);
            let correct = self.counts[class][class];
            json!({
                "class": self.names[class],
                "examples": examples,
                "correct": correct,
                "accuracy": number(correct, examples),
                "precision": number(correct, predicted),
            })
        });
        events::event(
            EventName::Report,
            [
                ("classes", json!(classes.collect::<Vec<_>>())),
                ("confusion", json!(self.counts)),
            ],
        )
    }

    /// Writes the matrix as an SVG file, completely or not at all.
    pub(super) fn write_picture(&self, path: &Path, title: &str) -> Result<(), Failure> {
        let written = OutputFile::create(path).and_then(|mut file| {
            (&mut file).write_all(self.svg(title).as_bytes())?;
            file.finish()
        });
        written.map_err(|error| cannot_write(path, &error))
    }

    /// A cell is as dark as its share of its row.
    fn svg(&self, title: &str) -> String {
        let classes = self.names.len();
        let (left, top, side) = (180, 90, classes * CELL);
        let (width, height) = ((left + side + 20).max(560), top + side + 130);
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" \
             font-family=\"sans-serif\" font-size=\"12\">\n\
             <rect width=\"{width}\" height=\"{height}\" fill=\"white\"/>\n\
             <text x=\"20\" y=\"28\" font-size=\"15\" font-weight=\"bold\">{}</text>\n\
             <text x=\"20\" y=\"50\">rows: the class of an example; columns: the class that was \
             predicted</text>\n",
            escaped(title)
        );
        for (label, row) in self.counts.iter().enumerate() {
            let (middle, of_class) = (top + label * CELL + CELL / 2, self.totals(label).0);
            let name = escaped(&short(&self.names[label]));
            let _ = writeln!(
                svg,
                "<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{name}</text>",
                left - 8,
                middle + 4
            );
            let (x, y) = (left + label * CELL + CELL / 2, top + side + 12);
            let _ = writeln!(
                svg,
                "<text transform=\"translate({x},{y}) rotate(60)\">{name}</text>"
            );
            for (predicted, count) in row.iter().enumerate() {
                let x = left + predicted * CELL;
                let dark = *count as f64 / of_class.max(1) as f64;
                self.cell(&mut svg, x, top + label * CELL, *count, dark);
            }
        }
        svg.push_str("</svg>\n");
        svg
    }

    fn cell(&self, svg: &mut String, x: usize, y: usize, count: usize, dark: f64) {
        let _ = writeln!(
            svg,
            "<rect x=\"{x}\" y=\"{y}\" width=\"{CELL}\" height=\"{CELL}\" stroke=\"#ddd\" \
             fill=\"#0072b2\" fill-opacity=\"{dark:.3}\"/>"
        );
        if count == 0 || self.names.len() > NUMBERED_MAX {
            return;
        }
        let ink = if dark > 0.5 { "white" } else { "black" };
        let (x, y) = (x + CELL / 2, y + CELL / 2 + 4);
        let _ = writeln!(
            svg,
            "<text x=\"{x}\" y=\"{y}\" text-anchor=\"middle\" fill=\"{ink}\">{count}</text>"
        );
    }
}

/// The fraction of a whole, if the whole is not 0.
fn share(part: usize, whole: usize) -> String {
    match whole {
        0 => "-".to_string(),
        _ => format!("{:.4}", part as f64 / whole as f64),
    }
}

fn short(name: &str) -> String {
    if name.chars().count() > NAME_MAX {
        name.chars()
            .take(NAME_MAX - 3)
            .chain("...".chars())
            .collect()
    } else {
        name.to_string()
    }
}

/// Escapes text for XML, without control characters.
fn escaped(text: &str) -> String {
    let mut safe = String::new();
    for letter in text.chars() {
        match letter {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            letter if letter.is_control() => safe.push(' '),
            letter => safe.push(letter),
        }
    }
    safe
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(names: &[&str], pairs: &[(usize, usize)]) -> Report {
        let names = names.iter().map(ToString::to_string).collect();
        Report::new(names, pairs.iter().copied())
    }

    #[test]
    fn the_text_has_every_class_and_the_matrix() {
        let pairs = [(0, 0), (0, 0), (0, 1), (1, 1), (1, 0), (1, 1), (1, 1)];
        let text = report(&["cat", "dog", "none"], &pairs).text();
        insta::assert_snapshot!(text, @r"
        class  examples  correct  accuracy  precision
        cat           3        2    0.6667     0.6667
        dog           4        3    0.7500     0.7500
        none          0        0         -          -

        rows: the class of an example; columns: the class that was predicted
                cat   dog  none
        cat       2     1     0
        dog       1     3     0
        none      0     0     0
        ");
    }

    #[test]
    fn of_many_classes_the_pairs_that_are_mixed_up_are_named() {
        let names: Vec<String> = (0..40).map(|class| format!("class {class}")).collect();
        let pairs = [(1, 2), (3, 4), (3, 4), (5, 5)];
        let text = Report::new(names, pairs.into_iter()).text();
        assert!(
            text.lines().all(|line| line.chars().count() <= WIDTH_MAX),
            "{text}"
        );
        let (_, mixed) = text.split_once("have all):\n").unwrap();
        assert_eq!(
            mixed,
            "       2  class 3 for class 4\n       1  class 1 for class 2"
        );
    }

    #[test]
    fn names_cannot_break_the_picture() {
        let svg = report(&["<a>&\"\u{1b}", "b"], &[(0, 0)]).svg("1 < 2");
        assert!(svg.contains("&lt;a&gt;&amp;&quot; </text>"), "{svg}");
        assert!(svg.contains("1 &lt; 2"), "{svg}");
        assert!(!svg.contains('\u{1b}'));
    }
}
