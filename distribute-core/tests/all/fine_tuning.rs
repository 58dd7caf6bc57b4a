//! Layers that are frozen and unfrozen in the middle of a training: what is trained as before keeps
//! its slots, what is new begins anew, on all replicas alike.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use burn::module::{Lora, Module, Param, ParamGroup};
use burn::nn::{BatchNorm, BatchNormConfig, Linear, LinearConfig};
use burn::optim::{AdamConfig, AdamWConfig};
use burn::tensor::{Device, Tensor, TensorData};
use distribute_core::optim::{Optimizer, burn_names, from_config, names};
use distribute_core::{
    Adam, BurnOptimizer, CentralStorageStrategy, DefaultStrategy, Error, Mirrored,
    MirroredStrategy, MultiWorkerMirroredStrategy, PerReplica, ReplicaContext, Result, Strategy,
    StrategyExt, TrainState,
};
use serde_json::json;

use crate::multi_worker::group::{THREADS, workers};
use crate::trace::support::Recording;

#[derive(Module, Debug)]
struct Net {
    body: Linear,
    norm: BatchNorm,
    head: Linear,
}

/// A layer with weights that no generator has drawn.
fn linear(inputs: usize, outputs: usize, seed: f32, device: &Device) -> Linear {
    let mut linear = LinearConfig::new(inputs, outputs).init(device);
    let value = |i: usize| ((i as f32 + seed) * 12.9898).sin() * 0.5;
    let weight = TensorData::new(
        (0..inputs * outputs).map(value).collect::<Vec<f32>>(),
        [inputs, outputs],
    );
    linear.weight = Param::from_tensor(Tensor::from_data(weight, device).require_grad());
    let bias = Tensor::zeros([outputs], device).require_grad();
    linear.bias = Some(Param::from_tensor(bias));
    linear
}

fn body() -> ParamGroup {
    ParamGroup::from_predicate("body.")
}

fn net(device: &Device) -> Net {
    Net {
        body: linear(3, 4, 0.3, device),
        norm: BatchNormConfig::new(4).init(device).freeze(),
        head: linear(4, 4, 5.1, device),
    }
}

fn frozen(device: &Device) -> Net {
    net(device).freeze_group(body())
}

type State = Mirrored<TrainState<Net>>;

fn freeze(state: &mut State, is_frozen: bool) -> Result<()> {
    state.update(|state| {
        let model = state.model.clone();
        state.model = if is_frozen {
            model.freeze_group(body())
        } else {
            model.unfreeze_group(body())
        };
        Ok(())
    })
}

/// Five examples; the replicas have unequal shares of them, and some have none.
fn share(strategy: &dyn Strategy, step: u64) -> PerReplica<Tensor<2>> {
    let replicas = strategy.num_replicas_in_sync();
    let value = |i: usize| ((i as f32 + step as f32 * 15.0) * 78.233).sin();
    let own = |id: usize| {
        let place = (id + step as usize) % replicas;
        let cut = |place: usize| (5 * place * place).div_ceil(replicas * replicas);
        let rows = cut(place)..cut(place + 1);
        let data: Vec<f32> = (rows.start * 3..rows.end * 3).map(value).collect();
        let data = TensorData::new(data, [rows.len(), 3]);
        Tensor::from_data(data, &Device::flex().autodiff())
    };
    strategy.values_from(own)
}

/// One update: what is before the head is a constant, or not.
fn update(
    ctx: &ReplicaContext,
    state: &mut TrainState<Net>,
    x: Tensor<2>,
    is_constant: bool,
) -> Result<()> {
    let hidden = state.model.norm.forward(state.model.body.forward(x));
    let hidden = if is_constant { hidden.detach() } else { hidden };
    let output = state.model.head.forward(hidden.tanh());
    let loss = (output - 0.5).powi_scalar(2).sum() / 5.0;
    ctx.loss_is_scaled();
    let gradients = ctx.gradient(&loss, &state.model)?;
    state.apply_gradients(ctx, gradients).map(drop)
}

