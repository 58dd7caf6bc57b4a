//! A model whose parameters have gradients on all, some and no replicas.

use std::sync::mpsc;
use std::time::Duration;

use burn::module::{Module, Param};
use burn::nn::{Linear, LinearConfig};
use burn::tensor::activation::relu;
use burn::tensor::{Device, Tensor, TensorData};
use distribute_core::{
    Adam, Gradients, Mirrored, PerReplica, ReplicaContext, Result, Strategy, StrategyExt,
    TrainState,
};

/// How long a test may take: a hang fails, and is not waited for.
const LIMIT: Duration = Duration::from_secs(100);

/// Runs a test with a limit.
pub fn within_limit<T: Send + 'static>(test: impl FnOnce() -> T + Send + 'static) -> T {
    // Building it does not count.
    crate::fake::built();
    let (done, result) = mpsc::channel();
    let thread = std::thread::spawn(move || drop(done.send(test())));
    match result.recv_timeout(LIMIT) {
        Ok(result) => result,
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("the test hangs"),
        Err(mpsc::RecvTimeoutError::Disconnected) => match thread.join() {
            Err(panic) => std::panic::resume_unwind(panic),
            Ok(()) => panic!("no result"),
        },
    }
}

#[derive(Module, Debug)]
pub struct Net {
    hidden: Linear,
    output: Linear,
    /// Two whose gradients are one tensor.
    left: Param<Tensor<1>>,
    right: Param<Tensor<1>>,
    /// Used by replica 0 only.
    first: Param<Tensor<1>>,
    unused: Param<Tensor<1>>,
}

fn numbers(count: usize, seed: f32) -> Vec<f32> {
    let number = |i: usize| ((i as f32 + seed) * 12.9898).sin() * 0.5;
    (0..count).map(number).collect()
}

impl Net {
    /// Fixed weights, so that tests do not depend on burn's process-wide generator.
    pub fn new(device: &Device) -> Self {
        let fill = |mut linear: Linear, seed: f32| {
            linear.weight = linear.weight.map(|weight| {
                let shape = weight.shape();
                let values = numbers(shape.num_elements(), seed);
                Tensor::from_data(TensorData::new(values, shape), device).require_grad()
            });
            linear.bias = linear
                .bias
                .map(|bias| bias.map(|bias| Tensor::zeros(bias.shape(), device).require_grad()));
            linear
        };
        let param = |count: usize, seed| {
            let data = TensorData::new(numbers(count, seed), [count]);
            Param::from_tensor(Tensor::from_data(data, device).require_grad())
        };
        Self {
            hidden: fill(LinearConfig::new(3, 8).init(device), 1.0),
            output: fill(LinearConfig::new(8, 1).init(device), 2.0),
            left: param(5, 3.0),
            right: param(5, 4.0),
            first: param(4, 5.0),
            unused: param(3, 6.0),
        }
    }

    pub fn loss(&self, ctx: &ReplicaContext, x: Tensor<2>, y: Tensor<2>) -> Tensor<1> {
        let error = self.output.forward(relu(self.hidden.forward(x))) - y;
        let mut loss = (error.clone() * error).sum();
        let both = self.left.val() + self.right.val();
        loss = loss + (both.clone() * both).sum();
        if ctx.replica_id() == 0 {
            loss = loss + self.first.val().powi_scalar(2).sum();
        }
        loss.div_scalar(BATCH as f32)
    }
}

pub type Batch = (Tensor<2>, Tensor<2>);

pub const BATCH: usize = 12;

/// The examples of a range of a global batch, on a device.
fn examples(step: usize, range: std::ops::Range<usize>, device: &Device) -> Batch {
    let count = range.len();
    let (mut inputs, mut targets) = (Vec::new(), Vec::new());
    for row in range {
        let base = (step * BATCH + row) as f32;
        let x: Vec<f32> = (0..3).map(|k| ((base + k as f32) * 78.233).sin()).collect();
        targets.push(x[0] * 2.0 - x[1] + 0.5 * x[2]);
        inputs.extend(x);
    }
    (
        Tensor::from_data(TensorData::new(inputs, [count, 3]), device),
        Tensor::from_data(TensorData::new(targets, [count, 1]), device),
    )
}

pub fn batches(strategy: &dyn Strategy, step: usize) -> PerReplica<Batch> {
    let share = BATCH.div_ceil(strategy.num_replicas_in_sync());
    let batches = strategy.replicas().iter().map(|replica| {
        let start = (replica.id * share).min(BATCH);
        let end = (start + share).min(BATCH);
        examples(step, start..end, &replica.device)
    });
    PerReplica::new(batches.collect())
}

/// What a step does with its gradients before they are applied.
pub type Between = fn(&mut Gradients, &ReplicaContext) -> Result<()>;

pub fn nothing(_: &mut Gradients, _: &ReplicaContext) -> Result<()> {
    Ok(())
}

pub fn state<S: Strategy>(strategy: &S) -> Result<Mirrored<TrainState<Net>>> {
    strategy.scope(|device| TrainState::new(Net::new(device), Adam::new(0.01)))
}

/// One step on all replicas.
pub fn step<S: Strategy>(
    strategy: &S,
    state: &mut Mirrored<TrainState<Net>>,
    step: usize,
    between: Between,
) -> Result<()> {
    let batches = batches(strategy, step);
    strategy.run((state, batches), |ctx, (state, (x, y))| {
        let loss = state.model.loss(ctx, x, y);
        let mut gradients = ctx.gradient(&loss, &state.model)?;
        between(&mut gradients, ctx)?;
        state.apply_gradients(ctx, gradients)?;
        Ok(())
    })?;
    Ok(())
}

/// The weights after some steps; those of all replicas are the same.
pub fn train<S: Strategy>(
    strategy: &S,
    configure: fn(TrainState<Net>) -> TrainState<Net>,
    between: Between,
) -> Result<Vec<f32>> {
    let mut state =
        strategy.scope(|device| configure(TrainState::new(Net::new(device), Adam::new(0.01))))?;
    for number in 0..6 {
        step(strategy, &mut state, number, between)?;
    }
    let primary = weights(state.primary())?;
    for copy in state.values() {
        assert_eq!(weights(copy)?, primary, "replicas differ");
    }
    Ok(primary)
}

pub fn weights(state: &TrainState<Net>) -> Result<Vec<f32>> {
    let tensors = state.to_tensors()?;
    let values = tensors.values();
    Ok(values
        .flat_map(|data| data.iter::<f32>().collect::<Vec<_>>())
        .collect())
}

/// Equal but for the order of additions.
pub fn close(a: &[f32], b: &[f32]) {
    assert_eq!(a.len(), b.len());
    for (a, b) in a.iter().zip(b) {
        assert!((a - b).abs() <= 1e-5 * b.abs().max(1.0), "{a} {b}");
    }
}
