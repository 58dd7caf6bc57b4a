//! A batch of a program of burn, without `#[derive(Nest)]`, beside a training state.

use burn::nn::LinearConfig;
use burn::tensor::Int;
use distribute_core::prelude::*;
use distribute_data::prelude::*;

#[derive(Clone, Debug)]
struct Batch {
    images: Tensor<2>,
    targets: Tensor<1, Int>,
}

fn main() -> Result<()> {
    let strategy = MirroredStrategy::new()?;
    let items = FnDataset::new(64, |indices: &[usize], device: &Device| {
        let images = Tensor::ones([indices.len(), 4], device);
        let targets = Tensor::zeros([indices.len()], device);
        Ok(Batch { images, targets })
    });
    let train = strategy.distribute_dataset(items, Batching::global(16))?;
    let mut state = strategy
        .scope(|device| TrainState::new(LinearConfig::new(4, 2).init(device), Sgd::new(0.1)))?;
    for batch in &train {
        strategy.run((&mut state, batch?), |ctx, (state, batch)| {
            let logits = state.model.forward(batch.images);
            let losses = sparse_categorical_crossentropy(logits, batch.targets);
            let loss = average_loss(ctx, losses)?;
            let gradients = ctx.gradient(&loss, &state.model)?;
            state.apply_gradients(ctx, gradients)?;
            Ok(loss)
        })?;
    }
    Ok(())
}
