//! All tests of this crate's interface in one program, because linking takes longer than compiling.

mod changed_files;
mod counted;
mod deviations;
mod documents;
mod errors;
mod everything;
mod misuse;
mod other_inputs;
#[path = "../../../distribute-tpu-xla/tests/tpu_xla/plugins.rs"]
#[expect(dead_code, reason = "shared with tests that use all of it")]
mod plugins;
mod tpu;

use distribute_core::MirroredStrategy;

fn mirrored(replicas: usize) -> MirroredStrategy {
    MirroredStrategy::builder()
        .replicas(replicas)
        .build()
        .unwrap()
}
