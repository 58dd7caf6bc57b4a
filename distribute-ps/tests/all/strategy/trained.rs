//! Training states on servers: the numbers are the same as on one device.

use std::sync::{Arc, Mutex};

use burn::module::{Module, Param, ParamId};
use burn::tensor::{Bool, Device, Int, Tensor, TensorData};
use distribute_core::{
    Adam, AdamW, Applied, Mirrored, OneDeviceStrategy, RateFactors, Replicate, Sgd, Strategy,
    StrategyExt, TrainState,
};
use distribute_fit::{restore, restore_weights, snapshot};
use distribute_ps::partitioners::{FixedShardsPartitioner, Partitioner};
use distribute_ps::{RunOptions, Staleness, StalenessPolicy};

use super::common::{Built, Net, Servers, coordinator_and_worker, step};
use crate::within_limit;

fn one_device() -> OneDeviceStrategy {
    OneDeviceStrategy::new("cpu:0".parse().expect("a device")).expect("a strategy")
}

fn adam(device: &Device) -> TrainState<Net> {
    TrainState::new(Net::new(device, 0.5), Adam::new(0.01))
}

type Build = fn(&Device) -> TrainState<Net>;

#[test]
fn one_worker_alone_gets_the_bits_of_one_device() {
    within_limit(|| {
        let builds: [Build; 5] = [
            adam,
            |device| TrainState::new(Net::new(device, 1.5), Sgd::new(0.1).momentum(0.9)),
            |device| TrainState::new(Net::new(device, 2.5), AdamW::new(0.02)),
            |device| adam(device).clip_by_global_norm(0.05).accumulate(3),
            |device| {
                let factors = RateFactors::of(AdamW::new(0.02)).factor(["output"], 0.1);
                TrainState::new(Net::new(device, 2.5), factors.factor(["bias"], 5.0))
            },
        ];
        for (build, shards) in builds.into_iter().zip([1, 2, 3, 5, 3]) {
            let servers = Servers::start(2);
            let fixed: Arc<dyn Partitioner> =
                Arc::new(FixedShardsPartitioner { num_shards: shards });
            let (local, remote) = (one_device(), servers.strategy(Some(fixed)));
            let mut here = local.scope(build).unwrap();
            let mut there = remote.scope(build).unwrap();
            for number in 0..9 {
                if number == 6 {
                    here.set_learning_rate(0.003);
                    there.set_learning_rate(0.003);
                }
                let said = step(&local, &mut here, number).unwrap();
                assert_eq!(step(&remote, &mut there, number).unwrap(), said);
            }
            let expected = here.primary().unwrap().to_tensors().unwrap();
            assert_eq!(there.primary().unwrap().to_tensors().unwrap(), expected);
            assert_eq!(
                there.primary().unwrap().step(),
                here.primary().unwrap().step()
            );
            there.refresh().unwrap();
            assert_eq!(
                there.primary().unwrap().step(),
                here.primary().unwrap().step()
            );
            let weights =
                |state: &Built| state.primary().unwrap().model.hidden.weight.val().to_data();
            assert_eq!(weights(&there), weights(&here));
        }
    });
}

#[test]
fn a_group_that_has_no_parameter_is_named() {
    within_limit(|| {
        let strategy = Servers::start(1).strategy(None);
        let state = strategy.scope(|device: &Device| {
            let factors = RateFactors::of(Sgd::new(0.1)).factor(["hiden"], 0.1);
            TrainState::new(Net::new(device, 1.0), factors)
        });
        let error = state.expect_err("no such parameter").to_string();
        assert!(
            error.contains("[\"hiden\"]") && error.contains("hidden.weight"),
            "{error}"
        );
    });
}

#[test]
fn a_worker_finds_the_state_that_the_coordinator_has_made() {
    within_limit(|| {
        let servers = Servers::start(3);
        let [first, second] = coordinator_and_worker(&servers, RunOptions::default());
        assert!(second.scope(adam).is_err(), "it was not made yet");
        let mut one = first.scope(adam).unwrap();
        step(&first, &mut one, 0).unwrap();
        // Its own initial value does not count.
        let build = |device: &Device| TrainState::new(Net::new(device, 9.0), Adam::new(0.01));
        let mut other = second.scope(build).unwrap();
        assert_eq!(other.primary().unwrap().step(), 1);
        step(&second, &mut other, 1).unwrap();
        step(&first, &mut one, 2).unwrap();
        let alone = one_device();
        let mut expected = alone.scope(adam).unwrap();
        for number in 0..3 {
            step(&alone, &mut expected, number).unwrap();
        }
        let expected = expected.primary().unwrap().to_tensors().unwrap();
        for state in [&one, &other] {
            assert_eq!(state.primary().unwrap().to_tensors().unwrap(), expected);
        }
    });
}

