//! Where the features and the label stand in a line of a table.

use std::path::Path;

use crate::csv_options::{CsvColumns, CsvOptions, LabelColumn, LabelPlace};
use crate::error::ReadError;
use crate::examples::Origin;

/// The places of what is read of a line, counted from 0.
pub(crate) struct Places {
    /// In the order in which the features are read.
    pub(crate) features: Vec<usize>,
    pub(crate) label: Option<usize>,
    /// How many features stand before the label, in the order in which they are read.
    label_place: Option<usize>,
}

impl Places {
    fn new(features: Vec<usize>, label: Option<usize>) -> Self {
        let before = |label| features.iter().filter(|at| **at < label).count();
        // In another order than the table's the label has no place.
        let label_place = label.filter(|_| features.is_sorted()).map(before);
        Self {
            features,
            label,
            label_place,
        }
    }

    /// In a table of `count` columns, named by its header.
    pub(crate) fn of(
        names: Option<&[String]>,
        count: usize,
        options: &CsvOptions,
        path: &Path,
    ) -> Result<Self, ReadError> {
        let mut places = match (&options.columns, names) {
            (CsvColumns::All, _) => {
                let label = label(names, count, &options.label, path)?;
                let features = (0..count).filter(|at| Some(*at) != label).collect();
                Self::new(features, label)
            }
            (CsvColumns::Count(wanted), _) => counted(*wanted, &[], names, count, options, path)?,
            (CsvColumns::Named { features, .. }, None) => {
                counted(features.len(), features, names, count, options, path)?
            }
            (CsvColumns::Named { features, label }, Some(names)) => {
                named(features, label.as_deref(), names, options, path)?
            }
        };
        if let (CsvColumns::Named { .. }, LabelPlace::After(place)) =
            (&options.columns, options.label_place)
        {
            // It belongs to the order of those names, whatever the order in this table.
            places.label_place = places.label.map(|_| place);
        }
        if places.features.is_empty() {
            let what = "the first line has one field: a label, but no feature";
            Err(ReadError::malformed(path, what))
        } else {
            Ok(places)
        }
    }

    /// What the header says of them, and where the label stands.
    pub(crate) fn origin(&self, names: Option<&[String]>) -> Origin {
        let label_place = self.label_place;
        let Some(names) = names else {
            return Origin {
                label_place,
                ..Origin::default()
            };
        };
        let used = |at: &usize| self.features.contains(at) || self.label == Some(*at);
        let unused = (0..names.len()).filter(|at| !used(at));
        Origin {
            columns: self.features.iter().map(|at| names[*at].clone()).collect(),
            label: self.label.map(|at| names[at].clone()),
            label_place,
            unused: unused.map(|at| names[at].clone()).collect(),
        }
    }
}

fn position(names: Option<&[String]>, name: &str) -> Option<usize> {
    names.and_then(|names| names.iter().position(|it| it == name))
}

/// How often a name stands there.
fn count_of(names: &[String], name: &str) -> usize {
    names.iter().filter(|it| *it == name).count()
}

/// Refuses a name that several columns have, of which one is meant.
pub(crate) fn refuse_repeated(names: &[String], name: &str, path: &Path) -> Result<(), ReadError> {
    match count_of(names, name) {
        0 | 1 => Ok(()),
        found => Err(repeated(name, found, 1, path)),
    }
}

