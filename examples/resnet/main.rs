//! A residual network with batch normalization over all replicas, under any strategy.
//!
//! ```text
//! resnet --data-dir fashion-mnist --epochs 8
//! resnet --network resnet-18 --strategy tpu
//! distribute-cli launch --workers 2 -- resnet --strategy multi-worker
//! ```
//!
//! Without a folder of MNIST's or Fashion-MNIST's files it trains on the built-in digits.
#![forbid(unsafe_code)]

#[path = "../strategies.rs"]
mod strategies;

use std::path::PathBuf;

use burn::prelude::*;
use clap::{Parser, ValueEnum};
use distribute::metric::SparseCategoricalAccuracy;
use distribute::models::{ResNet, ResNetConfig};
use distribute::prelude::*;
use distribute::schedule::CosineDecay;
use distribute::{Policy, WeightDecay};
use strategies::Kind;

#[derive(Clone, Copy, ValueEnum)]
enum Network {
    Narrow,
    #[value(name = "resnet-18")]
    ResNet18,
}

#[derive(Parser)]
struct Options {
    /// A folder with the four files of MNIST or Fashion-MNIST
    #[arg(long)]
    data_dir: Option<PathBuf>,
    #[arg(long, default_value = "narrow")]
    network: Network,
    #[arg(long, default_value = "mirrored")]
    strategy: Kind,
    /// Replicas of this process
    #[arg(long, default_value_t = 2)]
    replicas: usize,
    /// Images of a step, over all replicas
    #[arg(long, default_value_t = 128)]
    batch: usize,
    #[arg(long, default_value_t = 8)]
    epochs: usize,
    /// Ends after this number of steps
    #[arg(long)]
    steps: Option<u64>,
    #[arg(long, default_value_t = 0.1)]
    learning_rate: f64,
    /// float32, mixed_bfloat16 or mixed_float16
    #[arg(long, default_value = "float32")]
    policy: Policy,
    /// Writes the values of each epoch to this file
    #[arg(long)]
    history: Option<PathBuf>,
}

type Batch = ((Tensor<4>, Tensor<1, Int>), Tensor<1>);

/// The images and, if left and right do not matter, their mirror images.
fn with_mirror_images(
    data: ImageDataset,
    mirrors: bool,
) -> impl Dataset<Batch = (Tensor<4>, Tensor<1, Int>)> {
    let count = data.len();
    let all = if mirrors { 2 * count } else { count };
    FnDataset::new(all, move |indices: &[usize], device: &Device| {
        let originals: Vec<usize> = indices.iter().map(|index| index % count).collect();
        let (images, labels) = data.batch(&originals, device)?;
        let is_mirrored: Vec<bool> = indices.iter().map(|index| *index >= count).collect();
        let is_mirrored = Tensor::<1, Bool>::from_data(is_mirrored.as_slice(), device);
        let is_mirrored = is_mirrored.reshape([-1, 1, 1, 1]).expand(images.shape());
        let mirrored = images.clone().flip([3]);
        Ok((images.mask_where(is_mirrored, mirrored), labels))
    })
}

/// The loss and the accuracy; padding counts in neither, nor in statistics.
fn objective(policy: Policy) -> impl Fn(&StepContext<'_>, &ResNet, Batch) -> Result<Objective> {
    move |ctx, model, ((images, labels), weights)| {
        let (model, images) = (policy.model(model)?, policy.cast(images));
        let logits = policy.output(if ctx.is_training() {
            model.forward(ctx, images)?
        } else {
            model.forward_inference(images)?
        });
        let losses = sparse_categorical_crossentropy(logits.clone(), labels.clone());
        let loss = AverageLoss::new()
            .weights(weights.clone())
            .of(ctx, losses)?;
        let objective = Objective::new(loss).examples(weights.clone().sum());
        let metric = &SparseCategoricalAccuracy;
        objective.measure("accuracy", metric, &logits, &labels, Some(&weights))
    }
}

fn train(strategy: &dyn Strategy, options: &Options) -> Result<()> {
    let (train, test) = match &options.data_dir {
        Some(folder) => {
            let fashion = FashionMnist::open(folder)?;
            (fashion.train()?, fashion.test()?)
        }
        None => (Digits::open()?.train()?, Digits::open()?.test()?),
    };
    let [channels, ..] = train.image_shape();
    // A compiled step needs batches of one size: the last test batch is padded.
    let batching = Batching::global(options.batch).pad_remainder(true);
    let train = Weighted::new(with_mirror_images(train, options.data_dir.is_some()));
    let train = strategy.distribute_dataset(train, batching.shuffle(1).drop_remainder(true))?;
    let test = strategy.distribute_dataset(Weighted::new(test), batching)?;

    let mut state = strategy.try_scope(|device| {
        device.seed(42);
        let config = match options.network {
            Network::Narrow => ResNetConfig::narrow(channels, 10),
            Network::ResNet18 => ResNetConfig::resnet18(channels, 10),
        };
        let optimizer = WeightDecay::of(Sgd::new(0.1).momentum(0.9), 5e-4);
        let state = TrainState::new(config.init(device)?, optimizer);
        Ok(state.with_loss_scale(options.policy.loss_scale()))
    })?;
    let steps = (options.epochs * train.batches_per_epoch()) as f64;
    let warm_up = (steps / 20.0).ceil();
    let rate = CosineDecay::new(0.0, steps - warm_up)?;
    let rate = rate.warmup(options.learning_rate, warm_up as u32);
    let mut fit = Fit::new(strategy)
        .epochs(options.epochs)
        .max_steps(options.steps)
        .callback(LearningRateScheduler::of(rate))
        .callback(ProgressBar::new());
    if let Some(path) = &options.history {
        fit = fit.callback(HistoryFile::json_lines(path));
    }
    let objective = objective(options.policy);
    let history = fit.run_with_validation(&mut state, &train, &test, objective)?;
    println!("{}: {}", strategy.name(), history.last_logs());
    Ok(())
}

fn main() -> Result<()> {
    let options = Options::parse();
    let strategy = options.strategy.strategy(options.replicas)?;
    train(&*strategy, &options)
}
