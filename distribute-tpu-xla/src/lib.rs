//! Turns a captured step into StableHLO and runs it through any PJRT plugin.
#![deny(unsafe_code)]
#![deny(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    clippy::unwrap_used
)]

pub mod lower;
pub mod pjrt;
pub mod stablehlo;
mod strategy;
pub mod trace;

pub use strategy::{
    CompileProgress, CompileReport, CompiledProgram, TpuClusterResolver, TpuCompiler,
    TpuConnection, TpuError, TpuSource, TpuStrategy, TpuStrategyBuilder, TpuSystem, lower_step,
    lower_step_for,
};
