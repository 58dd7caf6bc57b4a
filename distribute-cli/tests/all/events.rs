//! `--log`: what is shown of the events of the libraries.

use std::net::Ipv4Addr;

use distribute_launch::ReservedPorts;
use serde_json::Value;

use crate::common;

/// A worker of two whose fellow never comes: it says at every try that it has not joined yet.
fn alone(flags: &str) -> (Option<i32>, String) {
    let folder = tempfile::tempdir().unwrap();
    let ports = ReservedPorts::new(2, Ipv4Addr::LOCALHOST.into()).unwrap();
    let [first, second] = [0, 1].map(|worker| ports.addresses()[worker]);
    let cluster = format!(
        r#"{{"cluster":{{"worker":["{first}","{second}"]}},"task":{{"type":"worker","index":1}}}}"#
    );
    let train = "train --strategy multi-worker --model mlp --rendezvous-timeout 1";
    let output = common::program(folder.path())
        .args(train.split_whitespace())
        .args(flags.split_whitespace())
        .env("TF_CONFIG", cluster)
        .output()
        .unwrap();
    assert_eq!(output.stdout, b"");
    (
        output.status.code(),
        String::from_utf8(output.stderr).unwrap(),
    )
}

#[test]
fn events_are_shown_from_the_level_that_is_asked_for() {
    let (code, quiet) = alone("");
    assert!(!quiet.contains("debug: "), "{quiet}");
    let (code_of_more, more) = alone("--log debug");
    assert_eq!(code, code_of_more);
    let line = more
        .lines()
        .find(|line| line.starts_with("debug: worker 1: "));
    let line = line.unwrap_or_else(|| panic!("no event in {more}"));
    assert!(
        line.contains("rank=1") && line.contains("[distribute_collectives"),
        "{line}"
    );
    // Errors of the program are no events.
    let (_, off) = alone("--log off");
    assert!(
        off.starts_with("error: ") && off.lines().count() <= 2,
        "{off}"
    );
}

#[test]
fn events_are_json_on_request() {
    let (_, stderr) = alone("--log debug --log-format json");
    let lines = stderr.lines().filter(|line| line.starts_with('{'));
    let events: Vec<Value> = lines
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert!(!events.is_empty(), "{stderr}");
    for event in &events {
        assert_eq!(event["event"], "log");
        assert_eq!(
            (&event["task"], &event["rank"]),
            (&"worker 1".into(), &1.into())
        );
    }
    assert!(
        events.iter().any(|event| event["level"] == "debug"),
        "{stderr}"
    );
}

#[test]
fn the_level_may_stand_in_the_configuration_file() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("run.toml"), "log = \"loud\"").unwrap();
    let refused = common::run(folder.path(), "train --config run.toml");
    assert_eq!(refused.code, Some(2), "{}", refused.stderr);
    assert!(
        refused
            .stderr
            .contains("off, error, warn, info, debug, trace"),
        "{}",
        refused.stderr
    );
    let given = common::run(
        folder.path(),
        "train --config run.toml --log info --dry-run",
    );
    assert_eq!(given.code, Some(0), "{}", given.stderr);
}
