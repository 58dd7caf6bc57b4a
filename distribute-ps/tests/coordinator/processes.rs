//! Workers as real processes, which are killed and stopped.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use distribute_ps::{
    ClusterCoordinator, CoordinatorOptions, PsError, RemoteValue, Result, StepRegistry,
    WorkerContext, WorkerOptions, WorkerServer, WorkerStatus,
};
use rustix::process::{Pid, Signal, kill_process};

use crate::in_process::{LIMIT, NO_SERVERS, eventually};

/// The variable by which a process knows that it is a worker, and where it listens.
const ADDRESS: &str = "DISTRIBUTE_TEST_WORKER_ADDRESS";

/// Not a test: the process of a worker, which another test has started.
#[test]
fn a_worker_of_another_test() {
    let Ok(address) = std::env::var(ADDRESS) else {
        return;
    };
    let mut options = WorkerOptions::default();
    options.coordinator_timeout = LIMIT;
    let server = WorkerServer::bind(&address, Arc::new(registry()), options).unwrap();
    println!("listens at {}", server.address());
    server.serve().unwrap();
}

/// Busy for a while, so that a fault hits it in the middle.
fn work(milliseconds: u64) {
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_millis(milliseconds) {
        std::hint::spin_loop();
    }
}

/// Tells the counter of one update and waits for its answer.
fn count(worker: &WorkerContext, counter: &str) -> Result<()> {
    let update = worker.next_update()?;
    let mut stream = TcpStream::connect(counter).map_err(PsError::step)?;
    let line = format!("{} {} {}\n", update.run, update.closure, update.sequence);
    stream.write_all(line.as_bytes()).map_err(PsError::step)?;
    let mut answer = String::new();
    let mut reader = BufReader::new(stream);
    reader.read_line(&mut answer).map_err(PsError::step)?;
    Ok(())
}

fn registry() -> StepRegistry {
    let mut registry = StepRegistry::new();
    let step = |worker: &WorkerContext, (counter, number): (String, u64)| {
        work(3);
        count(worker, &counter)?;
        work(3);
        count(worker, &counter)?;
        work(3);
        Ok((number, worker.worker_index()))
    };
    registry.step("count", step).unwrap();
    let abort = |_: &WorkerContext, (): ()| -> Result<()> { std::process::abort() };
    registry.step("abort", abort).unwrap();
    registry
}

/// What holds a variable in these tests: it applies each update once, as a parameter server does,
/// and counts how often each arrived.
#[derive(Clone)]
struct Counter {
    address: String,
    arrived: Arc<Mutex<BTreeMap<(u64, u32), usize>>>,
}

impl Counter {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let arrived: Arc<Mutex<BTreeMap<(u64, u32), usize>>> = Arc::default();
        let counts = arrived.clone();
        // It ends with the test's process.
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(std::result::Result::ok) {
                let mut line = String::new();
                let mut reader = BufReader::new(stream);
                let read = reader.read_line(&mut line).unwrap_or(0);
                let mut words = line.split_whitespace().skip(1);
                let mut number = || words.next().and_then(|word| word.parse::<u64>().ok());
                if let (1.., Some(closure), Some(sequence)) = (read, number(), number()) {
                    let key = (closure, sequence as u32);
                    *counts.lock().unwrap().entry(key).or_default() += 1;
                    let _ = reader.get_mut().write_all(b"ok\n");
                }
            }
        });
        Self { address, arrived }
    }

    /// How many updates were applied, and how many arrived again.
    fn applied(&self) -> (usize, usize) {
        let arrived = self.arrived.lock().unwrap();
        (arrived.len(), arrived.values().map(|count| count - 1).sum())
    }
}

/// A worker's process; killed when it is dropped.
struct Process {
    child: Child,
    address: String,
}

