//! `SyncBatchNorm` on several replicas is burn's `BatchNorm` on one with the whole batch.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use burn::module::{Module, ModuleDisplay, Param, ParamId};
use burn::nn::{BatchNorm, BatchNormConfig, Linear, LinearConfig};
use burn::tensor::activation::relu;
use burn::tensor::{DType, Device, Tensor, TensorData};
use distribute_core::collectives::ProcessTransport;
use distribute_core::metric::Mean;
use distribute_core::{
    DefaultStrategy, Error, MirroredStrategy, PerReplica, ReduceOp, ReplicaContext, Result, Sgd,
    Strategy, StrategyExt, SyncBatchNorm, SyncBatchNormConfig, TrainState, VariableAggregation,
    VariableOptions,
};
use rstest::rstest;

use crate::multi_worker::group::{Between, THREADS, try_workers, workers};
use crate::trace::support::Recording;

const GLOBAL_BATCH: usize = 12;
const GRPC: Between = Between(Some(ProcessTransport::Grpc), 60.0);

/// A normalization under test, or what it is compared with.
trait Norm: Module + ModuleDisplay + 'static {
    fn new(device: &Device) -> Self;

    fn of(&self, x: Tensor<3>) -> Tensor<3>;

    fn statistics(&self) -> [Tensor<1>; 2];
}

impl Norm for SyncBatchNorm {
    fn new(device: &Device) -> Self {
        let config = SyncBatchNormConfig::new(4).with_momentum(0.9);
        config.with_epsilon(1e-5).init(device).unwrap()
    }

    fn of(&self, x: Tensor<3>) -> Tensor<3> {
        self.forward(x)
    }

    fn statistics(&self) -> [Tensor<1>; 2] {
        [self.moving_mean.value(), self.moving_variance.value()]
    }
}

impl Norm for BatchNorm {
    fn new(device: &Device) -> Self {
        BatchNormConfig::new(4).init(device)
    }

    fn of(&self, x: Tensor<3>) -> Tensor<3> {
        self.forward(x)
    }

    fn statistics(&self) -> [Tensor<1>; 2] {
        [
            self.running_mean.value_sync(),
            self.running_var.value_sync(),
        ]
    }
}

#[derive(Module, Debug)]
struct Net<N> {
    first: Linear,
    norm: N,
    last: Linear,
}

/// A layer whose weights differ from element to element, by no generator.
pub fn linear(inputs: usize, outputs: usize, seed: f32, device: &Device) -> Linear {
    let mut linear = LinearConfig::new(inputs, outputs).init(device);
    let value = |i: usize| ((i as f32 + seed) * 12.9898).sin() * 0.5;
    let values: Vec<f32> = (0..inputs * outputs).map(value).collect();
    let data = TensorData::new(values, [inputs, outputs]);
    linear.weight = Param::from_tensor(Tensor::from_data(data, device).require_grad());
    linear.bias = Some(Param::from_tensor(Tensor::zeros([outputs], device)));
    linear
}

impl<N: Norm> Net<N> {
    fn new(device: &Device) -> Self {
        Self {
            first: linear(3, 8, 1.0, device),
            norm: N::new(device),
            last: linear(8, 1, 2.0, device),
        }
    }

    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        // Four features with two values for each example.
        let hidden = self.first.forward(x);
        let examples = hidden.dims()[0];
        let hidden = self.norm.of(hidden.reshape([examples, 4, 2]));
        self.last.forward(relu(hidden).reshape([examples, 8]))
    }
}

/// Inputs of examples of a step, around other centres in other steps.
fn examples(step: usize, range: Range<usize>, device: &Device) -> Tensor<2> {
    let count = range.len();
    let value = |i: usize| ((step * 64 + i) as f32 * 78.233).sin() * 2.0 + step as f32 * 0.1;
    let values: Vec<f32> = (range.start * 3..range.end * 3).map(value).collect();
    Tensor::from_data(TensorData::new(values, [count, 3]), device)
}

