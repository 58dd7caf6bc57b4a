//! `train --strategy parameter-server`: jobs of a chief, servers and workers.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use distribute_core::checkpoint;
use rstest::rstest;
use serde_json::Value;

use crate::common::{self, Finished, Process, run, succeed};
use crate::job;
use crate::launch::child_of;

const TRAIN: &str = "train --strategy parameter-server --output json";

/// `launch OPTIONS -- distribute-cli COMMAND`.
fn command(folder: &Path, options: &str, command: &str) -> Command {
    let mut launch = common::plain(folder);
    launch.arg("launch").args(options.split_whitespace());
    launch
        .arg("--")
        .arg(assert_cmd::cargo::cargo_bin("distribute-cli"));
    launch.args(command.split_whitespace());
    launch
}

fn launch(folder: &Path, options: &str, asked: &str) -> Finished {
    Process::start(&mut command(folder, options, asked), &[]).finish()
}

/// The process of a task: a child of the launcher whose environment says so. One that is just being
/// started is waited for; how soon it is seen is all that depends on the pause.
fn process_of(launcher: &Process, role: &str, index: usize) -> u32 {
    let task = format!(r#""task":{{"type":"{role}","index":{index}}}"#);
    let begun = Instant::now();
    loop {
        if let Some(found) = child_of(launcher, &task) {
            return found;
        }
        assert!(begun.elapsed() < common::LIMIT, "{role} {index} runs");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn events(stdout: &str, kind: &str) -> Vec<Value> {
    let events = stdout
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap());
    events.filter(|event| event["event"] == kind).collect()
}

#[test]
fn a_job_trains_reports_and_saves_as_any_other() {
    let folder = tempfile::tempdir().unwrap();
    let finished = launch(
        folder.path(),
        "--ps 2 --workers 3 --log-dir logs",
        &format!("{TRAIN} --epochs 6 --checkpoint-dir saved --log-dir board --log-steps 40"),
    );
    assert_eq!(finished.code, Some(0), "{}", finished.stderr);
    let start = &events(&finished.stdout, "start")[0];
    assert_eq!(start["strategy"], "parameter-server");
    assert_eq!(
        (&start["workers"], &start["replicas"]),
        (&3.into(), &1.into())
    );
    let epochs = events(&finished.stdout, "epoch");
    assert_eq!(epochs.len(), 6);
    let loss = |event: &Value| event["loss"].as_f64().unwrap();
    assert!(loss(&epochs[5]) < loss(&epochs[0]) * 0.5, "{epochs:?}");
    assert_eq!(events(&finished.stdout, "step").len(), 3);
    let done = &events(&finished.stdout, "done")[0];
    assert_eq!(done["steps"], 138);
    assert!(done["val_accuracy"].as_f64().unwrap() > 0.7, "{done}");
    assert!(folder.path().join("board/history.csv").exists());
    // Any other strategy reads what was saved.
    let evaluated = succeed(
        folder.path(),
        "evaluate --checkpoint-dir saved --output json",
    );
    let evaluated = common::last_event(&evaluated);
    assert_eq!(evaluated["accuracy"], done["val_accuracy"]);
}

#[test]
fn one_worker_trains_to_the_bits_of_one_device() {
    let folder = tempfile::tempdir().unwrap();
    let options = "--model mlp --epochs 2 --batch-size 32 --optimizer sgd --output json";
    let alone = succeed(
        folder.path(),
        &format!("train --strategy one-device {options}"),
    );
    let job = format!("train --strategy parameter-server {options}");
    for more in ["", " --shard-bytes 1000"] {
        let finished = launch(folder.path(), "--ps 2 --workers 1", &format!("{job}{more}"));
        assert_eq!(finished.code, Some(0), "{}", finished.stderr);
        let (found, expected) = (
            common::last_event(&finished.stdout),
            common::last_event(&alone),
        );
        assert_eq!(found, expected);
    }
}

#[test]
fn a_killed_worker_costs_no_step() {
    let folder = tempfile::tempdir().unwrap();
    let asked = format!("{TRAIN} --model mlp --epochs 30 --log-steps 20");
    let options = "--ps 2 --workers 3 --max-restarts 3 --restart-pause 0 --log-dir logs";
    let mut job = Process::start(&mut command(folder.path(), options, &asked), &[]);
    for step in [r#""step":60"#, r#""step":200"#, r#""step":400"#] {
        // Which number is printed depends on how many updates end together.
        job.wait_for(&step[..step.len() - 1]);
        common::signal(process_of(&job, "worker", 1), "KILL");
    }
    let finished = job.finish();
    assert_eq!(finished.code, Some(0), "{}", finished.stderr);
    let done = &events(&finished.stdout, "done")[0];
    assert_eq!(done["steps"], 30 * 23, "each step once");
    assert!(
        finished.stderr.contains("restart 1 of 3"),
        "{}",
        finished.stderr
    );
}

#[test]
fn a_stopped_worker_does_not_stop_the_others() {
    let folder = tempfile::tempdir().unwrap();
    let asked = format!("{TRAIN} --model mlp --epochs 30 --log-steps 20");
    let options = "--ps 1 --workers 3 --log-dir logs --grace 1";
    let mut job = Process::start(&mut command(folder.path(), options, &asked), &[]);
    job.wait_for(r#""event":"step""#);
    let stopped = process_of(&job, "worker", 2);
    common::signal(stopped, "STOP");
    job.wait_for(r#""event":"done""#);
    let finished = job.finish();
    let done = &events(&finished.stdout, "done")[0];
    assert_eq!(done["steps"], 30 * 23, "each step once");
}

#[test]
fn after_a_lost_server_the_job_goes_on_from_its_last_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let asked = format!("{TRAIN} --model mlp --epochs 20 --checkpoint-dir saved");
    let asked = format!("{asked} --checkpoint-steps 20 --log-steps 20");
    let options = "--ps 2 --workers 2 --max-restarts 1 --log-dir logs";
    let mut job = Process::start(&mut command(folder.path(), options, &asked), &[]);
    job.wait_for(r#""event":"epoch","epoch":5"#);
    common::signal(process_of(&job, "ps", 1), "KILL");
    let finished = job.finish();
    assert_eq!(finished.code, Some(0), "{}", finished.stderr);
    let said = &finished.stderr;
    assert!(
        said.contains("because of ps 1: killed by SIGKILL"),
        "{said}"
    );
    assert!(said.contains("is unavailable"), "{said}");
    let starts = events(&finished.stdout, "start");
    let again = starts[1]["step"].as_u64().unwrap();
    // Epoch 5 ended with step 115; the checkpoint before it is of step 100 or later.
    assert!(again >= 100, "{again}");
    let newest = checkpoint::latest(folder.path().join("saved")).unwrap();
    let done = &events(&finished.stdout, "done")[0];
    let newest = newest.found.unwrap().0.step;
    assert_eq!(newest, done["steps"].as_u64().unwrap());
}

#[test]
fn an_interrupted_job_saves_and_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let asked = format!(
        "{TRAIN} --model mlp --epochs 40 --checkpoint-dir saved --restartable --log-steps 9"
    );
    let options = "--ps 1 --workers 2 --log-dir logs";
    let mut job = Process::start(&mut command(folder.path(), options, &asked), &[]);
    job.wait_for(r#""event":"step""#);
    job.signal("TERM");
    let finished = job.finish();
    assert!(events(&finished.stdout, "done").is_empty());
    assert!(
        finished.stderr.contains("continue with the same command"),
        "{}",
        finished.stderr
    );
    let finished = launch(folder.path(), options, &asked);
    assert_eq!(finished.code, Some(0), "{}", finished.stderr);
    assert_eq!(events(&finished.stdout, "done")[0]["steps"], 40 * 23);
}

#[test]
fn the_rules_of_a_run_are_flags() {
    let folder = tempfile::tempdir().unwrap();
    for flags in [
        "--max-staleness 3",
        "--max-staleness 0 --stale-gradients refuse",
        "--synchronous 1 --wire bf16",
        "--non-finite apply --shard-bytes 4096",
    ] {
        let asked = format!("{TRAIN} --model mlp --epochs 3 {flags}");
        let finished = launch(folder.path(), "--ps 2 --workers 2", &asked);
        assert_eq!(finished.code, Some(0), "{flags}: {}", finished.stderr);
        let epochs = events(&finished.stdout, "epoch");
        let loss = |event: &Value| event["loss"].as_f64().unwrap();
        assert!(loss(&epochs[2]) < loss(&epochs[0]), "{flags}: {epochs:?}");
    }
    // A learning rate at which everything is infinite soon.
    let wild = format!("{TRAIN} --model mlp --optimizer sgd --learning-rate 1e30");
    let finished = launch(folder.path(), "--ps 1 --workers 2", &wild);
    assert_eq!(finished.code, Some(43), "{}", finished.stderr);
    assert!(
        finished.stderr.contains("NaN or infinity"),
        "{}",
        finished.stderr
    );
    // What it says to do is a flag of this program.
    let advice = "limit the gradients with --clip-norm, or choose --non-finite apply";
    assert!(finished.stderr.contains(advice), "{}", finished.stderr);
}

#[rstest]
#[case("no_cluster", "train --strategy parameter-server")]
#[case("replicas", "train --strategy parameter-server --replicas 2")]
#[case("collectives", "train --strategy parameter-server --bytes-per-pack 4")]
#[case("other_strategy", "train --max-staleness 3")]
#[case(
    "synchronous_and_stale",
    "train --strategy parameter-server --synchronous 2 --max-staleness 3"
)]
#[case(
    "policy_without_bound",
    "train --strategy parameter-server --stale-gradients wait"
)]
#[case("evaluate", "evaluate --strategy parameter-server --checkpoint-dir x")]
fn wrong_flags_are_refused(#[case] name: &str, #[case] arguments: &str) {
    let folder = tempfile::tempdir().unwrap();
    let finished = run(folder.path(), arguments);
    assert_eq!(finished.code, Some(2), "{}", finished.stderr);
    insta::assert_snapshot!(name, finished.stderr);
}

