//! Workers and servers as real processes, which are killed and stopped.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use burn::nn::Linear;
use distribute_core::{DistributedVariable, Mirrored, StrategyExt, TrainState, VariableOptions};
use distribute_fit::{restore, snapshot};
use distribute_ps::{
    ClusterCoordinator, CoordinatorOptions, ParameterServer, PsError, RemoteValue, Result,
    ServerOptions, SharedState, SharedValue, Staleness, StalenessPolicy, StepRegistry,
    WorkerContext, WorkerOptions, WorkerServer, WorkerStatus,
};
use rustix::process::{Pid, Signal, kill_process};

use super::falling::{fall, falling};
use super::in_process::{LIMIT, NO_SERVERS, eventually};
use crate::stopwatch::Stopwatch;

/// The variables by which a process knows what it is, and where it listens.
const WORKER: &str = "DISTRIBUTE_TEST_WORKER_ADDRESS";
const SERVER: &str = "DISTRIBUTE_TEST_SERVER_ADDRESS";

/// Not a test: the process of a worker, which another test has started.
#[test]
fn a_worker_of_another_test() {
    let Ok(address) = std::env::var(WORKER) else {
        return;
    };
    let mut options = WorkerOptions::default();
    options.coordinator_timeout = LIMIT;
    let registry = Arc::new(Registered::new().registry);
    let server = WorkerServer::bind(&address, registry, options).unwrap();
    println!("listens at {}", server.address());
    server.serve().unwrap();
}

/// Not a test: the process of a parameter server, which another test has started.
#[test]
fn a_server_of_another_test() {
    let Ok(address) = std::env::var(SERVER) else {
        return;
    };
    let server = ParameterServer::bind(&address, ServerOptions::default()).unwrap();
    println!("listens at {}", server.address());
    server.wait(Some(LIMIT)).unwrap();
}

/// Busy for a while, so that a fault hits it in the middle.
fn work(milliseconds: u64) {
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_millis(milliseconds) {
        std::hint::spin_loop();
    }
}

/// What all processes register.
struct Registered {
    registry: StepRegistry,
    /// Counts the steps.
    counter: SharedValue<DistributedVariable<i64>>,
    /// Its weight falls by 1 with every update.
    state: SharedState<TrainState<Linear>>,
}

impl Registered {
    fn new() -> Self {
        let mut registry = StepRegistry::new();
        let counter = registry
            .shared("counter", |strategy| {
                Ok(strategy.variable(0_i64, VariableOptions::default())?)
            })
            .unwrap();
        let state = registry.state("model", falling).unwrap();
        let (of_step, model) = (counter.clone(), state.clone());
        let step = move |worker: &WorkerContext, number: u64| {
            work(3);
            let counter = worker.shared(&of_step)?;
            let strategy = worker.strategy()?;
            strategy.run((), |ctx, ()| counter.assign_add(ctx, 1_i64))?;
            work(3);
            worker.run(&model, (), |ctx, (state, ())| {
                fall(ctx, state)?;
                Ok(0.0_f32)
            })?;
            work(3);
            Ok((number, worker.worker_index()))
        };
        registry.step("train", step).unwrap();
        let abort = |_: &WorkerContext, (): ()| -> Result<()> { std::process::abort() };
        registry.step("abort", abort).unwrap();
        Self {
            registry,
            counter,
            state,
        }
    }
}

/// A coordinator and how often its steps were applied.
struct Job {
    coordinator: ClusterCoordinator,
    counter: SharedValue<DistributedVariable<i64>>,
    state: SharedState<TrainState<Linear>>,
}

impl Job {
    fn connect(workers: &[Process], servers: &[&str]) -> Self {
        Self::with_options(workers, servers, CoordinatorOptions::default())
    }