#[test]
fn a_model_of_other_shapes_is_refused_by_name() {
    within_limit(|| {
        let servers = Servers::start(1);
        let [first, second] = coordinator_and_worker(&servers, RunOptions::default());
        let linear = |size| {
            move |device: &Device| {
                let layer = burn::nn::LinearConfig::new(3, size).init(device);
                TrainState::new(layer, Sgd::new(0.1))
            }
        };
        let _state = first.scope(linear(4)).unwrap();
        let error = second.scope(linear(5)).unwrap_err().to_string();
        assert!(error.contains("`model/weight`"), "{error}");
    });
}

#[test]
fn gradients_beyond_the_staleness_bound_are_dropped() {
    within_limit(|| {
        let servers = Servers::start(2);
        let mut options = RunOptions::default();
        options.staleness = Some(Staleness {
            bound: 1,
            policy: StalenessPolicy::Refuse,
        });
        let [first, second] = coordinator_and_worker(&servers, options);
        let mut one = first.scope(adam).unwrap();
        let mut other = second.scope(adam).unwrap();
        let (first, one) = (&first, Mutex::new(&mut one));
        let late = |steps: usize, other: &mut Built| {
            let said = second.run(other, |ctx, state| {
                let loss = state.model.hidden.weight.val().powf_scalar(2.0).mean();
                let gradients = ctx.gradient(&loss, &state.model)?;
                // Meanwhile another worker goes on.
                std::thread::scope(|threads| {
                    let others = threads.spawn(|| {
                        let one = &mut *one.lock().expect("no panic");
                        (0..steps).for_each(|number| {
                            assert_eq!(step(first, one, number).unwrap(), Applied::Updated);
                        });
                    });
                    others.join().expect("no panic");
                });
                Ok(i64::from(
                    state.apply_gradients(ctx, gradients)? == Applied::Updated,
                ))
            });
            said.unwrap().values()[0] == 1
        };
        assert!(late(0, &mut other));
        assert!(late(1, &mut other));
        assert!(!late(2, &mut other), "two versions late");
        assert!(late(1, &mut other), "it has pulled again");
    });
}

#[test]
fn checkpoints_are_those_of_other_strategies() {
    within_limit(|| {
        let servers = Servers::start(2);
        let fixed: Arc<dyn Partitioner> = Arc::new(FixedShardsPartitioner { num_shards: 3 });
        let (local, remote) = (one_device(), servers.strategy(Some(fixed)));
        let mut here = local.scope(adam).unwrap();
        let mut there = remote.scope(adam).unwrap();
        for number in 0..3 {
            step(&local, &mut here, number).unwrap();
        }
        let checkpoint = snapshot(here.primary().unwrap()).unwrap();
        // From another strategy, and back into what has gone on since.
        for _again in 0..2 {
            restore(&mut there, &checkpoint).unwrap();
            assert_eq!(there.primary().unwrap().step(), 3);
            let saved = snapshot(there.primary().unwrap()).unwrap();
            assert_eq!(saved.tensors, checkpoint.tensors);
            assert_eq!(saved.metadata.step, 3);
            step(&remote, &mut there, 3).unwrap();
        }
        step(&local, &mut here, 3).unwrap();
        let (mine, theirs) = (
            snapshot(here.primary().unwrap()),
            snapshot(there.primary().unwrap()),
        );
        assert_eq!(mine.unwrap().tensors, theirs.unwrap().tensors);
        // And into another one.
        let mut fresh = local.scope(adam).unwrap();
        restore(&mut fresh, &snapshot(there.primary().unwrap()).unwrap()).unwrap();
        step(&local, &mut here, 4).unwrap();
        step(&local, &mut fresh, 4).unwrap();
        let tensors = |state: &Built| state.primary().unwrap().to_tensors().unwrap();
        assert_eq!(tensors(&fresh), tensors(&here));
    });
}

/// A parameter of every kind.
#[derive(Module, Debug)]
struct Kinds {
    weight: Param<Tensor<1>>,
    ids: Param<Tensor<2, Int>>,
    mask: Param<Tensor<1, Bool>>,
}

