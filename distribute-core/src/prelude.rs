//! What a training program names: `use distribute_core::prelude::*;`.
//!
//! A strategy's calls are methods of [`Strategy`] and [`StrategyExt`], which are both here.

pub use crate::{
    Adam, AdamW, CentralStorageStrategy, DefaultStrategy, Device, DistributedVariable, Error,
    Mirrored, MirroredStrategy, MultiWorkerMirroredStrategy, Nest, OneDeviceStrategy, PerReplica,
    ReduceOp, ReplicaContext, Replicate, Replicated, Result, Sgd, Strategy, StrategyExt, Tensor,
    TensorData, TrainState, VariableAggregation, VariableOptions,
};
