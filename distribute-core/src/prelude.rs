//! What a training program names: `use distribute_core::prelude::*;`.
//!
//! A strategy's calls are methods of [`Strategy`] and [`StrategyExt`], which are both here.

pub use crate::{
    Adam, AdamW, BatchSource, CentralStorageStrategy, DefaultStrategy, Device, DistributedVariable,
    Error, InTraining, Mirrored, MirroredStrategy, MultiWorkerMirroredStrategy, Nest, NestWith,
    OneDeviceStrategy, PerReplica, ReduceOp, ReplicaContext, Replicate, Replicated, Result, Sgd,
    Strategy, StrategyExt, Tensor, TensorData, TrainState, VariableAggregation, VariableOptions,
};
