//! The lines of a CSV file, with their true numbers.

use std::io::{self, Read};
use std::path::Path;

use csv::ByteRecord;

use crate::error::{Place, ReadError, excerpt};
use crate::examples::MAX_CLASSES;
use crate::source::{Source, stream_error};

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
    pub(crate) fn new(source: Source<'a>, delimiter: u8) -> Self {
        let path = source.origin();
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
        });
        Lines {
            reader,
            path,
            fields: None,
            record: ByteRecord::new(),
            line: 0,
        }
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
        let inside = self
            .record
            .as_slice()
            .iter()
            .filter(|&&byte| byte == b'\n')
            .count() as u64;
        let ended_by_newline = self.reader.get_ref().byte_before(end.byte()) == Some(b'\n');
        end.line()
            .saturating_sub(inside + u64::from(ended_by_newline))
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
                1 => "number the classes from 0 on, or say that the first line is a header",
                _ => "number the classes from 0 on, or ask for values as labels",
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
        let remedy = match self.line {
            1 => "correct it, or say that the first line is a header",
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

/// Passes bytes on and keeps the last chunk, in which the last record ends.
struct LastChunk<R> {
    inner: R,
    /// Offset of `bytes` in the stream.
    start: u64,
    bytes: Vec<u8>,
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
        let mut lines = Lines::new(source, b',');
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
