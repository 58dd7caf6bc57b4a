//! burn's mean losses under strategies: any number of replicas and workers makes the update that
//! burn's mean makes on one device, also for uneven and empty parts.

use burn::nn::loss::{BinaryCrossEntropyLossConfig, CrossEntropyLossConfig, MseLoss, Reduction};
use burn::nn::{Linear, LinearConfig};
use burn::tensor::{Device, Int, Tensor, TensorData};
use distribute_core::{
    Applied, Clip, DefaultStrategy, LossScale, MirroredStrategy, PerReplica, ReduceOp,
    ReplicaContext, Result, Sgd, Strategy, StrategyExt, TrainState,
};
use rstest::rstest;

use crate::multi_worker::group::{THREADS, workers};

const FEATURES: usize = 5;
const CLASSES: usize = 3;

#[derive(Debug, Clone, Copy)]
enum Loss {
    CrossEntropy,
    Mse,
    Binary,
}

impl Loss {
    fn of(self, outputs: Tensor<2>, labels: Tensor<1, Int>) -> Tensor<1> {
        let hot = |labels: Tensor<1, Int>| labels.one_hot::<2>(CLASSES);
        let device = outputs.device();
        match self {
            Self::CrossEntropy => CrossEntropyLossConfig::new()
                .init(&device)
                .forward(outputs, labels),
            Self::Mse => MseLoss::new().forward(outputs, hot(labels).float(), Reduction::Mean),
            Self::Binary => BinaryCrossEntropyLossConfig::new()
                .with_logits(true)
                .init(&device)
                .forward(outputs, hot(labels)),
        }
    }
}

/// The parts of a strategy's replicas of the examples from `from` on, `count` in all.
fn batch(
    strategy: &impl Strategy,
    from: usize,
    count: usize,
) -> PerReplica<(Tensor<2>, Tensor<1, Int>)> {
    let all = strategy.num_replicas_in_sync();
    let parts = strategy.replicas().iter().map(|replica| {
        let share = count.div_ceil(all);
        let range = (share * replica.id).min(count)..(share * (replica.id + 1)).min(count);
        let device = replica.device.clone().without_autodiff();
        let rows = range.len();
        let range = from + range.start..from + range.end;
        let labels: Vec<i64> = range.clone().map(|i| (i * 7 % CLASSES) as i64).collect();
        let inputs: Vec<f32> = range
            .flat_map(|i| (0..FEATURES).map(move |j| ((i * 13 + j * 5) as f32).sin()))
            .collect();
        (
            Tensor::from_data(TensorData::new(inputs, [rows, FEATURES]), &device),
            Tensor::from_data(TensorData::new(labels, [rows]), &device),
        )
    });
    PerReplica::new(parts.collect()).of_global_batch(64)
}

fn new_state(device: &Device) -> TrainState<Linear> {
    let mut layer = LinearConfig::new(FEATURES, CLASSES).init(device);
    layer.weight = layer.weight.map(|weight| {
        let values: Vec<f32> = (0..FEATURES * CLASSES)
            .map(|i| (i as f32 * 1.7).cos())
            .collect();
        Tensor::from_data(TensorData::new(values, weight.shape()), device).require_grad()
    });
    layer.bias = layer
        .bias
        .map(|bias| bias.map(|bias| bias.zeros_like().require_grad()));
    TrainState::new(layer, Sgd::new(0.3))
}

/// The losses of the steps, and all weights. Batches of 64 of 129 examples, so that the last one
/// has 1 and leaves replicas without any.
fn trained(strategy: &impl Strategy, loss: Loss, scaled: bool) -> Vec<f32> {
    let mut state = strategy.scope(new_state).unwrap();
    let mut found = Vec::new();
    for step in 0..9 {
        let from = step % 3 * 64;
        let batch = batch(strategy, from, 64.min(129 - from));
        let losses = strategy.run((&mut state, batch), |ctx, (state, (inputs, labels))| {
            let mut loss = loss.of(state.model.forward(inputs), labels);
            if scaled {
                loss = ctx.mean_loss(loss)?;
            }
            state.minimize(ctx, &loss)?;
            Ok(loss)
        });
        let loss = strategy.reduce(ReduceOp::Sum, losses.unwrap()).unwrap();
        found.push(loss.into_scalar::<f32>());
    }
    let model = &state.primary().unwrap().model;
    found.extend(model.weight.val().into_data().iter::<f32>());
    found
}

fn near(found: &[f32], expected: &[f32]) {
    assert_eq!(found.len(), expected.len());
    for (found, expected) in found.iter().zip(expected) {
        assert!((found - expected).abs() < 1e-6, "{found} and {expected}");
    }
}

#[rstest]
fn replicas_and_workers_learn_what_one_device_learns_from_the_mean(
    #[values(Loss::CrossEntropy, Loss::Mse, Loss::Binary)] loss: Loss,
) {
    let expected = trained(&DefaultStrategy::new(), loss, false);
    assert_eq!(trained(&DefaultStrategy::new(), loss, true), expected);
    for replicas in [1, 2, 4] {
        let strategy = MirroredStrategy::builder().replicas(replicas);
        near(&trained(&strategy.build().unwrap(), loss, true), &expected);
    }
    for found in workers(THREADS, &[1, 1], move |strategy| {
        Ok(trained(&strategy, loss, true))
    }) {
        near(&found, &expected);
    }
}