/// A chief of a cluster that lacks a job.
#[rstest]
#[case("no_ps", r#"{"worker":["127.0.0.1:1"],"chief":["127.0.0.1:2"]}"#)]
#[case("no_worker", r#"{"ps":["127.0.0.1:1"],"chief":["127.0.0.1:2"]}"#)]
fn a_cluster_without_servers_or_workers_is_refused(#[case] name: &str, #[case] cluster: &str) {
    let folder = tempfile::tempdir().unwrap();
    let config = format!(r#"{{"cluster":{cluster},"task":{{"type":"chief","index":0}}}}"#);
    let mut chief = common::plain(folder.path());
    chief.args(["train", "--strategy", "parameter-server"]);
    let finished = Process::start(&mut chief, &[("TF_CONFIG", &config)]).finish();
    assert_eq!(finished.code, Some(2), "{}", finished.stderr);
    insta::assert_snapshot!(name, finished.stderr);
}

#[test]
fn what_the_workers_do_not_read_in_the_checkpoint_must_be_a_flag() {
    let folder = tempfile::tempdir().unwrap();
    let options = "--ps 1 --workers 1";
    let asked = format!("{TRAIN} --model mlp --checkpoint-dir saved --steps");
    let first = launch(folder.path(), options, &format!("{asked} 4 --l2 0.01"));
    assert_eq!(first.code, Some(0), "{}", first.stderr);
    for (flags, said) in [
        ("", "--l2 0.01"),
        ("--l2 0.01 --batch-size 7", "--batch-size 64"),
    ] {
        let again = launch(
            folder.path(),
            options,
            &format!("{asked} 8 --resume {flags}"),
        );
        assert_eq!(again.code, Some(2), "{}", again.stderr);
        assert!(again.stderr.contains(said), "{}", again.stderr);
    }
    let asked = format!("{asked} 8 --resume --l2 0.01");
    let again = launch(folder.path(), options, &asked);
    assert_eq!(again.code, Some(0), "{}", again.stderr);
    assert_eq!(events(&again.stdout, "done")[0]["steps"], 8);
}

/// Chief, server and worker without a launcher, each with flags of its own.
fn start(folder: &Path, flags: [&str; 3]) -> [Process; 3] {
    let addresses = job::addresses(3);
    let cluster = format!(
        r#"{{"chief": ["{}"], "ps": ["{}"], "worker": ["{}"]}}"#,
        addresses[0], addresses[1], addresses[2]
    );
    let mut flags = flags.into_iter();
    ["chief", "ps", "worker"].map(|role| {
        let config = job::tf_config(&cluster, role, 0);
        let arguments = format!("{TRAIN} {}", flags.next().unwrap());
        job::Member::start(folder, &arguments, &[("TF_CONFIG", &config)])
    })
}

/// They train 20 steps. If the chief fails, the others are ended: without a launcher they wait for
/// the next one.
fn by_hand(folder: &Path, flags: [&str; 3]) -> [Finished; 3] {
    let flags =
        flags.map(|flags| format!("--model mlp --steps 20 --rendezvous-timeout 20 {flags}"));
    let [chief, mut server, worker] = start(folder, [&flags[0], &flags[1], &flags[2]]);
    let chief = chief.finish();
    if chief.code != Some(0) {
        server.child.kill().unwrap();
        worker.signal("KILL");
    }
    [chief, server.finish(), worker.finish()]
}

#[test]
fn without_a_launcher_and_encrypted() {
    let folder = tempfile::tempdir().unwrap();
    let hosts = job::addresses(3);
    let hosts: Vec<&str> = hosts
        .iter()
        .map(|address| address.split(':').next().unwrap())
        .collect();
    // The addresses of `by_hand` have the same hosts.
    for out in ["certs", "others"] {
        let arguments = format!("certs --out {out} --hosts {}", hosts.join(","));
        succeed(folder.path(), &arguments);
    }
    let certs = |of: &str, process: usize| format!("--certs {of}/{}", hosts[process]);
    let own = [0, 1, 2].map(|process| certs("certs", process));
    let ended = by_hand(folder.path(), [&own[0], &own[1], &own[2]]);
    for process in &ended {
        assert_eq!(process.code, Some(0), "{}", process.stderr);
    }
    assert_eq!(events(&ended[0].stdout, "done")[0]["steps"], 20);
    for of_worker in [certs("others", 2).as_str(), ""] {
        let [chief, ..] = by_hand(folder.path(), [&own[0], &own[1], of_worker]);
        assert_eq!(chief.code, Some(2), "{}", chief.stderr);
        assert!(chief.stderr.contains("worker 0"), "{}", chief.stderr);
    }
}

#[test]
fn an_evaluator_measures_the_checkpoints() {
    let folder = tempfile::tempdir().unwrap();
    let asked = format!("{TRAIN} --model mlp --epochs 3 --checkpoint-dir saved");
    let options = "--ps 1 --workers 1 --evaluator --log-dir logs --grace 5";
    let finished = launch(folder.path(), options, &asked);
    assert_eq!(finished.code, Some(0), "{}", finished.stderr);
    let done = &events(&finished.stdout, "done")[0];
    let measured = fs::read_to_string(folder.path().join("logs/evaluator-0.log")).unwrap();
    let measured = measured.lines().rfind(|line| line.contains("evaluation"));
    let measured: Value = serde_json::from_str(measured.expect("an evaluation")).unwrap();
    assert_eq!(measured["step"], done["steps"]);
    assert_eq!(measured["accuracy"], done["val_accuracy"]);
}

/// Chief, server and worker with flags of their own for chief and worker; all end by themselves.
fn apart(folder: &Path, of_chief: &str, of_worker: &str) -> [Finished; 3] {
    let [of_chief, of_worker] =
        [of_chief, of_worker].map(|flags| format!("--rendezvous-timeout 60 {flags}"));
    start(folder, [&of_chief, &of_chief, &of_worker]).map(Process::finish)
}

#[rstest]
#[case(
    "",
    "--batch-size 2",
    "--batch-size is 2 on worker 0 and 64 on the chief"
)]
#[case("--l2 0", "--l2 0.01", "--l2 is 0.01 on worker 0 and 0 on the chief")]
#[case(
    "",
    "--learning-rate 0.5",
    "--learning-rate is 0.5 on worker 0 and 0.001 on the chief"
)]
#[case(
    "",
    "--wire bf16",
    "--wire is bf16 on worker 0 and not given on the chief"
)]
#[case(
    "--dataset csv:all.csv",
    "--dataset csv:half.csv",
    "the number of examples is 40 on worker 0 and 80 on the chief"
)]
fn a_worker_with_other_flags_or_data_ends_the_job(
    #[case] of_chief: &str,
    #[case] of_worker: &str,
    #[case] said: &str,
) {
    let folder = tempfile::tempdir().unwrap();
    for (name, rows) in [("all", 80), ("half", 40)] {
        let rows: String = (0..rows).map(|i| format!("{i},{}\n", i % 2)).collect();
        let path = folder.path().join(format!("{name}.csv"));
        fs::write(path, format!("a,label\n{rows}")).unwrap();
    }
    let [of_chief, of_worker] = [of_chief, of_worker].map(|it| format!("--model mlp {it}"));
    let [chief, server, worker] = apart(folder.path(), &of_chief, &of_worker);
    for (role, ended) in [("chief", &chief), ("worker", &worker)] {
        assert_eq!(ended.code, Some(2), "{role}: {}", ended.stderr);
        assert!(ended.stderr.contains(said), "{role}: {}", ended.stderr);
    }
    assert_eq!(server.code, Some(0), "{}", server.stderr);
    assert_eq!(chief.stdout, "", "nothing was trained");
}

