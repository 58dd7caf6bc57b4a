//! Our strategies under burn's own training loop (feature `burn-train`).

mod batches;
mod common;
mod events;
mod failures;
mod normalization;
mod updates;
