//! What is wrong with a job is said by every worker in one or two lines.

use crate::common::{self, Finished};
use crate::job::{MULTI, Member, addresses, cluster, finish, start, tf_config};

/// One line of every worker that failed, without addresses and times.
fn said(ended: &[Finished]) -> String {
    let mut lines = Vec::new();
    for (worker, ended) in ended.iter().enumerate() {
        assert!(
            matches!(ended.code, Some(1 | 2)),
            "worker {worker}: {}",
            ended.stderr
        );
        assert_eq!(
            ended.stderr.lines().count(),
            1,
            "worker {worker}: {}",
            ended.stderr
        );
        lines.push(format!(
            "worker {worker}, exit {}: {}",
            ended.code.unwrap(),
            ended.stderr
        ));
    }
    lines.concat()
}

fn assert_said(name: &str, ended: &[Finished]) {
    let filters = vec![
        (r"127\.\d+\.\d+\.\d+:\d+", "[ADDRESS]"),
        (r"/\S*/\.tmp\w+", "[FOLDER]"),
        (r"\d+\.\d+ ?m?s\b", "[TIME]"),
    ];
    insta::with_settings!({ filters => filters }, {
        insta::assert_snapshot!(name, said(ended));
    });
}

/// Two workers with arguments of their own.
fn two(folder: &std::path::Path, arguments: [&str; 2]) -> Vec<Finished> {
    let cluster = cluster(2);
    let members = arguments.iter().enumerate().map(|(index, arguments)| {
        let config = tf_config(&cluster, "worker", index);
        Member::start(
            folder,
            &format!("{MULTI} {arguments}"),
            &[("TF_CONFIG", &config)],
        )
    });
    finish(members.collect())
}

#[test]
fn workers_with_different_models() {
    let folder = tempfile::tempdir().unwrap();
    let cluster = cluster(2);
    let members = ["mlp", "digits-cnn"]
        .iter()
        .enumerate()
        .map(|(index, model)| {
            let config = tf_config(&cluster, "worker", index);
            let arguments = MULTI.replace("mlp", model);
            Member::start(folder.path(), &arguments, &[("TF_CONFIG", &config)])
        });
    assert_said("different_models", &finish(members.collect()));
}

#[test]
fn directories_that_are_not_shared() {
    let folder = tempfile::tempdir().unwrap();
    let ended = two(folder.path(), ["--checkpoint-dir a", "--checkpoint-dir b"]);
    assert_said("not_shared", &ended);
}

#[test]
fn checkpoints_without_resume() {
    let folder = tempfile::tempdir().unwrap();
    let flags = "--checkpoint-dir saved --steps 3";
    for worker in two(folder.path(), [flags, flags]) {
        assert_eq!(worker.code, Some(0), "{}", worker.stderr);
    }
    assert_said(
        "checkpoints_without_resume",
        &two(folder.path(), [flags, flags]),
    );
}

#[test]
fn a_worker_that_does_not_come() {
    let folder = tempfile::tempdir().unwrap();
    let config = tf_config(&cluster(2), "worker", 0);
    let flags = format!("{MULTI} --rendezvous-timeout 1");
    let alone = Member::start(folder.path(), &flags, &[("TF_CONFIG", &config)]);
    assert_said("missing_worker", &[alone.finish()]);
}

