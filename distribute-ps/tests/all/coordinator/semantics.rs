//! TensorFlow's semantics of schedule, join, done and fetch (golden `parameter_server`: basic and
//! errors).

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::time::Duration;

use distribute_ps::{
    CoordinatorOptions, HostTensor, PsError, RemoteValue, StepRegistry, WorkerContext,
};
use serde::{Deserialize, Serialize};

use super::in_process::{Cluster, LIMIT, eventually, failed};

fn add(registry: &mut StepRegistry) {
    registry
        .step("add", |_: &WorkerContext, (a, b): (i32, i32)| Ok(a + b))
        .unwrap();
}

fn bad(registry: &mut StepRegistry) {
    let fail = |_: &WorkerContext, (): ()| -> distribute_ps::Result<()> {
        Err(PsError::step("failed on purpose"))
    };
    registry.step("bad", fail).unwrap();
}

/// A step that waits until the flag is set, unless it is cancelled.
fn gated(registry: &mut StepRegistry, open: &Arc<AtomicBool>) {
    let open = open.clone();
    let wait = move |worker: &WorkerContext, (value,): (i32,)| {
        while !open.load(Ordering::Relaxed) {
            worker.check_cancelled()?;
            std::thread::yield_now();
        }
        Ok(value)
    };
    registry.step("gated", wait).unwrap();
}

#[test]
fn what_was_scheduled_is_fetched_in_any_order_and_again() {
    let cluster = Cluster::new(2, add);
    let coordinator = &cluster.coordinator;
    let values: Vec<RemoteValue> = (0..20)
        .map(|i| coordinator.schedule("add", (i, 100)).unwrap())
        .collect();
    assert_eq!(values[7].fetch::<i32>().unwrap(), 107);
    coordinator.join().unwrap();
    assert!(coordinator.done().unwrap());
    let all: Vec<i32> = coordinator.fetch(&values).unwrap();
    assert_eq!(all, (100..120).collect::<Vec<_>>());
    assert_eq!(values[7].fetch::<i32>().unwrap(), 107);
    assert_eq!(coordinator.closures_ended(), 20);
}

#[test]
fn nothing_scheduled_is_done_and_joins_at_once() {
    let cluster = Cluster::new(1, add);
    assert!(cluster.coordinator.done().unwrap());
    cluster.coordinator.join().unwrap();
}

#[test]
fn structures_and_tensors_are_arguments_and_results() {
    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Metrics {
        a: i32,
        b: Vec<HostTensor>,
        loss: f32,
    }
    let cluster = Cluster::new(1, |registry| {
        let step = |_: &WorkerContext, (tensor, loss): (HostTensor, f32)| {
            Ok(Metrics {
                a: 1,
                b: vec![tensor],
                loss,
            })
        };
        registry.step("metrics", step).unwrap();
    });
    let tensor = HostTensor(distribute_core::TensorData::from([
        [2.0_f32, -0.0],
        [1.5, 3.0],
    ]));
    let arguments = (tensor.clone(), f32::INFINITY);
    let value = cluster.coordinator.schedule("metrics", arguments).unwrap();
    let expected = Metrics {
        a: 1,
        b: vec![tensor],
        loss: f32::INFINITY,
    };
    assert_eq!(value.fetch::<Metrics>().unwrap(), expected);
    let error = value.fetch::<String>().unwrap_err().to_string();
    assert!(
        error.contains("`metrics` is no") && error.contains("String"),
        "{error}"
    );
}

#[test]
fn an_error_surfaces_at_join_once_and_names_worker_step_and_closure() {
    let cluster = Cluster::new(2, |registry| {
        add(registry);
        bad(registry);
    });
    let coordinator = &cluster.coordinator;
    let value = coordinator.schedule("bad", ()).unwrap();
    let error = coordinator.join().unwrap_err();
    assert_eq!(failed(&error, "bad").to_string(), "failed on purpose");
    let own = value.fetch::<()>().unwrap_err();
    assert_eq!(failed(&own, "bad").to_string(), "failed on purpose");
    coordinator.join().unwrap();
    let sum = coordinator.schedule("add", (1, 2)).unwrap();
    assert_eq!(sum.fetch::<i32>().unwrap(), 3);
    coordinator.join().unwrap();
}

#[test]
fn an_error_surfaces_at_the_next_schedule_or_done() {
    let cluster = Cluster::new(2, |registry| {
        add(registry);
        bad(registry);
    });
    let coordinator = &cluster.coordinator;
    let first = coordinator.schedule("bad", ()).unwrap();
    assert!(first.fetch::<()>().is_err());
    let error = coordinator.schedule("add", (1, 1)).unwrap_err();
    failed(&error, "bad");
    assert!(
        coordinator.done().unwrap(),
        "what was refused is not scheduled"
    );
    let second = coordinator.schedule("bad", ()).unwrap();
    assert!(second.fetch::<()>().is_err());
    failed(&coordinator.done().unwrap_err(), "bad");
    assert!(coordinator.done().unwrap());
}

