//! Running statistics of batch normalizations on servers.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Mutex};

use burn::module::Module;
use burn::nn::BatchNormConfig;
use burn::tensor::{Device, Tensor, TensorData};
use distribute_core::{
    Applied, LocalBatchNorm, Mirrored, OneDeviceStrategy, Replicate, Replicated, Result, Sgd,
    Strategy, StrategyExt, SyncBatchNorm, SyncBatchNormConfig, TrainState,
};
use distribute_fit::{restore, snapshot};
use distribute_ps::partitioners::FixedShardsPartitioner;
use distribute_ps::{RunId, RunOptions, UpdateSource};

use super::common::{Servers, coordinator_and_worker, coordinator_and_worker_of};
use crate::within_limit;

/// Both kinds of batch normalization.
#[derive(Module, Debug)]
struct Normalized {
    inputs: SyncBatchNorm,
    output: LocalBatchNorm,
}

type Built = Mirrored<TrainState<Normalized>>;

fn build(device: &Device) -> TrainState<Normalized> {
    let inputs = SyncBatchNormConfig::new(3).with_momentum(0.75);
    let model = Normalized {
        inputs: inputs.init(device).expect("a layer"),
        output: BatchNormConfig::new(3)
            .with_momentum(0.25)
            .init(device)
            .into(),
    };
    TrainState::new(model, Sgd::new(0.1))
}

/// Six examples that depend on the number of the step.
fn examples(number: usize, device: &Device) -> Tensor<2> {
    let value = |i: usize| ((i * 7 + number * 5) % 11) as f32 / 4.0 - (i % 3) as f32;
    let data = TensorData::new((0..18).map(value).collect::<Vec<_>>(), [6, 3]);
    Tensor::from_data(data, device)
}

fn step(strategy: &dyn Strategy, state: &mut Built, number: usize) -> Result<()> {
    let arguments = (state, Replicated(number));
    let updated = strategy.run(arguments, |ctx, (state, number)| {
        let x = state.model.inputs.forward(examples(number, ctx.device()));
        let y = state.model.output.forward(x * 1.5 + 0.25)?;
        let loss = (y - 0.5).powf_scalar(2.0).mean();
        let gradients = ctx.gradient(&loss, &state.model)?;
        let applied = state.apply_gradients(ctx, gradients)?;
        Ok(i64::from(applied == Applied::Updated))
    })?;
    assert_eq!(updated.values(), [1]);
    Ok(())
}

fn tensors(state: &Built) -> BTreeMap<String, Vec<f32>> {
    let tensors = state.primary().unwrap().to_tensors().unwrap().into_iter();
    let tensors = tensors.filter(|(_, data)| data.dtype().is_float());
    tensors
        .map(|(name, data)| (name, data.iter::<f32>().collect()))
        .collect()
}

fn assert_close(found: &BTreeMap<String, Vec<f32>>, wanted: &BTreeMap<String, Vec<f32>>) {
    assert_eq!(found.len(), wanted.len());
    for ((name, found), (other, wanted)) in found.iter().zip(wanted) {
        assert_eq!(name, other);
        let pairs = found.iter().zip(wanted);
        let worst = pairs.fold(0.0_f32, |worst, (a, b)| worst.max((a - b).abs()));
        assert!(worst < 1e-5, "{name}: {found:?} {wanted:?}");
    }
}

fn one_device() -> OneDeviceStrategy {
    OneDeviceStrategy::new("cpu:0".parse().expect("a device")).expect("a strategy")
}

