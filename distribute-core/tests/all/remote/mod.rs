//! Training states and variables that live in a store, here one in memory.

mod store;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use burn::module::Module;
use burn::nn::Linear;
use burn::optim::AdamConfig;
use burn::tensor::{Device, TensorData};
use distribute_core::{
    Adam, Applied, BurnOptimizer, Error, LossScale, Replicate, Sgd, StrategyExt, TrainState,
    VariableAggregation, VariableOptions,
};

use store::{Built, Remotely, layer, one_device, step};

fn scalar(value: f32) -> TensorData {
    TensorData::new(vec![value], [0_usize; 0])
}

type Build = fn(&Device) -> TrainState<Linear>;

#[test]
fn one_worker_alone_gets_the_numbers_of_the_local_optimizer() {
    let builds: [Build; 3] = [
        |device| TrainState::new(layer(device, 0.25), Adam::new(0.01)),
        |device| TrainState::new(layer(device, 0.5), Sgd::new(0.1).momentum(0.9)),
        |device| {
            let state = TrainState::new(layer(device, 0.25), Adam::new(0.01));
            state.clip_by_global_norm(0.5).accumulate(3)
        },
    ];
    for build in builds {
        let (local, remote) = (one_device(), Remotely::new(&Arc::default()));
        let mut states = [local.scope(build).unwrap(), remote.scope(build).unwrap()];
        for number in 0..9 {
            if number == 6 {
                states
                    .iter_mut()
                    .for_each(|state| state.set_learning_rate(0.003));
            }
            let [one, other] = &mut states;
            let said = [step(&local, one, number), step(&remote, other, number)];
            assert_eq!(said[0].as_ref().unwrap(), said[1].as_ref().unwrap());
        }
        assert!(states[1].primary().unwrap().is_remote());
        let [one, other] = states
            .each_ref()
            .map(|state| state.primary().unwrap().to_tensors().unwrap());
        assert_eq!(one, other);
        states[1].refresh().unwrap();
        assert_eq!(
            states[0].primary().unwrap().step(),
            states[1].primary().unwrap().step()
        );
        let rates = states
            .each_ref()
            .map(|state| state.primary().unwrap().learning_rate());
        assert_eq!(rates, [0.003; 2]);
        let weights = states
            .each_ref()
            .map(|state| state.primary().unwrap().model.weight.val().to_data());
        assert_eq!(weights[0], weights[1]);
    }
}

#[test]
fn a_worker_takes_over_what_others_have_made_of_the_state() {
    let store = Arc::default();
    let (first, second) = (Remotely::new(&store), Remotely::new(&store));
    let build = |at| move |device: &Device| TrainState::new(layer(device, at), Adam::new(0.01));
    let mut one = first.scope(build(0.25)).unwrap();
    step(&first, &mut one, 0).unwrap();
    // Another initial value, which does not count.
    let mut other = second.scope(build(7.0)).unwrap();
    assert_eq!(other.primary().unwrap().step(), 1);
    step(&second, &mut other, 1).unwrap();
    step(&first, &mut one, 2).unwrap();

    let alone = one_device();
    let mut expected = alone.scope(build(0.25)).unwrap();
    for number in 0..3 {
        step(&alone, &mut expected, number).unwrap();
    }
    let tensors = |state: &Built| state.primary().unwrap().to_tensors().unwrap();
    assert_eq!(tensors(&one), tensors(&expected));
    assert_eq!(tensors(&other), tensors(&expected));
}

#[test]
fn a_push_that_panics_leaves_the_state_in_the_store() {
    let strategy = Remotely::new(&Arc::default());
    let build: Build = |device| TrainState::new(layer(device, 0.25), Sgd::new(0.1));
    let mut state = strategy.scope(build).unwrap();
    strategy.store.panics.store(true, Ordering::Relaxed);
    let error = step(&strategy, &mut state, 0).unwrap_err();
    assert!(matches!(error, Error::ReplicaPanicked { .. }), "{error}");
    assert!(state.primary().unwrap().is_remote());
    let before = state.primary().unwrap().to_tensors().unwrap();
    assert_eq!(
        step(&strategy, &mut state, 0).unwrap(),
        Applied::Updated,
        "the next one reaches the store"
    );
    assert_ne!(before, state.primary().unwrap().to_tensors().unwrap());
}

#[test]
fn dropped_gradients_change_nothing() {
    let strategy = Remotely::new(&Arc::default());
    let build = |device: &Device| TrainState::new(layer(device, 0.25), Adam::new(0.01));
    let mut state = strategy.scope(build).unwrap();
    strategy.store.drops.store(true, Ordering::Relaxed);
    let before = state.primary().unwrap().to_tensors().unwrap();
    assert_eq!(step(&strategy, &mut state, 0).unwrap(), Applied::Dropped);
    assert_eq!(state.primary().unwrap().to_tensors().unwrap(), before);
    assert_eq!(state.primary().unwrap().step(), 0);
}

#[test]
fn a_dynamic_loss_scale_is_refused() {
    let strategy = Remotely::new(&Arc::default());
    let build = |device: &Device| {
        TrainState::new(layer(device, 0.25), Sgd::new(0.1)).with_loss_scale(LossScale::dynamic())
    };
    let error = strategy.scope(build).unwrap_err().to_string();
    assert!(error.contains("LossScale::fixed"), "{error}");
}

