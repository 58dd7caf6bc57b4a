//! Groups of threads, and what the crate says without any group.

mod algorithms;
#[cfg(feature = "grpc")]
mod algorithms_over_grpc;
#[cfg(feature = "shm")]
mod algorithms_over_shared_memory;
#[path = "../common/mod.rs"]
mod common;
mod contract;
mod failures;
#[cfg(feature = "grpc")]
mod generated;
#[cfg(target_os = "linux")]
mod leaks;
#[cfg(feature = "shm")]
mod loopback_groups;
mod properties;
mod terms;
mod wire_compression;