#[test]
fn a_worker_takes_the_learning_rate_of_its_chief() {
    let folder = tempfile::tempdir().unwrap();
    let model = "--model mlp --batch-size 32 --optimizer sgd";
    let rate = "--learning-rate 0.02";
    let hash = |stdout: &str| common::last_event(stdout)["weights_sha256"].clone();
    let alone = |steps: usize| {
        let train = "train --strategy one-device --output json";
        let done = succeed(
            folder.path(),
            &format!("{train} {model} {rate} --steps {steps}"),
        );
        hash(&done)
    };
    let expected = [6, 12].map(alone);
    for (name, of_worker) in [("a", ""), ("b", rate)] {
        let worker = format!("{model} {of_worker}");
        let chief = format!("{model} --checkpoint-dir {name}");
        // The second chief has it from the checkpoint.
        for (more, expected) in [
            (format!("--steps 6 {rate}"), &expected[0]),
            ("--steps 12 --resume".to_string(), &expected[1]),
        ] {
            let steps = more.split(' ').nth(1).unwrap();
            let ended = apart(
                folder.path(),
                &format!("{chief} {more}"),
                &format!("{worker} --steps {steps}"),
            );
            for process in &ended {
                assert_eq!(process.code, Some(0), "{more}: {}", process.stderr);
            }
            assert_eq!(hash(&ended[0].stdout), *expected, "{more}");
        }
    }
    let chief = format!("{model} --checkpoint-dir a --steps 14 --resume");
    let worker = format!("{model} --steps 14 --learning-rate 0.01");
    let [chief, ..] = apart(folder.path(), &chief, &worker);
    assert_eq!(chief.code, Some(2), "{}", chief.stderr);
    let said = "--learning-rate is 0.01 on worker 0 and 0.02 on the chief";
    assert!(chief.stderr.contains(said), "{}", chief.stderr);
}
