//! Workers that were started with different flags, models or data say by name what differs, before
//! they train.

use std::fs;
use std::path::Path;

use rstest::rstest;

use crate::common::{Finished, NET, table};
use crate::job::{Member, cluster, finish, tf_config};

const TRAIN: &str = "train --strategy multi-worker --output json";

/// Two workers with arguments of their own.
fn two(folder: &Path, arguments: [&str; 2]) -> Vec<Finished> {
    let cluster = cluster(2);
    let members = arguments.iter().enumerate().map(|(index, arguments)| {
        let config = tf_config(&cluster, "worker", index);
        let all = format!("{TRAIN} {arguments}");
        Member::start(folder, &all, &[("TF_CONFIG", &config)])
    });
    finish(members.collect())
}

/// Both end with exit code 2 and say so, and nothing is trained.
fn refused(folder: &Path, arguments: [&str; 2], said: &str) {
    for (worker, ended) in two(folder, arguments).iter().enumerate() {
        let stderr = &ended.stderr;
        assert_eq!(ended.code, Some(2), "{arguments:?}, {worker}: {stderr}");
        assert!(stderr.contains(said), "{arguments:?}, {worker}: {stderr}");
        // Beside what a library may have to say of the other one.
        let own = stderr.lines().filter(|line| !line.starts_with("warning: "));
        assert_eq!(own.count(), 1, "{stderr}");
        assert_eq!(ended.stdout, "", "{arguments:?}");
    }
}

#[rstest]
#[case("--l2 0", "--l2 0.01", "--l2 is 0.01 on worker 1 and 0 on the chief")]
#[case("", "--l2 0.01", "--l2 is 0.01 on worker 1 and not given on the chief")]
#[case(
    "",
    "--optimizer sgd",
    "--optimizer is sgd on worker 1 and adam on the chief"
)]
#[case(
    "--learning-rate 0.002",
    "",
    "--learning-rate is 0.001 on worker 1 and 0.002 on the chief"
)]
#[case(
    "--optimizer nadam --clip-norm 1",
    "--optimizer nadam --clip-norm 2",
    "--clip-norm is 2 on worker 1 and 1 on the chief"
)]
#[case(
    "--accumulate 2",
    "",
    "--accumulate is not given on worker 1 and 2 on the chief"
)]
#[case(
    "",
    "--precision bf16",
    "--precision is bf16 on worker 1 and not given on the chief"
)]
#[case(
    "--lr-schedule cosine",
    "--lr-schedule polynomial",
    "--lr-schedule is polynomial on worker 1 and cosine on the chief"
)]
#[case(
    "",
    "--warmup-steps 5",
    "--warmup-steps is 5 on worker 1 and not given on the chief"
)]
#[case(
    "",
    "--weight-decay 0.1",
    "--weight-decay is 0.1 on worker 1 and not given on the chief"
)]
#[case(
    "--ema 0.9",
    "--ema 0.5",
    "--ema is 0.5 on worker 1 and 0.9 on the chief"
)]
#[case("--steps 3", "", "--steps is not given on worker 1 and 3 on the chief")]
#[case("", "--seed 2", "--seed is 2 on worker 1 and 1 on the chief")]
#[case("", "--epochs 3", "--epochs is 3 on worker 1 and 30 on the chief")]
#[case(
    "",
    "--batch-size 5",
    "--batch-size is 5 on worker 1 and 32 on the chief"
)]
#[case("", "--bytes-per-pack 9", "--bytes-per-pack is 9 on worker 1")]
#[case(
    "--log-steps 2",
    "",
    "--log-steps is not given on worker 1 and 2 on the chief"
)]
#[case(
    "--checkpoint-dir a",
    "",
    "--checkpoint-dir is not given on worker 1 and given on"
)]
#[case(
    "--checkpoint-dir a --checkpoint-steps 5",
    "--checkpoint-dir a --checkpoint-steps 7",
    "--checkpoint-steps is 7 on worker 1 and 5 on the chief"
)]
#[case(
    "--checkpoint-dir a --restartable",
    "--checkpoint-dir a",
    "--restartable is not given on worker 1 and given on the chief"
)]
fn flags_that_differ_are_named(#[case] chief: &str, #[case] worker: &str, #[case] said: &str) {
    let folder = tempfile::tempdir().unwrap();
    let both = [chief, worker].map(|flags| format!("--model mlp {flags}"));
    refused(folder.path(), [&both[0], &both[1]], said);
}

/// Such workers cannot talk with each other: they refuse each other before they compare the rest.
#[rstest]
#[case("--transport grpc", "--transport shm", ["transport grpc", "transport shm", "--transport"])]
#[case("--transport grpc", "", ["transport grpc", "transport auto", "--transport"])]
#[case("--communication ring", "", ["algorithm ring", "algorithm auto", "--communication"])]
#[case(
    "",
    "--communication ring --transport shm",
    ["algorithm auto", "algorithm ring", "--transport and --communication"]
)]
fn connections_that_differ_are_named_with_both_values(
    #[case] chief: &str,
    #[case] worker: &str,
    #[case] said: [&str; 3],
) {
    let [of_chief, of_worker, flag] = said;
    let folder = tempfile::tempdir().unwrap();
    let both = [chief, worker].map(|flags| format!("--model mlp {flags}"));
    let both = [both[0].as_str(), &both[1]];
    refused(folder.path(), both, of_chief);
    refused(folder.path(), both, of_worker);
    refused(
        folder.path(),
        both,
        &format!("give all workers the same {flag}"),
    );
}

#[rstest]
#[case(
    "relu",
    "tanh",
    "layers[1].config.activation is tanh on worker 1 and relu on the chief"
)]
#[case(
    "0.2",
    "0.6",
    "layers[2].config.rate is 0.6 on worker 1 and 0.2 on the chief"
)]
fn model_files_that_differ_are_shown_where(
    #[case] before: &str,
    #[case] after: &str,
    #[case] said: &str,
) {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("a.json"), NET).unwrap();
    fs::write(folder.path().join("b.json"), NET.replace(before, after)).unwrap();
    refused(folder.path(), ["--model a.json", "--model b.json"], said);
}

#[test]
fn data_that_differs_is_an_error_and_the_same_data_elsewhere_is_not() {
    let folder = tempfile::tempdir().unwrap();
    table(folder.path(), "all.csv", 0..80);
    table(folder.path(), "copy.csv", 0..80);
    table(folder.path(), "half.csv", 0..40);
    table(folder.path(), "reversed.csv", (0..80).rev());
    table(folder.path(), "moved.csv", 1..81);
    let flags = |name: &str| format!("--dataset csv:{name} --steps 3");
    for (name, said) in [
        (
            "half.csv",
            "the number of examples is 40 on worker 1 and 80 on the chief",
        ),
        ("reversed.csv", "the order and split of the examples is"),
        ("moved.csv", "the content of the examples is"),
    ] {
        refused(folder.path(), [&flags("all.csv"), &flags(name)], said);
    }
    for ended in two(folder.path(), [&flags("all.csv"), &flags("copy.csv")]) {
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    }
}
