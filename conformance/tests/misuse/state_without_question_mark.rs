//! A state that a scope has made, with the `?` forgotten.

use burn::nn::LinearConfig;
use distribute_core::prelude::*;

fn main() -> Result<()> {
    let strategy = MirroredStrategy::new()?;
    let mut state = strategy
        .scope(|device| TrainState::new(LinearConfig::new(4, 2).init(device), Sgd::new(0.1)));
    strategy.run(&mut state, |ctx, state| {
        Ok(state
            .model
            .forward(Tensor::<2>::ones([1, 4], ctx.device()))
            .sum())
    })?;
    Ok(())
}
