//! What is refused, and what the messages say.

use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use distribute_core::collectives::control::security::{Security, Token};
use distribute_core::{Configuration, Error};
use distribute_ps::{
    ClusterCoordinator, CoordinatorOptions, PsError, StepRegistry, WorkerContext, WorkerOptions,
    WorkerServer,
};

use super::in_process::{Cluster, NO_SERVERS, Worker, failed};

fn add(registry: &mut StepRegistry) {
    registry
        .step("add", |_: &WorkerContext, (a, b): (i32, i32)| Ok(a + b))
        .unwrap();
}

fn registry() -> Arc<StepRegistry> {
    let mut registry = StepRegistry::new();
    add(&mut registry);
    Arc::new(registry)
}

fn quick() -> CoordinatorOptions {
    let mut options = CoordinatorOptions::default();
    options.connect_timeout = Duration::from_secs(2);
    options.worker_recovery_timeout = Duration::from_millis(500);
    options
}

#[test]
fn an_unregistered_step_is_refused_at_schedule() {
    let cluster = Cluster::new(1, add);
    let error = cluster.coordinator.schedule("sub", (1, 2)).unwrap_err();
    let PsError::Unregistered { name, known, .. } = &error else {
        panic!("{error}");
    };
    assert_eq!((name.as_str(), known.as_str()), ("sub", "add"));
    assert!(cluster.coordinator.done().unwrap());
}

#[test]
fn wrong_arguments_are_refused_at_schedule() {
    let cluster = Cluster::new(1, add);
    let coordinator = &cluster.coordinator;
    let wrong = [
        coordinator.schedule("add", ()).unwrap_err(),
        coordinator.schedule("add", (1,)).unwrap_err(),
        coordinator.schedule("add", (1, 2, 3)).unwrap_err(),
        coordinator.schedule("add", ("one", 2)).unwrap_err(),
        coordinator.schedule("add", 1).unwrap_err(),
    ];
    for error in wrong {
        let PsError::WrongArguments { step, expected, .. } = &error else {
            panic!("{error}");
        };
        assert_eq!((step.as_str(), expected.as_str()), ("add", "(i32, i32)"));
    }
    // Not the type of the step, but it fits.
    let sum = coordinator.schedule("add", (1_u8, 2_i64)).unwrap();
    assert_eq!(sum.fetch::<i32>().unwrap(), 3);
}

#[test]
fn a_remote_value_is_no_argument() {
    let cluster = Cluster::new(1, add);
    let value = cluster.coordinator.schedule("add", (1, 2)).unwrap();
    for error in [
        cluster
            .coordinator
            .schedule("add", (value.clone(), 2))
            .unwrap_err(),
        cluster
            .coordinator
            .schedule("add", vec![Some(value)])
            .unwrap_err(),
    ] {
        let PsError::RemoteValueArgument { step } = &error else {
            panic!("{error}");
        };
        assert_eq!(step, "add");
        let expected = "`RemoteValue` used as an input to scheduled function is not yet supported";
        assert!(error.to_string().contains(expected), "{error}");
    }
}

#[test]
fn names_are_registered_once_and_have_a_length() {
    let mut registry = StepRegistry::new();
    add(&mut registry);
    let error = registry
        .step("add", |_: &WorkerContext, (): ()| Ok(()))
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "a step `add` is registered already; choose another name"
    );
    for name in [String::new(), "x".repeat(257)] {
        let error = registry
            .step(name, |_: &WorkerContext, (): ()| Ok(()))
            .unwrap_err();
        assert!(error.to_string().contains("1 to 256 bytes"), "{error}");
    }
    registry
        .resource("data", |_: &WorkerContext| Ok(1))
        .unwrap();
    let error = registry.dataset("data", |_| Ok([Ok(1)])).unwrap_err();
    assert!(
        matches!(error, PsError::AlreadyRegistered { .. }),
        "{error}"
    );
}

#[test]
fn arguments_and_results_beyond_the_limit_are_errors() {
    let mut options = CoordinatorOptions::default();
    options.max_message_bytes = 1000;
    let register = |registry: &mut StepRegistry| {
        let step = |_: &WorkerContext, (text, copies): (String, usize)| Ok(text.repeat(copies));
        registry.step("repeat", step).unwrap();
    };
    let mut registry = StepRegistry::new();
    register(&mut registry);
    let registry = Arc::new(registry);
    let mut of_worker = WorkerOptions::default();
    of_worker.max_message_bytes = 1000;
    let worker = Worker::start_at("127.0.0.1:0", &registry, of_worker);
    let coordinator =
        ClusterCoordinator::connect(&[&worker.address], &NO_SERVERS, registry, options).unwrap();
    let long = "x".repeat(2000);
    let error = coordinator.schedule("repeat", (long, 1)).unwrap_err();
    assert!(error.to_string().contains("the limit is 1000"), "{error}");
    let value = coordinator.schedule("repeat", ("x", 2000)).unwrap();
    let error = value.fetch::<String>().unwrap_err();
    let cause = failed(&error, "repeat").to_string();
    assert!(cause.contains("the limit is 1000"), "{cause}");
    assert!(coordinator.join().is_err());
    let value = coordinator.schedule("repeat", ("ab", 3)).unwrap();
    assert_eq!(value.fetch::<String>().unwrap(), "ababab");
}

