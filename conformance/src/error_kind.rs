//! Maps TensorFlow's errors to errors of this library.
//!
//! TensorFlow's Python classes are coarse (a `ValueError` is nearly anything), so the stable part
//! of the message decides first, and the class where no message is known.

use distribute_core::Error;

use crate::case::{Case, Expected};
use crate::outcome::{Checked, Failure, Outcome};

/// The kinds of the library's errors, as far as TensorFlow tells them apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ErrorKind {
    Argument,
    Shape,
    Axis,
    DType,
    NotDistributed,
    Mixed,
    InsideStep,
    ReplicaMissing,
    NoSynchronization,
    MeanOfIntegers,
    NoAggregation,
    NoCommonValue,
    UpdateOfSum,
    Step,
    Other,
}

use ErrorKind::{
    Argument, Axis, DType, InsideStep, MeanOfIntegers, Mixed, NoAggregation, NoCommonValue,
    NoSynchronization, NotDistributed, ReplicaMissing, Shape, Step, UpdateOfSum,
};

/// Stable parts of TensorFlow's messages and the kinds that say the same.
const MESSAGES: &[(&str, &[ErrorKind])] = &[
    ("requires being in cross-replica context", &[InsideStep]),
    ("method requires cross-replica context", &[InsideStep]),
    (
        "Must not be called inside a `tf.distribute.Strategy` scope",
        &[Mixed, InsideStep],
    ),
    ("Mixing different tf.distribute.Strategy objects", &[Mixed]),
    ("Must not nest tf.distribute.Strategy scopes", &[Mixed]),
    (
        "different number of replica_context().merge_call()",
        &[ReplicaMissing],
    ),
    (
        "cannot be reduced with the given reduce op",
        &[NotDistributed],
    ),
    ("must have the same size and shape", &[Shape]),
    ("Shape mismatch in the collective", &[Shape]),
    ("Incompatible shapes", &[Shape]),
    ("Can not squeeze dim", &[Shape]),
    ("Received incompatible tensor with shape", &[Shape]),
    ("Dimensions of inputs should match", &[Shape]),
    ("Invalid reduction dimension", &[Axis]),
    ("Requires start <= limit", &[Axis]),
    ("of bool is not in the list of allowed values", &[DType]),
    ("has DataType bool not in list of allowed values", &[DType]),
    (
        "variable synchronization mode is not supported",
        &[NoSynchronization],
    ),
    (
        "aggregation=MEAN and a non-floating dtype",
        &[MeanOfIntegers],
    ),
    (
        "You must specify an aggregation method to update",
        &[NoAggregation],
    ),
    (
        "Could not convert from `tf.VariableAggregation`",
        &[NoCommonValue],
    ),
    (
        "in cross-replica context when aggregation is set to",
        &[UpdateOfSum],
    ),
    ("Please use `tf.keras.losses.Reduction.SUM`", &[Argument]),
    ("Invalid Reduction Key", &[Argument]),
    ("Invalid value for argument `reduction`", &[Argument]),
];

/// What a class means where the message is not known.
const CLASSES: &[(&str, &[ErrorKind])] = &[
    ("InvalidArgumentError", &[Shape, DType, Axis, Argument]),
    ("ValueError", &[Argument, Axis, NotDistributed, Shape]),
    ("TypeError", &[DType, Argument]),
    ("RuntimeError", &[InsideStep, Mixed, Argument]),
    ("AssertionError", &[NotDistributed, Argument]),
    ("IndexError", &[Axis, Argument]),
    ("AttributeError", &[NotDistributed, DType, Argument]),
    ("ZeroDivisionError", &[Argument]),
];

impl ErrorKind {
    /// The kind of an error of the library, whatever replica it comes from.
    pub(crate) fn of(error: &Error) -> Self {
        match error.root_cause() {
            Error::InvalidArgument { .. } => Argument,
            Error::Shape { .. } | Error::UnevenArguments { .. } => Shape,
            Error::Axis { .. } => Axis,
            Error::DType { .. } => DType,
            Error::NotDistributed { .. } => NotDistributed,
            Error::MixedStrategies { .. } => Mixed,
            Error::InsideStep { .. } => InsideStep,
            Error::ReplicaMissing { .. } => ReplicaMissing,
            Error::Step(_) => Step,
            Error::UnsupportedSynchronization { .. } => NoSynchronization,
            Error::MeanOfIntegers { .. } => MeanOfIntegers,
            Error::AggregationRequired { .. } => NoAggregation,
            Error::NoCommonValue { .. } => NoCommonValue,
            Error::UpdateOfSum { .. } => UpdateOfSum,
            _ => Self::Other,
        }
    }

    /// The kinds that say what TensorFlow's error says.
    pub(crate) fn expected(class: &str, message: &str) -> &'static [ErrorKind] {
        let known = MESSAGES.iter().find(|(part, _)| message.contains(part));
        let by_class = || CLASSES.iter().find(|(known, _)| *known == class);
        known.or_else(by_class).map_or(&[], |(_, kinds)| kinds)
    }
}

/// Passed if the case expects an error of this kind.
pub(crate) fn same_error(case: &Case, error: &Error) -> Checked {
    let Expected::Error { class, message } = &case.expected else {
        return Err(Failure::got(format!("an error: {error}")));
    };
    let kinds = ErrorKind::expected(class, message);
    let found = ErrorKind::of(error);
    if kinds.contains(&found) {
        return Ok(Outcome::Passed);
    }
    Err(Failure::new(
        format!("an error of kind {kinds:?} for {class}: {message}"),
        format!("an error of kind {found:?}: {error}"),
    ))
}
