//! burn's `wgan`: two models, two optimizers, and weights of the critic that are clipped.

use burn::module::{Module, ModuleMapper, Param};
use burn::nn::{LeakyRelu, LeakyReluConfig, Linear, LinearConfig};
use burn::optim::{GradientsParams, RmsPropConfig};
use distribute::BurnOptimizer;
use distribute::prelude::*;

use crate::harness::*;
use crate::norm::Norm;

const LATENT: usize = 6;
const PIXELS: usize = 64;
const RATE: f64 = 1e-3;

/// Of burn's example: `epsilon` of its batch normalization.
const EPSILON: f64 = 0.8;

fn leaky() -> LeakyRelu {
    LeakyReluConfig::new().with_negative_slope(0.2).init()
}

#[derive(Module, Debug)]
struct Generator {
    input: Linear,
    norm: Norm,
    activation: LeakyRelu,
    output: Linear,
}

impl Generator {
    fn new(norm: impl Fn(&Device) -> Norm, device: &Device) -> Self {
        Self {
            input: LinearConfig::new(LATENT, 24).init(device),
            norm: norm(device),
            activation: leaky(),
            output: LinearConfig::new(24, PIXELS).init(device),
        }
    }

    fn forward(&self, noise: Tensor<2>) -> Tensor<2> {
        let x = self.norm.forward(self.input.forward(noise));
        self.output.forward(self.activation.forward(x)).tanh()
    }
}

#[derive(Module, Debug)]
struct Critic {
    input: Linear,
    activation: LeakyRelu,
    output: Linear,
}

impl Critic {
    fn new(device: &Device) -> Self {
        Self {
            input: LinearConfig::new(PIXELS, 32).init(device),
            activation: leaky(),
            output: LinearConfig::new(32, 1).init(device),
        }
    }

    fn forward(&self, images: Tensor<2>) -> Tensor<2> {
        let x = self.activation.forward(self.input.forward(images));
        self.output.forward(x)
    }
}

/// Clips all parameters to plus and minus this.
struct Clip(f32);

impl ModuleMapper for Clip {
    fn map_float<const D: usize>(&mut self, parameter: Param<Tensor<D>>) -> Param<Tensor<D>> {
        parameter.map(|weight| {
            let is_trained = weight.is_require_grad();
            let clipped = Tensor::from_inner(weight.inner().clamp(-self.0, self.0));
            clipped.set_require_grad(is_trained)
        })
    }
}

#[derive(Nest, Clone, Debug)]
pub struct Batch {
    images: Tensor<2>,
    noise: Tensor<2>,
}

type Images = Items<(Vec<f32>, Vec<f32>), Batch>;

fn batch(items: Vec<(Vec<f32>, Vec<f32>)>, device: &Device) -> Batch {
    let (images, noise): (Vec<_>, Vec<_>) = items.into_iter().unzip();
    Batch {
        images: rows(&images, PIXELS, device),
        noise: rows(&noise, LATENT, device),
    }
}

/// Digits from -1 to 1, and noise: burn's example draws it in the loop, on one device.
fn images(seed: u64) -> Images {
    let mut numbers = Numbers(seed);
    let digits = Digits::open().unwrap().train().unwrap();
    let indices: Vec<usize> = (0..15 * BATCH).collect();
    let (digits, _) = digits.batch(&indices, &Device::flex()).unwrap();
    let digits = digits.into_data().try_to_vec::<f32>().unwrap();
    let items = digits.chunks(PIXELS).map(|digit| {
        let image = digit.iter().map(|pixel| 2.0 * pixel - 1.0).collect();
        (image, (0..LATENT).map(|_| numbers.normal()).collect())
    });
    Items::new(items.collect(), batch)
}

type Losses = Result<Vec<f32>>;

type Gan = (Generator, Critic);

