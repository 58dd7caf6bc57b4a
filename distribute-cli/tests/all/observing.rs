//! `--trace` and `--metrics-addr`: what a run tells while it goes on.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};

use distribute_launch::ReservedPorts;
use rstest::rstest;
use serde_json::Value;

use crate::common::{self, LIMIT, Process, run, succeed};
use crate::launch::Launcher;

/// Training that ends only when it is ended.
const ENDLESS: &str = "--model mlp --output json --epochs 100000 --log-steps 10";

/// The events of a trace, which is JSON from its first to its last byte.
fn events(path: &Path) -> Vec<Value> {
    let text = fs::read_to_string(path).unwrap();
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// The same of a process that may be writing, or may have been killed while it did: its last line
/// can be half of one. None, if another part was read than is there.
fn events_so_far(path: &Path) -> Option<Vec<Value>> {
    let text = fs::read_to_string(path).ok()?;
    serde_json::from_str(&text).ok().or_else(|| {
        let whole = text.rsplit_once('\n')?.0.trim_end_matches([',', '\n', ']']);
        serde_json::from_str(&format!("{whole}\n]")).ok()
    })
}

/// When something began and ended, and its name.
type Span = (f64, f64, String);

/// The names of what happened on each thread of each worker. Panics if what happened on one thread
/// overlaps without lying inside of each other.
fn phases(events: &[Value]) -> BTreeMap<(u64, u64), BTreeSet<String>> {
    let number = |event: &Value, name: &str| event[name].as_f64().unwrap();
    let mut threads: BTreeMap<(u64, u64), Vec<Span>> = BTreeMap::new();
    for event in events.iter().filter(|event| event["ph"] == "X") {
        let thread = (number(event, "pid") as u64, number(event, "tid") as u64);
        let (at, took) = (number(event, "ts"), number(event, "dur"));
        let name = event["name"].as_str().unwrap().to_string();
        threads
            .entry(thread)
            .or_default()
            .push((at, at + took, name));
    }
    let mut names = BTreeMap::new();
    for (thread, mut spans) in threads {
        spans.sort_by(|a, b| a.0.total_cmp(&b.0).then(b.1.total_cmp(&a.1)));
        let mut open: Vec<(f64, String)> = Vec::new();
        for (begin, end, name) in &spans {
            // A nanosecond is lost where times are rounded.
            open.retain(|outer| outer.0 > begin + 0.002);
            let outer = open.last();
            assert!(
                outer.is_none_or(|outer| *end <= outer.0 + 0.002),
                "{thread:?}: {name} ends after {outer:?}"
            );
            open.push((*end, name.clone()));
        }
        names.insert(thread, spans.into_iter().map(|span| span.2).collect());
    }
    names
}

fn has(names: &BTreeSet<String>, expected: &[&str]) {
    for name in expected {
        assert!(names.contains(*name), "no {name} in {names:?}");
    }
}

#[test]
fn a_trace_has_the_phases_of_every_thread() {
    let folder = tempfile::tempdir().unwrap();
    let arguments = format!("{} --checkpoint-dir saved --trace t.json", common::QUICK);
    succeed(folder.path(), &arguments);
    let events = events(&folder.path().join("t.json"));
    let threads = phases(&events);
    has(
        &threads[&(0, 0)],
        &["data", "step", "validation", "checkpoint"],
    );
    let name = |event: &&Value| event["name"] == "thread_name";
    let rows: BTreeMap<&str, u64> = events
        .iter()
        .filter(name)
        .map(|event| {
            let row = event["tid"].as_u64().unwrap();
            (event["args"]["name"].as_str().unwrap(), row)
        })
        .collect();
    for replica in ["replica-0.0", "replica-1.0"] {
        let expected = [
            "run", "forward", "backward", "exchange", "update", "barrier",
        ];
        has(&threads[&(0, rows[replica])], &expected);
    }
    has(&threads[&(0, rows["checkpoint-saver"])], &["write"]);
    let steps = events.iter().filter(|event| event["name"] == "step");
    assert_eq!(steps.count(), 5);
    let dropped = events.last().unwrap();
    assert_eq!(
        (&dropped["name"], &dropped["args"]["count"]),
        (&"dropped_events".into(), &0.into())
    );
}

#[rstest]
#[case("shm", "shared-memory")]
#[case("grpc", "grpc")]
fn workers_put_their_parts_together(#[case] transport: &str, #[case] named: &str) {
    let folder = tempfile::tempdir().unwrap();
    let train = format!(
        "train --strategy multi-worker --replicas 2 --model mlp --steps 12 --bytes-per-pack 20000 \
         --transport {transport} --trace t.json"
    );
    let finished = Launcher::start(folder.path(), "--workers 3", &train)
        .0
        .finish();
    assert_eq!(finished.code, Some(0), "{}", finished.stderr);
    let events = events(&folder.path().join("t.json"));
    let threads = phases(&events);
    let workers: BTreeSet<u64> = threads.keys().map(|thread| thread.0).collect();
    assert_eq!(workers, BTreeSet::from([0, 1, 2]));
    let exchange = |event: &&Value| event["args"]["transport"] == named;
    let exchanges: Vec<&Value> = events.iter().filter(exchange).collect();
    let bytes = |event: &&&Value| event["args"]["bytes"].as_u64() > Some(10_000);
    assert!(exchanges.iter().filter(bytes).count() >= 3 * 12);
    // In every exchange one worker comes last, and the others have waited for it.
    let waited: Vec<u64> = exchanges
        .iter()
        .filter_map(|event| event["args"]["waited_for"].as_u64())
        .collect();
    assert!(waited.len() >= exchanges.len() / 2, "{waited:?}");
    assert!(waited.iter().all(|worker| *worker < 3));
    // They have begun on one clock.
    let first = events.iter().filter_map(|event| event["ts"].as_f64());
    assert!(first.fold(f64::INFINITY, f64::min) >= 0.0);
    let left: Vec<_> = fs::read_dir(folder.path()).unwrap().collect();
    let names = left
        .into_iter()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let parts: Vec<String> = names.filter(|name| name.contains("worker-")).collect();
    assert_eq!(parts, [""; 0]);
}

#[test]
fn a_killed_worker_leaves_a_trace_of_all() {
    let folder = tempfile::tempdir().unwrap();
    let train = format!("train --strategy multi-worker {ENDLESS} --trace t.json");
    let mut launcher = Launcher::start(folder.path(), "--workers 2", &train);
    launcher.0.wait_for(r#""step":100,"#);
    // What it has done is written a quarter of a second later at the latest.
    let part = folder.path().join("t.worker-1.json");
    let begin = Instant::now();
    while !fs::read_to_string(&part).unwrap().contains("backward") {
        assert!(begin.elapsed() < LIMIT, "nothing is written");
        std::thread::yield_now();
    }
    common::signal(launcher.worker(1), "KILL");
    let finished = launcher.0.finish();
    assert_ne!(finished.code, Some(0));
    let whole = phases(&events(&folder.path().join("t.json")));
    let workers: BTreeSet<u64> = whole.keys().map(|thread| thread.0).collect();
    assert_eq!(workers, BTreeSet::from([0, 1]), "{}", finished.stderr);
    assert!(!phases(&events_so_far(&part).unwrap()).is_empty());
}

#[rstest]
#[case("INT", Some(42))]
#[case("KILL", None)]
fn a_run_that_is_ended_leaves_a_readable_trace(#[case] name: &str, #[case] code: Option<i32>) {
    let folder = tempfile::tempdir().unwrap();
    let mut command = common::plain(folder.path());
    let arguments = format!("train {ENDLESS} --replicas 2 --checkpoint-dir saved --trace t.json");
    command.args(arguments.split_whitespace());
    let mut training = Process::start(&mut command, &[]);
    training.wait_for(r#""step":500,"#);
    let path = folder.path().join("t.json");
    let begin = Instant::now();
    while events_so_far(&path).is_none_or(|events| events.len() < 100) {
        assert!(begin.elapsed() < LIMIT, "nothing is written");
        std::thread::yield_now();
    }
    training.signal(name);
    let finished = training.finish();
    assert_eq!(finished.code, code, "{}", finished.stderr);
    let events = if name == "KILL" {
        events_so_far(&path).unwrap()
    } else {
        events(&path)
    };
    assert!(phases(&events).len() >= 3);
}

#[rstest]
#[case("no/such/t.json", "--replicas 2", 2)]
#[case("/dev/full", "--replicas 2", 1)]
#[case("t.json", "--strategy parameter-server", 2)]
fn a_trace_that_cannot_be_written_is_refused_before_training(
    #[case] path: &str,
    #[case] strategy: &str,
    #[case] code: i32,
) {
    let folder = tempfile::tempdir().unwrap();
    let finished = run(
        folder.path(),
        &format!("train --model mlp --steps 2 {strategy} --trace {path}"),
    );
    assert_eq!(finished.code, Some(code), "{}", finished.stderr);
    assert_eq!(finished.stdout, "");
    assert!(finished.stderr.contains("--trace"), "{}", finished.stderr);
    assert_eq!(finished.stderr.lines().count(), 1, "{}", finished.stderr);
}

#[test]
fn a_worker_that_cannot_write_its_part_ends_the_others() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("t.worker-1.json")).unwrap();
    let train = "train --strategy multi-worker --model mlp --steps 5 --trace t.json";
    let finished = Launcher::start(folder.path(), "--workers 2", train)
        .0
        .finish();
    assert_ne!(finished.code, Some(0));
    assert!(
        finished.stderr.contains("t.worker-1.json"),
        "{}",
        finished.stderr
    );
    assert_eq!(finished.stdout, "");
}

/// A free port, and the one after it. Not among the ports that the system gives to any
/// connection.
pub fn free_ports() -> (u16, ReservedPorts) {
    loop {
        let reserved = ReservedPorts::new(1, Ipv4Addr::LOCALHOST.into()).unwrap();
        let port = reserved.addresses()[0].port();
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port + 1)).is_ok() {
            return (port, reserved);
        }
    }
}