/// The store was told what is trained.
#[test]
fn a_layer_that_is_frozen_later_is_refused_with_its_name() {
    let remote = Remotely::new(&Arc::default());
    let build = |device: &Device| TrainState::new(layer(device, 0.25), Adam::new(0.01));
    let mut state = remote.scope(build).unwrap();
    let changed = state.update(|state| {
        state.model = state.model.clone().freeze();
        Ok(())
    });
    let error = changed.unwrap_err().to_string();
    let names = error.contains("`weight` is frozen") && error.contains("parameter servers");
    assert!(names, "{error}");
    assert!(step(&remote, &mut state, 0).is_err());
}

#[test]
fn an_optimizer_of_burn_is_refused() {
    let strategy = Remotely::new(&Arc::default());
    let build = |device: &Device| {
        let adam = BurnOptimizer::new(AdamConfig::new(), 0.1);
        TrainState::new(layer(device, 0.25), adam)
    };
    let error = strategy.scope(build).unwrap_err().to_string();
    assert!(
        error.contains("burn:adam is one of burn, which updates whole parameters"),
        "{error}"
    );
}

#[derive(Replicate)]
struct Pair {
    trained: TrainState<Linear>,
    fixed: Linear,
}

#[test]
fn all_fields_of_a_value_go_to_the_store() {
    let store = Arc::default();
    let build = |at| {
        move |device: &Device| Pair {
            trained: TrainState::new(layer(device, at), Adam::new(0.01)),
            fixed: layer(device, at + 1.0),
        }
    };
    let first = Remotely::new(&store).scope(build(0.25)).unwrap();
    let second = Remotely::new(&store).scope(build(5.0)).unwrap();
    let weights =
        |pair: &Pair| [&pair.trained.model, &pair.fixed].map(|layer| layer.weight.val().to_data());
    assert_eq!(
        weights(first.primary().unwrap()),
        weights(second.primary().unwrap())
    );
    assert_eq!(store.states.lock().unwrap().len(), 2);
}

#[test]
fn variables_are_read_and_changed_in_the_store() {
    let strategy = Remotely::new(&Arc::default());
    for aggregation in [VariableAggregation::None, VariableAggregation::Mean] {
        let options = VariableOptions::default().aggregation(aggregation);
        let variable = strategy.variable(scalar(2.0), options).unwrap();
        strategy
            .run((), |ctx, ()| variable.assign_add(ctx, 3.0_f32))
            .unwrap();
        variable.assign_sub(&strategy, 1.0_f32).unwrap();
        assert_eq!(variable.read(&strategy).unwrap(), scalar(4.0));
        let read = strategy.run((), |ctx, ()| variable.read(ctx)).unwrap();
        assert_eq!(read.values()[0], scalar(4.0));
        assert!(variable.assign(&strategy, 1_i64).is_err());
        let made = strategy.run((), |ctx, ()| ctx.variable(1.0_f32, options).map(|_| ()));
        let error = made.unwrap_err().to_string();
        assert!(error.contains("outside of steps"), "{error}");
        variable.update(&strategy, |_| Ok(scalar(9.0))).unwrap();
        assert_eq!(variable.local_values().unwrap(), [scalar(9.0)]);
    }
}

#[derive(Replicate)]
struct Two {
    first: TrainState<Linear>,
    second: TrainState<Linear>,
}

/// One loss of two states in a store: the numbers of the local optimizers, and one checkpoint.
#[test]
fn two_states_of_one_loss_are_pushed_and_saved_as_they_are_here() {
    let build = |device: &Device| Two {
        first: TrainState::new(layer(device, 0.25), Adam::new(0.01)),
        second: TrainState::new(layer(device, 0.5), Sgd::new(0.1).momentum(0.9)),
    };
    let trained = |strategy: &dyn distribute_core::Strategy| {
        let mut state = strategy.scope(build).unwrap();
        for _ in 0..3 {
            let ran = strategy.run(&mut state, |ctx, Two { first, second }| {
                let input = burn::tensor::Tensor::<2>::ones([4, 3], ctx.device());
                let difference = first.model.forward(input.clone()) - second.model.forward(input);
                let loss = difference.powf_scalar(2.0).mean();
                let sets = ctx.gradients(&loss, (&first.model, &second.model))?;
                first.apply_gradients(ctx, sets.0)?;
                second.apply_gradients(ctx, sets.1)
            });
            assert_eq!(ran.unwrap().values(), [Applied::Updated]);
        }
        state.save().unwrap()
    };
    let here = trained(&one_device());
    let there = trained(&Remotely::new(&Arc::default()));
    assert_eq!(there, here);
    assert_eq!(here.0, 3);
    let names: Vec<_> = here.1.keys().map(String::as_str).collect();
    let expected = [
        "first/model/bias",
        "first/model/weight",
        "first/optimizer/momentum/bias",
        "first/optimizer/momentum/weight",
        "first/optimizer/velocity/bias",
        "first/optimizer/velocity/weight",
        "second/model/bias",
        "second/model/weight",
        "second/optimizer/momentum/bias",
        "second/optimizer/momentum/weight",
    ];
    assert_eq!(names, expected);
}