    fn with_options(workers: &[Process], servers: &[&str], options: CoordinatorOptions) -> Self {
        let addresses: Vec<&str> = workers.iter().map(|it| it.address.as_str()).collect();
        let Registered {
            registry,
            counter,
            state,
        } = Registered::new();
        let registry = Arc::new(registry);
        let coordinator =
            ClusterCoordinator::connect(&addresses, servers, registry, options).unwrap();
        Self {
            coordinator,
            counter,
            state,
        }
    }

    fn schedule(&self, steps: u64) -> Vec<RemoteValue> {
        let one = |number| self.coordinator.schedule("train", number).unwrap();
        (0..steps).map(one).collect()
    }

    /// The counter, and minus the weight.
    fn applied(&self) -> (i64, f32) {
        let strategy = self.coordinator.strategy().unwrap();
        let read = |counter: &mut DistributedVariable<i64>| counter.read(strategy);
        let counter = self.coordinator.with(&self.counter, read).unwrap();
        let weight = |state: &mut Mirrored<TrainState<Linear>>| {
            let read = strategy.run(state, |_, state| Ok(state.model.weight.val().into_data()))?;
            Ok(read.into_values().remove(0))
        };
        let weight = self.coordinator.with(&self.state, weight).unwrap();
        let weight = weight.as_slice::<f32>().unwrap()[0];
        (counter, -weight)
    }

    /// Waits until this many more closures have ended.
    fn await_closures(&self, more: u64) {
        let from = self.coordinator.closures_ended();
        eventually("closures end", || {
            self.coordinator.closures_ended() >= from + more
        });
    }
}

fn parameter_server() -> ParameterServer {
    ParameterServer::bind("127.0.0.1:0", ServerOptions::default()).unwrap()
}

/// A worker's or server's process; killed when it is dropped.
pub struct Process {
    child: Child,
    pub address: String,
    variable: &'static str,
    test: &'static str,
}

impl Process {
    fn worker(address: &str) -> Self {
        Self::start(
            WORKER,
            "coordinator::processes::a_worker_of_another_test",
            address,
        )
    }

    fn server() -> Self {
        Self::server_at("127.0.0.1:0")
    }

    fn server_at(address: &str) -> Self {
        Self::start(
            SERVER,
            "coordinator::processes::a_server_of_another_test",
            address,
        )
    }

