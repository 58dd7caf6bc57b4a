//! Signals to processes that wait for others: each ends within a second or so, whatever it
//! waits for.

use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use rstest::rstest;

use crate::common::{self, Finished, Process};
use crate::job::{MULTI, Member, addresses, tf_config};

/// How long a wait may go on after a signal: a second, and what a busy machine takes.
const AT_ONCE: Duration = Duration::from_secs(3);
const SERVERS: &str = "train --strategy parameter-server --model mlp --output json";

/// Waits until somebody listens there.
fn listens(address: &str) {
    let begun = Instant::now();
    while TcpStream::connect(address).is_err() {
        assert!(begun.elapsed() < common::LIMIT, "nobody listens there");
        std::thread::yield_now();
    }
}

/// Sends the signal and sees the process end at once.
fn ends_at_once(process: Process, signal: &str) -> Finished {
    let begun = Instant::now();
    process.signal(signal);
    let finished = process.finish();
    let took = begun.elapsed();
    assert!(took < AT_ONCE, "{took:?}: {}", finished.stderr);
    let code = match signal {
        "INT" => 130,
        _ => 143,
    };
    assert_eq!(finished.code, Some(code), "{}", finished.stderr);
    let said = &finished.stderr;
    assert!(!said.contains("finishing this step"), "{said}");
    assert!(said.contains("interrupted"), "{said}");
    finished
}

#[rstest]
fn a_worker_that_waits_for_the_others_ends_at_a_signal(
    #[values(0, 1)] rank: usize,
    #[values("TERM", "INT")] signal: &str,
) {
    let folder = tempfile::tempdir().unwrap();
    let addresses = addresses(2);
    let cluster = format!(r#"{{"worker": {addresses:?}}}"#);
    let config = tf_config(&cluster, "worker", rank);
    let process = Member::start(folder.path(), MULTI, &[("TF_CONFIG", &config)]);
    listens(&addresses[rank]);
    let finished = ends_at_once(process, signal);
    let missing = format!("rank {}", 1 - rank);
    assert!(finished.stderr.contains(&missing), "{}", finished.stderr);
}

#[rstest]
#[case("ps", 1, "TERM")]
#[case("ps", 1, "INT")]
#[case("worker", 2, "TERM")]
#[case("worker", 2, "INT")]
fn who_waits_for_the_chief_ends_at_a_signal(
    #[case] role: &str,
    #[case] place: usize,
    #[case] signal: &str,
) {
    let folder = tempfile::tempdir().unwrap();
    let all = addresses(3);
    let config = tf_config(&servers(&all), role, 0);
    let process = Member::start(folder.path(), SERVERS, &[("TF_CONFIG", &config)]);
    listens(&all[place]);
    let finished = ends_at_once(process, signal);
    assert!(finished.stderr.contains(&all[0]), "{}", finished.stderr);
}

fn servers(addresses: &[String]) -> String {
    let [chief, server, worker] = addresses else {
        panic!("three addresses");
    };
    format!(r#"{{"chief": [{chief:?}], "ps": [{server:?}], "worker": [{worker:?}]}}"#)
}

#[rstest]
fn a_chief_that_waits_for_its_servers_ends_at_a_signal(#[values("TERM", "INT")] signal: &str) {
    let folder = tempfile::tempdir().unwrap();
    let all = addresses(3);
    // It takes connections and says nothing.
    let listener = TcpListener::bind(&all[1]).unwrap();
    let config = tf_config(&servers(&all), "chief", 0);
    let process = Member::start(folder.path(), SERVERS, &[("TF_CONFIG", &config)]);
    let _dialled = listener.accept().unwrap();
    ends_at_once(process, signal);
}

#[test]
fn a_chief_that_waits_for_its_workers_ends_at_a_signal() {
    let folder = tempfile::tempdir().unwrap();
    let all = addresses(3);
    let start = |role: &str| {
        let config = tf_config(&servers(&all), role, 0);
        Member::start(folder.path(), SERVERS, &[("TF_CONFIG", &config)])
    };
    let _server = start("ps");
    listens(&all[1]);
    let listener = TcpListener::bind(&all[2]).unwrap();
    let chief = start("chief");
    let _dialled = listener.accept().unwrap();
    ends_at_once(chief, "TERM");
}

/// Before it trains there is nothing to finish, whatever it is about.
#[test]
fn who_reads_its_data_ends_at_a_signal() {
    let folder = tempfile::tempdir().unwrap();
    let row = (0..200)
        .map(|column| column.to_string())
        .collect::<Vec<_>>();
    let rows = format!("{}\n", row.join(",")).repeat(50_000);
    std::fs::write(folder.path().join("data.csv"), rows).unwrap();
    let line = "train --dataset csv:data.csv --model mlp";
    let process = Member::start(folder.path(), line, &[]);
    // It has opened the file.
    let links = format!("/proc/{}/fd", process.child.id());
    let reads = || {
        let links = std::fs::read_dir(&links).into_iter().flatten().flatten();
        let mut targets = links.filter_map(|link| std::fs::read_link(link.path()).ok());
        targets.any(|target| target.ends_with("data.csv"))
    };
    let begun = Instant::now();
    while !reads() {
        assert!(begun.elapsed() < common::LIMIT, "it does not read");
        std::thread::yield_now();
    }
    ends_at_once(process, "TERM");
}

/// A chief that is refused leaves nobody behind who has to be killed.
#[test]
fn a_refused_chief_ends_its_job_without_a_kill() {
    let folder = tempfile::tempdir().unwrap();
    let program = assert_cmd::cargo::cargo_bin("distribute-cli");
    let line = "launch --workers 3 --ps 2 --log-dir logs --";
    let mut command = common::plain(folder.path());
    command.args(line.split_whitespace()).arg(program);
    command.args(SERVERS.split_whitespace());
    // Refused by the chief only, which reads the directory.
    command.args(["--resume", "--checkpoint-dir", "nowhere"]);
    let begun = Instant::now();
    let finished = Process::start(&mut command, &[]).finish();
    let took = begun.elapsed();
    assert!(
        took < Duration::from_secs(8),
        "{took:?}: {}",
        finished.stderr
    );
    assert!(!finished.stderr.contains("SIGKILL"), "{}", finished.stderr);
    assert!(finished.stderr.contains("nowhere"), "{}", finished.stderr);
}

/// Every role gives up when the flag says so.
#[rstest]
fn each_role_waits_as_long_as_it_is_told(#[values("chief", "ps", "worker")] role: &str) {
    let folder = tempfile::tempdir().unwrap();
    let all = addresses(3);
    let config = tf_config(&servers(&all), role, 0);
    let line = format!("{SERVERS} --rendezvous-timeout 1");
    let begun = Instant::now();
    let process = Member::start(folder.path(), &line, &[("TF_CONFIG", &config)]);
    let finished = process.finish();
    let took = begun.elapsed();
    assert_eq!(finished.code, Some(1), "{}", finished.stderr);
    assert!(
        took < Duration::from_secs(15),
        "{took:?}: {}",
        finished.stderr
    );
}
