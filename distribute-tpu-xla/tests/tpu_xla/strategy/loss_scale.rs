//! A dynamic loss scale in compiled steps: the scales, the skipped updates and the weights of steps
//! that run as they are.

use std::collections::BTreeMap;

use burn::module::Param;
use burn::nn::{BatchNorm, BatchNormConfig, Linear, LinearConfig};
use burn::prelude::*;
use distribute_core::{
    Adam, Clip, LossScale, Mirrored, MirroredStrategy, PerReplica, Policy, ReduceOp, Replicate,
    Result, Sgd, Strategy, StrategyExt, TensorData, TrainState,
};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::strategy::models::Normalized;
use crate::strategy::support::{assert_close, strategy, within};

const COUNT: usize = 5;

/// Parameters of one and of two dimensions.
#[derive(Module, Debug)]
struct Weights {
    w: Param<Tensor<1>>,
    b: Param<Tensor<2>>,
}

/// The gradients of one step, replica by replica: first of `w`, then of `b`.
type Step = Vec<Vec<f32>>;

/// Gradients of which some are NaN, infinite, or infinite when they are scaled or added up.
fn random_steps(seed: u64, steps: usize, replicas: usize) -> Vec<Step> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut step = || {
        let mut all: Step = (0..replicas)
            .map(|_| {
                (0..COUNT + 2)
                    .map(|_| rng.random_range(-1.5..1.5))
                    .collect()
            })
            .collect();
        if rng.random_bool(0.4) {
            let (replica, place) = (
                rng.random_range(0..replicas),
                rng.random_range(0..COUNT + 2),
            );
            let odd = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1e34, -1e34];
            all[replica][place] = odd[rng.random_range(0..odd.len())];
        }
        all
    };
    (0..steps).map(|_| step()).collect()
}

fn weights(strategy: &dyn Strategy, micro_batches: usize) -> Mirrored<TrainState<Weights>> {
    let scale = LossScale::dynamic().bounds(4.0, 2048.0).unwrap();
    let scale = scale.initial(1000.0).unwrap().growth_steps(2).unwrap();
    let state = strategy.scope(|device| {
        let model = Weights {
            w: Param::from_tensor(Tensor::ones([COUNT], device).require_grad()),
            b: Param::from_tensor(Tensor::ones([1, 2], device).require_grad()),
        };
        TrainState::new(model, Sgd::new(0.125).momentum(0.5))
            .clip(Clip::GlobalNorm(2.0))
            .accumulate(micro_batches)
            .with_loss_scale(scale)
    });
    state.unwrap()
}

fn apply(strategy: &dyn Strategy, state: &mut Mirrored<TrainState<Weights>>, step: &Step) {
    let part = |own: &Vec<f32>| Tensor::<1>::from_data(&own[..], &Device::flex());
    let parts = strategy.replicas().iter().map(|it| part(&step[it.id]));
    let parts = PerReplica::new(parts.collect());
    let done = strategy.run((state, parts), |ctx, (state, given)| {
        let b = given.clone().slice(COUNT..COUNT + 2).reshape([1, 2]);
        let w = given.slice(0..COUNT);
        let loss = (state.model.w.val() * w).sum() + (state.model.b.val() * b).sum();
        ctx.loss_is_scaled();
        let gradients = ctx.gradient(&state.scale_loss(&loss), &state.model)?;
        state.apply_gradients(ctx, gradients).map(drop)
    });
    done.unwrap();
}

/// The scale, the good and the skipped steps, and the number of updates.
fn numbers<M: Module>(state: &Mirrored<TrainState<M>>) -> (f64, u64, u64, u64) {
    let state = state.host_metadata();
    let scale = state.loss_scale();
    let counts = (scale.good_steps(), scale.skipped_steps());
    (scale.scale(), counts.0, counts.1, state.step())
}

type Tensors = BTreeMap<String, TensorData>;

/// Every replica's tensors.
fn tensors<M: Module + Sync + 'static>(state: &Mirrored<TrainState<M>>) -> Vec<Tensors> {
    let copies = state.values().unwrap().iter();
    copies.map(|copy| copy.to_tensors().unwrap()).collect()
}

