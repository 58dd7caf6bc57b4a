//! What can be wrong with data, said with where it is and what to do about it.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use crate::foreign::known;

/// Where in a file or array a value stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Place {
    /// The example with this number, counted from 0.
    Row(usize),
    /// A line and column of a text file, both counted from 1.
    Cell {
        /// Line, counted from 1.
        line: u64,
        /// Column, counted from 1.
        column: usize,
    },
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Row(row) => write!(f, "example {row} (counted from 0)"),
            Place::Cell { line, column } => write!(f, "line {line}, column {column}"),
        }
    }
}

/// Why data could not be read or used. Every message names the file, the fault and the way out.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// The operating system refused to open or read the file.
    #[error("cannot read {}: {source}; check the path and its permissions", .path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },

    /// A file or directory that must be there is not.
    #[error("{}{}; check the path, or put the data there", .path.display(), missing(.looked_for))]
    Missing {
        /// The directory that was searched, or the file itself.
        path: PathBuf,
        /// The names that were looked for in that directory; none if `path` itself is missing.
        looked_for: Vec<String>,
    },

    /// An archive or table lacks a named part.
    #[error(
        "{}: needs {wanted}, but has {}; rename or add it",
        .path.display(), name_list(.found)
    )]
    MissingName {
        /// The file.
        path: PathBuf,
        /// What was looked for.
        wanted: String,
        /// The names that are there.
        found: Vec<String>,
    },

    /// The file ends before the data its header promises.
    #[error(
        "{}: truncated: {expected_bytes} bytes are needed, {found_bytes} are there; \
         download or write the file again", .path.display()
    )]
    Truncated {
        /// The file.
        path: PathBuf,
        /// Bytes the header promises, after decompression.
        expected_bytes: u64,
        /// Bytes that are there, after decompression.
        found_bytes: u64,
    },

    /// The file goes on after the data its header promises.
    #[error(
        "{}: data follows after the {expected_bytes} bytes that the header promises; \
         the header or the file is damaged", .path.display()
    )]
    Trailing {
        /// The file.
        path: PathBuf,
        /// Bytes the header promises, after decompression.
        expected_bytes: u64,
    },

    /// The header promises more than the file can hold, or more than is ever read.
    #[error(
        "{}: claims {} bytes, but at most {limit_bytes} are possible here; \
         the header is damaged", .path.display(), claimed(*.claimed_bytes)
    )]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// Bytes the header promises; `u64::MAX` when the product of the sizes overflows.
        claimed_bytes: u64,
        /// The most that a file of this size can hold, or the limit of the readers.
        limit_bytes: u64,
    },

    /// The first bytes do not belong to the format.
    #[error(
        "{}: not {format}: it {found}; check that this is the right file",
        .path.display()
    )]
    WrongMagic {
        /// The file.
        path: PathBuf,
        /// The format that was expected, with its magic.
        format: &'static str,
        /// What was found: "is HTML ..", or "starts with " and the first bytes in hexadecimal.
        found: String,
    },

    /// A header, archive or compressed stream that does not follow its format.
    #[error("{}: {what}; write the file again", .path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },

    /// Correct data that these readers do not take.
    #[error("{}: {what}; {remedy}", .path.display())]
    Unsupported {
        /// The file.
        path: PathBuf,
        /// What was found.
        what: String,
        /// What to do.
        remedy: &'static str,
    },

    /// There is not a single example.
    #[error("{}: holds no examples; at least one is needed", .path.display())]
    Empty {
        /// The file or directory.
        path: PathBuf,
    },

    /// Features and labels differ in number.
    #[error(
        "{} holds {examples} examples but {} holds {labels} labels; take two files of one set",
        .features_path.display(), .labels_path.display()
    )]
    CountMismatch {
        /// Where the features are from.
        features_path: PathBuf,
        /// Number of examples there.
        examples: usize,
        /// Where the labels are from.
        labels_path: PathBuf,
        /// Number of labels there.
        labels: usize,
    },

    /// Training and test examples have other shapes.
    #[error(
        "{}: the examples have the shape {shape:?}, the test examples {other:?} ({}); take two \
         sets of one kind", .path.display(), .other_path.display()
    )]
    ShapesDiffer {
        /// Where the first examples are from.
        path: PathBuf,
        /// The shape of one of them.
        shape: Vec<usize>,
        /// Where the others are from.
        other_path: PathBuf,
        /// The shape of one of those.
        other: Vec<usize>,
    },

    /// A table has other columns than the ones that are wanted.
    #[error(
        "{}: needs {}, but has {}; bring the columns of the same names, in any order",
        .path.display(), columns(.wanted, *.wanted_count), columns(.found, *.found_count)
    )]
    OtherColumns {
        /// The file.
        path: PathBuf,
        /// The names that are wanted; none if only their number is known.
        wanted: Vec<String>,
        /// How many that are.
        wanted_count: usize,
        /// The names that are there; none without a header.
        found: Vec<String>,
        /// How many columns there are.
        found_count: usize,
    },

    /// The first line of a table may be names or an example.
    #[error(
        "{}: line {line} may be a header or an example: {why}; say which it is (`CsvHeader`, on \
         the command line --csv-header yes or no)", .path.display()
    )]
    AmbiguousHeader {
        /// The file.
        path: PathBuf,
        /// Line, counted from 1.
        line: u64,
        /// What speaks for the one and the other.
        why: &'static str,
    },

    /// Compressed data that is far larger than data usually becomes.
    #[error(
        "{}: {compressed_bytes} compressed bytes claim to become {} of them, which data hardly \
         does; decompress the file yourself, or save it without compression (`numpy.savez`)",
        .path.display(), claimed(*.claimed_bytes)
    )]
    Bomb {
        /// The file.
        path: PathBuf,
        /// Bytes of the file, or of the archive's member.
        compressed_bytes: u64,
        /// Bytes after decompression.
        claimed_bytes: u64,
    },

    /// The data does not fit into memory.
    #[error(
        "{}: there is no memory for {}; read less of it, or use a machine with more memory",
        .path.display(), more(*.bytes)
    )]
    OutOfMemory {
        /// The file.
        path: PathBuf,
        /// Bytes that were asked for; 0 if that is not known.
        bytes: u64,
    },

    /// A class label that is not one of the classes.
    #[error(
        "{}: label {value} at {place} is out of range: allowed is {allowed}; \
         correct the label or the number of classes", .path.display()
    )]
    LabelOutOfRange {
        /// The file, or the name of the data set.
        path: PathBuf,
        /// Which label.
        place: Place,
        /// The label as found.
        value: String,
        /// The allowed labels, for example `0 to 9`.
        allowed: String,
    },

    /// A label that is neither a class number nor one-hot.
    #[error(
        "{}: the label of example {row} (counted from 0) is {label}, which is no class: neither a \
         whole number from 0 on nor a row of zeros with one 1; number the classes from 0 on",
        .path.display()
    )]
    NotClasses {
        /// The file, or the name of the data set.
        path: PathBuf,
        /// Which example.
        row: usize,
        /// Its label, shortened when it is long.
        label: String,
    },

    /// A line of a table has another number of fields than the first one.
    #[error(
        "{}: line {line} has {found} fields, the first line has {expected}; \
         correct that line (a stray quote or comma?)", .path.display()
    )]
    RaggedRow {
        /// The file.
        path: PathBuf,
        /// Line, counted from 1.
        line: u64,
        /// Number of fields of the first line.
        expected: usize,
        /// Number of fields of this line.
        found: usize,
    },

    /// A field of a table that should be a number is not.
    #[error(
        "{}: line {line}, column {column}{}: {text:?} is not {wanted}; {remedy}",
        .path.display(), column_name(.name)
    )]
    NotANumber {
        /// The file.
        path: PathBuf,
        /// Line, counted from 1.
        line: u64,
        /// Column, counted from 1.
        column: usize,
        /// Name of the column if the file has a header.
        name: Option<String>,
        /// The field, shortened when it is long.
        text: String,
        /// What it should be.
        wanted: &'static str,
        /// What to do.
        remedy: &'static str,
    },

    /// A feature or target that is NaN, infinite or beyond `f32`: every loss would be NaN.
    #[error(
        "{}: example {row}, value {column} (both counted from 0) is {value:e}; replace it or leave \
         the example out", .path.display()
    )]
    NotFinite {
        /// The file, or the name of the data set.
        path: PathBuf,
        /// The example, counted from 0.
        row: usize,
        /// Which of the example's values, in the order in which they are stored, from 0.
        column: usize,
        /// The value.
        value: f64,
    },

    /// A text field that is not UTF-8.
    #[error(
        "{}: line {line}, column {column}: the text is not UTF-8; \
         save the file in that encoding", .path.display()
    )]
    NotUtf8 {
        /// The file.
        path: PathBuf,
        /// Line, counted from 1.
        line: u64,
        /// Column, counted from 1.
        column: usize,
    },

    /// An image file that cannot be decoded.
    #[error("{}: unreadable image: {why}; replace or remove the file", .path.display())]
    BadImage {
        /// The image file.
        path: PathBuf,
        /// What the decoder said.
        why: String,
    },

    /// An image of another size or colour than the first one of the folder.
    #[error(
        "{}: is {found}, but the first image {} is {expected}; {remedy}",
        .path.display(), .first.display()
    )]
    ImageMismatch {
        /// The image file.
        path: PathBuf,
        /// What this image is, for example `28 x 28`.
        found: String,
        /// The first image that was read.
        first: PathBuf,
        /// The kind of the first image.
        expected: String,
        /// What to do.
        remedy: &'static str,
    },

    /// Shape and number of values of an array do not belong together.
    #[error("shape {shape:?} does not hold {values} values; pass the shape of the data")]
    ShapeMismatch {
        /// The shape that was asked for.
        shape: Vec<usize>,
        /// The number of values that are there.
        values: usize,
    },

    /// An example was asked for that does not exist.
    #[error("{name}: example {index} does not exist: there are {examples}, counted from 0")]
    IndexOutOfRange {
        /// Name of the data set.
        name: String,
        /// The index that was asked for.
        index: usize,
        /// The number of examples.
        examples: usize,
    },

    /// Numbers were asked of text, text of numbers, or class labels of values.
    #[error("{name}: {wanted} were asked for, but the data set holds {found}; ask for those")]
    WrongKind {
        /// Name of the data set.
        name: String,
        /// What was asked for.
        wanted: &'static str,
        /// What is there.
        found: &'static str,
    },

    /// A split that cannot be made.
    #[error("{name}: cannot split {examples} examples: {why}")]
    BadSplit {
        /// Name of the data set.
        name: String,
        /// Number of examples.
        examples: usize,
        /// What is wrong with the request.
        why: String,
    },
}

