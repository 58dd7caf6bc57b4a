//! CSV tables of texts and their classes.

use std::io::Read;
use std::path::Path;

use crate::csv_options::CsvLabels;
use crate::error::ReadError;
use crate::examples::{Examples, Features, Labels, Origin};
use crate::label_column::LabelReader;
use crate::lines::{Column, Lines};
use crate::places::refuse_repeated;
use crate::source::{Source, stream_error};
use crate::table::table_name;
use crate::table_start::{LOOK_BYTES, TableStart};

const TEXT: &str = "text";
const LABEL: &str = "label";

/// Reads a CSV table, gzip-compressed or not, whose header names a column `text` and a column
/// `label` (class numbers from 0 on); other columns are ignored.
///
/// # Errors
/// [`ReadError::MissingName`] if the header lacks one of the two, [`ReadError::RaggedRow`],
/// [`ReadError::NotANumber`] and [`ReadError::NotUtf8`] with the line,
/// [`ReadError::LabelOutOfRange`], [`ReadError::Empty`], or a file that cannot be read.
pub fn read_text_csv(path: impl AsRef<Path>) -> Result<Examples, ReadError> {
    read_texts(path, &TextOptions::default())
}

/// Reads a table of texts from memory; `origin` names the data in errors.
///
/// # Errors
/// As [`read_text_csv`].
pub fn parse_text_csv(bytes: &[u8], origin: impl AsRef<Path>) -> Result<Examples, ReadError> {
    parse_texts(bytes, origin, &TextOptions::default())
}

/// How to read a CSV table of texts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TextOptions {
    /// The byte between two fields, `b','` by default.
    pub delimiter: u8,
    /// As [`CsvOptions::delimiter_is_sure`](crate::CsvOptions::delimiter_is_sure).
    pub delimiter_is_sure: bool,
    /// Whether the labels are read; else the examples have none.
    pub labelled: bool,
    /// The name of the column with the labels, `label` by default.
    pub label: String,
    /// What the labels are; class numbers by default.
    pub labels: CsvLabels,
}

impl Default for TextOptions {
    fn default() -> Self {
        TextOptions {
            delimiter: b',',
            delimiter_is_sure: false,
            labelled: true,
            label: LABEL.to_owned(),
            labels: CsvLabels::default(),
        }
    }
}

/// [`read_text_csv`] with options.
///
/// # Errors
/// As [`read_text_csv`].
pub fn read_texts(path: impl AsRef<Path>, options: &TextOptions) -> Result<Examples, ReadError> {
    parse(Source::open(path.as_ref())?, options)
}

/// [`read_texts`] from memory; `origin` names the data in errors.
///
/// # Errors
/// As [`read_text_csv`].
pub fn parse_texts(
    bytes: &[u8],
    origin: impl AsRef<Path>,
    options: &TextOptions,
) -> Result<Examples, ReadError> {
    parse(Source::from_bytes(bytes, origin.as_ref())?, options)
}

/// Reads plain text, gzip-compressed or not, in UTF-8: every line that is not blank is an example
/// without a label.
///
/// # Errors
/// [`ReadError::NotUtf8`], [`ReadError::Empty`], or a file that cannot be read.
pub fn read_text_lines(path: impl AsRef<Path>) -> Result<Examples, ReadError> {
    let path = path.as_ref();
    let mut source = Source::open(path)?;
    TableStart::refuse_foreign(&source.peek(LOOK_BYTES)?, path)?;
    let mut bytes = Vec::new();
    let read = source.read_to_end(&mut bytes);
    read.map_err(|error| stream_error(path, error))?;
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&bytes);
    let mut texts = Vec::new();
    for (line, text) in bytes.split(|byte| *byte == b'\n').enumerate() {
        let text = std::str::from_utf8(text)
            .map_err(|_| ReadError::NotUtf8 {
                path: path.into(),
                line: line as u64 + 1,
                column: 1,
            })?
            .trim();
        texts.extend((!text.is_empty()).then(|| text.to_owned()));
    }
    let labels = Labels::Absent(texts.len());
    let features = Features::Text(texts);
    Examples::from_files(&table_name(path), features, path, labels, path, &[])
}

fn parse(source: Source<'_>, options: &TextOptions) -> Result<Examples, ReadError> {
    let path = source.origin();
    let mut lines = Lines::new(source, options.delimiter, options.delimiter_is_sure)?;
    if !lines.advance()? {
        return Err(ReadError::empty(path));
    }
    let names = lines.names();
    let column = |wanted: &str| {
        names
            .iter()
            .position(|name| name == wanted)
            .ok_or_else(|| ReadError::MissingName {
                path: path.into(),
                wanted: if options.labelled {
                    format!("a header with the columns {TEXT} and {}", options.label)
                } else {
                    format!("a header with the column {TEXT}")
                },
                found: names.clone(),
            })
    };
    let text = column(TEXT)?;
    let label = options
        .labelled
        .then(|| column(&options.label))
        .transpose()?;
    for at in [Some(text), label].into_iter().flatten() {
        refuse_repeated(&names, &names[at], path)?;
    }
    let (mut texts, mut labels) = (Vec::new(), LabelReader::default());
    while lines.advance()? {
        if let Some(label) = label {
            let place = Column {
                column: label,
                name: Some(&names[label]),
            };
            labels.push(&lines, &place, options.labels)?;
        }
        let bytes = lines.record[text].to_vec();
        texts.push(String::from_utf8(bytes).map_err(|_| {
            let (line, column) = (lines.line, text + 1);
            ReadError::NotUtf8 {
                path: path.into(),
                line,
                column,
            }
        })?);
    }
    let (labels, class_names) = match label {
        Some(_) => labels.into_labels(options.labels, texts.len(), 1)?,
        None => (Labels::Absent(texts.len()), Vec::new()),
    };
    let features = Features::Text(texts);
    let name = table_name(path);
    let examples = Examples::from_files(&name, features, path, labels, path, &class_names)?;
    let used = |at: usize| at == text || Some(at) == label;
    let unused = (0..names.len()).filter(|at| !used(*at));
    Ok(examples.with_origin(Origin {
        columns: vec![names[text].clone()],
        label: label.map(|at| names[at].clone()),
        label_place: None,
        unused: unused.map(|at| names[at].clone()).collect(),
    }))
}
