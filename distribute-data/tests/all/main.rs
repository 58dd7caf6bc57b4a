//! All tests of this crate in one program, because linking takes longer than compiling.

mod batchers;
mod datasets;
mod design_program;
mod distribution;
mod keras_goldens;
mod losses;
mod parallel_calls;
mod pipelines;

use distribute_core::MirroredStrategy;

fn mirrored(replicas: usize) -> MirroredStrategy {
    let builder = MirroredStrategy::builder().replicas(replicas);
    builder.build().unwrap()
}
