//! The lines of a CSV file, with their true numbers.

use std::io::{self, Read};
use std::path::Path;

use csv::ByteRecord;

use crate::error::{Place, ReadError, excerpt};
use crate::examples::MAX_CLASSES;
use crate::source::{Source, stream_error};
use crate::table_start::{LOOK_BYTES, TableStart};

/// A column for error messages, counted from 0.
pub(crate) struct Column<'a> {
    pub(crate) column: usize,
    pub(crate) name: Option<&'a String>,
}

/// The lines of a table, all with as many fields as the first.
pub(crate) struct Lines<'a> {
    reader: csv::Reader<LastChunk<Source<'a>>>,
    path: &'a Path,
    fields: Option<usize>,
    pub(crate) record: ByteRecord,
    pub(crate) line: u64,
}

impl<'a> Lines<'a> {
    /// The lines behind a first one that only says what separates the fields, which goes before
    /// `delimiter`.
    ///
    /// # Errors
    /// What is no text in UTF-8, or separates its fields otherwise, and a file that cannot be read.
    pub(crate) fn new(
        mut source: Source<'a>,
        delimiter: u8,
        is_sure: bool,
    ) -> Result<Self, ReadError> {
        let path = source.origin();
        let start = TableStart::of(&source.peek(LOOK_BYTES)?, delimiter, is_sure, path)?;
        let source = source.with_carriage_returns(start.carriage_returns);
        let delimiter = start.delimiter;
        let mut builder = csv::ReaderBuilder::new();
        // Flexible: the number of fields is checked here, where the line is known.
        builder
            .has_headers(false)
            .flexible(true)
            .delimiter(delimiter);
        let reader = builder.from_reader(LastChunk {
            inner: source,
            start: 0,
            bytes: Vec::new(),
            quoting: Quoting::FieldStart,
            delimiter,
            ended: false,
        });
        let mut lines = Lines {
            reader,
            path,
            fields: None,
            record: ByteRecord::new(),
            line: 0,
        };
        if start.names_delimiter {
            lines.advance()?;
            lines.fields = None;
        }
        Ok(lines)
    }

    /// Reads the next line into `record`; `false` at the end.
    pub(crate) fn advance(&mut self) -> Result<bool, ReadError> {
        let more = self
            .reader
            .read_byte_record(&mut self.record)
            .map_err(|error| {
                let text = error.to_string();
                match error.into_kind() {
                    csv::ErrorKind::Io(error) => stream_error(self.path, error),
                    _ => ReadError::malformed(self.path, text),
                }
            })?;
        if !more {
            return Ok(false);
        }
        if self.is_open() {
            let newlines = self.newlines_inside() as usize;
            let line = self
                .reader
                .position()
                .line()
                .saturating_sub(newlines as u64);
            let what =
                format!("line {line}: a quotation mark begins a text there that no other one ends");
            return Err(ReadError::malformed(self.path, what));
        }
        self.line = self.line_of_record();
        let found = self.record.len();
        let expected = *self.fields.get_or_insert(found);
        if found != expected {
            let path = self.path.into();
            return Err(ReadError::RaggedRow {
                path,
                line: self.line,
                expected,
                found,
            });
        }
        Ok(true)
    }

    /// The line on which the record that was just read begins.
    ///
    /// `Position::line` of the record cannot be used: it is the line before the blank lines that
    /// were skipped, and with CR LF the line before that one. So this counts back from the end.
    fn line_of_record(&self) -> u64 {
        let end = self.reader.position();
        let inside = self.newlines_inside();
        let ended_by_newline = self.reader.get_ref().byte_before(end.byte()) == Some(b'\n');
        end.line()
            .saturating_sub(inside + u64::from(ended_by_newline))
    }

    fn newlines_inside(&self) -> u64 {
        let bytes = self.record.as_slice().iter();
        bytes.filter(|byte| **byte == b'\n').count() as u64
    }

    /// Whether the record is what follows a quotation mark that was never closed: up to the end.
    fn is_open(&self) -> bool {
        let read = self.reader.get_ref();
        read.ended && read.quoting == Quoting::Quoted && self.newlines_inside() > 0
    }

    /// The file.
    pub(crate) fn path(&self) -> &Path {
        self.path
    }

    /// The fields of this line as column names.
    pub(crate) fn names(&self) -> Vec<String> {
        let name = |field: &[u8]| String::from_utf8_lossy(field.trim_ascii()).into_owned();
        self.record.iter().map(name).collect()
    }

    /// A class label: a whole number from 0 on.
    pub(crate) fn class(&self, place: &Column<'_>, field: &[u8]) -> Result<i64, ReadError> {
        let text = String::from_utf8_lossy(field.trim_ascii());
        // 3.0 is a class as well: programs that work with floating point write it so.
        let parsed = text.parse::<i64>().ok().or_else(|| {
            let value: f64 = text.parse().ok()?;
            (value.fract() == 0.0 && value.abs() < 1e15).then_some(value as i64)
        });
        let Some(value) = parsed else {
            let wanted = "a class number";
            let remedy = match self.line {
                1 => {
                    "number the classes from 0 on; if the first line names the columns, say so \
                     (--csv-header yes)"
                }
                _ => {
                    "number the classes from 0 on; if another column has them, name it \
                     (`LabelColumn::Name`, --label-column)"
                }
            };
            return Err(self.cell_error(place, &text, wanted, remedy));
        };
        if !(0..MAX_CLASSES as i64).contains(&value) {
            return Err(ReadError::LabelOutOfRange {
                path: self.path.into(),
                place: Place::Cell {
                    line: self.line,
                    column: place.column + 1,
                },
                value: value.to_string(),
                allowed: format!("0 to {}", MAX_CLASSES - 1),
            });
        }
        Ok(value)
    }

