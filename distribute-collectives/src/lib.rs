//! Moves and reduces buffers between ranks, for any Rust program: it needs neither burn nor a
//! strategy.
//!
//! A *rank* is one member of a *group*; the number of members is the *world size*. Every rank
//! holds an endpoint (a [`Communicator`]) and all ranks call the same operations in the same
//! order. [`in_process`] makes a group of threads:
//!
//! ```
//! use distribute_collectives::{Communicator, GroupOptions, ReduceOp, in_process};
//!
//! let endpoints = in_process(2, GroupOptions::default())?;
//! std::thread::scope(|scope| {
//!     for mut endpoint in endpoints {
//!         scope.spawn(move || {
//!             let mut gradient = [1.0_f32 + endpoint.rank() as f32; 4];
//!             endpoint.all_reduce(ReduceOp::Sum, &mut [(&mut gradient[..]).into()]).unwrap();
//!             assert_eq!(gradient, [3.0; 4]);
//!         });
//!     }
//! });
//! # Ok::<(), distribute_collectives::CollectiveError>(())
//! ```
//!
//! What holds for every operation of every communicator:
//!
//! - All ranks end with bit-identical results, and a rerun gives the same bits.
//! - A difference between the ranks' calls is [`CollectiveError::Mismatch`] on all ranks.
//! - Every operation has a deadline, and a lost rank ends it with an error that names the rank.
//!   The group is then poisoned: make a new one.
//! - No call leaves a thread behind; waiting blocks, it does not burn a core.
#![deny(unsafe_code)]
#![deny(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    clippy::unwrap_used
)]

/// Compiles the program of the document.
#[cfg(all(doctest, feature = "shm"))]
#[doc = include_str!("../../docs/between-processes.md")]
mod between_processes {}

/// Compiles the program of the document.
#[cfg(all(doctest, feature = "nccl"))]
#[doc = include_str!("../../docs/gpu.md")]
mod gpu {}

mod algorithm;
mod auto;
mod bookkeeping;
mod buffer;
mod communicator;
pub mod contract;
#[cfg(feature = "grpc")]
pub mod control;
mod engine;
mod error;
mod failure;
pub mod flight_record;
mod forward;
#[cfg(any(feature = "fuzzing", all(test, feature = "shm")))]
#[doc(hidden)]
pub mod fuzzing;
mod gathering;
#[cfg(feature = "grpc")]
mod grpc;
mod header;
mod in_process;
mod interruption;
mod link_cost;
mod messages;
#[cfg(all(test, feature = "loom", feature = "shm"))]
mod models;
#[cfg(feature = "mpi")]
pub mod mpi;
mod names;
#[cfg(feature = "nccl")]
pub mod nccl;
mod operation;
mod options;
mod phase;
mod pieces;
#[cfg(feature = "grpc")]
mod process_group;
pub mod reduce;
#[cfg(feature = "shm")]
mod shared_memory;
mod spin_policy;
#[cfg(feature = "grpc")]
mod status;
pub mod stragglers;
mod sync;
mod terms;
#[cfg(test)]
mod testing;
mod transport;
pub mod tree;
#[doc(hidden)]
pub mod turns;
#[cfg(feature = "grpc")]
mod wire;

pub use buffer::{Buffer, DType, Element};
pub use communicator::{
    AbortHandle, AbortTarget, Communicator, CommunicatorExt, Description, GatherTarget, Gathered,
    chunk_range,
};
pub use error::{CollectiveError, MissingRank, Result, Searched};
pub use failure::FirstFailure;
pub use header::{HeaderError, OperationHeader};
pub use in_process::{
    InProcessCommunicator, InProcessTransport, in_process, in_process_transports,
};
pub use interruption::{Interruption, InterruptionHold, InterruptionListener};
pub use link_cost::LinkCost;
pub use messages::TransportCommunicator;
pub use operation::OperationKind;
pub use options::{Algorithm, GroupOptions, Order, WireType};
#[cfg(feature = "grpc")]
pub use process_group::{
    BoundProcessGroup, ProcessCommunicator, ProcessGroupOptions, ProcessTransport, loopback,
};
pub use reduce::ReduceOp;
pub use terms::Terms;
pub use transport::{SEGMENTS_IN_FLIGHT, Transport};