/// The part of a replica: every fifth batch is short, and some of its parts may be empty.
fn share(step: usize, replica: usize, replicas: usize) -> Range<usize> {
    let all = match step % 5 {
        4 => [7, 3, 2][step / 5 % 3],
        _ => GLOBAL_BATCH,
    };
    let size = all.div_ceil(replicas);
    (replica * size).min(all)..((replica + 1) * size).min(all)
}

/// Weights and moving statistics after 20 steps.
fn train<N: Norm, S: Strategy>(strategy: &S) -> Result<Vec<f32>> {
    let mut state = strategy
        .scope(|device| TrainState::new(Net::<N>::new(device), Sgd::new(0.05).momentum(0.9)))?;
    let replicas = strategy.num_replicas_in_sync();
    let device = strategy.replicas()[0].device.clone();
    for step in 0..20 {
        let ids = strategy.replicas().iter().map(|replica| replica.id);
        let parts = ids.map(|id| examples(step, share(step, id, replicas), &device));
        let parts = PerReplica::new(parts.collect::<Vec<_>>());
        strategy.run((&mut state, parts), |ctx, (state, x)| {
            let target = x.clone().sum_dim(1).sin();
            let error = state.model.forward(x) - target;
            let loss = error.powi_scalar(2).sum() / GLOBAL_BATCH as f32;
            ctx.loss_is_scaled();
            let gradients = ctx.gradient(&loss, &state.model)?;
            state.apply_gradients(ctx, gradients)?;
            Ok(())
        })?;
    }
    let copies = state.values()?.iter().map(|copy| {
        let mut tensors = copy.to_tensors().unwrap();
        tensors.retain(|name, _| !name.contains("running") && !name.contains("moving"));
        let mut all: Vec<f32> = tensors.values().flat_map(TensorData::iter::<f32>).collect();
        let statistics = copy.model.norm.statistics();
        all.extend(
            statistics
                .iter()
                .flat_map(|one| one.to_data().iter::<f32>().collect::<Vec<_>>()),
        );
        all
    });
    let copies: Vec<Vec<f32>> = copies.collect();
    assert!(
        copies.iter().all(|copy| *copy == copies[0]),
        "the same bits"
    );
    Ok(copies[0].clone())
}

#[track_caller]
fn assert_close(found: &[f32], expected: &[f32]) {
    assert_eq!(found.len(), expected.len());
    for (found, expected) in found.iter().zip(expected) {
        assert!(
            (found - expected).abs() < 1e-5,
            "{found} and not {expected}"
        );
    }
}

fn reference() -> Vec<f32> {
    train::<BatchNorm, _>(&DefaultStrategy::new()).unwrap()
}

#[rstest]
#[case(1)]
#[case(2)]
#[case(3)]
#[case(4)]
fn replicas_train_as_one_with_the_whole_batch(#[case] replicas: usize) {
    let strategy = MirroredStrategy::builder()
        .replicas(replicas)
        .build()
        .unwrap();
    assert_close(&train::<SyncBatchNorm, _>(&strategy).unwrap(), &reference());
}

#[rstest]
#[case(THREADS, vec![2, 2])]
#[case(GRPC, vec![2, 2])]
#[case(THREADS, vec![1, 3])]
fn workers_train_as_one_with_the_whole_batch(
    #[case] between: Between,
    #[case] replicas: Vec<usize>,
) {
    let found = workers(between, &replicas, |strategy| {
        train::<SyncBatchNorm, _>(&strategy)
    });
    for worker in &found {
        assert_eq!(*worker, found[0]);
        assert_close(worker, &reference());
    }
}

fn layer(device: &Device) -> Result<SyncBatchNorm> {
    SyncBatchNormConfig::new(2).init(device)
}

