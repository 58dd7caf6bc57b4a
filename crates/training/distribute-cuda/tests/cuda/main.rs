//! Training on a GPU: needs one, and says SKIPPED without. `scripts/gpu-check` runs it; every
//! check of `cargo xtask check` reads its types.

mod failures;
mod gpu;
mod gradients;
mod model;
#[path = "../../../../../distribute-core/tests/odd_gradients/mod.rs"]
mod odd_gradients;
mod processes;
mod training;
