//! What a checkpoint was made with is compared by name before it is used: data, model and flags.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use burn::tensor::DType;
use distribute_core::TensorData;
use distribute_core::checkpoint::load_latest;
use rstest::rstest;

use crate::common::{self, NET, Process, last_event, run, succeed, table};

/// Exit code 2 and one line that says so; nothing on standard output.
fn refused(folder: &Path, arguments: &str, said: &str) {
    let finished = run(folder, arguments);
    assert_eq!(finished.code, Some(2), "{arguments}: {}", finished.stderr);
    assert!(
        finished.stderr.contains(said),
        "{arguments}: {}",
        finished.stderr
    );
    assert_eq!(finished.stderr.lines().count(), 1, "{}", finished.stderr);
    assert_eq!(finished.stdout, "");
}

const TRAIN: &str = "train --replicas 1 --output json --checkpoint-dir saved";

#[test]
fn other_data_is_refused_on_resume_and_the_same_data_elsewhere_is_not() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    table(folder, "all.csv", 0..80);
    table(folder, "half.csv", 0..40);
    table(folder, "reversed.csv", (0..80).rev());
    table(folder, "moved.csv", 1..81);
    succeed(folder, &format!("{TRAIN} --dataset csv:all.csv --steps 3"));
    for (name, said) in [
        (
            "half.csv",
            "the number of examples is 40 in this run (csv:half.csv) and 80 in the checkpoint \
             saved/step-00000003",
        ),
        ("reversed.csv", "the order and split of the examples is"),
        ("moved.csv", "the content of the examples is"),
    ] {
        let again = format!("{TRAIN} --dataset csv:{name} --steps 6 --resume");
        refused(folder, &again, said);
    }
    fs::rename(folder.join("all.csv"), folder.join("elsewhere.csv")).unwrap();
    let again = format!("{TRAIN} --dataset csv:elsewhere.csv --steps 6 --resume");
    let resumed = last_event(&succeed(folder, &again));
    let whole = "train --replicas 1 --output json --dataset csv:elsewhere.csv --steps 6";
    let whole = last_event(&succeed(folder, whole));
    assert_eq!(resumed["weights_sha256"], whole["weights_sha256"]);
}

/// Reviews in these words for bad and good.
fn reviews(folder: &Path, name: &str, [bad, good]: [&str; 2]) {
    let row = |index: usize| format!("{} film,{}\n", [bad, good][index % 2], index % 2);
    let rows: String = (0..40).map(row).collect();
    fs::write(folder.join(name), format!("text,label\n{rows}")).unwrap();
}

#[test]
fn the_words_of_another_file_are_not_those_of_the_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    reviews(folder, "one.csv", ["awful", "good"]);
    reviews(folder, "other.csv", ["boring", "great"]);
    let train = |name: &str| format!("{TRAIN} --model text --dataset csv:{name}");
    succeed(folder, &format!("{} --steps 3", train("one.csv")));
    let said = "the vocabulary is film, great, boring in this run (csv:other.csv) and film, \
                good, awful in the checkpoint";
    refused(folder, &format!("{} --resume", train("other.csv")), said);
    // The evaluator of a cluster reads the data by itself.
    let cluster = r#"{"cluster":{"worker":["127.0.0.1:1"],"evaluator":["127.0.0.1:2"]},
                      "task":{"type":"evaluator","index":0}}"#;
    let mut evaluator = common::plain(folder);
    let arguments = train("other.csv").replace("--replicas 1", "--strategy multi-worker");
    evaluator.args(arguments.split_whitespace());
    let ended = Process::start(&mut evaluator, &[("TF_CONFIG", cluster)]).finish();
    assert_eq!(ended.code, Some(2), "{}", ended.stderr);
    assert!(ended.stderr.contains("the vocabulary"), "{}", ended.stderr);
}