/// What a step on parts of these sizes gives.
fn outputs(sizes: &[usize]) -> Result<Vec<Tensor<2>>> {
    let strategy = MirroredStrategy::builder().replicas(sizes.len()).build()?;
    let mut norm = strategy.try_scope(layer)?;
    let device = &strategy.replicas()[0].device;
    let part = |size| examples(0, 0..size, device).narrow(1, 0, 2);
    let parts = PerReplica::new(sizes.iter().map(|size| part(*size)).collect());
    let outputs = strategy.run((&mut norm, parts), |_, (norm, x)| Ok(norm.forward(x)))?;
    let mean = norm.primary()?.moving_mean.value().into_data();
    let is_as_before = mean.iter::<f32>().all(|mean| mean == 0.0);
    assert_eq!(is_as_before, sizes.iter().all(|size| *size == 0));
    Ok(outputs.into_values())
}

#[test]
fn empty_parts_and_batches_are_harmless() {
    let found = outputs(&[0, 3]).unwrap();
    assert_eq!(found[0].dims(), [0, 2]);
    assert!(found[1].to_data().iter::<f32>().all(f32::is_finite));
    assert_eq!(outputs(&[0, 0]).unwrap()[1].dims(), [0, 2]);
    // One example on each of two replicas has a variance.
    assert_eq!(outputs(&[1, 1]).unwrap()[1].dims(), [1, 2]);
}

#[rstest]
#[case(&[1])]
#[case(&[1, 0])]
#[case(&[0, 0, 1])]
fn one_value_per_feature_has_the_variance_0_as_in_keras(#[case] sizes: &[usize]) {
    let found = outputs(sizes).unwrap();
    for (output, size) in found.iter().zip(sizes) {
        assert_eq!(output.dims(), [*size, 2]);
        // That is beta.
        assert!(output.to_data().iter::<f32>().all(|value| value == 0.0));
    }
}

#[test]
fn a_layer_that_does_not_train_uses_the_moving_statistics() {
    let device = Device::flex().autodiff();
    let x = examples(0, 0..4, &device).narrow(1, 0, 2);
    let plain = layer(&device).unwrap().valid();
    let expected = plain
        .forward_inference(x.clone().without_autodiff())
        .unwrap();
    let strategy = MirroredStrategy::builder().replicas(2).build().unwrap();
    let mut frozen = strategy
        .scope(|device| layer(device).unwrap().freeze())
        .unwrap();
    // Only one replica calls it: nothing is exchanged.
    let found = strategy.run(&mut frozen, |ctx, norm| match ctx.replica_id() {
        0 => Ok(norm.forward(x.clone())),
        _ => Ok(x.clone()),
    });
    let found = found.unwrap().values()[0].clone();
    let difference: f32 = (found.without_autodiff() - expected)
        .abs()
        .max()
        .into_scalar();
    assert!(difference < 1e-6);
    assert_eq!(
        frozen
            .primary()
            .unwrap()
            .moving_mean
            .value()
            .to_data()
            .iter::<f32>()
            .sum::<f32>(),
        0.0
    );
}

