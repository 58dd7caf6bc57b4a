//! What `train` writes beside the checkpoints: a disk that is full costs it, and not the training;
//! one run at a time writes into a directory.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::process::Stdio;

use distribute_core::checkpoint::load_latest;
use rstest::rstest;

use crate::common::{self, Process, behind, last_event, run, succeed};

const LOGS: &str = "--log-dir logs --log-bits bits.jsonl --trace trace.json --log-steps 1";

#[test]
fn files_that_cannot_grow_any_more_do_not_end_training() {
    let folder = tempfile::tempdir().unwrap();
    let train = "train --replicas 1 --output json --model mlp --epochs 50";
    let whole = last_event(&succeed(folder.path(), train));
    // Files of at most 8 blocks, which are 4 or 8 KiB.
    let limited = "trap '' XFSZ; ulimit -f 8; exec \"$@\"";
    let limited = behind(folder.path(), limited, &format!("{train} {LOGS}"));
    assert_eq!(limited.code, Some(0), "{}", limited.stderr);
    let ended = last_event(&limited.stdout);
    assert_eq!(ended["weights_sha256"], whole["weights_sha256"]);
    for file in [
        "logs/train/events",
        "logs/history.jsonl",
        "bits.jsonl",
        "trace.json",
    ] {
        let lines = limited.stderr.lines();
        let warnings: Vec<_> = lines.filter(|line| line.contains(file)).collect();
        let [warning] = &warnings[..] else {
            panic!("{file}: {}", limited.stderr);
        };
        assert!(warning.contains("File too large"), "{warning}");
    }
    // Only whole rows are left.
    for file in ["logs/history.jsonl", "bits.jsonl"] {
        let text = fs::read_to_string(folder.path().join(file)).unwrap();
        let row = serde_json::from_str::<serde_json::Value>;
        assert!(text.lines().all(|line| row(line).is_ok()), "{file}");
    }
}

#[test]
fn a_full_disk_under_the_logs_costs_the_logs_and_no_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    fs::create_dir(folder.join("logs")).unwrap();
    // A mount of its own, which ends with the process.
    let private = |then: &str| {
        format!("exec unshare -m sh -c 'mount -t tmpfs -o size=32k none logs && {then}' sh \"$@\"")
    };
    if behind(folder, &private("true"), "").code != Some(0) {
        eprintln!("SKIPPED: file systems cannot be mounted here");
        return;
    }
    let train = "train --replicas 1 --output json --model mlp --epochs 40 --checkpoint-dir saved \
                 --log-dir logs --log-bits logs/bits.jsonl --trace logs/trace.json";
    let full = behind(folder, &private("exec \"$@\""), train);
    assert_eq!(full.code, Some(0), "{}", full.stderr);
    assert!(
        full.stderr.contains("No space left on device"),
        "{}",
        full.stderr
    );
    let ended = last_event(&full.stdout);
    let (entry, _) = load_latest(folder.join("saved")).unwrap().found.unwrap();
    assert_eq!(ended["steps"], entry.step);
}

#[rstest]
fn a_full_standard_output_does_not_end_training(#[values("json", "text")] output: &str) {
    let folder = tempfile::tempdir().unwrap();
    let mut command = common::plain(folder.path());
    let train = "train --model mlp --replicas 1 --epochs 2 --log-steps 5 --checkpoint-dir saved";
    command
        .args(train.split_whitespace())
        .args(["--output", output]);
    let full = File::options().write(true).open("/dev/full").unwrap();
    let ended = command
        .stdout(full)
        .stderr(Stdio::piped())
        .output()
        .unwrap();
    let told = String::from_utf8(ended.stderr).unwrap();
    // What it ends with could not be told.
    assert_eq!(ended.status.code(), Some(1), "{told}");
    let warnings = told
        .lines()
        .filter(|line| line.contains("training goes on"));
    assert!((1..=3).contains(&warnings.count()), "{told}");
    assert!(told.contains("cannot write to standard output"), "{told}");
    let (_, saved) = load_latest(folder.path().join("saved"))
        .unwrap()
        .found
        .unwrap();
    assert_eq!(saved.metadata.epoch, 2);
}

