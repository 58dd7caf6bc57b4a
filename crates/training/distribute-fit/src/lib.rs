//! The high-level loop: fit, evaluate and predict, with callbacks.
//!
//! You write the forward pass once, as a closure that gives an [`Objective`]; it serves training
//! ([`Fit`]) and evaluation ([`evaluate`], [`predict`]) under every strategy. `Fit` computes the
//! gradients, applies the optimizer, averages losses and metrics over replicas and batches, and
//! calls the [callbacks](Callback). It reads any
//! [`BatchSource`](distribute_core::BatchSource), such as the data sets of `distribute-data`.
//!
//! ```
//! use burn::nn::{Linear, LinearConfig};
//! use distribute_core::{
//!     BatchSource, Batches, MirroredStrategy, PerReplica, Result, Sgd, Strategy, StrategyExt,
//!     Tensor, TrainState,
//! };
//! use distribute_fit::{Fit, Objective, StepContext, evaluate};
//!
//! /// Two global batches of four numbers x with the labels 3 x.
//! struct Triples<'a>(&'a MirroredStrategy);
//!
//! impl BatchSource for Triples<'_> {
//!     type Batch = Tensor<2>;
//!
//!     fn batches_per_epoch(&self) -> Option<usize> {
//!         Some(2)
//!     }
//!
//!     fn global_batch_size(&self) -> Option<usize> {
//!         Some(4)
//!     }
//!
//!     fn epoch(&self, _: usize, skip_batches: usize) -> Result<Batches<'_, Tensor<2>>> {
//!         let rows = |batch: usize, replica: usize| {
//!             let x = (batch * 4 + replica * 2) as f32;
//!             [[x * 0.1], [(x + 1.0) * 0.1]]
//!         };
//!         Ok(Box::new((skip_batches..2).map(move |batch| {
//!             let replicas = self.0.replicas().iter().enumerate();
//!             let parts = replicas.map(|(index, replica)| {
//!                 Tensor::from_data(rows(batch, index), &replica.device)
//!             });
//!             Ok(PerReplica::new(parts.collect()))
//!         })))
//!     }
//! }
//!
//! let strategy = MirroredStrategy::builder().replicas(2).build()?;
//! let data = Triples(&strategy);
//! let mut state = strategy.scope(|device| {
//!     TrainState::new(LinearConfig::new(1, 1).init(device), Sgd::new(0.5))
//! })?;
//!
//! let objective = |ctx: &StepContext<'_>, model: &Linear, x: Tensor<2>| {
//!     let error = model.forward(x.clone()) - x * 3.0;
//!     Ok(Objective::new(ctx.mean_loss((error.clone() * error).mean())?))
//! };
//! let history = Fit::new(&strategy).epochs(100).run(&mut state, &data, objective)?;
//! assert!(history.last_logs().loss() < 1e-2);
//! assert!(evaluate(&strategy, &state, &data, objective)?.logs.loss() < 1e-2);
//! # Ok::<(), distribute_core::Error>(())
//! ```
//!
//! # Resuming
//!
//! [`ModelCheckpoint`](callbacks::ModelCheckpoint) saves, between two updates, everything the loop
//! depends on: model, optimizer slots, step, learning rate, position in the data, the sums behind
//! the epoch's losses and the state of the other callbacks. [`Fit::resume_from`] continues there:
//! with the same data source the weights and the loss curve are the same as of a run that was never
//! interrupted, bit for bit. (Draw random numbers from [`StepContext::rng`] and use
//! [`dropout`](distribute_core::dropout): burn's own `Dropout` shares one generator between all
//! replicas.)
#![forbid(unsafe_code)]
#![deny(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    clippy::unwrap_used
)]

mod bits;
pub mod callbacks;
mod control;
mod data_state;
mod divergence;
mod error;
mod evaluation;
mod exact;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
mod history;
mod local;
mod meter;
mod named_metric;
mod objective;
pub mod prelude;
mod ranks;
mod remote;
mod restore;
mod session;
mod side_output;
mod snapshot;
mod state_memory;
mod supervised;
pub mod tensorboard;
mod training;
mod whole_file;
mod worker_sync;

pub use bits::{BitComparison, compare_bits};
pub use control::{Callback, CallbackState, Control, Progress};
pub use divergence::check_same_state;
pub use error::FitError;
pub use evaluation::{Evaluation, evaluate, predict};
pub use exact::json_number;
pub use history::{EpochRecord, History, Outcome, Position};
pub use meter::Logs;
pub use objective::{Mode, Objective, Quantity, StepContext};
pub use ranks::RankReport;
pub use remote::{RemotePass, RemoteStep, RemoteSteps, RemoteTask, StepReport};
pub use restore::{restore, restore_weights};
pub use snapshot::{RunInfo, averaged_weights, best_weights, snapshot};
pub use state_memory::StateMemory;
pub use supervised::{BatchMetrics, LabelledBatch, Supervised};
pub use training::Fit;
pub use whole_file::WholeFile;
