//! A custom training loop: write one step, choose the strategy in one line.
//!
//! Run it with `cargo run --release -p examples --bin custom_loop`. Change the first line of
//! `main` to `OneDeviceStrategy`, `CentralStorageStrategy` or `DefaultStrategy`: nothing else
//! changes, and with the same global batch neither do the weights.
#![forbid(unsafe_code)]

use burn::module::Module;
use burn::nn::conv::Conv2dConfig;
use burn::nn::pool::MaxPool2dConfig;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::activation::relu;
use distribute::fit::check_same_state;
use distribute::kernels::nn::{Conv2d, MaxPool2d};
use distribute::prelude::*;

/// An ordinary burn module, independent of replicas. Its convolution and pooling are burn's layers
/// with faster kernels for CPUs.
#[derive(Module, Debug)]
struct Cnn {
    conv: Conv2d,
    pool: MaxPool2d,
    hidden: Linear,
    output: Linear,
}

impl Cnn {
    fn new(device: &Device) -> Self {
        Self {
            conv: Conv2dConfig::new([1, 32], [3, 3]).init(device).into(),
            pool: MaxPool2dConfig::new([2, 2]).init().into(),
            hidden: LinearConfig::new(32 * 3 * 3, 64).init(device),
            output: LinearConfig::new(64, 10).init(device),
        }
    }

    /// Images of shape [batch, 1, 8, 8] to logits of shape [batch, 10].
    fn forward(&self, images: Tensor<4>) -> Tensor<2> {
        let x = self.pool.forward(self.conv.forward_relu(images));
        let x: Tensor<2> = x.flatten(1, 3);
        self.output.forward(relu(self.hidden.forward(x)))
    }
}

fn main() -> Result<()> {
    let strategy = MirroredStrategy::builder().replicas(2).build()?;
    println!("Number of devices: {}", strategy.num_replicas_in_sync());

    let digits = Digits::open()?;
    let global_batch = 32 * strategy.num_replicas_in_sync();
    let train =
        strategy.distribute_dataset(digits.train()?, Batching::global(global_batch).shuffle(42))?;
    let test = strategy.distribute_dataset(digits.test()?, Batching::global(global_batch))?;

    let mut state = strategy.scope(|device| {
        device.seed(42);
        TrainState::new(Cnn::new(device), Adam::new(2e-3))
    })?;

    for epoch in 0..5 {
        let (mut total, mut batches) = (0.0, 0);
        for batch in &train {
            let per_replica =
                strategy.run((&mut state, batch?), |ctx, (state, (images, labels))| {
                    let logits = state.model.forward(images);
                    let per_example = sparse_categorical_crossentropy(logits, labels);
                    let weights = l2(state.model.hidden.weight.val(), 1e-5);
                    let loss =
                        average_loss(ctx, per_example)? + scale_regularization_loss(ctx, weights)?;
                    state.minimize(ctx, &loss)?;
                    Ok(loss)
                })?;
            total += strategy
                .reduce(ReduceOp::Sum, per_replica)?
                .into_scalar::<f32>();
            batches += 1;
        }

        let mut correct = 0;
        for batch in &test {
            let counts = strategy.run((&state, batch?), |_, (state, (images, labels))| {
                let predicted = state.model.forward(images).argmax(1).flatten::<1>(0, 1);
                Ok(predicted.equal(labels).int().sum().into_scalar::<i64>())
            })?;
            correct += strategy.reduce(ReduceOp::Sum, counts)?;
        }
        let accuracy = correct as f64 / test.len() as f64;
        println!(
            "epoch {epoch}: loss {:.4}, accuracy {accuracy:.3}",
            total / batches as f32
        );
        // An error if replicas differ, for example by a flipped bit. `Fit` checks this by itself.
        check_same_state(&strategy, &state)?;
    }
    Ok(())
}