fn train(
    strategy: &dyn Strategy,
    state: &mut State,
    steps: Range<u64>,
    is_constant: bool,
) -> Result<()> {
    for step in steps {
        let shares = share(strategy, step);
        strategy.run((&mut *state, shares), |ctx, (state, x)| {
            update(ctx, state, x, is_constant)
        })?;
    }
    Ok(())
}

type Tensors = BTreeMap<String, TensorData>;

/// All tensors of the state, which are equal on all replicas.
fn tensors(state: &State) -> Tensors {
    let mut all = state.values().unwrap().iter();
    let first = all.next().unwrap().to_tensors().unwrap();
    for other in all {
        assert_eq!(other.to_tensors().unwrap(), first, "replicas differ");
    }
    first
}

/// An optimizer with all that can be around it.
fn optimizer(name: &str) -> Arc<dyn Optimizer> {
    let config = json!({
        "learning_rate": 0.05,
        "weight_decay": 0.02,
        "use_ema": true,
        "ema_momentum": 0.75,
        "ema_overwrite_frequency": 3,
    });
    from_config(name, &config).unwrap()
}

fn state(strategy: &dyn Strategy, name: &str, model: fn(&Device) -> Net) -> State {
    let build = |device: &Device| TrainState::with_optimizer(model(device), optimizer(name));
    strategy.scope(build).unwrap()
}

/// Frozen in updates 0 to 2 and 6 to 7. Gives what is saved after 3, 6, 8 and 10 updates.
fn gradually(strategy: &dyn Strategy, state: &mut State) -> Result<[Tensors; 4]> {
    train(strategy, state, 0..3, false)?;
    let before = tensors(state);
    freeze(state, false)?;
    train(strategy, state, 3..6, false)?;
    let trained = tensors(state);
    freeze(state, true)?;
    train(strategy, state, 6..8, false)?;
    let again = tensors(state);
    freeze(state, false)?;
    train(strategy, state, 8..10, false)?;
    Ok([before, trained, again, tensors(state)])
}

/// The same updates of a model that was never frozen, in whose losses the body is a constant then:
/// parameters without a gradient are left alone.
fn with_constants(strategy: &dyn Strategy, state: &mut State) -> Result<[Tensors; 4]> {
    let mut next = 0;
    let phases = [(3, true), (6, false), (8, true), (10, false)];
    let saved = phases.map(|(end, is_constant)| {
        train(strategy, state, next..end, is_constant)?;
        next = end;
        Ok(tensors(state))
    });
    saved
        .into_iter()
        .collect::<Result<Vec<_>>>()
        .map(|all| all.try_into().unwrap())
}

fn all_names() -> Vec<&'static str> {
    names().chain(burn_names()).collect()
}

#[test]
fn slots_stay_begin_anew_and_come_back_with_every_optimizer() {
    let strategy = MirroredStrategy::builder().replicas(2).build().unwrap();
    for name in all_names() {
        let found = gradually(&strategy, &mut state(&strategy, name, frozen)).unwrap();
        let wanted = with_constants(&strategy, &mut state(&strategy, name, net)).unwrap();
        assert_eq!(found, wanted, "{name}");
        let of_body = |saved: &Tensors| {
            let names = saved.keys().filter(|it| it.starts_with("optimizer"));
            names.filter(|it| it.ends_with("/body.weight")).count()
        };
        let counts = found.each_ref().map(of_body);
        let per_parameter = counts[1];
        assert_eq!(counts, [0, per_parameter, per_parameter, per_parameter]);
        assert!(per_parameter > 0, "{name} keeps averages at least");
    }
}

#[test]
fn all_strategies_and_numbers_of_replicas_follow_alike() {
    let mirrored = |replicas| {
        MirroredStrategy::builder()
            .replicas(replicas)
            .build()
            .unwrap()
    };
    let strategies: [Box<dyn Strategy>; 5] = [
        Box::new(DefaultStrategy::new()),
        Box::new(mirrored(1)),
        Box::new(mirrored(3)),
        Box::new(CentralStorageStrategy::with_replicas(2).unwrap()),
        Box::new(
            MultiWorkerMirroredStrategy::builder()
                .cluster(None)
                .replicas(2)
                .build()
                .unwrap(),
        ),
    ];
    for strategy in strategies {
        for name in ["adam", "burn:adam"] {
            let found = gradually(&*strategy, &mut state(&*strategy, name, frozen)).unwrap();
            let wanted = with_constants(&*strategy, &mut state(&*strategy, name, net)).unwrap();
            assert_eq!(found, wanted, "{} {name}", strategy.name());
        }
    }
}

