//! Whole programs as processes whose chief is killed, comes back, or never comes.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use distribute_core::{StrategyExt, VariableOptions};
use distribute_ps::{
    ClusterCoordinator, Program, Result, ServerOptions, WorkerContext, WorkerOptions,
};
use rustix::process::{Pid, Signal, kill_process};

use super::in_process::LIMIT;
use crate::stopwatch::Stopwatch;

/// Set in the processes that these tests start: how long they wait for a chief, in milliseconds,
/// and how many steps the chief runs.
const FIRST: &str = "DISTRIBUTE_TEST_COORDINATOR_TIMEOUT";
const ORPHAN: &str = "DISTRIBUTE_TEST_ORPHAN_TIMEOUT";
const STEPS: &str = "DISTRIBUTE_TEST_STEPS";

fn milliseconds(variable: &str) -> Option<Duration> {
    let text = std::env::var(variable).ok()?;
    text.parse().ok().map(Duration::from_millis)
}

/// Not a test: a task of a cluster, which another test has started.
#[test]
fn a_task_of_another_test() {
    let (Some(first), Some(orphan)) = (milliseconds(FIRST), milliseconds(ORPHAN)) else {
        return;
    };
    match task(first, orphan) {
        Ok(()) => println!("ended well"),
        Err(error) => println!("ended with: {error}"),
    }
}

fn task(first: Duration, orphan: Duration) -> Result<()> {
    let mut program = Program::new();
    let (mut of_worker, mut of_server) = (WorkerOptions::default(), ServerOptions::default());
    (of_worker.coordinator_timeout, of_worker.orphan_timeout) = (first, orphan);
    (of_server.coordinator_timeout, of_server.orphan_timeout) = (first, orphan);
    program.worker_options(of_worker).server_options(of_server);
    let counter = program.shared("counter", |strategy| {
        Ok(strategy.variable(0_i64, VariableOptions::default())?)
    });
    let of_step = counter.clone();
    program.step("count", move |worker: &WorkerContext, (): ()| {
        let counter = worker.shared(&of_step)?;
        let strategy = worker.strategy()?;
        strategy.run((), |ctx, ()| counter.assign_add(ctx, 1_i64))?;
        Ok(())
    });
    program.step("who", |worker: &WorkerContext, (): ()| {
        Ok(worker.worker_index())
    });
    let steps: u64 = std::env::var(STEPS)
        .unwrap_or_default()
        .parse()
        .unwrap_or(0);
    program.run(|coordinator: &ClusterCoordinator| {
        for step in 0..steps {
            coordinator.schedule("count", ())?;
            if step == 20 {
                coordinator.join()?;
                both_are_there(coordinator)?;
                println!("trains");
            }
        }
        coordinator.join()?;
        let strategy = coordinator.strategy()?;
        let count = coordinator.with(&counter, |counter| counter.read(strategy))?;
        println!("counted {count}");
        Ok(())
    })
}

/// Waits until both workers have run a closure: one that starts slowly would wait for a first
/// chief, and not for one that is gone.
fn both_are_there(coordinator: &ClusterCoordinator) -> Result<()> {
    let mut seen = BTreeSet::new();
    while seen.len() < 2 {
        let asked: Vec<_> = (0..8)
            .map(|_| coordinator.schedule("who", ()))
            .collect::<Result<_>>()?;
        for value in asked {
            seen.insert(value.fetch::<usize>()?);
        }
    }
    Ok(())
}

/// One chief, two workers and two servers, at ports that are free.
struct Ports {
    cluster: String,
    chief: String,
}

