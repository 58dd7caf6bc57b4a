//! CSV tables of texts and their classes.

use std::path::Path;

use crate::error::ReadError;
use crate::examples::{Examples, Features, Labels};
use crate::lines::{Column, Lines};
use crate::source::Source;
use crate::table::table_name;

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
    parse(Source::open(path.as_ref())?)
}

/// Reads a table of texts from memory; `origin` names the data in errors.
///
/// # Errors
/// As [`read_text_csv`].
pub fn parse_text_csv(bytes: &[u8], origin: impl AsRef<Path>) -> Result<Examples, ReadError> {
    parse(Source::from_bytes(bytes, origin.as_ref())?)
}

fn parse(source: Source<'_>) -> Result<Examples, ReadError> {
    let path = source.origin();
    let mut lines = Lines::new(source, b',');
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
                wanted: format!("a header with the columns {TEXT} and {LABEL}"),
                found: names.clone(),
            })
    };
    let (text, label) = (column(TEXT)?, column(LABEL)?);
    let (mut texts, mut classes) = (Vec::new(), Vec::new());
    while lines.advance()? {
        let place = Column {
            column: label,
            name: Some(&names[label]),
        };
        classes.push(lines.class(&place, &lines.record[label])?);
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
    let (features, labels) = (Features::Text(texts), Labels::Classes(classes));
    Examples::from_files(&table_name(path), (features, path), (labels, path), &[])
}
