//! Strategies: they own the replicas, run a step on all of them, and reduce their values.
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

mod batch_source;
pub mod burn_internals;
pub mod communication;
mod computed;
mod configuration;
mod copies;
mod cross_device;
mod device;
mod device_reduce;
mod distributed_value;
mod dropout;
mod error;
mod follow;
mod gradients;
mod host_reduce;
mod indexed_slices;
mod load_parameters;
mod local_batch_norm;
pub mod loss;
mod macros;
pub mod metric;
mod nest;
mod notes;
pub mod optim;
mod parameters;
mod policy;
pub mod prelude;
mod random;
mod recompute;
pub mod remote;
mod remote_model;
mod replica;
mod replicate;
mod running_statistics;
mod saved_part;
pub mod schedule;
mod scope;
mod shown;
mod state_leaf;
mod step;
mod strategy;
mod sync;
mod sync_batch_norm;
pub mod trace;
mod train_state;
mod values;
mod variable;
mod workers;
mod wrong_gradient;

pub use batch_source::{BatchSource, Batches, SourceState};
pub use burn::tensor::{Device, Tensor, TensorData};
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
pub use dropout::{dropout, dropout_mask, uniform};
pub use error::{Error, Result};
pub use follow::follow;
pub use gradients::{Clip, Gradients, LossScale, Models};
pub use host_reduce::concatenate;
pub use indexed_slices::IndexedSlices;
pub use load_parameters::{LoadStatus, load_parameters};
pub use local_batch_norm::LocalBatchNorm;
pub use nest::{FieldVisitor, Leaf, LeafVisitor, Nest, NestPath, NestWith};
pub use optim::{
    Adadelta, Adagrad, Adam, AdamW, Adamax, BurnConfig, BurnOptimizer, BurnParts, Ftrl, Lion,
    MovingAverage, Nadam, OwnRule, RateFactors, RmsProp, Sgd, WeightDecay,
};
pub use policy::Policy;
pub use recompute::Recomputation;
pub use replica::{ReplicaContext, ReplicaRng};
pub use replicate::{PartVisitor, Replicate, StatePart};
pub use running_statistics::RunningStatistics;
pub use saved_part::SavedPart;
pub use scope::{has_strategy, in_step};
pub use state_leaf::{StateKind, StateLeaf, StateOwner, StateVisitor, StateWalk};
pub use step::{InTraining, Item, Replicated, StepArgs};
// Hidden from the documentation, and public so that rustc's messages name it by a short path.
#[doc(hidden)]
pub use step::StepArgument;
pub use strategy::{
    CentralStorageStrategy, DefaultStrategy, InputContext, MirroredStrategy,
    MirroredStrategyBuilder, MultiWorkerMirroredStrategy, MultiWorkerMirroredStrategyBuilder,
    OneDeviceStrategy, Replica, ReplicaStep, ReplicaThreads, ReplicaThreadsBuilder, Strategy,
    StrategyExt, StrategyId, VariablePlacement, current_strategy, run_on_calling_thread,
};
pub use sync_batch_norm::{SyncBatchNorm, SyncBatchNormConfig};
pub use train_state::{Applied, OwnTensors, TrainState, TrainStates};
pub use values::{Mirrored, PerReplica};
pub use variable::{
    AssignTo, DistributedVariable, VariableAggregation, VariableContext, VariableKind,
    VariableOptions, VariableSynchronization, VariableValue,
};
pub use workers::WorkerGroup;
pub use workers::shares::replica_range;
pub use wrong_gradient::WrongGradient;
