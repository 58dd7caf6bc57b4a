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
    /// Further columns of target values.
    pub(crate) more_labels: Vec<usize>,
    /// The weight of the example.
    pub(crate) weights: Option<usize>,
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
            more_labels: Vec::new(),
            weights: None,
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
        let weights = weights(names, options, path)?;
        if let Some(names) = names
            && let Some(labels) = several(names, options)
        {
            return with_several(names, &labels, weights, options, path);
        }
        let mut places = match (&options.columns, names) {
            (CsvColumns::All, _) => {
                let label = label(names, count, &options.label, weights, path)?;
                let is_feature = |at: &usize| Some(*at) != label && Some(*at) != weights;
                let features = (0..count).filter(is_feature).collect();
                Self::new(features, label)
            }
            (CsvColumns::Count(wanted), _) => {
                counted(*wanted, &[], names, count, (options, weights), path)?
            }
            (CsvColumns::Named { features, .. }, None) => counted(
                features.len(),
                features,
                names,
                count,
                (options, weights),
                path,
            )?,
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
        places.weights = weights;
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
        let labels: Vec<usize> = self
            .label
            .iter()
            .chain(&self.more_labels)
            .copied()
            .collect();
        let used = |at: &usize| {
            self.features.contains(at) || labels.contains(at) || self.weights == Some(*at)
        };
        let unused = (0..names.len()).filter(|at| !used(at));
        Origin {
            columns: self.features.iter().map(|at| names[*at].clone()).collect(),
            label: self.label.map(|_| {
                let names: Vec<&str> = labels.iter().map(|at| names[*at].as_str()).collect();
                names.join(",")
            }),
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

/// The column of the weights. A table that is read without labels needs none.
fn weights(
    names: Option<&[String]>,
    options: &CsvOptions,
    path: &Path,
) -> Result<Option<usize>, ReadError> {
    let Some(wanted) = &options.weights else {
        return Ok(None);
    };
    refuse_repeated(names.unwrap_or_default(), wanted, path)?;
    match position(names, wanted) {
        None if options.label != LabelColumn::Absent => Err(ReadError::MissingName {
            path: path.into(),
            wanted: format!("a column named {wanted:?}, for the weights of the examples"),
            found: names.unwrap_or_default().to_vec(),
        }),
        found => Ok(found),
    }
}

/// The places of several columns of target values, if they are meant: by a text with commas that
/// is no column's name itself, of names that all are.
fn several(names: &[String], options: &CsvOptions) -> Option<Vec<usize>> {
    let text = match (&options.label, &options.columns) {
        (LabelColumn::Name(text), _) => text,
        (LabelColumn::Detect, CsvColumns::Named { label, .. }) => label.as_ref()?,
        _ => return None,
    };
    if !text.contains(',') || names.contains(text) {
        return None;
    }
    let places = text
        .split(',')
        .map(|name| position(Some(names), name.trim()));
    places.collect()
}

/// The places in a table with several columns of target values.
fn with_several(
    names: &[String],
    labels: &[usize],
    weights: Option<usize>,
    options: &CsvOptions,
    path: &Path,
) -> Result<Places, ReadError> {
    let is_label = |at: &usize| labels.contains(at) || Some(*at) == weights;
    for at in labels {
        refuse_repeated(names, &names[*at], path)?;
    }
    let others: Vec<usize> = (0..names.len()).filter(|at| !is_label(at)).collect();
    let features = match &options.columns {
        CsvColumns::All => others,
        CsvColumns::Count(wanted) if *wanted == others.len() => others,
        CsvColumns::Named { features, .. } => {
            let places = features.iter().map(|name| position(Some(names), name));
            let found: Option<Vec<usize>> = places.collect();
            found
                .filter(|found| !found.iter().any(is_label))
                .ok_or_else(|| ReadError::OtherColumns {
                    path: path.into(),
                    wanted: features.clone(),
                    wanted_count: features.len(),
                    found: names.to_vec(),
                    found_count: names.len(),
                })?
        }
        CsvColumns::Count(wanted) => {
            return Err(ReadError::OtherColumns {
                path: path.into(),
                wanted: Vec::new(),
                wanted_count: wanted + labels.len(),
                found: names.to_vec(),
                found_count: names.len(),
            });
        }
    };
    if features.is_empty() {
        let what = "the first line names targets, but no feature";
        return Err(ReadError::malformed(path, what));
    }
    let mut places = Places::new(features, labels.first().copied());
    places.more_labels = labels.iter().skip(1).copied().collect();
    places.weights = weights;
    Ok(places)
}

/// The label of a table whose other columns are features.
fn label(
    names: Option<&[String]>,
    count: usize,
    wanted: &LabelColumn,
    except: Option<usize>,
    path: &Path,
) -> Result<Option<usize>, ReadError> {
    let last = (0..count).rev().find(|at| Some(*at) != except);
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
    (options, weights): (&CsvOptions, Option<usize>),
    path: &Path,
) -> Result<Places, ReadError> {
    let without_label = options.label == LabelColumn::Absent;
    let by_place = matches!(options.label, LabelColumn::Absent | LabelColumn::Detect);
    let label = match (names, options.label_place) {
        _ if without_label && count == wanted + usize::from(weights.is_some()) => None,
        (None, LabelPlace::After(features)) if by_place => Some(features),
        _ if without_label => label(names, count, &LabelColumn::Detect, weights, path)?,
        _ => label(names, count, &options.label, weights, path)?,
    };
    let is_feature = |at: &usize| Some(*at) != label && Some(*at) != weights;
    let features: Vec<usize> = (0..count).filter(is_feature).collect();
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
        (None, wanted, _) => label(Some(names), names.len(), wanted, None, path)?,
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
