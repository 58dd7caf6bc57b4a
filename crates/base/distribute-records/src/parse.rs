//! `tf.io.parse_single_example`: arrays of known shapes from an `Example` message.

use std::collections::BTreeMap;

use crate::ragged::cut;
use crate::strict::{Raw, entries};
use crate::{DType, FeatureSpec, ParseError, Parsed, Schema, Values};

/// Reads the features of a schema from an `Example` message, as `tf.io.parse_single_example`.
///
/// Of a feature that is there twice the last one counts that has a list. Other features are not
/// read, so they may be damaged.
///
/// # Errors
///
/// [`ParseError`]: the first one that is met.
pub fn parse_example(
    bytes: &[u8],
    schema: &Schema,
) -> Result<BTreeMap<String, Parsed>, ParseError> {
    check(schema)?;
    let entries = entries(bytes).ok_or(ParseError::NotAnExample)?;
    let mut found: BTreeMap<&str, Values> = BTreeMap::new();
    let wanted = wanted(schema);
    for (key, raw) in entries.into_iter().rev() {
        let Ok(key) = std::str::from_utf8(key) else {
            continue;
        };
        let Some(wanted) = wanted.get(key) else {
            continue;
        };
        if found.contains_key(key) {
            continue;
        }
        if let Some(values) = read(key, raw, wanted)? {
            found.insert(key, values);
        }
    }
    let features = schema.0.iter().map(|(key, spec)| {
        let parsed = shaped(key, spec, &found)?;
        Ok((key.clone(), parsed))
    });
    features.collect()
}

/// What can be said of a schema without any message.
fn check(schema: &Schema) -> Result<(), ParseError> {
    if schema.0.is_empty() {
        return Err(ParseError::NoFeatures);
    }
    for (key, spec) in &schema.0 {
        match spec {
            FeatureSpec::Fixed {
                shape,
                default: Some(default),
                ..
            } => check_default(key, shape, default)?,
            FeatureSpec::Sequence {
                allow_missing: false,
                ..
            } => return Err(ParseError::AllowMissing { key: key.clone() }),
            _ => {}
        }
    }
    Ok(())
}

pub(crate) fn check_default(
    key: &str,
    shape: &[usize],
    default: &Values,
) -> Result<(), ParseError> {
    let expected = count(shape);
    if default.len() == expected {
        return Ok(());
    }
    Err(ParseError::Default {
        key: key.to_string(),
        shape: shape.to_vec(),
        found: default.len(),
        expected,
    })
}

/// What a feature of a message is read as.
struct Wanted {
    dtype: DType,
    /// The shape, if it is fixed.
    fixed: Option<Vec<usize>>,
}

/// The features of a message that a schema names, also as rows.
fn wanted(schema: &Schema) -> BTreeMap<&str, Wanted> {
    let mut all = BTreeMap::new();
    for (key, spec) in &schema.0 {
        let fixed = match spec {
            FeatureSpec::Fixed { shape, .. } => Some(shape.clone()),
            _ => None,
        };
        let (key, dtype) = match spec {
            FeatureSpec::Fixed { dtype, .. }
            | FeatureSpec::Variable { dtype }
            | FeatureSpec::Sequence { dtype, .. } => (key, *dtype),
            FeatureSpec::Ragged {
                dtype,
                value_key,
                partitions,
            } => {
                for name in partitions.iter().filter_map(|partition| partition.key()) {
                    let rows = Wanted {
                        dtype: DType::Int64,
                        fixed: None,
                    };
                    all.entry(name).or_insert(rows);
                }
                (value_key.as_ref().unwrap_or(key), *dtype)
            }
        };
        all.insert(key.as_str(), Wanted { dtype, fixed });
    }
    all
}

fn read(key: &str, raw: Raw<'_>, wanted: &Wanted) -> Result<Option<Values>, ParseError> {
    let name = || key.to_string();
    let found = raw
        .dtype()
        .map_err(|_| ParseError::UnknownKind { key: name() })?;
    let Some(found) = found else {
        return Ok(None);
    };
    let expected = wanted.dtype;
    if found != expected {
        return Err(ParseError::DType {
            key: name(),
            found,
            expected,
        });
    }
    let values = raw.values(found).ok_or_else(|| ParseError::Malformed {
        key: name(),
        dtype: found,
    })?;
    match &wanted.fixed {
        Some(shape) if count(shape) != values.len() => Err(ParseError::Count {
            key: name(),
            dtype: found,
            shape: shape.clone(),
            found: values.len(),
            expected: count(shape),
        }),
        _ => Ok(Some(values)),
    }
}

/// How many values an array has.
pub(crate) fn count(shape: &[usize]) -> usize {
    shape.iter().copied().fold(1, usize::saturating_mul)
}

fn shaped(
    key: &str,
    spec: &FeatureSpec,
    found: &BTreeMap<&str, Values>,
) -> Result<Parsed, ParseError> {
    let values = found.get(key).cloned();
    match spec {
        FeatureSpec::Fixed {
            dtype,
            shape,
            default,
        } => match values.or_else(|| default.clone()) {
            Some(values) => Ok(Parsed {
                shape: shape.clone(),
                values,
                splits: Vec::new(),
            }),
            None => Err(ParseError::Missing {
                key: key.to_string(),
                dtype: *dtype,
            }),
        },
        FeatureSpec::Variable { dtype } => {
            Ok(Parsed::flat(values.unwrap_or(Values::empty(*dtype))))
        }
        FeatureSpec::Sequence { dtype, shape, .. } => {
            let values = values.unwrap_or(Values::empty(*dtype));
            sequence(key, shape, values)
        }
        FeatureSpec::Ragged {
            dtype,
            value_key,
            partitions,
        } => {
            let values = found.get(value_key.as_deref().unwrap_or(key)).cloned();
            cut(
                key,
                values.unwrap_or(Values::empty(*dtype)),
                partitions,
                found,
            )
        }
    }
}

fn sequence(key: &str, shape: &[usize], values: Values) -> Result<Parsed, ParseError> {
    let stride = count(shape);
    let found = values.len();
    if stride == 0 || !found.is_multiple_of(stride) {
        return Err(ParseError::Stride {
            key: key.to_string(),
            stride,
            found,
        });
    }
    Ok(Parsed {
        shape: [&[found / stride], shape].concat(),
        values,
        splits: Vec::new(),
    })
}
