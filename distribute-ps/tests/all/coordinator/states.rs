//! Training states on a server, used by workers of the same process.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use burn::nn::{Initializer, Linear, LinearConfig};
use burn::tensor::Tensor;
use distribute_core::{Error, Mirrored, Sgd, StrategyExt, TensorData, TrainState};
use distribute_fit::{restore, snapshot};
use distribute_ps::{
    ClusterCoordinator, CoordinatorOptions, HostTensor, NonFinite, ParameterServer, PsError,
    ServerOptions, SharedState, StepRegistry, WorkerContext,
};

use super::falling::{fall, falling};
use super::in_process::{Cluster, eventually, failed};

/// Two states whose weights fall by 1 with every update, and a step that updates one of them and
/// then fails, panics, waits until it is cancelled, or does nothing of that.
fn register(
    registry: &mut StepRegistry,
    waits: &Arc<AtomicBool>,
) -> [SharedState<TrainState<Linear>>; 2] {
    let mut state = |name| registry.state(name, falling).unwrap();
    let states = [state("first"), state("second")];
    let (of_step, waits) = (states.clone(), waits.clone());
    let step = move |worker: &WorkerContext, (which, how): (usize, String)| {
        worker.run(&of_step[which], (), |ctx, (state, ())| {
            fall(ctx, state)?;
            match how.as_str() {
                "fail" => return Err(Error::step("no luck")),
                "panic" => panic!("no luck"),
                "wait" => loop {
                    waits.store(true, Ordering::Relaxed);
                    worker.check_cancelled()?;
                    std::thread::yield_now();
                },
                _ => {}
            }
            Ok(0.0_f32)
        })
    };
    registry.step("train", step).unwrap();
    states
}

fn weight(coordinator: &ClusterCoordinator, state: &SharedState<TrainState<Linear>>) -> f32 {
    let strategy = coordinator.strategy().unwrap();
    let read = |state: &mut Mirrored<TrainState<Linear>>| {
        let data = strategy.run(state, |_, state| Ok(state.model.weight.val().into_data()))?;
        Ok(data.into_values().remove(0))
    };
    let data = coordinator.with(state, read).unwrap();
    data.as_slice::<f32>().unwrap()[0]
}

#[test]
fn a_state_is_usable_after_a_failure_a_panic_and_a_cancellation_in_the_middle_of_its_step() {
    let server = ParameterServer::bind("127.0.0.1:0", ServerOptions::default()).unwrap();
    let (mut states, waits) = (None, Arc::new(AtomicBool::new(false)));
    let cluster = Cluster::with_servers(
        2,
        &[server.address().to_string()],
        |registry| states = Some(register(registry, &waits)),
        CoordinatorOptions::default(),
    );
    let (coordinator, [first, second]) = (&cluster.coordinator, states.unwrap());
    let train = |which: usize, how: &str| coordinator.schedule("train", (which, how)).unwrap();
    train(0, "").fetch::<f32>().unwrap();
    for (how, updates) in [("fail", 2.0), ("panic", 4.0)] {
        let error = train(0, how).fetch::<f32>().unwrap_err();
        let cause = failed(&error, "train");
        assert_eq!(
            matches!(cause, PsError::Panicked { .. }),
            how == "panic",
            "{cause}"
        );
        assert!(cause.to_string().contains("no luck"), "{cause}");
        assert!(coordinator.join().is_err());
        // Its update was made before it failed.
        assert_eq!(weight(coordinator, &first), -updates);
        train(0, "").fetch::<f32>().unwrap();
    }
    // Another worker's failure cancels a step that has made its update.
    let waiting = train(1, "wait");
    eventually("it runs", || waits.load(Ordering::Relaxed));
    assert!(train(0, "fail").fetch::<f32>().is_err());
    assert!(coordinator.join().is_err());
    assert!(matches!(waiting.fetch::<f32>(), Err(PsError::Cancelled)));
    assert_eq!(weight(coordinator, &first), -6.0);
    assert_eq!(weight(coordinator, &second), -1.0);
    for _ in 0..10 {
        train(1, "");
    }
    coordinator.join().unwrap();
    assert_eq!(weight(coordinator, &second), -11.0);
    let names = coordinator.variables().unwrap().variables().unwrap();
    let names: Vec<&str> = names.iter().map(|variable| variable.name()).collect();
    assert_eq!(names, ["model/weight", "second/model/weight"]);
}

