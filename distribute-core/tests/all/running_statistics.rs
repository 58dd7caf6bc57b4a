//! burn's `BatchNorm` on several replicas: each has its own running statistics, and outside of
//! steps they are read as their mean.

use std::collections::BTreeMap;

use burn::module::{Module, Param, ParamId};
use burn::nn::{BatchNorm, BatchNormConfig, Linear, LinearConfig};
use burn::tensor::{Device, Tensor, TensorData};
use distribute_core::{
    CentralStorageStrategy, DefaultStrategy, Error, Mirrored, MirroredStrategy, OneDeviceStrategy,
    PerReplica, Replicate, Result, RunningStatistics, Sgd, Strategy, StrategyExt, TrainState,
};
use rstest::rstest;

use crate::multi_worker::group::{THREADS, try_workers, workers};

const FEATURES: usize = 3;

#[derive(Module, Debug)]
struct Net {
    norm: BatchNorm,
    output: Linear,
}

impl Net {
    /// Without random numbers: tests at the same time draw from the same generator of burn.
    fn new(device: &Device) -> Self {
        let mut output = LinearConfig::new(FEATURES, 1).init(device);
        let values: Vec<f32> = (0..FEATURES)
            .map(|i| (i as f32 * 1.7).sin() * 0.4)
            .collect();
        let values = TensorData::new(values, [FEATURES, 1]);
        output.weight = Param::from_tensor(Tensor::from_data(values, device));
        output.bias = Some(Param::from_tensor(Tensor::from_data([0.1], device)));
        Self {
            norm: BatchNormConfig::new(FEATURES).init(device),
            output,
        }
    }

    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        self.output.forward(self.norm.forward(x))
    }
}

fn state(device: &Device) -> TrainState<Net> {
    TrainState::new(Net::new(device), Sgd::new(0.05))
}

/// The features of this many examples, others in every step and replica.
fn rows(step: usize, replica: usize, examples: usize) -> Vec<f32> {
    let base = (step * 1000 + replica * 100) as f32;
    let feature = |i| ((base + i as f32) * 78.233).sin() * 3.0 + replica as f32;
    (0..examples * FEATURES).map(feature).collect()
}

fn part(step: usize, replica: usize, examples: usize, device: &Device) -> Tensor<2> {
    let data = TensorData::new(rows(step, replica, examples), [examples, FEATURES]);
    Tensor::from_data(data, device)
}

/// What a batch normalization with burn's momentum has after these parts: means, variances.
fn expected(parts: &[(usize, usize, usize)]) -> [Vec<f64>; 2] {
    let (mut means, mut variances) = (vec![0.0; FEATURES], vec![1.0; FEATURES]);
    for (step, replica, examples) in parts.iter().filter(|part| part.2 > 0) {
        let rows = rows(*step, *replica, *examples);
        for feature in 0..FEATURES {
            let own = rows.iter().skip(feature).step_by(FEATURES);
            let own: Vec<f64> = own.map(|x| f64::from(*x)).collect();
            let mean = own.iter().sum::<f64>() / own.len() as f64;
            let squares = own.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>();
            means[feature] = 0.9 * means[feature] + 0.1 * mean;
            variances[feature] = 0.9 * variances[feature] + 0.1 * squares / own.len() as f64;
        }
    }
    [means, variances]
}

fn mean_of(all: &[[Vec<f64>; 2]]) -> [Vec<f64>; 2] {
    [0, 1].map(|kind| {
        let feature = |i: usize| all.iter().map(|own| own[kind][i]).sum::<f64>() / all.len() as f64;
        (0..FEATURES).map(feature).collect()
    })
}

/// The running statistics that a copy of the model has.
fn statistics(model: &Net) -> [Vec<f64>; 2] {
    let values = RunningStatistics::of(model).read(model);
    let values = values
        .iter()
        .map(|value| value.clone().into_data().iter::<f64>().collect());
    values.collect::<Vec<_>>().try_into().unwrap()
}

#[track_caller]
fn assert_close(found: &[Vec<f64>; 2], expected: &[Vec<f64>; 2]) {
    for (found, expected) in found.iter().flatten().zip(expected.iter().flatten()) {
        assert!(
            (found - expected).abs() < 1e-5,
            "{found} and not {expected}"
        );
    }
}