/// Five images of each of these classes.
fn images(folder: &Path, classes: &[&str]) {
    for (class, name) in classes.iter().enumerate() {
        let directory = folder.join(name);
        fs::create_dir_all(&directory).unwrap();
        for index in 0..5_u8 {
            let shade = 50 * u8::try_from(class).unwrap() + 2 * index;
            let image = image::GrayImage::from_raw(8, 8, vec![shade; 64]).unwrap();
            image.save(directory.join(format!("{index}.png"))).unwrap();
        }
    }
}

#[test]
fn folders_with_other_classes_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    images(&folder.join("three"), &["bird", "cat", "dog"]);
    images(&folder.join("two"), &["cat", "dog"]);
    images(&folder.join("others"), &["ape", "cat", "dog"]);
    let train = format!("{TRAIN} --dataset images --model mlp");
    succeed(folder, &format!("{train} --data-dir three --steps 2"));
    for (data, found) in [("two", "cat, dog"), ("others", "ape, cat, dog")] {
        for command in ["evaluate", "predict --split test"] {
            let arguments = format!("{command} --checkpoint-dir saved --data-dir {data}");
            let said =
                format!("the classes of images are {found}, and the classes of the checkpoint");
            refused(folder, &arguments, &said);
        }
        // Nothing looks at them.
        let predict = format!("predict --checkpoint-dir saved --data-dir {data}");
        succeed(folder, &predict);
        let said = format!("the list of classes is {found} in this run");
        refused(
            folder,
            &format!("{train} --data-dir {data} --resume"),
            &said,
        );
    }
    succeed(folder, "evaluate --checkpoint-dir saved --data-dir three");
}

#[rstest]
#[case(
    "relu",
    "tanh",
    "layers[1].config.activation is tanh here and relu there"
)]
#[case("0.2", "0.6", "layers[2].config.rate is 0.6 here and 0.2 there")]
fn another_version_of_a_model_file_is_shown_where(
    #[case] before: &str,
    #[case] after: &str,
    #[case] said: &str,
) {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    fs::write(folder.join("net.json"), NET).unwrap();
    let train = format!("{TRAIN} --model net.json");
    succeed(folder, &format!("{train} --steps 2"));
    // Laid out otherwise it is the same.
    fs::write(folder.join("net.json"), NET.replace("\n    ", "")).unwrap();
    succeed(folder, &format!("{train} --steps 3 --resume"));
    fs::write(folder.join("net.json"), NET.replace(before, after)).unwrap();
    refused(folder, &format!("{train} --steps 4 --resume"), said);
    refused(
        folder,
        "evaluate --checkpoint-dir saved --model net.json",
        said,
    );
}

#[test]
fn flags_that_decide_the_result_are_compared_and_others_are_free() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let train = format!("{TRAIN} --model mlp");
    succeed(folder, &format!("{train} --steps 2 --batch-size 16"));
    for (flags, said) in [
        (
            "--seed 3",
            "--seed is 3 in this run and 1 in the checkpoint saved/step-00000002",
        ),
        (
            "--optimizer sgd",
            "--optimizer is sgd in this run and adam in",
        ),
        ("--l2 0.5", "--l2 is 0.5 in this run and not given in"),
        (
            "--learning-rate 0.5",
            "--learning-rate is 0.5 in this run and 0.001 in",
        ),
        (
            "--clip-norm 1",
            "--clip-norm is 1 in this run and not given",
        ),
        ("--accumulate 2", "--accumulate is 2 in this run and not"),
        ("--ema 0.5", "--ema is 0.5 in this run and not given"),
        (
            "--precision bf16",
            "--precision is bf16 in this run and not given",
        ),
        (
            "--warmup-steps 9",
            "--warmup-steps is 9 in this run and not",
        ),
        (
            "--batch-size 8",
            "the number of examples in a step is 8 in this run",
        ),
    ] {
        refused(folder, &format!("{train} --steps 4 --resume {flags}"), said);
    }
    let free = "--epochs 2 --checkpoint-steps 9 --log-dir logs --log-steps 2 --steps 4";
    succeed(folder, &format!("{train} --resume {free}"));
}

