//! What is computed depends on the number of replicas, not on the processes that they lie in: not
//! one bit.

use std::ops::Range;

use burn::module::{Module, Param};
use burn::nn::{Linear, LinearConfig};
use burn::tensor::activation::relu;
use burn::tensor::{DType, Device, Tensor, TensorData};
use distribute_core::metric::Mean;
use distribute_core::optim::Optimizer;
use distribute_core::{
    Adam, CommunicationImplementation, CommunicationOptions, MultiWorkerMirroredStrategy,
    MultiWorkerMirroredStrategyBuilder, PerReplica, ReduceOp, ReplicaContext, Result, Sgd,
    Strategy, StrategyExt, SyncBatchNorm, SyncBatchNormConfig, TrainState, dropout,
};
use rstest::rstest;

use crate::multi_worker::group::{Between, SHARED_MEMORY, THREADS, workers};
use crate::multi_worker::options::{GRPC, workers_with};

/// Eight replicas: the numbers of replicas of the workers.
const LAYOUTS: [&[usize]; 6] = [&[8], &[4, 4], &[2; 4], &[1; 8], &[3, 3, 2], &[5, 2, 1]];

const STEPS: usize = 32;

/// Examples of a step: every fourth one is short, and never can 8 replicas share them equally.
fn batch_size(step: usize) -> usize {
    if step % 4 == 3 { 11 } else { 20 }
}

/// The examples of a replica.
fn share(step: usize, replica: usize) -> Range<usize> {
    let (each, longer) = (batch_size(step) / 8, batch_size(step) % 8);
    let start = each * replica + replica.min(longer);
    start..start + each + usize::from(replica < longer)
}

#[derive(Module, Debug)]
struct Net {
    first: Linear,
    norm: SyncBatchNorm,
    last: Linear,
}

impl Net {
    fn new(device: &Device) -> Self {
        let linear = |inputs: usize, outputs: usize, seed: f32| {
            let mut linear = LinearConfig::new(inputs, outputs).init(device);
            let value = |i: usize| ((i as f32 + seed) * 12.9898).sin() * 0.5;
            let values: Vec<f32> = (0..inputs * outputs).map(value).collect();
            let data = TensorData::new(values, [inputs, outputs]);
            linear.weight = Param::from_tensor(Tensor::from_data(data, device).require_grad());
            linear.bias = Some(Param::from_tensor(
                Tensor::zeros([outputs], device).require_grad(),
            ));
            linear
        };
        Self {
            first: linear(3, 7, 0.3),
            norm: SyncBatchNormConfig::new(7).init(device).unwrap(),
            last: linear(7, 1, 5.1),
        }
    }

    fn forward(&self, ctx: &ReplicaContext, x: Tensor<2>, step: usize) -> Result<Tensor<2>> {
        let hidden = self.norm.forward(self.first.forward(x));
        let hidden = dropout(relu(hidden), 0.25, &mut ctx.rng(7, step as u64));
        Ok(self.last.forward(hidden))
    }
}

fn examples(step: usize, range: Range<usize>, device: &Device) -> (Tensor<2>, Tensor<2>) {
    let count = range.len();
    let (mut inputs, mut targets) = (Vec::new(), Vec::new());
    for i in range {
        let base = (step * 20 + i) as f32;
        let x: Vec<f32> = (0..3).map(|k| ((base + k as f32) * 78.233).sin()).collect();
        targets.push(x[0] * 2.0 - x[1] + 0.5 * x[2]);
        inputs.extend(x);
    }
    (
        Tensor::from_data(TensorData::new(inputs, [count, 3]), device),
        Tensor::from_data(TensorData::new(targets, [count, 1]), device),
    )
}

/// The bits of all that a training leaves behind, by name; and of what was seen meanwhile.
fn train(
    strategy: &MultiWorkerMirroredStrategy,
    optimizer: impl Optimizer + 'static,
    options: impl Fn(TrainState<Net>) -> TrainState<Net>,
) -> Result<Vec<(String, Vec<u64>)>> {
    let mut state =
        strategy.scope(|device| options(TrainState::new(Net::new(device), optimizer)))?;
    let metric = Mean::new(strategy);
    let mut seen = Vec::new();
    for step in 0..STEPS {
        let replicas = strategy.replicas().iter();
        let batches = replicas.map(|it| examples(step, share(step, it.id), &it.device));
        let batches = PerReplica::new(batches.collect());
        let loss = strategy.run((&mut state, batches), |ctx, (state, (x, y))| {
            let error = state.model.forward(ctx, x, step)? - y;
            let losses = error.clone() * error;
            metric.update_state(ctx, losses.clone().inner())?;
            let loss = losses.sum() / batch_size(step) as f32;
            ctx.loss_is_scaled();
            let gradients = ctx.gradient(&loss, &state.model)?;
            state.apply_gradients(ctx, gradients)?;
            Ok(loss.into_scalar::<f32>())
        })?;
        seen.push(
            strategy
                .reduce(ReduceOp::Sum, loss.clone())?
                .to_bits()
                .into(),
        );
        seen.push(strategy.reduce(ReduceOp::Mean, loss)?.to_bits().into());
    }
    seen.push(metric.result()?.to_bits());
    let mut all = vec![("seen".to_string(), seen)];
    for (name, data) in state.primary()?.to_tensors()? {
        let wide = data
            .convert_dtype(DType::F64)
            .try_into_vec::<f64>()
            .unwrap();
        all.push((name, wide.into_iter().map(f64::to_bits).collect()));
    }
    Ok(all)
}