/// One step on parts of these sizes; gives each replica's own statistics.
fn step(
    strategy: &dyn Strategy,
    state: &mut Mirrored<TrainState<Net>>,
    step: usize,
    sizes: &[usize],
) -> Result<Vec<[Vec<f64>; 2]>> {
    let device = strategy.replicas()[0].device.clone();
    let first = strategy.replicas()[0].id;
    let parts = sizes.iter().enumerate();
    let parts = parts.map(|(local, size)| part(step, first + local, *size, &device));
    let run = strategy.run(
        (state, PerReplica::new(parts.collect())),
        |ctx, (state, x)| {
            let loss = state.model.forward(x).powf_scalar(2.0).sum();
            ctx.loss_is_scaled();
            let gradients = ctx.gradient(&loss, &state.model)?;
            state.apply_gradients(ctx, gradients)?;
            let [means, variances] = statistics(&state.model);
            Ok((means, variances))
        },
    );
    let run = run?.into_values().into_iter();
    Ok(run.map(|(means, variances)| [means, variances]).collect())
}

fn weights(state: &TrainState<Net>) -> BTreeMap<String, TensorData> {
    let mut tensors = state.to_tensors().unwrap();
    tensors.retain(|name, _| !name.contains("running"));
    tensors
}

#[rstest]
#[case::mirrored(Box::new(MirroredStrategy::builder().replicas(3).build().unwrap()))]
#[case::central(Box::new(CentralStorageStrategy::with_replicas(3).unwrap()))]
fn each_replica_has_its_own_and_their_mean_is_read(#[case] strategy: Box<dyn Strategy>) {
    let sizes = [[4, 2, 3], [2, 5, 4], [3, 3, 0]];
    let mut state_of_all = strategy.scope(state).unwrap();
    let mut parts = vec![Vec::new(); 3];
    for (number, sizes) in sizes.iter().enumerate() {
        let own = step(&*strategy, &mut state_of_all, number, sizes).unwrap();
        for (replica, size) in sizes.iter().enumerate() {
            parts[replica].push((number, replica, *size));
            if *size > 0 {
                assert_close(&own[replica], &expected(&parts[replica]));
            }
        }
    }
    let own: Vec<_> = parts.iter().map(|parts| expected(parts)).collect();
    let mean = mean_of(&own);
    // Reading, saving and evaluation see the mean; so does every replica that evaluates.
    assert_close(&statistics(&state_of_all.primary().unwrap().model), &mean);
    let saved = state_of_all.primary().unwrap().to_tensors().unwrap();
    let saved = ["model/norm.running_mean", "model/norm.running_var"].map(|name| &saved[name]);
    assert_close(&saved.map(|data| data.iter::<f64>().collect()), &mean);
    let read = strategy
        .run(&state_of_all, |_, state| {
            let [means, variances] = statistics(&state.model.valid());
            Ok((means, variances))
        })
        .unwrap();
    for (means, variances) in read.into_values() {
        assert_close(&[means, variances], &mean);
    }
    // Reading changed nothing: each replica goes on with its own.
    let all = step(&*strategy, &mut state_of_all, 3, &[2, 2, 2]).unwrap();
    for (replica, own) in all.iter().enumerate() {
        parts[replica].push((3, replica, 2));
        assert_close(own, &expected(&parts[replica]));
    }
    // The weights are equal.
    let copies = state_of_all.values().unwrap();
    for copy in copies {
        assert_eq!(weights(copy), weights(&copies[0]));
    }
}

#[test]
fn workers_read_the_mean_over_the_replicas_of_all() {
    let found = workers(THREADS, &[2, 1], |strategy| {
        let mut state = strategy.scope(state)?;
        for number in 0..4 {
            let sizes: &[usize] = match strategy.replicas().len() {
                2 => &[4, 3],
                _ => &[2],
            };
            step(&strategy, &mut state, number, sizes)?;
        }
        let state = state.primary()?;
        Ok((statistics(&state.model), weights(state)))
    });
    let sizes = [4, 3, 2].into_iter().enumerate();
    let own = sizes.map(|(replica, size)| {
        let parts: Vec<_> = (0..4).map(|step| (step, replica, size)).collect();
        expected(&parts)
    });
    let mean = mean_of(&own.collect::<Vec<_>>());
    for (statistics, weights) in &found {
        assert_close(statistics, &mean);
        assert_eq!(*statistics, found[0].0, "the same bits");
        assert_eq!(*weights, found[0].1);
    }
}

#[test]
fn a_worker_that_fails_leaves_no_other_waiting_for_its_statistics() {
    let outcomes = try_workers(THREADS, &[1, 1], |strategy| {
        let mut state = strategy.scope(state)?;
        let is_chief = strategy.workers().is_some_and(|workers| workers.is_chief());
        strategy.run(&mut state, |ctx, state| {
            if is_chief {
                Err(Error::invalid("the data are gone"))
            } else {
                let _output = state.model.forward(part(0, 1, 2, ctx.device()));
                Ok(())
            }
        })
    });
    for outcome in outcomes {
        let error = outcome.unwrap_err().to_string();
        assert!(error.contains("the data are gone"), "{error}");
    }
}