/// Each run goes on twice by the flags of before, with these replicas in turn. What it prints of
/// its steps shows that it went on.
#[rstest]
#[case("--batch-size 8", &[4, 3, 3])]
#[case("--batch-size 8 --accumulate 2", &[2, 1, 1, 3])]
#[case("", &[1, 4, 2, 2])]
#[case("--reduce-lr-on-plateau 0.5 --monitor loss --batch-size 256", &[2, 1, 1])]
#[case("--early-stopping 3 --restore-best --validation-split 0.3", &[1, 2, 2])]
#[case("--lr-schedule cosine:decay_steps=5 --warmup-steps 2 --l2 0.01", &[2, 2, 1])]
#[case("--optimizer sgd --learning-rate 0.1 --precision f16 --seed 7", &[2, 3, 3])]
fn what_goes_on_once_goes_on_again(#[case] flags: &str, #[case] replicas: &[usize]) {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    for (round, replicas) in replicas.iter().enumerate() {
        let steps = 3 * (round + 1);
        let run = format!(
            "train --output json --model mlp --checkpoint-dir saved --restartable {flags} \
             --steps {steps} --replicas {replicas}"
        );
        let ended = last_event(&succeed(folder, &run));
        assert_eq!(ended["steps"], steps, "{run}");
    }
}

#[test]
fn a_size_that_was_accepted_with_other_replicas_is_accepted_from_then_on() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let train = format!(
        "{} --model mlp --restartable",
        TRAIN.replace(" --replicas 1", "")
    );
    let mut steps = 0;
    for (size, replicas) in [(8, 4), (16, 2), (16, 1), (16, 1), (8, 3), (8, 3), (8, 4)] {
        steps += 1;
        let flags = format!("--batch-size {size} --replicas {replicas} --steps {steps}");
        succeed(folder, &format!("{train} {flags}"));
    }
    let said = "the number of examples in a step is 36 in this run (digits) and 32 in the";
    refused(
        folder,
        &format!("{train} --batch-size 12 --replicas 3 --steps 9"),
        said,
    );
}

/// Every optimizer, with all that is around it: a run that goes on ends with the bits of one that
/// was not interrupted. The flags come from a file.
#[rstest]
fn a_run_with_every_option_of_training_goes_on_where_it_was(
    #[values(
        "adadelta", "adagrad", "adam", "adamax", "adamw", "ftrl", "lion", "nadam", "rmsprop", "sgd"
    )]
    optimizer: &str,
) {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    // FTRL divides by the rate, which must not be 0.
    let (warmup, alpha) = match optimizer {
        "ftrl" => ("", ",alpha=0.1"),
        _ => ("warmup-steps = 3\n", ""),
    };
    let flags = format!(
        "optimizer = \"{optimizer}\"\nlearning-rate = 0.01\nclip-norm = 0.5\naccumulate = 2\n\
         weight-decay = 0.01\nema = 0.75\n{warmup}lr-schedule = \"cosine:decay_steps=5{alpha}\"\n"
    );
    fs::write(folder.join("all.toml"), flags).unwrap();
    let train = "train --config all.toml --model mlp --replicas 2 --batch-size 16 --output json";
    let ends = |directory: &str, steps: usize, more: &str| {
        let run = format!("{train} --checkpoint-dir {directory} --steps {steps} {more}");
        let done = last_event(&succeed(folder, &run));
        let (_, checkpoint) = load_latest(folder.join(directory)).unwrap().found.unwrap();
        (done, checkpoint.tensors)
    };
    let (whole, wanted) = ends("whole", 7, "");
    ends("parts", 3, "");
    let (resumed, found) = ends("parts", 7, "--resume");
    assert_eq!(found, wanted);
    assert_eq!(resumed["val_loss"], whole["val_loss"]);
    assert!(
        found.contains_key("optimizer/average/layers.1.weight") || {
            found
                .keys()
                .any(|name| name.starts_with("optimizer/average/"))
        }
    );
    // What is evaluated is the averages, as at the end of training.
    let evaluated = succeed(folder, "evaluate --checkpoint-dir whole --output json");
    let evaluated = last_event(&evaluated);
    let loss = |value: &serde_json::Value| value.as_f64().unwrap();
    let difference = loss(&evaluated["loss"]) - loss(&whole["val_loss"]);
    assert!(difference.abs() < 1e-6, "{difference}");
}

