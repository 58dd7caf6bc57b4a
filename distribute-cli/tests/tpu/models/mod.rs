//! The built-in models as compiled steps: trained on XLA's CPU client beside `MirroredStrategy`,
//! and compiled for TPUs that are not there.

mod ahead;
mod layers;
mod support;
mod task;
#[path = "../../../../distribute-tpu-xla/tests/tpu_xla/strategy/tiles.rs"]
mod tiles;
mod weights;
