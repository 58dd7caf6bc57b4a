//! Whether the first line of a table names its columns.

use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::path::Path;

use csv::ByteRecord;

use crate::error::ReadError;
use crate::lines::number;

/// What stands for a value that is not there, in lower case.
pub(super) const MISSING: [&str; 12] = [
    "", "na", "n/a", "nan", "null", "none", "nil", "?", "-", "--", "inf", "-inf",
];
/// Fewer columns rise or fall too often by chance.
const MIN_COLUMNS: usize = 3;

/// Whether the first line is a header, as far as it says itself.
pub(super) fn is_header(record: &ByteRecord, line: u64, path: &Path) -> Result<bool, ReadError> {
    let text = |field: &[u8]| String::from_utf8_lossy(field.trim_ascii()).to_ascii_lowercase();
    if record.iter().any(|field| field.trim_ascii() == b"label") {
        return Ok(true);
    }
    if record.iter().any(|field| number(field).is_some()) {
        return Ok(false);
    }
    let names: BTreeSet<String> = record.iter().map(text).collect();
    if names.iter().all(|name| MISSING.contains(&name.as_str())) {
        let why = "its fields stand for missing values";
        return Err(ambiguous(path, line, why));
    }
    if names.len() < record.len() {
        let why = "it has no number, but the same name twice";
        return Err(ambiguous(path, line, why));
    }
    Ok(true)
}

pub(super) fn ambiguous(path: &Path, line: u64, why: &'static str) -> ReadError {
    ReadError::AmbiguousHeader {
        path: path.into(),
        line,
        why,
    }
}

/// What makes a first line of numbers look like names, as long as no other line looks so.
#[derive(Debug)]
pub(super) struct HeaderCheck {
    /// Its line, counted from 1.
    pub(super) first: u64,
    others: bool,
    /// Its whole numbers rise or fall from column to column, unlike every other line's.
    monotonic: Option<Ordering>,
    /// It has no fraction where each other line has nothing else.
    whole: bool,
}

impl HeaderCheck {
    pub(super) fn new(record: &ByteRecord, line: u64) -> Self {
        Self {
            first: line,
            others: false,
            monotonic: direction(record),
            whole: record.iter().all(|field| integer(field).is_some()),
        }
    }

    /// Takes a line into account; the first one is left out.
    pub(super) fn line(&mut self, record: &ByteRecord, label: usize, line: u64) {
        if line == self.first || !(self.monotonic.is_some() || self.whole) {
            return;
        }
        self.others = true;
        self.monotonic = self.monotonic.filter(|own| direction(record) != Some(*own));
        let mut features = record.iter().enumerate().filter(|(at, _)| *at != label);
        self.whole = self.whole && features.all(|(_, field)| integer(field).is_none());
    }

    pub(super) fn why(&self) -> Option<&'static str> {
        match (self.others, self.monotonic, self.whole) {
            (true, Some(_), _) => {
                Some("its whole numbers rise or fall from column to column, as in no other line")
            }
            (true, _, true) => Some("it holds whole numbers above columns of fractions"),
            _ => None,
        }
    }
}

/// A whole number that is written as one.
fn integer(field: &[u8]) -> Option<i64> {
    std::str::from_utf8(field.trim_ascii()).ok()?.parse().ok()
}

/// Whether whole numbers rise (each is less than the next) or fall.
fn direction(record: &ByteRecord) -> Option<Ordering> {
    let numbers: Option<Vec<i64>> = record.iter().map(integer).collect();
    let numbers = numbers.filter(|numbers| numbers.len() >= MIN_COLUMNS)?;
    let all = |order: Ordering| numbers.is_sorted_by(|a, b| a.cmp(b) == order);
    [Ordering::Less, Ordering::Greater]
        .into_iter()
        .find(|order| all(*order))
}
