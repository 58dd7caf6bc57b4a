//! `--check-replicas` and `--recompute`: refused where there is nothing to compare, and else
//! without an effect on what is trained.

use rstest::rstest;

use crate::common::{self, last_event};
use crate::job::{self, MULTI};

#[rstest]
#[case("--check-replicas 5 --replicas 1", "add --replicas or workers")]
#[case("--recompute 5 --strategy one-device", "add --replicas or workers")]
#[case(
    "--recompute 5 --strategy one-device --dry-run",
    "add --replicas or workers"
)]
#[case(
    "--check-replicas 5 --strategy central-storage --replicas 2",
    "one copy of the weights"
)]
#[case("--recompute 5 --strategy tpu", "compiled")]
#[case("--check-replicas 5 --strategy parameter-server", "one replica each")]
#[case("--recompute 0 --replicas 2", "--recompute")]
fn nothing_to_compare_is_refused(#[case] flags: &str, #[case] what: &str) {
    let folder = tempfile::tempdir().unwrap();
    let refused = common::run(
        folder.path(),
        &format!("train --model mlp --steps 1 {flags}"),
    );
    assert_eq!(refused.code, Some(2), "{flags}: {}", refused.stderr);
    assert!(refused.told().contains(what), "{flags}: {}", refused.stderr);
}

/// A network with dropout and batch normalization, on replicas of one process and of two.
#[test]
fn checks_change_no_bit() {
    let folder = tempfile::tempdir().unwrap();
    let steps = "--steps 6 --batch-size 32 --seed 3";
    let plain = format!("train --model digits-cnn --output json --replicas 4 {steps}");
    let sha = |stdout: &str| last_event(stdout)["weights_sha256"].clone();
    let expected = sha(&common::succeed(folder.path(), &plain));
    assert!(expected.is_string());
    let checks = "--check-replicas 2 --recompute 1";
    let checked = common::succeed(folder.path(), &format!("{plain} {checks}"));
    assert_eq!(sha(&checked), expected);
    let multi = MULTI.replace("mlp", "digits-cnn");
    let arguments = format!("{multi} --total-replicas 4 {steps} {checks}");
    for worker in job::start(folder.path(), 2, &arguments, &[]) {
        let ended = worker.finish();
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        if !ended.stdout.is_empty() {
            assert_eq!(sha(&ended.stdout), expected);
        }
    }
}

#[test]
fn workers_check_together() {
    let folder = tempfile::tempdir().unwrap();
    let cluster = job::cluster(2);
    let workers = [0, 1].map(|rank| {
        let config = job::tf_config(&cluster, "worker", rank);
        let arguments = format!("{MULTI} --steps 3 --recompute {}", 2 + rank);
        job::Member::start(folder.path(), &arguments, &[("TF_CONFIG", &config)])
    });
    for worker in workers {
        let ended = worker.finish();
        assert_eq!(ended.code, Some(2), "{}", ended.stderr);
        assert!(ended.told().contains("--recompute"), "{}", ended.stderr);
    }
}
