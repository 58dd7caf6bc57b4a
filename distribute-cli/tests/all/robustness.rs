//! What happens around a run does not change what it does: its messages are not read, the loss
//! explodes, files move.

use std::fs::{self, OpenOptions};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use rstest::rstest;

use crate::common::{self, QUICK, run, succeed};

const MODEL: &str = r#"{"class_name":"Sequential","config":{"name":"net","layers":[
    {"class_name":"InputLayer","config":{"batch_shape":[null,8,8,1]}},
    {"class_name":"Flatten","config":{}},
    {"class_name":"Dense","config":{"units":10,"activation":"linear"}}]}}"#;

/// Runs with standard error on a full disk.
fn unread(folder: &Path, arguments: &str) -> Option<i32> {
    let Ok(full) = OpenOptions::new().write(true).open("/dev/full") else {
        println!("SKIPPED: there is no /dev/full here");
        return None;
    };
    let mut command = Command::new(env!("CARGO_BIN_EXE_distribute-cli"));
    command
        .current_dir(folder)
        .args(arguments.split_whitespace());
    command.stderr(full).output().unwrap().status.code()
}

#[test]
fn messages_that_cannot_be_delivered_do_not_end_a_run() {
    let folder = tempfile::tempdir().unwrap();
    for (arguments, code) in [
        (QUICK.to_string(), 0),
        (QUICK.to_string(), 0),
        ("train --nope".to_string(), 2),
    ] {
        let found = unread(folder.path(), &arguments);
        assert!(
            found.is_none() || found == Some(code),
            "{arguments}: {found:?}"
        );
    }
}

#[test]
fn a_loss_that_is_no_number_is_a_failure_also_in_short_epochs() {
    let folder = tempfile::tempdir().unwrap();
    let arguments =
        "train --model mlp --learning-rate 1e30 --epochs 9 --replicas 1 --batch-size 64";
    let finished = run(folder.path(), arguments);
    assert_eq!(finished.code, Some(43), "{}", finished.stderr);
    assert!(
        finished.stderr.contains("not finite after step 23"),
        "{}",
        finished.stderr
    );
}

/// As in Keras, one value per feature has the variance 0, with any number of replicas; and the last
/// batch can be left out.
#[rstest]
fn a_last_batch_of_one_example_is_normalized_by_any_number_of_replicas(
    #[values("", r#","synchronized":true"#)] kind: &str,
    #[values(1, 2)] replicas: usize,
) {
    let folder = tempfile::tempdir().unwrap();
    let norm = format!(r#"{{"class_name":"BatchNormalization","config":{{"axis":-1{kind}}}}},"#);
    let last = r#"{"class_name":"Dense","config":{"units":10"#;
    let model = common::NET.replace(last, &format!("{norm}{last}"));
    fs::write(folder.path().join("net.json"), model).unwrap();
    let train = |sizes: &str| {
        let flags = format!("--replicas {replicas} --epochs 1 --output json {sizes}");
        run(folder.path(), &format!("train --model net.json {flags}"))
    };
    // Of 1438 training examples each replica has one in the last batch.
    let each = [1437, 718][replicas - 1];
    for sizes in ["--batch-size 1 --steps 2", &format!("--batch-size {each}")] {
        let finished = train(sizes);
        assert_eq!(finished.code, Some(0), "{}", finished.stderr);
        assert!(
            !finished.stdout.contains("loss\":null"),
            "{}",
            finished.stdout
        );
    }
    let dropped = train(&format!("--batch-size {each} --drop-remainder"));
    assert_eq!(dropped.code, Some(0), "{}", dropped.stderr);
    assert!(dropped.stdout.contains("\"steps\":1,") || dropped.stdout.contains("\"steps\":1}"));
}

#[rstest]
#[case("--replicas 1", "1438 training examples are no whole batch of 2000")]
#[case("--replicas 2", "1438 training examples are no whole batch of 4000")]
#[case("--replicas 2 --dry-run", "are no whole batch of 4000")]
fn a_remainder_that_is_all_there_is_is_not_dropped(#[case] flags: &str, #[case] said: &str) {
    let folder = tempfile::tempdir().unwrap();
    let train = "train --model mlp --batch-size 2000 --drop-remainder --checkpoint-dir saved";
    let finished = run(folder.path(), &format!("{train} {flags}"));
    assert_eq!(finished.code, Some(2), "{}", finished.stderr);
    let told = finished.told();
    assert!(
        told.contains("--drop-remainder leaves nothing to train on"),
        "{told}"
    );
    assert!(told.contains(said), "{told}");
    assert!(
        told.contains("use a smaller --batch-size, or leave the flag out"),
        "{told}"
    );
    assert_eq!(finished.stdout, "");
    assert!(
        !folder.path().join("saved").exists(),
        "refused before anything is made"
    );
}

#[test]
fn absurd_replica_counts_are_refused_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let started = Instant::now();
    for (replicas, code) in [("1025", 2), ("18446744073709551615", 2)] {
        let finished = run(folder.path(), &format!("train --replicas {replicas}"));
        assert_eq!(finished.code, Some(code), "{}", finished.stderr);
    }
    assert!(started.elapsed() < Duration::from_secs(30));
}

