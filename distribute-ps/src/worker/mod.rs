//! Workers: run the closures of the coordinator.
//!
//! A program registers its steps in a [`StepRegistry`], the same in every process. A
//! [`WorkerServer`] waits for the coordinator and runs the steps that it sends, one at a time, on
//! the thread that calls [`serve`](WorkerServer::serve). A step sees a [`WorkerContext`].

mod context;
mod dataset;
mod desk;
pub(crate) mod failure;
#[allow(missing_docs, clippy::all)]
#[rustfmt::skip]
pub(crate) mod generated;
mod registry;
mod server;
mod service;
mod shared_state;
pub(crate) mod value;

pub use context::{Held, WorkerContext};
pub use dataset::PerWorkerDataset;
pub use registry::{Resource, StepRegistry};
pub use server::{WorkerOptions, WorkerServer, WorkerStopper};
pub use shared_state::{Shared, State};
pub use value::HostTensor;

/// What a worker's process says that it is.
pub(crate) const SERVICE: &str = "worker";
/// Grows when coordinators and workers of two versions cannot work together.
pub(crate) const PROTOCOL_VERSION: u32 = 1;
pub(crate) const CRATE_VERSION: &str = env!("CARGO_PKG_VERSION");