/// The run that it goes on with counts for more, however it was told to go on.
#[rstest]
fn a_run_that_goes_on_does_without_a_trace_and_a_port(
    #[values("--restartable", "--resume")] how: &str,
) {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let busy = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = busy.local_addr().unwrap().port();
    let train = "train --model mlp --replicas 1 --checkpoint-dir saved";
    for output in ["--trace nodir/t.json", &format!("--metrics-addr {port}")] {
        let begins = run(folder, &format!("{train} --restartable --steps 2 {output}"));
        assert!(matches!(begins.code, Some(1 | 2)), "{}", begins.stderr);
    }
    succeed(folder, &format!("{train} --steps 2"));
    let both = format!("--trace nodir/t.json --metrics-addr {port}");
    let goes_on = run(folder, &format!("{train} {how} --steps 4 {both}"));
    assert_eq!(goes_on.code, Some(0), "{}", goes_on.stderr);
    let lines = goes_on.stderr.lines();
    let warnings = lines.filter(|line| line.starts_with("warning: "));
    assert_eq!(warnings.count(), 2, "{}", goes_on.stderr);
}

#[rstest]
#[case::begins("0", "", Some(2))]
#[case::started_again("1", "", Some(0))]
#[case::goes_on("0", "--restartable", Some(0))]
fn an_evaluator_does_without_what_it_cannot_write(
    #[case] restarts: &str,
    #[case] how: &str,
    #[case] code: Option<i32>,
) {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    succeed(
        folder,
        "train --model mlp --replicas 1 --steps 2 --checkpoint-dir saved",
    );
    let spec = r#"{"worker":["127.0.0.1:1"],"evaluator":["127.0.0.1:2"]}"#;
    let config = format!(r#"{{"cluster":{spec},"task":{{"type":"evaluator","index":0}}}}"#);
    fs::write(folder.join("file"), "").unwrap();
    let line = format!(
        "train --strategy multi-worker --model mlp --checkpoint-dir saved --log-dir file/logs {how}"
    );
    let mut command = common::plain(folder);
    command
        .args(line.split_whitespace())
        .env("TF_CONFIG", config);
    command.env("DISTRIBUTE_RESTART", restarts);
    let full = File::options().write(true).open("/dev/full").unwrap();
    let mut evaluator = command.stdout(full).stderr(Stdio::piped()).spawn().unwrap();
    let _watchdog = common::watchdog(evaluator.id());
    let mut said = String::new();
    let mut lines = BufReader::new(evaluator.stderr.take().unwrap()).lines();
    for line in &mut lines {
        let line = line.unwrap();
        said += &format!("{line}\n");
        if line.contains("standard output") {
            // It has measured, and would end at once if it did not go on.
            common::send(evaluator.id(), "TERM").unwrap();
        }
    }
    let ended = evaluator.wait().unwrap().code();
    assert_eq!(ended, code, "{said}");
    assert!(said.contains("file/logs"), "{said}");
    if code == Some(0) {
        assert!(said.contains("the evaluator goes on without --log-dir"));
        assert!(said.contains("the evaluator goes on\n"), "{said}");
    }
}

#[test]
fn a_second_run_is_refused_the_log_directory_of_one_that_writes_there() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let train = "train --model mlp --replicas 1 --log-dir logs --output json";
    let arguments = format!("{train} --epochs 100000");
    let mut command = common::plain(folder);
    let mut first = Process::start(command.args(arguments.split_whitespace()), &[]);
    first.wait_for("\"epoch\":2");
    let before = fs::read_dir(folder.join("logs/train")).unwrap().count();
    let second = run(folder, &format!("{train} --epochs 1"));
    assert_eq!(second.code, Some(1), "{}", second.stderr);
    let said = format!("logs is in use by process {} on host ", first.child.id());
    assert!(second.stderr.contains(&said), "{}", second.stderr);
    assert!(
        second.stderr.contains("another --log-dir"),
        "{}",
        second.stderr
    );
    let curves = fs::read_dir(folder.join("logs/train")).unwrap().count();
    assert_eq!((before, curves), (1, 1), "the first keeps its curves");
    first.signal("TERM");
    first.finish();
    succeed(folder, &format!("{train} --epochs 1"));
}

#[test]
fn a_second_run_is_refused_the_trace_of_one_that_writes_it() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let train = "train --model mlp --replicas 1 --trace trace.json --output json";
    let arguments = format!("{train} --epochs 100000");
    let mut command = common::plain(folder);
    let mut first = Process::start(command.args(arguments.split_whitespace()), &[]);
    first.wait_for("\"epoch\":2");
    let second = run(folder, &format!("{train} --epochs 1"));
    assert_ne!(second.code, Some(0));
    assert!(
        second.stderr.contains("another run writes it"),
        "{}",
        second.stderr
    );
    first.signal("TERM");
    first.finish();
}
