//! `launch`: jobs of real training processes that are killed, stopped and started again.

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use distribute_core::checkpoint;
use hostile::listening::listening;
use rstest::rstest;

use crate::common::{self, Finished, Process};

/// The child of a launcher whose environment, without spaces, contains this part of `TF_CONFIG`.
pub fn child_of(launcher: &Process, task: &str) -> Option<u32> {
    let is_it = |child: &u32| {
        let environment = fs::read(format!("/proc/{child}/environ")).unwrap_or_default();
        let environment = String::from_utf8_lossy(&environment).replace(' ', "");
        environment.contains(task)
    };
    let threads = fs::read_dir(format!("/proc/{}/task", launcher.child.id())).unwrap();
    let children = threads.flat_map(|thread| {
        let children = fs::read_to_string(thread.unwrap().path().join("children"));
        let children = children.unwrap_or_default();
        let ids = children.split_whitespace().map(|id| id.parse().unwrap());
        ids.collect::<Vec<u32>>()
    });
    let children: Vec<u32> = children.collect();
    children.into_iter().find(is_it)
}

/// Three workers that save every 20 steps.
pub const TRAIN: &str = "train --strategy multi-worker --model mlp --output json --epochs 1000 \
                     --checkpoint-dir saved --checkpoint-steps 20 --steps";

/// A launcher in the background.
pub struct Launcher(pub Process);

impl Launcher {
    /// `launch OPTIONS -- distribute-cli COMMAND`.
    pub fn start(folder: &Path, options: &str, command: &str) -> Self {
        Self(Process::start(
            &mut Self::command(folder, options, command),
            &[],
        ))
    }

    pub fn command(folder: &Path, options: &str, command: &str) -> Command {
        let mut launch = common::plain(folder);
        launch
            .arg("launch")
            .args(options.split_whitespace())
            .arg("--");
        launch.arg(assert_cmd::cargo::cargo_bin("distribute-cli"));
        launch.args(command.split_whitespace());
        launch
    }

