//! Groups of threads, and what the crate says without any group.

mod algorithms;
mod algorithms_over_grpc;
mod algorithms_over_shared_memory;
#[path = "../common/mod.rs"]
mod common;
mod contract;
mod failures;
mod flight_record;
mod generated;
mod loopback_groups;
mod properties;
mod tensorflow_rules;
mod wire_compression;