#[test]
fn numbers_in_a_configuration_may_be_hexadecimal() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("c.toml"), "steps = 0x10\n").unwrap();
    let arguments = "train --model mlp --config c.toml --epochs 1 --replicas 1 --output json";
    let out = succeed(folder.path(), arguments);
    assert!(out.contains("\"steps\":16"), "{out}");
}

#[test]
fn test_images_of_another_shape_are_refused_before_training() {
    let folder = tempfile::tempdir().unwrap();
    let images = |count: u8, side: u8| {
        let mut bytes = vec![0, 0, 8, 3, 0, 0, 0, count, 0, 0, 0, side, 0, 0, 0, side];
        bytes.extend(std::iter::repeat_n(
            7,
            usize::from(count) * usize::from(side).pow(2),
        ));
        bytes
    };
    let labels = |count: u8| {
        let mut bytes = vec![0, 0, 8, 1, 0, 0, 0, count];
        bytes.extend((0..count).map(|index| index % 2));
        bytes
    };
    for (name, bytes) in [
        ("train-images-idx3-ubyte", images(8, 4)),
        ("train-labels-idx1-ubyte", labels(8)),
        ("t10k-images-idx3-ubyte", images(4, 5)),
        ("t10k-labels-idx1-ubyte", labels(4)),
    ] {
        fs::write(folder.path().join(name), bytes).unwrap();
    }
    let finished = run(
        folder.path(),
        "train --dataset idx:. --model mlp --replicas 1",
    );
    assert_eq!(finished.code, Some(2), "{}", finished.stderr);
    assert!(
        finished.stderr.contains("[4, 4], the test examples [5, 5]"),
        "{}",
        finished.stderr
    );
}

#[test]
fn a_model_file_is_known_by_what_it_says_not_by_its_path() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    fs::write(path("net.json"), MODEL).unwrap();
    let flags = "--steps 3 --epochs 1 --replicas 1 --checkpoint-dir saved";
    succeed(folder.path(), &format!("train --model net.json {flags}"));
    fs::rename(path("net.json"), path("moved.json")).unwrap();
    succeed(
        folder.path(),
        &format!("train --model moved.json {flags} --resume"),
    );
    fs::write(path("net.json"), MODEL.replace("linear", "tanh")).unwrap();
    let other = run(
        folder.path(),
        &format!("train --model net.json {flags} --resume"),
    );
    assert_eq!(other.code, Some(2), "{}", other.stderr);
    assert!(
        other.stderr.contains("another version of the model"),
        "{}",
        other.stderr
    );
}