#[test]
fn a_worker_alone_trains_evaluates_and_saves_as_one_device_does() {
    within_limit(|| {
        for shards in [1, 2] {
            let servers = Servers::start(2);
            let partitioner = Arc::new(FixedShardsPartitioner { num_shards: shards });
            let (local, remote) = (one_device(), servers.strategy(Some(partitioner)));
            let mut here = local.scope(build).unwrap();
            let mut there = remote.scope(build).unwrap();
            for number in 0..20 {
                step(&local, &mut here, number).unwrap();
                step(&remote, &mut there, number).unwrap();
            }
            assert_close(&tensors(&there), &tensors(&here));
            assert_ne!(tensors(&here)["model/output.running_mean"], [0.0; 3]);
            there.refresh().unwrap();
            let evaluated = |strategy: &dyn Strategy, state: &Built| {
                let outputs = strategy.run(state, |ctx, state| {
                    let model = state.model.valid();
                    let device = ctx.device().clone().without_autodiff();
                    let x = model.inputs.forward(examples(3, &device));
                    Ok(model
                        .output
                        .forward(x)?
                        .into_data()
                        .iter::<f32>()
                        .collect::<Vec<_>>())
                });
                BTreeMap::from([(String::new(), outputs.unwrap().into_values().remove(0))])
            };
            assert_close(&evaluated(&remote, &there), &evaluated(&local, &here));

            // A checkpoint of either restores the other, and goes on alike.
            let (of_here, of_there) = (tensors(&here), tensors(&there));
            let saved = [&here, &there].map(|state| snapshot(state.primary().unwrap()).unwrap());
            step(&local, &mut here, 20).unwrap();
            step(&remote, &mut there, 20).unwrap();
            assert_ne!(tensors(&there), of_there);
            restore(&mut here, &saved[1]).unwrap();
            restore(&mut there, &saved[0]).unwrap();
            assert_eq!(tensors(&here), of_there);
            assert_eq!(tensors(&there), of_here);
            step(&local, &mut here, 21).unwrap();
            step(&remote, &mut there, 21).unwrap();
            assert_close(&tensors(&there), &tensors(&here));
        }
    });
}

/// burn's `valid()`, bit by bit, on the values of the last refresh.
#[test]
fn a_shared_state_is_in_evaluation_mode() {
    within_limit(|| {
        let servers = Servers::start(2);
        let [first, second] = coordinator_and_worker(&servers, RunOptions::default());
        let mut trained = first.scope(build).unwrap();
        let mut evaluated = second.scope(build).unwrap();
        let run = |strategy: &dyn Strategy, state: &Built| {
            let outputs = strategy.run(state, |ctx, state| {
                let model = &state.model;
                let beta = model.inputs.beta.as_ref().map(|beta| beta.val());
                assert!(beta.is_some_and(|beta| !beta.device().is_autodiff()));
                let x = model
                    .inputs
                    .forward_inference(examples(3, &Device::flex()))?;
                let y = model.output.forward(x)?;
                let refused = ctx.gradient(&y.clone().mean(), model).unwrap_err();
                assert!(
                    refused.to_string().contains("InTraining::new(&state)"),
                    "{refused}"
                );
                Ok(y.into_data())
            });
            outputs.unwrap().into_values().remove(0)
        };
        let mut before = run(&second, &evaluated);
        for number in 0..3 {
            step(&first, &mut trained, number).unwrap();
            trained.refresh().unwrap();
            let moved = tensors(&trained);
            let model = trained.primary().unwrap().model.valid();
            let x = model
                .inputs
                .forward_inference(examples(3, &Device::flex()))
                .unwrap();
            let expected = model.output.forward(x).unwrap().into_data();
            assert_ne!(
                expected, before,
                "the step has changed what the model gives"
            );
            assert_eq!(run(&second, &evaluated), before);
            evaluated.refresh().unwrap();
            assert_eq!(run(&second, &evaluated), expected);
            assert_eq!(run(&first, &trained), expected);
            trained.refresh().unwrap();
            assert_eq!(tensors(&trained), moved, "an evaluation moves nothing");
            before = expected;
        }
    });
}

/// The statistics after one step from these on examples of this number.
fn moved(number: usize) -> BTreeMap<String, Vec<f32>> {
    let strategy = one_device();
    let mut state = strategy.scope(build).unwrap();
    step(&strategy, &mut state, number).unwrap();
    tensors(&state)
}

