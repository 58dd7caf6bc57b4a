//! CSV tables of numbers.

use std::path::Path;

use crate::array::{Array, Values};
use crate::csv_options::{CsvHeader, CsvLabels, CsvOptions, LabelColumn};
use crate::error::ReadError;
use crate::examples::{Examples, Features, Labels};
use crate::header::{self, HeaderCheck};
use crate::label_column::LabelReader;
use crate::lines::{Column, Lines, number};
use crate::places::Places;
use crate::source::Source;

/// Reads a CSV table, gzip-compressed or not: one example per line, one column with the label, all
/// others features (`f32`, undivided, feature shape `[columns]`).
///
/// # Errors
/// [`ReadError::RaggedRow`] and [`ReadError::NotANumber`] with the line (and column; NaN and
/// infinity are refused too), [`ReadError::MissingName`] if there is no such label column,
/// [`ReadError::OtherColumns`] if the wanted columns are not there,
/// [`ReadError::LabelOutOfRange`], [`ReadError::AmbiguousHeader`], [`ReadError::Empty`], or a file
/// that cannot be read.
pub fn read_csv(path: impl AsRef<Path>, options: &CsvOptions) -> Result<Examples, ReadError> {
    parse(Source::open(path.as_ref())?, options)
}

/// The names of the columns of a CSV table, of which the first line is the header.
///
/// # Errors
/// [`ReadError::Empty`], what is no text in UTF-8, or a file that cannot be read.
pub fn csv_names(path: impl AsRef<Path>, options: &CsvOptions) -> Result<Vec<String>, ReadError> {
    let path = path.as_ref();
    let source = Source::open(path)?;
    let mut lines = Lines::new(source, options.delimiter, options.delimiter_is_sure)?;
    if lines.advance()? {
        Ok(lines.names())
    } else {
        Err(ReadError::empty(path))
    }
}

/// Reads a CSV table from memory; `origin` names the data in errors.
///
/// # Errors
/// As [`read_csv`].
pub fn parse_csv(
    bytes: &[u8],
    origin: impl AsRef<Path>,
    options: &CsvOptions,
) -> Result<Examples, ReadError> {
    parse(Source::from_bytes(bytes, origin.as_ref())?, options)
}

fn parse(source: Source<'_>, options: &CsvOptions) -> Result<Examples, ReadError> {
    let path = source.origin();
    let mut lines = Lines::new(source, options.delimiter, options.delimiter_is_sure)?;
    if !lines.advance()? {
        return Err(ReadError::empty(path));
    }
    let count = lines.record.len();
    let has_header = match (options.header, &options.label) {
        (CsvHeader::Present, _) | (CsvHeader::Detect, LabelColumn::Name(_)) => true,
        (CsvHeader::Absent, _) => false,
        (CsvHeader::Detect, _) => header::is_header(&lines.record, lines.line, path)?,
    };
    let detects = options.header == CsvHeader::Detect && !has_header;
    let mut header_check = detects.then(|| HeaderCheck::new(&lines.record, lines.line));
    let names = has_header.then(|| lines.names());
    let places = Places::of(names.as_deref(), count, options, path)?;
    let mut table = Table::default();
    let mut has_line = !has_header || lines.advance()?;
    while has_line {
        if let Some(header_check) = &mut header_check {
            header_check.line(&lines.record, places.label.unwrap_or(count), lines.line);
        }
        table.push(&lines, &places, options.labels, names.as_deref())?;
        has_line = lines.advance()?;
    }
    if let Some(why) = header_check.as_ref().and_then(HeaderCheck::why) {
        return Err(header::ambiguous(
            path,
            header_check.map_or(1, |d| d.first),
            why,
        ));
    }
    table.into_examples(&places, names.as_deref(), options.labels, path)
}

/// The examples read so far.
#[derive(Default)]
struct Table {
    rows: usize,
    features: Vec<f32>,
    labels: LabelReader,
    weights: Vec<f32>,
}

impl Table {
    fn push(
        &mut self,
        line: &Lines<'_>,
        places: &Places,
        labels: CsvLabels,
        names: Option<&[String]>,
    ) -> Result<(), ReadError> {
        let room = self.features.try_reserve(line.record.len());
        room.and_then(|()| self.labels.try_reserve())
            .and_then(|()| self.weights.try_reserve(1))
            .map_err(|_| line.no_memory(self.features.len()))?;
        let place = |column: usize| Column {
            column,
            name: names.map(|names| &names[column]),
        };
        let value = |column: usize| {
            let field = &line.record[column];
            number(field).ok_or_else(|| line.not_a_number(&place(column), field))
        };
        for &column in &places.features {
            self.features.push(value(column)?);
        }
        if let Some(weights) = places.weights {
            self.weights.push(value(weights)?);
        }
        match places.label {
            None => {}
            Some(label) if places.more_labels.is_empty() => {
                self.labels.push(line, &place(label), labels)?;
            }
            Some(label) => {
                for label in [label].iter().chain(&places.more_labels) {
                    self.labels.push_value(line, &place(*label))?;
                }
            }
        }
        self.rows += 1;
        Ok(())
    }

    fn into_examples(
        self,
        places: &Places,
        names: Option<&[String]>,
        labels: CsvLabels,
        path: &Path,
    ) -> Result<Examples, ReadError> {
        let rows = self.rows;
        let shape = vec![rows, places.features.len()];
        let features = Array::new(shape, Values::F32(self.features))?;
        let width = places.more_labels.len() + 1;
        let (labels, class_names) = match places.label {
            None => (Labels::Absent(rows), Vec::new()),
            Some(_) => self.labels.into_labels(labels, rows, width)?,
        };
        let features = Features::Numbers(features);
        let name = table_name(path);
        let examples = Examples::from_files(&name, features, path, labels, path, &class_names)?;
        let examples = match places.weights {
            Some(_) => examples.with_weights(self.weights)?,
            None => examples,
        };
        Ok(examples.with_origin(places.origin(names)))
    }
}

/// `data.csv.gz` is called `data`.
pub(crate) fn table_name(path: &Path) -> String {
    let name = path
        .file_name()
        .map_or("csv".into(), |name| name.to_string_lossy());
    name.trim_end_matches(".gz")
        .trim_end_matches(".csv")
        .to_owned()
}
