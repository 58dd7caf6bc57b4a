//! burn's `BatchNorm` and `LocalBatchNorm` in compiled steps: each replica has its own running
//! statistics on its device, and outside of steps they are read as their mean.

use std::collections::BTreeMap;

use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::{BatchNorm, BatchNormConfig, Linear, LinearConfig};
use burn::prelude::*;
use burn::tensor::activation::relu;
use distribute_core::{
    Error, LocalBatchNorm, Mirrored, PerReplica, ReplicaContext, Replicate, Result, Sgd, Strategy,
    StrategyExt, TensorData, TrainState, trace,
};

use crate::strategy::models::with_fixed_weights;
use crate::strategy::support::{Data, assert_close, mirrored, strategy, within};

const EXAMPLES: usize = 6;

/// burn's layer on channels of images, and ours on features.
#[derive(Module, Debug)]
struct Net {
    conv: Conv2d,
    channels: BatchNorm,
    hidden: Linear,
    features: LocalBatchNorm,
    output: Linear,
}

impl Net {
    fn new(device: &Device) -> Self {
        with_fixed_weights(Self {
            conv: Conv2dConfig::new([1, 3], [3, 3]).init(device),
            channels: BatchNormConfig::new(3).with_momentum(0.3).init(device),
            hidden: LinearConfig::new(3 * 16, 8).init(device),
            features: BatchNormConfig::new(8)
                .with_epsilon(1e-3)
                .init(device)
                .into(),
            output: LinearConfig::new(8, 1).init(device),
        })
    }

    fn forward(&self, x: Tensor<4>) -> Result<Tensor<2>> {
        let x = relu(self.channels.forward(self.conv.forward(x)));
        let x = self
            .features
            .forward(self.hidden.forward(x.flatten(1, 3)))?;
        Ok(self.output.forward(relu(x)))
    }
}

/// By SGD: Adam makes steps of the noise that is the gradient of a bias before a normalization.
fn net() -> TrainState<Net> {
    TrainState::new(Net::new(&Device::flex().autodiff()), Sgd::new(0.02))
}

fn on(strategy: &dyn Strategy, start: &TrainState<Net>) -> Mirrored<TrainState<Net>> {
    strategy.scope(|device| start.replicate(device)).unwrap()
}

/// The parts of a step; each replica's part has another centre.
fn parts(step: usize, replicas: usize) -> PerReplica<Tensor<4>> {
    let batch = Data::new(step as u64, replicas, &[1, 6, 6], 2).batch::<4>(EXAMPLES);
    let parts = batch.into_values().into_iter().enumerate();
    PerReplica::new(
        parts
            .map(|(i, (x, _))| x * (i + 1) as f32 + i as f32)
            .collect(),
    )
}

fn train(strategy: &dyn Strategy, state: &mut Mirrored<TrainState<Net>>, from: usize, to: usize) {
    let replicas = strategy.num_replicas_in_sync();
    for step in from..to {
        train_on(strategy, state, parts(step, replicas)).unwrap();
    }
}

/// One step.
fn train_on(
    strategy: &dyn Strategy,
    state: &mut Mirrored<TrainState<Net>>,
    parts: PerReplica<Tensor<4>>,
) -> Result<()> {
    let ran = strategy.run((state, parts), |ctx, (state, x)| update(ctx, state, x));
    ran.map(drop)
}

fn update(ctx: &ReplicaContext, state: &mut TrainState<Net>, x: Tensor<4>) -> Result<()> {
    let target = x.clone().mean_dim(3).mean_dim(2).flatten(1, 3);
    let error = state.model.forward(x)? - target;
    let loss = error.powi_scalar(2).sum() / (EXAMPLES * ctx.num_replicas_in_sync()) as f32;
    ctx.loss_is_scaled();
    let gradients = ctx.gradient(&loss, &state.model)?;
    state.apply_gradients(ctx, gradients).map(drop)
}

/// The parts of a step, of which the last one has a value in the last example.
fn spoiled(step: usize, replicas: usize, value: f32) -> PerReplica<Tensor<4>> {
    let mut parts = parts(step, replicas).into_values();
    let last = parts.pop().unwrap();
    let place = [EXAMPLES - 1..EXAMPLES, 0..1, 0..1, 0..1];
    let bad = Tensor::full([1; 4], value, &last.device());
    parts.push(last.slice_assign(place, bad));
    PerReplica::new(parts)
}

/// What is wrong: the statistic, the replica, and the updates before.
fn refused(ran: Result<()>) -> (String, usize, u64) {
    match ran.unwrap_err() {
        Error::StatisticsNotFinite {
            path,
            replica,
            updates,
        } => (path, replica, updates),
        other => panic!("{other}"),
    }
}

fn tensors(state: &Mirrored<TrainState<Net>>) -> BTreeMap<String, TensorData> {
    let copies = state.values().unwrap().iter();
    let mut copies = copies.map(|copy| copy.to_tensors().unwrap());
    let first = copies.next().unwrap();
    assert!(copies.all(|copy| copy == first), "all copies have the mean");
    first
}