/// A state, a step that updates it, and one that tells what its worker sees of it: the number of
/// updates, the learning rate, and the weight.
fn observed(registry: &mut StepRegistry) -> SharedState<TrainState<Linear>> {
    let state = registry.state("model", falling).unwrap();
    let of_step = state.clone();
    let train = move |worker: &WorkerContext, (): ()| {
        worker.run(&of_step, (), |ctx, (state, ())| {
            fall(ctx, state)?;
            Ok(state.step() as i64)
        })
    };
    registry.step("train", train).unwrap();
    let of_step = state.clone();
    let look = move |worker: &WorkerContext, (): ()| {
        worker.run(&of_step, (), |_, (state, ())| {
            let weight = state.model.weight.val().into_scalar::<f32>();
            Ok((state.step() as i64, state.learning_rate(), weight))
        })
    };
    registry.step("look", look).unwrap();
    state
}

/// What worker after worker sees.
fn looks(coordinator: &ClusterCoordinator) -> (i64, f64, f32) {
    let seen: Vec<(i64, f64, f32)> = (0..6)
        .map(|_| {
            let value = coordinator.schedule("look", ()).unwrap();
            value.fetch().unwrap()
        })
        .collect();
    assert!(seen.iter().all(|it| *it == seen[0]), "{seen:?}");
    seen[0]
}

type Built = Mirrored<TrainState<Linear>>;

#[test]
fn workers_see_the_learning_rate_that_the_coordinator_has_set() {
    let servers =
        [(); 2].map(|()| ParameterServer::bind("127.0.0.1:0", ServerOptions::default()).unwrap());
    let addresses = servers.each_ref().map(|it| it.address().to_string());
    let mut state = None;
    let cluster = Cluster::with_servers(
        2,
        &addresses,
        |registry| state = Some(observed(registry)),
        CoordinatorOptions::default(),
    );
    let (coordinator, state) = (&cluster.coordinator, state.unwrap());
    assert_eq!(looks(coordinator), (0, 1.0, 0.0));
    // Through the state, with nothing after it that would need the servers.
    let set = |rate: f64| {
        let set = |state: &mut Built| {
            state.set_learning_rate(rate);
            Ok(())
        };
        coordinator.with(&state, set).unwrap();
    };
    set(0.25);
    assert_eq!(looks(coordinator), (0, 0.25, 0.0));
    coordinator.schedule("train", ()).unwrap();
    coordinator.join().unwrap();
    assert_eq!(looks(coordinator), (1, 0.25, -0.25));
    // And of the servers.
    let saved = coordinator
        .with(&state, |state: &mut Built| {
            snapshot(state.primary().unwrap())
        })
        .unwrap();
    coordinator
        .variables()
        .unwrap()
        .set_learning_rate(0.5)
        .unwrap();
    assert_eq!(looks(coordinator), (1, 0.5, -0.25));
    let put_back = |state: &mut Built| {
        restore(state, &saved)?;
        Ok((
            state.primary().unwrap().step(),
            state.primary().unwrap().learning_rate(),
        ))
    };
    let (step, rate) = coordinator.with(&state, put_back).unwrap();
    assert_eq!(looks(coordinator), (1, rate, -0.25));
    assert_eq!(step, 1);
}

