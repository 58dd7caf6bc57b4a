//! Every signal that can be caught saves, however it is called; the others are documented.

use std::path::Path;
use std::process::Command;
use std::sync::mpsc;

use distribute_core::checkpoint;
use rstest::rstest;

use crate::common::{self, Process};

const LONG: &str = "train --model mlp --replicas 1 --epochs 100000 --output json";

/// Sends a signal by its number; some have no name everywhere.
fn send(process: &Process, signal: i32) {
    let kill = format!("kill -{signal} {}", process.child.id());
    let sent = Command::new("sh").args(["-c", &kill]).status().unwrap();
    assert!(sent.success(), "{kill}");
}

/// A shell that starts the program, whose path is `$0`.
fn shell(folder: &Path) -> Command {
    let mut shell = Command::new("sh");
    shell.current_dir(folder).env("TMPDIR", folder);
    shell
}

/// A run that has made steps.
fn training(folder: &Path, arguments: &str) -> Process {
    let mut command = common::plain(folder);
    let line = format!("{LONG} {arguments}");
    let mut process = Process::start(command.args(line.split_whitespace()), &[]);
    process.wait_for("val_loss");
    process
}

/// The signals of Linux by their numbers, of the real-time ones the first and the last.
const NOTICES: [i32; 11] = [
    10, // SIGUSR1
    12, // SIGUSR2
    24, // SIGXCPU
    14, // SIGALRM
    26, // SIGVTALRM
    27, // SIGPROF
    29, // SIGIO
    30, // SIGPWR
    16, // SIGSTKFLT
    34, 64,
];
const ORDERS: [i32; 4] = [2, 15, 1, 3];

#[test]
fn every_signal_that_can_be_caught_saves_and_ends() {
    let (done, ended) = mpsc::channel();
    let signals = ORDERS.iter().chain(&NOTICES);
    let threads: Vec<_> = signals
        .map(|&signal| {
            let done = done.clone();
            std::thread::spawn(move || {
                let folder = tempfile::tempdir().unwrap();
                let process = training(folder.path(), "--checkpoint-dir saved");
                send(&process, signal);
                let finished = process.finish();
                let newest = checkpoint::load_latest(folder.path().join("saved")).unwrap();
                let _ = done.send((signal, finished, newest.found.is_some()));
            })
        })
        .collect();
    drop(done);
    for (signal, finished, is_saved) in ended {
        let said = &finished.stderr;
        assert_eq!(finished.code, Some(42), "signal {signal}: {said}");
        assert!(
            is_saved && said.contains("interrupted after step"),
            "{said}"
        );
        assert_eq!(said.lines().count(), 2, "signal {signal}: {said}");
    }
    threads
        .into_iter()
        .for_each(|thread| thread.join().unwrap());
}

/// The system repeats that of processor time; a batch system follows its notice by an order.
#[test]
fn notices_never_end_at_once_however_often_they_come() {
    let folder = tempfile::tempdir().unwrap();
    let process = training(folder.path(), "--checkpoint-dir saved");
    // While it is stopped none is heard, and after that all are.
    process.signal("STOP");
    for signal in [24, 10, 12, 15] {
        send(&process, signal);
    }
    process.signal("CONT");
    let finished = process.finish();
    assert_eq!(finished.code, Some(42), "{}", finished.stderr);
}

#[test]
fn a_signal_before_training_ends_the_wait_with_its_number() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = common::plain(folder.path());
    let line = "train --strategy multi-worker --model mlp";
    let addresses = crate::job::addresses(2);
    let cluster = format!(r#"{{"worker": {addresses:?}}}"#);
    let config = crate::job::tf_config(&cluster, "worker", 0);
    let command = command.args(line.split_whitespace());
    let process = Process::start(command, &[("TF_CONFIG", &config)]);
    let begun = std::time::Instant::now();
    while std::net::TcpStream::connect(&addresses[0]).is_err() {
        assert!(begun.elapsed() < common::LIMIT, "it does not listen");
        std::thread::yield_now();
    }
    send(&process, 10);
    let finished = process.finish();
    assert_eq!(finished.code, Some(138), "{}", finished.stderr);
    assert!(
        finished.stderr.contains("interrupted"),
        "{}",
        finished.stderr
    );
}

