//! `train --log-bits` and `same-bits`: where two runs part.

use std::fs;
use std::path::Path;

use rstest::rstest;

use crate::common::{self, QUICK, run};
use crate::job::{self, MULTI};

fn train(folder: &Path, flags: &str) {
    common::succeed(folder, &format!("{QUICK} {flags}"));
}

#[test]
fn replicas_of_one_process_and_workers_have_the_same_bits() {
    let folder = tempfile::tempdir().unwrap();
    train(folder.path(), "--log-bits one.jsonl");
    fs::create_dir(folder.path().join("two")).unwrap();
    let arguments = format!("{MULTI} --steps 5 --log-bits two");
    job::succeed(folder.path(), 2, &arguments);
    let found = run(folder.path(), "same-bits one.jsonl two");
    assert_eq!(found.code, Some(0), "{}", found.stderr);
    insta::assert_snapshot!(found.stdout, @"equal: 6 parameters after 5 updates, the last one step 5");
}

/// The replicas that a run has, and the hash it ends with.
fn replicas_and_hash(stdout: &str) -> (u64, String) {
    let start: serde_json::Value = serde_json::from_str(stdout.lines().next().unwrap()).unwrap();
    (start["replicas"].as_u64().unwrap(), job::hash(stdout))
}

#[rstest]
#[case::on_one_device("--devices cpu:0 --replicas-per-device 4")]
#[case::on_two("--devices cpu:0,cpu:1 --replicas-per-device 2")]
#[case::central("--strategy central-storage --devices cpu:0 --replicas-per-device 4")]
fn replicas_of_a_device_have_the_bits_of_replicas_alone(#[case] layout: &str) {
    let folder = tempfile::tempdir().unwrap();
    let train = |layout: &str| {
        let train = "train --model mlp --steps 5 --output json --batch-size 7";
        let stdout = common::succeed(folder.path(), &format!("{train} {layout}"));
        replicas_and_hash(&stdout)
    };
    let alone = train("--replicas 4");
    assert_eq!(train(layout), alone);
    assert_eq!(alone.0, 4);
    let arguments = format!("{MULTI} --steps 5 --batch-size 7 --replicas-per-device 2");
    let (workers, _) = job::succeed(folder.path(), 2, &arguments);
    assert_eq!(replicas_and_hash(&workers), alone);
}

#[test]
fn without_devices_each_core_has_so_many_replicas() {
    let folder = tempfile::tempdir().unwrap();
    let arguments = "train --model mlp --steps 1 --output json --replicas-per-device 3";
    let (trained, _) = replicas_and_hash(&common::succeed(folder.path(), arguments));
    let planned = common::succeed(folder.path(), &format!("{arguments} --dry-run"));
    let planned: serde_json::Value = serde_json::from_str(planned.trim()).unwrap();
    assert_eq!(planned["replicas"].as_u64(), Some(trained));
    assert_eq!(planned["devices"].as_array().unwrap().len() as u64, trained);
    let cores = distribute_core::available_cores() as u64;
    assert_eq!(trained, 3 * cores);
}

#[test]
fn another_seed_parts_at_the_first_step() {
    let folder = tempfile::tempdir().unwrap();
    train(folder.path(), "--log-bits a");
    train(folder.path(), "--seed 2 --log-bits b");
    let found = run(folder.path(), "same-bits a b");
    assert_eq!((found.code, found.stderr.as_str()), (Some(1), ""));
    let mut lines = found.stdout.lines();
    insta::assert_snapshot!(lines.next().unwrap(), @"the runs diverge at step 1 (nothing before it to compare), in 6 of 6 parameters:");
    let (parameters, sorted): (Vec<&str>, Vec<&str>) = (lines.clone().collect(), lines.collect());
    assert!(
        sorted.is_sorted() && parameters.len() == 6,
        "{parameters:?}"
    );
}

/// A change of one hash in a file stands for a run whose bits differ there.
#[test]
fn the_step_and_the_parameters_are_those_that_differ() {
    let folder = tempfile::tempdir().unwrap();
    train(folder.path(), "--log-bits a");
    let text = fs::read_to_string(folder.path().join("a")).unwrap();
    let mut lines: Vec<String> = text.lines().map(str::to_string).collect();
    let mut line: serde_json::Value = serde_json::from_str(&lines[3]).unwrap();
    for parameter in [1, 3] {
        line["sha256"][parameter] = "0".repeat(64).into();
    }
    lines[3] = line.to_string();
    fs::write(folder.path().join("b"), lines.join("\n") + "\n").unwrap();
    let found = run(folder.path(), "same-bits a b");
    assert_eq!(found.code, Some(1), "{}", found.stderr);
    let head: serde_json::Value = serde_json::from_str(&lines[0]).unwrap();
    let named = [1, 3].map(|parameter| head["parameters"][parameter][0].as_str().unwrap());
    let expected = format!(
        "the runs diverge at step 3 (equal up to step 2), in 2 of 6 parameters:\n{}\n{}\n",
        named[0], named[1]
    );
    assert_eq!(found.stdout, expected);
}

/// Interrupted by the number of its steps, and gone on with.
#[test]
fn a_run_that_continues_has_the_log_of_one_that_was_not_interrupted() {
    let folder = tempfile::tempdir().unwrap();
    train(folder.path(), "--log-bits whole");
    let part = "train --model mlp --replicas 2 --checkpoint-dir c --log-bits part";
    common::succeed(folder.path(), &format!("{part} --steps 3"));
    let short = run(folder.path(), "same-bits whole part");
    assert_eq!(short.code, Some(2));
    insta::assert_snapshot!(short.stderr, @"error: whole is longer, up to step 5; both are equal up to step 3, where part ends; compare runs of one model with the same number of updates");
    common::succeed(folder.path(), &format!("{part} --steps 5 --restartable"));
    let read = |name: &str| fs::read(folder.path().join(name)).unwrap();
    assert_eq!(read("part"), read("whole"));
}

#[rstest]
#[case::missing("same-bits a nothing", &["nothing", "--log-bits"])]
#[case::another_model("same-bits a other", &["other models", "parameter 0"])]
#[case::no_log("same-bits a m.txt", &["m.txt", "line 1", "--log-bits"])]
#[case::servers("train --strategy parameter-server --log-bits x", &["--log-bits is not for"])]
fn what_cannot_be_compared_is_refused(#[case] arguments: &str, #[case] parts: &[&str]) {
    let folder = tempfile::tempdir().unwrap();
    train(folder.path(), "--log-bits a");
    fs::write(folder.path().join("m.txt"), "no log\n").unwrap();
    let other = "train --model digits-cnn --steps 1 --log-bits other";
    common::succeed(folder.path(), other);
    let found = run(folder.path(), arguments);
    assert_eq!(found.code, Some(2), "{}", found.stdout);
    assert!(found.stdout.is_empty(), "{}", found.stdout);
    for part in parts {
        assert!(found.stderr.contains(part), "{part} in {}", found.stderr);
    }
}
