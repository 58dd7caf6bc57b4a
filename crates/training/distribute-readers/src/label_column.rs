//! The labels of a table: class numbers, target values, or names of classes.

use std::collections::BTreeMap;

use crate::array::{Array, Values};
use crate::csv_options::CsvLabels;
use crate::error::{ReadError, excerpt};
use crate::examples::{Labels, MAX_CLASSES};
use crate::header::MISSING;
use crate::lines::{Column, Lines, number};

/// The labels that were read so far.
#[derive(Default)]
pub(crate) struct LabelReader {
    classes: Vec<i64>,
    targets: Vec<f32>,
    /// The class of each name, in the order in which they came.
    names: BTreeMap<String, i64>,
    /// The line and the text of the first name.
    first: Option<(u64, String)>,
    /// A number that is no class was read.
    has_values: bool,
}

impl LabelReader {
    pub(crate) fn try_reserve(&mut self) -> Result<(), std::collections::TryReserveError> {
        self.classes.try_reserve(1)?;
        self.targets.try_reserve(1)
    }

    /// Takes the label of a line over.
    pub(crate) fn push(
        &mut self,
        line: &Lines<'_>,
        place: &Column<'_>,
        labels: CsvLabels,
    ) -> Result<(), ReadError> {
        let field = &line.record[place.column];
        match labels {
            CsvLabels::Classes => self.classes.push(line.class(place, field)?),
            CsvLabels::Numbers => self.targets.push(value(line, place)?),
            CsvLabels::Detect => self.push_any(line, place)?,
        }
        Ok(())
    }

    /// Takes one of several target values of a line over.
    pub(crate) fn push_value(
        &mut self,
        line: &Lines<'_>,
        place: &Column<'_>,
    ) -> Result<(), ReadError> {
        self.targets.push(value(line, place)?);
        Ok(())
    }

    fn push_any(&mut self, line: &Lines<'_>, place: &Column<'_>) -> Result<(), ReadError> {
        let field = &line.record[place.column];
        let text = String::from_utf8_lossy(field.trim_ascii());
        let is_missing = MISSING.contains(&&*text.to_ascii_lowercase());
        match (number(field), &self.first) {
            (Some(value), None) => {
                let is_class = value.fract() == 0.0 && (0.0..MAX_CLASSES as f32).contains(&value);
                self.has_values |= !is_class;
                self.classes.push(value as i64);
                self.targets.push(value);
            }
            (Some(_), Some((first, name))) => {
                let name = name.clone();
                return Err(mixed(line, place, *first, &name));
            }
            (None, None) if is_missing || !self.classes.is_empty() => {
                line.class(place, field)?;
            }
            (None, Some(_)) if is_missing => {
                line.class(place, field)?;
            }
            (None, first) => {
                if first.is_none() {
                    self.first = Some((line.line, text.to_string()));
                }
                let next = self.names.len() as i64;
                let class = *self.names.entry(text.into_owned()).or_insert(next);
                self.classes.push(class);
            }
        }
        Ok(())
    }

    /// The labels, and the names of the classes if they have some. `width` is the number of
    /// target columns.
    pub(crate) fn into_labels(
        self,
        labels: CsvLabels,
        rows: usize,
        width: usize,
    ) -> Result<(Labels, Vec<String>), ReadError> {
        let values = |targets, shape| {
            let array = Array::new(shape, Values::F32(targets))?;
            Ok((Labels::Numbers(array), Vec::new()))
        };
        if width > 1 {
            return values(self.targets, vec![rows, width]);
        }
        if labels == CsvLabels::Numbers || self.has_values {
            return values(self.targets, vec![rows]);
        }
        // The order of the alphabet, whatever the order of the lines is.
        let mut places = vec![0; self.names.len()];
        for (place, class) in self.names.values().enumerate() {
            places[*class as usize] = place as i64;
        }
        let mut classes = self.classes;
        if !places.is_empty() {
            for class in &mut classes {
                *class = places[*class as usize];
            }
        }
        Ok((Labels::Classes(classes), self.names.into_keys().collect()))
    }
}

fn value(line: &Lines<'_>, place: &Column<'_>) -> Result<f32, ReadError> {
    let field = &line.record[place.column];
    number(field).ok_or_else(|| line.not_a_number(place, field))
}

/// The error for a column of names and numbers, of which `first` is the line of the first name.
fn mixed(line: &Lines<'_>, place: &Column<'_>, first: u64, name: &str) -> ReadError {
    let remedy = match first {
        1 => {
            "name all classes or number all of them from 0 on; if the first line names the \
             columns, say so (--csv-header yes)"
        }
        _ => "name all classes or number all of them from 0 on",
    };
    ReadError::NotANumber {
        path: line.path().into(),
        line: first,
        column: place.column + 1,
        name: place.name.cloned(),
        text: excerpt(name),
        wanted: "a class number, as in other lines",
        remedy,
    }
}
