//! A batch that is still a `Result`, in a tuple.

use burn::nn::{Linear, LinearConfig};
use distribute_core::prelude::*;
use distribute_data::prelude::*;

fn main() -> Result<()> {
    let strategy = MirroredStrategy::new()?;
    let train = strategy.distribute_dataset(Digits::open()?.train()?, Batching::global(64))?;
    let build = |device: &Device| -> TrainState<Linear> {
        TrainState::new(LinearConfig::new(64, 10).init(device), Sgd::new(0.1))
    };
    let mut state = strategy.scope(build)?;
    for batch in &train {
        strategy.run((&mut state, batch), |_ctx, (state, (images, _labels))| {
            Ok(state.model.forward(images.flatten::<2>(1, 3)).mean())
        })?;
    }
    Ok(())
}