/// Neither is known to the other when it is started.
#[test]
fn workers_and_coordinators_with_other_limits_agree_on_the_smaller_one() {
    let register = |registry: &mut StepRegistry| {
        let step = |_: &WorkerContext, (text, copies): (String, usize)| Ok(text.repeat(copies));
        registry.step("repeat", step).unwrap();
        let panics = |_: &WorkerContext, (bytes,): (usize,)| -> distribute_ps::Result<()> {
            panic!("{}", "x".repeat(bytes))
        };
        registry.step("panic", panics).unwrap();
    };
    let large = 1 << 20;
    for (of_worker, of_coordinator) in [(1_000, large), (large, 1_000)] {
        let mut registry = StepRegistry::new();
        register(&mut registry);
        let registry = Arc::new(registry);
        let mut options = WorkerOptions::default();
        options.max_message_bytes = of_worker;
        let worker = Worker::start_at("127.0.0.1:0", &registry, options);
        let mut options = CoordinatorOptions::default();
        options.max_message_bytes = of_coordinator;
        let addresses = [&worker.address];
        let coordinator =
            ClusterCoordinator::connect(&addresses, &NO_SERVERS, registry, options).unwrap();
        if of_coordinator == large {
            let long = "x".repeat(500_000);
            let value = coordinator.schedule("repeat", (long, 1)).unwrap();
            let error = value.fetch::<String>().unwrap_err();
            let cause = failed(&error, "repeat").to_string();
            assert!(
                cause.contains("the worker takes 1000") && cause.contains("WorkerOptions"),
                "{cause}"
            );
            assert!(coordinator.join().is_err());
        }
        let value = coordinator.schedule("repeat", ("x", 500_000)).unwrap();
        let error = value.fetch::<String>().unwrap_err();
        let cause = failed(&error, "repeat").to_string();
        assert!(cause.contains("the limit is 1000"), "{cause}");
        assert!(coordinator.join().is_err());
        // An error is never too large.
        let value = coordinator.schedule("panic", (3_000_000_usize,)).unwrap();
        let cause = failed(&value.fetch::<()>().unwrap_err(), "panic");
        assert!(matches!(cause, PsError::Panicked { .. }), "{cause}");
        assert!(coordinator.join().is_err());
        let value = coordinator.schedule("repeat", ("ab", 3)).unwrap();
        assert_eq!(value.fetch::<String>().unwrap(), "ababab");
    }
}

#[test]
fn no_worker_and_none_that_answers() {
    let none: [&str; 0] = [];
    let error = ClusterCoordinator::connect(&none, &NO_SERVERS, registry(), quick()).unwrap_err();
    assert!(error.to_string().contains("at least one worker"), "{error}");
    // A port without a listener: it is bound, but the listener is gone.
    let free = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .to_string();
    let error = ClusterCoordinator::connect(&[&free], &NO_SERVERS, registry(), quick());
    let error = error.unwrap_err();
    let PsError::NoWorkers { workers, .. } = &error else {
        panic!("{error}");
    };
    assert!(
        workers.contains(&format!("worker 0 at {free}: ")),
        "{workers}"
    );
}

#[test]
fn work_without_any_worker_for_too_long_is_an_error() {
    let registry = registry();
    let worker = Worker::start(&registry);
    let addresses = [worker.address.clone()];
    let coordinator =
        ClusterCoordinator::connect(&addresses, &NO_SERVERS, registry, quick()).unwrap();
    drop(worker);
    let value = coordinator.schedule("add", (1, 1)).unwrap();
    let error = coordinator.join().unwrap_err();
    assert!(matches!(error, PsError::NoWorkers { .. }), "{error}");
    let own = value.fetch::<i32>().unwrap_err();
    assert!(matches!(own, PsError::NoWorkers { .. }), "{own}");
    assert!(coordinator.done().unwrap());
}

