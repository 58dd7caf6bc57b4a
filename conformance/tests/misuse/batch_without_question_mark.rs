//! A batch that is still a `Result`: the compiler says that a `?` is missing.

use distribute_core::prelude::*;
use distribute_data::prelude::*;

fn main() -> Result<()> {
    let strategy = MirroredStrategy::new()?;
    let train = strategy.distribute_dataset(Digits::open()?.train()?, Batching::global(64))?;
    for batch in &train {
        strategy.run(batch, |_ctx, (images, _labels)| Ok(images.mean()))?;
    }
    Ok(())
}
