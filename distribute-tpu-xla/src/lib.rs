//! Turns a captured step into StableHLO and runs it through any PJRT plugin.
#![deny(unsafe_code)]

pub mod lower;
pub mod pjrt;
pub mod stablehlo;
