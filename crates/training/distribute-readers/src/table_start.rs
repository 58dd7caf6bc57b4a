//! What the beginning of a table says: whether it is text at all, what separates its fields, and
//! how its lines end.

use std::path::Path;

use crate::error::ReadError;
use crate::foreign::{is_utf16, known_in_text};

/// How many bytes are looked at.
pub(crate) const LOOK_BYTES: usize = 1 << 14;

/// The result.
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
    /// Of the first bytes of a file; `delimiter` is what its reader was told, and whether that is
    /// sure.
    pub(crate) fn of(
        start: &[u8],
        delimiter: u8,
        is_sure: bool,
        path: &Path,
    ) -> Result<Self, ReadError> {
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
        if is_sure || delimiter != b',' {
            return Ok(found(delimiter, false));
        }
        let unquoted: Vec<u8> = unquoted(first).collect();
        let count = |wanted: u8| unquoted.iter().filter(|byte| **byte == wanted).count();
        let commas = if are_decimal(&unquoted) {
            0
        } else {
            count(b',')
        };
        let mut others = [b';', b'\t', b'|'].into_iter();
        let other = others.find(|other| match count(*other) {
            0 => false,
            // As many decimal commas as that are no surprise: the label has none.
            others => others > commas && (commas > 0 || others >= count(b',')),
        });
        match other {
            None => Ok(found(delimiter, false)),
            Some(other) => Err(wrong_delimiter(other, path)),
        }
    }

    /// Refuses what is no text in UTF-8.
    pub(crate) fn refuse_foreign(start: &[u8], path: &Path) -> Result<(), ReadError> {
        let (what, remedy) = match known_in_text(start) {
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

/// Whether all commas of a line stand between two digits, as in numbers of some countries.
fn are_decimal(line: &[u8]) -> bool {
    let digit = |at: Option<usize>| {
        let byte = at.and_then(|at| line.get(at));
        byte.is_some_and(u8::is_ascii_digit)
    };
    let mut commas = (0..line.len()).filter(|at| line[*at] == b',');
    commas.all(|at| digit(at.checked_sub(1)) && digit(Some(at + 1)))
}

fn wrong_delimiter(found: u8, path: &Path) -> ReadError {
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
    ReadError::Unsupported {
        path: path.into(),
        what: format!("the fields of its first line are separated by {found}, not by commas"),
        remedy,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn start(text: &[u8], delimiter: u8) -> Result<TableStart, String> {
        TableStart::of(text, delimiter, false, Path::new("a.csv"))
            .map_err(|error| error.to_string())
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
    fn a_comma_is_not_doubted_for_as_many_others_or_if_it_is_asked_for() {
        for text in ["a|b,label\n", "a|b,c|d,label\n", "x;y,z\tw,label\n"] {
            assert_eq!(
                start(text.as_bytes(), b',').unwrap().delimiter,
                b',',
                "{text}"
            );
        }
        start(b"a|b|c,label\n", b',').unwrap_err();
        let sure = TableStart::of(b"a|b|c,label\n", b',', true, Path::new("a.csv"));
        assert_eq!(sure.unwrap().delimiter, b',');
        assert_eq!(start(b"a|b;label\n", b';').unwrap().delimiter, b';');
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
