//! `launch --workers MIN..MAX`: trainings that go on with fewer workers, and with more.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::path::Path;
use std::time::{Duration, Instant};

use distribute_core::checkpoint;
use rstest::rstest;

use crate::common::{self, Finished, Process};
use crate::launch::{Launcher, SECRET, TRAIN, end, launch};

/// The events of a kind that a training has told of.
pub fn events(finished: &Finished, kind: &str) -> Vec<serde_json::Value> {
    let lines = finished.stdout.lines();
    let all = lines.filter_map(|line| serde_json::from_str(line).ok());
    all.filter(|event: &serde_json::Value| event["event"] == kind)
        .collect()
}

/// The loss after each step that was told; a step that was repeated has the last one.
pub fn losses(finished: &Finished) -> BTreeMap<u64, f64> {
    let loss = |event: serde_json::Value| {
        let step = event["step"].as_u64().unwrap();
        (step, event["loss"].as_f64().unwrap())
    };
    events(finished, "step").into_iter().map(loss).collect()
}

/// How many replicas and workers each start had.
pub fn starts(finished: &Finished) -> Vec<(u64, u64)> {
    let start = |event: serde_json::Value| {
        let replicas = event["replicas"].as_u64().unwrap();
        (replicas, event["workers"].as_u64().unwrap_or(1))
    };
    events(finished, "start").into_iter().map(start).collect()
}

fn newest_step(folder: &Path) -> u64 {
    let newest = checkpoint::load_latest(folder.join("saved")).unwrap();
    newest.found.unwrap().0.step
}