    /// The process of a worker.
    pub fn worker(&self, index: usize) -> u32 {
        let task = format!(r#""index":{index}"#);
        child_of(&self.0, &task).expect("the worker runs")
    }
}

pub fn launch(folder: &Path, options: &str, command: &str) -> Finished {
    Launcher::start(folder, options, command).0.finish()
}

/// A job that prints the GPUs that its processes may see, under a launcher that sees these.
fn gpus(folder: &Path, visible: Option<&str>, options: &str) -> Finished {
    let mut launch = common::plain(folder);
    launch.env_remove("CUDA_VISIBLE_DEVICES");
    launch.envs(visible.map(|visible| ("CUDA_VISIBLE_DEVICES", visible)));
    launch.arg("launch").args(options.split_whitespace());
    launch.args(["--log-dir", "logs", "--", "sh", "-c"]);
    launch.arg(r#"echo "sees ${CUDA_VISIBLE_DEVICES-all}""#);
    Process::start(&mut launch, &[]).finish()
}

#[rstest]
#[case::all(None, "", ["all", "all", "all"])]
#[case::numbers(None, "--gpus-per-worker 2", ["0,1", "2,3", ""])]
#[case::some(Some("7,GPU-1f,2"), "--gpus-per-worker 1", ["7", "GPU-1f", ""])]
#[case::inherited(Some("5"), "", ["5", "5", "5"])]
fn workers_get_gpus_of_their_own(
    #[case] visible: Option<&str>,
    #[case] options: &str,
    #[case] expected: [&str; 3],
) {
    let folder = tempfile::tempdir().unwrap();
    let options = format!("--workers 2 --evaluator {options}");
    let finished = gpus(folder.path(), visible, &options);
    assert_eq!(finished.code, Some(0), "{}", finished.stderr);
    for (process, expected) in ["worker-0", "worker-1", "evaluator-0"].iter().zip(expected) {
        let log = fs::read_to_string(folder.path().join(format!("logs/{process}.log"))).unwrap();
        assert_eq!(log, format!("sees {expected}\n"), "{process}");
    }
}

#[test]
fn too_few_gpus_are_wrong_usage() {
    let folder = tempfile::tempdir().unwrap();
    let finished = gpus(
        folder.path(),
        Some("0,1,2"),
        "--workers 2 --gpus-per-worker 2",
    );
    assert_eq!(finished.code, Some(2), "{}", finished.stderr);
    let expected = "2 workers with 2 GPUs each need 4, but there are 3 (named by";
    assert!(finished.stderr.contains(expected), "{}", finished.stderr);
}

/// What a job says of its end: hash, and the epochs without what depends on time.
pub fn end(finished: &Finished) -> (String, Vec<String>) {
    assert_eq!(finished.code, Some(0), "{}", finished.stderr);
    let done = common::last_event(&finished.stdout);
    let epochs = finished
        .stdout
        .lines()
        .filter(|line| line.contains(r#""event":"epoch""#));
    let epochs = epochs.map(|line| line.split(r#","examples_per"#).next().unwrap().to_string());
    (
        done["weights_sha256"].as_str().unwrap().to_string(),
        epochs.collect(),
    )
}

/// The loss after each step. A step that was repeated after a restart must have had the same.
fn losses(finished: &Finished) -> BTreeMap<u64, String> {
    let mut losses = BTreeMap::new();
    let lines = finished.stdout.lines();
    for line in lines.filter(|line| line.contains(r#""event":"step""#)) {
        let event: serde_json::Value = serde_json::from_str(line).unwrap();
        let (step, loss) = (event["step"].as_u64().unwrap(), event["loss"].to_string());
        let before = losses.insert(step, loss.clone());
        assert!(before.is_none_or(|before| before == loss), "{line}");
    }
    losses
}

/// The last of each epoch: a job that starts again repeats those after its checkpoint.
fn last_of_each(epochs: &[String]) -> Vec<String> {
    let mut last = BTreeMap::new();
    for line in epochs {
        let event: serde_json::Value = serde_json::from_str(&format!("{line}}}")).unwrap();
        last.insert(event["epoch"].as_u64().unwrap(), line.clone());
    }
    last.into_values().collect()
}

#[test]
fn the_output_of_the_chief_passes_through_and_the_others_are_in_their_files() {
    let folder = tempfile::tempdir().unwrap();
    let options = "--workers 3 --log-dir logs --evaluator --grace 2";
    let finished = launch(
        folder.path(),
        options,
        &format!("{TRAIN} 40 --log-dir board"),
    );
    let (hash, _) = end(&finished);
    for line in finished.stdout.lines() {
        serde_json::from_str::<serde_json::Value>(line).expect("JSON lines and nothing else");
    }
    let log = |name: &str| fs::read_to_string(folder.path().join("logs").join(name)).unwrap();
    for worker in [1, 2] {
        let log = log(&format!("worker-{worker}.log"));
        assert_eq!(log, format!("worker {worker}: 40 steps; weights {hash}\n"));
    }
    let evaluator = log("evaluator-0.log");
    let last = evaluator
        .lines()
        .rfind(|line| line.contains("evaluation"))
        .unwrap();
    assert!(last.contains(r#""step":40"#), "{evaluator}");
    let all = launch(
        folder.path(),
        "--workers 3 --all-output",
        &format!("{TRAIN} 41 --resume"),
    );
    let said = format!("worker 1: 41 steps; weights {}", end(&all).0);
    assert!(
        all.stderr.contains(&format!("rank 1: {said}")),
        "{}",
        all.stderr
    );
}

#[rstest]
fn a_job_whose_worker_is_killed_ends_with_the_bits_of_one_that_was_not(
    #[values(0, 1, 2)] killed: usize,
) {
    let whole = tempfile::tempdir().unwrap();
    let train = format!("{TRAIN} 400 --log-steps 1");
    let uninterrupted = launch(whole.path(), "--workers 3", &train);
    let (expected, epochs) = end(&uninterrupted);
    let steps = losses(&uninterrupted);
    assert_eq!(steps.len(), 400);
    for step in [27, 158] {
        let folder = tempfile::tempdir().unwrap();
        let options = "--workers 3 --max-restarts 1 --log-dir logs";
        let mut job = Launcher::start(folder.path(), options, &train);
        job.0.wait_for(&format!(r#""step":{step},"#));
        common::signal(job.worker(killed), "KILL");
        let finished = job.0.finish();
        let (hash, again) = end(&finished);
        assert_eq!(hash, expected, "killed after step {step}");
        assert_eq!(losses(&finished), steps, "killed after step {step}");
        assert_eq!(
            last_of_each(&again),
            epochs,
            "the losses of a run that was not interrupted"
        );
        let cause = format!("the job failed because of rank {killed}: killed by SIGKILL");
        assert!(finished.stderr.contains(&cause), "{}", finished.stderr);
        for entry in checkpoint::list(folder.path().join("saved")).unwrap() {
            checkpoint::verify(&entry.path).unwrap();
        }
        assert!(folder.path().join("logs/restart-1/worker-2.log").exists());
    }
}

#[rstest]
fn the_headline_names_a_worker_that_was_stopped(#[values(0, 1, 2)] stopped: usize) {
    let folder = tempfile::tempdir().unwrap();
    let options = "--workers 3 --grace 1";
    let mut job = Launcher::start(folder.path(), options, &format!("{TRAIN} 1000000"));
    job.0.wait_for(r#""epoch":2"#);
    common::signal(job.worker(stopped), "STOP");
    let finished = job.0.finish();
    let headline = format!("the job failed because of rank {stopped}: the others lost it");
    assert!(finished.stderr.contains(&headline), "{}", finished.stderr);
}

#[test]
fn a_signal_to_the_launcher_saves_and_ends_with_42() {
    let folder = tempfile::tempdir().unwrap();
    let mut job = Launcher::start(folder.path(), "--workers 2", &format!("{TRAIN} 1000000"));
    job.0.wait_for(r#""epoch":2"#);
    job.0.signal("TERM");
    let finished = job.0.finish();
    assert_eq!(finished.code, Some(42), "{}", finished.stderr);
    let newest = checkpoint::load_latest(folder.path().join("saved")).unwrap();
    let step = newest.found.unwrap().0.step;
    let said = format!("interrupted after step {step}");
    assert!(
        finished.stderr.contains(&said),
        "{said}: {}",
        finished.stderr
    );
}

/// The training gets one request, and its exit code is that of the script.
#[rstest]
#[case::that_does_not_exec(r#""$@"; exit $?"#)]
#[case::that_passes_the_signal_on(r#"trap 'kill $child' TERM; "$@" & child=$!; wait $child"#)]
fn a_training_under_a_script_saves_and_ends_with_42(#[case] script: &str) {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("wrap.sh"), script).unwrap();
    let mut launch = common::plain(folder.path());
    launch.args(["launch", "--workers", "2", "--", "sh", "wrap.sh"]);
    launch.arg(assert_cmd::cargo::cargo_bin("distribute-cli"));
    launch.args(format!("{TRAIN} 1000000").split_whitespace());
    let mut job = Process::start(&mut launch, &[]);
    job.wait_for(r#""epoch":2"#);
    job.signal("TERM");
    let finished = job.finish();
    assert_eq!(finished.code, Some(42), "{}", finished.stderr);
    let newest = checkpoint::load_latest(folder.path().join("saved")).unwrap();
    let said = format!("interrupted after step {}", newest.found.unwrap().0.step);
    assert!(
        finished.stderr.contains(&said),
        "{said}: {}",
        finished.stderr
    );
}

#[rstest]
#[case("USR1")]
#[case("XCPU")]
fn a_signal_that_announces_the_end_saves(#[case] signal: &str) {
    let folder = tempfile::tempdir().unwrap();
    let mut job = Launcher::start(folder.path(), "--workers 1", &format!("{TRAIN} 1000000"));
    job.0.wait_for(r#""epoch":2"#);
    job.0.signal(signal);
    let finished = job.0.finish();
    assert_eq!(finished.code, Some(42), "{}", finished.stderr);
    let said = "the processes are told to save and stop";
    assert!(finished.stderr.contains(said), "{}", finished.stderr);
}

#[test]
fn a_signal_to_one_worker_saves_and_the_job_goes_on() {
    let whole = tempfile::tempdir().unwrap();
    let (expected, _) = end(&launch(
        whole.path(),
        "--workers 3",
        &format!("{TRAIN} 300"),
    ));
    let folder = tempfile::tempdir().unwrap();
    let options = "--workers 3 --max-restarts 1";
    let mut job = Launcher::start(folder.path(), options, &format!("{TRAIN} 300"));
    job.0.wait_for(r#""epoch":2"#);
    common::signal(job.worker(1), "TERM");
    let finished = job.0.finish();
    assert_eq!(end(&finished).0, expected, "{}", finished.stderr);
    assert_eq!(
        finished.stdout.matches(r#""event":"start""#).count(),
        2,
        "it started twice"
    );
}

/// A firewall has to pass the ports of the range, and no other.
#[rstest]
fn the_workers_of_a_job_listen_on_the_ports_of_their_range_only(
    #[values("grpc", "shm")] transport: &str,
) {
    let folder = tempfile::tempdir().unwrap();
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let first = free.local_addr().unwrap().port();
    drop(free);
    let last = first.saturating_add(40);
    let options = format!("--workers 2 --ports {first}..{last}");
    let train = format!("{TRAIN} 1000 --transport {transport}");
    let mut job = Launcher::start(folder.path(), &options, &train);
    job.0.wait_for(r#""epoch":2"#);
    for worker in [0, 1] {
        let found = listening(job.worker(worker));
        let in_range = |it: &SocketAddr| (first..=last).contains(&it.port());
        assert!(found.len() == 1 && found.iter().all(in_range), "{found:?}");
    }
    common::signal(job.0.child.id(), "TERM");
    job.0.finish();
}

#[test]
fn restarts_are_counted_for_the_job() {
    let folder = tempfile::tempdir().unwrap();
    let options = "--workers 2 --max-restarts 2 --log-dir logs";
    // Another process has the ports at every start; they may be free at the next one.
    let taken = [(); 2].map(|()| std::net::TcpListener::bind("127.0.0.1:0").unwrap());
    let [first, second] = taken
        .each_ref()
        .map(|it| it.local_addr().unwrap().to_string());
    let cluster = format!(r#"{{"worker":["{first}","{second}"]}}"#);
    let command = format!("train --strategy multi-worker --model mlp --cluster-spec {cluster}");
    let finished = launch(folder.path(), options, &command);
    assert_eq!(finished.code, Some(1), "{}", finished.stderr);
    assert_eq!(
        finished.stderr.matches("the job failed").count(),
        3,
        "{}",
        finished.stderr
    );
    assert!(finished.stderr.contains("in use"), "{}", finished.stderr);
}

#[test]
fn what_a_restart_does_not_mend_is_not_restarted() {
    let folder = tempfile::tempdir().unwrap();
    let options = "--workers 2 --max-restarts 3 --log-dir logs";
    let command = "train --strategy multi-worker --dataset csv:missing.csv";
    let finished = launch(folder.path(), options, command);
    assert_eq!(finished.code, Some(2), "{}", finished.stderr);
    let said = &finished.stderr;
    assert_eq!(said.matches("the job failed").count(), 1, "{said}");
    assert!(said.contains("missing.csv"), "{said}");
    assert!(!said.contains("restart 1 of"), "{said}");
}

#[test]
fn what_cannot_be_launched_is_said_in_a_line() {
    let folder = tempfile::tempdir().unwrap();
    let cases = [
        ("no_workers", "launch --workers 0 -- true"),
        ("empty_range", "launch --workers 3..2 -- true"),
        ("range_from_zero", "launch --workers 0..2 -- true"),
        ("half_a_range", "launch --workers 2.. -- true"),
        ("no_number", "launch --workers many -- true"),
        ("range_and_servers", "launch --workers 1..2 --ps 1 -- true"),
        (
            "nothing_to_restart",
            "launch --workers 2 --restart-pause 7 -- true",
        ),
        (
            "nothing_to_shrink",
            "launch --workers 2 --shrink-after 30s -- true",
        ),
        (
            "nothing_to_drop",
            "launch --workers 2 --drop-stragglers -- true",
        ),
        (
            "no_time",
            "launch --workers 1..2 --shrink-after soon -- true",
        ),
        ("no_command", "launch --workers 2"),
        (
            "not_found",
            "launch --workers 2 --log-dir logs -- no-such-program",
        ),
        (
            "half_of_several_hosts",
            "launch --workers 2 --rendezvous 127.0.0.1:9 -- true",
        ),
        (
            "no_secret",
            "launch --workers 2 --rendezvous 127.0.0.1:9 --hosts 2 --host 0 -- true",
        ),
    ];
    for (name, arguments) in cases {
        let finished = common::run(folder.path(), arguments);
        assert_eq!(finished.code, Some(2), "{name}: {}", finished.stderr);
        insta::assert_snapshot!(format!("launch_{name}"), finished.stderr);
    }
}

#[test]
fn launchers_on_a_network_without_certificates_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let options = "--workers 1 --rendezvous 192.0.2.10:9000 --hosts 2 --host 1";
    let mut command = Launcher::command(folder.path(), options, "doctor");
    let finished = Process::start(&mut command, &[SECRET]).finish();
    assert_eq!(finished.code, Some(2), "{}", finished.stderr);
    insta::assert_snapshot!("launch_not_encrypted", finished.stderr);
}

pub const SECRET: (&str, &str) = (
    "DISTRIBUTE_JOB_TOKEN",
    "a secret of both hosts, long enough",
);

#[rstest]
fn two_launchers_make_one_job(#[values(false, true)] is_encrypted: bool) {
    let folder = tempfile::tempdir().unwrap();
    let one = tempfile::tempdir().unwrap();
    let (expected, _) = end(&launch(one.path(), "--workers 3", &format!("{TRAIN} 60")));
    let loopback = std::net::Ipv4Addr::LOCALHOST.into();
    let ports = distribute_launch::ReservedPorts::new(1, loopback).unwrap();
    let address = ports.addresses()[0];
    if is_encrypted {
        common::succeed(folder.path(), "certs --out certs --hosts 127.0.0.1");
    }
    let host = |index: usize, workers: usize| {
        let certs = if is_encrypted {
            "--certs certs/127.0.0.1"
        } else {
            ""
        };
        let options =
            format!("--workers {workers} --rendezvous {address} --hosts 2 --host {index} {certs}");
        let mut command = Launcher::command(folder.path(), &options, &format!("{TRAIN} 60"));
        // With certificates the token is the one beside them.
        let secret = (!is_encrypted).then_some(SECRET);
        Process::start(&mut command, secret.as_slice())
    };
    let (first, second) = (host(0, 2), host(1, 1));
    let (first, second) = (first.finish(), second.finish());
    assert_eq!(first.code, Some(0), "{}", first.stderr);
    assert_eq!(second.code, Some(0), "{}", second.stderr);
    assert_eq!(
        common::last_event(&first.stdout)["weights_sha256"],
        expected
    );
    assert!(second.stdout.is_empty(), "worker 0 is on the first host");
}