#[test]
fn a_mean_over_other_things_than_rows_is_told_their_number() {
    let strategy = MirroredStrategy::builder().replicas(2).build().unwrap();
    let parts = PerReplica::new(vec![(2.0, 3.0), (5.0, 1.0)]);
    let step = |ctx: &ReplicaContext, (mean, tokens): (f64, f64)| {
        ctx.mean_loss_of(Tensor::from_floats([mean as f32], ctx.device()), tokens)
    };
    let losses = strategy.run(parts, step).unwrap();
    let loss = strategy.reduce(ReduceOp::Sum, losses).unwrap();
    assert_eq!(loss.into_scalar::<f32>(), 2.75);
    for wrong in [f64::NAN, -1.0] {
        let error = strategy.run(PerReplica::new(vec![(1.0, wrong); 2]), step);
        assert!(error.unwrap_err().to_string().contains("mean_loss_of"));
    }
}

#[test]
fn a_batch_that_does_not_say_how_many_examples_it_has_is_an_error() {
    let strategy = MirroredStrategy::builder().replicas(2).build().unwrap();
    let one = |ctx: &ReplicaContext| Tensor::<1>::ones([1], ctx.device());
    let error = strategy.run((), |ctx, ()| ctx.mean_loss(one(ctx)).map(drop));
    let error = error.unwrap_err().to_string();
    assert!(
        error.contains("ctx.mean_loss_of(loss, examples)"),
        "{error}"
    );
    let device = Device::flex();
    let sizes = [2, 3].map(|rows| Tensor::<1>::ones([rows], &device));
    let different = PerReplica::new(vec![sizes.to_vec(); 2]);
    let error = strategy.run(different, |ctx, _| ctx.mean_loss(one(ctx)).map(drop));
    assert!(error.is_err());
}

#[test]
fn minimize_is_gradient_and_update_bit_by_bit() {
    let strategy = MirroredStrategy::builder().replicas(2).build().unwrap();
    let run = |in_one: bool| {
        let scale = LossScale::fixed(8.0).unwrap();
        let new = |device: &Device| {
            let state = new_state(device).clip(Clip::GlobalNorm(0.5));
            state.with_loss_scale(scale.clone())
        };
        let mut state = strategy.scope(new).unwrap();
        for _ in 0..3 {
            let step = |ctx: &ReplicaContext,
                        (state, (x, y)): (&mut TrainState<Linear>, (Tensor<2>, Tensor<1, Int>))|
             -> Result<Applied> {
                let loss = Loss::CrossEntropy.of(state.model.forward(x), y);
                let loss = ctx.mean_loss(loss)?;
                if in_one {
                    return state.minimize(ctx, &loss);
                }
                let loss = state.scale_loss(&loss);
                let gradients = ctx.gradient(&loss, &state.model)?;
                state.apply_gradients(ctx, gradients)
            };
            let applied = strategy
                .run((&mut state, batch(&strategy, 7, 9)), step)
                .unwrap();
            assert_eq!(applied.values(), [Applied::Updated; 2]);
        }
        let model = &state.primary().unwrap().model;
        model.weight.val().into_data().try_to_vec::<f32>().unwrap()
    };
    assert_eq!(run(true), run(false));
}

#[test]
fn every_strategy_says_whether_it_is_the_chief() {
    let mirrored = MirroredStrategy::builder().replicas(2).build().unwrap();
    let all = [DefaultStrategy::new().handle(), mirrored.handle()];
    for strategy in all {
        assert!(strategy.is_chief() && strategy.worker_index() == 0);
        assert_eq!(strategy.on_chief(|| 3), Some(3));
    }
    let found = workers(THREADS, &[1, 1], |strategy| {
        let strategy = strategy.handle();
        Ok((strategy.worker_index(), strategy.on_chief(|| ())))
    });
    assert_eq!(found, [(0, Some(())), (1, None)]);
}

/// Each step is looked at anew, and a loss that was scaled by hand is said to be.
#[test]
fn a_mean_that_is_not_scaled_is_an_error_of_the_first_step() {
    for (replicas, minimizes) in [(2, true), (2, false), (4, true), (4, false)] {
        let strategy = MirroredStrategy::builder().replicas(replicas);
        let strategy = strategy.build().unwrap();
        let mut state = strategy.scope(new_state).unwrap();
        for scaled in [true, false, true, false] {
            let before = state.primary().unwrap().step();
            let given = (&mut state, batch(&strategy, 0, 9));
            let applied = strategy.run(given, |ctx, (state, (x, y))| {
                let loss = Loss::CrossEntropy.of(state.model.forward(x), y);
                if scaled {
                    ctx.loss_is_scaled();
                }
                if minimizes {
                    return state.minimize(ctx, &loss);
                }
                let gradients = ctx.gradient(&loss, &state.model)?;
                state.apply_gradients(ctx, gradients)
            });
            let steps = state.primary().unwrap().step() - before;
            assert_eq!((applied.is_ok(), steps), (scaled, u64::from(scaled)));
            let Err(error) = applied else { continue };
            let error = error.root_cause().to_string();
            for way in [
                "average_loss(ctx, losses)",
                "ctx.mean_loss(loss)",
                "ctx.loss_is_scaled()",
            ] {
                assert!(error.contains(way), "{error}");
            }
        }
    }
}