#[rstest]
#[case(1)]
#[case(2)]
fn values_that_are_not_finite_are_named_and_nothing_is_lost(#[case] replicas: usize) {
    let strategy = MirroredStrategy::builder()
        .replicas(replicas)
        .build()
        .unwrap();
    let mut state = strategy.scope(state).unwrap();
    step(&strategy, &mut state, 0, &[4, 4][..replicas]).unwrap();
    let before = state.primary().unwrap().to_tensors().unwrap();
    let error = strategy
        .run(&mut state, |ctx, state| {
            let mut x = part(1, ctx.replica_id(), 4, ctx.device());
            if ctx.replica_id() + 1 == ctx.num_replicas_in_sync() {
                x = x.mul_scalar(f32::NAN);
            }
            let loss = state.model.forward(x).sum();
            ctx.loss_is_scaled();
            let gradients = ctx.gradient(&loss, &state.model)?;
            state.apply_gradients(ctx, gradients)?;
            Ok(())
        })
        .unwrap_err();
    let Error::StatisticsNotFinite {
        replica, updates, ..
    } = error.root_cause()
    else {
        panic!("{error}");
    };
    assert_eq!((*replica, *updates), (replicas - 1, 1));
    let error = error.to_string();
    let place = format!("replica {}", replicas - 1);
    for part in [
        &*place,
        "after 1 updates",
        "`norm.running_mean`",
        "not finite",
        "learning rate",
    ] {
        assert!(error.contains(part), "{part} in {error}");
    }
    // Also without an update.
    let error = strategy.run(&mut state, |ctx, state| {
        let x = part(1, 0, 4, ctx.device()).mul_scalar(f32::INFINITY);
        let _output = state.model.forward(x);
        Ok(())
    });
    assert!(error.unwrap_err().to_string().contains("not finite"));
    assert_eq!(state.primary().unwrap().to_tensors().unwrap(), before);
    step(&strategy, &mut state, 1, &[4, 4][..replicas]).unwrap();
}

#[test]
fn a_run_that_fails_leaves_the_statistics_as_they_were() {
    let strategy = MirroredStrategy::builder().replicas(2).build().unwrap();
    let mut state = strategy.scope(state).unwrap();
    step(&strategy, &mut state, 0, &[4, 3]).unwrap();
    let failed = strategy.run(&mut state, |ctx, state| {
        drop(state.model.forward(part(9, 0, 4, ctx.device())));
        match ctx.replica_id() {
            1 => Err(Error::invalid("no")),
            _ => Ok(()),
        }
    });
    assert!(failed.is_err());
    let own = step(&strategy, &mut state, 1, &[2, 5]).unwrap();
    assert_close(&own[0], &expected(&[(0, 0, 4), (1, 0, 2)]));
    assert_close(&own[1], &expected(&[(0, 1, 3), (1, 1, 5)]));
}

#[test]
fn a_run_that_one_argument_ends_leaves_the_others_as_they_were() {
    let strategy = DefaultStrategy::new();
    let mut first = strategy.scope(state).unwrap();
    let mut second = strategy.scope(state).unwrap();
    step(&strategy, &mut first, 0, &[4]).unwrap();
    let before = statistics(&first.primary().unwrap().model);
    let failed = strategy.run((&mut first, &mut second), |ctx, (first, second)| {
        drop(first.model.forward(part(1, 0, 4, ctx.device())));
        let x = part(1, 0, 4, ctx.device()).mul_scalar(f32::NAN);
        drop(second.model.forward(x));
        Ok(())
    });
    assert!(failed.unwrap_err().to_string().contains("not finite"));
    assert_eq!(statistics(&first.primary().unwrap().model), before);
}

#[test]
fn a_worker_with_bad_values_ends_the_run_of_all_and_nothing_is_lost() {
    let found = workers(THREADS, &[1, 1, 1], |strategy| {
        let mut first = strategy.scope(state)?;
        let mut second = strategy.scope(state)?;
        let own = strategy.replicas()[0].id;
        for state in [&mut first, &mut second] {
            step(&strategy, state, 0, &[4])?;
        }
        let read = |state: &Mirrored<TrainState<Net>>| statistics(&state.primary().unwrap().model);
        let before = (read(&first), read(&second));
        let failed = strategy.run((&mut first, &mut second), |ctx, (first, second)| {
            let x = part(1, own, 4, ctx.device());
            drop(first.model.forward(x.clone()));
            let x = x.mul_scalar(if own == 1 { f32::NAN } else { 1.0 });
            drop(second.model.forward(x));
            Ok(())
        });
        let error = failed.unwrap_err().to_string();
        Ok((before == (read(&first), read(&second)), error))
    });
    for (is_as_before, error) in found {
        assert!(is_as_before && error.contains("not finite"), "{error}");
    }
}

