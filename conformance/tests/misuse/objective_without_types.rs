//! An objective that is a variable and says no types: the compiler says where they go.

use burn::nn::{Linear, LinearConfig};
use distribute_core::prelude::*;
use distribute_data::prelude::*;
use distribute_fit::prelude::*;

fn main() -> Result<()> {
    let strategy = MirroredStrategy::new()?;
    let train = strategy.distribute_dataset(Digits::open()?.train()?, Batching::global(64))?;
    let build = |device: &Device| -> TrainState<Linear> {
        TrainState::new(LinearConfig::new(64, 10).init(device), Sgd::new(0.1))
    };
    let mut state = strategy.scope(build)?;
    let objective = |ctx, model, (images, labels)| {
        let logits = model.forward(images.flatten::<2>(1, 3));
        let loss = average_loss(ctx, sparse_categorical_crossentropy(logits, labels))?;
        Ok(Objective::new(loss).examples(images.dims()[0]))
    };
    Fit::new(&strategy).run(&mut state, &train, objective)?;
    Ok(())
}
