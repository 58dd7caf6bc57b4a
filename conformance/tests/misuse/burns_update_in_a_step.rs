//! burn's own update in a step, with an optimizer that all replicas would share.

use burn::nn::{Linear, LinearConfig};
use burn::optim::{AdamConfig, GradientsParams};
use distribute_core::prelude::*;

fn main() -> Result<()> {
    let strategy = MirroredStrategy::new()?;
    let mut optimizer = AdamConfig::new().init();
    let build = |device: &Device| -> Linear { LinearConfig::new(4, 2).init(device) };
    let mut model = strategy.scope(build)?;
    strategy.run(&mut model, |ctx, model| {
        let loss = model.forward(Tensor::<2>::ones([1, 4], ctx.device())).sum();
        let gradients = GradientsParams::from_grads(loss.backward(), model);
        *model = optimizer.step(1e-3, model.clone(), gradients);
        Ok(loss)
    })?;
    Ok(())
}