/// From a file of flags; `f16` has a loss scale in the checkpoint.
#[rstest]
fn a_run_in_16_bits_goes_on_where_it_was(#[values("bf16", "f16")] precision: &str) {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let flags = format!("precision = \"{precision}\"\n");
    fs::write(folder.join("all.toml"), flags).unwrap();
    let train = "train --model mlp --replicas 2 --batch-size 16 --output json";
    let ends = |directory: &str, steps: usize, more: &str| {
        let run = format!("{train} --checkpoint-dir {directory} --steps {steps} {more}");
        let done = last_event(&succeed(folder, &run));
        let (_, checkpoint) = load_latest(folder.join(directory)).unwrap().found.unwrap();
        (done["val_loss"].as_f64().unwrap(), checkpoint.tensors)
    };
    let (exact, in_f32) = ends("f32", 40, "");
    let (whole, wanted) = ends("whole", 40, "--config all.toml");
    ends("parts", 17, "--config all.toml");
    let (resumed, found) = ends("parts", 40, "--config all.toml --resume");
    assert_eq!((resumed, &found), (whole, &wanted));
    assert_eq!(
        found.contains_key("loss_scale/dynamic_scale"),
        precision == "f16"
    );
    let weights = |tensors: &BTreeMap<String, TensorData>| -> Vec<TensorData> {
        let model = tensors
            .iter()
            .filter(|(name, _)| name.starts_with("model/"));
        model.map(|(_, data)| data.clone()).collect()
    };
    assert!(
        weights(&found)
            .iter()
            .all(|data| data.dtype() == DType::F32)
    );
    assert_ne!(weights(&found), weights(&in_f32));
    assert!(
        (whole - exact).abs() < 0.01 * exact,
        "{whole} and {exact} in f32"
    );
    // Evaluated in f32.
    let evaluated = last_event(&succeed(
        folder,
        "evaluate --checkpoint-dir whole --output json",
    ));
    let evaluated = evaluated["loss"].as_f64().unwrap();
    assert!(
        (evaluated - whole).abs() < 0.01 * whole,
        "{evaluated} and {whole}"
    );
}

#[rstest]
#[case("--lr-schedule cosin", "did you mean `cosine`?")]
#[case("--lr-schedule exponential", "missing field `decay_rate`")]
#[case(
    "--lr-schedule cosine:decay_steps=0",
    "`decay_steps` must be a positive number"
)]
#[case("--lr-schedule cosine:alpha", "`alpha` is not KEY=NUMBER")]
#[case("--lr-schedule cosine:power=2", "unknown field `power`")]
#[case(
    "--lr-schedule piecewise-constant:boundaries=5,values=1",
    "1 boundaries need 2 values, got 1"
)]
#[case("--optimizer nadm", "nadam")]
#[case("--ema 1", "less than 1 is needed")]
#[case("--clip-norm 0", "a number above 0 is needed")]
#[case("--optimizer ftrl --warmup-steps 3", "choose another optimizer")]
#[case(
    "--strategy parameter-server --accumulate 2",
    "use a larger --batch-size"
)]
#[case("--precision f8", "bf16")]
#[case("--strategy parameter-server --precision f16", "use --precision bf16")]
fn options_of_training_that_cannot_be_are_refused(#[case] flags: &str, #[case] said: &str) {
    let folder = tempfile::tempdir().unwrap();
    let ended = run(folder.path(), &format!("train {flags}"));
    assert_eq!(ended.code, Some(2), "{}", ended.stderr);
    assert!(ended.stderr.contains(said), "{}", ended.stderr);
}