fn packed(builder: MultiWorkerMirroredStrategyBuilder) -> MultiWorkerMirroredStrategyBuilder {
    builder.communication_options(CommunicationOptions {
        bytes_per_pack: 40,
        ..CommunicationOptions::default()
    })
}

type Options = fn(MultiWorkerMirroredStrategyBuilder) -> MultiWorkerMirroredStrategyBuilder;

/// Trains with every layout and compares all that is left behind.
fn equal_over_layouts(
    between: Between,
    layouts: &[&[usize]],
    program: impl Fn(MultiWorkerMirroredStrategy) -> Result<Vec<(String, Vec<u64>)>>
    + Send
    + Clone
    + 'static,
    options: &[Options],
) {
    let expected = workers(THREADS, &[8], program.clone()).swap_remove(0);
    assert!(
        expected
            .iter()
            .any(|(name, _)| name.contains("moving_mean"))
    );
    for layout in layouts {
        for options in options {
            let all = workers_with(between, layout, program.clone(), *options);
            for (worker, found) in all.iter().enumerate() {
                for (found, expected) in found.iter().zip(&expected) {
                    assert_eq!(found, expected, "worker {worker} of {layout:?}");
                }
                assert_eq!(found.len(), expected.len());
            }
        }
    }
}

#[rstest]
fn eight_replicas_give_the_same_bits_in_any_processes(#[values(true, false)] adam: bool) {
    let program = move |strategy: MultiWorkerMirroredStrategy| {
        if adam {
            train(&strategy, Adam::new(0.01), |state| state)
        } else {
            train(&strategy, Sgd::new(0.05).momentum(0.9), |state| {
                state.clip_by_global_norm(0.4).accumulate(4)
            })
        }
    };
    equal_over_layouts(THREADS, &LAYOUTS, program, &[|builder| builder, packed]);
}

#[rstest]
#[case(SHARED_MEMORY)]
#[case(GRPC)]
fn also_between_what_meets_as_processes_do(#[case] between: Between) {
    let program = |strategy: MultiWorkerMirroredStrategy| {
        train(&strategy, Adam::new(0.01), |state| {
            state.clip_by_global_norm(0.4)
        })
    };
    equal_over_layouts(
        between,
        &[&[4, 4], &[5, 2, 1]],
        program,
        &[|builder| builder, packed],
    );
}

/// Values of every type, which are reduced in a step: also means, and half types.
#[test]
fn reductions_in_a_step_have_the_same_bits() {
    let program = |strategy: MultiWorkerMirroredStrategy| {
        let found = strategy.run((), |ctx, ()| {
            let values = |scale: f32| {
                let value = |i: usize| ((ctx.replica_id() * 50 + i) as f32 * 12.9898).sin() * scale;
                TensorData::new((0..50).map(value).collect::<Vec<f32>>(), [50])
            };
            let mut found = Vec::new();
            for dtype in [DType::F32, DType::F64, DType::F16, DType::BF16, DType::I32] {
                for op in [ReduceOp::Sum, ReduceOp::Mean, ReduceOp::Max, ReduceOp::Prod] {
                    let scale = if dtype == DType::I32 { 30.0 } else { 1.5 };
                    let mine = values(scale).convert_dtype(dtype);
                    found.push(ctx.all_reduce(op, mine)?.as_bytes().to_vec());
                }
            }
            Ok(found)
        })?;
        let all = strategy.local_results(found);
        assert!(all.iter().all(|found| *found == all[0]));
        Ok(all[0].clone())
    };
    let expected = workers(THREADS, &[8], program).swap_remove(0);
    for layout in LAYOUTS {
        for found in workers(THREADS, layout, program) {
            assert_eq!(found, expected, "{layout:?}");
        }
    }
}

/// A ring has an order of its own: workers agree, and the layout shows.
#[test]
fn a_ring_keeps_its_own_order() {
    fn ring(builder: MultiWorkerMirroredStrategyBuilder) -> MultiWorkerMirroredStrategyBuilder {
        builder.communication_options(CommunicationOptions {
            implementation: CommunicationImplementation::Ring,
            ..CommunicationOptions::default()
        })
    }
    let program = |strategy: MultiWorkerMirroredStrategy| {
        let values = [1.0e8_f32, 1.0, -1.0e8, 1.0];
        let sums = strategy.run((), |ctx, ()| {
            ctx.all_reduce(ReduceOp::Sum, values[ctx.replica_id()])
        })?;
        Ok(strategy.local_results(sums)[0])
    };
    // The tree over 4 would be (1e8 + 1) + (-1e8 + 1) = 0.
    let sums = workers_with(THREADS, &[3, 1], program, ring);
    assert_eq!(
        sums, [1.0; 2],
        "the sum of the first worker, then that of the second"
    );
    assert_eq!(workers(THREADS, &[3, 1], program), [0.0; 2]);
}