/// What a client gets that asks like this, if there is anybody to ask.
fn ask(port: u16, request: &str) -> Option<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    stream
        .set_read_timeout(Some(Duration::from_secs(20)))
        .unwrap();
    stream.write_all(request.as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    Some(answer)
}

/// The metrics by name.
pub fn metrics(port: u16) -> Option<BTreeMap<String, f64>> {
    let answer = ask(port, "GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n")?;
    let (head, page) = answer.split_once("\r\n\r\n")?;
    assert!(head.starts_with("HTTP/1.1 200 OK"), "{head}");
    let lines = page.lines().filter(|line| !line.starts_with('#'));
    let numbers = lines.map(|line| {
        let (name, value) = line.split_once(' ').unwrap();
        let name = name.split('{').next().unwrap();
        (name.to_string(), value.parse().unwrap())
    });
    Some(numbers.collect())
}

/// The metrics after this number of steps, once the loss was read.
fn metrics_after(port: u16, steps: f64) -> BTreeMap<String, f64> {
    let begin = Instant::now();
    loop {
        let found = metrics(port).filter(|found| {
            found["distribute_steps_total"] >= steps && found.contains_key("distribute_loss")
        });
        if let Some(found) = found {
            return found;
        }
        assert!(begin.elapsed() < LIMIT, "no metrics");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn every_worker_answers_prometheus() {
    let folder = tempfile::tempdir().unwrap();
    let (port, _reserved) = free_ports();
    let train = format!("train --strategy multi-worker {ENDLESS} --metrics-addr {port}");
    let launcher = Launcher::start(folder.path(), "--workers 2", &train);
    for worker in [port, port + 1] {
        let found = metrics_after(worker, 20.0);
        assert!(found["distribute_loss"] > 0.0, "{found:?}");
        assert!(found["distribute_examples_total"] > 0.0, "{found:?}");
        assert!(found["distribute_examples_per_second"] > 0.0, "{found:?}");
        assert!(
            found["distribute_exchange_seconds_total"] > 0.0,
            "{found:?}"
        );
        assert!(found["distribute_waiting_seconds_total"] > 0.0, "{found:?}");
        assert_eq!(found["distribute_restarts"], 0.0);
        assert_eq!(found["distribute_skipped_steps_total"], 0.0);
        let later = metrics_after(worker, found["distribute_steps_total"] + 1.0);
        assert!(
            later["distribute_exchange_seconds_total"]
                >= found["distribute_exchange_seconds_total"]
        );
    }
    launcher.0.signal("INT");
    let finished = launcher.0.finish();
    let said = format!("metrics: http://127.0.0.1:{port}/metrics");
    assert!(finished.stderr.contains(&said), "{}", finished.stderr);
    assert!(metrics(port).is_none());
}

#[test]
fn requests_that_are_none_and_slow_clients_cost_a_run_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let (port, _reserved) = free_ports();
    let mut command = common::plain(folder.path());
    let arguments = format!("train {ENDLESS} --replicas 2 --metrics-addr 127.0.0.1:{port}");
    command.args(arguments.split_whitespace());
    let training = Process::start(&mut command, &[]);
    let before = metrics_after(port, 5.0)["distribute_steps_total"];
    let slow: Vec<TcpStream> = (0..40)
        .map(|_| TcpStream::connect(("127.0.0.1", port)).unwrap())
        .collect();
    for nonsense in [
        "\0\r\n\r\n",
        "GET /metrics\r\n\r\n",
        "POST /metrics HTTP/1.1\r\n\r\n",
    ] {
        let answer = ask(port, nonsense).unwrap_or_default();
        assert!(!answer.contains("200 OK"), "{answer}");
    }
    // The slow ones have been sent away by then.
    let after = metrics_after(port, before + 50.0);
    assert!(after["distribute_steps_total"] > before);
    drop(slow);
    training.signal("INT");
    assert_eq!(training.finish().code, Some(1));
}

#[test]
fn a_port_that_is_taken_is_refused_before_training() {
    let folder = tempfile::tempdir().unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let finished = run(
        folder.path(),
        &format!("{} --metrics-addr {port}", common::QUICK),
    );
    assert_eq!(finished.code, Some(1), "{}", finished.stderr);
    assert_eq!(finished.stdout, "");
    assert!(
        finished.stderr.contains("--metrics-addr"),
        "{}",
        finished.stderr
    );
    let free = run(
        folder.path(),
        &format!("{} --metrics-addr 0", common::QUICK),
    );
    assert_eq!(free.code, Some(0), "{}", free.stderr);
    let said = "metrics: http://127.0.0.1:";
    assert!(free.stderr.contains(said), "{}", free.stderr);
    assert!(!free.stderr.contains("127.0.0.1:0/"), "{}", free.stderr);
}

/// A pseudoterminal: the end that sees what is shown, and the terminal.
pub fn terminal() -> (fs::File, fs::File) {
    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&master).unwrap();
    unlockpt(&master).unwrap();
    let name = ptsname(&master, Vec::new()).unwrap();
    let name = name.into_string().unwrap();
    let terminal = fs::File::options().read(true).write(true).open(name);
    (master.into(), terminal.unwrap())
}