#[test]
fn a_worker_with_another_token_is_refused() {
    let secure = |secret: &str| Security::default().token(Token::new(secret).unwrap());
    let registry = registry();
    for (of_worker, of_coordinator) in [
        (secure("0123456789abcdef"), secure("0123456789abcdeX")),
        (secure("0123456789abcdef"), Security::default()),
        (Security::default(), secure("0123456789abcdef")),
    ] {
        let mut options = WorkerOptions::default();
        options.security = of_worker;
        let worker = Worker::start_at("127.0.0.1:0", &registry, options);
        let mut options = quick();
        options.security = of_coordinator;
        let addresses = [&worker.address];
        let error = ClusterCoordinator::connect(&addresses, &NO_SERVERS, registry.clone(), options)
            .unwrap_err();
        let PsError::Refused { address, reason } = &error else {
            panic!("{error}");
        };
        assert_eq!(address, &worker.address);
        assert!(
            reason.contains("worker 0") && reason.contains("token"),
            "{reason}"
        );
        assert!(!error.to_string().contains("0123456789"), "{error}");
    }
}

#[test]
fn a_worker_with_other_steps_is_refused_by_name() {
    let mut other = StepRegistry::new();
    other
        .step("sub", |_: &WorkerContext, (): ()| Ok(()))
        .unwrap();
    let worker = Worker::start(&Arc::new(other));
    let addresses = [&worker.address];
    let error =
        ClusterCoordinator::connect(&addresses, &NO_SERVERS, registry(), quick()).unwrap_err();
    assert!(matches!(error, PsError::Refused { .. }), "{error}");
    let text = error.to_string();
    assert!(
        text.contains("another program: it has no step `add`"),
        "{text}"
    );
}

/// What such an error names.
fn different(error: &PsError) -> String {
    let PsError::Core(core) = error else {
        panic!("{error}");
    };
    let is_it = matches!(&**core, Error::DifferentConfigurations { worker: 1, .. });
    assert!(is_it, "{core}");
    core.to_string()
}

#[test]
fn a_worker_with_another_configuration_ends_with_the_coordinator() {
    let registered = |batch: usize| {
        let mut registry = StepRegistry::new();
        add(&mut registry);
        registry.configuration(&Configuration::new().with("--batch-size", Some(batch)));
        Arc::new(registry)
    };
    let same = Worker::start(&registered(64));
    let other = Worker::start(&registered(2));
    let addresses = [&same.address, &other.address];
    let connected = ClusterCoordinator::connect(&addresses, &NO_SERVERS, registered(64), quick());
    let error = match connected {
        Err(error) => error,
        // The other worker came first: the next call says so.
        Ok(coordinator) => loop {
            if let Err(error) = coordinator.join() {
                break error;
            }
        },
    };
    let said = "--batch-size is 2 on worker 1 and 64 on the chief";
    assert!(different(&error).contains(said), "{error}");
    let ended = other.end().unwrap_err();
    assert!(different(&ended).contains(said), "{ended}");
}

#[test]
fn a_worker_serves_one_coordinator_and_then_the_next() {
    let registry = registry();
    let worker = Worker::start(&registry);
    let connect = |options| {
        ClusterCoordinator::connect(&[&worker.address], &NO_SERVERS, registry.clone(), options)
    };
    let first = connect(quick()).unwrap();
    let error = connect(quick()).unwrap_err();
    let PsError::NoWorkers { workers, .. } = &error else {
        panic!("{error}");
    };
    assert!(
        workers.contains("works for another coordinator"),
        "{workers}"
    );
    assert_eq!(
        first
            .schedule("add", (1, 1))
            .unwrap()
            .fetch::<i32>()
            .unwrap(),
        2
    );
    drop(first);
    let second = connect(CoordinatorOptions::default()).unwrap();
    assert_eq!(
        second
            .schedule("add", (2, 1))
            .unwrap()
            .fetch::<i32>()
            .unwrap(),
        3
    );
}

#[test]
fn a_worker_waits_with_a_limit_and_not_on_an_open_network_without_token() {
    let mut options = WorkerOptions::default();
    options.coordinator_timeout = Duration::from_millis(50);
    let server = WorkerServer::bind("127.0.0.1:0", registry(), options).unwrap();
    let error = server.serve().unwrap_err();
    assert!(matches!(error, PsError::NoCoordinator { .. }), "{error}");
    assert!(error.to_string().contains("start the chief"), "{error}");
    let error = WorkerServer::bind("0.0.0.0:0", registry(), WorkerOptions::default());
    let text = error.err().unwrap().to_string();
    assert!(text.contains("token and TLS"), "{text}");
    let error = WorkerServer::bind("nowhere", registry(), WorkerOptions::default());
    assert!(error.err().unwrap().to_string().contains("host:port"));
}