/// What a step on parts of 3 and 2 examples gives, of which the layers may get more that weigh
/// nothing: the first outputs, the gradients of the inputs, gamma and the moving statistics.
fn filled_up(with: &[usize]) -> Vec<Vec<f32>> {
    let strategy = MirroredStrategy::builder().replicas(2).build().unwrap();
    let state = strategy.try_scope(|device| Ok(TrainState::new(layer(device)?, Sgd::new(0.1))));
    let mut state = state.unwrap();
    let device = &strategy.replicas()[0].device;
    let parts = [(0, 3), (7, 2)].into_iter().zip(with);
    let parts = parts.map(|((first, own), with)| {
        let x = examples(0, first..first + own + with, device).narrow(1, 0, 2);
        let weights = [vec![1.0_f32; own], vec![0.0; *with]].concat();
        let weights = Tensor::<1>::from_floats(weights.as_slice(), device);
        (x.reshape([own + with, 2, 1]).require_grad(), weights)
    });
    let parts = PerReplica::new(parts.collect());
    let run = strategy.run(
        (&mut state, parts, *with != [0, 0]),
        |ctx, (state, (x, weights), is_filled_up)| {
            let (norm, own) = (&state.model, weights.clone());
            let y = if is_filled_up {
                norm.forward_weighted(x.clone(), own)
            } else {
                norm.forward(x.clone())
            };
            let counted = weights.clone().reshape([-1, 1, 1]) * y.clone().sin();
            let inputs = vec![Param::initialized(ParamId::new(), x)];
            let both = (state.model.clone(), inputs);
            let gradients = ctx.gradient(&counted.sum(), &both)?;
            let own = |index| -> Vec<f32> {
                let gradient = gradients.get(index).unwrap();
                gradient.unwrap().iter().collect()
            };
            let of_x = own(2);
            let count = weights
                .to_data()
                .iter::<f32>()
                .filter(|x| *x == 1.0)
                .count()
                * 2;
            let y = y.into_data().iter::<f32>().take(count).collect::<Vec<_>>();
            let (first, rest) = of_x.split_at(count);
            assert!(rest.iter().all(|gradient| *gradient == 0.0), "{rest:?}");
            Ok(vec![y, first.to_vec(), own(0), own(1)])
        },
    );
    let statistics = state.primary().unwrap().model.statistics();
    let statistics = statistics.map(|one| one.to_data().iter::<f32>().collect());
    let run = run.unwrap().into_values();
    run.into_iter().flatten().chain(statistics).collect()
}

#[test]
fn examples_that_weigh_nothing_count_in_no_statistic() {
    let expected = filled_up(&[0, 0]);
    for with in [[1, 2], [4, 0], [9, 9]] {
        let found = filled_up(&with);
        assert_eq!(found.len(), expected.len());
        for (found, expected) in found.iter().zip(&expected) {
            assert_close(found, expected);
        }
    }
}

#[test]
fn weights_are_those_of_the_examples() {
    let strategy = DefaultStrategy::new();
    let mut norm = strategy.try_scope(layer).unwrap();
    let found = strategy.run(&mut norm, |ctx, norm| {
        let x = examples(0, 0..4, ctx.device()).narrow(1, 0, 2);
        Ok(norm.forward_weighted(x, Tensor::ones([3], ctx.device())))
    });
    let error = found.unwrap_err();
    assert!(matches!(error.root_cause(), Error::Shape { .. }), "{error}");
    assert!(error.to_string().contains("SyncBatchNorm"), "{error}");
}

#[test]
fn half_precision_is_summed_in_f32() {
    let strategy = MirroredStrategy::builder().replicas(2).build().unwrap();
    let mut norm = strategy.try_scope(layer).unwrap();
    let outputs = strategy.run(&mut norm, |ctx, norm| {
        // The sum of the squares is more than f16 holds.
        let x = examples(0, 0..40, ctx.device())
            .narrow(1, 0, 2)
            .mul_scalar(100.0);
        Ok(norm.forward(x.cast(DType::F16)))
    });
    let output = outputs.unwrap().values()[1].clone();
    assert_eq!(output.dtype(), DType::F16);
    assert!(output.to_data().iter::<f32>().all(f32::is_finite));
}

/// Numbers from 0 to 1 by no generator, `[examples, 2, places]`.
fn positive(sizes: [usize; 3], seed: u32, device: &Device) -> Tensor<3> {
    let value = |i: u32| ((i + 1).wrapping_mul(2_654_435_761 + 2 * seed) >> 8) as f32;
    let count = sizes.iter().product::<usize>() as u32;
    let values: Vec<f32> = (0..count).map(|i| value(i) / 16_777_216.0).collect();
    Tensor::from_data(TensorData::new(values, sizes), device)
}

/// What is normalized in `f64`: the same formula.
fn exact(input: &[f64], [examples, features, places]: [usize; 3], epsilon: f64) -> Vec<f64> {
    let feature = |i: usize| i / places % features;
    let mean_of = |value: &dyn Fn(usize) -> f64| -> Vec<f64> {
        let mut sums = vec![0.0; features];
        (0..input.len()).for_each(|i| sums[feature(i)] += value(i));
        sums.iter()
            .map(|sum| sum / (examples * places) as f64)
            .collect()
    };
    let mean = mean_of(&|i| input[i]);
    let variance = mean_of(&|i| (input[i] - mean[feature(i)]).powi(2));
    let normalized = |i: usize| {
        let deviation = (variance[feature(i)] + epsilon).sqrt();
        (input[i] - mean[feature(i)]) / deviation
    };
    (0..input.len()).map(normalized).collect()
}

