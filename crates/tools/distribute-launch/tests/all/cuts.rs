//! Jobs on several hosts whose launchers are cut off from each other, by a proxy between them.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use distribute_launch::{Hosts, Job, LaunchError, Outcome};
use rstest::rstest;

use crate::common::{Seen, script_in, security, see};
use crate::eventually::eventually;
use crate::hosts::meeting_point;

/// How long a host may be out of reach.
const TIMEOUT: Duration = Duration::from_secs(2);

/// What lies between a launcher and the relay.
#[derive(Clone, Default)]
struct Gate(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    is_closed: bool,
    open: Vec<TcpStream>,
    /// How many connections have passed.
    passed: usize,
    /// How often something has passed on them.
    chunks: usize,
    /// When it was closed.
    closed: Option<Instant>,
}

impl Gate {
    /// Passes connections on to this address; connections that come while it is closed hang.
    fn new(to: SocketAddr) -> (Gate, SocketAddr) {
        let gate = Gate::default();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let own = gate.clone();
        thread::spawn(move || {
            for near in listener.incoming().map_while(Result::ok) {
                let mut state = own.0.lock().unwrap();
                state.open.push(near.try_clone().unwrap());
                if state.is_closed {
                    continue;
                }
                let Ok(far) = TcpStream::connect(to) else {
                    // The launcher that comes too early comes again.
                    state.open.pop();
                    continue;
                };
                state.passed += 1;
                state.open.push(far.try_clone().unwrap());
                let ends = [near.try_clone().unwrap(), far.try_clone().unwrap()];
                drop(state);
                own.pass_on(ends);
                own.pass_on([far, near]);
            }
        });
        (gate, address)
    }

    /// Breaks all connections, or lets nothing pass on them any more, and lets no other one pass
    /// until it is opened.
    fn close(&self, is_silent: bool) {
        let mut state = self.0.lock().unwrap();
        state.is_closed = true;
        state.closed = Some(Instant::now());
        if is_silent {
            return;
        }
        for stream in state.open.drain(..) {
            let _ended = stream.shutdown(Shutdown::Both);
        }
    }

    fn open(&self) {
        let mut state = self.0.lock().unwrap();
        state.is_closed = false;
        // Hanging connections are tried again.
        for stream in state.open.drain(..) {
            let _ended = stream.shutdown(Shutdown::Both);
        }
    }

    /// Whether it has been closed for this long, and a connection waits at it.
    fn tried_for(&self, time: Duration) -> bool {
        let state = self.0.lock().unwrap();
        let is_long = state.closed.is_some_and(|at| at.elapsed() > time);
        is_long && !state.open.is_empty()
    }

    fn is_closed(&self) -> bool {
        self.0.lock().unwrap().is_closed
    }

    fn passed(&self) -> usize {
        self.0.lock().unwrap().passed
    }

    /// Waits for another member: its handshake and some heartbeats have passed.
    fn await_member(&self, chunks: usize) {
        let is_there = || self.chunks() > chunks + 40;
        eventually(is_there, || "the launcher does not come".to_owned());
    }

    fn chunks(&self) -> usize {
        self.0.lock().unwrap().chunks
    }

    fn pass_on(&self, [mut from, mut to]: [TcpStream; 2]) {
        let gate = self.clone();
        thread::spawn(move || {
            let mut bytes = [0; 1 << 16];
            while let Ok(count @ 1..) = from.read(&mut bytes) {
                gate.0.lock().unwrap().chunks += 1;
                // What comes while it is closed is lost.
                if !gate.is_closed() && to.write_all(&bytes[..count]).is_err() {
                    break;
                }
            }
            let _ended = to.shutdown(Shutdown::Both);
        });
    }
}

/// Two launchers of one worker each, of which the second one reaches the first through a gate.
struct Pair {
    gate: Gate,
    /// The second launcher's part of the job.
    second: Job,
    launchers: [JoinHandle<Seen>; 2],
    _ports: distribute_launch::ReservedPorts,
}

impl Pair {
    /// Cuts the launchers off from each other, until the second one looks for host 0.
    fn cut_off(&self) {
        self.gate.close(false);
        let lost = || self.gate.tried_for(2 * TIMEOUT);
        eventually(lost, || "the launcher does not look for host 0".to_owned());
    }

    fn start(job: &Job, join_timeout: Duration) -> Pair {
        Pair::start_both([job.clone(), job.clone()], join_timeout)
    }

    fn start_both(jobs: [Job; 2], join_timeout: Duration) -> Pair {
        let (address, ports) = meeting_point();
        let (gate, dialled) = Gate::new(address);
        let hosts = |address, index| {
            Hosts::new(address, 2, index, security().insecure())
                .join_timeout(join_timeout)
                .timeout(TIMEOUT)
        };
        let [first, second] = jobs;
        let jobs = [
            first.hosts(hosts(address, 0).forwarded()),
            second.hosts(hosts(dialled, 1)),
        ];
        let second = jobs[1].clone();
        let launchers = jobs.map(|job| thread::spawn(move || see(job)));
        Pair {
            gate,
            second,
            launchers,
            _ports: ports,
        }
    }

