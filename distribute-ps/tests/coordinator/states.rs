//! Training states on a server, used by workers of the same process.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use burn::nn::{Initializer, Linear, LinearConfig};
use burn::tensor::Tensor;
use distribute_core::{Error, Mirrored, Sgd, StrategyExt, TrainState};
use distribute_ps::{
    ClusterCoordinator, CoordinatorOptions, ParameterServer, PsError, ServerOptions, State,
    StepRegistry, WorkerContext,
};

use crate::in_process::{Cluster, eventually, failed};

/// Two states whose weights fall by 1 with every update, and a step that updates one of them and
/// then fails, panics, waits until it is cancelled, or does nothing of that.
fn register(
    registry: &mut StepRegistry,
    waits: &Arc<AtomicBool>,
) -> [State<TrainState<Linear>>; 2] {
    let mut state = |name| {
        let build = |device: &distribute_core::Device| {
            let linear = LinearConfig::new(1, 1).with_bias(false);
            let linear = linear.with_initializer(Initializer::Zeros).init(device);
            TrainState::new(linear, Sgd::new(1.0))
        };
        registry.state(name, build).unwrap()
    };
    let states = [state("first"), state("second")];
    let (of_step, waits) = (states.clone(), waits.clone());
    let step = move |worker: &WorkerContext, (which, how): (usize, String)| {
        worker.run(&of_step[which], (), |ctx, (state, ())| {
            let loss = state
                .model
                .forward(Tensor::<2>::ones([1, 1], ctx.device()))
                .sum();
            let gradients = ctx.gradient(&loss, &state.model)?;
            state.apply_gradients(ctx, gradients)?;
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

fn weight(coordinator: &ClusterCoordinator, state: &State<TrainState<Linear>>) -> f32 {
    let strategy = coordinator.strategy().unwrap();
    let read = |state: &mut Mirrored<TrainState<Linear>>| {
        let data = strategy.run((state,), |_, (state,)| {
            Ok(state.model.weight.val().into_data())
        })?;
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
