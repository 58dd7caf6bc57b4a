//! Signals to processes that wait for others: each ends within a second or so, whatever it
//! waits for.

use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};

use hostile::stopwatch::Stopwatch;
use rstest::rstest;

use super::stopped::all_complete;
use crate::common::{self, Finished, Process};
use crate::job::{MULTI, Member, addresses, cluster, finish, start, tf_config};

/// How long a wait may go on after a signal: a second, and what a machine takes, in the time that
/// processes get to compute. Without the signal it is 60 s and more.
const AT_ONCE: Duration = Duration::from_secs(3);
const SERVERS: &str = "train --strategy parameter-server --model mlp --output json";

/// Waits until a process listens there.
fn listens(address: &str) {
    let begun = Instant::now();
    while TcpStream::connect(address).is_err() {
        assert!(begun.elapsed() < common::LIMIT, "no process listens there");
        std::thread::yield_now();
    }
}

/// Sends the signal and sees the process end at once.
fn ends_soon(process: Process, signal: &str) -> Finished {
    let begun = Stopwatch::start();
    process.signal(signal);
    let finished = process.finish();
    let took = begun.elapsed();
    assert!(took < AT_ONCE, "{took:?}: {}", finished.stderr);
    finished
}

/// The same of one that has done nothing yet.
fn ends_at_once(process: Process, signal: &str) -> Finished {
    let finished = ends_soon(process, signal);
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

/// Where heartbeats would find out after a minute only.
#[rstest]
#[case(0, 1)]
#[case(1, 0)]
#[case(2, 1)]
fn training_that_waits_for_a_stopped_worker_ends_at_a_signal(
    #[case] signalled: usize,
    #[case] stopped: usize,
) {
    let folder = tempfile::tempdir().unwrap();
    let line = format!("{MULTI} --epochs 100000 --heartbeat-timeout 60 --checkpoint-dir saved");
    let mut members = start(folder.path(), 3, &line, &[]);
    members[0].wait_for(r#""epoch":2"#);
    members[stopped].signal("STOP");
    for (_, waiting) in members
        .iter()
        .enumerate()
        .filter(|(rank, _)| *rank != stopped)
    {
        waiting.wait_until_it_waits();
    }
    let mut names = vec![0, 1, 2];
    names.retain(|rank| ![signalled, stopped].contains(rank));
    let mut members: Vec<Option<Process>> = members.into_iter().map(Some).collect();
    let mut take = |rank: usize| members[rank].take().unwrap();
    let (asked, other) = (take(signalled), take(names[0]));
    let finished = ends_soon(asked, "TERM");
    assert_eq!(finished.code, Some(143), "{}", finished.stderr);
    let silent = format!("missing: rank {stopped} at ");
    let said = format!("rank {signalled} was interrupted");
    for part in [&*silent, &*said, "no sign of life"] {
        assert!(finished.stderr.contains(part), "{}", finished.stderr);
    }
    // The third one was not told to end, and knows why it does.
    let finished = other.finish();
    assert_eq!(finished.code, Some(1), "{}", finished.stderr);
    for part in [&*silent, &*said] {
        assert!(finished.stderr.contains(part), "{}", finished.stderr);
    }
    if stopped != 0 {
        // A chief that is killed may have saved nothing yet.
        all_complete(folder.path());
    }
}

/// All are told to end, as a scheduler does it.
#[test]
fn a_signal_to_all_ends_those_that_wait_for_a_stopped_one() {
    let folder = tempfile::tempdir().unwrap();
    let line = format!("{MULTI} --epochs 100000 --heartbeat-timeout 60");
    let mut members = start(folder.path(), 3, &line, &[]);
    members[0].wait_for(r#""epoch":2"#);
    members[1].signal("STOP");
    // Else the first one that is told could still end the step with the last one.
    members[0].wait_until_it_waits();
    members[2].wait_until_it_waits();
    let begun = Stopwatch::start();
    members.iter().for_each(|member| member.signal("TERM"));
    let _stopped = members.remove(1);
    for finished in finish(members) {
        let took = begun.elapsed();
        assert!(took < AT_ONCE, "{took:?}: {}", finished.stderr);
        assert_eq!(finished.code, Some(143), "{}", finished.stderr);
        let silent = "missing: rank 1 at ";
        assert!(finished.stderr.contains(silent), "{}", finished.stderr);
    }
}

/// The other one takes long to read its data, on which both are to agree.
#[test]
fn who_waits_for_the_data_of_another_ends_at_a_signal() {
    let cluster = cluster(2);
    let member = |index: usize, rows: usize| {
        let folder = tempfile::tempdir().unwrap();
        write_rows(folder.path(), rows);
        let config = tf_config(&cluster, "worker", index);
        let line = format!("{MULTI} --dataset csv:data.csv");
        let process = Member::start(folder.path(), &line, &[("TF_CONFIG", &config)]);
        (process, folder)
    };
    let (process, _own) = member(0, 100);
    let (other, _others) = member(1, 50_000);
    reads_its_data(&other);
    let finished = ends_at_once(process, "TERM");
    let missing = "missing: rank 1 at ";
    assert!(finished.stderr.contains(missing), "{}", finished.stderr);
    drop(other);
}

fn write_rows(folder: &Path, rows: usize) {
    let row = vec!["0.5"; 200].join(",");
    let rows = format!("{row},0\n{row},1\n").repeat(rows / 2);
    std::fs::write(folder.join("data.csv"), rows).unwrap();
}

/// Waits until it has opened the file.
fn reads_its_data(process: &Process) {
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
    write_rows(folder.path(), 50_000);
    let line = "train --dataset csv:data.csv --model mlp";
    let process = Member::start(folder.path(), line, &[]);
    reads_its_data(&process);
    ends_at_once(process, "TERM");
}

/// One of the processes is stopped in the middle of training, another one, which works with it, is
/// told to end.
#[rstest]
#[case("chief", "worker")]
#[case("chief", "ps")]
#[case("worker", "chief")]
#[case("ps", "chief")]
fn who_works_with_a_stopped_process_ends_at_a_signal(#[case] stopped: &str, #[case] asked: &str) {
    let folder = tempfile::tempdir().unwrap();
    let all = addresses(3);
    let line = format!("{SERVERS} --epochs 100000");
    let mut job: Vec<(&str, Process)> = ["ps", "worker", "chief"]
        .map(|role| {
            let config = tf_config(&servers(&all), role, 0);
            (
                role,
                Member::start(folder.path(), &line, &[("TF_CONFIG", &config)]),
            )
        })
        .into();
    let chief = &mut job[2].1;
    chief.wait_for(r#""epoch":2"#);
    let place = |role: &str, job: &[(&str, Process)]| job.iter().position(|it| it.0 == role);
    let index = place(stopped, &job).unwrap();
    job[index].1.signal("STOP");
    let index = place(asked, &job).unwrap();
    job[index].1.wait_until_it_waits();
    let (_, process) = job.remove(index);
    let finished = ends_soon(process, "TERM");
    assert_eq!(finished.code, Some(143), "{}", finished.stderr);
    let said = &finished.stderr;
    let address = match stopped {
        "chief" => &all[0],
        "ps" => &all[1],
        _ => &all[2],
    };
    assert!(said.contains(address.as_str()), "{said}");
}

/// There is nothing to measure, and nothing to wait for.
#[test]
fn an_evaluator_that_waits_for_a_checkpoint_ends_at_a_signal() {
    let folder = tempfile::tempdir().unwrap();
    let all = addresses(2);
    let cluster = format!(
        r#"{{"worker": [{:?}], "evaluator": [{:?}]}}"#,
        all[0], all[1]
    );
    let config = tf_config(&cluster, "evaluator", 0);
    let mut command = common::plain(folder.path());
    let unused = "--trace t.json --metrics-addr 0 --log-bits b";
    let line = format!("{MULTI} --checkpoint-dir saved --log-dir logs {unused}");
    command.args(line.split_whitespace());
    let process = Process::start(&mut command, &[("TF_CONFIG", &config)]);
    // The last that it makes before it follows the directory; until then it says that it had not
    // begun.
    appears(&folder.path().join("logs/evaluator"));
    process.wait_until_it_waits();
    let finished = ends_at_once(process, "TERM");
    assert!(finished.stderr.contains("saved"), "{}", finished.stderr);
    let said = "evaluator: --trace, --metrics-addr, --log-bits: for the tasks that train";
    assert_eq!(
        finished.stderr.matches(said).count(),
        1,
        "{}",
        finished.stderr
    );
}

/// Waits until a process has made it.
fn appears(path: &Path) {
    let begun = Instant::now();
    while !path.exists() {
        assert!(
            begun.elapsed() < common::LIMIT,
            "{} does not appear",
            path.display()
        );
        std::thread::yield_now();
    }
}

/// A chief that is refused leaves no process behind that has to be killed.
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
    let begun = Stopwatch::start();
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
    let said = &finished.stderr;
    assert!(!said.contains("Options::"), "{said}");
    let names_the_flag = said.contains("raise --rendezvous-timeout");
    assert_eq!(names_the_flag, role != "chief", "{said}");
}