#[test]
fn a_checkpoint_restores_under_other_numbers_of_replicas() {
    let strategy = MirroredStrategy::builder().replicas(3).build().unwrap();
    let mut trained = strategy.scope(state).unwrap();
    for number in 0..3 {
        step(&strategy, &mut trained, number, &[4, 3, 2]).unwrap();
    }
    let saved = trained.primary().unwrap().to_tensors().unwrap();
    let mean = statistics(&trained.primary().unwrap().model);
    let others: [Box<dyn Strategy>; 3] = [
        Box::new(DefaultStrategy::new()),
        Box::new(OneDeviceStrategy::new("cpu:0".parse().unwrap()).unwrap()),
        Box::new(MirroredStrategy::builder().replicas(2).build().unwrap()),
    ];
    for strategy in others {
        let mut restored = strategy.scope(state).unwrap();
        // What was there before is not in the way, also not what burn has not put in yet.
        let sizes = vec![2; strategy.replicas().len()];
        step(&*strategy, &mut restored, 7, &sizes).unwrap();
        restored
            .update(|state| state.load_tensors(&saved, 3))
            .unwrap();
        for copy in restored.values().unwrap() {
            assert_eq!(statistics(&copy.model), mean);
        }
        let own = step(&*strategy, &mut restored, 8, &sizes).unwrap();
        assert_ne!(own[0], mean);
        assert!(own.iter().skip(1).all(|other| *other != own[0]));
    }
}

#[test]
fn a_model_beside_a_state_has_its_own_too() {
    #[derive(Replicate)]
    struct Both {
        trained: TrainState<Net>,
        alone: Net,
    }
    let strategy = MirroredStrategy::builder().replicas(2).build().unwrap();
    let build = |device: &Device| Both {
        trained: TrainState::new(Net::new(device), Sgd::new(0.1)),
        alone: Net::new(device),
    };
    let mut both = strategy.scope(build).unwrap();
    strategy
        .run(&mut both, |ctx, both| {
            let x = part(0, ctx.replica_id(), 4, ctx.device());
            let loss = both.trained.model.forward(both.alone.norm.forward(x)).sum();
            ctx.loss_is_scaled();
            let gradients = ctx.gradient(&loss, &both.trained.model)?;
            both.trained.apply_gradients(ctx, gradients).map(drop)
        })
        .unwrap();
    let own = [0, 1].map(|replica| expected(&[(0, replica, 4)]));
    assert_close(&statistics(&both.primary().unwrap().alone), &mean_of(&own));
}

#[test]
fn values_of_another_model_are_refused() {
    let device = Device::flex().autodiff();
    let [three, four] = [3, 4].map(|features| BatchNormConfig::new(features).init(&device));
    let found = RunningStatistics::of(&three);
    let mut others = RunningStatistics::of(&four).read(&four);
    let error = found.write(&three, others.clone()).unwrap_err();
    assert!(matches!(error, Error::Shape { .. }), "{error}");
    others.truncate(1);
    assert!(found.write(&three, others).is_err());
    assert_eq!(three.running_mean.value().dims(), [3]);
}

#[test]
fn a_copy_keeps_all_but_the_sharing() {
    #[derive(Module, Debug)]
    struct Odd {
        first: Net,
        frozen: Linear,
        position: Tensor<1>,
        steps: Param<Tensor<1, burn::tensor::Int>>,
        second: Vec<Net>,
    }
    let device = Device::flex().autodiff();
    let model = Odd {
        first: Net::new(&device),
        frozen: LinearConfig::new(2, 2).init(&device).no_grad(),
        position: Tensor::ones([2], &device),
        steps: Param::initialized(ParamId::new(), Tensor::from_ints([3], &device)),
        second: vec![Net::new(&device)],
    };
    let found = RunningStatistics::of(&model);
    let expected = ["first.norm", "second.0.norm"];
    let expected =
        expected.map(|norm| ["mean", "var"].map(|kind| format!("{norm}.running_{kind}")));
    assert_eq!(found.paths(), expected.concat());
    let copy = found.own_copy(&model);
    assert!(!copy.frozen.weight.is_require_grad() && copy.first.output.weight.is_require_grad());
    assert!(copy.position.is_autodiff() && copy.first.norm.training.is_enabled());
    assert_eq!(copy.steps.val().into_scalar::<i32>(), 3);
    assert_eq!(copy.first.output.weight.id, model.first.output.weight.id);
    drop(copy.second[0].forward(part(0, 0, 4, &device)));
    assert_eq!(statistics(&model.second[0]), [vec![0.0; 3], vec![1.0; 3]]);
    assert_ne!(statistics(&copy.second[0]), [vec![0.0; 3], vec![1.0; 3]]);
    // Of a model for validation.
    let valid = found.own_copy(&model.valid());
    assert!(!valid.position.is_autodiff() && !valid.first.output.weight.is_require_grad());
    assert!(RunningStatistics::of(&valid.frozen).is_empty());
}
