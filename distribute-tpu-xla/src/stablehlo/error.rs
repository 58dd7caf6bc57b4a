//! What can be wrong with an operation while a program is built.

use super::types::TensorType;

/// An operation that cannot exist with these operands.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StableHloError {
    /// The operands do not fit the operation or one another.
    #[error("stablehlo.{op}: {problem}{}", operands_text(.operands))]
    Operands {
        /// The operation, without its dialect.
        op: &'static str,
        /// What is wrong and what would be right.
        problem: String,
        /// The types the operation was given.
        operands: Vec<TensorType>,
    },
    /// A donated input and the output that is to take its memory differ.
    #[error(
        "input {input} ({input_type}) cannot be donated to output {output} ({output_type}): \
         a donated input and its output must have the same type"
    )]
    Donation {
        /// Position of the input.
        input: usize,
        /// Its type.
        input_type: TensorType,
        /// Position of the output.
        output: usize,
        /// Its type.
        output_type: String,
    },
    /// Two inputs are donated to one output.
    #[error("inputs {first} and {second} are both donated to output {output}: give it only one")]
    DonatedTwice {
        /// Position of one input.
        first: usize,
        /// Position of the other.
        second: usize,
        /// Position of the output.
        output: usize,
    },
}

distribute_error::debug_as_message!(StableHloError);

fn operands_text(operands: &[TensorType]) -> String {
    if operands.is_empty() {
        return String::new();
    }
    let list: Vec<String> = operands.iter().map(ToString::to_string).collect();
    format!(" (operands: {})", list.join(", "))
}

/// The result of building an operation.
pub type Result<T, E = StableHloError> = std::result::Result<T, E>;