distribute_error::debug_as_message!(ReadError);

/// Names of a list, for a message.
fn columns(names: &[String], count: usize) -> String {
    match names {
        [] => format!("{count} columns without names"),
        names => format!("the columns {}", name_list(names)),
    }
}

#[cfg(feature = "core")]
distribute_core::wrap_errors!(Input: ReadError);

impl ReadError {
    /// Whether the same file would be refused again; only memory, and a disk or network that fails,
    /// may be there the next time.
    pub fn is_permanent(&self) -> bool {
        match self {
            Self::Io { source, .. } => distribute_error::lasts(source),
            Self::OutOfMemory { .. } => false,
            Self::Missing { .. }
            | Self::MissingName { .. }
            | Self::Truncated { .. }
            | Self::Trailing { .. }
            | Self::TooLarge { .. }
            | Self::WrongMagic { .. }
            | Self::Malformed { .. }
            | Self::Unsupported { .. }
            | Self::Empty { .. }
            | Self::CountMismatch { .. }
            | Self::ShapesDiffer { .. }
            | Self::AmbiguousHeader { .. }
            | Self::Bomb { .. }
            | Self::LabelOutOfRange { .. }
            | Self::RaggedRow { .. }
            | Self::NotANumber { .. }
            | Self::NotFinite { .. }
            | Self::NotUtf8 { .. }
            | Self::BadImage { .. }
            | Self::ImageMismatch { .. }
            | Self::ShapeMismatch { .. }
            | Self::IndexOutOfRange { .. }
            | Self::WrongKind { .. }
            | Self::OtherColumns { .. }
            | Self::NotClasses { .. }
            | Self::BadSplit { .. } => true,
        }
    }

