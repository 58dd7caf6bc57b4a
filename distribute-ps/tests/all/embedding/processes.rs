//! Workers as real processes, which are killed in the middle of their steps.

use std::sync::Arc;
use std::time::{Duration, Instant};

use burn::nn::{Initializer, Linear, LinearConfig};
use distribute_core::{Sgd, TrainState};
use distribute_ps::{
    ClusterCoordinator, CoordinatorOptions, SharedState, StepRegistry, Table, TableInitializer,
    TableSpec, WorkerContext, WorkerOptions, WorkerServer,
};

use super::common::{fixed, floats};
use crate::coordinator::processes::Process;
use crate::strategy::common::Servers;

const LIMIT: Duration = Duration::from_secs(300);
/// The variable by which a process knows that it is a worker, and where it listens.
const WORKER: &str = "DISTRIBUTE_TEST_EMBEDDING_WORKER";
const ROWS: u64 = 50;

/// Not a test: the process of a worker, which another test has started.
#[test]
fn a_worker_of_another_test() {
    let Ok(address) = std::env::var(WORKER) else {
        return;
    };
    let mut options = WorkerOptions::default();
    options.coordinator_timeout = LIMIT;
    let (registry, _, _) = register();
    let server = WorkerServer::bind(&address, Arc::new(registry), options).unwrap();
    println!("listens at {}", server.address());
    server.serve().unwrap();
}

/// The rows of a step: two of them, in different shards, the first one twice.
fn ids(number: u64) -> [i64; 3] {
    let first = (number * 7 % ROWS) as i64;
    [first, first, (first + 20) % ROWS as i64]
}

/// A step whose update takes 1 from the weight and from each element of a row, each time that the
/// row was looked up.
fn register() -> (StepRegistry, Table, SharedState<TrainState<Linear>>) {
    let mut registry = StepRegistry::new();
    let spec = TableSpec::new(ROWS as usize, 4, Sgd::new(1.0));
    let spec = spec.initializer(TableInitializer::Constant(0.0));
    let table = registry.table("words", spec).unwrap();
    let build = |device: &burn::tensor::Device| {
        let linear = LinearConfig::new(1, 1).with_bias(false);
        let linear = linear.with_initializer(Initializer::Zeros).init(device);
        TrainState::new(linear, Sgd::new(1.0))
    };
    let state = registry.state("model", build).unwrap();
    let (of_step, model) = (table.clone(), state.clone());
    let step = move |worker: &WorkerContext, (number,): (u64,)| {
        work();
        let rows = worker.lookup(&of_step, ids(number))?;
        worker.run(&model, rows, |ctx, (state, rows)| {
            work();
            let loss = rows.tensor::<2>(ctx)?.sum() + state.model.weight.val().sum();
            let gradients = ctx.gradient(&loss, &state.model)?;
            state.apply_gradients(ctx, gradients)?;
            Ok(0.0_f32)
        })?;
        work();
        Ok(number)
    };
    registry.step("train", step).unwrap();
    (registry, table, state)
}

/// Busy for a while, so that a kill hits it in the middle.
fn work() {
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_millis(2) {
        std::hint::spin_loop();
    }
}

fn worker() -> Process {
    let test = "embedding::processes::a_worker_of_another_test";
    Process::start(WORKER, test, "127.0.0.1:0")
}

fn await_closures(coordinator: &ClusterCoordinator, more: u64) {
    let (from, begun) = (coordinator.closures_ended(), Instant::now());
    while coordinator.closures_ended() < from + more {
        assert!(begun.elapsed() < LIMIT, "closures do not end");
        // Asking less often, not waiting for something to be over.
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn every_step_changes_table_and_model_once_when_workers_are_killed() {
    let servers = Servers::start(2);
    let mut workers: Vec<Process> = (0..2).map(|_| worker()).collect();
    let addresses: Vec<&str> = workers.iter().map(|one| one.address.as_str()).collect();
    let (registry, table, state) = register();
    let mut options = CoordinatorOptions::default();
    options.partitioner = fixed(2);
    let (registry, at) = (Arc::new(registry), servers.addresses());
    let coordinator = ClusterCoordinator::connect(&addresses, &at, registry, options).unwrap();
    let (kills, steps) = (8_usize, 320_u64);
    std::thread::scope(|scope| {
        let scheduling = scope.spawn(|| {
            let one = |number| coordinator.schedule("train", (number,)).map(drop);
            (0..steps).try_for_each(one).unwrap();
        });
        for kill in 0..kills {
            // After some more closures, at another moment of a step each time.
            await_closures(&coordinator, 10);
            std::thread::sleep(Duration::from_millis(kill as u64 * 3 % 8));
            workers[kill % 2].replace();
        }
        scheduling.join().unwrap();
    });
    coordinator.join_timeout(LIMIT).unwrap();
    let mut expected = vec![0.0_f32; ROWS as usize * 4];
    for id in (0..steps).flat_map(ids) {
        let row = usize::try_from(id).unwrap() * 4;
        expected[row..row + 4]
            .iter_mut()
            .for_each(|value| *value -= 1.0);
    }
    let all: Vec<u64> = (0..ROWS).collect();
    let found = coordinator.lookup(&table, all.as_slice()).unwrap();
    assert_eq!(floats(&found.to_data().unwrap()), expected);
    let saved = coordinator
        .with(&state, |state| state.primary().unwrap().to_tensors())
        .unwrap();
    assert_eq!(floats(&saved["model/weight"]), [-(steps as f32)]);
    assert_eq!(
        saved["updates/table/words"].as_slice::<i64>().unwrap(),
        [steps as i64]
    );
}
