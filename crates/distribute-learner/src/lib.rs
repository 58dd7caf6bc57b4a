//! Our replicas under burn's own training loop, in the place of burn's strategies.
//!
//! With the feature `burn-train`; without it there is nothing here. It turns on more of burn (its
//! data sets, and threads in its CPU kernels, which stay in the replica's pool), so that burn is
//! built a second time.
#![forbid(unsafe_code)]
#![deny(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    clippy::unwrap_used
)]

#[cfg(feature = "burn-train")]
mod replica;
#[cfg(feature = "burn-train")]
mod strategy;
#[cfg(feature = "burn-train")]
mod train_epoch;

#[cfg(feature = "burn-train")]
pub use strategy::LearnerStrategy;
