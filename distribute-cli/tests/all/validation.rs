//! What follows from the validation: a run that ends early, with the weights of its best epoch, a
//! rate that falls at a plateau, and the part of the examples that it is measured with.

use std::fs;
use std::path::Path;

use rstest::rstest;
use serde_json::Value;

use crate::common::{self, Process, last_event, run, succeed};
use crate::job;

/// A quick run of many epochs.
const TRAIN: &str = "train --model mlp --replicas 2 --epochs 8 --output json";
/// Nothing improves by so much, so the first epoch that is looked at stays the best.
const STOP: &str = "--early-stopping 2 --start-from-epoch 1 --min-delta 1000 --restore-best";
const PLATEAU: &str = "--reduce-lr-on-plateau 0.5,1 --min-delta 1000";

fn hash(done: &Value) -> &str {
    done["weights_sha256"].as_str().unwrap()
}

#[test]
fn a_run_ends_early_with_the_weights_of_its_best_epoch() {
    let folder = tempfile::tempdir().unwrap();
    let stopped = run(
        folder.path(),
        &format!("{TRAIN} {STOP} --checkpoint-dir saved"),
    );
    assert_eq!(stopped.code, Some(0), "{}", stopped.stderr);
    assert!(
        stopped.stderr.contains("stopped early: val_loss was best")
            && stopped.stderr.contains("in epoch 2"),
        "{}",
        stopped.stderr
    );
    let done = last_event(&stopped.stdout);
    let two = last_event(&succeed(
        folder.path(),
        &TRAIN.replace("--epochs 8", "--epochs 2"),
    ));
    assert_eq!(hash(&done), hash(&two));
    assert_eq!(
        done["val_loss"], two["val_loss"],
        "of the weights that it ends with"
    );
    assert_eq!(
        done["steps"],
        Value::from(2 * two["steps"].as_u64().unwrap())
    );
    // So does what reads its checkpoint.
    let evaluated = succeed(
        folder.path(),
        "evaluate --checkpoint-dir saved --output json",
    );
    let evaluated = last_event(&evaluated)["loss"].as_f64().unwrap();
    assert!((evaluated - done["val_loss"].as_f64().unwrap()).abs() < 1e-6);
    // There is nothing to go on with, unless it gets more patience.
    let again = run(
        folder.path(),
        &format!("{TRAIN} {STOP} --checkpoint-dir saved --resume"),
    );
    assert!(
        again.stderr.contains(
            "2 epochs without improvement were done before; give a larger --early-stopping"
        ),
        "{}",
        again.stderr
    );
    assert_eq!(hash(&last_event(&again.stdout)), hash(&done));
    let patient = format!("{TRAIN} {STOP} --checkpoint-dir saved --resume")
        .replace("--early-stopping 2", "--early-stopping 3");
    let patient = last_event(&succeed(folder.path(), &patient));
    assert_eq!(
        patient["steps"],
        Value::from(5 * two["steps"].as_u64().unwrap() / 2)
    );
}