impl Process {
    fn start(address: &str) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([
                "processes::a_worker_of_another_test",
                "--exact",
                "--nocapture",
            ])
            .env(ADDRESS, address)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut said = lines.map_while(std::result::Result::ok);
        let address = said
            .find_map(|line| line.split_once("listens at ").map(|(_, it)| it.to_string()))
            .expect("the worker's process has ended");
        // Nobody reads any more; what it still prints is little.
        Self { child, address }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Killed and started again at the same address.
    fn replace(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        *self = Self::start(&self.address.clone());
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn connect(workers: &[Process], options: CoordinatorOptions) -> ClusterCoordinator {
    let addresses: Vec<&str> = workers.iter().map(|it| it.address.as_str()).collect();
    let registry = Arc::new(registry());
    ClusterCoordinator::connect(&addresses, &NO_SERVERS, registry, options).unwrap()
}

fn schedule(coordinator: &ClusterCoordinator, counter: &Counter, steps: u64) -> Vec<RemoteValue> {
    let address = &counter.address;
    let one = |number| coordinator.schedule("count", (address, number)).unwrap();
    (0..steps).map(one).collect()
}

/// The short and the long form: `DISTRIBUTE_PS_KILLS=100`.
fn kills() -> u64 {
    let text = std::env::var("DISTRIBUTE_PS_KILLS");
    text.ok().and_then(|text| text.parse().ok()).unwrap_or(10)
}

#[test]
fn every_scheduled_step_is_applied_once_when_a_worker_is_killed_ten_times() {
    let counter = Counter::start();
    let mut workers: Vec<Process> = (0..2).map(|_| Process::start("127.0.0.1:0")).collect();
    let coordinator = connect(&workers, CoordinatorOptions::default());
    let kills = kills();
    let steps = 40 * kills;
    let values = std::thread::scope(|scope| {
        let scheduling = scope.spawn(|| schedule(&coordinator, &counter, steps));
        for kill in 0..kills {
            // A kill after some more closures, at another moment of a step each time.
            let (from, more) = (coordinator.closures_ended(), 10);
            eventually("closures end", || {
                coordinator.closures_ended() >= from + more
            });
            std::thread::sleep(Duration::from_millis(kill * 3 % 10));
            workers[usize::try_from(kill).unwrap() % 2].replace();
        }
        scheduling.join().unwrap()
    });
    coordinator.join_timeout(LIMIT).unwrap();
    let results: Vec<(u64, usize)> = coordinator.fetch(&values).unwrap();
    for (number, (result, _)) in results.iter().enumerate() {
        assert_eq!(*result, number as u64);
    }
    let (applied, again) = counter.applied();
    assert_eq!(
        applied as u64,
        2 * steps,
        "each update once, {again} arrived again"
    );
    // A killed worker had at most one closure.
    assert!(
        again as u64 <= 2 * kills,
        "{again} repetitions for {kills} kills"
    );
}

#[test]
fn a_stopped_worker_does_not_hold_up_the_others_and_is_used_when_it_goes_on() {
    let counter = Counter::start();
    let workers: Vec<Process> = (0..2).map(|_| Process::start("127.0.0.1:0")).collect();
    let coordinator = connect(&workers, CoordinatorOptions::default());
    let values = schedule(&coordinator, &counter, 100);
    let (from, more) = (coordinator.closures_ended(), 5);
    eventually("closures end", || {
        coordinator.closures_ended() >= from + more
    });
    workers[0].signal(Signal::STOP);
    let begun = Instant::now();
    coordinator.join_timeout(LIMIT).unwrap();
    let took = begun.elapsed();
    assert!(took < Duration::from_secs(8), "join took {took:?}");
    let _: Vec<(u64, usize)> = coordinator.fetch(&values).unwrap();
    assert_eq!(counter.applied().0, 200);
    let status = &coordinator.worker_statuses()[0];
    assert!(matches!(status, WorkerStatus::Absent(_)), "{status:?}");
    workers[0].signal(Signal::CONT);
    let is_back = || coordinator.worker_statuses()[0] == WorkerStatus::Connected;
    eventually("the worker is used again", is_back);
    schedule(&coordinator, &counter, 20);
    coordinator.join_timeout(LIMIT).unwrap();
    assert_eq!(counter.applied().0, 240);
}

#[test]
fn a_step_that_ends_every_process_fails_after_so_many() {
    let worker = Process::start("127.0.0.1:0");
    let address = worker.address.clone();
    let workers = Mutex::new([worker]);
    let mut options = CoordinatorOptions::default();
    options.max_attempts = 2;
    let coordinator = connect(&*workers.lock().unwrap(), options);
    let value = coordinator.schedule("abort", ()).unwrap();
    let has_ended = || {
        workers.lock().unwrap()[0]
            .child
            .try_wait()
            .unwrap()
            .is_some()
    };
    eventually("the worker aborts", has_ended);
    workers.lock().unwrap()[0] = Process::start(&address);
    let error = value.fetch::<()>().unwrap_err();
    let PsError::LostTooOften { step, attempts, .. } = &error else {
        panic!("{error}");
    };
    assert_eq!((step.as_str(), *attempts), ("abort", 2));
    let error = coordinator.join().unwrap_err();
    assert!(matches!(error, PsError::LostTooOften { .. }), "{error}");
    assert!(coordinator.done().unwrap());
}
