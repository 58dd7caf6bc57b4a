//! A batch of a type without `#[derive(Nest)]`.

use distribute_core::prelude::*;

struct Batch {
    images: Tensor<4>,
}

fn main() -> Result<()> {
    let strategy = DefaultStrategy::new();
    let images = Tensor::ones([2, 1, 8, 8], &Device::flex());
    let batch = PerReplica::new(vec![Batch { images }]);
    strategy.run(batch, |_ctx, batch| Ok(batch.images.mean()))?;
    Ok(())
}