fn burn_loop((generator, critic): Gan, images: &Images) -> Losses {
    let device = Device::flex().autodiff();
    let train = images.loader(BATCH, &device);
    let (mut generator, mut critic) = (generator, critic);
    let mut optimizer_g = RmsPropConfig::new().init();
    let mut optimizer_c = RmsPropConfig::new().init();
    let mut losses = Vec::new();
    for _epoch in 0..2 {
        for (iteration, batch) in train.iter().enumerate() {
            let batch = batch?;
            let fake = generator.forward(batch.noise.clone());
            let fake = critic.forward(fake.detach());
            let real = critic.forward(batch.images);
            let loss = fake.mean() - real.mean();
            losses.push(loss.clone().into_scalar::<f32>());
            let gradients = GradientsParams::from_grads(loss.backward(), &critic);
            critic = optimizer_c.step(RATE, critic, gradients);
            critic = critic.map(&mut Clip(0.05));
            if iteration % 5 == 0 {
                let fake = generator.forward(batch.noise);
                let fake = critic.forward(fake);
                let loss = -fake.mean();
                losses.push(loss.clone().into_scalar::<f32>());
                let gradients = GradientsParams::from_grads(loss.backward(), &generator);
                generator = optimizer_g.step(RATE, generator, gradients);
            }
        }
    }
    Ok(losses)
}

fn our_loop(strategy: &dyn Strategy, (generator, critic): Gan, images: &Images) -> Losses {
    let train = strategy.distribute_dataset(images.dataset(), Batching::global(BATCH))?;
    let optimizer = BurnOptimizer::new(RmsPropConfig::new(), RATE);
    let mut generator = strategy.scope(|_| TrainState::new(generator, optimizer.clone()))?;
    let mut critic = strategy.scope(|_| TrainState::new(critic, optimizer))?;
    let mut losses = Vec::new();
    for _epoch in 0..2 {
        for (iteration, batch) in train.iter().enumerate() {
            let arguments = (&mut generator, &mut critic, batch?);
            let shares = strategy.run(arguments, |ctx, (generator, critic, batch)| {
                let mut losses = Vec::new();
                let fake = generator.model.forward(batch.noise.clone());
                let fake = critic.model.forward(fake.detach());
                let real = critic.model.forward(batch.images);
                let loss = ctx.mean_loss(fake.mean() - real.mean())?;
                losses.push(loss.clone());
                critic.minimize(ctx, &loss)?;
                critic.model = critic.model.clone().map(&mut Clip(0.05));
                if iteration % 5 == 0 {
                    let fake = generator.model.forward(batch.noise);
                    let fake = critic.model.forward(fake);
                    let loss = ctx.mean_loss(-fake.mean())?;
                    losses.push(loss.clone());
                    generator.minimize(ctx, &loss)?;
                }
                Ok(losses)
            })?;
            let sums = strategy.reduce(ReduceOp::Sum, shares)?;
            losses.extend(sums.into_iter().map(|loss| loss.into_scalar::<f32>()));
        }
    }
    Ok(losses)
}

fn own() -> Generator {
    let norm = |device: &Device| Norm::own(24, EPSILON, device);
    model(31, |device| Generator::new(norm, device))
}

fn synchronized() -> Generator {
    let norm = |device: &Device| Norm::synchronized(24, EPSILON, device);
    model(31, |device| Generator::new(norm, device))
}

fn critic() -> Critic {
    model(32, Critic::new)
}

#[test]
fn wgan_has_the_losses_of_burn() {
    let images = images(33);
    let wanted = burn_loop((own(), critic()), &images).unwrap();
    assert_eq!(wanted.len(), 36);
    assert!(wanted[34] < wanted[2], "{wanted:?}");
    has_losses_of_burn(&wanted, move |strategy| {
        our_loop(strategy, (synchronized(), critic()), &images)
    });
}

/// Clipping leaves a parameter that trains, within its bounds.
#[test]
fn clipped_weights_are_trained_on() {
    let clipped = critic().map(&mut Clip(0.05));
    let weight = clipped.input.weight.val();
    assert!(weight.is_require_grad());
    assert!(weight.abs().max().into_scalar::<f32>() <= 0.05);
}