    fn end(self) -> [Seen; 2] {
        self.launchers.map(|launcher| launcher.join().unwrap())
    }
}

#[track_caller]
fn await_files(directory: &Path, names: &[&str]) {
    for name in names {
        let path = directory.join(name);
        eventually(|| path.exists(), || format!("{name} does not come"));
    }
}

/// Only the launchers are cut off from each other: the workers go on.
#[rstest]
fn a_cut_between_the_launchers_alone_ends_no_healthy_job(#[values(false, true)] is_silent: bool) {
    let directory = tempfile::tempdir().unwrap();
    let text = "> up$i; await done; echo $DISTRIBUTE_RESTART";
    let pair = Pair::start(&script_in(directory.path(), text), Duration::from_secs(30));
    await_files(directory.path(), &["up0", "up1"]);
    for _cut in 0..2 {
        let passed = pair.gate.passed();
        pair.gate.close(is_silent);
        pair.gate.open();
        let is_back = || pair.gate.passed() > passed;
        eventually(is_back, || "the launcher does not connect again".to_owned());
    }
    // What is said while the connection is broken arrives later.
    pair.gate.close(is_silent);
    std::fs::write(directory.path().join("done"), "").unwrap();
    pair.gate.open();
    for seen in pair.end() {
        assert_eq!(
            *seen.outcome(),
            Outcome::Succeeded { restarts: 0 },
            "{}",
            seen.stderr
        );
        assert!(!seen.stderr.contains("is gone"), "{}", seen.stderr);
    }
}

/// Says when it is stopped; is done at its second start.
const STOPPED: &str = "[ $DISTRIBUTE_RESTART = 0 ] || exit 0
    trap '> stopped$i; exit 1' TERM; > up$i; while true; do sleep 0.05; done";

#[rstest]
fn a_host_that_was_cut_off_and_comes_back_is_a_restart(#[values(false, true)] is_silent: bool) {
    let directory = tempfile::tempdir().unwrap();
    let job = script_in(directory.path(), STOPPED).max_restarts(3);
    let pair = Pair::start(&job, Duration::from_secs(30));
    await_files(directory.path(), &["up0", "up1"]);
    pair.gate.close(is_silent);
    await_files(directory.path(), &["stopped0", "stopped1"]);
    pair.gate.open();
    let [first, second] = pair.end();
    for seen in [&first, &second] {
        assert_eq!(
            *seen.outcome(),
            Outcome::Succeeded { restarts: 1 },
            "{}",
            seen.stderr
        );
        for said in [
            "(counted from 0) are out of reach; waiting for them for up to 30 s (restarts used: 0",
            "all hosts are there again: starting all of them again, restart 1 of 3",
        ] {
            assert!(seen.stderr.contains(said), "{}", seen.stderr);
        }
    }
    let said = "the launcher of host 1 is gone; stopping the others";
    assert!(first.stderr.contains(said), "{}", first.stderr);
    let said = "the launcher of host 0 is gone; stopping the others";
    assert!(second.stderr.contains(said), "{}", second.stderr);
}

#[test]
fn a_host_that_is_cut_off_for_good_is_named_with_what_was_waited_for() {
    let directory = tempfile::tempdir().unwrap();
    let job = script_in(directory.path(), STOPPED).max_restarts(3);
    let pair = Pair::start(&job, Duration::from_secs(3));
    await_files(directory.path(), &["up0", "up1"]);
    pair.gate.close(true);
    let [first, second] = pair.end();
    let said = |seen: &Seen| {
        let error = seen.result.as_ref().unwrap_err();
        assert!(
            matches!(error, LaunchError::HostStaysAway { .. }),
            "{error}"
        );
        error.to_string()
    };
    let (first, second) = (said(&first), said(&second));
    let why = "hosts [1] (counted from 0) were lost, and none of them was within reach again in 3 \
               s (restarts used: 0 of 3)";
    assert!(first.contains(why), "{first}");
    assert!(
        second.contains("hosts [0] (counted from 0) were lost"),
        "{second}"
    );
}

#[test]
fn without_restarts_a_host_that_is_cut_off_ends_the_job() {
    let directory = tempfile::tempdir().unwrap();
    let job = script_in(directory.path(), STOPPED);
    let pair = Pair::start(&job, Duration::from_secs(30));
    await_files(directory.path(), &["up0", "up1"]);
    pair.gate.close(false);
    let [first, second] = pair.end();
    assert!(matches!(
        first.result,
        Err(LaunchError::HostLost { host: 1 })
    ));
    assert!(matches!(
        second.result,
        Err(LaunchError::HostLost { host: 0 })
    ));
    let said = "no restart is left for which they could come again (used: 0 of 0)";
    assert!(first.stderr.contains(said), "{}", first.stderr);
}

