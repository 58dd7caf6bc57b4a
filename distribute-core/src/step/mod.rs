//! One call of a step: its arguments, and how it is captured, compiled and run as a program.

mod args;
mod call;
pub(crate) mod compiled;
mod digest;
pub(crate) mod eager;
mod twice;

pub use args::{InTraining, Item, Replicated, StepArgs, StepArgument};
pub(crate) use args::{RunGuard, Split, States};

use crate::{ReplicaContext, Result};

/// The closure of a step. What runs it is compiled for the types of its arguments and its result
/// alone, not once more for every closure.
pub(crate) type StepFn<'f, A, R> =
    dyn for<'x> Fn(&ReplicaContext, Item<'x, A>) -> Result<R> + Sync + 'f;