#[test]
fn a_directory_of_checkpoints_may_have_any_name() {
    let folder = tempfile::tempdir().unwrap();
    succeed(
        folder.path(),
        &format!("{QUICK} --checkpoint-dir step-runs"),
    );
    succeed(folder.path(), "evaluate --checkpoint-dir step-runs");
    let resumed = format!("{QUICK} --checkpoint-dir step-runs --resume");
    let out = succeed(folder.path(), &resumed);
    assert!(out.contains("\"event\":\"done\""), "{out}");
}

#[test]
fn another_learning_rate_is_refused_on_resume_not_ignored() {
    let folder = tempfile::tempdir().unwrap();
    let flags = "--model mlp --steps 3 --epochs 1 --replicas 1 --checkpoint-dir saved";
    succeed(
        folder.path(),
        &format!("train {flags} --learning-rate 0.01"),
    );
    let other = run(
        folder.path(),
        &format!("train {flags} --resume --learning-rate 0.02"),
    );
    assert_eq!(other.code, Some(2), "{}", other.stderr);
    assert!(
        other
            .stderr
            .contains("--learning-rate is 0.02 in this run and 0.01 in"),
        "{}",
        other.stderr
    );
    succeed(
        folder.path(),
        &format!("train {flags} --resume --learning-rate 0.01"),
    );
}

#[test]
fn another_l2_is_refused_on_resume_and_the_own_one_is_kept() {
    let folder = tempfile::tempdir().unwrap();
    let train = "train --model mlp --replicas 1 --epochs 1 --output json";
    let resume = format!("{train} --checkpoint-dir saved --resume");
    let part = format!("{train} --l2 0.01 --steps 3 --checkpoint-dir saved");
    succeed(folder.path(), &part);
    let other = run(folder.path(), &format!("{resume} --l2 0.02"));
    assert_eq!(other.code, Some(2), "{}", other.stderr);
    insta::assert_snapshot!("another_l2", other.stderr);
    assert_eq!(other.stdout, "", "refused before it begins");
    let hash = |out: &str| common::last_event(out)["weights_sha256"].clone();
    let resumed = hash(&succeed(folder.path(), &resume));
    assert_eq!(
        resumed,
        hash(&succeed(folder.path(), &format!("{train} --l2 0.01")))
    );
    assert_ne!(resumed, hash(&succeed(folder.path(), train)));

    let plain = format!("{train} --steps 3 --checkpoint-dir plain");
    succeed(folder.path(), &plain);
    let other = run(folder.path(), &format!("{plain} --resume --l2 0.01"));
    assert_eq!(other.code, Some(2), "{}", other.stderr);
    insta::assert_snapshot!("another_l2_than_the_models", other.stderr);
}

#[test]
fn a_resumed_run_announces_its_own_learning_rate() {
    let folder = tempfile::tempdir().unwrap();
    let train = "train --model mlp --replicas 1 --epochs 1 --output json --checkpoint-dir saved";
    succeed(
        folder.path(),
        &format!("{train} --steps 2 --learning-rate 0.25"),
    );
    let resumed = succeed(folder.path(), &format!("{train} --steps 3 --resume"));
    assert!(resumed.contains("\"learning_rate\":0.25"), "{resumed}");
}

#[test]
fn a_model_that_no_memory_holds_is_refused_before_it_is_built() {
    let folder = tempfile::tempdir().unwrap();
    let model = MODEL.replace("\"units\":10", "\"units\":16777216");
    let (layers, _) = model.rsplit_once("]}}").unwrap();
    let more = r#",{"class_name":"Dense","config":{"units":16777216}}]}}"#;
    fs::write(folder.path().join("net.json"), format!("{layers}{more}")).unwrap();
    let finished = run(
        folder.path(),
        "train --model net.json --steps 1 --replicas 1",
    );
    assert_eq!(finished.code, Some(2), "{}", finished.stderr);
    assert!(
        finished.stderr.contains("make its layers smaller"),
        "{}",
        finished.stderr
    );
}
