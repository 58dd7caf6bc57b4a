//! `OneDeviceStrategy`: try a distributed program on one named device before scaling it out.
//!
//! The step, the data distribution and the loss scaling are the same as with any other strategy.
#![forbid(unsafe_code)]

use burn::nn::LinearConfig;
use distribute::prelude::*;

fn main() -> Result<()> {
    let strategy = OneDeviceStrategy::new("cpu:0".parse()?)?;
    println!(
        "{} with {} replica",
        strategy.name(),
        strategy.num_replicas_in_sync()
    );

    // y = 3 x + 1 for x in 0, 1/100, 2/100, ...
    let line = FnDataset::new(100, |indices, device| {
        let x: Vec<f32> = indices.iter().map(|i| *i as f32 / 100.0).collect();
        let x = Tensor::<1>::from_floats(x.as_slice(), device).reshape([indices.len(), 1]);
        let y: Tensor<2> = x.clone() * 3.0 + 1.0;
        Ok((x, y))
    });
    let batches = strategy.distribute_dataset(line, Batching::global(20).shuffle(7))?;

    let mut state = strategy.scope(|device| {
        TrainState::new(
            LinearConfig::new(1, 1).init(device),
            Sgd::new(0.1).momentum(0.9),
        )
    })?;
    for epoch in 0..50 {
        let mut sum = 0.0;
        for batch in batches.epoch(epoch) {
            let losses = strategy.run((&mut state, batch?), |ctx, (state, (x, y))| {
                let per_example = mean_squared_error(state.model.forward(x), y);
                let loss = average_loss(ctx, per_example)?;
                state.minimize(ctx, &loss)?;
                Ok(loss)
            })?;
            sum += strategy.reduce(ReduceOp::Sum, losses)?.into_scalar::<f32>();
        }
        if epoch % 10 == 9 {
            println!("epoch {epoch}: loss {:.6}", sum / 5.0);
        }
    }
    let slope = state.primary()?.model.weight.val().into_scalar::<f32>();
    println!("slope {slope:.2}");
    Ok(())
}
