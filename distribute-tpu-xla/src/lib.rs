//! Translates a captured training step to StableHLO and runs it through any PJRT plugin.
//!
//! The error of the crate is [`TpuError`]. [`pjrt`], [`stablehlo`] and [`lower`] are used without
//! the strategy as well and know nothing of it, so each of them has its own, which `TpuError`
//! wraps.
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
mod sync;
pub mod trace;

pub use strategy::{
    CompileProgress, CompileReport, CompiledProgram, TpuClusterResolver, TpuCompiler,
    TpuConnection, TpuError, TpuSource, TpuStrategy, TpuStrategyBuilder, TpuSystem, lower_step,
    lower_step_for,
};
