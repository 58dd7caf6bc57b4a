//! What each replica reads and how its loss is scaled.
//!
//! - [`readers`] turns files into plain arrays in host memory; nothing in it knows of burn or of a
//!   strategy.
//! - [`Dataset`] makes tensors of them; [`StrategyDataExt::distribute_dataset`] cuts every global
//!   batch over the replicas exactly as TensorFlow does and prefetches on a background thread.
//! - [`average_loss`] and [`scale_regularization_loss`] scale a replica's loss so that the
//!   SUM over all replicas is the loss of the global batch.
//! - [`fit`] is the loop that trains on such data sets, with callbacks.
//! - `cuda`, with the feature of that name, has NVIDIA GPUs as devices of replicas.
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
mod dataset;
mod dataset_arrays;
mod dataset_openers;
mod dataset_text;
mod distribute;
mod distribute_epoch;
mod error;
mod from_function;
pub mod loss;
mod order;
mod prefetch;
pub mod prelude;
pub mod split;
mod supervised;
mod weighted;
mod worker_agreement;
mod worker_shard;

pub use auto_shard::{AutoShardPolicy, ShardHint};
pub use batching::Batching;
pub use dataset::{Dataset, FnDataset};
pub use dataset_arrays::{ArrayDataset, ImageDataset, TabularDataset, ValueDataset};
pub use dataset_openers::{Digits, FashionMnist, Mnist};
pub use dataset_text::{PADDING, TextDataset, UNKNOWN, Vocabulary};
pub use distribute::{DistributedDataset, Position, StrategyDataExt};
#[cfg(feature = "cuda")]
pub use distribute_cuda as cuda;
pub use distribute_epoch::Epoch;
pub use distribute_fit as fit;
pub use distribute_fit::tensorboard;
pub use distribute_readers as readers;
pub use error::DataError;
pub use from_function::{DistributedFunction, ReplicationMode, Steps};
pub use loss::{
    AverageLoss, LossValue, Reduction, SampleWeight, average_loss, binary_crossentropy,
    categorical_crossentropy, l2, mean_squared_error, scale_regularization_loss,
    sparse_categorical_crossentropy,
};
pub use supervised::{Accuracy, BatchMetric, BatchMetrics, LabelledBatch, Named, Supervised};
pub use weighted::Weighted;

/// The README's program is compiled and run as a test.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;

/// The programs of the book's pages are compiled and run as tests.
#[cfg(doctest)]
#[doc = include_str!("../../docs/quick-start.md")]
struct QuickStart;

/// As above.
#[cfg(doctest)]
#[doc = include_str!("../../docs/strategies.md")]
struct Strategies;

/// As above.
#[cfg(doctest)]
#[doc = include_str!("../../docs/data.md")]
struct Data;

/// As above.
#[cfg(doctest)]
#[doc = include_str!("../../docs/losses.md")]
struct Losses;

/// As above.
#[cfg(doctest)]
#[doc = include_str!("../../docs/checkpoints.md")]
struct Checkpoints;

/// As above.
#[cfg(doctest)]
#[doc = include_str!("../../docs/failures.md")]
struct Failures;

/// As above.
#[cfg(doctest)]
#[doc = include_str!("../../docs/from-tensorflow.md")]
struct FromTensorFlow;

/// As above.
#[cfg(doctest)]
#[doc = include_str!("../../docs/from-pytorch.md")]
struct FromPyTorch;

/// As above.
#[cfg(doctest)]
#[doc = include_str!("../../docs/from-horovod.md")]
struct FromHorovod;

/// As above.
#[cfg(doctest)]
#[doc = include_str!("../../docs/from-jax.md")]
struct FromJax;
