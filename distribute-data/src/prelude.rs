//! What a training program names: `use distribute_data::prelude::*;`, next to that of
//! `distribute-core`.

#[cfg(feature = "cuda")]
pub use distribute_cuda::{all_gpus, cuda};
pub use distribute_fit::callbacks::{
    ApplyAverages, BitLog, EarlyStopping, HistoryFile, Interrupt, LearningRateScheduler,
    ModelCheckpoint, ProgressBar, ReduceLrOnPlateau, ReplicateState, TensorBoard, TerminateOnNan,
};
pub use distribute_fit::{
    BatchSource, Callback, Fit, History, Objective, StepContext, evaluate, predict,
};

pub use crate::loss::{
    BinaryCrossentropy, CategoricalCrossentropy, MeanSquaredError, SparseCategoricalCrossentropy,
};
pub use crate::{
    ArrayDataset, AutoShardPolicy, AverageLoss, Batching, Dataset, Digits, DistributedDataset,
    FashionMnist, FnDataset, ImageDataset, Mnist, SampleWeight, ShardHint, StrategyDataExt,
    Supervised, TabularDataset, TextDataset, ValueDataset, Weighted, average_loss,
    binary_crossentropy, categorical_crossentropy, l2, mean_squared_error,
    scale_regularization_loss, sparse_categorical_crossentropy,
};
