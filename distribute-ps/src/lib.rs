//! Asynchronous training: parameter servers hold the variables, a coordinator schedules the steps.
//!
//! A *parameter server* holds shards of variables and applies optimizers to them. Workers pull
//! variables, compute, and push gradients; no worker waits for another. The *coordinator* makes the
//! variables, schedules closures on workers and deals with those that are lost.
//!
//! One program is all of these: it is started once per task of the cluster, and `TF_CONFIG` says
//! which one a process is (`chief`, which is the coordinator, `worker` or `ps`). All of them
//! register the same steps by name; a *closure*, one scheduled call of a step, travels as the name
//! and the arguments. [`Program`] is the whole of it:
//!
//! ```no_run
//! use burn::nn::LinearConfig;
//! use burn::tensor::Tensor;
//! use distribute_core::{Adam, TrainState};
//! use distribute_ps::{ClusterCoordinator, Program, WorkerContext};
//!
//! let mut program = Program::new();
//! let state = program.state("model", |device| {
//!     TrainState::new(LinearConfig::new(2, 1).init(device), Adam::new(1e-3))
//! });
//! let data = program.dataset("train", |input| {
//!     let first = input.input_pipeline_id as u64;
//!     Ok((first..1_000).step_by(input.num_input_pipelines).map(Ok))
//! });
//! program.step("train", move |worker: &WorkerContext, scale: f32| {
//!     let number = worker.next(&data)? as f32 * scale;
//!     worker.run(&state, number, |ctx, (state, number)| {
//!         let x = Tensor::<2>::full([1, 2], number, ctx.device());
//!         let loss = state.model.forward(x).square().mean();
//!         let gradients = ctx.gradient(&loss, &state.model)?;
//!         state.apply_gradients(ctx, gradients)?;
//!         Ok(loss.into_scalar::<f32>())
//!     })
//! });
//! program.run(|coordinator: &ClusterCoordinator| {
//!     let loss = coordinator.schedule("train", 0.1_f32)?;
//!     coordinator.join()?;
//!     assert!(loss.fetch::<f32>()? >= 0.0);
//!     Ok(())
//! })?;
//! # Ok::<(), distribute_ps::PsError>(())
//! ```
//!
//! - [`coordinator`]: closures, their errors, and what happens when workers or servers are lost;
//! - [`worker`]: what a step sees of its worker;
//! - [`fit`]: `Fit` with its steps on the workers;
//! - [`program`]: the roles;
//! - [`strategy`]: states and variables on servers;
//! - [`table`]: embedding tables, of which only the touched rows travel;
//! - [`server`], [`client`], [`placement`]: what holds the shards, and where they lie.
#![deny(unsafe_code)]
#![deny(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    clippy::unwrap_used
)]

/// Compiles the program of the page.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}

pub mod client;
pub mod coordinator;
mod error;
mod error_fields;
pub mod fit;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
pub mod partitioners;
pub mod placement;
pub mod program;
mod push;
mod rpc;
pub mod server;
pub mod strategy;
pub mod table;
mod update;
mod update_ids;
mod value;
mod variable;
mod wire;
mod wire_error;
pub mod worker;

pub use client::{ClientOptions, Pulled, VariableClient};
pub use coordinator::{ClusterCoordinator, CoordinatorOptions, RemoteValue, Table, WorkerStatus};
pub use error::{PsError, Result};
pub use fit::{Training, TrainingData};
pub use placement::{Placement, RoundRobin, ShardPlacement};
pub use program::Program;
pub use server::{ParameterServer, ServerOptions};
pub use strategy::{ClosureGuard, ParameterServerStrategy};
pub use table::{EmbeddingTable, Rows, TableInitializer, TableSpec};
pub use update::{
    Gradient, NonFinite, PushOutcome, RunId, RunOptions, Staleness, StalenessPolicy, UpdateId,
    Versions,
};
pub use update_ids::UpdateSource;
pub use variable::{OptimizerSpec, Snapshot, VariableRef, VariableSpec};
pub use worker::{
    DatasetIterator, HostTensor, OnServers, OnWorkers, PerWorkerDataset, Resource, ResourceGuard,
    SharedState, SharedValue, StepRegistry, WorkerContext, WorkerOptions, WorkerServer,
    WorkerStopper,
};
