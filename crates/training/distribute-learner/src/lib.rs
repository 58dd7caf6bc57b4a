//! Runs burn's own training loop on this project's replicas, in place of burn's strategies.
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
mod chiefs_learner;
#[cfg(feature = "burn-train")]
mod events;
#[cfg(feature = "burn-train")]
mod latest_checkpoint;
#[cfg(feature = "burn-train")]
mod loader_order;
#[cfg(feature = "burn-train")]
mod outputs;
#[cfg(feature = "burn-train")]
mod replica;
#[cfg(feature = "burn-train")]
mod run;
#[cfg(feature = "burn-train")]
mod strategy;
#[cfg(feature = "burn-train")]
mod team;
#[cfg(feature = "burn-train")]
mod train_epoch;
#[cfg(feature = "burn-train")]
mod training_ext;

#[cfg(feature = "burn-train")]
pub use latest_checkpoint::latest_checkpoint;
#[cfg(feature = "burn-train")]
pub use outputs::GatheredOutput;
#[cfg(feature = "burn-train")]
pub use strategy::LearnerStrategy;
#[cfg(feature = "burn-train")]
pub use training_ext::TrainingExt;
