//! Asynchronous training with parameter servers: one program, whose role is in `TF_CONFIG`.
//!
//! ```text
//! cargo build --release -p examples --bin parameter_server
//! distribute-cli launch --ps 1 --workers 2 -- target/release/parameter_server
//! ```
//!
//! The launcher starts it four times: as chief, as server and as two workers. Kill a worker while
//! it runs: the job finishes, and every step is applied once.
#![forbid(unsafe_code)]

use distribute::burn::nn::LinearConfig;
use distribute::burn::tensor::{Tensor, TensorData};
use distribute::parameter_server::{
    ClusterCoordinator, Program, RemoteValue, Result, WorkerContext,
};
use distribute::{Adam, StrategyExt, TrainState};

/// The function that the model learns: y = 3 a - 2 b + 1.
fn example(number: u64) -> ([f32; 2], f32) {
    let part = |seed: u64| (number.wrapping_mul(seed) % 1009) as f32 / 1009.0 - 0.5;
    let (a, b) = (part(7919), part(104_729));
    ([a, b], 3.0 * a - 2.0 * b + 1.0)
}

/// The `number`-th batch of 32 examples.
fn batch(number: u64) -> (TensorData, TensorData) {
    let examples = number * 32..(number + 1) * 32;
    let (x, y): (Vec<_>, Vec<_>) = examples.map(example).unzip();
    let x = TensorData::new(x.concat(), [32, 2]);
    (x, TensorData::new(y, [32, 1]))
}

fn main() -> Result<()> {
    // Every process registers the same states and steps; only names are sent.
    let mut program = Program::new();
    let state = program.state("model", |device| {
        device.seed(42);
        TrainState::new(LinearConfig::new(2, 1).init(device), Adam::new(0.05))
    });
    let data = program.dataset("examples", |input| {
        // Every worker has its own iterator, here over its share of the batches.
        let (first, workers) = (input.input_pipeline_id, input.num_input_pipelines);
        Ok((first as u64..).step_by(workers).map(|n| Ok(batch(n))))
    });
    let of_step = state.clone();
    program.step("train", move |worker: &WorkerContext, (): ()| {
        let batch = worker.next(&data)?;
        // Pulls the newest parameters, runs the step, and pushes the gradients to the servers.
        worker.run(&of_step, batch, |ctx, (state, (x, y))| {
            let x = Tensor::<2>::from_data(x, ctx.device());
            let error = state.model.forward(x) - Tensor::from_data(y, ctx.device());
            let loss = error.square().mean();
            let gradients = ctx.gradient(&loss, &state.model)?;
            state.apply_gradients(ctx, gradients)?;
            Ok(loss.into_scalar::<f32>())
        })
    });

    // On the chief only; workers and servers run until it has finished.
    program.run(|coordinator: &ClusterCoordinator| {
        for epoch in 0..6 {
            let losses = (0..100).map(|_| coordinator.schedule("train", ()));
            let losses: Vec<RemoteValue> = losses.collect::<Result<_>>()?;
            coordinator.join()?;
            let losses: Vec<f32> = coordinator.fetch(&losses)?;
            let mean = losses.iter().sum::<f32>() / losses.len() as f32;
            println!("epoch {epoch}: loss {mean:.4}");
        }
        let strategy = coordinator.strategy()?;
        let weights = coordinator.with(&state, |state| {
            let read = strategy.run(state, |_, state| Ok(state.model.weight.val().into_data()))?;
            Ok(read.into_values().remove(0))
        })?;
        println!("weights {weights}");
        Ok(())
    })
}