#[test]
fn what_every_worker_has_moved_them_by_is_added() {
    within_limit(|| {
        let servers = Servers::start(2);
        let [first, second] = coordinator_and_worker(&servers, RunOptions::default());
        let mut one = first.scope(build).unwrap();
        let other = Mutex::new(second.scope(build).unwrap());
        let start = tensors(&one);
        // The second worker's step is in between the pull and the push of the first one's.
        let arguments = (&mut one, Replicated(4_usize));
        let ran = first.run(arguments, |ctx, (state, number)| {
            std::thread::scope(|threads| {
                let theirs = threads.spawn(|| {
                    let other = &mut *other.lock().expect("no panic");
                    step(&second, other, 9)
                });
                theirs.join().expect("no panic")
            })?;
            let x = state.model.inputs.forward(examples(number, ctx.device()));
            let y = state.model.output.forward(x * 1.5 + 0.25)?;
            let gradients = ctx.gradient(&y.mean(), &state.model)?;
            state.apply_gradients(ctx, gradients).map(drop)
        });
        ran.unwrap();
        one.refresh().unwrap();
        let (found, alone) = (tensors(&one), [moved(4), moved(9)]);
        for name in [
            "inputs.moving_mean",
            "inputs.moving_variance",
            "output.running_mean",
            "output.running_var",
        ] {
            let name = format!("model/{name}");
            let mut farthest = 0.0_f32;
            for (i, start) in start[&name].iter().enumerate() {
                let sum: f32 = alone.iter().map(|alone| alone[&name][i] - start).sum();
                let (found, wanted) = (found[&name][i], start + sum);
                assert!((found - wanted).abs() < 1e-5, "{name}: {found} {wanted}");
                farthest = farthest.max(sum.abs());
            }
            assert!(farthest > 1e-2, "{name} has moved");
        }
    });
}

#[test]
fn a_closure_that_runs_again_moves_them_once() {
    within_limit(|| {
        let servers = Servers::start(2);
        let run = RunId::random().unwrap();
        let [first, second] = coordinator_and_worker_of(&servers, run, RunOptions::default());
        let mut one = first.scope(build).unwrap();
        let mut other = second.scope(build).unwrap();
        let closure = || {
            let sequence = Arc::new(AtomicU32::new(0));
            UpdateSource::new(run, 1, sequence, Arc::default())
        };
        {
            let _closure = first.within_closure(closure());
            step(&first, &mut one, 4).unwrap();
        }
        {
            let _closure = second.within_closure(closure());
            step(&second, &mut other, 4).unwrap();
        }
        one.refresh().unwrap();
        assert_close(&tensors(&one), &moved(4));
    });
}

#[test]
fn statistics_that_are_not_finite_are_named_and_not_sent() {
    within_limit(|| {
        let servers = Servers::start(1);
        let remote = servers.strategy(None);
        let mut state = remote.scope(build).unwrap();
        step(&remote, &mut state, 0).unwrap();
        let before = tensors(&state);
        let failed = remote.run(&mut state, |ctx, state| {
            let x = examples(1, ctx.device()) * f32::NAN;
            let y = state.model.inputs.forward(x).mean();
            let gradients = ctx.gradient(&y, &state.model)?;
            state.apply_gradients(ctx, gradients).map(drop)
        });
        let error = failed.unwrap_err().to_string();
        assert!(error.contains("`inputs.moving_mean`"), "{error}");
        state.refresh().unwrap();
        assert_eq!(tensors(&state), before);
        let here = state
            .primary()
            .unwrap()
            .replicate(&Device::flex().autodiff());
        let mean = here.model.inputs.moving_mean.value_sync().into_data();
        assert_eq!(
            mean.iter::<f32>().collect::<Vec<_>>(),
            before["model/inputs.moving_mean"]
        );
        step(&remote, &mut state, 1).unwrap();
    });
}