#[test]
fn a_launcher_on_a_terminal_shows_how_far_the_job_is() {
    let folder = tempfile::tempdir().unwrap();
    let (mut seen, terminal) = terminal();
    let train = "train --strategy multi-worker --model mlp --epochs 100000";
    let mut launch = Launcher::command(folder.path(), "--workers 2", train);
    launch
        .env("TERM", "xterm")
        .env_remove("TF_CONFIG")
        .stdout(std::process::Stdio::null())
        .stderr(terminal);
    let mut launcher = launch.spawn().unwrap();
    let watchdog = common::watchdog(launcher.id());
    // Its own copy of the terminal would keep it open.
    drop(launch);
    let (mut text, mut buffer) = (String::new(), [0; 4096]);
    let mut is_asked = false;
    // A terminal that no process has open any more is an error to read.
    while let Ok(read @ 1..) = seen.read(&mut buffer) {
        text.push_str(&String::from_utf8_lossy(&buffer[..read]));
        if !is_asked && text.contains("workers 2/2") {
            common::signal(launcher.id(), "INT");
            is_asked = true;
        }
    }
    launcher.wait().unwrap();
    drop(watchdog);
    assert!(is_asked, "{text}");
    let lines = text
        .split("\r\u{1b}[2K")
        .filter(|line| line.starts_with("step "));
    let lines: Vec<&str> = lines.map(|line| line.lines().next().unwrap()).collect();
    assert!(!lines.is_empty(), "{text}");
    for line in lines {
        assert!(line.chars().count() < 80, "{line}");
        for word in ["epoch ", "loss ", "examples/s", "workers "] {
            assert!(line.contains(word), "{line}");
        }
    }
}
