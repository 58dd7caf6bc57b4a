//! `tf.io.parse_single_example`: arrays of known shapes from an `Example` message.

use std::collections::BTreeMap;

use crate::ragged::cut;
use crate::strict::{Raw, entries};
use crate::{DType, FeatureSpec, Parsed, Schema, Values};

/// Why a message does not fit its schema. The texts begin as TensorFlow's do.
#[derive(thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum ParseError {
    /// The schema has no features.
    #[error("features cannot be empty: name at least one")]
    NoFeatures,
    /// The bytes are no `Example`.
    #[error("Could not parse example input: the record holds no tf.train.Example")]
    NotAnExample,
    /// The bytes are no `SequenceExample`.
    #[error("Invalid protocol message input: the record holds no tf.train.SequenceExample")]
    NotASequence,
    /// A feature has a list of a kind that is not known.
    #[error("Unsupported datatype. Feature {key} has a list of an unknown kind")]
    UnknownKind {
        /// The feature.
        key: String,
    },
    /// A feature without a default is not there.
    #[error("Feature: {key} (data type: {dtype}) is required but could not be found.")]
    Missing {
        /// The feature.
        key: String,
        /// Its type.
        dtype: DType,
    },
    /// A feature has values of another type.
    #[error(
        "Key: {key}.  Data types don't match. Data type: {found} but expected type: {expected}"
    )]
    DType {
        /// The feature.
        key: String,
        /// The type of its values.
        found: DType,
        /// The type that the schema says.
        expected: DType,
    },
    /// The bytes of a feature are no list.
    #[error("Key: {key}.  Can't parse serialized Example: its {dtype} list is malformed")]
    Malformed {
        /// The feature.
        key: String,
        /// Its type.
        dtype: DType,
    },
    /// A feature of a fixed shape has another number of values.
    #[error(
        "Key: {key}.  Can't parse serialized Example: it has {found} {dtype} values, its shape \
         {shape:?} has {expected}"
    )]
    Count {
        /// The feature.
        key: String,
        /// Its type.
        dtype: DType,
        /// Its shape.
        shape: Vec<usize>,
        /// How many values there are.
        found: usize,
        /// How many its shape has.
        expected: usize,
    },
    /// The values of a sequence are no multiple of those of one array.
    #[error(
        "Error while parsing feature with key {key}: number of elements should be divisible by \
         {stride}, found {found} instead"
    )]
    Stride {
        /// The feature.
        key: String,
        /// How many values one array has.
        stride: usize,
        /// How many there are.
        found: usize,
    },
    /// The default has another number of values than the shape.
    #[error(
        "the default of feature {key} has {found} values, its shape {shape:?} has {expected}: give \
         one for each"
    )]
    Default {
        /// The feature.
        key: String,
        /// The shape.
        shape: Vec<usize>,
        /// How many values the default has.
        found: usize,
        /// How many the shape has.
        expected: usize,
    },
    /// An `Example` cannot say whether a sequence is missing or empty.
    #[error(
        "Unsupported: FixedLenSequenceFeature requires allow_missing to be True: feature {key}"
    )]
    AllowMissing {
        /// The feature.
        key: String,
    },
    /// The rows of a ragged feature do not fit its values.
    #[error("Key: {key}.  The rows of {partition} do not fit: {reason}")]
    Rows {
        /// The feature.
        key: String,
        /// The feature that cuts it, or the length of its rows.
        partition: String,
        /// What is wrong.
        reason: String,
    },
    /// A feature of the context, which has another type or number of values.
    #[error(
        "Name: <unknown>, Context feature: {key}.  Data types don't match. Expected type: \
         {expected}"
    )]
    ContextDType {
        /// The feature.
        key: String,
        /// The type that the schema says.
        expected: DType,
    },
    /// A feature of the context has another number of values, or is missing.
    #[error(
        "Inconsistent max number of elements for feature {key}: expected {expected}, but found \
         {found}"
    )]
    ContextCount {
        /// The feature.
        key: String,
        /// How many values its shape has.
        expected: usize,
        /// How many there are.
        found: usize,
    },
    /// A list of features is not there.
    #[error(
        "Name: <unknown>, Feature list '{key}' is required but could not be found.  Allow it to be \
         missing to take it for an empty one"
    )]
    MissingList {
        /// The list.
        key: String,
    },
    /// A step of a list has values of another type.
    #[error(
        "Name: <unknown>, Feature list: {key}, Index: {step}.  Data types don't match. Expected \
         type: {expected}"
    )]
    ListDType {
        /// The list.
        key: String,
        /// The step.
        step: usize,
        /// The type that the schema says.
        expected: DType,
    },
    /// The steps of a list have too many or too few values together.
    #[error(
        "Feature list '{key}' has an unexpected number of values.  Total values size: {found} is \
         not consistent with a shape of {stride} values a step"
    )]
    ListTotal {
        /// The list.
        key: String,
        /// How many values there are.
        found: usize,
        /// How many each step should have.
        stride: usize,
    },
    /// A step of a list has too many or too few values.
    #[error(
        "Name: <unknown>, Key: {key}, Index: {step}.  Number of values != expected.  values size: \
         {found} but output shape: {shape:?}"
    )]
    ListCount {
        /// The list.
        key: String,
        /// The step.
        step: usize,
        /// How many values it has.
        found: usize,
        /// The shape that it should have.
        shape: Vec<usize>,
    },
    /// Ragged features cannot be read of a `SequenceExample`.
    #[error("feature {key}: ragged features are read of an Example, not of a SequenceExample")]
    RaggedSequence {
        /// The feature.
        key: String,
    },
}

distribute_error::debug_as_message!(ParseError);

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
    if stride == 0 || found % stride != 0 {
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
