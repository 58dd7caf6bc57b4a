//! The same global batches give the same weights, however many workers and replicas there are.

use std::ops::Range;

use burn::module::Module;
use burn::nn::{Initializer, Linear, LinearConfig};
use burn::tensor::activation::relu;
use burn::tensor::{Device, Tensor, TensorData};
use distribute_core::collectives::ProcessTransport;
use distribute_core::optim::Optimizer;
use distribute_core::{
    Adam, CommunicationOptions, DefaultStrategy, MultiWorkerMirroredStrategy,
    MultiWorkerMirroredStrategyBuilder, PerReplica, ReduceOp, Result, Sgd, Strategy, StrategyExt,
    TrainState,
};
use rstest::rstest;

use crate::multi_worker::group::{Between, SHARED_MEMORY, THREADS, workers};
use crate::multi_worker::options::{GRPC, workers_of_cluster, workers_with};

const GLOBAL_BATCH: usize = 24;

#[derive(Module, Debug)]
struct Mlp {
    hidden: Linear,
    output: Linear,
}

impl Mlp {
    /// Weights by `scale`; the hidden layer's differ from unit to unit.
    fn new(device: &Device, scale: f32) -> Self {
        let constant = |value| Initializer::Constant { value };
        let linear = |inputs, outputs, value| {
            LinearConfig::new(inputs, outputs)
                .with_initializer(constant(value))
                .init(device)
        };
        let mut hidden: Linear = linear(3, 8, 0.1);
        hidden.weight = hidden.weight.map(|weight| {
            let values: Vec<f32> = (0..24)
                .map(|i| (i as f32 * 12.9898).sin() * scale)
                .collect();
            Tensor::from_data(TensorData::new(values, weight.shape()), device).require_grad()
        });
        Self {
            hidden,
            output: linear(8, 1, f64::from(scale)),
        }
    }

    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        self.output.forward(relu(self.hidden.forward(x)))
    }
}

/// Examples of a step on a device: inputs and targets.
fn examples(step: usize, range: Range<usize>, device: &Device) -> (Tensor<2>, Tensor<2>) {
    let count = range.len();
    let (mut inputs, mut targets) = (Vec::new(), Vec::new());
    for i in range {
        let base = (step * GLOBAL_BATCH + i) as f32;
        let x: Vec<f32> = (0..3).map(|k| ((base + k as f32) * 78.233).sin()).collect();
        targets.push(x[0] * 2.0 - x[1] + 0.5 * x[2]);
        inputs.extend(x);
    }
    (
        Tensor::from_data(TensorData::new(inputs, [count, 3]), device),
        Tensor::from_data(TensorData::new(targets, [count, 1]), device),
    )
}

/// The bits of all weights after 50 steps, and the loss of each step.
pub fn train<S: Strategy>(
    strategy: &S,
    optimizer: impl Optimizer + 'static,
) -> Result<(Vec<f32>, Vec<f32>)> {
    // Only the chief builds the right model: the others must take it over.
    let is_chief = strategy.workers().is_none_or(|workers| workers.is_chief());
    let scale = if is_chief { 0.5 } else { 0.7 };
    let mut state = strategy.scope(|device| TrainState::new(Mlp::new(device, scale), optimizer))?;
    let replicas = strategy.num_replicas_in_sync();
    let mut losses = Vec::new();
    for step in 0..50 {
        let batches = strategy.replicas().iter().map(|replica| {
            // Uneven where 24 does not divide: the last ones get less, or nothing.
            let share = GLOBAL_BATCH.div_ceil(replicas);
            let start = (replica.id * share).min(GLOBAL_BATCH);
            let end = (start + share).min(GLOBAL_BATCH);
            examples(step, start..end, &replica.device)
        });
        let batches = PerReplica::new(batches.collect());
        let loss = strategy.run((&mut state, batches), |ctx, (state, (x, y))| {
            let error = state.model.forward(x) - y;
            let loss = (error.clone() * error).sum() / GLOBAL_BATCH as f32;
            ctx.loss_is_scaled();
            let gradients = ctx.gradient(&loss, &state.model)?;
            state.apply_gradients(ctx, gradients)?;
            Ok(loss.into_scalar::<f32>())
        })?;
        losses.push(strategy.reduce(ReduceOp::Sum, loss)?);
    }
    for copy in state.values().unwrap() {
        assert_eq!(
            weights(copy)?,
            weights(state.primary().unwrap())?,
            "replicas differ"
        );
    }
    Ok((weights(state.primary().unwrap())?, losses))
}

fn weights(state: &TrainState<Mlp>) -> Result<Vec<f32>> {
    let tensors = state.to_tensors()?;
    let model = tensors
        .iter()
        .filter(|(name, _)| name.starts_with("model/"));
    Ok(model
        .flat_map(|(_, data)| data.as_slice::<f32>().unwrap().to_vec())
        .collect())
}

fn close(a: &[f32], b: &[f32]) {
    assert_eq!(a.len(), b.len());
    for (a, b) in a.iter().zip(b) {
        assert!((a - b).abs() <= 1e-5 * b.abs().max(1.0), "{a} {b}");
    }
}

