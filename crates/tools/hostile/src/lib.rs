//! Test support for adversarial conditions: seeds of fuzz targets, unauthenticated peers that flood
//! a port, signals that are ignored, and time on a busy machine.
#![forbid(unsafe_code)]
#![deny(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    clippy::unwrap_used
)]

pub mod alone;
pub mod corpus;
pub mod descriptors;
pub mod flood;
pub mod limit;
pub mod listening;
pub mod memory;
pub mod settles;
pub mod signals;
pub mod stopwatch;