/// Without the numbers of the loss scale.
fn of_model(mut tensors: Tensors) -> Tensors {
    tensors.retain(|name, _| !name.starts_with("loss_scale/"));
    tensors
}

/// Without the slots of before the first update, which only compiled steps have.
fn as_eager(found: &Tensors, expected: &Tensors) -> Tensors {
    let mut found = found.clone();
    found.retain(|name, data| {
        let is_start = data.iter::<f32>().all(|value| value == 0.0);
        expected.contains_key(name) || !is_start
    });
    found
}

#[test]
fn updates_are_skipped_as_in_steps_that_run_as_they_are() {
    within(300, || {
        for (replicas, micro_batches, seed) in [(1, 1, 1), (2, 1, 2), (3, 1, 3), (2, 3, 4)] {
            let Some(tpu) = strategy(replicas) else {
                return;
            };
            let cpu = MirroredStrategy::builder().replicas(replicas).build();
            let cpu = cpu.unwrap();
            let [mut found, mut wanted] =
                [&tpu as &dyn Strategy, &cpu].map(|it| weights(it, micro_batches));
            let mut before = tensors(&found);
            for (number, step) in random_steps(seed, 24, replicas).iter().enumerate() {
                let skipped = numbers(&found).2;
                apply(&tpu, &mut found, step);
                apply(&cpu, &mut wanted, step);
                let place = format!("{replicas} replicas, step {number}");
                assert_eq!(numbers(&found), numbers(&wanted), "{place}");
                let (after, expected) = (tensors(&found), tensors(&wanted));
                for (replica, found) in after.iter().enumerate() {
                    assert_eq!(*found, after[0], "{place}, replica {replica}");
                    assert_close(&as_eager(found, &expected[0]), &expected[0], 1e-5);
                    if numbers(&wanted).2 > skipped {
                        let old = of_model(before[replica].clone());
                        let new = as_eager(&of_model(found.clone()), &old);
                        assert_eq!(old, new, "{place}, replica {replica}");
                    }
                }
                before = after;
            }
            let (_, _, skipped, updates) = numbers(&found);
            assert!(skipped > 1 && updates > 1, "{skipped} {updates}");
            let programs = tpu.statistics().programs;
            assert_eq!(
                programs, micro_batches,
                "other scales are no other programs"
            );
        }
    });
}

/// The inverse of the largest scale is no normal number, which XLA's CPU client takes for 0.
#[test]
fn the_largest_scales_divide_as_others_do() {
    within(120, || {
        for exponent in [124, 125, 126, 127] {
            let (Some(tpu), scale) = (strategy(2), 2.0_f64.powi(exponent)) else {
                return;
            };
            let cpu = MirroredStrategy::builder().replicas(2).build().unwrap();
            let step: Step = vec![vec![0.25; COUNT + 2], vec![0.5; COUNT + 2]];
            let [found, wanted] = [&tpu as &dyn Strategy, &cpu].map(|strategy| {
                let mut state = weights(strategy, 1);
                let large = LossScale::dynamic().initial(scale).unwrap();
                let set = |state: &mut TrainState<Weights>| {
                    *state = state.clone().with_loss_scale(large.clone());
                    Ok(())
                };
                state.update(set).unwrap();
                apply(strategy, &mut state, &step);
                assert_eq!(numbers(&state), (scale, 1, 0, 1));
                tensors(&state)
            });
            assert_close(&found[1], &wanted[1], 1e-6);
            let mut moved = found[1]["model/w"].iter::<f32>();
            assert!(moved.all(|weight| weight < 0.95));
        }
    });
}

