//! Parameter servers: asynchronous training with a coordinator.
//!
//! A *parameter server* holds shards of variables and applies optimizers to them. Workers pull
//! variables, compute, and push gradients; nobody waits for anybody. The *coordinator* makes the
//! variables, schedules closures on workers and deals with those that are lost.
#![deny(unsafe_code)]

/// Compiles the program of the page.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}

pub mod client;
pub mod coordinator;
mod error;
#[allow(missing_docs, dead_code, clippy::all, clippy::pedantic)]
#[rustfmt::skip]
mod generated;
pub mod placement;
pub mod program;
pub mod rpc;
pub mod server;
pub mod strategy;
mod update;
mod variable;
mod wire_error;
pub mod worker;

pub use client::{ClientOptions, Pulled, VariableClient};
pub use coordinator::{ClusterCoordinator, CoordinatorOptions, RemoteValue, WorkerStatus};
pub use error::{PsError, Result};
pub use placement::{Placement, RoundRobin, ShardPlacement};
pub use program::Program;
pub use server::{ParameterServer, ServerOptions};
pub use strategy::{ClosureGuard, ParameterServerStrategy, UpdateSource};
pub use update::{
    Gradient, NonFinite, PushOutcome, RunId, RunOptions, Staleness, StalenessPolicy, UpdateId,
    Versions,
};
pub use variable::{OptimizerSpec, Snapshot, VariableRef, VariableSpec};
pub use worker::{
    Held, HostTensor, PerWorkerDataset, Resource, Shared, State, StepRegistry, WorkerContext,
    WorkerOptions, WorkerServer, WorkerStopper,
};
