//! `--replicate-state`: trainings that go on from the last step without a disk.

use std::collections::hash_map::RandomState;
use std::fs;
use std::hash::BuildHasher;
use std::net::Ipv4Addr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use rstest::rstest;

use crate::common::{self, Finished, Process};
use crate::elastic::{events, joined_by_another};
use crate::launch::{Launcher, SECRET, end, launch};

/// A model whose replicas have statistics of their own.
const NET: &str = r#"{"class_name":"Sequential","config":{"name":"net","layers":[
    {"class_name":"Flatten","config":{}},
    {"class_name":"Dense","config":{"units":8,"activation":"relu"}},
    {"class_name":"BatchNormalization","config":{}},
    {"class_name":"Dropout","config":{"rate":0.2}},
    {"class_name":"Dense","config":{"units":10,"activation":"linear"}}]}}"#;

/// With Adam, and without anything on disk.
const TRAIN: &str = "train --strategy multi-worker --model net.json --output json --epochs 1000 \
                     --log-steps 1 --batch-size 16 --total-replicas 4 --replicate-state --steps";

fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("net.json"), NET).unwrap();
    folder
}

/// The same training in one process that nothing happens to.
fn undisturbed(steps: u64) -> Finished {
    let folder = folder();
    let train = format!(
        "train --model net.json --output json --epochs 1000 --log-steps 1 --batch-size 16 \
         --replicas 4 --steps {steps}"
    );
    common::run(folder.path(), &train)
}

/// The one that most tests compare with.
static UNDISTURBED: LazyLock<Finished> = LazyLock::new(|| undisturbed(200));

/// A number that is another one in every run; tests say which one it was.
fn random(below: u64) -> u64 {
    RandomState::new().hash_one(0) % below
}

/// The steps that were told, in their order, with their losses.
fn steps(finished: &Finished) -> Vec<(u64, String)> {
    let told =
        |event: serde_json::Value| (event["step"].as_u64().unwrap(), event["loss"].to_string());
    events(finished, "step").into_iter().map(told).collect()
}

/// The step that each start went on from, and its workers.
fn starts(finished: &Finished) -> Vec<(u64, u64)> {
    let start = |event: serde_json::Value| {
        (
            event["step"].as_u64().unwrap(),
            event["workers"].as_u64().unwrap_or(1),
        )
    };
    events(finished, "start").into_iter().map(start).collect()
}

/// The epochs without what depends on time; one that was told again was told the same.
fn epochs(finished: &Finished) -> Vec<String> {
    let mut all = end(finished).1;
    all.dedup();
    all
}

/// Ends with the bits of the undisturbed run, and computes no step twice but those that were
/// interrupted: one for each of these starts but the first.
fn assert_goes_on(finished: &Finished, undisturbed: &Finished, what: &str) {
    assert_eq!(finished.code, Some(0), "{what}: {}", finished.stderr);
    let starts = starts(finished);
    let (told, mut expected) = (steps(finished), steps(undisturbed));
    let repeated = told.len() - expected.len();
    assert!(
        repeated < starts.len(),
        "{what}: {repeated} steps twice, {starts:?}"
    );
    for start in &starts[1..] {
        assert_ne!(start.0, 0, "{what}: it began anew");
        let after = told.iter().filter(|(step, _)| *step == start.0 + 1).count();
        assert!((1..=2).contains(&after), "{what}: step {}", start.0 + 1);
    }
    let mut once = told;
    once.sort();
    once.dedup();
    expected.sort();
    assert_eq!(once, expected, "{what}");
    assert_eq!(epochs(finished), epochs(undisturbed), "{what}");
    assert_eq!(end(finished).0, end(undisturbed).0, "{what}");
}