fn kinds(device: &Device, seed: i64) -> TrainState<Kinds> {
    let at = seed as f32;
    let ids = TensorData::new(vec![seed, 2, i64::from(i32::MIN), 4], [2, 2]);
    let mask = TensorData::from([seed % 2 == 0, true, false, seed % 2 == 1]);
    let model = Kinds {
        weight: Param::from_tensor(Tensor::from_floats([at, at + 1.0], device)),
        ids: Param::initialized(ParamId::new(), Tensor::from_data(ids, device)),
        mask: Param::initialized(ParamId::new(), Tensor::from_data(mask, device)),
    };
    TrainState::new(model, Adam::new(0.1))
}

#[test]
fn parameters_of_every_kind_are_the_coordinators_and_in_checkpoints() {
    within_limit(|| {
        let servers = Servers::start(2);
        let [first, second] = coordinator_and_worker(&servers, RunOptions::default());
        let mut one = first.scope(|device| kinds(device, 1)).unwrap();
        let mut other = second.scope(|device| kinds(device, 8)).unwrap();
        let local = one_device();
        let same = local.scope(|device| kinds(device, 1)).unwrap();
        let tensors =
            |state: &Mirrored<TrainState<Kinds>>| state.primary().unwrap().to_tensors().unwrap();
        let expected = tensors(&same);
        assert_eq!(expected.len(), 3);
        assert_eq!(tensors(&other), expected);
        assert_eq!(tensors(&one), expected);
        let values = |state: &TrainState<Kinds>| {
            let mask: Vec<bool> = state.model.mask.val().into_data().iter::<bool>().collect();
            let ids: Vec<i64> = state.model.ids.val().into_data().iter::<i64>().collect();
            (mask, ids)
        };
        // What a worker computes with.
        let seen = second.run(&mut other, |_, state| {
            let (mask, ids) = values(state);
            Ok(format!("{mask:?} {ids:?}"))
        });
        let (mask, ids) = values(same.primary().unwrap());
        assert_eq!(seen.unwrap().values()[0], format!("{mask:?} {ids:?}"));
        // Into them from another strategy's checkpoint, and from one without integers and bools.
        let third = local.scope(|device| kinds(device, 3)).unwrap();
        let mut checkpoint = snapshot(third.primary().unwrap()).unwrap();
        restore(&mut one, &checkpoint).unwrap();
        assert_eq!(tensors(&one), checkpoint.tensors);
        other.refresh().unwrap();
        assert_eq!(
            values(other.primary().unwrap()),
            values(third.primary().unwrap())
        );
        checkpoint.tensors.retain(|name, _| name == "model/weight");
        restore(&mut one, &checkpoint).unwrap();
        assert_eq!(tensors(&one), tensors(&third));
    });
}

#[test]
fn slots_of_another_optimizer_are_refused_by_both_names() {
    within_limit(|| {
        let servers = Servers::start(2);
        let local = one_device();
        let mut here = local.scope(adam).unwrap();
        for number in 0..3 {
            step(&local, &mut here, number).unwrap();
        }
        let checkpoint = snapshot(here.primary().unwrap()).unwrap();
        let remote = servers.strategy(None);
        let mut there = remote
            .scope(|device| TrainState::new(Net::new(device, 1.5), Sgd::new(0.1).momentum(0.9)))
            .unwrap();
        step(&remote, &mut there, 0).unwrap();
        let before = there.primary().unwrap().to_tensors().unwrap();
        let mut nameless = checkpoint.clone();
        nameless.metadata.optimizer = Default::default();
        for checkpoint in [&checkpoint, &nameless] {
            let error = restore(&mut there, checkpoint).unwrap_err().to_string();
            assert!(error.contains("is of adam"), "{error}");
            assert!(error.contains("into sgd "), "{error}");
            assert_eq!(there.primary().unwrap().to_tensors().unwrap(), before);
        }
        restore_weights(&mut there, &checkpoint).unwrap();
        let found = there.primary().unwrap().to_tensors().unwrap();
        let name = "model/hidden.weight";
        assert_eq!(found[name], checkpoint.tensors[name]);
        assert!(!found.keys().any(|name| name.starts_with("optimizer/")));
    });
}

