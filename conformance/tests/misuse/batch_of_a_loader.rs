//! A batch that burn's loop has made, handed to a step as it is.

use burn::nn::LinearConfig;
use distribute_core::prelude::*;

fn main() -> Result<()> {
    let strategy = MirroredStrategy::new()?;
    let mut state = strategy
        .scope(|device| TrainState::new(LinearConfig::new(4, 2).init(device), Sgd::new(0.1)))?;
    let batches = (0..4).map(|_| Tensor::<2>::ones([16, 4], &Device::flex()));
    for batch in batches {
        strategy.run((&mut state, batch), |_, (state, batch)| {
            Ok(state.model.forward(batch).sum())
        })?;
    }
    Ok(())
}
