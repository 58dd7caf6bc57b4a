//! Enables one set of features for the dependencies of burn, so that all commands share one build
//! of burn.
//!
//! Cargo gives a dependency the features that the packages of a command ask for together. Where two
//! commands differ in a feature of anything below burn, burn is built twice. Every crate that names
//! burn depends on this one, by itself or through another crate; there is nothing in it to call.
#![forbid(unsafe_code)]
#![deny(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    clippy::unwrap_used
)]