#[test]
fn slots_of_what_is_not_trained_any_longer_are_left_out() {
    within_limit(|| {
        let servers = Servers::start(2);
        let local = one_device();
        let mut here = local.scope(adam).unwrap();
        step(&local, &mut here, 0).unwrap();
        let mut checkpoint = snapshot(here.primary().unwrap()).unwrap();
        let frozen = |device: &Device| {
            let mut net = Net::new(device, 1.5);
            net.hidden = net.hidden.no_grad();
            TrainState::new(net, Adam::new(0.01))
        };
        let mut there = servers.strategy(None).scope(frozen).unwrap();
        restore(&mut there, &checkpoint).unwrap();
        let of_hidden = |name: &str| name.starts_with("optimizer/") && name.contains("/hidden.");
        checkpoint.tensors.retain(|name, _| !of_hidden(name));
        let found = snapshot(there.primary().unwrap()).unwrap();
        assert_eq!(found.tensors, checkpoint.tensors);
    });
}

#[derive(Replicate)]
struct Pair {
    first: TrainState<Net>,
    second: TrainState<Net>,
}

#[test]
fn several_states_have_places_of_their_own() {
    within_limit(|| {
        let servers = Servers::start(2);
        let strategy = servers.strategy(None);
        let pair = |device: &Device| Pair {
            first: adam(device),
            second: adam(device),
        };
        let pair = strategy.scope(pair).unwrap();
        let another = strategy.named("another").scope(adam).unwrap();
        let names = |state: &TrainState<Net>| {
            let tensors = state.to_tensors().unwrap();
            tensors.into_keys().collect::<Vec<_>>()
        };
        let expected = [
            "model/hidden.bias",
            "model/hidden.weight",
            "model/output.bias",
            "model/output.weight",
        ];
        assert_eq!(names(&pair.primary().unwrap().first), expected);
        assert_eq!(names(&pair.primary().unwrap().second), expected);
        assert_eq!(names(another.primary().unwrap()), expected);
        assert_eq!(strategy.variables().variables().unwrap().len(), 12);
        assert!(
            strategy.named("another").scope(adam).is_err(),
            "the name is taken"
        );
    });
}

/// One loss of two states, and one checkpoint of them: the bits of one device.
#[test]
fn several_states_share_a_loss_and_a_checkpoint() {
    within_limit(|| {
        let servers = Servers::start(2);
        let (local, remote) = (one_device(), servers.strategy(None));
        let build = |device: &Device| Pair {
            first: adam(device),
            second: TrainState::new(Net::new(device, 1.5), Sgd::new(0.1).momentum(0.9)),
        };
        let train = |strategy: &dyn Strategy, pair: &mut Mirrored<Pair>| {
            let ran = strategy.run(pair, |ctx, Pair { first, second }| {
                let weight = |state: &TrainState<Net>| state.model.hidden.weight.val();
                let loss = (weight(first) * weight(second)).sum();
                let sets = ctx.gradients(&loss, (&first.model, &second.model))?;
                first.apply_gradients(ctx, sets.0)?;
                second.apply_gradients(ctx, sets.1).map(drop)
            });
            ran.unwrap();
        };
        let mut here = local.scope(build).unwrap();
        let mut there = remote.scope(build).unwrap();
        for _ in 0..3 {
            train(&local, &mut here);
            train(&remote, &mut there);
        }
        let saved = |pair: &Mirrored<Pair>| snapshot(pair.primary().unwrap()).unwrap();
        let checkpoint = saved(&there);
        assert_eq!(checkpoint, saved(&here));
        assert_eq!(checkpoint.metadata.step, 3);
        train(&remote, &mut there);
        assert_ne!(saved(&there).tensors, checkpoint.tensors);
        restore(&mut there, &checkpoint).unwrap();
        assert_eq!(saved(&there), checkpoint);
        train(&local, &mut here);
        train(&remote, &mut there);
        assert_eq!(saved(&there), saved(&here));
    });
}

#[test]
fn many_updates_do_not_fill_the_servers() {
    within_limit(|| {
        let servers = Servers::start(1);
        let strategy = servers.strategy(None);
        let options = distribute_core::VariableOptions::default();
        let count = strategy.variable(0_i64, options).unwrap();
        for _ in 0..3000 {
            strategy
                .run((), |ctx, ()| count.assign_add(ctx, 1_i64))
                .unwrap();
        }
        assert_eq!(count.read(&strategy).unwrap(), 3000);
    });
}