#[test]
fn a_compiled_step_trains_as_one_that_runs_as_it_is() {
    within(300, || {
        for replicas in [1, 2, 4] {
            let Some(tpu) = strategy(replicas) else {
                return;
            };
            let (cpu, start) = (mirrored(replicas), net());
            let (mut on_tpu, mut on_cpu) = (on(&tpu, &start), on(&cpu, &start));
            train(&tpu, &mut on_tpu, 0, 7);
            train(&cpu, &mut on_cpu, 0, 7);
            // Reading the mean leaves each replica its own.
            assert_close(&tensors(&on_tpu), &tensors(&on_cpu), 1e-5);
            train(&tpu, &mut on_tpu, 7, 20);
            train(&cpu, &mut on_cpu, 7, 20);
            let found = tensors(&on_tpu);
            assert_close(&found, &tensors(&on_cpu), 1e-5);
            let moved = &found["model/channels.running_mean"];
            assert!(moved.iter::<f32>().all(|mean| mean != 0.0), "{moved:?}");
            assert_eq!(tpu.statistics().programs, 1);
        }
    });
}

#[test]
fn evaluation_reads_the_mean_over_the_replicas() {
    within(120, || {
        let Some(tpu) = strategy(2) else { return };
        let (cpu, start) = (mirrored(2), net());
        let (mut on_tpu, mut on_cpu) = (on(&tpu, &start), on(&cpu, &start));
        let same = parts(50, 1).into_values().remove(0);
        for round in 0..2 {
            train(&tpu, &mut on_tpu, 3 * round, 3 * round + 3);
            train(&cpu, &mut on_cpu, 3 * round, 3 * round + 3);
            let given = || PerReplica::new(vec![same.clone(); 2]);
            let found = tpu.run((&on_tpu, given()), |_, (state, x)| {
                trace::valid(&state.model)?.forward(x)
            });
            let expected = cpu.run((&on_cpu, given()), |_, (state, x)| {
                state.model.valid().forward(x.without_autodiff())
            });
            let (found, expected) = (found.unwrap(), expected.unwrap());
            let expected = expected.values()[0].to_data();
            for own in found.values() {
                let near = burn::tensor::Tolerance::absolute(1e-4);
                own.to_data().assert_approx_eq::<f32>(&expected, near);
            }
        }
        assert_close(&tensors(&on_tpu), &tensors(&on_cpu), 1e-5);
    });
}

/// Over other numbers of replicas, compiled and not.
#[test]
fn a_checkpoint_goes_on_with_the_same_statistics() {
    within(300, || {
        let (Some(one), Some(two)) = (strategy(1), strategy(2)) else {
            return;
        };
        let start = net();
        let mut first = on(&two, &start);
        train(&two, &mut first, 0, 5);
        let (step, saved) = first.primary().unwrap().save().unwrap();
        for (compiled, replicas) in [(&one, 1), (&two, 2)] {
            let eager = mirrored(replicas);
            let (mut here, mut there) = (on(&eager, &start), on(compiled, &start));
            // What they had before is not in the way.
            train(compiled, &mut there, 30, 32);
            for state in [&mut here, &mut there] {
                state
                    .update(|state| state.load_tensors(&saved, step))
                    .unwrap();
            }
            assert_eq!(tensors(&there), saved);
            train(&eager, &mut here, 5, 9);
            train(compiled, &mut there, 5, 9);
            assert_close(&tensors(&there), &tensors(&here), 1e-5);
        }
    });
}

/// A model that is no training state.
#[test]
fn a_model_alone_has_its_statistics_moved() {
    within(60, || {
        let Some(tpu) = strategy(2) else { return };
        let build = |device: &Device| BatchNormConfig::new(2).with_momentum(0.5).init(device);
        let mut norm = tpu.scope(build).unwrap();
        let device = Device::flex().autodiff();
        let part = |mean: f32| Tensor::<2>::full([4, 2], mean, &device);
        let parts = PerReplica::new(vec![part(1.0), part(3.0)]);
        let ran = tpu.run((&mut norm, parts), |_, (norm, x)| Ok(norm.forward(x)));
        ran.unwrap();
        let mean = norm.primary().unwrap().running_mean.value_sync();
        assert_eq!(mean.into_data().iter::<f32>().collect::<Vec<_>>(), [1.0; 2]);
    });
}

