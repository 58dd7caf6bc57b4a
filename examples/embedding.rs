//! An embedding model with parameter servers: of a large table only the rows that a batch uses
//! travel and are updated.
//!
//! ```text
//! cargo build --release -p examples --bin embedding
//! distribute-cli launch --ps 2 --workers 2 -- target/release/embedding
//! ```
//!
//! Matrix factorization: users rate films, and the rating is the product of the user's and the
//! film's embedding, plus what a small dense model makes of the film's age.
#![forbid(unsafe_code)]

use std::sync::Arc;

use burn::nn::LinearConfig;
use burn::tensor::{Tensor, TensorData};
use distribute_core::partitioners::MinSizePartitioner;
use distribute_core::{Adam, Sgd, TrainState};
use distribute_ps::{ClusterCoordinator, CoordinatorOptions, Program, RemoteValue, Result};
use distribute_ps::{TableInitializer, TableSpec, WorkerContext};

const USERS: u64 = 20_000;
const FILMS: u64 = 5_000;
const WIDTH: usize = 8;
const BATCH: u64 = 256;
/// Of all users and films these are in the training data.
const ACTIVE: u64 = 400;

/// A number from -1 to 1 that depends on its arguments alone.
fn hashed(seed: u64, number: u64) -> f32 {
    let mixed = (number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15 ^ seed << 32);
    let mixed = (mixed ^ mixed >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 40;
    mixed as f32 / (1 << 23) as f32 - 1.0
}

/// User, film, age of the film and rating of the `number`-th example.
fn example(number: u64) -> ([i64; 2], f32, f32) {
    let pick = |seed, count: u64| (hashed(seed, number) + 1.0) as f64 * 0.5 * count as f64;
    let (user, film) = (pick(1, ACTIVE) as u64 * 47, pick(2, ACTIVE) as u64 * 12);
    let age = hashed(3, film);
    // What is to be found: two tastes, and that old films are rated lower.
    let taste = |seed| hashed(seed, user) * hashed(seed + 10, film);
    let rating = taste(4) + taste(5) - 0.5 * age;
    ([(user % USERS) as i64, (film % FILMS) as i64], age, rating)
}

type Batch = (Vec<i64>, Vec<i64>, TensorData, TensorData);

fn batch(number: u64) -> Batch {
    let examples = (number * BATCH..(number + 1) * BATCH).map(example);
    let (mut users, mut films, mut ages, mut ratings) = (vec![], vec![], vec![], vec![]);
    for ([user, film], age, rating) in examples {
        users.push(user);
        films.push(film);
        ages.push(age);
        ratings.push(rating);
    }
    let column = |values: Vec<f32>| TensorData::new(values, [BATCH as usize, 1]);
    (users, films, column(ages), column(ratings))
}

fn table(rows: u64, seed: u64) -> TableSpec {
    let deviation = 0.3;
    TableSpec::new(rows as usize, WIDTH, Adam::new(0.02))
        .initializer(TableInitializer::Normal { deviation, seed })
}

fn main() -> Result<()> {
    let mut program = Program::new();
    // Tables of at least 64 KiB are cut in two; the small model is not.
    let mut options = CoordinatorOptions::default();
    options.partitioner = Some(Arc::new(MinSizePartitioner::new(64 << 10, 2)?));
    program.coordinator_options(options);
    let state = program.state("age", |device| {
        device.seed(42);
        TrainState::new(LinearConfig::new(1, 1).init(device), Sgd::new(0.1))
    });
    let users = program.table("users", table(USERS, 1));
    let films = program.table("films", table(FILMS, 2));
    let data = program.dataset("ratings", |input| {
        let (first, workers) = (input.input_pipeline_id, input.num_input_pipelines);
        Ok((first as u64..).step_by(workers).map(|n| Ok(batch(n))))
    });
    program.step("train", move |worker: &WorkerContext, (): ()| {
        let (user_ids, film_ids, ages, ratings) = worker.next(&data)?;
        // Each distinct row is pulled once, and its gradient pushed.
        let users = worker.lookup(&users, user_ids.as_slice())?;
        let films = worker.lookup(&films, film_ids.as_slice())?;
        let travelled = users.distinct_ids().len() + films.distinct_ids().len();
        let batch = (users, films, ages, ratings);
        let loss = worker.run(
            &state,
            batch,
            |ctx, (state, (users, films, ages, ratings))| {
                let ages = Tensor::<2>::from_data(ages, ctx.device());
                let product = users.tensor::<2>(ctx)? * films.tensor::<2>(ctx)?;
                let guess = product.sum_dim(1) + state.model.forward(ages);
                let error = guess - Tensor::from_data(ratings, ctx.device());
                let loss = error.square().mean();
                let gradients = ctx.gradient(&loss, &state.model)?;
                state.apply_gradients(ctx, gradients)?;
                Ok(loss.into_scalar::<f32>())
            },
        )?;
        Ok((loss, travelled as u64))
    });

    program.run(|coordinator: &ClusterCoordinator| {
        for epoch in 0..6 {
            let results = (0..60).map(|_| coordinator.schedule("train", ()));
            let results: Vec<RemoteValue> = results.collect::<Result<_>>()?;
            coordinator.join()?;
            let results: Vec<(f32, u64)> = coordinator.fetch(&results)?;
            let steps = results.len() as u64;
            let loss = results.iter().map(|(loss, _)| loss).sum::<f32>() / steps as f32;
            let rows = results.iter().map(|(_, rows)| rows).sum::<u64>() / steps;
            let all = USERS + FILMS;
            println!("epoch {epoch}: {rows} of {all} rows per step travelled, loss {loss:.4}");
        }
        Ok(())
    })
}
