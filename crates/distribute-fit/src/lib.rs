//! The high-level loop: fit, evaluate and predict, with callbacks.
//!
//! You write the forward pass once, as a closure that gives an [`Objective`]; it serves training
//! ([`Fit`]) and evaluation ([`evaluate`], [`predict`]) under every strategy. `Fit` computes the
//! gradients, applies the optimizer, averages losses and metrics over replicas and batches, and
//! calls the [callbacks](Callback). `distribute-data` re-exports this crate as
//! `distribute_data::fit`, and its data sets are what it reads.
//!
//! ```
//! use burn::nn::{Linear, LinearConfig};
//! use distribute_core::{
//!     MirroredStrategy, PerReplica, Result, Sgd, Strategy, StrategyExt, Tensor, TrainState,
//! };
//! use distribute_fit::{BatchSource, Batches, Fit, Objective, StepContext, evaluate};
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
//! let objective = |_: &StepContext<'_>, model: &Linear, x: Tensor<2>| {
//!     let error = model.forward(x.clone()) - x.clone() * 3.0;
//!     let loss = (error.clone() * error).sum() / 4.0;
//!     Ok(Objective::new(loss).examples(x.dims()[0]))
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
//! with the same data source the weights and the loss curve are those of a run that was never
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

use distribute_core::{Nest, PerReplica, Result};

mod bits;
pub mod callbacks;
mod control;
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
mod objective;
mod remote;
mod session;
mod side_output;
mod snapshot;
mod state_memory;
mod statistics;
pub mod tensorboard;
mod training;
mod waiting;
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
pub use remote::{RemotePass, RemoteStep, RemoteSteps, RemoteTask, StepReport};
pub use snapshot::{RunInfo, averaged_weights, best_weights, restore, restore_weights, snapshot};
pub use state_memory::StateMemory;
pub use training::Fit;

/// The global batches of an epoch, one after the other.
pub type Batches<'a, B> = Box<dyn Iterator<Item = Result<PerReplica<B>>> + 'a>;

/// Where [`Fit`], [`evaluate`] and [`predict`] get their batches from. The distributed data set of
/// the crate `distribute-data` is one.
///
/// Every item holds one batch per local replica, in replica order, on the replica's device. A
/// replica's batch may be empty (zero examples) when the last global batch is short.
pub trait BatchSource {
    /// What one replica's step receives: usually a tuple of tensors.
    type Batch: Nest + Send;

    /// The number of global batches of an epoch, if known: for progress bars.
    fn batches_per_epoch(&self) -> Option<usize>;

    /// Whether the epochs of all workers have equally many batches, as they must. By default that
    /// is believed of a source that knows the number, which [`Fit`] compares when a run begins; of
    /// others the workers tell each other before every batch, and a source that gives one worker
    /// more batches than another is an error on all of them, not a wait.
    fn ends_together(&self) -> bool {
        self.batches_per_epoch().is_some()
    }

    /// The examples of a full global batch, over all replicas: what losses are divided by. `None`
    /// if the batches have no fixed size; every batch then counts by its examples.
    fn global_batch_size(&self) -> Option<usize>;

    /// A batch of this source, with the size of its global batch.
    fn of_global_batch(&self, batch: PerReplica<Self::Batch>) -> PerReplica<Self::Batch> {
        let known = batch.global_batch_size();
        batch.of_global_batch(self.global_batch_size().or(known))
    }

    /// Which part of every global batch each local replica reads, in replica order, counted in the
    /// order of the source; by default the replicas' ids. Decides the order of [`predict`]'s rows.
    fn parts(&self) -> Option<Vec<usize>> {
        None
    }

    /// How many rows at the end of each local replica's batch, in replica order, only fill it up,
    /// for the global batch `batch` (from 0) of every epoch; `None`, the default, if none do.
    /// [`predict`] leaves them out; an objective is told by the batch itself.
    fn padding(&self, batch: usize) -> Option<Vec<usize>> {
        let _ = batch;
        None
    }

    /// The batches of epoch `epoch` (from 0), without the first `skip_batches`.
    ///
    /// The same epoch must always give the same batches in the same order, else a resumed run is
    /// not the interrupted one. Skipping all batches gives an empty iterator.
    ///
    /// # Errors
    /// If the data cannot be read. Errors of single batches are items.
    fn epoch(&self, epoch: usize, skip_batches: usize) -> Result<Batches<'_, Self::Batch>>;

    /// One global batch of an epoch by its number, for steps that run in any order
    /// ([`RemoteTask`]); `None` after the last one. The same batch as that of
    /// [`epoch`](Self::epoch), which by default is asked for it.
    ///
    /// # Errors
    /// If the data cannot be read.
    fn batch(&self, epoch: usize, batch: usize) -> Result<Option<PerReplica<Self::Batch>>> {
        self.epoch(epoch, batch)?.next().transpose()
    }
}