    pub(crate) fn io(path: &Path, source: io::Error) -> Self {
        ReadError::Io {
            path: path.to_owned(),
            source,
        }
    }

    /// `start` holds the first bytes of the file.
    pub(crate) fn wrong_magic(path: &Path, format: &'static str, start: &[u8]) -> Self {
        let found = match known(start) {
            Some(what) => format!("is {what}"),
            None => {
                let bytes: Vec<_> = start.iter().map(|byte| format!("{byte:02x}")).collect();
                format!("starts with {}", bytes.join(" "))
            }
        };
        ReadError::WrongMagic {
            path: path.to_owned(),
            format,
            found,
        }
    }

    pub(crate) fn malformed(path: &Path, what: impl Into<String>) -> Self {
        ReadError::Malformed {
            path: path.to_owned(),
            what: what.into(),
        }
    }

    pub(crate) fn empty(path: &Path) -> Self {
        ReadError::Empty {
            path: path.to_owned(),
        }
    }
}

/// At most this many names of a hostile or just wide file go into a message.
const NAMES_SHOWN: usize = 12;
/// At most this many characters of one field go into a message.
const TEXT_SHOWN: usize = 40;

/// The beginning of `text`, short enough for a message.
pub(crate) fn excerpt(text: &str) -> String {
    match text.char_indices().nth(TEXT_SHOWN) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}

fn more(bytes: u64) -> String {
    match bytes {
        0 => "it".to_owned(),
        bytes => format!("{bytes} bytes of it"),
    }
}

fn claimed(bytes: u64) -> String {
    match bytes {
        u64::MAX => "more than 2^64".to_owned(),
        bytes => bytes.to_string(),
    }
}

/// A name from a file, short and without control characters.
fn printable(name: &str) -> String {
    excerpt(name).escape_debug().to_string()
}

fn missing(looked_for: &[String]) -> String {
    match looked_for {
        [] => " does not exist".to_owned(),
        names => format!(" has no {}", names.join(" or ")),
    }
}

fn name_list(names: &[String]) -> String {
    if names.is_empty() {
        return "nothing".to_owned();
    }
    let shown: Vec<_> = names
        .iter()
        .take(NAMES_SHOWN)
        .map(|name| printable(name))
        .collect();
    let rest = names.len().saturating_sub(NAMES_SHOWN);
    match rest {
        0 => shown.join(", "),
        _ => format!("{} and {rest} more", shown.join(", ")),
    }
}

fn column_name(name: &Option<String>) -> String {
    name.as_ref()
        .map(|name| format!(" ({})", printable(name)))
        .unwrap_or_default()
}