#[test]
fn an_older_checkpoint_brings_back_its_step_and_weights_everywhere() {
    let servers =
        [(); 2].map(|()| ParameterServer::bind("127.0.0.1:0", ServerOptions::default()).unwrap());
    let addresses = servers.each_ref().map(|it| it.address().to_string());
    let mut state = None;
    let cluster = Cluster::with_servers(
        2,
        &addresses,
        |registry| state = Some(observed(registry)),
        CoordinatorOptions::default(),
    );
    let (coordinator, state) = (&cluster.coordinator, state.unwrap());
    let train = |steps: usize| {
        for _ in 0..steps {
            coordinator.schedule("train", ()).unwrap();
        }
        coordinator.join().unwrap();
    };
    let save = |state: &mut Built| snapshot(state.primary().unwrap());
    train(10);
    let saved = coordinator.with(&state, save).unwrap();
    assert_eq!(saved.metadata.step, 10);
    train(15);
    assert_eq!(looks(coordinator), (25, 1.0, -25.0));
    // Twice: the second one is restored over a state that was restored and not changed since.
    for _ in 0..2 {
        let put_back = |state: &mut Built| {
            restore(state, &saved)?;
            let weight = state
                .primary()
                .unwrap()
                .model
                .weight
                .val()
                .into_scalar::<f32>();
            Ok((state.primary().unwrap().step(), weight))
        };
        let restored = coordinator.with(&state, put_back).unwrap();
        assert_eq!(restored, (10, -10.0));
        assert_eq!(looks(coordinator), (10, 1.0, -10.0));
    }
    // Not a thread that waits for itself.
    let twice = coordinator.with(&state, |_| {
        let again = coordinator.with(&state, |state: &mut Built| {
            Ok(state.primary().unwrap().step())
        });
        Ok(again.map_err(|error| error.to_string()))
    });
    let error = twice.unwrap().unwrap_err();
    assert!(error.contains("within `with` of `model`"), "{error}");
    // It goes on from there, and so do checkpoints.
    let value = coordinator.schedule("train", ()).unwrap();
    assert_eq!(value.fetch::<i64>().unwrap(), 11);
    train(1);
    assert_eq!(looks(coordinator), (12, 1.0, -12.0));
    let saved = coordinator.with(&state, save).unwrap();
    assert_eq!(saved.metadata.step, 12);
}

/// A weight of shape 2 x 1, and a step that multiplies what it is given with it; its gradient is
/// what it was given.
fn product(registry: &mut StepRegistry) {
    let build = |device: &distribute_core::Device| {
        let linear = LinearConfig::new(2, 1).with_bias(false);
        let linear = linear.with_initializer(Initializer::Zeros).init(device);
        TrainState::new(linear, Sgd::new(1.0))
    };
    let state = registry.state("model", build).unwrap();
    let step = move |worker: &WorkerContext, (rows,): (HostTensor,)| {
        let rows = TensorData::from(rows);
        worker.run(&state, rows, |ctx, (state, rows)| {
            let rows = Tensor::<2>::from_data(rows, ctx.device());
            let loss = state.model.forward(rows).sum();
            let gradients = ctx.gradient(&loss, &state.model)?;
            state.apply_gradients(ctx, gradients)?;
            Ok(0.0_f32)
        })
    };
    registry.step("product", step).unwrap();
}

#[test]
fn nan_and_arguments_of_the_wrong_shape_are_errors_of_their_closures_or_applied_by_choice() {
    for non_finite in [NonFinite::Refuse, NonFinite::Apply] {
        let server = ParameterServer::bind("127.0.0.1:0", ServerOptions::default()).unwrap();
        let mut options = CoordinatorOptions::default();
        options.run.non_finite = non_finite;
        let addresses = [server.address().to_string()];
        let cluster = Cluster::with_servers(2, &addresses, product, options);
        let coordinator = &cluster.coordinator;
        let give = |rows: TensorData| {
            let rows = HostTensor(rows);
            coordinator
                .schedule("product", (rows,))
                .unwrap()
                .fetch::<f32>()
        };
        let weight = || {
            let read = coordinator
                .variables()
                .unwrap()
                .read("model/weight")
                .unwrap();
            read.as_slice::<f32>().unwrap().to_vec()
        };
        // Three columns for a weight of two rows.
        let error = give(TensorData::from([[1.0_f32, 2.0, 3.0]])).unwrap_err();
        let cause = failed(&error, "product");
        assert!(matches!(cause, PsError::Panicked { .. }), "{cause}");
        assert!(coordinator.join().is_err());
        give(TensorData::from([[1.0_f32, 2.0]])).unwrap();
        assert_eq!(weight(), [-1.0, -2.0]);
        let poisoned = give(TensorData::from([[1.0_f32, f32::NAN]]));
        match non_finite {
            NonFinite::Refuse => {
                let cause = failed(&poisoned.unwrap_err(), "product");
                let PsError::NonFinite { name } = &cause else {
                    panic!("{cause}");
                };
                assert_eq!(name, "model/weight");
                assert!(coordinator.join().is_err());
                assert_eq!(weight(), [-1.0, -2.0]);
            }
            NonFinite::Apply => {
                poisoned.unwrap();
                let weight = weight();
                assert!(weight[0] == -2.0 && weight[1].is_nan(), "{weight:?}");
            }
        }
        coordinator.join().unwrap();
    }
}