/// What a run is that was never disturbed, also where `kill -9` ends it between two saves.
#[rstest]
#[case(STOP)]
#[case(PLATEAU)]
#[case("--optimizer burn:muon --accumulate 2 --clip-norm 1 --lr-schedule cosine")]
#[case("--optimizer burn:adafactor --ema 0.9 --weight-decay 0.01")]
#[case("--ema 0.9 --accumulate 2 --clip-norm 1 --lr-schedule cosine --warmup-steps 10")]
#[case("--weight-decay 0.01 --weight-decay-exclude bias --optimizer nadam --validation-split 0.3")]
fn killed_and_restarted_it_ends_with_the_same_bits(#[case] flags: &str) {
    let folder = tempfile::tempdir().unwrap();
    let whole = last_event(&succeed(folder.path(), &format!("{TRAIN} {flags}")));
    let asked =
        format!("{TRAIN} {flags} --checkpoint-dir saved --checkpoint-steps 7 --restartable");
    let mut command = common::plain(folder.path());
    let mut killed = Process::start(command.args(asked.split_whitespace()), &[]);
    killed.wait_for(r#""epoch":2"#);
    killed.signal("KILL");
    assert_eq!(killed.finish().code, None);
    assert!(folder.path().join("saved").is_dir());
    let done = last_event(&succeed(folder.path(), &asked));
    assert_eq!(hash(&done), hash(&whole), "{flags}");
    assert_eq!(done["val_loss"], whole["val_loss"], "{flags}");
}

#[test]
fn the_rate_falls_at_a_plateau() {
    let folder = tempfile::tempdir().unwrap();
    succeed(
        folder.path(),
        &format!("{TRAIN} --epochs 4 {PLATEAU} --log-dir logs").replace("--epochs 8 ", ""),
    );
    let history = fs::read_to_string(folder.path().join("logs/history.jsonl")).unwrap();
    let rates = history.lines().map(|line| {
        let line: Value = serde_json::from_str(line).unwrap();
        line["learning_rate"].as_f64().unwrap()
    });
    assert_eq!(rates.collect::<Vec<_>>(), [0.001, 0.001, 0.0005, 0.00025]);
}

#[test]
fn all_workers_stop_together() {
    let folder = tempfile::tempdir().unwrap();
    let multi = job::MULTI.replace("train", "train --epochs 8");
    let (chief, stopped) = job::succeed(folder.path(), 2, &format!("{multi} {STOP}"));
    let mirrored = last_event(&succeed(folder.path(), &format!("{TRAIN} {STOP}")));
    assert_eq!(stopped, hash(&mirrored));
    assert_eq!(last_event(&chief)["steps"], mirrored["steps"]);
}

#[test]
fn the_chief_of_parameter_servers_stops_early_too() {
    let folder = tempfile::tempdir().unwrap();
    let program = assert_cmd::cargo::cargo_bin("distribute-cli");
    let train = TRAIN.replace(
        "--replicas 2",
        "--strategy parameter-server --checkpoint-dir saved",
    );
    let asked = format!(
        "launch --ps 1 --workers 2 -- {} {train} {STOP}",
        program.display()
    );
    let done = last_event(&succeed(folder.path(), &asked));
    let evaluated = succeed(
        folder.path(),
        "evaluate --checkpoint-dir saved --output json",
    );
    let loss = last_event(&evaluated)["loss"].as_f64().unwrap();
    assert!((loss - done["val_loss"].as_f64().unwrap()).abs() < 1e-5);
}

/// Keys are flags: the same run from a file.
#[test]
fn all_of_it_can_stand_in_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let flags = "--early-stopping 2 --restore-best --monitor val_accuracy --min-delta 0.5 \
                 --reduce-lr-on-plateau 0.5 --weight-decay 0.01 --weight-decay-exclude bias \
                 --validation-split 0.4 --optimizer burn:lamb --start-from-epoch 0";
    let lines = r#"early-stopping = 2
restore-best = true
monitor = "val_accuracy"
min-delta = 0.5
reduce-lr-on-plateau = 0.5
weight-decay = 0.01
weight-decay-exclude = ["bias"]
validation-split = 0.4
optimizer = "burn:lamb"
start-from-epoch = 0
"#;
    fs::write(folder.path().join("run.toml"), lines).unwrap();
    let expected = last_event(&succeed(folder.path(), &format!("{TRAIN} {flags}")));
    let found = succeed(folder.path(), &format!("{TRAIN} --config run.toml"));
    assert_eq!(hash(&last_event(&found)), hash(&expected));
}

fn examples(stdout: &str) -> [u64; 2] {
    let start: Value = serde_json::from_str(stdout.lines().next().unwrap()).unwrap();
    ["train_examples", "test_examples"].map(|name| start[name].as_u64().unwrap())
}

#[test]
fn a_part_of_ones_own_is_held_out_and_kept_out() {
    let folder = tempfile::tempdir().unwrap();
    common::table(folder.path(), "all.csv", 0..40);
    let train = "train --replicas 1 --steps 3 --output json --dataset csv:all.csv";
    let own = format!("{train} --validation-split 0.5 --checkpoint-dir saved");
    let trained = succeed(folder.path(), &own);
    assert_eq!(examples(&trained), [20, 20]);
    assert_eq!(examples(&succeed(folder.path(), train)), [32, 8]);
    let evaluated = |split: &str| {
        let evaluate = "evaluate --checkpoint-dir saved --output json --split";
        last_event(&succeed(folder.path(), &format!("{evaluate} {split}")))
    };
    let test = evaluated("test");
    assert_eq!(test["examples"], 20);
    let (found, expected) = (&test["loss"], &last_event(&trained)["val_loss"]);
    assert!((found.as_f64().unwrap() - expected.as_f64().unwrap()).abs() < 1e-6);
    assert_eq!(evaluated("train")["examples"], 20);
    // Another part is another run.
    let other = own
        .replace("0.5", "0.25")
        .replace("--steps 3", "--steps 6 --resume");
    let refused = run(folder.path(), &other);
    assert_eq!(refused.code, Some(2), "{}", refused.stderr);
    let said = "--validation-split is 0.25 in this run and 0.5 in the checkpoint";
    assert!(refused.stderr.contains(said), "{}", refused.stderr);
}

/// A table of two data sets, as NumPy has them.
fn idx(folder: &Path, name: &str, count: u32) {
    let header = |kind: u8, sizes: &[u32]| {
        let mut bytes = vec![0, 0, 8, kind];
        bytes.extend(sizes.iter().flat_map(|size| size.to_be_bytes()));
        bytes
    };
    let mut images = header(3, &[count, 2, 2]);
    images.extend((0..count * 4).map(|i| (i * 37 % 251) as u8));
    let mut labels = header(1, &[count]);
    labels.extend((0..count).map(|i| (i % 3) as u8));
    fs::write(folder.join(format!("{name}-images-idx3-ubyte")), images).unwrap();
    fs::write(folder.join(format!("{name}-labels-idx1-ubyte")), labels).unwrap();
}

