//! A GPT that learns to write like Lewis Carroll, character by character, under any strategy.
//!
//! ```text
//! gpt --steps 400
//! gpt --strategy tpu
//! distribute-cli launch --workers 2 -- gpt --strategy multi-worker
//! ```
#![forbid(unsafe_code)]

#[path = "../strategies.rs"]
mod strategies;

use burn::prelude::*;
use clap::Parser;
use distribute::Policy;
use distribute::models::{Gpt, GptConfig, Text};
use distribute::prelude::*;
use distribute::schedule::{CosineDecay, LearningRateSchedule};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use strategies::Kind;

#[derive(Parser)]
struct Options {
    #[arg(long, default_value = "mirrored")]
    strategy: Kind,
    /// Replicas of this process
    #[arg(long, default_value_t = 2)]
    replicas: usize,
    /// Characters of a window
    #[arg(long, default_value_t = 64)]
    length: usize,
    /// Windows of a step, over all replicas
    #[arg(long, default_value_t = 16)]
    batch: usize,
    #[arg(long, default_value_t = 256)]
    width: usize,
    #[arg(long, default_value_t = 4)]
    layers: usize,
    #[arg(long, default_value_t = 400)]
    steps: usize,
    #[arg(long, default_value_t = 1e-3)]
    learning_rate: f64,
    /// float32, mixed_bfloat16 or mixed_float16
    #[arg(long, default_value = "float32")]
    policy: Policy,
    /// Characters to write at the end
    #[arg(long, default_value_t = 300)]
    write: usize,
}

/// Steps between two lines of output.
const REPORT: usize = 10;

type Windows = (Tensor<2, Int>, Tensor<2, Int>);

/// The loss of a replica's windows: its part of the mean over all characters.
fn loss(
    policy: Policy,
    ctx: &ReplicaContext,
    model: &Gpt,
    (tokens, next): Windows,
) -> Result<Tensor<1>> {
    let logits = policy.output(policy.model(model)?.forward(tokens)?);
    let per_character = sparse_categorical_crossentropy(logits, next);
    average_loss(ctx, per_character.mean_dim(1))
}

fn train(strategy: &dyn Strategy, options: &Options) -> Result<()> {
    let text = Text::alice()?;
    let (train, test) = text.train_test(options.length)?;
    let batching = Batching::global(options.batch).drop_remainder(true);
    let steps = batching.shuffle(1).steps_per_epoch(options.steps);
    let train = strategy.distribute_dataset(train, steps)?;
    let test = strategy.distribute_dataset(test, batching)?;
    let mut state = strategy.try_scope(|device| {
        device.seed(42);
        let config = GptConfig::new(text.vocabulary()).with_length(options.length);
        let config = config.with_width(options.width).with_layers(options.layers);
        let state = TrainState::new(config.init(device)?, AdamW::new(1e-3).weight_decay(0.1));
        let state = state.with_loss_scale(options.policy.loss_scale());
        Ok(state.clip_by_global_norm(1.0))
    })?;
    let warm_up = options.steps as u32 / 20;
    let rate = CosineDecay::new(0.0, options.steps as f64)?;
    let rate = rate.warmup(options.learning_rate, warm_up);

    let policy = options.policy;
    let mut mean = 0.0;
    for (step, batch) in train.epoch(0).enumerate() {
        state.set_learning_rate(rate.rate(step as u64 + 1));
        let losses = strategy.run((&mut state, batch?), |ctx, (state, windows)| {
            let loss = loss(policy, ctx, &state.model, windows)?;
            let gradients = ctx.gradient(&state.scale_loss(&loss), &state.model)?;
            state.apply_gradients(ctx, gradients)?;
            Ok(loss)
        })?;
        let loss = strategy.reduce(ReduceOp::Sum, losses)?;
        mean += loss.into_scalar::<f32>() / REPORT as f32;
        if (step + 1) % REPORT == 0 {
            println!("step {}: loss {mean:.4}", step + 1);
            mean = 0.0;
        }
    }
    let mut total = 0.0;
    for batch in &test {
        let losses = strategy.run((&state, batch?), |ctx, (state, windows)| {
            loss(policy, ctx, &state.model, windows)
        })?;
        total += strategy.reduce(ReduceOp::Sum, losses)?.into_scalar::<f32>();
    }
    let mean = total / test.batches_per_epoch() as f32;
    println!("{}: test loss {mean:.4}", strategy.name());
    let mut random = ChaCha8Rng::seed_from_u64(1);
    let model = &state.primary()?.model;
    let written = model.generate(&text.encode("Alice ")?, options.write, &mut random)?;
    println!("Alice {}", text.decode(&written));
    Ok(())
}

fn main() -> Result<()> {
    let options = Options::parse();
    let strategy = options.strategy.strategy(options.replicas)?;
    train(&*strategy, &options)
}