#[test]
fn two_workers_follow_alike() {
    let all = workers(THREADS, &[2, 1], |strategy| {
        gradually(&strategy, &mut state(&strategy, "adam", frozen))
    });
    let one = MirroredStrategy::builder().replicas(3).build().unwrap();
    let wanted = gradually(&one, &mut state(&one, "adam", frozen)).unwrap();
    for found in all {
        assert_eq!(found, wanted);
    }
}

fn restored(
    strategy: &dyn Strategy,
    name: &str,
    model: fn(&Device) -> Net,
    from: &Tensors,
    step: u64,
) -> State {
    let mut state = state(strategy, name, model);
    let load = |state: &mut TrainState<Net>| state.load_tensors(from, step);
    state.update(load).unwrap();
    state
}

#[test]
fn checkpoints_of_before_and_after_a_change_go_on_exactly() {
    let strategy = MirroredStrategy::builder().replicas(2).build().unwrap();
    for name in ["adam", "rmsprop", "burn:adamw"] {
        let saved = gradually(&strategy, &mut state(&strategy, name, frozen)).unwrap();
        let [before, trained, again, end] = &saved;

        // One of before the layer was unfrozen, into a state of after it.
        let mut other = restored(&strategy, name, net, before, 3);
        train(&strategy, &mut other, 3..6, false).unwrap();
        assert_eq!(&tensors(&other), trained, "{name}");

        // One of after it, into a state in which the layer is frozen.
        let mut other = restored(&strategy, name, frozen, trained, 6);
        assert_eq!(&tensors(&other), trained, "{name}: nothing is lost");
        train(&strategy, &mut other, 6..8, false).unwrap();
        assert_eq!(&tensors(&other), again, "{name}");
        freeze(&mut other, false).unwrap();
        train(&strategy, &mut other, 8..10, false).unwrap();
        assert_eq!(&tensors(&other), end, "{name}");

        // One of while it was frozen again.
        let mut other = restored(&strategy, name, net, again, 8);
        train(&strategy, &mut other, 8..10, false).unwrap();
        assert_eq!(&tensors(&other), end, "{name}");
    }
}

#[test]
fn slots_of_a_frozen_layer_that_do_not_fit_are_refused_with_its_name() {
    let strategy = MirroredStrategy::builder().replicas(2).build().unwrap();
    let saved = gradually(&strategy, &mut state(&strategy, "adam", frozen)).unwrap();
    let refused = |name: &str, change: &dyn Fn(&mut Tensors)| {
        let mut changed = saved[1].clone();
        change(&mut changed);
        let mut state = state(&strategy, name, frozen);
        let before = tensors(&state);
        let error = state
            .update(|state| state.load_tensors(&changed, 6))
            .unwrap_err();
        assert_eq!(tensors(&state), before, "unchanged");
        error.to_string()
    };
    let slot = "optimizer/momentum/body.weight";
    let error = refused("adam", &|all| {
        all.insert(slot.to_string(), TensorData::from([1.0_f32, 2.0]));
    });
    assert!(
        error.contains(slot) && error.contains("12 elements"),
        "{error}"
    );
    let error = refused("adam", &|all| drop(all.remove(slot)));
    assert!(error.contains(slot), "{error}");
    // Of another optimizer, for the frozen layer alone.
    let error = refused("rmsprop", &|all| {
        all.retain(|name, _| !name.starts_with("optimizer") || name.ends_with("body.weight"));
    });
    assert!(error.contains("rmsprop"), "{error}");
}

