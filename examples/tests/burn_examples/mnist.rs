//! burn's `mnist`: convolutions, batch normalization and dropout.

use burn::module::Module;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::pool::{MaxPool2d, MaxPool2dConfig};
use burn::nn::{Dropout, DropoutConfig, Gelu, Linear, LinearConfig, Relu};
use burn::optim::{AdamWConfig, GradientsParams};
use distribute::BurnOptimizer;
use distribute::prelude::*;

use crate::digits::{self, Digits};
use crate::harness::*;
use crate::norm::Norm;

#[derive(Module, Debug)]
struct ConvBlock {
    conv: Conv2d,
    norm: Norm,
    pool: Option<MaxPool2d>,
    activation: Relu,
}

impl ConvBlock {
    fn new(channels: [usize; 2], norm: Norm, pool: bool, device: &Device) -> Self {
        // A bias in front of a normalization changes nothing, but its gradient, which is 0 up to
        // rounding, would move it, and with it the running mean.
        let conv = Conv2dConfig::new(channels, [3, 3]).with_bias(false);
        let pool_config = MaxPool2dConfig::new([2, 2]).with_strides([2, 2]);
        Self {
            conv: conv.init(device),
            norm,
            pool: pool.then(|| pool_config.init()),
            activation: Relu::new(),
        }
    }

    fn forward(&self, input: Tensor<4>) -> Tensor<4> {
        let x = self.norm.forward(self.conv.forward(input));
        let x = self.activation.forward(x);
        match &self.pool {
            Some(pool) => pool.forward(x),
            None => x,
        }
    }
}

#[derive(Module, Debug)]
struct Model {
    conv1: ConvBlock,
    conv2: ConvBlock,
    dropout: Dropout,
    fc1: Linear,
    fc2: Linear,
    activation: Gelu,
}

/// burn's `BatchNorm`, or that over all replicas.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Kind {
    Own,
    Synchronized,
}

impl Model {
    fn new(kind: Kind, dropout: f64, device: &Device) -> Self {
        let norm = |features| match kind {
            Kind::Own => Norm::own(features, 1e-5, device),
            Kind::Synchronized => Norm::synchronized(features, 1e-5, device),
        };
        Self {
            conv1: ConvBlock::new([1, 4], norm(4), true, device),
            conv2: ConvBlock::new([4, 8], norm(8), false, device),
            dropout: DropoutConfig::new(dropout).init(),
            fc1: LinearConfig::new(8, 32).init(device),
            fc2: LinearConfig::new(32, 10).init(device),
            activation: Gelu::new(),
        }
    }

    fn forward(&self, images: Tensor<4>) -> Tensor<2> {
        let x = self.conv1.forward(images);
        let x: Tensor<2> = self.conv2.forward(x).flatten(1, 3);
        let x = self.activation.forward(self.fc1.forward(x));
        self.fc2.forward(self.dropout.forward(x))
    }
}

/// The losses of a training, and what was trained.
type Losses<T> = (Vec<f32>, T);

/// A state on the replicas.
type Trained = Mirrored<TrainState<Model>>;

fn burn_loop(model: Model, digits: &Digits) -> Result<Losses<Model>> {
    let device = Device::flex().autodiff();
    let train = digits.loader(BATCH, &device);
    let mut model = model;
    let config = AdamWConfig::new()
        .with_cautious_weight_decay(true)
        .with_weight_decay(5e-5);
    let mut optimizer = config.init();
    let mut losses = Vec::new();
    for _epoch in 0..2 {
        for batch in train.iter() {
            let batch = batch?;
            let output = model.forward(batch.images);
            let loss = CrossEntropyLossConfig::new().init(&output.device());
            let loss = loss.forward(output, batch.targets);
            losses.push(loss.clone().into_scalar::<f32>());
            let gradients = GradientsParams::from_grads(loss.backward(), &model);
            model = optimizer.step(1e-2, model, gradients);
        }
    }
    Ok((losses, model))
}

