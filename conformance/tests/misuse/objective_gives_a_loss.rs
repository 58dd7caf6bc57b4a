//! An objective that gives the loss, as a training step of burn does.

use burn::nn::{Linear, LinearConfig};
use burn::tensor::Int;
use distribute_core::prelude::*;
use distribute_data::prelude::*;
use distribute_fit::prelude::*;

type Batch = (Tensor<4>, Tensor<1, Int>);

fn main() -> Result<()> {
    let strategy = MirroredStrategy::new()?;
    let train = strategy.distribute_dataset(Digits::open()?.train()?, Batching::global(64))?;
    let mut state = strategy
        .scope(|device| TrainState::new(LinearConfig::new(64, 10).init(device), Sgd::new(0.1)))?;
    let objective = |ctx: &StepContext<'_>, model: &Linear, (images, labels): Batch| {
        let logits = model.forward(images.flatten::<2>(1, 3));
        average_loss(ctx, sparse_categorical_crossentropy(logits, labels))
    };
    Fit::new(&strategy).run(&mut state, &train, objective)?;
    Ok(())
}