#[rstest]
fn all_numbers_of_workers_and_replicas_give_the_weights_of_one_replica(
    #[values(1, 2, 3, 4)] count: usize,
    #[values(1, 2)] replicas: usize,
) {
    for adam in [false, true] {
        let program = move |strategy| {
            if adam {
                train(&strategy, Adam::new(0.01))
            } else {
                train(&strategy, Sgd::new(0.1).momentum(0.9))
            }
        };
        let (expected, losses) = if adam {
            train(&DefaultStrategy::new(), Adam::new(0.01)).unwrap()
        } else {
            train(&DefaultStrategy::new(), Sgd::new(0.1).momentum(0.9)).unwrap()
        };
        let all = workers(THREADS, &vec![replicas; count], program);
        close(&all[0].0, &expected);
        close(&all[0].1, &losses);
        for worker in &all {
            assert_eq!(*worker, all[0], "workers differ");
        }
        let again = workers(THREADS, &vec![replicas; count], program);
        assert_eq!(again, all, "equal settings, equal bits");
    }
}

#[rstest]
#[case(SHARED_MEMORY)]
#[case(GRPC)]
fn so_do_workers_that_meet_as_processes_do(#[case] between: Between) {
    let (expected, _) = train(&DefaultStrategy::new(), Adam::new(0.01)).unwrap();
    let program = |strategy| train(&strategy, Adam::new(0.01));
    let all = workers(between, &[2, 1, 1], program);
    close(&all[0].0, &expected);
    for worker in &all {
        assert_eq!(*worker, all[0], "workers differ");
    }
    assert_eq!(workers(between, &[2, 1, 1], program), all, "equal bits");
}

/// Whatever the links are like: which algorithm `Auto` takes is measured at every start.
#[test]
fn workers_give_the_same_bits_over_every_transport() {
    let program = |strategy| train(&strategy, Adam::new(0.01));
    let expected = workers(THREADS, &[1, 1, 1, 1], program);
    for transport in [ProcessTransport::SharedMemory, ProcessTransport::Grpc] {
        for _ in 0..3 {
            let found = workers_of_cluster(4, transport, program);
            assert_eq!(found, expected, "{transport:?}");
        }
    }
}

fn packed(
    builder: MultiWorkerMirroredStrategyBuilder,
    bytes_per_pack: usize,
) -> MultiWorkerMirroredStrategyBuilder {
    builder.communication_options(CommunicationOptions {
        bytes_per_pack,
        ..CommunicationOptions::default()
    })
}

/// Packs only change what travels together, so not even the bits change.
#[rstest]
#[case(&[1, 2], THREADS)]
#[case(&[2, 2, 1], THREADS)]
#[case(&[2, 1], SHARED_MEMORY)]
#[case(&[1, 2], GRPC)]
fn packs_give_the_same_weights(#[case] replicas: &[usize], #[case] between: Between) {
    let program = |strategy| train(&strategy, Adam::new(0.01));
    let (expected, _) = train(&DefaultStrategy::new(), Adam::new(0.01)).unwrap();
    let one = workers(between, replicas, program);
    close(&one[0].0, &expected);
    let small = workers_with(between, replicas, program, |b| packed(b, 1));
    let middle = workers_with(between, replicas, program, |b| packed(b, 40));
    let large = workers_with(between, replicas, program, |b| packed(b, 1 << 30));
    assert_eq!([small, middle, large], [one.clone(), one.clone(), one]);
}

/// A parameter without a gradient stays as it is, also when it travels alone in its pack.
#[test]
fn packs_with_missing_gradients_give_the_same_weights() {
    let program = |strategy: MultiWorkerMirroredStrategy| {
        let mut state = strategy
            .scope(|device| TrainState::new(Mlp::new(device, 0.5), Sgd::new(0.1).momentum(0.9)))?;
        for step in 0..4 {
            strategy.run(&mut state, |ctx, state| {
                let (x, y) = examples(step, 0..4, ctx.device());
                // Replica 0 alone trains the hidden layer, and no replica its bias.
                let hidden = x.matmul(state.model.hidden.weight.val());
                let hidden = if ctx.replica_id() == 0 {
                    hidden
                } else {
                    hidden.detach()
                };
                let error = state.model.output.forward(relu(hidden)) - y;
                let loss = (error.clone() * error).sum() / 8.0;
                ctx.loss_is_scaled();
                let gradients = ctx.gradient(&loss, &state.model)?;
                state.apply_gradients(ctx, gradients).map(drop)
            })?;
        }
        let tensors = state.primary().unwrap().to_tensors()?;
        assert!(!tensors.contains_key("optimizer/momentum/hidden.bias"));
        weights(state.primary().unwrap())
    };
    let one = workers(THREADS, &[1, 2], program);
    let packs = workers_with(THREADS, &[1, 2], program, |b| packed(b, 1));
    assert_eq!(packs, one);
}
