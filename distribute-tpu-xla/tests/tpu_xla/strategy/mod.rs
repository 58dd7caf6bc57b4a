//! `TpuStrategy` on XLA's CPU client: the same steps as under `MirroredStrategy`, with the same
//! weights in the end.

mod ahead;
mod bad_plugins;
mod errors;
mod fit;
mod inside;
mod kinds;
mod local_normalization;
mod loss_scale;
mod messages;
mod mixed;
pub mod models;
mod normalization;
mod numerics;
mod processes;
mod random;
mod reductions;
mod reported;
mod residency;
pub mod support;
mod threads;
mod tiles;
