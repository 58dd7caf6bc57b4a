//! An optimizer of burn as burn's own loop makes it.

use burn::nn::LinearConfig;
use burn::optim::AdamConfig;
use distribute_core::prelude::*;

fn main() -> Result<()> {
    let strategy = MirroredStrategy::new()?;
    strategy.scope(|device| {
        TrainState::new(
            LinearConfig::new(4, 2).init(device),
            AdamConfig::new().init(),
        )
    })?;
    Ok(())
}