fn our_loop(strategy: &dyn Strategy, model: Model, digits: &Digits) -> Result<Losses<Trained>> {
    let train = strategy.distribute_dataset(digits.dataset(), Batching::global(BATCH))?;
    let config = AdamWConfig::new()
        .with_cautious_weight_decay(true)
        .with_weight_decay(5e-5);
    let optimizer = BurnOptimizer::new(config, 1e-2);
    let mut model = strategy.scope(|_| TrainState::new(model, optimizer))?;
    let mut losses = Vec::new();
    for _epoch in 0..2 {
        for batch in train.iter() {
            let shares = strategy.run((&mut model, batch?), |ctx, (state, batch)| {
                let output = state.model.forward(batch.images);
                let loss = CrossEntropyLossConfig::new().init(&output.device());
                let loss = ctx.mean_loss(loss.forward(output, batch.targets))?;
                state.minimize(ctx, &loss)?;
                Ok(loss)
            })?;
            losses.push(strategy.reduce(ReduceOp::Sum, shares)?.into_scalar::<f32>());
        }
    }
    Ok((losses, model))
}

fn own(dropout: f64) -> Model {
    model(5, |device| Model::new(Kind::Own, dropout, device))
}

/// Images of the test set, without autodiff.
fn test_images() -> Tensor<4> {
    let test = digits::test().loader(BATCH, &Device::flex());
    test.iter().next().unwrap().unwrap().images
}

/// The running variance of the first layer, as a model that predicts reads it.
fn variance(model: &Model) -> Vec<f32> {
    let Norm::Own(norm) = &model.conv1.norm else {
        return Vec::new();
    };
    let variance = norm.running_var.value();
    variance.into_data().try_to_vec().unwrap()
}

fn synchronized() -> Model {
    model(5, |device| Model::new(Kind::Synchronized, 0.0, device))
}

#[test]
fn mnist_has_the_losses_of_burn_with_statistics_of_all_replicas() {
    let digits = digits::train();
    let (wanted, trained) = burn_loop(own(0.0), &digits).unwrap();
    falls(&wanted);
    let images = test_images();
    trained.conv1.norm.settle();
    trained.conv2.norm.settle();
    let logits = trained.valid().forward(images.clone());
    let logits = logits.into_data().try_to_vec::<f32>().unwrap();
    let program = move |strategy: &dyn Strategy| {
        let (losses, state) = our_loop(strategy, synchronized(), &digits)?;
        // Running statistics, too: the trained models predict alike.
        let found = state.primary()?.model.valid().forward(images.clone());
        let found = found.into_data().try_to_vec::<f32>().unwrap();
        let most = distance(&logits, &found);
        assert!(most <= 1e-4, "{logits:?}\n{found:?}");
        Ok(losses)
    };
    has_losses_of_burn(&wanted, program);
}

/// burn's own batch normalization has the losses of burn on one device. On several replicas each
/// normalizes with its own part, so the losses are others.
#[test]
fn mnist_with_burns_batch_normalization_has_the_losses_of_burn_on_one_device() {
    let digits = digits::train();
    let (wanted, trained) = burn_loop(own(0.0), &digits).unwrap();
    trained.conv1.norm.settle();
    let wanted_variance = variance(&trained);
    let outcomes = under_strategies(move |strategy| {
        let (losses, state) = our_loop(strategy, own(0.0), &digits)?;
        Ok((losses, variance(&state.primary()?.model)))
    });
    for (name, (found, variance)) in outcomes {
        if name == "one device" {
            assert_eq!(variance, wanted_variance);
        }
        let distance = distance(&wanted, &found);
        assert_eq!(
            distance <= 1e-6,
            name == "one device",
            "{name}: {distance:e}"
        );
        falls(&found);
    }
}

/// With dropout each replica has masks of its own, so the losses are others; they fall, and the
/// trained model predicts without dropout.
#[test]
fn mnist_with_dropout_trains_on_all_strategies() {
    const CHILD: &str = "BURN_EXAMPLES_DRAW_MASKS";
    if std::env::var_os(CHILD).is_none() {
        // Alone in a process: the masks of one replica come out of burn's generator unguarded.
        let mut command = std::process::Command::new(std::env::current_exe().unwrap());
        command.args([
            "--exact",
            "mnist::mnist_with_dropout_trains_on_all_strategies",
        ]);
        assert!(command.env(CHILD, "1").status().unwrap().success());
        return;
    }
    let digits = digits::train();
    let images = test_images();
    let outcomes = under_strategies(move |strategy| {
        // Not one for all: clones share running statistics, and workers exchange theirs.
        let model = model(9, |device| Model::new(Kind::Synchronized, 0.25, device));
        let (losses, state) = our_loop(strategy, model, &digits)?;
        let valid = state.primary()?.model.valid();
        let logits = || valid.forward(images.clone()).into_data();
        let [first, second] = [logits(), logits()];
        assert_eq!(first, second);
        Ok(losses)
    });
    for (_, losses) in outcomes {
        falls(&losses);
    }
}