/// A chief, a server and a worker on host 0, a worker on host 1.
fn with_a_chief(directory: &Path, text: &str, restarts: u32) -> [Job; 2] {
    let job = |host: &str, servers| {
        let job = script_in(directory, text).workers(1).max_restarts(restarts);
        let logs = directory.join(host);
        job.parameter_servers(servers).log_directory(logs)
    };
    [job("first", 1), job("second", 0)]
}

/// Waits until the four processes of such a job run.
fn all_are_up(directory: &Path) {
    await_files(directory, &["upchief0", "upps0", "upworker0", "upworker1"]);
}

const CHIEF: &str = "trap '> stopped$r$i; exit 0' TERM; > up$r$i
    if [ $r = chief ]; then await done; echo trained; exit 0; fi
    while true; do sleep 0.05; done";

/// Its worker is not stopped, and is part of the job again.
#[test]
fn a_host_that_only_has_a_worker_may_be_cut_off_for_a_while() {
    let directory = tempfile::tempdir().unwrap();
    let [first, second] = with_a_chief(directory.path(), CHIEF, 1);
    let pair = Pair::start_both([first, second], Duration::from_secs(60));
    all_are_up(directory.path());
    pair.gate.close(false);
    // The launchers have given each other up when this is there.
    let lost = || pair.gate.passed() > 0 && pair.gate.tried_for(2 * TIMEOUT);
    eventually(lost, || "the launcher does not look for host 0".to_owned());
    let passed = pair.gate.passed();
    pair.gate.open();
    let is_back = || pair.gate.passed() > passed;
    eventually(is_back, || "the launcher does not come back".to_owned());
    assert!(!directory.path().join("stoppedworker1").exists());
    std::fs::write(directory.path().join("done"), "").unwrap();
    let [first, second] = pair.end();
    for seen in [&first, &second] {
        let ended = Outcome::Succeeded { restarts: 0 };
        assert_eq!(*seen.outcome(), ended, "{}", seen.stderr);
    }
    assert_eq!(first.stdout, b"trained\n");
    assert!(directory.path().join("stoppedworker1").exists());
}

/// Whether it is cut off before the chief is done or after it.
#[test]
fn a_host_that_only_has_a_worker_may_be_cut_off_for_good() {
    let directory = tempfile::tempdir().unwrap();
    let jobs = with_a_chief(directory.path(), CHIEF, 0);
    let pair = Pair::start_both(jobs, Duration::from_secs(2));
    all_are_up(directory.path());
    pair.gate.close(false);
    await_files(directory.path(), &["stoppedworker1"]);
    std::fs::write(directory.path().join("done"), "").unwrap();
    let [first, second] = pair.end();
    let ended = Outcome::Succeeded { restarts: 0 };
    assert_eq!(*first.outcome(), ended, "{}", first.stderr);
    assert!(
        matches!(second.result, Err(LaunchError::HostLost { host: 0 })),
        "{}",
        second.stderr
    );
}

/// What a host has posted while it was out of reach counts when it is back: both workers are gone
/// for good, so the job is over.
#[test]
fn what_a_host_told_while_it_was_cut_off_is_told_again() {
    let directory = tempfile::tempdir().unwrap();
    let text = "trap '> ended$r$i-$$' EXIT; trap 'exit 0' TERM; > up$r$i
        if [ $r = worker ]; then await die$i; exit 1; fi
        while true; do sleep 0.05; done";
    let jobs = with_a_chief(directory.path(), text, 1);
    let pair = Pair::start_both(jobs, Duration::from_secs(60));
    all_are_up(directory.path());
    pair.cut_off();
    // It is started again once, and dies again.
    std::fs::write(directory.path().join("die1"), "").unwrap();
    let ended = || {
        let files = std::fs::read_dir(directory.path()).unwrap();
        let names = files.map(|file| file.unwrap().file_name());
        names
            .filter(|name| name.to_string_lossy().starts_with("endedworker1-"))
            .count()
    };
    let is_dead = || ended() == 2;
    eventually(is_dead, || "worker 1 does not die a second time".to_owned());
    let chunks = pair.gate.chunks();
    pair.gate.open();
    // Once host 0 fails the job is over, and a launcher that comes later looks for it in vain.
    pair.gate.await_member(chunks);
    std::fs::write(directory.path().join("die0"), "").unwrap();
    for seen in pair.end() {
        assert_eq!(seen.outcome().exit_code(), 1, "{}", seen.stderr);
    }
}

