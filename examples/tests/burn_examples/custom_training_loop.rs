//! burn's `custom-training-loop`: the guide's convolutional network, with a loop of validation.

use burn::module::Module;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::loss::CrossEntropyLoss;
use burn::nn::pool::{AdaptiveAvgPool2d, AdaptiveAvgPool2dConfig};
use burn::nn::{Linear, LinearConfig, Relu};
use burn::optim::{AdamConfig, GradientsParams};
use burn::tensor::Int;
use distribute::BurnOptimizer;
use distribute::prelude::*;

use crate::digits::{self, Digits};
use crate::harness::*;

#[derive(Module, Debug)]
pub struct Model {
    conv1: Conv2d,
    conv2: Conv2d,
    pool: AdaptiveAvgPool2d,
    linear1: Linear,
    linear2: Linear,
    activation: Relu,
}

impl Model {
    fn new(device: &Device) -> Self {
        Self {
            conv1: Conv2dConfig::new([1, 4], [3, 3]).init(device),
            conv2: Conv2dConfig::new([4, 8], [3, 3]).init(device),
            pool: AdaptiveAvgPool2dConfig::new([2, 2]).init(),
            linear1: LinearConfig::new(8 * 2 * 2, 32).init(device),
            linear2: LinearConfig::new(32, 10).init(device),
            activation: Relu::new(),
        }
    }

    fn forward(&self, images: Tensor<4>) -> Tensor<2> {
        let x = self.conv1.forward(images);
        let x = self.activation.forward(self.conv2.forward(x));
        let x: Tensor<2> = self.pool.forward(x).flatten(1, 3);
        let x = self.activation.forward(self.linear1.forward(x));
        self.linear2.forward(x)
    }
}

fn correct(output: Tensor<2>, targets: Tensor<1, Int>) -> i64 {
    let predictions = output.argmax(1).squeeze_dim::<1>(1);
    predictions.equal(targets).int().sum().into_scalar()
}

fn burn_loop(model: Model, train: &Digits) -> Result<Losses<Model>> {
    let device = Device::flex().autodiff();
    let train = train.loader(BATCH, &device);
    let mut model = model;
    let mut optimizer = AdamConfig::new().init();
    let mut losses = Vec::new();
    for _epoch in 0..2 {
        for batch in train.iter() {
            let batch = batch?;
            let output = model.forward(batch.images);
            let loss = CrossEntropyLoss::new(None, &output.device());
            let loss = loss.forward(output, batch.targets);
            losses.push(loss.clone().into_scalar::<f32>());
            let gradients = GradientsParams::from_grads(loss.backward(), &model);
            model = optimizer.step(1e-2, model, gradients);
        }
    }
    Ok((losses, model))
}

fn burn_validation(model: &Model, test: &Digits) -> Result<i64> {
    let valid = model.valid();
    let mut sum = 0;
    for batch in test.loader(BATCH, &Device::flex()).iter() {
        let batch = batch?;
        sum += correct(valid.forward(batch.images), batch.targets);
    }
    Ok(sum)
}

/// The losses of a training, and what was trained.
type Losses<T> = (Vec<f32>, T);

/// A state on the replicas.
type Trained = Mirrored<TrainState<Model>>;

fn our_loop(strategy: &dyn Strategy, model: Model, train: &Digits) -> Result<(Vec<f32>, Trained)> {
    let train = strategy.distribute_dataset(train.dataset(), Batching::global(BATCH))?;
    let optimizer = BurnOptimizer::new(AdamConfig::new(), 1e-2);
    let mut model = strategy.scope(|_| TrainState::new(model, optimizer))?;
    let mut losses = Vec::new();
    for _epoch in 0..2 {
        for batch in train.iter() {
            let shares = strategy.run((&mut model, batch?), |ctx, (state, batch)| {
                let output = state.model.forward(batch.images);
                let loss = CrossEntropyLoss::new(None, &output.device());
                let loss = ctx.mean_loss(loss.forward(output, batch.targets))?;
                state.minimize(ctx, &loss)?;
                Ok(loss)
            })?;
            losses.push(strategy.reduce(ReduceOp::Sum, shares)?.into_scalar::<f32>());
        }
    }
    Ok((losses, model))
}

fn our_validation(strategy: &dyn Strategy, state: &Trained, test: &Digits) -> Result<i64> {
    let test = strategy.distribute_dataset(test.dataset(), Batching::global(BATCH))?;
    let mut sum = 0;
    for batch in test.iter() {
        let counts = strategy.run((state, batch?), |_, (state, batch)| {
            let valid = state.model.valid();
            Ok(correct(valid.forward(batch.images), batch.targets))
        })?;
        sum += strategy.reduce(ReduceOp::Sum, counts)?;
    }
    Ok(sum)
}

#[test]
fn custom_training_loop_has_the_losses_of_burn() {
    let [train, test] = [digits::train(), digits::test()];
    let (wanted, trained) = burn_loop(model(3, Model::new), &train).unwrap();
    falls(&wanted);
    let right = burn_validation(&trained, &test).unwrap();
    assert!(right > 32, "{right} of 64");
    has_losses_of_burn(&wanted, move |strategy| {
        let (losses, state) = our_loop(strategy, model(3, Model::new), &train)?;
        assert_eq!(our_validation(strategy, &state, &test)?, right);
        Ok(losses)
    });
}
