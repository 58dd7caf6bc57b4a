//! Trains a classifier from the names of a model and of a data set, as `distribute-cli train` does.
//!
//! [`Task::open`] reads the data and builds the model, refuses what does not fit, and holds
//! examples out; [`objective`] is the forward pass with the loss that the model ends with or was
//! compiled with. [`Fit`](distribute_fit::Fit) trains both under any strategy. With the same
//! options this program ends with the weights of
//! `distribute-cli train --model MODEL --dataset DATASET --replicas 2`:
//!
//! ```
//! use distribute_classifier::{Classified, OptimizerOptions, Task, TaskOptions};
//! use distribute_classifier::{default_batch_size, objective};
//! use distribute_core::{MirroredStrategy, Policy, Strategy, StrategyExt};
//! use distribute_fit::Fit;
//! use distribute_data::{Batching, StrategyDataExt};
//!
//! # fn main() -> Result<(), distribute_core::Error> {
//! # let model = Some("mlp".to_string());
//! # let dataset = "digits".parse().map_err(distribute_core::Error::invalid)?;
//! let (mut task, data) = Task::open(&TaskOptions { model, dataset, ..Default::default() }, None)?;
//! let mut options = OptimizerOptions::default();
//! task.complete(&mut options); // what the model file was compiled with
//!
//! let strategy = MirroredStrategy::builder().replicas(2).build()?;
//! let batch = 2 * default_batch_size(data.train.len(), 2);
//! let shuffled = Batching::global(batch).shuffle(1);
//! let train = strategy.distribute_dataset(Classified::weighted(data.train), shuffled)?;
//! let test = Classified::weighted(data.test);
//! let test = strategy.distribute_dataset(test, Batching::global(batch))?;
//! let mut state = strategy.try_scope(|device| {
//!     Ok(options.clipped(task.state(options.build()?, 1, device)?))
//! })?;
//! let fit = Fit::new(&strategy).epochs(task.dataset.default_epochs()).seed(1);
//! # let fit = fit.epochs(2);
//! let objective = objective(Policy::float32(), task.measured());
//! let history = fit.run_with_validation(&mut state, &train, &test, objective)?;
//! assert!(history.last_logs().get("val_accuracy").is_some_and(|accuracy| accuracy > 0.5));
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]
#![deny(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    clippy::unwrap_used
)]

mod batches;
mod checks;
mod class_weights;
mod dataset_name;
mod error;
mod identity;
mod inputs;
mod local_path;
mod loss;
mod loss_name;
mod measured;
mod model_source;
mod names;
mod numbered;
mod objective;
mod optimizer;
mod output_options;
mod reading;
mod reading_options;
mod rows;
mod several;
mod split;
mod start_weights;
mod stored;
mod targets;
mod task;
mod texts;
mod vocabulary;

pub use batches::{Answers, Batch, Classified, Data, Targets, default_batch_size};
pub use dataset_name::DatasetName;
pub use error::TaskError;
pub use identity::{Identity, listed};
pub use inputs::Inputs;
pub use local_path::local_path;
pub use loss_name::LossName;
pub use measured::Measured;
pub use model_source::model_file_settings;
pub use names::{ScaleName, SplitName, TargetsName};
pub use objective::objective;
pub use optimizer::OptimizerOptions;
pub use output_options::OutputOptions;
pub use reading::Reading;
pub use reading_options::{EXTRA_KEY, ReadingOptions};
pub use several::{OutputTask, Several};
pub use split::{Chosen, Parts, SplitRecord};
pub use start_weights::StartWeights;
pub use stored::{stored_l2, stored_loss, trained_on};
pub use task::{Task, TaskOptions};