/// A launcher that is started anew on a host without which the job goes on has no part in the
/// attempt: it waits, and hears how the job ends.
#[test]
fn a_launcher_started_anew_on_a_host_that_was_done_without_hears_the_end() {
    let directory = tempfile::tempdir().unwrap();
    let jobs = with_a_chief(directory.path(), CHIEF, 0);
    let pair = Pair::start_both(jobs, Duration::from_secs(30));
    all_are_up(directory.path());
    pair.gate.close(false);
    let [first, second] = pair.launchers;
    let second = second.join().unwrap();
    assert!(
        matches!(second.result, Err(LaunchError::HostLost { host: 0 })),
        "{}",
        second.stderr
    );
    pair.gate.open();
    let chunks = pair.gate.chunks();
    let anew = thread::spawn(move || see(pair.second));
    pair.gate.await_member(chunks);
    std::fs::write(directory.path().join("done"), "").unwrap();
    for launcher in [first, anew] {
        let seen = launcher.join().unwrap();
        let ended = Outcome::Succeeded { restarts: 0 };
        assert_eq!(*seen.outcome(), ended, "{}", seen.stderr);
    }
}

/// Its worker has ended for good while it was cut off: the job needs nothing more of it.
#[rstest]
fn a_host_whose_workers_ended_while_it_was_cut_off_hears_the_end(
    #[values("exit 0", "exit 2")] end: &str,
) {
    let directory = tempfile::tempdir().unwrap();
    let text = format!("[ $r$i = worker1 ] && {{ > upworker1; await over; {end}; }}; {CHIEF}");
    let jobs = with_a_chief(directory.path(), &text, 1);
    let pair = Pair::start_both(jobs, Duration::from_secs(30));
    all_are_up(directory.path());
    pair.cut_off();
    std::fs::write(directory.path().join("over"), "").unwrap();
    let chunks = pair.gate.chunks();
    pair.gate.open();
    pair.gate.await_member(chunks);
    std::fs::write(directory.path().join("done"), "").unwrap();
    for seen in pair.end() {
        let ended = Outcome::Succeeded { restarts: 0 };
        assert_eq!(*seen.outcome(), ended, "{}", seen.stderr);
    }
}

/// The others wait for it, and it is part of their next start, whose hosts it knows to be there.
#[test]
fn a_host_that_comes_back_when_the_chief_has_failed_starts_again_with_the_others() {
    let directory = tempfile::tempdir().unwrap();
    let text = "[ $DISTRIBUTE_RESTART = 0 ] || { [ $r = chief ] && exit 0; exec sleep 100; }
        trap '> stopped$r$i; exit 0' TERM; > up$r$i
        if [ $r = chief ]; then await die; exit 1; fi
        while true; do sleep 0.05; done";
    let jobs = with_a_chief(directory.path(), text, 2);
    let pair = Pair::start_both(jobs, Duration::from_secs(30));
    all_are_up(directory.path());
    pair.cut_off();
    std::fs::write(directory.path().join("die"), "").unwrap();
    await_files(directory.path(), &["stoppedps0", "stoppedworker0"]);
    pair.gate.open();
    for seen in pair.end() {
        let ended = Outcome::Succeeded { restarts: 1 };
        assert_eq!(*seen.outcome(), ended, "{}", seen.stderr);
    }
}

/// As a machine that has lost its power and is started again before its silence is noticed.
#[test]
fn a_launcher_started_anew_before_the_loss_of_the_last_one_is_noticed_waits_for_that() {
    let directory = tempfile::tempdir().unwrap();
    let text = "[ $DISTRIBUTE_RESTART = 0 ] || exit 0
        trap 'exit 1' TERM; > up$i; while true; do sleep 0.05; done";
    let job = script_in(directory.path(), text).max_restarts(1);
    let (address, _ports) = meeting_point();
    let (gate, dialled) = Gate::new(address);
    let hosts = |address, index| {
        Hosts::new(address, 2, index, security().insecure())
            .join_timeout(Duration::from_secs(30))
            .timeout(TIMEOUT)
    };
    let first = job.clone().hosts(hosts(address, 0).forwarded());
    let first = thread::spawn(move || see(first));
    let second = job
        .clone()
        .hosts(hosts(dialled, 1).join_timeout(TIMEOUT / 4));
    let second = thread::spawn(move || see(second));
    await_files(directory.path(), &["up0", "up1"]);
    gate.close(true);
    let anew = see(job.hosts(hosts(address, 1)));
    let first = first.join().unwrap();
    for seen in [&first, &anew] {
        let ended = Outcome::Succeeded { restarts: 1 };
        assert_eq!(*seen.outcome(), ended, "{}", seen.stderr);
    }
    assert!(
        first.stderr.contains("was not noticed yet"),
        "{}",
        first.stderr
    );
    second.join().unwrap().result.unwrap_err();
}
