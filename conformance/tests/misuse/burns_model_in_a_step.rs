//! A model of burn that no scope has mirrored.

use burn::nn::LinearConfig;
use distribute_core::prelude::*;

fn main() -> Result<()> {
    let strategy = MirroredStrategy::new()?;
    let mut model = LinearConfig::new(4, 2).init(&Device::flex().autodiff());
    strategy.run(&mut model, |ctx, model| {
        Ok(model.forward(Tensor::<2>::ones([1, 4], ctx.device())).sum())
    })?;
    Ok(())
}
