//! A typed builder of StableHLO programs that checks shapes while building and prints text.
//!
//! [`Builder`] has a method per operation; each checks its operands and returns the typed result or
//! a [`StableHloError`] that names the operation and the types. [`Builder::finish`] prints the
//! program in MLIR's generic form, which every PJRT plugin since StableHLO 1.0 reads.

mod builder;
mod collective;
mod constant;
mod contraction;
mod control;
mod elementwise;
mod error;
mod indexing;
mod literal;
mod precision;
mod reduction;
mod shape;
mod threefry;
mod types;

#[cfg(test)]
mod tests;

pub use builder::{Builder, Program, Value};
pub use contraction::{Convolution, DotDimensions};
pub use elementwise::{Binary, Comparison, Unary};
pub use error::{Result, StableHloError};
pub use indexing::{GatherDimensions, ScatterDimensions, Update};
pub use literal::Scalar;
pub use precision::Precision;
pub use reduction::Window;
pub use types::{ElementType, TensorType};