#[test]
fn one_flag_begins_and_goes_on_and_the_other_one_names_it() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let train = format!("{TRAIN} --model mlp --steps");
    refused(
        folder,
        &format!("{train} 2 --resume"),
        "give --restartable in place of --resume",
    );
    fs::create_dir(folder.join("saved")).unwrap();
    refused(
        folder,
        &format!("{train} 2 --resume"),
        "give --restartable in place of --resume",
    );
    for steps in [2, 4] {
        let done = last_event(&succeed(folder, &format!("{train} {steps} --restartable")));
        assert_eq!(done["steps"], steps);
    }
    let again = format!("{train} 6");
    refused(folder, &again, "add --restartable to continue");
}

#[rstest]
#[case("--steps 4", "all 4 steps were done before; give a larger --steps")]
#[case("--epochs 1", "all 1 epochs were done before; give a larger --epochs")]
fn a_finished_run_says_that_nothing_was_left(#[case] flags: &str, #[case] said: &str) {
    let folder = tempfile::tempdir().unwrap();
    let train = format!("{TRAIN} --model mlp {flags} --restartable");
    let first = run(folder.path(), &train);
    assert!(
        !first.stderr.contains("nothing was left"),
        "{}",
        first.stderr
    );
    for train in [train.clone(), train.replace("json", "text")] {
        let again = run(folder.path(), &train);
        assert_eq!(again.code, Some(0), "{}", again.stderr);
        assert!(
            again.stderr.contains("nothing is left to train"),
            "{}",
            again.stderr
        );
        assert!(again.stderr.contains(said), "{}", again.stderr);
    }
}

#[test]
fn a_damaged_checkpoint_is_passed_over_in_a_sentence() {
    let folder = tempfile::tempdir().unwrap();
    let train = format!("{TRAIN} --model mlp --restartable --steps");
    for steps in [2, 4] {
        succeed(folder.path(), &format!("{train} {steps}"));
    }
    let tensors = folder
        .path()
        .join("saved/step-00000004/tensors.safetensors");
    fs::write(tensors, "gone").unwrap();
    let evaluated = run(
        folder.path(),
        "evaluate --checkpoint-dir saved --output json",
    );
    assert_eq!(evaluated.code, Some(0), "{}", evaluated.stderr);
    insta::assert_snapshot!(evaluated.stderr);
}

#[test]
fn a_history_of_other_columns_is_left_as_it_is_on_resume() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let train = format!("{TRAIN} --model mlp --log-dir logs --restartable --epochs");
    succeed(folder, &format!("{train} 1"));
    let history = folder.join("logs/history.csv");
    let rows = fs::read_to_string(&history).unwrap();
    let other = rows.replace("accuracy", "precision");
    fs::write(&history, &other).unwrap();
    let finished = run(folder, &format!("{train} 2"));
    assert_eq!(finished.code, Some(0), "{}", finished.stderr);
    let said = "logs/history.csv has the columns epoch, step, learning_rate, loss, precision";
    assert!(finished.stderr.contains(said), "{}", finished.stderr);
    assert_eq!(fs::read_to_string(&history).unwrap(), other);
    let lines = fs::read_to_string(folder.join("logs/history.jsonl")).unwrap();
    assert_eq!(lines.lines().count(), 2);
}

#[test]
fn what_is_not_finite_is_a_text_in_json() {
    let folder = tempfile::tempdir().unwrap();
    let wild = "--model mlp --optimizer sgd --learning-rate 1e30 --steps 1 --log-dir logs";
    let train = format!("train --replicas 1 --output json {wild}");
    let ended = run(folder.path(), &train);
    assert_eq!(ended.code, Some(43), "{}", ended.stderr);
    assert_eq!(last_event(&ended.stdout)["val_loss"], "NaN");
    let row = fs::read_to_string(folder.path().join("logs/history.jsonl")).unwrap();
    assert_eq!(last_event(&row)["val_loss"], "NaN");
}