#[rstest]
fn a_training_whose_worker_is_lost_for_good_goes_on_with_the_others(#[values(0, 1)] killed: usize) {
    let whole = tempfile::tempdir().unwrap();
    let train = format!("{TRAIN} 300 --log-steps 1 --total-replicas 2");
    let uninterrupted = launch(whole.path(), "--workers 2", &train);
    let folder = tempfile::tempdir().unwrap();
    let mut job = Launcher::start(folder.path(), "--workers 1..2", &train);
    job.0.wait_for(r#""step":57,"#);
    common::signal(job.worker(killed), "KILL");
    let finished = job.0.finish();
    assert_eq!(end(&finished).0, end(&uninterrupted).0);
    assert_eq!(losses(&finished), losses(&uninterrupted));
    assert_eq!(starts(&finished), [(2, 2), (2, 1)]);
    let said = "workers at the end: 1; restarts: 0, shrinks: 1, growths: 0";
    assert!(finished.stderr.contains(said), "{}", finished.stderr);
    assert_eq!(newest_step(folder.path()), 300);
}

#[test]
fn replicas_are_dealt_out_anew_over_any_number_of_workers() {
    let whole = tempfile::tempdir().unwrap();
    let train = format!("{TRAIN} 240 --log-steps 1 --total-replicas 4");
    let uninterrupted = launch(whole.path(), "--workers 3", &train);
    let folder = tempfile::tempdir().unwrap();
    let options = "--workers 1..3 --max-restarts 1";
    let mut job = Launcher::start(folder.path(), options, &train);
    for step in [45, 90, 135] {
        job.0.wait_for(&format!(r#""step":{step},"#));
        common::signal(job.worker(1), "KILL");
        // The next kill must not take a process that is about to end.
        job.0.wait_for(r#""event":"start""#);
    }
    let finished = job.0.finish();
    assert_eq!(finished.code, Some(0), "{}", finished.stderr);
    assert_eq!(starts(&finished), [(4, 3), (4, 3), (4, 2), (4, 1)]);
    assert_eq!(losses(&finished), losses(&uninterrupted));
    assert_eq!(end(&finished).0, end(&uninterrupted).0);
}

#[test]
fn at_the_minimum_the_job_ends_with_the_cause() {
    let folder = tempfile::tempdir().unwrap();
    let train = format!("{TRAIN} 100000 --log-steps 1 --total-replicas 3");
    let mut job = Launcher::start(folder.path(), "--workers 2..3", &train);
    job.0.wait_for(r#""step":30,"#);
    common::signal(job.worker(1), "KILL");
    job.0.wait_for(r#""event":"start""#);
    job.0.wait_for(r#""event":"step""#);
    common::signal(job.worker(1), "KILL");
    let finished = job.0.finish();
    assert_eq!(finished.code, Some(128 + 9), "{}", finished.stderr);
    assert_eq!(starts(&finished), [(3, 3), (3, 2)]);
    let said = "no restart of 0 is left, and the job needs at least 2 workers";
    assert!(finished.stderr.contains(said), "{}", finished.stderr);
}

#[test]
fn more_workers_than_replicas_are_wrong_usage_and_no_reason_to_shrink() {
    let folder = tempfile::tempdir().unwrap();
    let train = format!("{TRAIN} 20 --total-replicas 2");
    let finished = launch(folder.path(), "--workers 1..3 --max-restarts 2", &train);
    assert_eq!(finished.code, Some(2), "{}", finished.stderr);
    assert_eq!(finished.stderr.matches("the job failed").count(), 1);
    let said = "2 replicas for 3 workers";
    assert!(finished.stderr.contains(said), "{}", finished.stderr);
}

/// A job of one host, which a second one joins after step 50 and stays in: what the first has said.
pub fn joined_by_another(folder: &Path, train: &str) -> Finished {
    let ports = distribute_launch::ReservedPorts::new(1, Ipv4Addr::LOCALHOST.into()).unwrap();
    let address = ports.addresses()[0];
    let host = |index: usize| {
        let options = format!(
            "--workers 1..2 --shrink-after 1s --rendezvous {address} --hosts 2 --host {index}"
        );
        let mut command = Launcher::command(folder, &options, train);
        Process::start(&mut command, &[SECRET])
    };
    let mut first = host(0);
    first.wait_for(r#""step":50,"#);
    let second = host(1);
    let (first, second) = (first.finish(), second.finish());
    assert_eq!(second.code, Some(0), "{}", second.stderr);
    first
}

#[test]
fn a_launcher_that_comes_is_taken_in_and_the_bits_stay() {
    let whole = tempfile::tempdir().unwrap();
    let train = format!("{TRAIN} 1500 --log-steps 10 --total-replicas 2");
    let uninterrupted = launch(whole.path(), "--workers 2", &train);
    let folder = tempfile::tempdir().unwrap();
    let first = joined_by_another(folder.path(), &train);
    assert_eq!(end(&first).0, end(&uninterrupted).0);
    assert_eq!(losses(&first), losses(&uninterrupted));
    assert_eq!(starts(&first), [(2, 1), (2, 2)]);
    let said = "workers at the end: 2; restarts: 0, shrinks: 0, growths: 1";
    assert!(first.stderr.contains(said), "{}", first.stderr);
}

const STEPS: u64 = 2000;

/// Four hosts with a worker of two replicas each. One host is killed at a step that the number of
/// the run decides, and after a while another one takes its number. Gives the time from the kill
/// to the first step after it.
fn lose_a_host_and_get_another(run: u64, undisturbed: &Finished) -> Duration {
    let mixed = (run + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20;
    let (victim, step) = (1 + (mixed % 3) as usize, 10 * (3 + mixed / 3 % 60));
    let folder = tempfile::tempdir().unwrap();
    let ports = distribute_launch::ReservedPorts::new(1, Ipv4Addr::LOCALHOST.into()).unwrap();
    let address = ports.addresses()[0];
    let train = format!("{TRAIN} {STEPS} --log-steps 10 --batch-size 16 --total-replicas 8");
    let host = |index: usize| {
        let options = format!(
            "--workers 2..4 --shrink-after 30s --rendezvous {address} --hosts 4 --host {index}"
        );
        let mut command = Launcher::command(folder.path(), &options, &train);
        Process::start(&mut command, &[SECRET])
    };
    let mut first = host(0);
    let others: Vec<Process> = (1..4).map(host).collect();
    first.wait_for(&format!(r#""step":{step},"#));
    others[victim - 1].signal("KILL");
    let killed = Instant::now();
    first.wait_for(r#""event":"start""#);
    first.wait_for(r#""event":"step""#);
    let until_next_step = killed.elapsed();
    first.wait_for(&format!(r#""step":{},"#, step + 100));
    let newcomer = host(victim);
    let first = first.finish();
    assert_eq!(first.code, Some(0), "run {run}: {}", first.stderr);
    assert_eq!(end(&first).0, end(undisturbed).0, "run {run}");
    assert_eq!(losses(&first), losses(undisturbed), "run {run}");
    assert_eq!(
        starts(&first),
        [(8, 4), (8, 3), (8, 4)],
        "run {run}: {}",
        first.stderr
    );
    let newcomer = newcomer.finish();
    assert_eq!(newcomer.code, Some(0), "run {run}: {}", newcomer.stderr);
    for (index, other) in others.into_iter().enumerate() {
        let code = other.finish().code;
        assert_eq!(
            code.is_some(),
            index + 1 != victim,
            "run {run}: host {}",
            index + 1
        );
    }
    println!(
        "| {run} | {victim} | {step} | {:.1} s | {} |",
        until_next_step.as_secs_f64(),
        &end(&first).0[..8]
    );
    until_next_step
}

/// `ELASTIC_RUNS=20` makes the table of docs/many-machines.md.
#[test]
fn a_job_that_loses_a_host_and_gets_another_has_the_bits_of_one_process() {
    let asked = std::env::var("ELASTIC_RUNS").ok();
    let runs = asked.as_ref().map_or(1, |runs| runs.parse().unwrap());
    let folder = tempfile::tempdir().unwrap();
    let train = format!(
        "train --model mlp --output json --epochs 1000 --log-steps 10 --steps {STEPS} \
         --batch-size 16 --replicas 8"
    );
    let mut command = common::plain(folder.path());
    command.args(train.split_whitespace());
    let undisturbed = Process::start(&mut command, &[]).finish();
    println!(
        "| run | host that is killed | after step | next step | weights |\n|---|---|---|---|---|"
    );
    let all: Vec<Duration> = (0..runs)
        .map(|run| lose_a_host_and_get_another(run, &undisturbed))
        .collect();
    let longest = all.into_iter().max().unwrap_or_default();
    // Beside other tests a machine may be as slow as it likes.
    assert!(
        asked.is_none() || longest < Duration::from_secs(10),
        "{longest:?}"
    );
}
