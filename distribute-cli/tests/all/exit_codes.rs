//! Exit codes by cause, over all commands: what the same command would meet again ends with 2,
//! numbers that are not finite with 43, and what may pass with 1.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use rstest::rstest;

use crate::common::{self, Finished, run};

/// Runs the program with these variables.
fn run_with(folder: &Path, arguments: &[&str], variables: &[(&str, &str)]) -> Finished {
    let mut command = common::program(folder);
    command.args(arguments).envs(variables.iter().copied());
    let output = command.output().unwrap();
    Finished {
        code: output.status.code(),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

/// Checks code and length, and that the message names what is wrong.
fn ended(finished: &Finished, code: i32, named: &str, case: &str) {
    let said = &finished.stderr;
    assert_eq!(finished.code, Some(code), "{case}: {said}");
    let errors = said.lines().filter(|line| line.starts_with("error: "));
    assert_eq!(errors.count(), 1, "{case}: {said}");
    assert!(said.lines().count() <= 2, "{case}: {said}");
    assert!(said.contains(named), "{case}: {said}");
}

const MULTI: [&str; 3] = ["train", "--strategy", "multi-worker"];
const TWO: &str = r#"{"worker": ["127.0.0.1:1", "127.0.0.1:2"]}"#;

/// A task of the cluster of two.
fn config(task: &str) -> String {
    format!(r#"{{"cluster": {TWO}, "task": {task}}}"#)
}

#[test]
fn a_cluster_that_is_not_right_is_met_again() {
    let folder = tempfile::tempdir().unwrap();
    let at = |address: &str| {
        let cluster = format!(r#"{{"worker": ["{address}", "127.0.0.1:2"]}}"#);
        format!(r#"{{"cluster": {cluster}, "task": {{"type": "worker", "index": 0}}}}"#)
    };
    let configs = [
        ("{bad".to_string(), "TF_CONFIG"),
        (config(r#"{"type": "worker", "index": 7}"#), "worker 7"),
        (config(r#"{"type": "cook", "index": 0}"#), "cook"),
        (
            config(r#"{"type": "worker", "index": "x"}"#),
            "whole number",
        ),
        (at("127.0.0.1:99999"), "99999"),
        (at("127.0.0.1"), "host:port"),
        // Needs a token and certificates.
        (
            at("192.0.2.1:80").replace("127.0.0.1:2", "192.0.2.2:2"),
            "--certs",
        ),
        (at("192.0.2.1:80"), "only its own host reaches it"),
    ];
    for (config, named) in &configs {
        let finished = run_with(folder.path(), &MULTI, &[("TF_CONFIG", config)]);
        ended(&finished, 2, named, config);
    }
    let full = |name: &'static str, value: &'static str| {
        let usual = [
            ("RANK", "0"),
            ("WORLD_SIZE", "2"),
            ("MASTER_ADDR", "127.0.0.1"),
            ("MASTER_PORT", "29500"),
        ];
        usual.map(|(known, usual)| (known, if known == name { value } else { usual }))
    };
    for (name, value) in [
        ("RANK", "x"),
        ("RANK", "-1"),
        ("RANK", "5"),
        ("WORLD_SIZE", "many"),
        ("MASTER_PORT", "x"),
        ("MASTER_PORT", "99999"),
    ] {
        let finished = run_with(folder.path(), &MULTI, &full(name, value));
        ended(&finished, 2, value.trim_start_matches('-'), name);
    }
    let token = ("DISTRIBUTE_JOB_TOKEN", "short");
    let task = config(r#"{"type": "worker", "index": 0}"#);
    let finished = run_with(folder.path(), &MULTI, &[("TF_CONFIG", &task), token]);
    ended(&finished, 2, "token", "a short token");
}

#[rstest]
#[case("train --strategy multi-worker --cluster-spec {bad", "not valid JSON")]
#[case(
    "train --strategy parameter-server --cluster-spec {bad",
    "not valid JSON"
)]
#[case(
    "train --strategy multi-worker --cluster-spec [] --dry-run",
    "it is a list"
)]
#[case("train --data-dir somewhere", "--data-dir")]
#[case("train --strategy tpu --pjrt-plugin gone.so", "gone.so")]
#[case("train --strategy tpu --pjrt-plugin a.txt", "a.txt")]
#[case("train --strategy multi-worker --cluster slurm", "SLURM_PROCID")]
#[case("bench train --replicas 0", "--replicas")]
#[case("train --dataset csv:gone.csv", "gone.csv")]
#[case("train --dataset csv:dangling.csv", "dangling.csv")]
#[case("train --dataset csv:circle.csv", "circle.csv")]
#[case("train --dataset npz:circle.csv", "circle.csv")]
#[case("train --dataset csv:.", "directory")]
#[case("train --dataset csv:a.txt/b.csv", "b.csv")]
#[case("train --model gone.json", "gone.json")]
#[case("train --model .", "model file")]
#[case("train --weights gone.h5", "gone.h5")]
#[case("train --weights a.txt", "no file of weights")]
#[case("train --freeze block*", "no layer is called block*")]
#[case("export gone --to m.keras", "gone")]
#[case("export a.txt --to m.bin", ".weights.h5")]
#[case("train --checkpoint-dir a.txt", "a.txt")]
#[case("train --checkpoint-dir dangling.csv", "dangling.csv")]
#[case("train --checkpoint-dir circle.csv", "circle.csv")]
#[case("train --checkpoint-dir a.txt/saved", "a.txt")]
#[case("train --steps 1 --log-dir circle.csv/logs", "circle.csv")]
#[case("train --steps 1 --output json --log-bits a.txt/bits", "a.txt")]
#[case("train --steps 1 --trace gone/trace.json", "gone/trace.json")]
#[case("train --steps 1 --trace .", "--trace")]
#[case("train --config gone.toml", "gone.toml")]
#[case("evaluate --checkpoint-dir gone", "gone")]
#[case("predict --checkpoint-dir a.txt", "a.txt")]
#[case("blame gone", "gone")]
#[case("blame .", "no flight record")]
#[case("same-bits gone gone", "gone")]
#[case("conformance --golden gone", "gone")]
#[case("conformance --golden .", "golden")]
#[case("conformance --strategy mirrord", "mirrord")]
#[case("certs --out a.txt --hosts a", "a.txt")]
#[case("certs --out made --hosts a,a", "a is named twice")]
#[case("certs --out made --hosts a,\u{e9}", "host")]
#[case("certs --out a.txt/made --hosts a", "a.txt")]
#[case("man --out a.txt/pages", "a.txt")]
#[case("launch --workers 1 --log-dir a.txt -- true", "a.txt")]
#[case("launch --workers 1 --log-dir logs -- ./a.txt", "a.txt")]
#[case("launch --workers 1 --log-dir logs -- gone-program", "gone-program")]
fn what_a_command_was_given_is_met_again(#[case] command: &str, #[case] named: &str) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    fs::write(path.join("a.txt"), "a").unwrap();
    symlink("nowhere", path.join("dangling.csv")).unwrap();
    symlink("circle.csv", path.join("circle.csv")).unwrap();
    ended(&run(path, command), 2, named, command);
}

#[test]
fn what_may_pass_is_not_met_again() {
    let folder = tempfile::tempdir().unwrap();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let command = format!("train --steps 1 --metrics-addr {port}");
    ended(&run(folder.path(), &command), 1, "in use", "a busy port");
    let cluster = format!(r#"{{"worker": ["127.0.0.1:{port}", "127.0.0.1:2"]}}"#);
    let config = format!(r#"{{"cluster": {cluster}, "task": {{"type": "worker", "index": 0}}}}"#);
    let finished = run_with(folder.path(), &MULTI, &[("TF_CONFIG", &config)]);
    ended(&finished, 1, "in use", "a busy port of a worker");
    let config = format!(
        r#"{{"cluster": {{"ps": ["127.0.0.1:{port}"], "worker": ["127.0.0.1:2"],
            "chief": ["127.0.0.1:3"]}}, "task": {{"type": "ps", "index": 0}}}}"#
    );
    let servers = ["train", "--strategy", "parameter-server"];
    let finished = run_with(folder.path(), &servers, &[("TF_CONFIG", &config)]);
    ended(&finished, 1, "in use", "a busy port of a server");
}

/// Each of them is a training whose loss or weights are not finite, seen at another place.
#[rstest]
// In the loss of a step, at the end of an epoch.
#[case("--learning-rate 1e30 --optimizer sgd --epochs 3")]
// In the weights that the very last update leaves, of which no loss is computed any more.
#[case("--learning-rate 1e38 --optimizer sgd --steps 1")]
#[case("--learning-rate 1e38 --optimizer sgd --steps 1 --output json")]
// Before they would be saved.
#[case("--learning-rate 1e38 --optimizer sgd --steps 1 --checkpoint-dir saved")]
#[case(
    "--learning-rate 1e38 --optimizer sgd --steps 2 --checkpoint-dir saved --checkpoint-steps 1"
)]
fn numbers_that_are_not_finite_have_a_code_of_their_own(#[case] flags: &str) {
    let folder = tempfile::tempdir().unwrap();
    let command = format!("train --model mlp --replicas 1 {flags}");
    let finished = run(folder.path(), &command);
    assert_eq!(finished.code, Some(43), "{}", finished.stderr);
    assert!(!finished.stdout.contains("\"done\""), "{}", finished.stdout);
    let said = finished.stderr.matches("not finite").count();
    assert_eq!(said, 1, "said once: {}", finished.stderr);
}
