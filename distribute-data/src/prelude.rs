//! What a training program names: `use distribute_data::prelude::*;`, next to that of
//! `distribute-core`.

pub use crate::loss::{
    BinaryCrossentropy, CategoricalCrossentropy, MeanSquaredError, SparseCategoricalCrossentropy,
};
pub use crate::{
    ArrayDataset, AutoShardPolicy, AverageLoss, Batching, Dataset, Digits, DistributedDataset,
    FashionMnist, FnDataset, ImageDataset, Mnist, SampleWeight, ShardHint, SourceDataset,
    StrategyDataExt, TabularDataset, TextDataset, ValueDataset, Weighted, average_loss,
    binary_crossentropy, categorical_crossentropy, l2, mean_squared_error,
    scale_regularization_loss, sparse_categorical_crossentropy,
};
