//! Golden outputs of TensorFlow, and the runner that checks any backend, strategy or communicator
//! with them.
//!
//! The golden files record what TensorFlow 2.21 returned for `tf.distribute`; they are embedded,
//! and [`Golden::load`] reads any other directory of the same schema. A [`Suite`] holds what is
//! checked: [`Backend`]s (devices and a strategy) and [`CommunicatorFactory`]s. Its [`Report`]
//! says case by case what was expected and what came.
//!
//! Checking a communicator of your own takes this:
//!
//! ```
//! use conformance::{Golden, Suite, communicator};
//! use distribute_collectives::{Algorithm, Communicator, GroupOptions, in_process};
//!
//! let mine = communicator("mine", |world_size| {
//!     let group = in_process(world_size, GroupOptions::default().algorithm(Algorithm::Ring))?;
//!     Ok(group.into_iter().map(|rank| Box::new(rank) as Box<dyn Communicator>).collect())
//! });
//! let report = Suite::new(Golden::embedded()?).communicator(mine).run();
//! assert!(report.is_success(), "{report}");
//! # Ok::<(), conformance::GoldenError>(())
//! ```
//!
//! Rules decide which cases do not apply ([`Rule`]) and where the library deliberately differs
//! from TensorFlow ([`Deviation`]); neither ever looks at the name of a case.
#![forbid(unsafe_code)]
#![deny(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    clippy::unwrap_used
)]

mod backend;
mod case;
mod compare;
mod env;
mod error_kind;
mod expression;
mod families;
mod golden;
mod group;
mod job;
mod json;
mod outcome;
mod program;
mod report;
mod selection;
mod suite;
mod tensors;
mod tpu;

pub use backend::{Backend, StrategyFactory};
pub use case::{Case, Expected, StrategyKind, StrategySpec};
pub use compare::Tolerance;
pub use families::multi_worker::run_worker;
pub use golden::{FamilyName, Golden, GoldenError, GoldenFile};
pub use group::{CommunicatorFactory, communicator};
pub use outcome::{Deviation, Failure, Outcome, Rule};
pub use program::WorkerProgram;
pub use report::{FailedCase, FamilyCounts, Report};
pub use selection::{Selection, SelectionError};
pub use suite::Suite;

/// Misuse that TensorFlow finds at run time and the compiler finds here.
///
/// A step has no strategy to reduce with; its context has `all_reduce`:
///
/// ```compile_fail
/// use distribute_core::{MirroredStrategy, ReduceOp, StrategyExt};
///
/// let strategy = MirroredStrategy::builder().replicas(2).build().unwrap();
/// strategy.run((), |ctx, ()| ctx.reduce(ReduceOp::Sum, 1.0_f32)).unwrap();
/// ```
///
/// A context does not leave its step:
///
/// ```compile_fail
/// use distribute_core::{MirroredStrategy, StrategyExt};
///
/// let strategy = MirroredStrategy::builder().replicas(2).build().unwrap();
/// let mut kept = None;
/// strategy.run((), |ctx, ()| { kept = Some(ctx); Ok(()) }).unwrap();
/// ```
///
/// A batch size is a number of examples:
///
/// ```compile_fail
/// use distribute_core::{ReplicaContext, Result, Tensor};
///
/// fn loss(ctx: &ReplicaContext, losses: Tensor<1>) -> Result<Tensor<1>> {
///     distribute_data::AverageLoss::new().global_batch_size(-2).of(ctx, losses)
/// }
/// ```
///
/// Arguments of a step are a tuple:
///
/// ```compile_fail
/// use distribute_core::{DefaultStrategy, StrategyExt};
///
/// DefaultStrategy::new().run("three", |_, x| Ok(x)).unwrap();
/// ```
///
/// What a step does with its context compiles:
///
/// ```
/// use distribute_core::{MirroredStrategy, ReduceOp, StrategyExt};
///
/// let strategy = MirroredStrategy::builder().replicas(2).build()?;
/// let sums = strategy.run((), |ctx, ()| ctx.all_reduce(ReduceOp::Sum, 1.0_f32))?;
/// assert_eq!(sums.values(), [2.0, 2.0]);
/// # Ok::<(), distribute_core::Error>(())
/// ```
pub mod misuse {}
