//! Steps that are captured: what the graph holds, when a step is captured again, where the state
//! is, and which steps are refused. The programs here compute nothing; those in
//! `distribute-tpu-xla` do.

mod capture;
mod changes;
mod loss_scale;
mod normalization;
mod random;
mod refused;
pub(crate) mod support;