#[test]
fn the_test_examples_of_the_data_are_left_for_evaluate() {
    let folder = tempfile::tempdir().unwrap();
    idx(folder.path(), "train", 30);
    idx(folder.path(), "t10k", 12);
    let train = "train --replicas 1 --steps 3 --output json --dataset idx:. --model mlp";
    assert_eq!(examples(&succeed(folder.path(), train)), [30, 12]);
    let own = format!("{train} --validation-split 0.2 --checkpoint-dir saved");
    assert_eq!(examples(&succeed(folder.path(), &own)), [24, 6]);
    for (split, count) in [("test", 12), ("train", 24), ("all", 42)] {
        let evaluate = format!("evaluate --checkpoint-dir saved --output json --split {split}");
        assert_eq!(
            last_event(&succeed(folder.path(), &evaluate))["examples"],
            count,
            "{split}"
        );
    }
}

#[test]
fn curves_and_distributions_are_logged() {
    let folder = tempfile::tempdir().unwrap();
    let flags = "--steps 46 --log-dir logs --log-steps 10 --log-histograms 2";
    succeed(folder.path(), &format!("{TRAIN} {flags}"));
    let files = fs::read_dir(folder.path().join("logs/train")).unwrap();
    let bytes: Vec<u8> = files
        .flat_map(|file| fs::read(file.unwrap().path()).unwrap())
        .collect();
    let count = |text: &str| {
        bytes
            .windows(text.len())
            .filter(|it| *it == text.as_bytes())
            .count()
    };
    assert_eq!(count("batch_loss"), 4);
    assert_eq!(
        count("/histogram"),
        6,
        "three layers with two parameters each, once"
    );
}

#[rstest]
#[case(
    "--early-stopping 2 --monitor val_acuracy",
    "did you mean `val_accuracy`?"
)]
#[case(
    "--monitor loss",
    "--monitor says what --early-stopping and --reduce-lr-on-plateau look at"
)]
#[case("--min-delta 0.1", "--min-delta says what")]
#[case("--restore-best", "--early-stopping")]
#[case("--start-from-epoch 2", "--early-stopping")]
#[case("--early-stopping 0", "a whole number from 1 on is needed")]
#[case("--early-stopping 2 --restore-best --ema 0.9", "cannot be used with")]
#[case("--reduce-lr-on-plateau 1.5", "a number between 0 and 1 is needed")]
#[case("--reduce-lr-on-plateau 0.5,0", "a number between 0 and 1 is needed")]
#[case(
    "--reduce-lr-on-plateau 0.5 --lr-schedule cosine",
    "cannot be used with"
)]
#[case("--validation-split 1", "a number between 0 and 1 is needed")]
#[case(
    "--validation-split 0.00001",
    "leaves none of the 1797 examples of digits"
)]
#[case("--log-histograms 1", "--log-dir")]
#[case(
    "--weight-decay-exclude bias",
    "add --weight-decay to --weight-decay-exclude"
)]
#[case(
    "--optimizer adamw --weight-decay-exclude norm",
    "no parameter has `norm` in its name"
)]
#[case("--optimizer adm", "did you mean `adam`?")]
#[case("--optimizer burn:mun", "did you mean `burn:muon`?")]
#[case(
    "--strategy parameter-server --optimizer burn:adam",
    "--optimizer burn:adam updates whole"
)]
#[case("--lr-schedule cosin", "did you mean `cosine`?")]
#[case("--wire bf16", "--wire is about several workers")]
#[case("--strategy one-device --wire f16", "--wire is about several workers")]
#[case(
    "--strategy parameter-server --wire f16",
    "--wire f16 is for --strategy multi-worker"
)]
#[case(
    "--replicas 4 --replicas-per-device 2",
    "'--replicas <N>' cannot be used with '--replicas-per-device <N>'"
)]
#[case(
    "--strategy multi-worker --total-replicas 4 --replicas-per-device 2",
    "'--total-replicas <N>' cannot be used with '--replicas-per-device <N>'"
)]
#[case("--replicas-per-device 0", "a whole number from 1 on is needed")]
#[case(
    "--strategy one-device --replicas-per-device 2",
    "the one-device strategy has one replica, 2 were asked for"
)]
#[case(
    "--strategy parameter-server --replicas-per-device 2",
    "a worker of --strategy parameter-server has one replica"
)]
#[case(
    "--strategy tpu --replicas-per-device 2",
    "--replicas-per-device is for devices that run a step as it is"
)]
#[case(
    "--devices cpu:0,cpu:1 --replicas-per-device 513",
    "at most 1024 replicas in one process"
)]
fn what_has_no_effect_is_refused(#[case] flags: &str, #[case] said: &str) {
    let folder = tempfile::tempdir().unwrap();
    let refused = run(folder.path(), &format!("train --model mlp {flags}"));
    assert_eq!(refused.code, Some(2), "{flags}: {}", refused.stderr);
    assert!(refused.stderr.contains(said), "{flags}: {}", refused.stderr);
    assert!(
        refused.stderr.lines().count() <= 2,
        "{flags}: {}",
        refused.stderr
    );
}
