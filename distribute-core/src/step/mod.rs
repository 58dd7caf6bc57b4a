//! One call of a step: its arguments, and how it is captured, compiled and run as a program.

mod args;
mod call;
mod compiled;
mod digest;
mod twice;

pub(crate) use args::PoisonOnError;
pub use args::{Item, Lend, Replicated, StepArgs};
pub use call::{Call, Capture, CapturedState, Changes};
pub(crate) use compiled::run;
