//! Why a graph cannot become a program.

use distribute_core::burn_internals::ir::TensorId;

use crate::stablehlo::StableHloError;

/// A graph that cannot be lowered, and the operation that is in the way.
#[derive(Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum LowerError {
    /// The graph uses an operation, or a form of it, that has no lowering.
    #[error(
        "operation {position} of the step, {operation}{}, cannot run on XLA: {reason}",
        place(.origin)
    )]
    Unsupported {
        /// burn's name of the operation, such as `Module.Interpolate`.
        operation: String,
        /// The position of the operation in the captured graph.
        position: usize,
        /// The place in the model that the operation came from, if that is known.
        origin: Option<String>,
        /// What about it is not covered, and what to use instead.
        reason: String,
    },
    /// The lowering of an operation built something that cannot be: a bug of this crate.
    #[error(
        "operation {position} of the step, {operation}{}, could not be built: {source}",
        place(.origin)
    )]
    Invalid {
        /// burn's name of the operation.
        operation: String,
        /// The position of the operation in the captured graph.
        position: usize,
        /// The place in the model that the operation came from, if that is known.
        origin: Option<String>,
        /// What is wrong with it.
        source: Box<StableHloError>,
    },
    /// An operation reads a tensor that nothing produces.
    #[error(
        "operation {position} of the step, {operation}, reads {tensor}, which is neither an input \
         nor recorded nor computed before it: create it inside of the step or declare it as input"
    )]
    Undefined {
        /// burn's name of the operation.
        operation: String,
        /// The position of the operation in the captured graph.
        position: usize,
        /// The tensor.
        tensor: TensorId,
    },
    /// A declared input or output is no tensor of the graph.
    #[error("the {boundary} {tensor} is no tensor of the captured step")]
    UnknownBoundary {
        /// `input` or `output`.
        boundary: &'static str,
        /// The tensor.
        tensor: TensorId,
    },
    /// An input is declared twice, is computed by the step itself, or is donated to a tensor that
    /// is no output.
    #[error("the input {tensor} {problem}")]
    InvalidInput {
        /// The tensor.
        tensor: TensorId,
        /// What is wrong with it.
        problem: String,
    },
    /// The program as a whole is wrong, for example its donations.
    #[error("the step cannot become a program: {0}")]
    Program(Box<StableHloError>),
}

distribute_error::debug_as_message!(LowerError);

impl From<StableHloError> for LowerError {
    fn from(error: StableHloError) -> Self {
        Self::Program(Box::new(error))
    }
}

fn place(origin: &Option<String>) -> String {
    origin
        .as_ref()
        .map_or_else(String::new, |origin| format!(" (from {origin})"))
}

/// What the lowering of one operation can fail with; the driver adds which operation it was.
#[derive(Debug)]
pub(super) enum Failure {
    Hlo(StableHloError),
    Unsupported(String),
    Undefined(TensorId),
}

impl From<StableHloError> for Failure {
    fn from(error: StableHloError) -> Self {
        Self::Hlo(error)
    }
}

/// The result of lowering one operation.
pub(super) type Result<T, E = Failure> = std::result::Result<T, E>;

/// [`Failure::Unsupported`] as a result.
pub(super) fn unsupported<T>(reason: impl Into<String>) -> Result<T> {
    Err(Failure::Unsupported(reason.into()))
}
