//! All tests of this crate's interface, one module per topic, in one program: linking takes longer
//! than compiling. Those that count allocations or need a feature are programs of their own.

mod communication;
mod cross_device;
mod evaluation;
mod failures;
mod fine_tuning;
mod float_types;
mod gradient_checkpointing;
mod loading;
mod loss_scale;
mod mean_loss;
mod metrics;
mod multi_worker;
mod nest_with;
mod optimizers;
mod policy;
mod random;
mod reduce;
mod remote;
mod running_statistics;
mod several_models;
mod shown;
mod sync_batch_norm;
mod trace;
mod training;
mod turns;
mod variables;

use distribute_core::MirroredStrategy;

fn mirrored(replicas: usize) -> MirroredStrategy {
    MirroredStrategy::builder()
        .replicas(replicas)
        .build()
        .unwrap()
}
