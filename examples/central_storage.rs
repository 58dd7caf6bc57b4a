//! `CentralStorageStrategy`: one copy of the variables in host memory, gradients from all
//! replicas, one update.
//!
//! The program below trains the same model twice and shows that only the placement differs.
#![forbid(unsafe_code)]

use burn::nn::{Initializer, LinearConfig};
use distribute::prelude::*;

/// Trains y = 2 x on any strategy and returns the weight.
fn train(strategy: &impl Strategy) -> Result<f32> {
    let data = FnDataset::new(64, |indices, device| {
        let x: Vec<f32> = indices.iter().map(|i| *i as f32 / 64.0).collect();
        let x = Tensor::<1>::from_floats(x.as_slice(), device).reshape([indices.len(), 1]);
        let y: Tensor<2> = x.clone() * 2.0;
        Ok((x, y))
    });
    let batches = strategy.distribute_dataset(data, Batching::global(16).shuffle(1))?;
    let mut state = strategy.scope(|device| {
        let zeros = LinearConfig::new(1, 1).with_initializer(Initializer::Zeros);
        TrainState::new(zeros.init(device), Adam::new(0.05))
    })?;
    for epoch in 0..40 {
        for batch in batches.epoch(epoch) {
            strategy.run((&mut state, batch?), |ctx, (state, (x, y))| {
                let per_example = mean_squared_error(state.model.forward(x), y);
                let loss = average_loss(ctx, per_example)?;
                state.minimize(ctx, &loss)?;
                Ok(())
            })?;
        }
    }
    Ok(state.primary()?.model.weight.val().into_scalar::<f32>())
}

fn main() -> Result<()> {
    let central = train(&CentralStorageStrategy::with_replicas(2)?)?;
    let mirrored = train(&MirroredStrategy::builder().replicas(2).build()?)?;
    println!("central storage: {central:.4}, mirrored: {mirrored:.4}");
    println!("same weight: {}", (central - mirrored).abs() < 1e-5);
    Ok(())
}
