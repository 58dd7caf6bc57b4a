//! What tests share about foreign bytes: seeds of fuzz targets, and strangers that flood a port.
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