/// From every step, in compiled steps with the same bits and in others with the same scales.
#[test]
fn a_run_goes_on_from_a_checkpoint_with_the_same_bits() {
    within(300, || {
        let (Some(tpu), Some(alone)) = (strategy(2), strategy(1)) else {
            return;
        };
        let cpu = MirroredStrategy::builder().replicas(2).build().unwrap();
        // Given on replica 0, so that the sum does not depend on their number.
        let mut steps = random_steps(9, 12, 1);
        for step in &mut steps {
            step.resize(2, vec![0.0; COUNT + 2]);
        }
        let mut wanted = weights(&tpu, 1);
        for step in &steps {
            apply(&tpu, &mut wanted, step);
        }
        for from in [&tpu as &dyn Strategy, &cpu] {
            let mut whole = weights(from, 1);
            for index in 0..steps.len() {
                let (updates, saved) = whole.primary().unwrap().save().unwrap();
                assert!(saved.contains_key("loss_scale/dynamic_scale"));
                let into: &[&dyn Strategy] = match index % 4 {
                    0 => &[&tpu, &alone, &cpu],
                    _ => &[],
                };
                for strategy in into {
                    let mut again = weights(*strategy, 1);
                    again
                        .update(|state| state.load_tensors(&saved, updates))
                        .unwrap();
                    for step in &steps[index..] {
                        apply(*strategy, &mut again, step);
                    }
                    assert_eq!(numbers(&again), numbers(&wanted), "from step {index}");
                    let [again, wanted] = [&again, &wanted].map(|it| tensors(it).swap_remove(0));
                    let are_compiled = [from, *strategy].iter().all(|it| it.tracer().is_some());
                    if are_compiled {
                        assert_eq!(again, wanted, "from step {index}")
                    } else {
                        assert_close(&again, &wanted, 1e-5)
                    }
                }
                apply(from, &mut whole, &steps[index]);
            }
        }
    });
}

/// burn's own layer, for steps in f32.
#[derive(Module, Debug)]
struct Burns {
    norm: BatchNorm,
    output: Linear,
}

fn part(replica: usize, number: usize) -> Tensor<2> {
    let value = |i: usize| ((i * 7 + replica * 31 + number * 13) as f32 * 0.37).sin();
    let rows: Vec<f32> = (0..24).map(value).collect();
    // burn's layer trains on inputs with autodiff only.
    let device = Device::flex().autodiff();
    Tensor::from_data(TensorData::new(rows, [8, 3]), &device)
}

/// The steps of which the last replica has a loss whose scaled gradients overflow f16.
const OVERFLOWS: [usize; 2] = [2, 5];

/// The losses, the scales after each step, and every replica's tensors.
type RunNumbers = (Vec<f32>, Vec<(f64, u64, u64, u64)>, Vec<Tensors>);

/// Eight steps in f16.
fn in_16_bits(strategy: &dyn Strategy, start: &TrainState<Normalized>) -> Result<RunNumbers> {
    let policy = Policy::mixed_float16();
    let scale = policy.loss_scale().initial(256.0)?.growth_steps(2)?;
    let mut state =
        strategy.scope(|device| start.replicate(device).with_loss_scale(scale.clone()))?;
    let count = strategy.num_replicas_in_sync();
    let (mut losses, mut scales) = (Vec::new(), Vec::new());
    let mut before = tensors(&state);
    for number in 0..8 {
        let size = |replica: usize| {
            if replica + 1 == count && OVERFLOWS.contains(&number) {
                // However small the loss has become.
                Tensor::<1>::from_data([1e9_f32], &Device::flex())
            } else {
                Tensor::<1>::ones([1], &Device::flex())
            }
        };
        let parts = (0..count).map(|replica| (part(replica, number), size(replica)));
        let parts = PerReplica::new(parts.collect());
        let loss = strategy.run((&mut state, parts), |ctx, (state, (x, size))| {
            let model = policy.model(&state.model)?;
            let target = x.clone().sum_dim(1);
            let x = model.inputs.forward(policy.cast(x));
            let x = model.norm.forward(model.hidden.forward(x));
            let output = policy.output(model.output.forward(burn::tensor::activation::relu(x?)));
            let loss = (output - target).powi_scalar(2).mean() * size / count as f64;
            ctx.loss_is_scaled();
            let gradients = ctx.gradient(&state.scale_loss(&loss), &state.model)?;
            state.apply_gradients(ctx, gradients)?;
            Ok(loss)
        })?;
        losses.push(strategy.reduce(ReduceOp::Sum, loss)?.into_scalar::<f32>());
        scales.push(numbers(&state));
        let after = tensors(&state);
        for (old, new) in before.into_iter().zip(after.clone()) {
            let [old, new] = [old, new].map(of_model);
            let stays = OVERFLOWS.contains(&number);
            assert_eq!(old == new, stays, "step {number}");
        }
        before = after;
    }
    for name in ["model/inputs.moving_mean", "model/norm.running_mean"] {
        assert!(
            before[0][name].iter::<f32>().all(|mean| mean != 0.0),
            "{name}"
        );
    }
    Ok((losses, scales, before))
}