/// The statistics of many examples are as exact as the statistics of few: a sum of one number after
/// the other would lose more digits, the more examples there are.
#[rstest]
fn statistics_of_large_batches_lose_no_digits(
    #[values([16, 2, 1], [1_000, 2, 1], [20_000, 2, 1], [4_100, 2, 3], [300, 2, 64])] //
    sizes: [usize; 3],
    #[values(0, 1, 2, 3)] seed: u32,
) {
    let strategy = DefaultStrategy::new();
    let mut norm = strategy.try_scope(layer).unwrap();
    let epsilon = norm.primary().unwrap().epsilon;
    let outputs = strategy.run(&mut norm, |ctx, norm| {
        let input = positive(sizes, seed, ctx.device());
        Ok((input.clone(), norm.forward(input)))
    });
    let (input, found) = outputs.unwrap().into_values().remove(0);
    let [input, found] = [input, found].map(|x| x.to_data().iter::<f64>().collect::<Vec<_>>());
    let exact = exact(&input, sizes, epsilon);
    let errors = found
        .iter()
        .zip(&exact)
        .map(|(found, exact)| (found - exact).abs());
    let largest = errors.fold(0.0, f64::max);
    println!("{sizes:?} {seed}: {largest:.1e}");
    assert!(largest <= 5e-7, "{sizes:?}: {largest}");
}

#[test]
fn bad_configurations_and_inputs_are_errors() {
    let device = Device::flex().autodiff();
    let config = SyncBatchNormConfig::new(2);
    let bad = [
        (SyncBatchNormConfig::new(0), "num_features"),
        (config.clone().with_momentum(1.5), "momentum is 1.5"),
        (config.clone().with_epsilon(0.0), "epsilon is 0"),
    ];
    for (config, name) in bad {
        let error = config.init(&device).unwrap_err().to_string();
        assert!(error.contains(name), "{error}");
    }
    let norm = config.init(&device).unwrap().valid();
    let error = norm.forward_inference(Tensor::<2>::ones([4, 3], &Device::flex()));
    assert!(matches!(error, Err(Error::Shape { .. })));
}

#[derive(Module, Debug)]
struct Block {
    inner: Linear,
    norm: SyncBatchNorm,
}

#[derive(Module, Debug)]
struct TwoBlocks {
    blocks: Vec<Block>,
}

impl TwoBlocks {
    /// The second block normalizes `features` features of its 4.
    fn new(features: usize, device: &Device) -> Self {
        let block = |features| Block {
            inner: LinearConfig::new(4, 4).init(device),
            norm: SyncBatchNorm::from(BatchNormConfig::new(features).init(device)),
        };
        Self {
            blocks: vec![block(4), block(features)],
        }
    }

    /// The forward pass of a model of burn.
    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        let blocks = self.blocks.iter();
        blocks.fold(x, |x, block| block.norm.forward(block.inner.forward(x)))
    }
}

/// How a step goes on after its forward pass.
type End = fn(&ReplicaContext, &mut TrainState<TwoBlocks>, Tensor<2>) -> Result<()>;