impl Ports {
    fn new() -> Self {
        let sockets: Vec<TcpListener> = (0..5)
            .map(|_| TcpListener::bind("127.0.0.1:0").unwrap())
            .collect();
        let addresses: Vec<String> = sockets
            .iter()
            .map(|socket| socket.local_addr().unwrap().to_string())
            .collect();
        let [chief, one, two, three, four] = &addresses[..] else {
            panic!("five ports");
        };
        Self {
            cluster: format!(
                r#"{{"chief": ["{chief}"], "worker": ["{one}", "{two}"],
                     "ps": ["{three}", "{four}"]}}"#
            ),
            chief: chief.clone(),
        }
    }

    fn start(&self, role: &str, index: usize, first: u64, orphan: u64, steps: u64) -> Task {
        let task = format!(r#""task": {{"type": "{role}", "index": {index}}}"#);
        let config = format!(r#"{{"cluster": {}, {task}}}"#, self.cluster);
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([
                "coordinator::orphans::a_task_of_another_test",
                "--exact",
                "--nocapture",
            ])
            .env("TF_CONFIG", config)
            .env(FIRST, first.to_string())
            .env(ORPHAN, orphan.to_string())
            .env(STEPS, steps.to_string())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let (sender, said) = channel();
        // Ends with the process.
        std::thread::spawn(move || {
            for line in lines.map_while(std::result::Result::ok) {
                let _ = sender.send(line);
            }
        });
        Task { child, said }
    }

    fn others(&self, first: u64, orphan: u64) -> Vec<Task> {
        let roles = [("worker", 0), ("worker", 1), ("ps", 0), ("ps", 1)];
        roles
            .into_iter()
            .map(|(role, index)| self.start(role, index, first, orphan, 0))
            .collect()
    }
}

/// A process; killed when it is dropped.
struct Task {
    child: Child,
    said: Receiver<String>,
}

impl Task {
    /// What follows a mark in a line that it prints, which must come.
    fn hears(&self, mark: &str) -> String {
        let begun = Instant::now();
        loop {
            let left = LIMIT.saturating_sub(begun.elapsed());
            let line = self.said.recv_timeout(left).expect(mark);
            if line.contains("ended with") && !line.contains(mark) {
                panic!("{line}");
            }
            if let Some((_, rest)) = line.split_once(mark) {
                return rest.trim().to_string();
            }
        }
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn workers_and_servers_end_by_themselves_when_their_chief_was_killed() {
    let mut watch = Stopwatch::start();
    let ports = Ports::new();
    let others = ports.others(60_000, 1_500);
    let mut chief = ports.start("chief", 0, 0, 0, 1_000_000);
    chief.hears("trains");
    chief.child.kill().unwrap();
    let begun = Instant::now();
    watch.restart();
    for (task, name) in others
        .iter()
        .zip(["worker 0", "worker 1", "server 0", "server 1"])
    {
        let error = task.hears("ended with:");
        let named = format!("the chief at {}", ports.chief);
        for part in [
            name,
            &named,
            "has been gone",
            "orphan_timeout",
            "checkpoint",
        ] {
            assert!(error.contains(part), "{error}");
        }
    }
    let took = begun.elapsed();
    assert!(took > Duration::from_millis(1_400), "{took:?}");
    let took = watch.elapsed();
    assert!(took < Duration::from_secs(10), "{took:?}");
}

#[test]
fn a_chief_that_was_killed_and_started_again_finds_workers_and_servers_and_trains() {
    let ports = Ports::new();
    let others = ports.others(60_000, 30_000);
    for _ in 0..2 {
        let mut chief = ports.start("chief", 0, 0, 0, 1_000_000);
        chief.hears("trains");
        chief.child.kill().unwrap();
        chief.child.wait().unwrap();
    }
    // The servers begin anew: of the steps before nothing is left.
    let chief = ports.start("chief", 0, 0, 0, 50);
    assert_eq!(chief.hears("counted"), "50");
    chief.hears("ended well");
    for task in &others {
        task.hears("ended well");
    }
}

/// Longer than it takes to be given up by workers and servers.
#[test]
fn a_chief_that_was_stopped_for_a_while_goes_on() {
    let ports = Ports::new();
    let others = ports.others(60_000, 60_000);
    let chief = ports.start("chief", 0, 0, 0, 1_500);
    chief.hears("trains");
    let signal = |signal| kill_process(Pid::from_child(&chief.child), signal).unwrap();
    signal(Signal::STOP);
    std::thread::sleep(Duration::from_secs(6));
    signal(Signal::CONT);
    assert_eq!(chief.hears("counted"), "1500");
    chief.hears("ended well");
    for task in &others {
        task.hears("ended well");
    }
}

#[test]
fn workers_and_servers_do_not_wait_for_ever_for_a_chief_that_never_comes() {
    let ports = Ports::new();
    let begun = Stopwatch::start();
    for task in ports.others(1_000, 60_000) {
        let error = task.hears("ended with:");
        let expected = format!("start the chief at {}", ports.chief);
        for part in [
            "no coordinator has come within 1.",
            &expected,
            "coordinator_timeout",
        ] {
            assert!(error.contains(part), "{error}");
        }
    }
    assert!(
        begun.elapsed() < Duration::from_secs(10),
        "{:?}",
        begun.elapsed()
    );
}