#[test]
fn a_model_in_f16_overflows_at_the_same_steps() {
    within(300, || {
        let device = Device::flex().autodiff();
        let model = Normalized::new(3, 1, &device);
        // Adam makes whole steps of a gradient that is nothing but rounding, as that of a bias
        // before a normalization is: of its updates only which are skipped is the same everywhere.
        let adam = TrainState::new(model.clone(), Adam::new(0.01));
        let start = TrainState::new(model, Sgd::new(0.02).momentum(0.9));
        for replicas in [1, 2] {
            let Some(tpu) = strategy(replicas) else {
                return;
            };
            let cpu = MirroredStrategy::builder().replicas(replicas).build();
            let (losses, scales, found) = in_16_bits(&tpu, &start).unwrap();
            let (wanted_losses, wanted_scales, wanted) = in_16_bits(&cpu.unwrap(), &start).unwrap();
            assert_eq!(scales, wanted_scales);
            assert_eq!(in_16_bits(&tpu, &adam).unwrap().1, wanted_scales);
            let after: Vec<f64> = scales.iter().map(|it| it.0).collect();
            assert_eq!(
                after,
                [256.0, 512.0, 256.0, 256.0, 512.0, 256.0, 256.0, 512.0]
            );
            assert_eq!(scales[7], (512.0, 0, 2, 6));
            for (found, wanted) in losses.iter().zip(&wanted_losses) {
                let bound = 2e-2 * wanted.abs().max(1.0);
                assert!(
                    (found - wanted).abs() < bound,
                    "{losses:?} {wanted_losses:?}"
                );
            }
            for (found, wanted) in found.iter().zip(&wanted) {
                assert_close(found, wanted, 2e-2);
            }
        }
    });
}

/// Each replica's own statistics stay as well.
#[test]
fn a_skipped_step_leaves_the_statistics_of_every_replica() {
    within(120, || {
        for replicas in [1, 2] {
            let Some(tpu) = strategy(replicas) else {
                return;
            };
            let state = tpu.scope(|device| {
                let norm = BatchNormConfig::new(3).init(device);
                let output = LinearConfig::new(3, 1).init(device);
                TrainState::new(Burns { norm, output }, Sgd::new(0.1))
                    .with_loss_scale(LossScale::dynamic())
            });
            let mut state = state.unwrap();
            let mut step = |number: usize, size: f32| {
                let parts = (0..replicas).map(|replica| {
                    let size = if replica == 0 { size } else { 1.0 };
                    let size = Tensor::<1>::from_data([size], &Device::flex());
                    (part(replica, number), size)
                });
                let parts = PerReplica::new(parts.collect());
                let done = tpu.run((&mut state, parts), |ctx, (state, (x, size))| {
                    let x = state.model.norm.forward(x);
                    let loss = state.model.output.forward(x).powi_scalar(2).mean() * size;
                    ctx.loss_is_scaled();
                    let gradients = ctx.gradient(&state.scale_loss(&loss), &state.model)?;
                    state.apply_gradients(ctx, gradients)?;
                    // Of this replica, as the step has left them.
                    Ok(state.model.norm.gamma.val())
                });
                done.unwrap();
                tensors(&state)
            };
            let first = step(0, 1.0);
            let second = step(1, 1e36);
            let third = step(2, 1.0);
            let name = "model/norm.running_mean";
            for replica in 0..replicas {
                assert_eq!(first[replica][name], second[replica][name]);
                assert_ne!(first[replica][name], third[replica][name]);
                assert_ne!(first[replica], second[replica], "the scale was halved");
                let [old, new] = [&first, &second].map(|it| of_model(it[replica].clone()));
                assert_eq!(old, new);
            }
            assert_eq!(numbers(&state), (16_384.0, 1, 1, 2));
        }
    });
}