/// A process of another role than a worker's: a server that waits for its coordinator, and an
/// evaluator, which has measured what there is.
#[test]
fn servers_and_evaluators_end_at_a_notice() {
    let folder = tempfile::tempdir().unwrap();
    let addresses = crate::job::addresses(3);
    let cluster = format!(
        r#"{{"ps": ["{}"], "worker": ["{}"], "chief": ["{}"]}}"#,
        addresses[0], addresses[1], addresses[2]
    );
    let start = |task: &str, line: &str| {
        let mut command = common::plain(folder.path());
        let config = crate::job::tf_config(&cluster, task, 0);
        let command = command.args(line.split_whitespace());
        Process::start(command, &[("TF_CONFIG", &config)])
    };
    let server = start("ps", "train --strategy parameter-server --model mlp");
    let begun = std::time::Instant::now();
    while std::net::TcpStream::connect(&addresses[0]).is_err() {
        assert!(begun.elapsed() < common::LIMIT, "it does not listen");
        std::thread::yield_now();
    }
    send(&server, 12);
    let ended = server.finish();
    assert_eq!(ended.code, Some(140), "{}", ended.stderr);
    assert!(ended.stderr.starts_with("SIGUSR2: "), "{}", ended.stderr);

    let line = "--model mlp --replicas 1 --steps 3 --checkpoint-dir saved";
    common::succeed(folder.path(), &format!("train {line}"));
    let mut evaluator = start(
        "evaluator",
        &format!("train --strategy multi-worker {line}"),
    );
    evaluator.wait_for("test accuracy");
    send(&evaluator, 10);
    let ended = evaluator.finish();
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert!(ended.stderr.contains("SIGUSR1: "), "{}", ended.stderr);
}

/// `nohup` switches SIGHUP off, and a shell SIGINT of what runs in its background.
#[rstest]
#[case("HUP", 1)]
#[case("INT", 2)]
fn a_signal_that_was_switched_off_stays_so(#[case] name: &str, #[case] number: i32) {
    let folder = tempfile::tempdir().unwrap();
    let program = common::plain(folder.path());
    let program = program.get_program().to_owned();
    let mut shell = shell(folder.path());
    let script = format!("trap '' {name}; exec \"$0\" {LONG} --checkpoint-dir saved");
    shell.arg("-c").arg(script).arg(program);
    let mut process = Process::start(&mut shell, &[]);
    process.wait_for("val_loss");
    send(&process, number);
    process.wait_for(r#""epoch":3"#);
    process.signal("TERM");
    let finished = process.finish();
    assert_eq!(finished.code, Some(42), "{}", finished.stderr);
    assert!(
        finished.stderr.starts_with("SIGTERM: "),
        "{}",
        finished.stderr
    );
}

/// A write beyond the limit for files is an error with a name, not the death of the process.
#[rstest]
#[case(
    "train --model mlp --replicas 1 --steps 1 --checkpoint-dir saved",
    "saved"
)]
#[case("man --out pages", "pages")]
#[case("completions bash > script", "standard output")]
fn the_limit_for_files_is_an_error(#[case] command: &str, #[case] named: &str) {
    let folder = tempfile::tempdir().unwrap();
    let program = common::plain(folder.path());
    let program = program.get_program().to_owned();
    let mut shell = shell(folder.path());
    // Blocks of 512 bytes.
    let script = format!("ulimit -f 2; exec \"$0\" {command}");
    let ended = shell.arg("-c").arg(script).arg(program).output().unwrap();
    let stderr = String::from_utf8(ended.stderr).unwrap();
    let code = ended.status.code();
    assert!(matches!(code, Some(1 | 2)), "{:?}: {stderr}", ended.status);
    assert!(stderr.contains("File too large"), "{stderr}");
    let last = stderr.lines().last().unwrap();
    assert!(last.contains(named), "{stderr}");
}