/// Runs the program as a task of a cluster.
fn run_as(folder: &Path, arguments: &str, tf_config: &str) -> common::Finished {
    let mut program = common::program(folder);
    let program = program.env("TF_CONFIG", tf_config);
    let output = program.args(arguments.split_whitespace()).output().unwrap();
    common::Finished {
        code: output.status.code(),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

/// What is written beside training lies in no checkpoint, and not where one comes.
#[test]
fn what_is_written_beside_checkpoints_lies_in_none_of_them() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let train = "train --replicas 1 --model mlp --output json";
    succeed(folder, &format!("{train} --steps 2 --checkpoint-dir saved"));
    let saved = folder.join("saved/step-00000002");
    std::os::unix::fs::symlink(&saved, folder.join("newest")).unwrap();
    let more = format!("{train} --steps 4 --restartable --checkpoint-dir saved");
    let workers = format!("{more} --strategy multi-worker");
    let read = "--checkpoint-dir saved/step-00000002";
    let launch = "launch --workers 1 --log-dir later/step-00000004 -- distribute-cli train";
    let worker = r#"{"cluster":{"worker":["127.0.0.1:9"]},"task":{"type":"worker","index":0}}"#;
    fs::write(folder.join("run.toml"), "trace = \"saved/step-00000004\"\n").unwrap();
    for line in [
        &*format!("{more} --log-dir saved/step-00000002"),
        &format!("{more} --log-dir saved/step-00000004"),
        &format!("{more} --log-dir newest/logs"),
        &format!("{more} --log-bits saved/step-00000002/bits.jsonl"),
        &format!("{more} --trace saved/step-00000002/trace.json"),
        &format!("{more} --trace saved/.distribute-checkpoints.lock"),
        &format!("{more} --config run.toml"),
        &format!("{train} --checkpoint-dir later --log-dir later/step-00000004"),
        &format!("{workers} --flight-records saved/step-00000002/flights"),
        &format!("predict {read} --predictions saved/step-00000002/classes.csv"),
        &format!("evaluate {read} --picture newest/picture.svg"),
        "certs --hosts a --out saved/step-00000002/certs",
        "man --out newest/man",
        &format!("{launch} --checkpoint-dir=later"),
        &format!("{launch} --checkpoint-dir later"),
    ] {
        let finished = run_as(folder, line, worker);
        assert_eq!(finished.code, Some(2), "{line}: {}", finished.stderr);
        let said = "which belongs to the checkpoints";
        assert!(
            finished.stderr.contains(said),
            "{line}: {}",
            finished.stderr
        );
    }
    assert_eq!(fs::read_dir(&saved).unwrap().count(), 3);
    assert!(!folder.join("later").exists());
    // An evaluator takes what the chief takes.
    let evaluator =
        r#"{"cluster":{"chief":["127.0.0.1:9"]},"task":{"type":"evaluator","index":0}}"#;
    for inside in ["saved/step-00000002", "newest", "saved/step-00000002/more"] {
        let line = format!("{train} --strategy multi-worker --checkpoint-dir {inside}");
        let finished = run_as(folder, &line, evaluator);
        assert_eq!(finished.code, Some(2), "{line}: {}", finished.stderr);
        assert!(
            finished.stderr.contains("is in the checkpoint"),
            "{}",
            finished.stderr
        );
    }
    succeed(
        folder,
        &format!("{more} --log-dir saved --trace saved/trace.json"),
    );
    assert!(folder.join("saved/history.jsonl").exists());
}

/// What `evaluate` reads as one checkpoint is no directory to save into, by whatever way it is
/// named.
#[test]
fn a_checkpoint_is_no_directory_of_checkpoints() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let train = "train --replicas 1 --model mlp --output json";
    succeed(folder, &format!("{train} --steps 2 --checkpoint-dir saved"));
    let saved = folder.join("saved/step-00000002");
    std::os::unix::fs::symlink(&saved, folder.join("newest")).unwrap();
    let copy = std::process::Command::new("cp")
        .args(["-r", "saved/step-00000002", "copy"])
        .current_dir(folder)
        .status();
    assert!(copy.unwrap().success());
    succeed(
        folder,
        "evaluate --checkpoint-dir saved/step-00000002 --output json",
    );
    for inside in [
        "saved/step-00000002",
        "saved/step-00000002/",
        "saved/step-00000002/more/of/it",
        "saved/../saved/step-00000002",
        "newest",
        "copy",
    ] {
        for flag in ["", "--restartable", "--resume"] {
            let again = format!("{train} --steps 4 --checkpoint-dir {inside} {flag}");
            let finished = run(folder, &again);
            assert_eq!(finished.code, Some(2), "{again}: {}", finished.stderr);
            let is_new = inside.contains("more") && flag == "--resume";
            let said = match inside {
                _ if is_new => "no checkpoint to resume",
                "copy" => "put it as `step-00000002` into an empty directory",
                _ => "is in the checkpoint",
            };
            assert!(
                finished.stderr.contains(said),
                "{again}: {}",
                finished.stderr
            );
        }
    }
    // The folder itself is nowhere in such a path.
    for relative in ["sub", "sub/of/it", "./sub", "."] {
        let again = format!("{train} --steps 4 --checkpoint-dir {relative}");
        let finished = run(&saved, &again);
        assert_eq!(finished.code, Some(2), "{again}: {}", finished.stderr);
        let said = "is in the checkpoint";
        assert!(finished.stderr.contains(said), "{}", finished.stderr);
    }
    let mut names = fs::read_dir(&saved)
        .unwrap()
        .map(|entry| entry.unwrap().file_name());
    assert_eq!(names.by_ref().count(), 3, "nothing was written there");
    succeed(
        folder,
        &format!("{train} --steps 4 --checkpoint-dir saved --restartable"),
    );
}

