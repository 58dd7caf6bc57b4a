//! A state whose weight falls by 1 with every update.

use burn::nn::{Initializer, Linear, LinearConfig};
use burn::tensor::Tensor;
use distribute_core::{Applied, Device, ReplicaContext, Result, Sgd, TrainState};

pub fn falling(device: &Device) -> TrainState<Linear> {
    let linear = LinearConfig::new(1, 1).with_bias(false);
    let linear = linear.with_initializer(Initializer::Zeros).init(device);
    TrainState::new(linear, Sgd::new(1.0))
}

/// One update.
pub fn fall(ctx: &ReplicaContext, state: &mut TrainState<Linear>) -> Result<Applied> {
    let x = Tensor::<2>::ones([1, 1], ctx.device());
    let loss = state.model.forward(x).sum();
    let gradients = ctx.gradient(&loss, &state.model)?;
    state.apply_gradients(ctx, gradients)
}