#[test]
fn an_error_cancels_what_waits_and_what_runs_and_leaves_what_has_finished() {
    let open = Arc::new(AtomicBool::new(true));
    let cluster = Cluster::new(2, |registry| {
        bad(registry);
        gated(registry, &open);
    });
    let coordinator = &cluster.coordinator;
    let finished = coordinator.schedule("gated", (1,)).unwrap();
    assert_eq!(finished.fetch::<i32>().unwrap(), 1);
    open.store(false, Ordering::Relaxed);
    let running = coordinator.schedule("gated", (2,)).unwrap();
    let bad = coordinator.schedule("bad", ()).unwrap();
    // The other worker has the first of these by the time the error surfaces, or none.
    let waiting: Vec<RemoteValue> = (3..15)
        .map_while(|i| coordinator.schedule("gated", (i,)).ok())
        .collect();
    // The error may have surfaced at one of these calls, and was cleared then.
    let at_join = coordinator.join();
    assert!(waiting.len() < 12 || at_join.is_err());
    assert_eq!(finished.fetch::<i32>().unwrap(), 1);
    failed(&bad.fetch::<()>().unwrap_err(), "bad");
    for cancelled in waiting.iter().chain([&running]) {
        let error = cancelled.fetch::<i32>().unwrap_err();
        assert!(matches!(error, PsError::Cancelled), "{error}");
        assert_eq!(
            error.to_string(),
            "The corresponding function is cancelled. Please reschedule the function."
        );
    }
    assert!(coordinator.done().unwrap());
    open.store(true, Ordering::Relaxed);
    let again = coordinator.schedule("gated", (5,)).unwrap();
    assert_eq!(again.fetch::<i32>().unwrap(), 5);
}

#[test]
fn others_go_on_after_a_failure_until_it_surfaces() {
    let cluster = Cluster::new(1, |registry| {
        add(registry);
        bad(registry);
    });
    let coordinator = &cluster.coordinator;
    let barrier = Barrier::new(2);
    // Both are queued before the first has failed, so that neither call surfaces its error.
    let sum = std::thread::scope(|scope| {
        scope.spawn(|| {
            barrier.wait();
        });
        barrier.wait();
        let failing = coordinator.schedule("bad", ());
        let sum = coordinator.schedule("add", (20, 3));
        assert!(failing.unwrap().fetch::<()>().is_err());
        sum
    });
    match sum {
        Ok(sum) => {
            assert_eq!(sum.fetch::<i32>().unwrap(), 23);
            failed(&coordinator.join().unwrap_err(), "bad");
            assert_eq!(sum.fetch::<i32>().unwrap(), 23);
        }
        // It was quick enough to surface.
        Err(error) => drop(failed(&error, "bad")),
    }
}

#[test]
fn a_panic_is_the_closures_error_and_the_worker_goes_on_with_new_resources() {
    let built = Arc::new(AtomicU64::new(0));
    let count = built.clone();
    let cluster = Cluster::new(1, move |registry| {
        let build = move |_: &WorkerContext| Ok(count.fetch_add(1, Ordering::Relaxed));
        let resource = registry.resource("state", build).unwrap();
        let step = move |worker: &WorkerContext, (panics,): (bool,)| {
            let held = worker.resource(&resource)?;
            assert!(!panics, "out of luck");
            assert!(worker.resource(&resource).is_err(), "held twice");
            Ok(*held)
        };
        registry.step("step", step).unwrap();
    });
    let coordinator = &cluster.coordinator;
    let run = |panics: bool| coordinator.schedule("step", (panics,)).unwrap();
    assert_eq!(run(false).fetch::<u64>().unwrap(), 0);
    assert_eq!(run(false).fetch::<u64>().unwrap(), 0);
    let error = run(true).fetch::<u64>().unwrap_err();
    let PsError::Panicked { message } = failed(&error, "step") else {
        panic!("{error}");
    };
    assert_eq!(message, "out of luck");
    assert!(coordinator.join().is_err());
    assert_eq!(run(false).fetch::<u64>().unwrap(), 1);
    assert_eq!(built.load(Ordering::Relaxed), 2);
}

