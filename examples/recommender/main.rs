//! A recommender with two towers. Its embedding tables are on parameter servers, which send only
//! the rows of a batch, or on every replica of any strategy.
//!
//! ```text
//! distribute-cli launch --ps 2 --workers 2 -- recommender --on-servers
//! recommender --strategy mirrored
//! distribute-cli launch --workers 2 -- recommender --strategy multi-worker
//! ```
#![forbid(unsafe_code)]

#[path = "../strategies.rs"]
mod strategies;

use clap::Parser;
use distribute::models::{
    Interaction, InteractionBatch, Interactions, RecommenderConfig, TwoTowersConfig,
};
use distribute::parameter_server::{
    ClusterCoordinator, Program, TableInitializer, TableSpec, WorkerContext,
};
use distribute::prelude::*;
use strategies::Kind;

const USERS: u32 = 400;
const ITEMS: u32 = 200;
const LEARNING_RATE: f64 = 0.01;

#[derive(Parser)]
struct Options {
    /// The tables and the towers are on the parameter servers of the cluster
    #[arg(long, conflicts_with = "strategy")]
    on_servers: bool,
    #[arg(long, default_value = "mirrored")]
    strategy: Kind,
    /// Replicas of this process
    #[arg(long, default_value_t = 2)]
    replicas: usize,
    /// Interactions of a step, over all replicas
    #[arg(long, default_value_t = 256)]
    batch: usize,
    #[arg(long, default_value_t = 5)]
    epochs: usize,
    #[arg(long, default_value_t = 400)]
    steps_per_epoch: usize,
}

/// The loss of each interaction, and the number of correct predictions.
fn judge(logits: Tensor<1>, liked: Tensor<1>) -> (Tensor<1>, Tensor<1>) {
    let foreseen = logits.clone().greater_scalar(0.0).float();
    let foreseen = foreseen.equal(liked.clone()).float().sum();
    let column = |values: Tensor<1>| values.unsqueeze_dim::<2>(1);
    let losses = binary_crossentropy(column(logits), column(liked));
    (losses, foreseen)
}

fn train(strategy: &dyn Strategy, options: &Options) -> Result<()> {
    let interactions = Interactions::new(USERS, ITEMS, options.batch * options.steps_per_epoch)?;
    let test = interactions.after(20 * options.batch);
    let batching = Batching::global(options.batch);
    let train = strategy.distribute_dataset(interactions, batching.shuffle(1))?;
    let (len, test) = (
        test.len() as f32,
        strategy.distribute_dataset(test, batching)?,
    );
    let mut state = strategy.scope(|device| {
        device.seed(42);
        let towers = TwoTowersConfig::new(1, 1);
        let config = RecommenderConfig::new(USERS as usize, ITEMS as usize, towers);
        TrainState::new(config.init(device), Adam::new(LEARNING_RATE))
    })?;
    for epoch in 0..options.epochs {
        let mut total = 0.0;
        for batch in train.epoch(epoch) {
            let losses = strategy.run((&mut state, batch?), |ctx, (state, batch)| {
                let logits = state.model.forward(batch.users, batch.items)?;
                let loss = average_loss(ctx, judge(logits, batch.liked).0)?;
                let gradients = ctx.gradient(&loss, &state.model)?;
                state.apply_gradients(ctx, gradients)?;
                Ok(loss)
            })?;
            total += strategy.reduce(ReduceOp::Sum, losses)?.into_scalar::<f32>();
        }
        let mut foreseen = 0.0;
        for batch in &test {
            let counts = strategy.run((&state, batch?), |_, (state, batch)| {
                let logits = state.model.forward(batch.users, batch.items)?;
                Ok(judge(logits, batch.liked).1)
            })?;
            foreseen += strategy.reduce(ReduceOp::Sum, counts)?.into_scalar::<f32>();
        }
        let (loss, accuracy) = (total / train.batches_per_epoch() as f32, foreseen / len);
        println!("epoch {epoch}: accuracy {accuracy:.3}, loss {loss:.4}");
    }
    Ok(())
}

/// One program for chief, servers and workers; the argument of a step is the number of its batch.
fn train_on_servers(options: &Options) -> Result<()> {
    let mut program = Program::new();
    let table = |rows: u32, seed| {
        let spec = TableSpec::new(rows as usize, 16, Adam::new(LEARNING_RATE));
        spec.initializer(TableInitializer::normal(0.1, seed))
    };
    let users = program.table("users", table(USERS, 1));
    let items = program.table("items", table(ITEMS, 2));
    let state = program.state("towers", |device| {
        device.seed(42);
        let towers = TwoTowersConfig::new(1, 1).init(device);
        TrainState::new(towers, Adam::new(LEARNING_RATE))
    });
    let (batch, steps) = (options.batch as u64, options.steps_per_epoch as u64);
    let interactions = Interactions::new(USERS, ITEMS, 0)?;
    program.step("train", move |worker: &WorkerContext, number: u64| {
        let numbers = number * batch..(number + 1) * batch;
        let seen: Vec<Interaction> = numbers
            .map(|number| interactions.interaction(number))
            .collect();
        let ids = |id: fn(&Interaction) -> i64| seen.iter().map(id).collect::<Vec<_>>();
        let users = worker.lookup(&users, ids(|interaction| interaction.user).as_slice())?;
        let items = worker.lookup(&items, ids(|interaction| interaction.item).as_slice())?;
        worker.run(&state, (users, items), |ctx, (state, (users, items))| {
            let batch = InteractionBatch::of(&seen, ctx.device());
            let user = (users.tensor(ctx)?, batch.users.1);
            let item = (items.tensor(ctx)?, batch.items.1);
            let (losses, foreseen) = judge(state.model.forward(user, item)?, batch.liked);
            let loss = losses.mean();
            let gradients = ctx.gradient(&loss, &state.model)?;
            state.apply_gradients(ctx, gradients)?;
            Ok((loss.into_scalar::<f32>(), foreseen.into_scalar::<f32>()))
        })
    });
    Ok(program.run(|coordinator: &ClusterCoordinator| {
        for epoch in 0..options.epochs as u64 {
            let numbers = epoch * steps..(epoch + 1) * steps;
            let results = numbers.map(|number| coordinator.schedule("train", number));
            let results = results.collect::<Result<Vec<_>, _>>()?;
            coordinator.join()?;
            let results: Vec<(f32, f32)> = coordinator.fetch(&results)?;
            let loss = results.iter().map(|(loss, _)| loss).sum::<f32>() / steps as f32;
            let foreseen = results.iter().map(|(_, foreseen)| foreseen).sum::<f32>();
            // Every interaction is new: its prediction was counted before it was trained on.
            let accuracy = foreseen / (steps * batch) as f32;
            println!("epoch {epoch}: accuracy {accuracy:.3}, loss {loss:.4}");
        }
        Ok(())
    })?)
}

fn main() -> Result<()> {
    let options = Options::parse();
    if options.on_servers {
        return train_on_servers(&options);
    }
    train(&*options.strategy.strategy(options.replicas)?, &options)
}
