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
pub(crate) mod messages;
mod registry;
mod resource;
mod server;
mod service;
pub(crate) mod settings;
mod shared_state;
mod step_queue;

pub use crate::value::HostTensor;
pub use context::WorkerContext;
pub use dataset::{DatasetIterator, PerWorkerDataset};
pub(crate) use registry::SharedValues;
pub use registry::StepRegistry;
pub use resource::{OnWorkers, Resource, ResourceGuard};
pub use server::{WorkerOptions, WorkerServer, WorkerStopper};
pub use shared_state::{OnServers, SharedState, SharedValue};
pub(crate) use shared_state::{once, only};

/// What a message between coordinator and worker has besides arguments or a result.
pub(crate) const MESSAGE_OVERHEAD_BYTES: usize = 64 << 10;