    /// The error for memory that cannot hold more than `values` numbers.
    pub(crate) fn no_memory(&self, values: usize) -> ReadError {
        ReadError::OutOfMemory {
            path: self.path.into(),
            bytes: 2 * 4 * values as u64,
        }
    }

    pub(crate) fn not_a_number(&self, place: &Column<'_>, field: &[u8]) -> ReadError {
        let with_point: Vec<u8> = field
            .iter()
            .map(|byte| if *byte == b',' { b'.' } else { *byte })
            .collect();
        let remedy = match self.line {
            _ if field.contains(&b',') && number(&with_point).is_some() => {
                "write decimal points, not commas"
            }
            1 => "correct it; if the first line names the columns, say so (--csv-header yes)",
            _ => "correct it or remove the line",
        };
        self.cell_error(
            place,
            &String::from_utf8_lossy(field),
            "a finite number",
            remedy,
        )
    }

    fn cell_error(
        &self,
        place: &Column<'_>,
        text: &str,
        wanted: &'static str,
        remedy: &'static str,
    ) -> ReadError {
        ReadError::NotANumber {
            path: self.path.into(),
            line: self.line,
            column: place.column + 1,
            name: place.name.cloned(),
            text: excerpt(text),
            wanted,
            remedy,
        }
    }
}

/// What a byte of a table follows on, as far as quotation marks are concerned: one begins a quoted
/// field only at the start of a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Quoting {
    FieldStart,
    Plain,
    Quoted,
    /// Behind a mark in a quoted field: it ends the field, or is the first of two for one.
    Closed,
}

impl Quoting {
    fn after(self, byte: u8, delimiter: u8) -> Self {
        match (self, byte) {
            (Self::FieldStart | Self::Closed, b'"') => Self::Quoted,
            (Self::Quoted, b'"') => Self::Closed,
            (Self::Quoted, _) => Self::Quoted,
            (_, b'\n' | b'\r') => Self::FieldStart,
            (_, byte) if byte == delimiter => Self::FieldStart,
            _ => Self::Plain,
        }
    }
}

/// Passes bytes on and keeps the last chunk, in which the last record ends.
struct LastChunk<R> {
    inner: R,
    /// Offset of `bytes` in the stream.
    start: u64,
    bytes: Vec<u8>,
    /// The state at the end of the bytes so far.
    quoting: Quoting,
    delimiter: u8,
    /// Whether the end has been read.
    ended: bool,
}

impl<R> LastChunk<R> {
    fn byte_before(&self, offset: u64) -> Option<u8> {
        let at = offset.checked_sub(self.start + 1)?;
        self.bytes.get(usize::try_from(at).ok()?).copied()
    }
}

impl<R: Read> Read for LastChunk<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        self.ended |= count == 0 && !buffer.is_empty();
        let is_first = self.start == 0 && self.bytes.is_empty();
        let text = &buffer[..count];
        let text = match text.strip_prefix(b"\xef\xbb\xbf") {
            Some(behind) if is_first => behind,
            _ => text,
        };
        let next = |quoting: Quoting, byte: &u8| quoting.after(*byte, self.delimiter);
        self.quoting = text.iter().fold(self.quoting, next);
        if count > 0 {
            self.start += self.bytes.len() as u64;
            self.bytes.clear();
            self.bytes.extend_from_slice(&buffer[..count]);
        }
        Ok(count)
    }
}

/// A finite number.
pub(crate) fn number(field: &[u8]) -> Option<f32> {
    let text = std::str::from_utf8(field.trim_ascii()).ok()?;
    text.parse().ok().filter(|value: &f32| value.is_finite())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines_of(text: &str) -> Vec<(u64, String)> {
        let source = Source::from_bytes(text.as_bytes(), Path::new("x")).unwrap();
        let mut lines = Lines::new(source, b',', false).unwrap();
        let mut found = Vec::new();
        while lines.advance().unwrap() {
            found.push((lines.line, lines.names().concat()));
        }
        found
    }

    #[test]
    fn lines_are_numbered_as_an_editor_numbers_them() {
        for end in ["\n", "\r\n"] {
            for last in ["", end] {
                let text = ["a", "", "", "b", "\"c", "d\"", "e", "", "f"].join(end) + last;
                let numbers: Vec<u64> = lines_of(&text).iter().map(|(line, _)| *line).collect();
                assert_eq!(numbers, [1, 4, 5, 7, 9], "{text:?}");
            }
        }
        assert_eq!(lines_of("\n\na"), [(3, "a".to_owned())]);
    }

    /// Records that end exactly where a chunk of the reader ends, and around it.
    #[test]
    fn lines_are_right_across_chunks() {
        for length in 1..40 {
            let line = "x".repeat(length) + "\r\n";
            let text = line.repeat(20_000 / line.len());
            let numbers = lines_of(&text).into_iter().map(|(line, _)| line);
            assert!(numbers.eq(1..=(20_000 / line.len()) as u64), "{length}");
        }
    }
}
