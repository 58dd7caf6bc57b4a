//! A scope that builds a struct without `#[derive(Replicate)]`.

use burn::nn::{Linear, LinearConfig};
use distribute_core::prelude::*;

struct Both {
    first: Linear,
    second: Linear,
}

fn main() -> Result<()> {
    let strategy = MirroredStrategy::new()?;
    let both = strategy.scope(|device| Both {
        first: LinearConfig::new(1, 1).init(device),
        second: LinearConfig::new(1, 1).init(device),
    })?;
    strategy.run(&both, |_ctx, both| {
        let x = Tensor::<2>::ones([1, 1], &both.first.weight.device());
        Ok(both.second.forward(both.first.forward(x)))
    })?;
    Ok(())
}
