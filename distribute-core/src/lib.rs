//! Strategies: what a replica is, how a step runs on all of them, how their values are reduced.
//!
//! Write one training step and choose where it runs with one line:
//!
//! ```
//! use distribute_core::{MirroredStrategy, ReduceOp, StrategyExt};
//!
//! let strategy = MirroredStrategy::builder().replicas(2).build()?;
//! let squares = strategy.run((), |ctx, ()| Ok(ctx.replica_id().pow(2)))?;
//! assert_eq!(squares.values(), [0, 1]);
//! assert_eq!(strategy.reduce(ReduceOp::Sum, squares)?, 1);
//! # Ok::<(), distribute_core::Error>(())
//! ```
#![deny(unsafe_code)]
#![deny(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    clippy::unwrap_used
)]

extern crate self as distribute_core;

/// Compiles the program of the document.
#[cfg(doctest)]
#[doc = include_str!("../../docs/many-machines.md")]
mod many_machines {}

/// Compiles the program of the document.
#[cfg(doctest)]
#[doc = include_str!("../../docs/same-bits.md")]
mod same_bits {}

mod burn_optimizer;
pub mod communication;
mod configuration;
mod copies;
mod cross_device;
mod device;
mod device_reduce;
mod distributed_value;
mod dropout;
mod error;
mod gradients;
mod host_reduce;
mod indexed_slices;
mod local_batch_norm;
pub mod loss;
mod macros;
pub mod metric;
mod module_tensors;
mod nest;
pub mod optim;
mod parameters;
mod policy;
pub mod prelude;
pub mod remote;
mod replica;
mod replicate;
mod running_statistics;
pub mod schedule;
mod scope;
mod shown;
mod step;
mod strategy;
mod sync;
mod sync_batch_norm;
pub mod trace;
mod train_state;
mod values;
mod variable;
mod workers;

pub use burn::tensor::{Device, Tensor, TensorData};
pub use burn_optimizer::BurnTrainState;
pub use communication::{CommunicationImplementation, CommunicationOptions};
pub use configuration::{Configuration, Difference};
pub use copies::EndOfRun;
pub use cross_device::{
    CrossDeviceOps, DirectAllReduce, HierarchicalCopy, NcclAllReduce, ReductionToOneDevice,
};
pub use device::{
    DeviceReducer, DeviceReducers, DeviceReduction, GpuKind, JoinWorkers, LogicalDevice,
    available_cores,
};
#[cfg(feature = "nccl")]
pub use device_reduce::{NcclReducer, NcclReducers, TensorMemory};
pub use distribute_checkpoint as checkpoint;
pub use distribute_cluster as cluster;
pub use distribute_collectives::{self as collectives, ReduceOp};
pub use distribute_core_derive::{Nest, Replicate};
pub use distributed_value::{Components, DistributedValue};
pub use dropout::{dropout, dropout_mask};
pub use error::{Error, Result};
pub use gradients::{Clip, Gradients, LossScale};
pub use host_reduce::concatenate;
pub use indexed_slices::IndexedSlices;
pub use local_batch_norm::LocalBatchNorm;
pub use nest::{Leaf, LeafVisitor, Nest, NestPath};
pub use optim::{
    Adadelta, Adagrad, Adam, AdamW, Adamax, BurnOptimizer, Ftrl, Lion, MovingAverage, Nadam,
    RmsProp, Sgd, WeightDecay,
};
pub use policy::Policy;
pub use replica::{ReplicaContext, ReplicaRng};
pub use replicate::{PartVisitor, Replicate, StatePart};
pub use running_statistics::RunningStatistics;
pub use scope::{has_strategy, in_step};
pub use step::{Call, Capture, CapturedState, Changes, Item, Lend, Replicated, StepArgs};
pub use strategy::{
    CentralStorageStrategy, DefaultStrategy, InputContext, MirroredStrategy,
    MirroredStrategyBuilder, MultiWorkerMirroredStrategy, MultiWorkerMirroredStrategyBuilder,
    OneDeviceStrategy, Replica, ReplicaStep, ReplicaThreads, ReplicaThreadsBuilder, Strategy,
    StrategyExt, StrategyId, VariablePlacement, current_strategy, run_on_calling_thread,
};
pub use sync_batch_norm::{SyncBatchNorm, SyncBatchNormConfig};
pub use train_state::{Applied, TrainState};
pub use values::{Mirrored, PerReplica};
pub use variable::{
    AssignTo, DistributedVariable, VariableAggregation, VariableContext, VariableKind,
    VariableOptions, VariableSynchronization, VariableValue,
};
pub use workers::WorkerGroup;
pub use workers::shares::replica_range;
