//! Workers that are stopped, killed and started again.

use std::time::{Duration, Instant};

use distribute_core::checkpoint;
use rstest::rstest;

use crate::job::{MULTI, epochs, finish, hash, start, succeed};

const STEPS: usize = 300;

/// A run that saves every 20 steps.
fn arguments(steps: usize) -> String {
    format!("{MULTI} --checkpoint-dir saved --checkpoint-steps 20 --steps {steps}")
}

/// What is left of a run after its checkpoints were saved: all of them are complete.
pub fn all_complete(folder: &std::path::Path) -> u64 {
    let entries = checkpoint::list(folder.join("saved")).unwrap();
    for entry in &entries {
        checkpoint::verify(&entry.path).unwrap();
    }
    entries.last().expect("a checkpoint").step
}

#[rstest]
#[case(0)]
#[case(2)]
fn a_signal_to_any_worker_makes_all_save_the_same_step_and_exit_42(#[case] signalled: usize) {
    let folder = tempfile::tempdir().unwrap();
    let mut members = start(folder.path(), 3, &arguments(1_000_000), &[]);
    members[0].wait_for(r#""epoch":2"#);
    members[signalled].signal("TERM");
    let ended = finish(members);
    for worker in &ended {
        assert_eq!(worker.code, Some(42), "{}", worker.stderr);
    }
    let step = all_complete(folder.path());
    for worker in &ended {
        let said = format!("interrupted after step {step}");
        assert!(worker.stderr.contains(&said), "{said}: {}", worker.stderr);
    }
    let more = step as usize + 25;
    let (_, resumed) = succeed(folder.path(), 3, &format!("{} --resume", arguments(more)));
    let other = tempfile::tempdir().unwrap();
    assert_eq!(
        resumed,
        succeed(other.path(), 3, &arguments(more)).1,
        "as never interrupted"
    );
}

#[test]
fn a_killed_worker_is_named_and_a_restarted_job_ends_with_the_same_bits() {
    let whole = tempfile::tempdir().unwrap();
    let (uninterrupted, expected) = succeed(whole.path(), 3, &arguments(STEPS));
    for killed in [1, 0, 2] {
        let folder = tempfile::tempdir().unwrap();
        let mut members = start(folder.path(), 3, &arguments(STEPS), &[]);
        members[0].wait_for(r#""epoch":1"#);
        let killed_at = Instant::now();
        members[killed].signal("KILL");
        let ended = finish(members);
        assert!(killed_at.elapsed() < Duration::from_secs(10));
        for (worker, ended) in ended
            .iter()
            .enumerate()
            .filter(|(worker, _)| *worker != killed)
        {
            assert_eq!(ended.code, Some(1), "worker {worker}: {}", ended.stderr);
            let named = format!("rank {killed}");
            assert!(
                ended.stderr.contains(&named),
                "worker {worker}: {}",
                ended.stderr
            );
        }
        // As a launcher starts it again: the same command, and the variable.
        let restarted = start(
            folder.path(),
            3,
            &arguments(STEPS),
            &[("DISTRIBUTE_RESTART", "1")],
        );
        let restarted = finish(restarted);
        for worker in &restarted {
            assert_eq!(worker.code, Some(0), "{}", worker.stderr);
        }
        assert_eq!(
            hash(&restarted[0].stdout),
            expected,
            "killed worker {killed}"
        );
        let (rest, all) = (epochs(&restarted[0].stdout), epochs(&uninterrupted));
        assert!(rest.len() > 5, "it went on");
        assert_eq!(
            rest,
            all[all.len() - rest.len()..],
            "losses of an uninterrupted run"
        );
        all_complete(folder.path());
    }
}

/// What a launcher asks for.
#[test]
fn a_survivor_reports_whom_it_lost() {
    let folder = tempfile::tempdir().unwrap();
    let report = folder.path().join("report.json");
    let variables = [("DISTRIBUTE_FAILURE_REPORT", report.to_str().unwrap())];
    let mut members = start(folder.path(), 2, &arguments(1_000_000), &variables);
    members[0].wait_for(r#""epoch":1"#);
    members[1].signal("KILL");
    let ended = finish(members);
    assert_eq!(ended[0].code, Some(1), "{}", ended[0].stderr);
    assert_eq!(std::fs::read_to_string(report).unwrap(), r#"{"lost":[1]}"#);
}

#[test]
fn another_number_of_workers_keeps_the_global_batch_and_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let first = format!("{} --batch-size 16", arguments(40));
    succeed(folder.path(), 3, &first);
    let second = format!("{} --batch-size 16 --resume", arguments(60));
    let ended = finish(start(folder.path(), 2, &second, &[]));
    assert_eq!(ended[0].code, Some(0), "{}", ended[0].stderr);
    let said = "continuing a run of 3 replicas with 2: 48 examples a step together as before, 24 \
                each";
    assert!(ended[0].told().contains(said), "{}", ended[0].stderr);
    let start: serde_json::Value =
        serde_json::from_str(ended[0].stdout.lines().next().unwrap()).unwrap();
    assert_eq!(start["global_batch_size"], 48);
    let other = tempfile::tempdir().unwrap();
    let whole = succeed(
        other.path(),
        3,
        &format!("{} --batch-size 16", arguments(60)),
    )
    .0;
    let value = |stdout: &str| {
        crate::common::last_event(stdout)["val_loss"]
            .as_f64()
            .unwrap()
    };
    let difference = (value(&ended[0].stdout) - value(&whole)).abs();
    assert!(difference < 1e-4, "the same training: {difference}");
}

#[test]
fn a_restartable_job_begins_and_continues_with_one_command_line() {
    let folder = tempfile::tempdir().unwrap();
    let line = |steps| format!("{} --restartable", arguments(steps));
    succeed(folder.path(), 2, &line(30));
    let (_, continued) = succeed(folder.path(), 2, &line(50));
    let other = tempfile::tempdir().unwrap();
    assert_eq!(continued, succeed(other.path(), 2, &arguments(50)).1);
}
