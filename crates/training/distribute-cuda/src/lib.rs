//! Replicas on NVIDIA GPUs (`cuda:0`, ...), by burn's CUDA backend.
//!
//! With the feature `cuda`; without it there is nothing here. Programs find it as
//! `distribute::cuda` with the feature `cuda` of `distribute`. A device says by itself
//! what its strategy needs, so nothing is set up or registered:
//!
//! ```text
//! let strategy = MirroredStrategy::builder().devices([cuda(0), cuda(1)]).build()?;
//! ```
//!
//! It implements `distribute-core`'s [`GpuKind`](distribute_core::GpuKind); a crate for other GPUs
//! is written in the same way.
#![deny(unsafe_code)]
#![deny(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    clippy::unwrap_used
)]

#[cfg(feature = "cuda")]
mod gpus;

#[cfg(feature = "cuda")]
pub use gpus::{Cuda, all_gpus, cuda, parse};
