//! Steps that never end, workers that come back as another program, servers that come back empty.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use burn::module::Module;
use burn::nn::{Initializer, Linear, LinearConfig};
use burn::tensor::Tensor;
use distribute_core::{Error, Sgd, TrainState};
use distribute_ps::{
    ClusterCoordinator, CoordinatorOptions, ParameterServer, PsError, RemoteValue, ServerOptions,
    Staleness, StalenessPolicy, StepRegistry, WorkerContext, WorkerOptions, WorkerStatus,
};

use super::falling::{fall, falling};
use super::in_process::{Cluster, LIMIT, NO_SERVERS, Worker, eventually, failed};
use crate::stopwatch::Stopwatch;

fn add(registry: &mut StepRegistry) {
    let step = |_: &WorkerContext, (a, b): (i32, i32)| Ok(a + b);
    registry.step("add", step).unwrap();
}

/// A step that hears nothing until the flag is set.
fn deaf(registry: &mut StepRegistry, open: &Arc<AtomicBool>) {
    let open = open.clone();
    let step = move |_: &WorkerContext, (): ()| {
        while !open.load(Ordering::Relaxed) {
            std::thread::yield_now();
        }
        Ok(())
    };
    registry.step("deaf", step).unwrap();
}

fn impatient() -> CoordinatorOptions {
    let mut options = CoordinatorOptions::default();
    options.step_timeout = Duration::from_millis(300);
    options.worker_recovery_timeout = Duration::from_millis(800);
    options
}

/// Opens when it is dropped, so that a test that fails ends.
struct Opens(Arc<AtomicBool>);

