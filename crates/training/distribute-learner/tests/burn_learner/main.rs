//! Our strategies under burn's own training loop (feature `burn-train`).

mod batches;
mod common;
mod events;
#[path = "../../examples/learner.rs"]
mod example;
mod failures;
mod fit;
#[path = "../../../../../distribute-core/tests/all/multi_worker/group.rs"]
#[expect(dead_code, reason = "shared with tests that use all of it")]
mod group;
mod normalization;
mod outputs;
mod processes;
mod resumed;
mod two_lines;
mod updates;
mod workers;
mod workers_failures;
