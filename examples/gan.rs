//! A GAN: two training states in one struct, each with its own optimizer and its own loss, saved
//! and restored as one checkpoint.
//!
//! Run it with `cargo run --release -p examples --bin gan`. The generator turns noise into points
//! of the plane, and learns to put them where the data has them: around (2, -1).
#![forbid(unsafe_code)]

use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::activation::leaky_relu;
use distribute::fit::{restore, snapshot};
use distribute::prelude::*;

#[derive(Module, Debug)]
struct Critic {
    hidden: Linear,
    output: Linear,
}

#[derive(Replicate)]
struct Gan {
    generator: TrainState<Linear>,
    critic: TrainState<Critic>,
}

impl Gan {
    fn new(device: &Device) -> Self {
        device.seed(1);
        let layer = |inputs, outputs| LinearConfig::new(inputs, outputs).init(device);
        let (hidden, output) = (layer(2, 32), layer(32, 1));
        Self {
            generator: TrainState::new(layer(2, 2), Adam::new(0.005).betas(0.5, 0.999)),
            critic: TrainState::new(Critic { hidden, output }, Adam::new(0.01).betas(0.5, 0.999)),
        }
    }

    /// One update of the critic, and one of the generator.
    fn step(&mut self, ctx: &ReplicaContext, (real, noise): (Tensor<2>, Tensor<2>)) -> Result<()> {
        // By which points the critic is asked for, and what it should say.
        let loss = |critic: &Critic, points: Tensor<2>, is_real: f32| {
            let hidden = leaky_relu(critic.hidden.forward(points), 0.2);
            let logits = critic.output.forward(hidden);
            let labels = logits.full_like(is_real).detach();
            average_loss(ctx, binary_crossentropy(logits, labels))
        };
        let fake = self.generator.model.forward(noise);
        let critic = &self.critic.model;
        let told = loss(critic, real, 1.0)? + loss(critic, fake.clone().detach(), 0.0)?;
        self.critic.minimize(ctx, &told)?;
        let fooled = loss(&self.critic.model, fake, 1.0)?;
        self.generator.minimize(ctx, &fooled).map(drop)
    }
}

/// A point of the data, somewhere around (2, -1).
fn real(index: f32) -> [f32; 2] {
    let [a, b] = noise(index + 0.5);
    [2.0 + 0.6 * a + 0.3 * b, -1.0 + 0.5 * b]
}

fn noise(index: f32) -> [f32; 2] {
    [(index * 12.9898).sin(), (index * 78.233).sin()]
}

fn main() -> Result<()> {
    let strategy = MirroredStrategy::builder().replicas(2).build()?;
    let data = FnDataset::new(1024, |indices: &[usize], device: &Device| {
        let tensor = |point: fn(f32) -> [f32; 2]| {
            let points = indices.iter().flat_map(|i| point(*i as f32));
            let points = TensorData::new(points.collect::<Vec<_>>(), [indices.len(), 2]);
            Tensor::<2>::from_data(points, device)
        };
        Ok((tensor(real), tensor(noise)))
    });
    let data = strategy.distribute_dataset(data, Batching::global(64).shuffle(1))?;
    let train = |gan: &mut Mirrored<Gan>, epochs: std::ops::Range<usize>| -> Result<()> {
        for epoch in epochs {
            for batch in data.epoch(epoch) {
                strategy.run((&mut *gan, batch?), |ctx, (gan, it)| gan.step(ctx, it))?;
            }
            // Where the generator puts noise of zeros.
            let center = gan.primary()?.generator.model.bias.clone();
            let center = center.map(|bias| bias.val().into_data());
            let center: Vec<_> = center.iter().flat_map(|bias| bias.iter::<f32>()).collect();
            if epoch % 10 == 0 || epoch == 39 {
                println!("epoch {epoch}: center {center:.2?}");
            }
        }
        Ok(())
    };
    let (mut gan, mut again) = (strategy.scope(Gan::new)?, strategy.scope(Gan::new)?);
    train(&mut gan, 0..30)?;
    restore(&mut again, &snapshot(gan.primary()?)?)?;
    train(&mut gan, 30..40)?;
    train(&mut again, 30..40)?;
    let is_same = gan.save()? == again.save()?;
    println!("same weights after a restart: {is_same}");
    Ok(())
}