impl Drop for Opens {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn a_worker_whose_step_never_ends_gets_nothing_else_to_do() {
    let open = Arc::new(AtomicBool::new(false));
    let register = |registry: &mut StepRegistry| {
        add(registry);
        deaf(registry, &open);
    };
    let cluster = Cluster::with_options(2, register, impatient());
    let opens = Opens(open);
    let coordinator = &cluster.coordinator;
    let error = coordinator.schedule("deaf", ()).unwrap().fetch::<()>();
    let error = error.unwrap_err();
    let cause = failed(&error, "deaf");
    assert!(
        matches!(cause, PsError::Deadline { op: "step", .. }),
        "{cause}"
    );
    assert!(coordinator.join().is_err());
    let absent = || {
        let statuses = coordinator.worker_statuses().into_iter();
        let mut absent = statuses.filter_map(|status| match status {
            WorkerStatus::Absent(reason) => Some(reason),
            _ => None,
        });
        absent.next()
    };
    for round in 0..20 {
        let values: Vec<RemoteValue> = (0..4)
            .map(|i| coordinator.schedule("add", (i, round)).unwrap())
            .collect();
        let sums: Vec<i32> = coordinator.fetch(&values).unwrap();
        assert_eq!(sums, (round..round + 4).collect::<Vec<_>>());
        // Time for the worker to be dialled again.
        std::thread::sleep(Duration::from_millis(30));
    }
    let reason = absent().expect("one worker is busy");
    assert!(
        reason.contains("step `deaf`") && reason.contains("still runs"),
        "{reason}"
    );
    drop(opens);
    eventually("both workers are back", || absent().is_none());
}

#[test]
fn a_worker_that_is_busy_when_the_job_ends_hears_of_it() {
    let mut begun = Stopwatch::start();
    let open = Arc::new(AtomicBool::new(false));
    let register = |registry: &mut StepRegistry| deaf(registry, &open);
    let Cluster {
        coordinator,
        workers,
    } = Cluster::with_options(2, register, impatient());
    let opens = Opens(open.clone());
    assert!(
        coordinator
            .schedule("deaf", ())
            .unwrap()
            .fetch::<()>()
            .is_err()
    );
    begun.restart();
    coordinator.finish().unwrap();
    let took = begun.elapsed();
    assert!(took < Duration::from_secs(5), "{took:?}");
    drop(opens);
    for worker in workers {
        worker.end().unwrap();
    }
}

#[test]
fn when_the_steps_of_all_workers_hang_the_error_says_which() {
    let open = Arc::new(AtomicBool::new(false));
    let register = |registry: &mut StepRegistry| {
        add(registry);
        deaf(registry, &open);
    };
    let cluster = Cluster::with_options(1, register, impatient());
    let _opens = Opens(open);
    let coordinator = &cluster.coordinator;
    let hanging = coordinator.schedule("deaf", ()).unwrap();
    assert!(hanging.fetch::<()>().is_err());
    assert!(coordinator.join().is_err());
    let sum = coordinator.schedule("add", (1, 1)).unwrap();
    let error = coordinator.join().unwrap_err();
    let PsError::NoWorkers { workers, .. } = &error else {
        panic!("{error}");
    };
    assert!(workers.contains("step `deaf`"), "{workers}");
    assert!(matches!(sum.fetch::<i32>(), Err(PsError::NoWorkers { .. })));
}

#[test]
fn a_worker_that_comes_back_as_another_program_is_named_and_the_others_go_on() {
    let mut cluster = Cluster::new(2, add);
    let worker = cluster.workers.remove(0);
    let address = worker.address.clone();
    worker.stopper.stop();
    worker.end().unwrap();
    let mut other = StepRegistry::new();
    let subtract = |_: &WorkerContext, (a, b): (i32, i32)| Ok(a - b);
    other.step("subtract", subtract).unwrap();
    let other = Worker::start_at(&address, &Arc::new(other), WorkerOptions::default());
    let coordinator = &cluster.coordinator;
    let mut error = None;
    eventually("the other program is noticed", || {
        error = coordinator.done().err();
        error.is_some()
    });
    let error = error.unwrap();
    let PsError::Refused {
        address: of,
        reason,
    } = &error
    else {
        panic!("{error}");
    };
    assert_eq!(of, &address);
    assert!(
        reason.contains("worker 0") && reason.contains("no step `add`"),
        "{reason}"
    );
    for i in 0..20 {
        let sum = coordinator.schedule("add", (i, 1)).unwrap();
        assert_eq!(sum.fetch::<i32>().unwrap(), i + 1);
    }
    drop(other);
}

/// Without a call of `schedule`, `join` or `done` an error waits; results are waited for first.
#[test]
fn a_result_ends_when_there_are_no_workers_although_an_error_waits() {
    let gates = [(); 2].map(|()| Arc::<AtomicBool>::default());
    let of_step = gates.clone();
    let register = move |registry: &mut StepRegistry| {
        add(registry);
        let bad = |_: &WorkerContext, (): ()| Err::<(), _>(PsError::step("failed on purpose"));
        registry.step("bad", bad).unwrap();
        let gate = move |_: &WorkerContext, (which,): (usize,)| {
            while !of_step[which].load(Ordering::Relaxed) {
                std::thread::yield_now();
            }
            Ok(())
        };
        registry.step("gate", gate).unwrap();
    };
    let mut cluster = Cluster::with_options(1, register, impatient_about_workers());
    let _opens = gates.clone().map(Opens);
    let coordinator = &cluster.coordinator;
    let schedule = |step, which: usize| coordinator.schedule(step, (which,)).unwrap();
    schedule("gate", 0);
    let failing = coordinator.schedule("bad", ()).unwrap();
    schedule("gate", 1);
    let sums = [1, 2, 3].map(|i| coordinator.schedule("add", (i, 1)).unwrap());
    gates[0].store(true, Ordering::Relaxed);
    failed(&failing.fetch::<()>().unwrap_err(), "bad");
    let worker = cluster.workers.remove(0);
    worker.stopper.stop();
    gates[1].store(true, Ordering::Relaxed);
    worker.end().unwrap();
    // The first one may have been on its way to the worker.
    let error = sums[2].fetch_timeout::<i32>(LIMIT);
    let error = error.unwrap_err();
    assert!(matches!(error, PsError::NoWorkers { .. }), "{error}");
    failed(&coordinator.join().unwrap_err(), "bad");
}

fn impatient_about_workers() -> CoordinatorOptions {
    let mut options = CoordinatorOptions::default();
    options.worker_recovery_timeout = Duration::from_millis(500);
    options
}

/// A step that trains, and one that has pulled and fails when it may.
fn waiting(registry: &mut StepRegistry, holds: &Arc<AtomicBool>, may_fail: &Arc<AtomicBool>) {
    let state = registry.state("model", falling).unwrap();
    let of_step = state.clone();
    let train = move |worker: &WorkerContext, (): ()| {
        worker.run(&of_step, (), |ctx, (state, ())| {
            fall(ctx, state)?;
            Ok(0.0_f32)
        })
    };
    registry.step("train", train).unwrap();
    let (holds, may_fail) = (holds.clone(), may_fail.clone());
    let hold = move |worker: &WorkerContext, (): ()| {
        worker.run(&state, (), |_, (_, ())| -> distribute_core::Result<f32> {
            holds.store(true, Ordering::Relaxed);
            while !may_fail.load(Ordering::Relaxed) {
                std::thread::yield_now();
            }
            Err(Error::step("it gives up"))
        })
    };
    registry.step("hold", hold).unwrap();
}

#[test]
fn closures_that_wait_for_slower_ones_stop_at_once_when_they_are_cancelled() {
    let mut begun = Stopwatch::start();
    let server = ParameterServer::bind("127.0.0.1:0", ServerOptions::default()).unwrap();
    let (holds, may_fail) = (Arc::<AtomicBool>::default(), Arc::<AtomicBool>::default());
    let mut options = CoordinatorOptions::default();
    options.run.staleness = Some(Staleness {
        bound: 0,
        policy: StalenessPolicy::Wait,
    });
    let cluster = Cluster::with_servers(
        9,
        &[server.address().to_string()],
        |registry| waiting(registry, &holds, &may_fail),
        options,
    );
    let _opens = Opens(may_fail.clone());
    let coordinator = &cluster.coordinator;
    // Every worker has its connections and its copy of the state.
    for _ in 0..40 {
        coordinator.schedule("train", ()).unwrap();
    }
    coordinator.join().unwrap();
    let failing = coordinator.schedule("hold", ()).unwrap();
    eventually("it has pulled", || holds.load(Ordering::Relaxed));
    let values: Vec<RemoteValue> = (0..8)
        .map(|_| coordinator.schedule("train", ()).unwrap())
        .collect();
    // They wait at the server: none ends.
    std::thread::sleep(Duration::from_millis(300));
    assert!(values.iter().all(|value| !value.is_ready()));
    begun.restart();
    may_fail.store(true, Ordering::Relaxed);
    assert!(failing.fetch::<f32>().is_err());
    failed(&coordinator.join().unwrap_err(), "hold");
    let took = begun.elapsed();
    assert!(took < Duration::from_secs(2), "{took:?}");
    for value in values {
        match value.fetch::<f32>() {
            Ok(_) | Err(PsError::Cancelled) => {}
            Err(error) => panic!("{error}"),
        }
    }
    for _ in 0..20 {
        coordinator.schedule("train", ()).unwrap();
    }
    coordinator.join().unwrap();
}

/// Two layers, one on each server, of which a step trains the first only.
#[derive(Module, Debug)]
struct Halves {
    trained: Linear,
    untouched: Linear,
}

#[test]
fn a_closure_without_updates_is_not_waited_for() {
    let mut begun = Stopwatch::start();
    let servers =
        [(); 2].map(|()| ParameterServer::bind("127.0.0.1:0", ServerOptions::default()).unwrap());
    let addresses = servers.each_ref().map(|it| it.address().to_string());
    let mut options = CoordinatorOptions::default();
    options.run.staleness = Some(Staleness {
        bound: 1,
        policy: StalenessPolicy::Wait,
    });
    let register = |registry: &mut StepRegistry| {
        let build = |device: &distribute_core::Device| {
            let linear = || {
                let linear = LinearConfig::new(1, 1).with_bias(false);
                linear.with_initializer(Initializer::Zeros).init(device)
            };
            let halves = Halves {
                trained: linear(),
                untouched: linear(),
            };
            TrainState::new(halves, Sgd::new(1.0))
        };
        let state = registry.state("model", build).unwrap();
        let train = move |worker: &WorkerContext, (): ()| {
            worker.run(&state, (), |ctx, (state, ())| {
                let x = Tensor::<2>::ones([1, 1], ctx.device());
                let loss = state.model.trained.forward(x).sum();
                let gradients = ctx.gradient(&loss, &state.model)?;
                state.apply_gradients(ctx, gradients)?;
                Ok(0.0_f32)
            })
        };
        registry.step("train", train).unwrap();
    };
    let cluster = Cluster::with_servers(4, &addresses, register, options);
    let coordinator = &cluster.coordinator;
    let variables = coordinator.variables().unwrap();
    let server_of = |name| variables.variable(name).unwrap().placement().shards[0].server;
    assert_ne!(
        server_of("model/trained.weight"),
        server_of("model/untouched.weight")
    );
    begun.restart();
    for _ in 0..60 {
        coordinator.schedule("train", ()).unwrap();
    }
    coordinator.join().unwrap();
    let took = begun.elapsed();
    // A second for each of them if servers heard of ends only when they are asked.
    assert!(took < Duration::from_secs(30), "{took:?}");
    let weight = variables.read("model/trained.weight").unwrap();
    assert_eq!(weight.as_slice::<f32>().unwrap(), [-60.0]);
}

#[test]
fn a_server_that_comes_back_empty_is_noticed_without_any_step() {
    let mut begun = Stopwatch::start();
    let server = ParameterServer::bind("127.0.0.1:0", ServerOptions::default()).unwrap();
    let address = server.address().to_string();
    let cluster = Cluster::with_servers(
        1,
        std::slice::from_ref(&address),
        add,
        CoordinatorOptions::default(),
    );
    drop(server);
    let mut server = None;
    eventually("the port is free again", || {
        server = ParameterServer::bind(&address, ServerOptions::default()).ok();
        server.is_some()
    });
    begun.restart();
    let mut last = None;
    eventually("the error of another run", || {
        last = cluster.coordinator.done().err().or(last.take());
        matches!(last, Some(PsError::OtherRun { server: 0, .. }))
    });
    let took = begun.elapsed();
    assert!(took < Duration::from_secs(5), "{took:?}");
}

#[test]
fn a_coordinator_takes_over_from_one_that_was_just_dropped() {
    let server = ParameterServer::bind("127.0.0.1:0", ServerOptions::default()).unwrap();
    let mut registry = StepRegistry::new();
    add(&mut registry);
    let registry = Arc::new(registry);
    let worker = Worker::start(&registry);
    let connect = || {
        let servers = [server.address().to_string()];
        let options = CoordinatorOptions::default();
        ClusterCoordinator::connect(&[&worker.address], &servers, registry.clone(), options)
    };
    for i in 0..5 {
        let coordinator = connect().unwrap();
        let sum = coordinator.schedule("add", (i, 1)).unwrap();
        assert_eq!(sum.fetch::<i32>().unwrap(), i + 1);
    }
    let options = CoordinatorOptions::default();
    let alone = ClusterCoordinator::connect(&[&worker.address], &NO_SERVERS, registry, options);
    assert!(alone.is_ok());
}