/// As in a step that runs as it is: nothing is lost, and training goes on as if the step had not
/// been.
#[test]
fn statistics_that_are_not_finite_are_named_and_nothing_is_lost() {
    within(300, || {
        for replicas in [1, 2, 4] {
            let Some(tpu) = strategy(replicas) else {
                return;
            };
            let (cpu, start) = (mirrored(replicas), net());
            let [mut found, mut expected, mut eager] =
                [&tpu as &dyn Strategy, &tpu, &cpu].map(|strategy| on(strategy, &start));
            // Also in the first step of all.
            for (updates, value) in [(0, f32::NAN), (2, f32::INFINITY), (3, 1e30)] {
                train(&tpu, &mut expected, updates.max(2) - 2, updates);
                train(&tpu, &mut found, updates.max(2) - 2, updates);
                train(&cpu, &mut eager, updates.max(2) - 2, updates);
                let bad = || spoiled(9, replicas, value);
                let (path, replica, before) = refused(train_on(&tpu, &mut found, bad()));
                // The first layer's mean of 1e30 is finite, its variance is not.
                let end = if value == 1e30 { "var" } else { "mean" };
                assert_eq!(path, format!("channels.running_{end}"));
                assert_eq!(
                    (replica, before),
                    (replicas - 1, expected.primary().unwrap().step())
                );
                let there = train_on(&cpu, &mut eager, bad());
                let there = there.unwrap_err().root_cause().to_string();
                let here = train_on(&tpu, &mut found, bad()).unwrap_err().to_string();
                assert_eq!(here, there);
                assert_eq!(tensors(&found), tensors(&expected));
            }
            train(&tpu, &mut found, 5, 8);
            train(&tpu, &mut expected, 5, 8);
            assert_eq!(tensors(&found), tensors(&expected));
            let programs = tpu.statistics().programs;
            assert_eq!(programs, 2, "one for each state");
        }
    });
}

/// Between micro-batches the state has other tensors than before.
#[test]
fn waiting_gradients_stay_when_a_micro_batch_is_refused() {
    within(300, || {
        let Some(tpu) = strategy(2) else { return };
        let start = net().accumulate(3);
        let [mut found, mut expected] = [(); 2].map(|()| on(&tpu, &start));
        for step in 0..4 {
            let (_, replica, updates) =
                refused(train_on(&tpu, &mut found, spoiled(step, 2, f32::NAN)));
            assert_eq!((replica, updates), (1, step as u64 / 3));
            let waiting = [&found, &expected].map(|state| state.own_tensors(&[0, 1]).unwrap());
            assert_eq!(waiting[0], waiting[1]);
            train(&tpu, &mut found, step, step + 1);
            train(&tpu, &mut expected, step, step + 1);
            assert_eq!(tensors(&found), tensors(&expected), "micro-batch {step}");
        }
    });
}

/// Everything that the step changes is taken back, in a state without statistics too.
#[test]
fn other_states_of_the_step_stay_as_they_were() {
    within(120, || {
        let Some(tpu) = strategy(2) else { return };
        let start = net();
        let mut state = on(&tpu, &start);
        let build = |device: &Device| {
            TrainState::new(
                LinearConfig::new(2, 1).init(device),
                Sgd::new(0.1).momentum(0.9),
            )
        };
        let mut other = tpu.scope(build).unwrap();
        let read = |other: &Mirrored<TrainState<Linear>>| {
            let other = other.primary().unwrap();
            (other.step(), other.to_tensors().unwrap())
        };
        let mut step = |parts, other: &mut Mirrored<TrainState<Linear>>| {
            let arguments = (other, &mut state, parts);
            let ran = tpu.run(arguments, |ctx, (other, state, x): (_, _, Tensor<4>)| {
                let other: &mut TrainState<Linear> = other;
                let ones = Tensor::<2>::ones([3, 2], ctx.device());
                let loss = other.model.forward(ones).sum();
                ctx.loss_is_scaled();
                let gradients = ctx.gradient(&loss, &other.model)?;
                other.apply_gradients(ctx, gradients)?;
                update(ctx, state, x)
            });
            ran.map(drop)
        };
        step(parts(0, 2), &mut other).unwrap();
        let before = read(&other);
        let (path, replica, updates) = refused(step(spoiled(1, 2, f32::NAN), &mut other));
        assert!(path.ends_with("channels.running_mean"), "{path}");
        assert_eq!((replica, updates), (1, 1));
        assert_eq!(read(&other), before);
        step(parts(1, 2), &mut other).unwrap();
        assert_ne!(read(&other), before);
    });
}

/// Of a model that is no training state.
#[test]
fn a_model_alone_keeps_its_statistics() {
    within(60, || {
        let Some(tpu) = strategy(2) else { return };
        let build = |device: &Device| BatchNormConfig::new(2).with_momentum(0.5).init(device);
        let mut norm = tpu.scope(build).unwrap();
        let device = Device::flex().autodiff();
        let mut run = |mean: f32| {
            let part = |mean: f32| Tensor::<2>::full([4, 2], mean, &device);
            let parts = PerReplica::new(vec![part(mean), part(1.0)]);
            let ran = tpu.run((&mut norm, parts), |_, (norm, x)| Ok(norm.forward(x)));
            let mean = norm.primary().unwrap().running_mean.value_sync();
            (ran.map(drop), mean.into_data())
        };
        let (ran, mean) = run(f32::NAN);
        assert_eq!(refused(ran), ("running_mean".to_string(), 0, 0));
        assert_eq!(mean, TensorData::from([0.0_f32; 2]));
        let (ran, mean) = run(3.0);
        ran.unwrap();
        assert_eq!(mean, TensorData::from([1.0_f32; 2]));
    });
}
