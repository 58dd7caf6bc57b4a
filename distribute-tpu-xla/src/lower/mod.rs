//! *Lowering*: from burn's captured graph to a StableHLO program, operation by operation.
//!
//! An argument is *donated* if a result of the program takes over its memory.
//!
//! [`lower`] walks the operations of a [`CapturedGraph`](burn::tensor::CapturedGraph) in order; one
//! function per operation adds what it means to the program. The meaning follows burn's flex
//! backend. [`coverage`] lists what can be lowered, [`coverage_markdown`] prints it.

mod activation;
mod adaptive_pooling;
mod arithmetic;
mod attention;
mod collective;
mod collective_call;
mod context;
mod convolution;
mod coverage_page;
mod driver;
mod error;
mod float;
mod index;
mod integer;
mod matmul;
mod normalization;
mod options;
mod pooling;
mod random;
mod reduction;
mod shape;
mod sort;
mod special;
mod table;
mod types;
mod windows;

pub use collective::{
    ALL_GATHER, ALL_REDUCE_MAX, ALL_REDUCE_MEAN, ALL_REDUCE_MIN, ALL_REDUCE_PROD, ALL_REDUCE_SUM,
    REPLICA_ID,
};
pub use collective_call::CollectiveCall;
pub use coverage_page::coverage_markdown;
pub use driver::{Lowered, lower};
pub use error::LowerError;
pub use options::{GraphInput, LowerOptions, RandomKey, Target};
pub use table::{Coverage, coverage};

/// Flags of XLA's CPU compiler with which programs mean what StableHLO says: unless the fast forms
/// are off, maxima and minima lose NaN. Pass them to every compilation for a platform `cpu`.
pub const CPU_COMPILER_OPTIONS: [(&str, bool); 1] = [("xla_cpu_enable_fast_min_max", false)];