#[test]
fn a_port_that_is_in_use() {
    let folder = tempfile::tempdir().unwrap();
    let both = addresses(2);
    let _taken = std::net::TcpListener::bind(&both[0]).unwrap();
    let config = tf_config(&format!(r#"{{"worker": {both:?}}}"#), "worker", 0);
    let worker = Member::start(folder.path(), MULTI, &[("TF_CONFIG", &config)]);
    assert_said("port_in_use", &[worker.finish()]);
}

#[test]
fn addresses_beyond_this_machine_without_protection() {
    let folder = tempfile::tempdir().unwrap();
    let config = tf_config(
        r#"{"worker": ["0.0.0.0:29999", "192.0.2.1:29999"]}"#,
        "worker",
        0,
    );
    let worker = Member::start(folder.path(), MULTI, &[("TF_CONFIG", &config)]);
    assert_said("no_protection", &[worker.finish()]);
}

#[test]
fn variables_and_roles_that_make_no_sense() {
    let folder = tempfile::tempdir().unwrap();
    let spec = r#"{"worker": ["a:1", "b:1"], "ps": ["c:1"]}"#;
    let cases = [
        ("{", "tf_config_not_json"),
        (&tf_config(spec, "worker", 7), "tf_config_no_such_task"),
        (&tf_config(spec, "ps", 0), "tf_config_parameter_server"),
        (&tf_config(spec, "boss", 0), "tf_config_no_such_type"),
    ];
    for (config, name) in cases {
        let worker = Member::start(folder.path(), MULTI, &[("TF_CONFIG", config)]);
        assert_said(name, &[worker.finish()]);
    }
    let evaluator = tf_config(&cluster(2), "evaluator", 0);
    let evaluator = Member::start(folder.path(), MULTI, &[("TF_CONFIG", &evaluator)]);
    assert_said("evaluator_without_directory", &[evaluator.finish()]);
    let saved = format!("{MULTI} --checkpoint-dir saved");
    let restart = Member::start(folder.path(), &saved, &[("DISTRIBUTE_RESTART", "often")]);
    assert_said("restart_is_no_number", &[restart.finish()]);
}

#[test]
fn flags_that_are_for_several_workers_only() {
    let folder = tempfile::tempdir().unwrap();
    let alone = common::run(folder.path(), "train --task-id 1");
    assert_eq!(alone.code, Some(2));
    insta::assert_snapshot!("flag_without_workers", alone.stderr);
    let evaluate = "evaluate --checkpoint-dir saved --strategy multi-worker";
    let evaluate = common::run(folder.path(), evaluate);
    assert_eq!(evaluate.code, Some(2));
    insta::assert_snapshot!("evaluate_with_workers", evaluate.stderr);
    let without = common::run(folder.path(), "train --restartable");
    assert_eq!(without.code, Some(2));
    insta::assert_snapshot!("restartable_without_directory", without.stderr);
}

#[test]
fn an_error_of_one_worker_is_the_news_of_the_others() {
    let folder = tempfile::tempdir().unwrap();
    let mut members = start(folder.path(), 1, MULTI, &[]);
    drop(members.pop());
    let rows = "1,0\n2,1\n".repeat(20);
    std::fs::write(folder.path().join("there.csv"), format!("a,label\n{rows}")).unwrap();
    let ended = two(
        folder.path(),
        [
            "--dataset csv:missing.csv",
            "--dataset csv:there.csv --rendezvous-timeout 5",
        ],
    );
    assert_eq!(ended[0].code, Some(2));
    assert!(
        ended[0].stderr.contains("missing.csv"),
        "{}",
        ended[0].stderr
    );
    assert_eq!(ended[1].code, Some(1));
    assert!(ended[1].stderr.contains("rank 0"), "{}", ended[1].stderr);
}

/// A worker that does not print takes no part in the averages, so the others would wait for it.
#[test]
fn workers_with_different_log_steps() {
    let folder = tempfile::tempdir().unwrap();
    let ended = two(folder.path(), ["--steps 4 --log-steps 2", "--steps 4"]);
    assert_said("different_log_steps", &ended);
}

#[test]
fn more_workers_than_replicas() {
    let folder = tempfile::tempdir().unwrap();
    let arguments = format!("{MULTI} --total-replicas 2");
    let ended = finish(start(folder.path(), 3, &arguments, &[]));
    for worker in &ended {
        assert_eq!(worker.code, Some(2), "{}", worker.stderr);
    }
    assert_said("more_workers_than_replicas", &ended);
}

#[test]
fn replicas_that_do_not_fit_their_devices() {
    let folder = tempfile::tempdir().unwrap();
    let arguments = format!("{MULTI} --total-replicas 5 --devices cpu:0,cpu:1");
    let ended = finish(start(folder.path(), 1, &arguments, &[]));
    assert_said("replicas_without_devices", &ended);
    let both = format!("{MULTI} --total-replicas 5 --replicas 2");
    let ended = finish(start(folder.path(), 1, &both, &[]));
    assert_eq!(ended[0].code, Some(2), "{}", ended[0].stderr);
    let many = format!("{MULTI} --total-replicas 5000");
    let ended = finish(start(folder.path(), 2, &many, &[]));
    assert_said("more_replicas_than_threads", &ended);
}