#[test]
fn every_replica_may_unfreeze_in_its_step() {
    for replicas in [1, 2, 3] {
        let strategy = MirroredStrategy::builder()
            .replicas(replicas)
            .build()
            .unwrap();
        let mut outside = state(&strategy, "adam", frozen);
        let mut inside = state(&strategy, "adam", frozen);
        train(&strategy, &mut outside, 0..3, false).unwrap();
        train(&strategy, &mut inside, 0..3, false).unwrap();
        freeze(&mut outside, false).unwrap();
        train(&strategy, &mut outside, 3..6, false).unwrap();

        let shares = share(&strategy, 3);
        let unfrozen = strategy.run((&mut inside, shares), |ctx, (state, x)| {
            state.model = state.model.clone().unfreeze_group(body());
            update(ctx, state, x, false)
        });
        unfrozen.unwrap();
        train(&strategy, &mut inside, 4..6, false).unwrap();
        assert_eq!(tensors(&inside), tensors(&outside));

        // Without an update what is saved is right, too.
        let frozen = strategy.run(&mut inside, |_, state| {
            state.model = state.model.clone().freeze_group(body());
            state.to_tensors().map(drop)
        });
        frozen.unwrap();
        assert_eq!(tensors(&inside), tensors(&outside));
    }
}

#[test]
fn the_first_steps_of_what_is_new_are_as_the_rule_says() {
    let strategy = MirroredStrategy::builder().replicas(2).build().unwrap();
    let rate = 1e-3;
    let first_step = |optimizer: Arc<dyn Optimizer>| {
        let build = |device: &Device| TrainState::with_optimizer(frozen(device), optimizer);
        let mut state = strategy.scope(build).unwrap();
        train(&strategy, &mut state, 0..400, false).unwrap();
        let before = tensors(&state);
        freeze(&mut state, false).unwrap();
        train(&strategy, &mut state, 400..401, false).unwrap();
        let (before, after) = (
            &before["model/body.weight"],
            &tensors(&state)["model/body.weight"],
        );
        let moved = before.iter::<f32>().zip(after.iter::<f32>());
        moved
            .map(|(before, after)| (after - before).abs() / rate)
            .fold(0.0, f32::max)
    };
    // Keras' Adam corrects its averages by the number of all updates.
    let keras = first_step(Arc::new(Adam::new(f64::from(rate))));
    assert!((1.7..3.3).contains(&keras), "{keras}");
    // burn's by the number of the parameter's own.
    let burn = first_step(Arc::new(BurnOptimizer::new(
        AdamConfig::new(),
        f64::from(rate),
    )));
    assert!((burn - 1.0).abs() < 0.02, "{burn}");
}

#[test]
fn a_group_of_the_optimizer_may_be_frozen_at_first() {
    let strategy = MirroredStrategy::builder().replicas(2).build().unwrap();
    let optimizer = BurnOptimizer::new(AdamWConfig::new(), 0.01)
        .group(body(), AdamWConfig::new().with_weight_decay(0.0))
        .rate_factor(body(), 0.0);
    let build = |device: &Device| TrainState::new(frozen(device), optimizer);
    let mut state = strategy.scope(build).unwrap();
    train(&strategy, &mut state, 0..2, false).unwrap();
    let before = tensors(&state);
    freeze(&mut state, false).unwrap();
    train(&strategy, &mut state, 2..4, false).unwrap();
    let after = tensors(&state);
    let of = |name: &str| (before[name].clone(), after[name].clone());
    let (before, after) = of("model/body.weight");
    assert_eq!(before, after, "its rate is 0");
    let (before, after) = of("model/head.weight");
    assert_ne!(before, after);
}

#[test]
fn adapters_that_come_later_begin_anew_and_the_weights_under_them_stay() {
    let strategy = MirroredStrategy::builder().replicas(2).build().unwrap();
    let mut state = state(&strategy, "adam", net);
    train(&strategy, &mut state, 0..3, false).unwrap();
    let before = tensors(&state);
    let adapt = |state: &mut TrainState<Net>| {
        let lora = Lora::new(2, 4.0).set_param_group(body());
        state.model = state.model.clone().apply_lora(lora);
        Ok(())
    };
    state.update(adapt).unwrap();
    let names = state.primary().unwrap().parameter_names().to_vec();
    assert_eq!(names, ["body.weight.lora.a", "body.weight.lora.b"]);
    train(&strategy, &mut state, 3..5, false).unwrap();
    let after = tensors(&state);
    for name in ["model/head.weight", "optimizer/momentum/head.weight"] {
        assert_eq!(after[name], before[name], "{name}");
    }
    assert!(after.contains_key("optimizer/momentum/body.weight.lora.b"));
}

