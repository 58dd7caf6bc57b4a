//! `tf.distribute` for [burn](https://burn.dev): one crate to depend on, with all strategies, data
//! sets and the training loop.
//!
//! Everything of `distribute-core` is here by its own name: strategies ([`MirroredStrategy`], ..),
//! [`TrainState`], optimizers, [`checkpoint`], [`cluster`], [`collectives`]. [`data`] distributes
//! data sets, [`fit`] trains, and [`burn`] is burn itself with the features that all of this needs.
//! What a program uses most is in the [`prelude`].
//!
//! | feature | what it adds |
//! |---|---|
//! | `cuda`, `fusion`, `autotune` | `cuda`: replicas on NVIDIA GPUs ([how to build](https://docs.rs/distribute-cuda)) |
//! | `tpu` | `tpu`: `TpuStrategy` for TPUs and other devices with a PJRT plugin |
//! | `parameter-server` | `parameter_server`: variables on servers, and a coordinator |
//! | `keras` | `keras`: Keras models |
//! | `classifier` | `classifier`: what `distribute-cli train` trains |
//! | `kernels` | `kernels`: faster convolution and max-pooling on CPUs |
//! | `models` | `models`: ResNet, a GPT and a recommender |
//! | `dataset` | burn's data loaders as what replicas read from |
//! | `learner` | `learner`: replicas under burn's own training loop |
//!
//! ```
//! use distribute::burn::nn::{Linear, LinearConfig};
//! use distribute::prelude::*;
//!
//! let strategy = MirroredStrategy::builder().replicas(2).build()?;
//! let digits = Digits::open()?;
//! let train = strategy.distribute_dataset(digits.train()?, Batching::global(64).shuffle(42))?;
//! let mut state = strategy.scope(|device| {
//!     device.seed(42);
//!     TrainState::new(LinearConfig::new(64, 10).init(device), Adam::new(1e-2))
//! })?;
//! let forward = |model: &Linear, images: Tensor<4>| model.forward(images.flatten::<2>(1, 3));
//! let objective = Supervised::new(forward, SparseCategoricalCrossentropy::default())
//!     .accuracy()
//!     .objective();
//! let history = Fit::new(&strategy).epochs(2).run(&mut state, &train, objective)?;
//! assert!(history.last_logs().get("accuracy").is_some_and(|accuracy| accuracy > 0.8));
//! # Ok::<(), distribute::Error>(())
//! ```
#![forbid(unsafe_code)]
#![deny(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    clippy::unwrap_used
)]

pub mod prelude;

pub use burn;
#[cfg(feature = "classifier")]
pub use distribute_classifier as classifier;
pub use distribute_core::*;
// The traits of these names are in the line above; these macros expand to paths of this crate.
pub use distribute_core_derive::{FacadeNest as Nest, FacadeReplicate as Replicate};
#[cfg(feature = "cuda")]
pub use distribute_cuda as cuda;
pub use distribute_data as data;
pub use distribute_fit as fit;
#[cfg(feature = "keras")]
pub use distribute_keras as keras;
#[cfg(feature = "kernels")]
pub use distribute_kernels as kernels;
#[cfg(feature = "learner")]
pub use distribute_learner as learner;
#[cfg(feature = "models")]
pub use distribute_models as models;
pub use distribute_pipeline as pipeline;
#[cfg(feature = "parameter-server")]
pub use distribute_ps as parameter_server;
pub use distribute_readers as readers;
#[cfg(feature = "tpu")]
pub use distribute_tpu_xla as tpu;

/// A program that depends on this crate alone derives the traits by either import.
///
/// ```
/// mod by_prelude {
///     use distribute::prelude::*;
///
///     #[derive(Nest, Clone)]
///     pub struct Batch {
///         images: Tensor<4>,
///         labels: Tensor<1, burn::tensor::Int>,
///     }
///
///     #[derive(Module, Debug)]
///     pub struct Model {
///         layer: burn::nn::Linear,
///     }
///     use burn::module::Module;
/// }
///
/// mod by_name {
///     use distribute::{Nest, Replicate, Tensor};
///
///     #[derive(Nest, Clone)]
///     pub enum Batch {
///         Images(Tensor<4>),
///         Nothing,
///     }
///
///     #[derive(Replicate, Clone)]
///     pub struct Both {
///         first: Tensor<1>,
///         second: Tensor<2>,
///     }
/// }
/// fn is_nest<T: distribute::Nest>() {}
/// fn is_replicate<T: distribute::Replicate>() {}
/// is_nest::<by_prelude::Batch>();
/// is_nest::<by_name::Batch>();
/// is_replicate::<by_name::Both>();
/// ```
#[cfg(doctest)]
struct OneDependency;

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

/// As above; some are programs of burn's datasets.
#[cfg(all(doctest, feature = "dataset"))]
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
#[doc = include_str!("../../docs/fine-tuning.md")]
struct FineTuning;

/// As above.
#[cfg(doctest)]
#[doc = include_str!("../../docs/batch-normalization.md")]
struct BatchNormalization;

/// As above.
#[cfg(doctest)]
#[doc = include_str!("../../docs/failures.md")]
struct Failures;

/// As above.
#[cfg(doctest)]
#[doc = include_str!("../../docs/coming-from-burn.md")]
struct ComingFromBurn;

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

/// As above.
#[cfg(doctest)]
#[doc = include_str!("../../docs/many-machines.md")]
struct ManyMachines;

/// As above.
#[cfg(doctest)]
#[doc = include_str!("../../docs/same-bits.md")]
struct SameBits;

/// As above.
#[cfg(all(doctest, feature = "keras"))]
#[doc = include_str!("../../docs/from-keras.md")]
struct FromKeras;

/// As above.
#[cfg(all(doctest, feature = "parameter-server"))]
#[doc = include_str!("../../docs/parameter-servers.md")]
struct ParameterServers;

/// As above.
#[cfg(all(doctest, feature = "tpu"))]
#[doc = include_str!("../../docs/tpu.md")]
struct OnATpu;