#[test]
fn home_and_addresses_are_the_same_in_a_file_and_on_the_command_line() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let train = "train --replicas 1 --model mlp --steps 1 --output json";
    let at_home = |arguments: &str| {
        let mut program = common::program(folder);
        let program = program.env("HOME", folder.join("home"));
        let output = program.args(arguments.split_whitespace()).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        (output.status.code(), said)
    };
    fs::write(
        folder.join("run.toml"),
        "checkpoint-dir = \"~/from-file\"\n",
    )
    .unwrap();
    for (flags, place) in [
        ("--config run.toml", "home/from-file"),
        ("--checkpoint-dir=~/from-flag", "home/from-flag"),
        ("--log-dir ~/logs", "home/logs"),
        ("--checkpoint-dir ./~/kept", "~/kept"),
    ] {
        let (code, said) = at_home(&format!("{train} {flags}"));
        assert_eq!(code, Some(0), "{flags}: {said}");
        assert!(folder.join(place).is_dir(), "{flags}");
    }
    fs::write(
        folder.join("remote.toml"),
        "checkpoint-dir = \"s3://bucket/run\"\n",
    )
    .unwrap();
    for arguments in [
        "train --config remote.toml",
        "train --checkpoint-dir gs://bucket/run",
        "train --log-bits hdfs://node/bits",
        "train --dataset csv:s3://bucket/a.csv",
        "train --dataset https://host/a.csv",
        "train --model gs://bucket/net.json",
        "evaluate --checkpoint-dir s3://bucket/run",
        "launch --workers 1 --log-dir s3://bucket/logs -- true",
        "blame s3://bucket/records",
        "certs --hosts a --out file:///tmp/certs",
    ] {
        let (code, said) = at_home(arguments);
        assert_eq!(code, Some(2), "{arguments}: {said}");
        assert!(said.contains("address"), "{arguments}: {said}");
    }
    let names: Vec<_> = fs::read_dir(folder)
        .unwrap()
        .map(|it| it.unwrap().file_name())
        .collect();
    assert_eq!(names.len(), 4, "{names:?}");
}