#[test]
fn changes_that_cannot_be_followed_name_the_parameter() {
    // Half of an update's gradients are of other parameters.
    let strategy = MirroredStrategy::builder().replicas(2).build().unwrap();
    let build = |device: &Device| TrainState::new(frozen(device), Adam::new(0.1)).accumulate(2);
    let mut state = strategy.scope(build).unwrap();
    train(&strategy, &mut state, 0..1, false).unwrap();
    let error = freeze(&mut state, false).unwrap_err().to_string();
    let wanted = "`body.weight` is trained, and was not before, but the gradients of 1 of 2";
    assert!(error.contains(wanted), "{error}");

    // A program is compiled for the parameters that are trained between steps.
    let strategy = Recording::new(1);
    let mut state = strategy
        .scope(|device| TrainState::new(net(device), Adam::new(0.1)))
        .unwrap();
    let changed = strategy.run(&mut state, |ctx, state| {
        state.model = state.model.clone().freeze_group(body());
        let x = Tensor::<2>::ones([2, 4], ctx.device());
        let loss = state.model.head.forward(x).sum();
        ctx.loss_is_scaled();
        let gradients = ctx.gradient(&loss, &state.model)?;
        state.apply_gradients(ctx, gradients).map(drop)
    });
    let error = changed.unwrap_err();
    assert!(
        matches!(error.root_cause(), Error::NotCompilable { .. }),
        "{error}"
    );
    assert!(error.to_string().contains("`body.weight`"), "{error}");
}

#[test]
fn a_compiled_step_that_freezes_without_an_update_is_refused() {
    let strategy = Recording::new(1);
    let mut state = strategy
        .scope(|device| TrainState::new(net(device), Adam::new(0.1)))
        .unwrap();
    let changed = strategy.run(&mut state, |_, state| {
        state.model = state.model.clone().freeze_group(body());
        Ok(())
    });
    let error = changed.unwrap_err().to_string();
    for part in ["`body.weight` is frozen", "`Mirrored::update`"] {
        assert!(error.contains(part), "{error}");
    }
}

/// Two programs, though their tensors have the same shapes.
#[test]
fn a_compiled_step_is_another_one_for_other_layers() {
    #[derive(Module, Debug)]
    struct Twins {
        left: Linear,
        right: Linear,
    }
    let strategy = Recording::new(1);
    let right = || ParamGroup::from_predicate("right.");
    let left = || ParamGroup::from_predicate("left.");
    let build = |device: &Device| {
        let [left, right] = [0.1, 0.7].map(|seed| linear(4, 4, seed, device));
        TrainState::new(
            Twins { left, right }.freeze_group(self::body()),
            Adam::new(0.1),
        )
    };
    let mut state = strategy.scope(build).unwrap();
    let step = |state: &mut Mirrored<TrainState<Twins>>| {
        strategy
            .run(state, |ctx, state| {
                let x = Tensor::<2>::ones([2, 4], ctx.device());
                let loss = state.model.left.forward(state.model.right.forward(x)).sum();
                ctx.loss_is_scaled();
                let gradients = ctx.gradient(&loss, &state.model)?;
                state.apply_gradients(ctx, gradients).map(drop)
            })
            .unwrap();
    };
    let mut programs = Vec::new();
    for (frozen, trained) in [(left(), right()), (right(), left()), (left(), right())] {
        state
            .update(|state| {
                let model = state.model.clone().freeze_group(frozen);
                state.model = model.unfreeze_group(trained);
                Ok(())
            })
            .unwrap();
        step(&mut state);
        programs.push(strategy.compiled());
    }
    assert_eq!(
        programs,
        [1, 2, 2],
        "the first program is known the third time"
    );
}
