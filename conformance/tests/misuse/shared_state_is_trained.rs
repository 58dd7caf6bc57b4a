//! A state that is lent with `&`, and trained.

use burn::nn::LinearConfig;
use distribute_core::prelude::*;

fn main() -> Result<()> {
    let strategy = MirroredStrategy::new()?;
    let state = strategy
        .scope(|device| TrainState::new(LinearConfig::new(4, 2).init(device), Sgd::new(0.1)))?;
    strategy.run(&state, |ctx, state| {
        let loss = state
            .model
            .forward(Tensor::<2>::ones([1, 4], ctx.device()))
            .sum();
        let gradients = ctx.gradient(&loss, &state.model)?;
        state.apply_gradients(ctx, gradients)?;
        Ok(loss)
    })?;
    Ok(())
}
