//! Distributes data to replicas, and scales their losses.
//!
//! - [`Dataset`] makes tensors of examples, such as the arrays that `distribute-readers` makes of
//!   files; [`StrategyDataExt::distribute_dataset`] cuts every global
//!   batch over the replicas exactly as TensorFlow does and prefetches on a background thread.
//! - [`average_loss`] and [`scale_regularization_loss`] scale a replica's loss so that the
//!   SUM over all replicas is the loss of the global batch.
//!
//! ```
//! use distribute_core::{MirroredStrategy, ReduceOp, StrategyExt};
//! use distribute_data::{Batching, Digits, StrategyDataExt};
//!
//! let strategy = MirroredStrategy::builder().replicas(2).build()?;
//! let digits = Digits::open()?.train()?;
//! let train = strategy.distribute_dataset(digits, Batching::global(64).shuffle(42))?;
//! let mut examples = 0;
//! for batch in train.epoch(0).take(3) {
//!     let counts = strategy.run(batch?, |_ctx, (images, _labels)| Ok(images.dims()[0]))?;
//!     assert_eq!(counts.values(), [32, 32]);
//!     examples += strategy.reduce(ReduceOp::Sum, counts)?;
//! }
//! assert_eq!(examples, 192);
//! # Ok::<(), distribute_core::Error>(())
//! ```

#![forbid(unsafe_code)]
#![deny(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    clippy::unwrap_used
)]

mod auto_shard;
mod batch_source;
mod batching;
#[cfg(feature = "dataset")]
mod data_loader;
mod dataset;
mod dataset_arrays;
mod dataset_openers;
mod dataset_source;
mod dataset_text;
mod distribute;
mod distribute_epoch;
mod distribute_stream;
mod error;
mod from_function;
mod keras_metric;
pub mod loss;
mod order;
mod prefetch;
pub mod prelude;
pub mod split;
mod weighted;
mod worker_agreement;
mod worker_shard;

pub use auto_shard::{AutoShardPolicy, ShardHint};
pub use batching::Batching;
#[cfg(feature = "dataset")]
pub use data_loader::DistributedDataLoader;
pub use dataset::{Dataset, FnDataset};
pub use dataset_arrays::{ArrayDataset, ImageDataset, TabularDataset, ValueDataset};
pub use dataset_openers::{Digits, FashionMnist, Mnist};
pub use dataset_source::SourceDataset;
pub use dataset_text::{PADDING, TextDataset, UNKNOWN, Vocabulary};
pub use distribute::{DistributedDataset, Position, StrategyDataExt};
pub use distribute_epoch::Epoch;
pub use distribute_stream::DistributedStream;
pub use error::DataError;
pub use from_function::{DistributedFunction, ReplicationMode, Steps};
pub use keras_metric::KerasMetric;
pub use loss::{
    AverageLoss, LossFunction, LossValue, Reduction, SampleWeight, average_loss,
    binary_crossentropy, categorical_crossentropy, l2, mean_squared_error,
    scale_regularization_loss, sparse_categorical_crossentropy,
};
pub use weighted::Weighted;
