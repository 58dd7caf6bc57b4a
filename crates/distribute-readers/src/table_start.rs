//! What the beginning of a table says: whether it is text at all, what separates its fields, and
//! how its lines end.

use std::path::Path;

use crate::error::ReadError;
use crate::foreign::{is_utf16, known};

/// How many bytes are looked at.
pub(crate) const LOOK_BYTES: usize = 1 << 14;

/// What was found there.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TableStart {
    /// The byte between two fields.
    pub(crate) delimiter: u8,
    /// The first line says what separates the fields (`sep=;`) and holds nothing else.
    pub(crate) names_delimiter: bool,
    /// The lines end with a carriage return alone.
    pub(crate) carriage_returns: bool,
}

impl TableStart {
    /// Of the first bytes of a file; `delimiter` is what its reader was told.
    pub(crate) fn of(start: &[u8], delimiter: u8, path: &Path) -> Result<Self, ReadError> {
        Self::refuse_foreign(start, path)?;
        let text = start.strip_prefix(b"\xef\xbb\xbf").unwrap_or(start);
        let mut lines = text.split(|byte| matches!(byte, b'\n' | b'\r'));
        let first = lines.find(|line| !line.is_empty()).unwrap_or_default();
        let carriage_returns = text.contains(&b'\r') && !text.contains(&b'\n');
        let found = |delimiter, names_delimiter| Self {
            delimiter,
            names_delimiter,
            carriage_returns,
        };
        if let [b's' | b'S', b'e' | b'E', b'p' | b'P', b'=', named] = first {
            return Ok(found(*named, true));
        }
        let count = |wanted: u8| unquoted(first).filter(|byte| *byte == wanted).count();
        let other = [b';', b'\t', b'|'].into_iter().find(|other| {
            *other != delimiter && count(*other) > 0 && count(*other) >= count(delimiter)
        });
        match other {
            None => Ok(found(delimiter, false)),
            Some(other) => Err(wrong_delimiter(other, delimiter, path)),
        }
    }

    /// Refuses what is no text in UTF-8.
    pub(crate) fn refuse_foreign(start: &[u8], path: &Path) -> Result<(), ReadError> {
        let (what, remedy) = match known(start) {
            None => return Ok(()),
            Some(_) if is_utf16(start) => (
                "is text in UTF-16".to_owned(),
                "save it as UTF-8, or convert it: iconv -f UTF-16 -t UTF-8 OLD.csv > NEW.csv",
            ),
            Some(what) => (
                format!("is no table of text: it is {what}"),
                "take the CSV file that is meant",
            ),
        };
        Err(ReadError::Unsupported {
            path: path.into(),
            what,
            remedy,
        })
    }
}

/// The bytes of a line outside of quotation marks.
fn unquoted(line: &[u8]) -> impl Iterator<Item = u8> + '_ {
    let mut quoted = false;
    line.iter().copied().filter(move |byte| {
        quoted ^= *byte == b'"';
        !quoted
    })
}

fn wrong_delimiter(found: u8, wanted: u8, path: &Path) -> ReadError {
    let (found, remedy) = match found {
        b';' => (
            "semicolons",
            "say so (`CsvOptions::delimiter`, --csv-delimiter ';')",
        ),
        b'\t' => (
            "tabs",
            "say so (`CsvOptions::delimiter`, --csv-delimiter tab)",
        ),
        _ => (
            "vertical bars",
            "say so (`CsvOptions::delimiter`, --csv-delimiter '|')",
        ),
    };
    let wanted = match wanted {
        b',' => "commas".to_owned(),
        b'\t' => "tabs".to_owned(),
        other => format!("`{}`", char::from(other)),
    };
    ReadError::Unsupported {
        path: path.into(),
        what: format!("the fields of its first line are separated by {found}, not by {wanted}"),
        remedy,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn start(text: &[u8], delimiter: u8) -> Result<TableStart, String> {
        TableStart::of(text, delimiter, Path::new("a.csv")).map_err(|error| error.to_string())
    }

    #[test]
    fn another_delimiter_is_named_with_the_flag_that_takes_it() {
        for (text, flag) in [
            ("a;b;label\n1;2;0\n", "--csv-delimiter ';'"),
            ("1,5;2,5;0\n", "--csv-delimiter ';'"),
            ("a\tb\tlabel\n", "--csv-delimiter tab"),
            ("a|b|label\r", "--csv-delimiter '|'"),
        ] {
            assert!(
                start(text.as_bytes(), b',').unwrap_err().contains(flag),
                "{text}"
            );
        }
        let with_names = start(b"\"x;y\",\"a;b\",label\n", b',').unwrap();
        assert_eq!(with_names.delimiter, b',');
        assert!(start(b"a,b,label\n", b';').is_ok());
        assert_eq!(start(b"a;b\n", b';').unwrap().delimiter, b';');
    }

    #[test]
    fn a_first_line_for_spreadsheets_decides_and_line_ends_are_seen() {
        let found = start(b"\xef\xbb\xbfsep=;\r\na;b\r\n", b',').unwrap();
        assert_eq!((found.delimiter, found.names_delimiter), (b';', true));
        assert!(!found.carriage_returns);
        assert!(start(b"a,b\r1,0\r", b',').unwrap().carriage_returns);
        assert!(!start(b"a,b", b',').unwrap().carriage_returns);
    }
}