    /// The process of a test that prints where it listens. The variable has the address.
    pub fn start(variable: &'static str, test: &'static str, address: &str) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([test, "--exact", "--nocapture"])
            .env(variable, address)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut said = lines.map_while(std::result::Result::ok);
        let address = said
            .find_map(|line| line.split_once("listens at ").map(|(_, it)| it.to_string()))
            .expect("the process has ended");
        // The output is no longer read; what it still prints is little.
        Self {
            child,
            address,
            variable,
            test,
        }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Killed and started again at the same address.
    pub fn replace(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        *self = Self::start(self.variable, self.test, &self.address.clone());
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The short and the long form: `DISTRIBUTE_PS_KILLS=100`.
fn kills() -> u64 {
    let text = std::env::var("DISTRIBUTE_PS_KILLS");
    text.ok().and_then(|text| text.parse().ok()).unwrap_or(10)
}

#[test]
fn every_scheduled_step_is_applied_once_when_a_worker_is_killed_ten_times() {
    let server = parameter_server();
    let mut workers: Vec<Process> = (0..2).map(|_| Process::worker("127.0.0.1:0")).collect();
    let job = Job::connect(&workers, &[&server.address().to_string()]);
    let kills = kills();
    let steps = 40 * kills;
    let values = std::thread::scope(|scope| {
        let scheduling = scope.spawn(|| job.schedule(steps));
        for kill in 0..kills {
            // A kill after some more closures, at another moment of a step each time.
            job.await_closures(10);
            std::thread::sleep(Duration::from_millis(kill * 3 % 10));
            workers[usize::try_from(kill).unwrap() % 2].replace();
        }
        scheduling.join().unwrap()
    });
    job.coordinator.join_timeout(LIMIT).unwrap();
    let results: Vec<(u64, usize)> = job.coordinator.fetch(&values).unwrap();
    for (number, (result, _)) in results.iter().enumerate() {
        assert_eq!(*result, number as u64);
    }
    assert_eq!(job.applied(), (steps as i64, steps as f32));
}

#[test]
fn a_stopped_worker_does_not_hold_up_the_others_and_is_used_when_it_goes_on() {
    let mut begun = Stopwatch::start();
    let server = parameter_server();
    let workers: Vec<Process> = (0..2).map(|_| Process::worker("127.0.0.1:0")).collect();
    let job = Job::connect(&workers, &[&server.address().to_string()]);
    let values = job.schedule(100);
    job.await_closures(5);
    workers[0].signal(Signal::STOP);
    begun.restart();
    job.coordinator.join_timeout(LIMIT).unwrap();
    let took = begun.elapsed();
    assert!(took < Duration::from_secs(10), "join took {took:?}");
    let _: Vec<(u64, usize)> = job.coordinator.fetch(&values).unwrap();
    assert_eq!(job.applied(), (100, 100.0));
    let status = &job.coordinator.worker_statuses()[0];
    assert!(matches!(status, WorkerStatus::Absent(_)), "{status:?}");
    workers[0].signal(Signal::CONT);
    let is_back = || job.coordinator.worker_statuses()[0] == WorkerStatus::Connected;
    eventually("the worker is used again", is_back);
    job.schedule(20);
    job.coordinator.join_timeout(LIMIT).unwrap();
    assert_eq!(job.applied(), (120, 120.0));
}

#[test]
fn the_end_of_the_job_does_not_wait_long_for_workers_that_are_stopped() {
    let mut begun = Stopwatch::start();
    let server = parameter_server();
    let mut workers: Vec<Process> = (0..3).map(|_| Process::worker("127.0.0.1:0")).collect();
    let job = Job::connect(&workers, &[&server.address().to_string()]);
    job.schedule(60);
    job.await_closures(10);
    // One is not known to be lost when the job ends, one is.
    workers[0].signal(Signal::STOP);
    let is_lost = || job.coordinator.worker_statuses()[0] != WorkerStatus::Connected;
    eventually("the worker is lost", is_lost);
    workers[1].signal(Signal::STOP);
    begun.restart();
    job.coordinator.finish().unwrap();
    let took = begun.elapsed();
    assert!(took < Duration::from_secs(10), "{took:?}");
    // The one that was not stopped has heard of it.
    eventually("the third worker ends", || {
        workers[2].child.try_wait().unwrap().is_some()
    });
    assert!(server.wait(Some(Duration::ZERO)).unwrap());
}

#[test]
fn the_bound_on_staleness_outlives_the_workers_that_others_wait_for() {
    let server = parameter_server();
    let mut workers: Vec<Process> = (0..3).map(|_| Process::worker("127.0.0.1:0")).collect();
    let mut options = CoordinatorOptions::default();
    options.run.staleness = Some(Staleness {
        bound: 0,
        policy: StalenessPolicy::Wait,
    });
    let job = Job::with_options(&workers, &[&server.address().to_string()], options);
    let values = std::thread::scope(|scope| {
        let scheduling = scope.spawn(|| job.schedule(150));
        for kill in 0..4 {
            job.await_closures(10);
            std::thread::sleep(Duration::from_millis(kill * 3 % 10));
            workers[usize::try_from(kill).unwrap() % 3].replace();
        }
        scheduling.join().unwrap()
    });
    job.coordinator.join_timeout(LIMIT).unwrap();
    let _: Vec<(u64, usize)> = job.coordinator.fetch(&values).unwrap();
    assert_eq!(job.applied(), (150, 150.0));
}

/// From the fault to the error, at default settings.
const NOTICED_WITHIN: Duration = Duration::from_secs(5);

fn a_lost_server_surfaces_at_join(fault: impl FnOnce(&mut Process)) {
    let mut begun = Stopwatch::start();
    let mut server = Process::server();
    let workers: Vec<Process> = (0..2).map(|_| Process::worker("127.0.0.1:0")).collect();
    let job = Job::connect(&workers, &[&server.address]);
    job.schedule(500);
    job.await_closures(5);
    begun.restart();
    fault(&mut server);
    let error = job.coordinator.join().unwrap_err();
    let took = begun.elapsed();
    let PsError::Unavailable {
        server: 0, address, ..
    } = error.root_cause()
    else {
        panic!("{error}");
    };
    assert_eq!(address, &server.address);
    assert!(took < NOTICED_WITHIN, "{took:?}: {error}");
    // Nothing runs any more.
    begun.restart();
    while job.coordinator.done().is_err() {
        assert!(begun.elapsed() < LIMIT);
    }
}

#[test]
fn a_killed_server_is_unavailable_at_join() {
    a_lost_server_surfaces_at_join(|server| server.child.kill().unwrap());
}

/// The workers stay; the coordinator is another one in the same process.
#[test]
fn training_resumes_from_the_last_checkpoint_when_a_killed_server_is_back() {
    let mut begun = Stopwatch::start();
    let mut server = Process::server();
    let workers: Vec<Process> = (0..2).map(|_| Process::worker("127.0.0.1:0")).collect();
    let job = Job::connect(&workers, &[&server.address]);
    job.schedule(30);
    job.coordinator.join().unwrap();
    let save = |state: &mut Mirrored<TrainState<Linear>>| snapshot(state.primary().unwrap());
    let saved = job.coordinator.with(&job.state, save).unwrap();
    assert_eq!(saved.metadata.step, 30);
    job.schedule(500);
    job.await_closures(20);
    begun.restart();
    server.child.kill().unwrap();
    server.child.wait().unwrap();
    let error = job.coordinator.join().unwrap_err();
    assert!(begun.elapsed() < NOTICED_WITHIN, "{:?}", begun.elapsed());
    assert!(
        matches!(error.root_cause(), PsError::Unavailable { .. }),
        "{error}"
    );
    drop(job);
    server = Process::server_at(&server.address.clone());
    let job = Job::connect(&workers, &[&server.address]);
    let put_back = |state: &mut Mirrored<TrainState<Linear>>| restore(state, &saved);
    job.coordinator.with(&job.state, put_back).unwrap();
    job.schedule(20);
    job.coordinator.join_timeout(LIMIT).unwrap();
    // The counter is not in the checkpoint.
    assert_eq!(job.applied(), (20, 50.0));
    let saved = job.coordinator.with(&job.state, save).unwrap();
    assert_eq!(saved.metadata.step, 50);
}

#[test]
fn a_stopped_server_is_unavailable_at_join() {
    a_lost_server_surfaces_at_join(|server| server.signal(Signal::STOP));
}

#[test]
fn a_step_that_ends_every_process_fails_after_so_many() {
    let mut worker = Process::worker("127.0.0.1:0");
    let mut options = CoordinatorOptions::default();
    options.max_attempts = 2;
    let registry = Arc::new(Registered::new().registry);
    let addresses = [worker.address.clone()];
    let coordinator =
        ClusterCoordinator::connect(&addresses, &NO_SERVERS, registry, options).unwrap();
    let value = coordinator.schedule("abort", ()).unwrap();
    eventually("the worker aborts", || {
        worker.child.try_wait().unwrap().is_some()
    });
    worker.replace();
    let error = value.fetch::<()>().unwrap_err();
    let PsError::LostTooOften { step, attempts, .. } = &error else {
        panic!("{error}");
    };
    assert_eq!((step.as_str(), *attempts), ("abort", 2));
    let error = coordinator.join().unwrap_err();
    assert!(matches!(error, PsError::LostTooOften { .. }), "{error}");
    assert!(coordinator.done().unwrap());
}
