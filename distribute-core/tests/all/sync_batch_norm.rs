//! `SyncBatchNorm` on several replicas is burn's `BatchNorm` on one with the whole batch.

use std::ops::Range;

use burn::module::{Module, ModuleDisplay, Param, ParamId};
use burn::nn::{BatchNorm, BatchNormConfig, Linear, LinearConfig};
use burn::tensor::activation::relu;
use burn::tensor::{DType, Device, Tensor, TensorData};
use distribute_core::collectives::ProcessTransport;
use distribute_core::{
    DefaultStrategy, Error, MirroredStrategy, PerReplica, ReplicaContext, Result, Sgd, Strategy,
    StrategyExt, SyncBatchNorm, SyncBatchNormConfig, TrainState,
};
use rstest::rstest;

use crate::multi_worker::group::{Between, THREADS, workers};

const GLOBAL_BATCH: usize = 12;
const GRPC: Between = Between(Some(ProcessTransport::Grpc), 60.0);

/// A normalization under test, or what it is compared with.
trait Norm: Module + ModuleDisplay + 'static {
    fn new(device: &Device) -> Self;

    fn of(&self, ctx: &ReplicaContext, x: Tensor<3>) -> Result<Tensor<3>>;

    fn statistics(&self) -> [Tensor<1>; 2];
}

impl Norm for SyncBatchNorm {
    fn new(device: &Device) -> Self {
        let config = SyncBatchNormConfig::new(4).with_momentum(0.9);
        config.with_epsilon(1e-5).init(device).unwrap()
    }

    fn of(&self, ctx: &ReplicaContext, x: Tensor<3>) -> Result<Tensor<3>> {
        self.forward(ctx, x)
    }

    fn statistics(&self) -> [Tensor<1>; 2] {
        [self.moving_mean.value(), self.moving_variance.value()]
    }
}

impl Norm for BatchNorm {
    fn new(device: &Device) -> Self {
        BatchNormConfig::new(4).init(device)
    }

    fn of(&self, _: &ReplicaContext, x: Tensor<3>) -> Result<Tensor<3>> {
        Ok(self.forward(x))
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

impl<N: Norm> Net<N> {
    /// Weights that differ from element to element, by no generator.
    fn new(device: &Device) -> Self {
        let linear = |inputs, outputs, seed: f32| {
            let mut linear = LinearConfig::new(inputs, outputs).init(device);
            let value = |i: usize| ((i as f32 + seed) * 12.9898).sin() * 0.5;
            let values: Vec<f32> = (0..inputs * outputs).map(value).collect();
            let data = TensorData::new(values, [inputs, outputs]);
            linear.weight = Param::from_tensor(Tensor::from_data(data, device).require_grad());
            linear.bias = Some(Param::from_tensor(Tensor::zeros([outputs], device)));
            linear
        };
        Self {
            first: linear(3, 8, 1.0),
            norm: N::new(device),
            last: linear(8, 1, 2.0),
        }
    }

    fn forward(&self, ctx: &ReplicaContext, x: Tensor<2>) -> Result<Tensor<2>> {
        // Four features with two values for each example.
        let hidden = self.first.forward(x);
        let examples = hidden.dims()[0];
        let hidden = self.norm.of(ctx, hidden.reshape([examples, 4, 2]))?;
        Ok(self.last.forward(relu(hidden).reshape([examples, 8])))
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
            let error = state.model.forward(ctx, x)? - target;
            let loss = error.powi_scalar(2).sum() / GLOBAL_BATCH as f32;
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
    let outputs = strategy.run((&mut norm, parts), |ctx, (norm, x)| norm.forward(ctx, x))?;
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
        0 => norm.forward(ctx, x.clone()),
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
            let y = match is_filled_up {
                true => norm.forward_weighted(ctx, x.clone(), own)?,
                false => norm.forward(ctx, x.clone())?,
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
        norm.forward_weighted(ctx, x, Tensor::ones([3], ctx.device()))
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
        norm.forward(ctx, x.cast(DType::F16))
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

/// The statistics of many examples are as exact as those of few: a sum of one number after the
/// other would lose more digits, the more examples there are.
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
        Ok((input.clone(), norm.forward(ctx, input)?))
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
