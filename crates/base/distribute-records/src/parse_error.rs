//! Why a message does not fit its schema.

use crate::DType;

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
    /// The number of values of a sequence is no multiple of the number in one array.
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