fn repeated(name: &str, found: usize, wanted: usize, path: &Path) -> ReadError {
    let name = match name {
        "" => "no name".to_owned(),
        name => format!("the name {name:?}"),
    };
    ReadError::Unsupported {
        path: path.into(),
        what: format!("{found} columns have {name}, and {wanted} of them is wanted"),
        remedy: "give each column a name of its own, or leave out the columns that are not meant",
    }
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
        LabelColumn::Detect => {
            refuse_repeated(names.unwrap_or_default(), "label", path)?;
            Ok(position(names, "label").or(last))
        }
        LabelColumn::Name(name) => {
            refuse_repeated(names.unwrap_or_default(), name, path)?;
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

/// This many features in the order in which they stand, with a label or, if it does not matter,
/// with or without one.
fn counted(
    wanted: usize,
    wanted_names: &[String],
    names: Option<&[String]>,
    count: usize,
    options: &CsvOptions,
    path: &Path,
) -> Result<Places, ReadError> {
    let without_label = options.label == LabelColumn::Absent;
    let by_place = matches!(options.label, LabelColumn::Absent | LabelColumn::Detect);
    let label = match (names, options.label_place) {
        _ if without_label && count == wanted => None,
        (None, LabelPlace::After(features)) if by_place => Some(features),
        _ if without_label => label(names, count, &LabelColumn::Detect, path)?,
        _ => label(names, count, &options.label, path)?,
    };
    let features: Vec<usize> = (0..count).filter(|at| Some(*at) != label).collect();
    if features.len() != wanted || label.is_some_and(|label| label >= count) {
        return Err(ReadError::OtherColumns {
            path: path.into(),
            wanted: wanted_names.to_vec(),
            wanted_count: wanted + usize::from(!without_label),
            found: names.unwrap_or_default().to_vec(),
            found_count: count,
        });
    }
    let is_unknown = options.label_place == LabelPlace::Unknown && by_place;
    if names.is_none() && label.is_some() && is_unknown {
        return Err(unknown_place(path));
    }
    Ok(Places::new(features, label.filter(|_| !without_label)))
}

/// The error for a model that does not say which of its columns was the label.
fn unknown_place(path: &Path) -> ReadError {
    ReadError::Unsupported {
        path: path.into(),
        what: "which column is the label cannot be told by its place, which the model does not say"
            .to_owned(),
        remedy: "put a first line with the names of the columns there; or leave out the column of \
                 the label to predict",
    }
}

/// The features of these names, and the label of its name. Of columns of one name the first stands
/// for the first, the second for the second, and so on.
fn named(
    features: &[String],
    label_name: Option<&str>,
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
    let own = own_label(features, label_name, names, &options.label);
    let place = match options.label_place {
        LabelPlace::After(place) => place.min(features.len()),
        LabelPlace::Unknown if own.is_some_and(|own| count_of(features, own) > 0) => {
            return Err(unknown_place(path));
        }
        _ => features.len(),
    };
    let mut columns: Vec<&str> = features.iter().map(String::as_str).collect();
    if let Some(own) = own {
        columns.insert(place, own);
    }
    let mut places = Vec::new();
    for (at, name) in columns.iter().enumerate() {
        let same = |columns: &[&str]| columns.iter().filter(|it| *it == name).count();
        let (found, wanted) = (count_of(names, name), same(&columns));
        if found > wanted {
            return Err(repeated(name, found, wanted, path));
        }
        let mut all = (0..names.len()).filter(|at| names[*at] == *name);
        places.push(all.nth(same(&columns[..at])).ok_or_else(other)?);
    }
    let own = own.map(|_| places.remove(place));
    let features = places;
    let label = match (own, &options.label, label_name) {
        (_, LabelColumn::Absent, _) => None,
        (Some(own), ..) => Some(own),
        (None, LabelColumn::Detect, Some(name)) => {
            let found = position(Some(names), "label").filter(|at| !features.contains(at));
            let missing = || ReadError::MissingName {
                path: path.into(),
                wanted: format!("the label in a column named {name:?}"),
                found: names.to_vec(),
            };
            refuse_repeated(names, "label", path)?;
            Some(found.ok_or_else(missing)?)
        }
        (None, LabelColumn::Name(name), _) if columns.contains(&name.as_str()) => {
            return Err(feature_as_label(name, path));
        }
        (None, wanted, _) => label(Some(names), names.len(), wanted, path)?,
    };
    if label.is_some_and(|label| features.contains(&label)) {
        Err(other())
    } else {
        Ok(Places::new(features, label))
    }
}

/// The name that the label had, if the table has such a column beside the features and it is the
/// label, or has to be told apart from features of its name.
fn own_label<'a>(
    features: &[String],
    label_name: Option<&'a str>,
    names: &[String],
    wanted: &LabelColumn,
) -> Option<&'a str> {
    let own = label_name.filter(|own| count_of(names, own) > count_of(features, own))?;
    let is_meant = match wanted {
        LabelColumn::Detect => true,
        LabelColumn::Name(name) => name == own,
        LabelColumn::Absent => count_of(features, own) > 0,
        LabelColumn::Last => false,
    };
    is_meant.then_some(own)
}

fn feature_as_label(name: &str, path: &Path) -> ReadError {
    ReadError::Unsupported {
        path: path.into(),
        what: format!("{name} is a feature of the model, so it cannot be the label"),
        remedy: "name the column of the label (`LabelColumn::Name`, --label-column), or train a \
                 model without this feature",
    }
}
