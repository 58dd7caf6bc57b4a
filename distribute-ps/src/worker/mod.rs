//! Workers: run the closures of the coordinator.
//!
//! A program registers its steps in a [`StepRegistry`], the same in every process. A
//! [`WorkerServer`] waits for the coordinator and runs the steps that it sends, one at a time, on
//! the thread that calls [`serve`](WorkerServer::serve). A step sees a [`WorkerContext`].
//!
//! What a worker keeps between steps is registered too, and built by each worker when a step first
//! asks for it: a [`Resource`] of its own, a [`PerWorkerDataset`] with an iterator of its own, a
//! [`SharedState`] or another [`SharedValue`] with variables on the parameter servers.
//!
//! A worker whose coordinator ends without having said so asks the step that runs to stop, keeps
//! nothing of that run, and waits for the next coordinator.

mod context;
mod dataset;
mod step_queue;
#[allow(clippy::allow_attributes, missing_docs, clippy::all, reason = "generated")]
#[rustfmt::skip]
pub(crate) mod generated;
mod registry;
mod resource;
mod server;
mod service;
pub(crate) mod settings;
mod shared_state;

pub use crate::value::HostTensor;
pub use context::{ResourceGuard, WorkerContext};
pub use dataset::PerWorkerDataset;
pub use registry::StepRegistry;
pub use resource::Resource;
pub use server::{WorkerOptions, WorkerServer, WorkerStopper};
pub use shared_state::{SharedState, SharedValue};

/// What a worker's process says that it is.
pub(crate) const SERVICE: &str = "worker";
/// Grows when coordinators and workers of two versions cannot work together.
pub(crate) const PROTOCOL_VERSION: u32 = 1;
pub(crate) const CRATE_VERSION: &str = env!("CARGO_PKG_VERSION");
/// What a message between coordinator and worker has besides arguments or a result.
pub(crate) const MESSAGE_OVERHEAD_BYTES: usize = 64 << 10;
