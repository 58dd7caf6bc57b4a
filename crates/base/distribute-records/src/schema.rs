//! What the features of a message should be, and what they are then.

use std::collections::BTreeMap;
use std::fmt;

use crate::Feature;

/// The type of a feature's values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DType {
    /// `tf.int64`
    Int64,
    /// `tf.float32`
    Float32,
    /// `tf.string`: any bytes.
    Bytes,
}

impl fmt::Display for DType {
    /// TensorFlow's word in its errors.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Int64 => "int64",
            Self::Float32 => "float",
            Self::Bytes => "string",
        })
    }
}

/// Values of one type.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Values {
    /// `tf.int64`
    Int64(Vec<i64>),
    /// `tf.float32`
    Float32(Vec<f32>),
    /// `tf.string`
    Bytes(Vec<Vec<u8>>),
}

impl Values {
    /// None, of a type.
    pub fn empty(dtype: DType) -> Self {
        match dtype {
            DType::Int64 => Self::Int64(Vec::new()),
            DType::Float32 => Self::Float32(Vec::new()),
            DType::Bytes => Self::Bytes(Vec::new()),
        }
    }

    /// Their type.
    pub fn dtype(&self) -> DType {
        match self {
            Self::Int64(_) => DType::Int64,
            Self::Float32(_) => DType::Float32,
            Self::Bytes(_) => DType::Bytes,
        }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        match self {
            Self::Int64(values) => values.len(),
            Self::Float32(values) => values.len(),
            Self::Bytes(values) => values.len(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Adds values of the same type; others are left out.
    pub(crate) fn append(&mut self, more: Self) {
        match (self, more) {
            (Self::Int64(all), Self::Int64(more)) => all.extend(more),
            (Self::Float32(all), Self::Float32(more)) => all.extend(more),
            (Self::Bytes(all), Self::Bytes(more)) => all.extend(more),
            _ => {}
        }
    }
}

impl From<Values> for Feature {
    fn from(values: Values) -> Self {
        match values {
            Values::Int64(values) => Self::Ints(values),
            Values::Float32(values) => Self::Floats(values),
            Values::Bytes(values) => Self::Bytes(values),
        }
    }
}

/// How a flat list is cut into rows: TensorFlow's `tf.io.RaggedFeature` partitions. The names are
/// names of other features, which hold integers.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum RowPartition {
    /// How many values each row has.
    Lengths(String),
    /// Where each row begins, and the last one ends.
    Splits(String),
    /// Where each row begins.
    Starts(String),
    /// Where each row ends.
    Limits(String),
    /// The row of each value.
    RowIds(String),
    /// Every row has this number of values.
    Uniform(usize),
}

/// What a feature should be.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum FeatureSpec {
    /// `tf.io.FixedLenFeature`: an array of this shape.
    Fixed {
        /// The type of its values.
        dtype: DType,
        /// Its shape; `[]` is a single value.
        shape: Vec<usize>,
        /// The values where the feature is missing; without them it must be there.
        default: Option<Values>,
    },
    /// `tf.io.VarLenFeature`: a list of any length, empty where the feature is missing.
    Variable {
        /// The type of its values.
        dtype: DType,
    },
    /// `tf.io.FixedLenSequenceFeature`: any number of arrays of this shape.
    Sequence {
        /// The type of its values.
        dtype: DType,
        /// The shape of one of the arrays.
        shape: Vec<usize>,
        /// Whether a missing feature is an empty sequence. In an `Example` it must be `true`.
        allow_missing: bool,
    },
    /// `tf.io.RaggedFeature`: a list that other features cut into rows.
    Ragged {
        /// The type of its values.
        dtype: DType,
        /// The feature that holds the values; its own name if none.
        value_key: Option<String>,
        /// The partitions, the outermost first.
        partitions: Vec<RowPartition>,
    },
}

impl FeatureSpec {
    /// An array of this shape, which must be there.
    pub fn fixed(dtype: DType, shape: impl Into<Vec<usize>>) -> Self {
        Self::Fixed {
            dtype,
            shape: shape.into(),
            default: None,
        }
    }

    /// An array of this shape, with values for where it is missing.
    pub fn with_default(shape: impl Into<Vec<usize>>, default: Values) -> Self {
        Self::Fixed {
            dtype: default.dtype(),
            shape: shape.into(),
            default: Some(default),
        }
    }

    /// A list of any length.
    pub fn variable(dtype: DType) -> Self {
        Self::Variable { dtype }
    }

    /// Any number of arrays of this shape, also none.
    pub fn sequence(dtype: DType, shape: impl Into<Vec<usize>>) -> Self {
        Self::Sequence {
            dtype,
            shape: shape.into(),
            allow_missing: true,
        }
    }
}

/// Features by name. What is not in it is not read.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Schema(pub BTreeMap<String, FeatureSpec>);

impl<N: Into<String>, const COUNT: usize> From<[(N, FeatureSpec); COUNT]> for Schema {
    fn from(features: [(N, FeatureSpec); COUNT]) -> Self {
        features.into_iter().collect()
    }
}

impl<N: Into<String>> FromIterator<(N, FeatureSpec)> for Schema {
    fn from_iter<I: IntoIterator<Item = (N, FeatureSpec)>>(features: I) -> Self {
        let features = features.into_iter();
        Self(features.map(|(name, spec)| (name.into(), spec)).collect())
    }
}

/// A feature as its schema says.
#[derive(Debug, Clone, PartialEq)]
pub struct Parsed {
    /// Its shape. Of a ragged feature only the number of rows.
    pub shape: Vec<usize>,
    /// Its values, the last axis first.
    pub values: Values,
    /// Of a ragged feature, for each partition where its rows begin, and the last one ends; the
    /// outermost first.
    pub splits: Vec<Vec<usize>>,
}

impl Parsed {
    pub(crate) fn flat(values: Values) -> Self {
        Self {
            shape: vec![values.len()],
            values,
            splits: Vec::new(),
        }
    }
}
