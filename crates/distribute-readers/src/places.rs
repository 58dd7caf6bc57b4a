//! Where the features and the label stand in a line of a table.

use std::path::Path;

use crate::csv_options::{CsvColumns, CsvOptions, LabelColumn};
use crate::error::ReadError;
use crate::examples::Origin;

/// The places of what is read of a line, counted from 0.
pub(crate) struct Places {
    /// In the order in which the features are read.
    pub(crate) features: Vec<usize>,
    pub(crate) label: Option<usize>,
}

impl Places {
    /// In a table of `count` columns, whose names are those of its header.
    pub(crate) fn of(
        names: Option<&[String]>,
        count: usize,
        options: &CsvOptions,
        path: &Path,
    ) -> Result<Self, ReadError> {
        let places = match (&options.columns, names) {
            (CsvColumns::All, _) => {
                let label = label(names, count, &options.label, path)?;
                let features = (0..count).filter(|at| Some(*at) != label).collect();
                Self { features, label }
            }
            (CsvColumns::Count(wanted), _) => counted(*wanted, &[], names, count, options, path)?,
            (CsvColumns::Named { features, .. }, None) => {
                counted(features.len(), features, names, count, options, path)?
            }
            (CsvColumns::Named { features, label }, Some(names)) => {
                let wanted = (&features[..], label.as_deref());
                named(wanted, names, options, path)?
            }
        };
        match places.features.is_empty() {
            false => Ok(places),
            true => {
                let what = "the first line has one field: a label, but no feature";
                Err(ReadError::malformed(path, what))
            }
        }
    }

    /// What the header says of them.
    pub(crate) fn origin(&self, names: Option<&[String]>) -> Origin {
        let Some(names) = names else {
            return Origin::default();
        };
        let used = |at: &usize| self.features.contains(at) || self.label == Some(*at);
        let unused = (0..names.len()).filter(|at| !used(at));
        Origin {
            columns: self.features.iter().map(|at| names[*at].clone()).collect(),
            label: self.label.map(|at| names[at].clone()),
            unused: unused.map(|at| names[at].clone()).collect(),
        }
    }
}

fn position(names: Option<&[String]>, name: &str) -> Option<usize> {
    names.and_then(|names| names.iter().position(|it| it == name))
}

/// The label of a table whose other columns are features.
fn label(
    names: Option<&[String]>,
    count: usize,
    wanted: &LabelColumn,
    path: &Path,
) -> Result<Option<usize>, ReadError> {
    let last = count.checked_sub(1);
    match wanted {
        LabelColumn::Absent => Ok(None),
        LabelColumn::Last => Ok(last),
        LabelColumn::Detect => Ok(position(names, "label").or(last)),
        LabelColumn::Name(name) => {
            let found = position(names, name).ok_or_else(|| ReadError::MissingName {
                path: path.into(),
                wanted: match names {
                    Some(_) => format!("a column named {name:?}"),
                    None => format!("a header with a column named {name:?}"),
                },
                found: names.unwrap_or_default().to_vec(),
            })?;
            Ok(Some(found))
        }
    }
}

/// So many features in the order in which they stand, with a label or, if it does not matter, with
/// or without one.
fn counted(
    wanted: usize,
    wanted_names: &[String],
    names: Option<&[String]>,
    count: usize,
    options: &CsvOptions,
    path: &Path,
) -> Result<Places, ReadError> {
    let without_label = options.label == LabelColumn::Absent;
    let label = match without_label && count == wanted {
        true => None,
        false if without_label => label(names, count, &LabelColumn::Detect, path)?,
        false => label(names, count, &options.label, path)?,
    };
    let features: Vec<usize> = (0..count).filter(|at| Some(*at) != label).collect();
    if features.len() != wanted {
        return Err(ReadError::OtherColumns {
            path: path.into(),
            wanted: wanted_names.to_vec(),
            wanted_count: wanted + usize::from(!without_label),
            found: names.unwrap_or_default().to_vec(),
            found_count: count,
        });
    }
    let label = label.filter(|_| !without_label);
    Ok(Places { features, label })
}

/// The features of these names, and the label of its name.
fn named(
    (features, label_name): (&[String], Option<&str>),
    names: &[String],
    options: &CsvOptions,
    path: &Path,
) -> Result<Places, ReadError> {
    let other = || ReadError::OtherColumns {
        path: path.into(),
        wanted: features.to_vec(),
        wanted_count: features.len(),
        found: names.to_vec(),
        found_count: names.len(),
    };
    let places = features.iter().map(|name| position(Some(names), name));
    let features: Vec<usize> = places.collect::<Option<_>>().ok_or_else(other)?;
    let label = match (&options.label, label_name) {
        (LabelColumn::Detect, Some(name)) => {
            let own = position(Some(names), name);
            let found = own.or_else(|| position(Some(names), "label"));
            let missing = || ReadError::MissingName {
                path: path.into(),
                wanted: format!("the label in a column named {name:?}"),
                found: names.to_vec(),
            };
            Some(found.ok_or_else(missing)?)
        }
        (wanted, _) => label(Some(names), names.len(), wanted, path)?,
    };
    match label.is_some_and(|label| features.contains(&label)) {
        true => Err(other()),
        false => Ok(Places { features, label }),
    }
}
