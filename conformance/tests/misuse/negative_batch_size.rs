//! TensorFlow: a negative global batch size is a ValueError. A batch size is a number of examples.

use distribute_core::{ReplicaContext, Result, Tensor};

fn loss(ctx: &ReplicaContext, losses: Tensor<1>) -> Result<Tensor<1>> {
    distribute_data::AverageLoss::new().global_batch_size(-2).of(ctx, losses)
}

fn main() {
    let _ = loss;
}