/// Everything but the forward pass takes the failure for what it is, whatever the step does.
#[test]
fn a_failure_in_a_forward_pass_is_the_error_of_the_step_and_names_the_layer() {
    let ends: [End; 5] = [
        |ctx, state, y| {
            ctx.loss_is_scaled();
            let gradients = ctx.gradient(&y.sum(), &state.model)?;
            state.apply_gradients(ctx, gradients).map(drop)
        },
        // Errors that are ignored, a panic, another error and no further call at all.
        |ctx, state, y| {
            let _ = ctx.gradient(&y.sum(), &state.model);
            let _ = ctx.all_reduce(ReduceOp::Sum, 1.0_f32);
            Ok(())
        },
        |_, _, y| {
            let _ = y.matmul(Tensor::ones([77, 2], &Device::flex().autodiff()));
            Ok(())
        },
        |_, _, _| Err(Error::invalid("something that follows from it")),
        |_, _, _| Ok(()),
    ];
    for replicas in [1, 2, 3] {
        let builder = MirroredStrategy::builder().replicas(replicas);
        let strategy = builder.timeout(Duration::from_secs(60)).build().unwrap();
        for (index, end) in ends.into_iter().enumerate() {
            let build = |device: &Device| TrainState::new(TwoBlocks::new(3, device), Sgd::new(0.1));
            let mut state = strategy.scope(build).unwrap();
            let before = state.primary().unwrap().to_tensors().unwrap();
            let started = Instant::now();
            let ran = strategy.run(&mut state, |ctx, state| {
                let x = Tensor::<2>::ones([2, 4], ctx.device());
                let y = state.model.forward(x);
                end(ctx, state, y)
            });
            assert!(started.elapsed() < Duration::from_secs(20), "at once");
            let error = ran.unwrap_err();
            let text = error.to_string();
            let is_shape = matches!(error.root_cause(), Error::Shape { .. });
            assert!(
                is_shape && text.contains("SyncBatchNorm"),
                "{replicas} {index}: {text}"
            );
            assert!(text.contains("[2, 3], got [2, 4]"), "{text}");
            // The path is that of the model that a gradient is of.
            assert_eq!(
                text.contains("`blocks.1.norm`"),
                index < 2,
                "{index}: {text}"
            );
            state.resync();
            let state = state.primary().unwrap();
            assert_eq!(state.to_tensors().unwrap(), before, "nothing was changed");
            assert_eq!(state.step(), 0);
        }
        // The strategy is usable again.
        let mut state = strategy
            .scope(|device| TrainState::new(TwoBlocks::new(4, device), Sgd::new(0.1)))
            .unwrap();
        let ran = strategy.run(&mut state, |ctx, state| {
            let y = state.model.forward(Tensor::<2>::ones([2, 4], ctx.device()));
            ends[0](ctx, state, y)
        });
        ran.unwrap();
    }
}

/// A replica whose layer fails does not keep the others waiting, and they do not go on.
#[test]
fn a_failure_on_one_replica_ends_the_others_at_once() {
    let builder = MirroredStrategy::builder().replicas(3);
    let strategy = builder.timeout(Duration::from_secs(60)).build().unwrap();
    let mut norm = strategy.try_scope(layer).unwrap();
    let started = Instant::now();
    let went_on = AtomicUsize::new(0);
    let ran = strategy.run(&mut norm, |ctx, norm| {
        let features = if ctx.replica_id() == 1 { 5 } else { 2 };
        let y = norm.forward(Tensor::<2>::ones([4, features], ctx.device()));
        let sum = ctx.all_reduce(ReduceOp::Sum, 1.0_f32);
        went_on.fetch_add(usize::from(sum.is_ok()), Ordering::Relaxed);
        Ok(y)
    });
    assert!(started.elapsed() < Duration::from_secs(20), "at once");
    let text = ran.unwrap_err().to_string();
    assert!(text.starts_with("replica 1: SyncBatchNorm"), "{text}");
    assert_eq!(went_on.into_inner(), 0);
}

#[test]
fn a_compiled_step_fails_with_the_failure_of_a_forward_pass() {
    let strategy = Recording::new(2);
    let build = |device: &Device| TrainState::new(TwoBlocks::new(3, device), Sgd::new(0.1));
    let mut state = strategy.scope(build).unwrap();
    let ran = strategy.run(&mut state, |ctx, state| {
        let y = state.model.forward(Tensor::<2>::ones([2, 4], ctx.device()));
        // burn would panic.
        Ok(y.matmul(Tensor::ones([77, 2], ctx.device())))
    });
    let error = ran.unwrap_err();
    assert!(matches!(error.root_cause(), Error::Shape { .. }), "{error}");
}