#[test]
fn a_step_that_does_not_stop_is_given_up_and_its_worker_is_used_when_it_has_ended() {
    let open = Arc::new(AtomicBool::new(false));
    let (opened, begun) = (open.clone(), Arc::new(AtomicBool::new(false)));
    let has_begun = begun.clone();
    let mut options = CoordinatorOptions::default();
    options.cancel_timeout = Duration::from_millis(100);
    let register = move |registry: &mut StepRegistry| {
        add(registry);
        bad(registry);
        let deaf = move |_: &WorkerContext, (): ()| {
            begun.store(true, Ordering::Relaxed);
            while !open.load(Ordering::Relaxed) {
                std::thread::yield_now();
            }
            Ok(())
        };
        registry.step("deaf", deaf).unwrap();
    };
    let cluster = Cluster::with_options(2, register, options);
    let coordinator = &cluster.coordinator;
    let deaf = coordinator.schedule("deaf", ()).unwrap();
    eventually("it runs", || has_begun.load(Ordering::Relaxed));
    let bad = coordinator.schedule("bad", ()).unwrap();
    assert!(bad.fetch::<()>().is_err());
    failed(&coordinator.join().unwrap_err(), "bad");
    assert!(matches!(deaf.fetch::<()>(), Err(PsError::Cancelled)));
    assert!(coordinator.done().unwrap());
    // The other worker, and this one as well once its step has ended.
    let sum = coordinator.schedule("add", (1, 1)).unwrap();
    assert_eq!(sum.fetch::<i32>().unwrap(), 2);
    opened.store(true, Ordering::Relaxed);
    let all_connected = || {
        let statuses = coordinator.worker_statuses();
        statuses
            .iter()
            .all(|it| *it == distribute_ps::WorkerStatus::Connected)
    };
    eventually("both workers are back", all_connected);
}

#[test]
fn schedule_waits_while_the_queue_is_full_and_says_so_when_nothing_ends() {
    let open = Arc::new(AtomicBool::new(false));
    let mut options = CoordinatorOptions::default();
    options.max_queued = 2;
    options.schedule_timeout = Duration::from_millis(300);
    let cluster = Cluster::with_options(1, |registry| gated(registry, &open), options);
    let coordinator = &cluster.coordinator;
    let running = coordinator.schedule("gated", (0,)).unwrap();
    let mut values = vec![running];
    // One runs, or is about to; two wait.
    let error = loop {
        match coordinator.schedule("gated", (values.len() as i32,)) {
            Ok(value) => values.push(value),
            Err(error) => break error,
        }
    };
    assert!((2..=3).contains(&values.len()), "{}", values.len());
    let PsError::Deadline { op: "schedule", .. } = &error else {
        panic!("{error}");
    };
    assert!(error.to_string().contains("closures wait"), "{error}");
    let late = coordinator
        .join_timeout(Duration::from_millis(50))
        .unwrap_err();
    assert!(
        matches!(late, PsError::Deadline { op: "join", .. }),
        "{late}"
    );
    let slow = values[0]
        .fetch_timeout::<i32>(Duration::from_millis(10))
        .unwrap_err();
    assert!(
        matches!(slow, PsError::Deadline { op: "fetch", .. }),
        "{slow}"
    );
    // Nothing was cancelled by these.
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| coordinator.schedule("gated", (9,)).unwrap());
        open.store(true, Ordering::Relaxed);
        assert_eq!(waiting.join().unwrap().fetch::<i32>().unwrap(), 9);
    });
    coordinator.join_timeout(LIMIT).unwrap();
    let all: Vec<i32> = coordinator.fetch(&values).unwrap();
    assert_eq!(all, (0..values.len() as i32).collect::<Vec<_>>());
}

#[test]
fn several_threads_schedule_and_join() {
    let cluster = Cluster::new(3, add);
    let coordinator = &cluster.coordinator;
    std::thread::scope(|scope| {
        for thread in 0..4_i32 {
            scope.spawn(move || {
                for i in 0..50 {
                    let value = coordinator.schedule("add", (thread * 1000, i)).unwrap();
                    if i % 10 == 0 {
                        assert_eq!(value.fetch::<i32>().unwrap(), thread * 1000 + i);
                    }
                }
                coordinator.join().unwrap();
            });
        }
    });
    assert_eq!(coordinator.closures_ended(), 200);
}

#[test]
fn dropping_the_coordinator_cancels_and_finishing_it_ends_the_workers() {
    let open = Arc::new(AtomicBool::new(false));
    let Cluster {
        coordinator,
        workers,
    } = Cluster::new(1, |registry| gated(registry, &open));
    let values: Vec<RemoteValue> = (0..3)
        .map(|i| coordinator.schedule("gated", (i,)).unwrap())
        .collect();
    drop(coordinator);
    for value in &values {
        assert!(matches!(value.fetch::<i32>(), Err(PsError::Cancelled)));
    }
    drop(workers);
    let Cluster {
        coordinator,
        workers,
    } = Cluster::new(2, add);
    coordinator.finish().unwrap();
    for worker in workers {
        worker.end().unwrap();
    }
}