#[rstest]
fn after_the_loss_of_a_worker_the_job_goes_on_from_its_last_step(
    #[values("--workers 2 --max-restarts 1", "--workers 1..2")] options: &str,
    #[values(0, 1)] killed: usize,
) {
    let step = 20 + random(100);
    let what = format!("{options}, worker {killed} killed after step {step}");
    let folder = folder();
    let mut job = Launcher::start(folder.path(), options, &format!("{TRAIN} 200"));
    job.0.wait_for(&format!(r#""step":{step},"#));
    common::signal(job.worker(killed), "KILL");
    let finished = job.0.finish();
    assert_goes_on(&finished, &UNDISTURBED, &what);
    let left = if options.contains("..") { 1 } else { 2 };
    assert_eq!(starts(&finished).len(), 2, "{what}");
    assert_eq!(starts(&finished)[1].1, left, "{what}");
}

#[test]
fn a_job_whose_workers_are_killed_again_and_again_goes_on_each_time() {
    let folder = folder();
    let options = "--workers 3 --max-restarts 6";
    let mut job = Launcher::start(folder.path(), options, &format!("{TRAIN} 300"));
    let mut killed = Vec::new();
    for round in 0..6 {
        let (worker, step) = (random(3) as usize, 10 + 45 * round + random(15));
        killed.push((worker, step));
        job.0.wait_for(&format!(r#""step":{step},"#));
        common::signal(job.worker(worker), "KILL");
        // Those who follow must not take a process that is about to end.
        job.0.wait_for(r#""event":"start""#);
    }
    let finished = job.0.finish();
    let what = format!("worker and step: {killed:?}");
    assert_goes_on(&finished, &undisturbed(300), &what);
    assert_eq!(starts(&finished).len(), 7, "{what}");
}

#[test]
fn the_state_in_memory_is_taken_before_an_older_checkpoint() {
    let folder = folder();
    let train = format!("{TRAIN} 200 --checkpoint-dir saved --checkpoint-steps 50");
    let mut job = Launcher::start(folder.path(), "--workers 2 --max-restarts 1", &train);
    job.0.wait_for(r#""step":57,"#);
    common::signal(job.worker(1), "KILL");
    let finished = job.0.finish();
    assert_goes_on(&finished, &UNDISTURBED, "after step 57");
    let said = finished.stderr.split_once("the state of step ");
    let (_, said) = said.unwrap_or_else(|| panic!("{}", finished.stderr));
    let step: String = said.chars().take_while(char::is_ascii_digit).collect();
    let step: u64 = step.parse().unwrap();
    assert!(
        step >= 56 && !step.is_multiple_of(50),
        "{}",
        finished.stderr
    );
}

#[test]
fn with_a_number_the_state_of_every_so_many_steps_is_kept() {
    let folder = folder();
    let train = format!("{TRAIN} 100").replace("--replicate-state", "--replicate-state 10");
    let mut job = Launcher::start(folder.path(), "--workers 2 --max-restarts 1", &train);
    job.0.wait_for(r#""step":57,"#);
    common::signal(job.worker(1), "KILL");
    let finished = job.0.finish();
    let whole = undisturbed(100);
    assert_eq!(end(&finished).0, end(&whole).0);
    // The end of an epoch is kept too: of 23 steps.
    let step = starts(&finished)[1].0;
    assert!(
        step.is_multiple_of(10) || step.is_multiple_of(23),
        "{:?}",
        starts(&finished)
    );
    assert!(step >= 50);
}

/// Four workers of one replica each, on `hosts` hosts; the hosts that are killed, after a step,
/// are lost with the memory of their launchers.
fn lose_hosts(
    hosts: usize,
    lost: &[usize],
    train: &str,
    step: u64,
) -> (Finished, tempfile::TempDir) {
    let folder = folder();
    let ports = distribute_launch::ReservedPorts::new(1, Ipv4Addr::LOCALHOST.into()).unwrap();
    let address = ports.addresses()[0];
    let host = |index: usize| {
        let options =
            format!("--workers 1..4 --rendezvous {address} --hosts {hosts} --host {index}");
        let mut command = Launcher::command(folder.path(), &options, train);
        Process::start(&mut command, &[SECRET])
    };
    let mut first = host(0);
    let others: Vec<Process> = (1..hosts).map(host).collect();
    first.wait_for(&format!(r#""step":{step},"#));
    for host in lost {
        others[host - 1].signal("KILL");
    }
    let finished = first.finish();
    others.into_iter().for_each(|other| drop(other.finish()));
    (finished, folder)
}

#[rstest]
fn the_neighbour_of_a_lost_host_has_what_its_replicas_had(#[values(1, 2, 3)] lost: usize) {
    let step = 20 + random(100);
    let (finished, _folder) = lose_hosts(4, &[lost], &format!("{TRAIN} 200"), step);
    let what = format!("host {lost} killed after step {step}");
    assert_goes_on(&finished, &UNDISTURBED, &what);
    assert_eq!(starts(&finished).last().unwrap().1, 3, "{what}");
}

#[test]
fn a_host_with_several_workers_is_lost_and_the_other_has_what_they_had() {
    let step = 20 + random(100);
    let (finished, _folder) = lose_hosts(2, &[1], &format!("{TRAIN} 200"), step);
    let what = format!("killed after step {step}");
    assert_goes_on(&finished, &UNDISTURBED, &what);
    assert_eq!(starts(&finished).last().unwrap().1, 2, "{what}");
}

#[test]
fn without_a_host_and_its_neighbour_the_checkpoint_on_disk_is_left() {
    let train = format!("{TRAIN} 200 --checkpoint-dir saved --checkpoint-steps 20");
    let (finished, _folder) = lose_hosts(4, &[2, 3], &train, 95);
    assert_eq!(finished.code, Some(0), "{}", finished.stderr);
    assert_eq!(end(&finished).0, end(&UNDISTURBED).0);
    let starts = starts(&finished);
    assert_eq!(starts.last().unwrap().1, 2, "{starts:?}");
    // One of them may have been lost first: then the others went on from a step, not far.
    let from_disk = starts[1..].iter().find(|start| start.1 == 2).unwrap();
    assert_eq!(from_disk.0 % 20, 0, "{starts:?}: {}", finished.stderr);
    assert_ne!(from_disk.0, 0);
}

#[test]
fn a_host_that_comes_is_given_the_state() {
    let first = joined_by_another(folder().path(), &format!("{TRAIN} 1500"));
    assert_goes_on(&first, &undisturbed(1500), "a host that comes");
    let workers: Vec<u64> = starts(&first).iter().map(|start| start.1).collect();
    assert_eq!(workers, [1, 2]);
}

#[rstest]
#[case::alone(
    "--strategy multi-worker",
    "start the workers with `distribute-cli launch`"
)]
#[case::mirrored("", "add --strategy multi-worker, or save with --checkpoint-steps")]
#[case::servers(
    "--strategy parameter-server",
    "--replicate-state is for --strategy multi-worker"
)]
#[case::tpu(
    "--strategy tpu",
    "add --strategy multi-worker, or save with --checkpoint-steps"
)]
fn where_the_state_cannot_be_held_it_is_wrong_usage(#[case] strategy: &str, #[case] said: &str) {
    let folder = folder();
    let finished = common::run(
        folder.path(),
        &format!("train {strategy} --replicate-state"),
    );
    assert_eq!(finished.code, Some(2), "{}", finished.stderr);
    assert!(finished.stderr.contains(said), "{}", finished.stderr);
}

/// The workers could only say that there is none.
#[test]
fn a_launcher_without_memory_for_the_state_says_why() {
    let folder = folder();
    let mut limited = std::process::Command::new("sh");
    limited
        .current_dir(folder.path())
        .env("TMPDIR", folder.path());
    let script = r#"ulimit -n 64; exec "$0" launch --workers 40 -- true"#;
    limited
        .args(["-c", script])
        .arg(assert_cmd::cargo::cargo_bin("distribute-cli"));
    let finished = Process::start(&mut limited, &[]).finish();
    let said = "warning: no memory outlives the workers, as --replicate-state needs it: ";
    let warnings: Vec<&str> = finished.stderr.split(said).skip(1).collect();
    assert_eq!(warnings.len(), 1, "{}", finished.stderr);
    assert!(
        warnings[0].starts_with("Too many open files"),
        "{}",
        finished.stderr
    );
}

#[test]
fn workers_that_keep_the_state_of_other_steps_refuse_each_other() {
    let folder = folder();
    let script = "exec \"$0\" $1 --replicate-state \
                  $((1 + $(echo \"$TF_CONFIG\" | grep -c 'index\": *1')))";
    let train = "train --strategy multi-worker --model net.json --steps 5";
    let mut command = common::plain(folder.path());
    command.args(["launch", "--workers", "2", "--", "sh", "-c"]);
    let script = script.replace("$1", train);
    command
        .arg(script)
        .arg(assert_cmd::cargo::cargo_bin("distribute-cli"));
    let finished = Process::start(&mut command, &[]).finish();
    assert_eq!(finished.code, Some(2), "{}", finished.stderr);
    let said = "--replicate-state is 2 on worker 1 and 1 on the chief";
    assert!(finished.stderr.contains(said), "{}", finished.stderr);
}

/// The memory of a worker: device and inode of its two files.
fn memory(worker: u32) -> Vec<(u64, u64)> {
    let environment = fs::read(format!("/proc/{worker}/environ")).unwrap();
    let environment = String::from_utf8_lossy(&environment).into_owned();
    let mut variables = environment.split('\0');
    let paths = variables.find_map(|text| text.strip_prefix("DISTRIBUTE_STATE_MEMORY="));
    let paths = std::env::split_paths(paths.unwrap()).map(|path| {
        let file = fs::metadata(path).unwrap();
        (file.dev(), file.ino())
    });
    paths.collect()
}

/// Whether any process still has one of these files.
fn is_held(files: &[(u64, u64)]) -> bool {
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let descriptors = processes.flat_map(|process| fs::read_dir(process.path().join("fd")));
    let mut descriptors = descriptors.flatten().flatten().map(|entry| entry.path());
    descriptors.any(|path: PathBuf| {
        let file = fs::metadata(path);
        file.is_ok_and(|file| files.contains(&(file.dev(), file.ino())))
    })
}

#[rstest]
fn nothing_is_left_of_the_memory(#[values("KILL", "INT", "")] signal: &str) {
    let folder = folder();
    let steps = if signal.is_empty() { 1000 } else { 1_000_000 };
    let mut job = Launcher::start(folder.path(), "--workers 2", &format!("{TRAIN} {steps}"));
    job.0.wait_for(r#""step":20,"#);
    let files = [memory(job.worker(0)), memory(job.worker(1))].concat();
    assert_eq!(files.len(), 4);
    assert!(is_held(&files));
    if !signal.is_empty() {
        job.0.signal(signal);
    }
    drop(job.0.finish());
    // The guard ends the workers of a launcher that was killed.
    let limit = Instant::now() + Duration::from_secs(20);
    while is_held(&files) {
        assert!(Instant::now() < limit, "the memory is still there");
        std::thread::yield_now();
    }
    let left: Vec<String> = names(folder.path());
    let left: Vec<&String> = left
        .iter()
        .filter(|name| !name.starts_with("distribute-launch-"))
        .collect();
    assert_eq!(left, ["net.json"]);
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect()
}

#[test]
fn a_job_that_nothing_happens_to_has_the_bits_of_one_without_replicated_state() {
    let folder = folder();
    let finished = launch(folder.path(), "--workers 3", &format!("{TRAIN} 60"));
    assert_eq!(end(&finished), end(&undisturbed(60)));
}