/// As one replica, whatever strategy there is: in a scope, and on any thread.
#[test]
fn outside_of_steps_it_is_the_layer_of_one_replica() {
    let device = Device::flex().autodiff();
    let x = examples(0, 0..5, &device).narrow(1, 0, 2);
    let config = BatchNormConfig::new(2);
    let burns = config.init(&device);
    let own = SyncBatchNorm::from(config.init(&device));
    let scoped = DefaultStrategy::new().within(|| own.forward(x.clone()));
    let pairs = [(scoped.unwrap(), burns.forward(x.clone()))];
    let close = |a: Tensor<2>, b: Tensor<2>| {
        let [a, b] = [a, b].map(|x| x.into_data().iter::<f32>().collect::<Vec<_>>());
        assert_close(&a, &b);
    };
    pairs.into_iter().for_each(|(a, b)| close(a, b));
    // The moving statistics, too.
    let _ = (
        burns.running_mean.value_sync(),
        burns.running_var.value_sync(),
    );
    let x = x.without_autodiff();
    close(
        own.valid().forward(x.clone()),
        burns.valid().forward(x.clone()),
    );

    // A layer of burn with its numbers again.
    let again = own.to_burn();
    assert!((again.momentum, again.epsilon) == (1.0 - 0.9, 1e-5));
    close(
        again.valid().forward(x.clone()),
        own.valid().forward(x.clone()),
    );
    let bare = SyncBatchNormConfig::new(2)
        .with_scale(false)
        .with_center(false);
    let bare = bare.init(&device).unwrap();
    let plain = bare.to_burn();
    assert!(!plain.gamma.val().is_require_grad());
    close(plain.valid().forward(x.clone()), bare.valid().forward(x));
}

#[test]
fn a_failure_on_one_worker_ends_the_others_at_once() {
    for between in [THREADS, GRPC] {
        let started = Instant::now();
        let outcomes = try_workers(between, &[2, 1], |strategy| {
            let mut norm = strategy.try_scope(layer)?;
            let ran = strategy.run(&mut norm, |ctx, norm| {
                let features = if ctx.replica_id() == 2 { 5 } else { 2 };
                Ok(norm.forward(Tensor::<2>::ones([4, features], ctx.device())))
            });
            ran.map(drop)
        });
        assert!(started.elapsed() < Duration::from_secs(40), "at once");
        let errors: Vec<Error> = outcomes.into_iter().map(Result::unwrap_err).collect();
        let text = errors[1].to_string();
        assert!(text.starts_with("replica 2: SyncBatchNorm"), "{text}");
        let text = errors[0].to_string();
        assert!(text.contains("SyncBatchNorm"), "{text}");
    }
}

/// What a step sees after a failure is no result of its model.
#[test]
fn metrics_and_variables_stay_after_a_failure() {
    for replicas in [1, 2] {
        let strategy = MirroredStrategy::builder()
            .replicas(replicas)
            .build()
            .unwrap();
        let mut norm = strategy.try_scope(layer).unwrap();
        let options = VariableOptions::default().aggregation(VariableAggregation::Sum);
        let seen = strategy.variable(0.0_f32, options).unwrap();
        let mean = Mean::new(&strategy);
        let ran = strategy.run(&mut norm, |ctx, norm| {
            let y = norm.forward(Tensor::<2>::ones([4, 5], ctx.device()));
            let _ = mean.update_state(ctx, y.mean().into_scalar::<f32>());
            let _ = seen.assign_add(ctx, 1.0);
            Ok(())
        });
        let error = ran.unwrap_err();
        assert!(matches!(error.root_cause(), Error::Shape { .. }), "{error}");
        assert_eq!(mean.result().unwrap(), 0.0);
        assert_eq!(seen.read(&strategy).unwrap(), 0.0);
    }
}
