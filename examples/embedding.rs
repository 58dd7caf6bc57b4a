//! An embedding model with parameter servers: only the rows of the large tables that a batch uses
//! are sent and updated.
//!
//! ```text
//! cargo build --release -p examples --bin embedding
//! distribute-cli launch --ps 2 --workers 2 -- target/release/embedding
//! ```
//!
//! A rating is the product of the user's and the film's row, plus a linear function of the age.
#![forbid(unsafe_code)]

use std::sync::Arc;

use distribute::burn::nn::LinearConfig;
use distribute::burn::tensor::Tensor;
use distribute::parameter_server::partitioners::MinSizePartitioner;
use distribute::parameter_server::{
    ClusterCoordinator, CoordinatorOptions, Program, Result, WorkerContext,
};
use distribute::parameter_server::{TableInitializer, TableSpec};
use distribute::{Adam, Sgd, TrainState};

const USERS: usize = 20_000;
const FILMS: usize = 5_000;
const ALL: usize = USERS + FILMS;
const BATCH: usize = 256;

/// A number from 0 to 1 that depends only on its arguments.
fn hashed(seed: u64, number: u64) -> f32 {
    let mixed = (number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15 ^ (seed << 32));
    let mixed = (mixed ^ (mixed >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 40;
    mixed as f32 / (1 << 24) as f32
}

/// User, film, age of the film and rating of the `number`-th example. 400 users rate 400 films.
fn example(number: u64) -> ((i64, i64), (f32, f32)) {
    let user = (hashed(1, number) * 400.0) as u64 * 50;
    let film = (hashed(2, number) * 400.0) as u64 * 12;
    let taste = |seed| (hashed(seed, user) * 2.0 - 1.0) * (hashed(seed + 10, film) * 2.0 - 1.0);
    let age = hashed(3, film);
    let rating = taste(4) + taste(5) - age;
    ((user as i64, film as i64), (age, rating))
}

fn table(rows: usize, seed: u64) -> TableSpec {
    let initializer = TableInitializer::normal(0.3, seed);
    TableSpec::new(rows, 8, Adam::new(0.02)).initializer(initializer)
}

fn main() -> Result<()> {
    let mut program = Program::new();
    // The tables are divided into two shards; the small model is not.
    let mut options = CoordinatorOptions::default();
    options.partitioner = Some(Arc::new(MinSizePartitioner::new(64 << 10, 2)?));
    program.coordinator_options(options);
    let users = program.table("users", table(USERS, 1));
    let films = program.table("films", table(FILMS, 2));
    let state = program.state("age", |device| {
        device.seed(42);
        TrainState::new(LinearConfig::new(1, 1).init(device), Sgd::new(0.1))
    });
    program.step("train", move |worker: &WorkerContext, number: usize| {
        let examples = (number * BATCH..(number + 1) * BATCH).map(|at| example(at as u64));
        let (ids, numbers): (Vec<_>, Vec<_>) = examples.unzip();
        let (user_ids, film_ids): (Vec<i64>, Vec<i64>) = ids.into_iter().unzip();
        let (ages, ratings): (Vec<f32>, Vec<f32>) = numbers.into_iter().unzip();
        // Each distinct row is pulled once.
        let users = worker.lookup(&users, user_ids.as_slice())?;
        let films = worker.lookup(&films, film_ids.as_slice())?;
        let pulled = users.distinct_ids().len() + films.distinct_ids().len();
        let loss = worker.run(&state, (users, films), |ctx, (state, (users, films))| {
            let flat = |values: &[f32]| Tensor::<1>::from_data(values, ctx.device());
            let product = users.tensor::<2>(ctx)? * films.tensor::<2>(ctx)?;
            let of_age = state.model.forward(flat(&ages).reshape([BATCH, 1]));
            let guess = (product.sum_dim(1) + of_age).squeeze_dim(1);
            let loss = (guess - flat(&ratings)).square().mean();
            let gradients = ctx.gradient(&loss, &state.model)?;
            // The gradients of the rows are pushed together with the model's.
            state.apply_gradients(ctx, gradients)?;
            Ok(loss.into_scalar::<f32>())
        })?;
        Ok((loss, pulled))
    });

    program.run(|coordinator: &ClusterCoordinator| {
        for epoch in 0..6 {
            let numbers = epoch * 60..(epoch + 1) * 60;
            let results = numbers.map(|number| coordinator.schedule("train", number));
            let results = results.collect::<Result<Vec<_>>>()?;
            coordinator.join()?;
            let results: Vec<(f32, usize)> = coordinator.fetch(&results)?;
            let loss = results.iter().map(|(loss, _)| loss).sum::<f32>() / 60.0;
            let rows = results.iter().map(|(_, rows)| rows).sum::<usize>() / 60;
            println!("epoch {epoch}: {rows} of {ALL} rows per step travelled, loss {loss:.4}");
        }
        Ok(())
    })
}
