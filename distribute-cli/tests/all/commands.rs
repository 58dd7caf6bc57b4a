//! Training, resuming, evaluating and predicting, as a user does it.

use std::fs;
use std::path::Path;

use rstest::rstest;

use crate::common::{self, QUICK, last_event, run, succeed};

fn hash(folder: &Path, arguments: &str) -> String {
    let event = last_event(&succeed(folder, arguments));
    assert_eq!(event["event"], "done");
    event["weights_sha256"].as_str().unwrap().to_string()
}

#[test]
fn json_lines_are_as_documented() {
    let folder = tempfile::tempdir().unwrap();
    let out = succeed(folder.path(), &format!("{QUICK} --batch-size 8"));
    let lines: Vec<&str> = out.lines().collect();
    assert_eq!(lines.len(), 3);
    let keys = |line: &str| {
        // The order of the keys is part of the format, so no parser's map is used.
        let quoted: Vec<&str> = line.split('"').collect();
        let keys = quoted.windows(2).filter(|pair| pair[1].starts_with(':'));
        keys.map(|pair| pair[0].to_string())
            .collect::<Vec<_>>()
            .join(" ")
    };
    let filters = vec![
        (r"[0-9a-f]{64}", "[SHA256]"),
        (r"-?\d+\.\d+(e-?\d+)?", "[FLOAT]"),
    ];
    insta::with_settings!({ filters => filters }, {
        insta::assert_snapshot!(out);
    });
    assert_eq!(
        keys(lines[1]),
        "event epoch loss accuracy val_loss val_accuracy examples_per_second"
    );
    assert_eq!(
        keys(lines[2]),
        "event loss val_loss val_accuracy steps weights_sha256 ranks slow_ranks"
    );
}

#[rstest]
#[case("mirrored --replicas 2")]
#[case("central-storage --replicas 2")]
#[case("one-device")]
#[case("default")]
fn the_same_seed_gives_the_same_weights(#[case] strategy: &str) {
    let folder = tempfile::tempdir().unwrap();
    let train = format!("train --model mlp --steps 5 --output json --strategy {strategy}");
    let first = hash(folder.path(), &train);
    assert_eq!(first, hash(folder.path(), &train));
    assert_ne!(first, hash(folder.path(), &format!("{train} --seed 2")));
}

/// All parameters of the newest checkpoint.
fn weights(directory: &Path) -> Vec<f32> {
    let newest = distribute_core::checkpoint::load_latest(directory).unwrap();
    let (_, checkpoint) = newest.found.unwrap();
    let model = checkpoint
        .tensors
        .iter()
        .filter(|(name, _)| name.starts_with("model/"));
    model
        .flat_map(|(_, data)| data.try_to_vec::<f32>().unwrap())
        .collect()
}

#[rstest]
fn weights_do_not_depend_on_the_number_of_replicas(
    #[values("adam", "sgd")] optimizer: &str,
    #[values("mlp", "digits-cnn --l2 1e-4")] model: &str,
) {
    let folder = tempfile::tempdir().unwrap();
    let mut reference: Option<Vec<f32>> = None;
    // The last batch of an epoch is short.
    for (replicas, batch) in [(1, 48), (2, 24), (4, 12)] {
        let name = format!("r{replicas}");
        let train = format!(
            "train --model {model} --optimizer {optimizer} --steps 50 --replicas {replicas} \
             --batch-size {batch} --checkpoint-dir {name} --output json"
        );
        succeed(folder.path(), &train);
        let found = weights(&folder.path().join(name));
        let reference = reference.get_or_insert_with(|| found.clone());
        let pairs = reference.iter().zip(&found);
        let largest = pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(largest <= 1e-5, "{replicas} replicas: {largest}");
    }
}

#[rstest]
fn replicas_without_examples_take_part(
    #[values("mirrored", "central-storage")] strategy: &str,
    #[values("", "--l2 1e-2")] l2: &str,
) {
    let folder = tempfile::tempdir().unwrap();
    // 22 examples to train in steps of 20: the last 2 are for 2 of 4 replicas.
    let rows: String = (0..27)
        .map(|i| format!("{i},{},{}\n", i * i % 7, i % 3))
        .collect();
    fs::write(folder.path().join("t.csv"), format!("a,b,label\n{rows}")).unwrap();
    let mut reference: Option<Vec<f32>> = None;
    for (replicas, batch) in [(1, 20), (2, 10), (4, 5)] {
        let train = format!(
            "train --dataset csv:t.csv --epochs 4 --replicas {replicas} --batch-size {batch} \
             --strategy {strategy} {l2} --checkpoint-dir r{replicas} --output json"
        );
        succeed(folder.path(), &train);
        let found = weights(&folder.path().join(format!("r{replicas}")));
        let reference = reference.get_or_insert_with(|| found.clone());
        let pairs = reference.iter().zip(&found);
        let largest = pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(largest <= 1e-5, "{replicas} replicas: {largest}");
    }
}

#[test]
fn the_first_command_learns_the_digits() {
    let folder = tempfile::tempdir().unwrap();
    let done = last_event(&succeed(folder.path(), "train --output json"));
    let accuracy = done["val_accuracy"].as_f64().unwrap();
    assert!(accuracy >= 0.96, "{accuracy}");
}

#[test]
fn a_resumed_run_ends_with_the_weights_of_an_uninterrupted_one() {
    let folder = tempfile::tempdir().unwrap();
    let train = "train --model mlp --replicas 2 --epochs 2 --output json";
    let whole = hash(folder.path(), train);
    // In the middle of the first epoch, and after the end.
    let part = format!("{train} --checkpoint-dir saved");
    succeed(folder.path(), &format!("{part} --steps 7"));
    assert_eq!(hash(folder.path(), &format!("{part} --resume")), whole);
    let names = || {
        let entries = distribute_core::checkpoint::list(folder.path().join("saved")).unwrap();
        entries
            .into_iter()
            .map(|entry| entry.path)
            .collect::<Vec<_>>()
    };
    let saved = names();
    assert_eq!(hash(folder.path(), &format!("{part} --resume")), whole);
    assert_eq!(names(), saved, "a finished run has nothing new to save");
}

#[test]
fn a_checkpoint_is_evaluated_without_and_with_a_strategy() {
    let folder = tempfile::tempdir().unwrap();
    let train = format!("{QUICK} --checkpoint-dir saved --log-dir logs");
    let trained = last_event(&succeed(folder.path(), &train));
    for strategy in ["default", "mirrored --replicas 3", "central-storage"] {
        let evaluate =
            format!("evaluate --checkpoint-dir saved --output json --strategy {strategy}");
        let found = last_event(&succeed(folder.path(), &evaluate));
        assert_eq!(found["accuracy"], trained["val_accuracy"]);
        let loss = |event: &serde_json::Value, key: &str| event[key].as_f64().unwrap();
        assert!((loss(&found, "loss") - loss(&trained, "val_loss")).abs() < 1e-5);
        assert_eq!(found["examples"], 359);
    }
    let history = fs::read_to_string(folder.path().join("logs/history.jsonl")).unwrap();
    assert_eq!(history.lines().count(), 1);
    assert!(folder.path().join("logs/history.csv").is_file());
    assert!(folder.path().join("logs/train").is_dir());
}

#[test]
fn a_new_run_replaces_all_logs_and_a_continued_one_adds_to_them() {
    let folder = tempfile::tempdir().unwrap();
    let curves = |part: &str| {
        let files = fs::read_dir(folder.path().join("logs").join(part)).unwrap();
        files.map(|file| file.unwrap().path()).collect::<Vec<_>>()
    };
    let train = "train --model mlp --replicas 2 --log-dir logs --output json";
    succeed(folder.path(), &format!("{train} --epochs 1"));
    let first = curves("validation");
    succeed(
        folder.path(),
        &format!("{train} --epochs 2 --checkpoint-dir saved"),
    );
    for part in ["train", "validation"] {
        assert_eq!(curves(part).len(), 1, "{part}");
    }
    assert_ne!(curves("validation"), first);
    let more = "--epochs 3 --checkpoint-dir saved --resume";
    succeed(folder.path(), &format!("{train} {more}"));
    assert_eq!(curves("train").len(), 2);
    let history = fs::read_to_string(folder.path().join("logs/history.jsonl")).unwrap();
    assert_eq!(history.lines().count(), 3);
}

#[test]
fn predictions_are_a_csv_that_fits_the_accuracy() {
    let folder = tempfile::tempdir().unwrap();
    let train = "train --model mlp --replicas 2 --steps 100 --checkpoint-dir saved --output json";
    let trained = last_event(&succeed(folder.path(), train));
    let csv = succeed(folder.path(), "predict --checkpoint-dir saved");
    succeed(
        folder.path(),
        "predict --checkpoint-dir saved --predictions p.csv --strategy mirrored",
    );
    assert_eq!(
        fs::read_to_string(folder.path().join("p.csv")).unwrap(),
        csv
    );
    let test = distribute_readers::digits_split().unwrap().test;
    let all: Vec<usize> = (0..test.len()).collect();
    let labels = test.labels_i64(&all).unwrap();
    let mut lines = csv.lines();
    assert_eq!(lines.next(), Some("index,label,probability"));
    let mut correct = 0;
    let rows = test.rows();
    for (row, line) in lines.enumerate() {
        let fields: Vec<&str> = line.split(',').collect();
        assert_eq!(fields[0], rows[row].to_string(), "the row among all digits");
        correct += usize::from(fields[1] == labels[row].to_string());
        let probability: f64 = fields[2].parse().unwrap();
        assert!((0.1..=1.0).contains(&probability), "{line}");
    }
    let accuracy = correct as f64 / labels.len() as f64;
    assert!((accuracy - trained["val_accuracy"].as_f64().unwrap()).abs() < 1e-9);
    assert!(accuracy > 0.5, "{accuracy}");
}

#[test]
fn texts_are_learned_from_a_csv_and_the_vocabulary_is_in_the_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let mut csv = "text,label\n".to_string();
    for i in 0..60 {
        csv += &format!("\"A GOOD film, number {i}\",1\na bad film number {i},0\n");
    }
    fs::write(folder.path().join("films.csv"), csv).unwrap();
    let train = "train --model text --dataset csv:films.csv --epochs 10 --checkpoint-dir saved \
                 --replicas 2 --output json";
    assert_eq!(
        last_event(&succeed(folder.path(), train))["val_accuracy"],
        1.0
    );
    // The numbers of words are more than bf16 has.
    let mixed = train.replace("saved", "mixed --precision bf16");
    assert_eq!(
        last_event(&succeed(folder.path(), &mixed))["val_accuracy"],
        1.0
    );
    let other = "text,label\nso good so new,1\nbad,0\ngood good,1\nbad bad bad,0\n,0\ngood,1\n";
    fs::write(folder.path().join("other.csv"), other).unwrap();
    let predict = "predict --checkpoint-dir saved --dataset csv:other.csv --split train";
    let csv = succeed(folder.path(), predict);
    assert_eq!(csv.lines().count(), 6, "{csv}");
}

#[test]
fn a_model_file_of_keras_is_trained_and_kept_in_the_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let source = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../crates/training/distribute-keras/tests/keras/documents_cnn.keras3.json");
    let model = fs::read_to_string(source)
        .unwrap()
        .replace("28", "8")
        .replace("\"padding\": \"valid\"", "\"padding\": \"same\"");
    fs::write(folder.path().join("cnn.json"), model).unwrap();
    let train =
        "train --model cnn.json --replicas 2 --steps 20 --checkpoint-dir saved --output json";
    let trained = last_event(&succeed(folder.path(), train));
    fs::remove_file(folder.path().join("cnn.json")).unwrap();
    let found = succeed(
        folder.path(),
        "evaluate --checkpoint-dir saved --output json",
    );
    assert_eq!(last_event(&found)["accuracy"], trained["val_accuracy"]);
}

#[test]
fn dropout_depends_on_the_seed_alone() {
    let folder = tempfile::tempdir().unwrap();
    let model = r#"{"class_name": "Sequential", "config": {"layers": [
        {"class_name": "Flatten", "config": {}},
        {"class_name": "Dropout", "config": {"rate": 0.5}},
        {"class_name": "Dense", "config": {"units": 10}}]}}"#;
    fs::write(folder.path().join("m.json"), model).unwrap();
    let train = "train --model m.json --replicas 2 --steps 9 --output json";
    assert_eq!(hash(folder.path(), train), hash(folder.path(), train));
    let without = model.replace("0.5", "0.0");
    let with = hash(folder.path(), train);
    fs::write(folder.path().join("m.json"), without).unwrap();
    assert_ne!(hash(folder.path(), train), with);
}

#[test]
fn a_folder_of_images_is_a_data_set() {
    let folder = tempfile::tempdir().unwrap();
    let digits = distribute_readers::digits_split().unwrap().train;
    for index in 0..60 {
        let label = digits.labels_i64(&[index]).unwrap()[0];
        let class = folder.path().join(format!("digits/class-{label}"));
        fs::create_dir_all(&class).unwrap();
        let pixels = digits.features_f32(&[index]).unwrap();
        let pixels: Vec<u8> = pixels.iter().map(|x| (x * 255.0) as u8).collect();
        let image = image::GrayImage::from_raw(8, 8, pixels).unwrap();
        image.save(class.join(format!("{index}.png"))).unwrap();
    }
    let train = "train --dataset images --data-dir digits --model mlp --replicas 2 --epochs 3 \
                 --checkpoint-dir saved --output json";
    let trained = last_event(&succeed(folder.path(), train));
    let evaluate = "evaluate --checkpoint-dir saved --data-dir digits --output json";
    let found = last_event(&succeed(folder.path(), evaluate));
    assert_eq!(found["accuracy"], trained["val_accuracy"]);
    assert_eq!(found["examples"], 12);
    let predict = "predict --checkpoint-dir saved --data-dir digits";
    let csv = succeed(folder.path(), predict);
    assert!(csv.contains(",class-"), "{csv}");
}

#[test]
fn a_batch_beyond_the_data_is_one_short_step_and_said_so() {
    let folder = tempfile::tempdir().unwrap();
    let train = "train --model mlp --replicas 2 --epochs 2 --batch-size 1000";
    let text = run(folder.path(), train);
    assert_eq!(text.code, Some(0), "{}", text.stderr);
    let told = text.told();
    let line = told.lines().find(|line| line.contains("short batch"));
    insta::assert_snapshot!(line.unwrap(), @"all 1438 training examples are one short batch, so an epoch is one step; its loss is divided by 2000, use a smaller --batch-size for more steps");
    let json = run(folder.path(), &format!("{train} --output json"));
    assert_eq!(last_event(&json.stdout)["steps"], 2);
    assert_eq!(json.told().lines().next(), line);
    let whole = run(folder.path(), &train.replace("1000", "719"));
    assert!(!whole.stderr.contains("short batch"), "{}", whole.stderr);
}

#[test]
fn a_configuration_file_holds_flags_and_the_command_line_wins() {
    let folder = tempfile::tempdir().unwrap();
    let toml = "model = \"mlp\"\nsteps = 3\nseed = 9\ndevices = [\"cpu:0\", \"cpu:1\"]\n\
                output = \"json\"\nlearning-rate = 1e-3\nresume = false\n";
    fs::write(folder.path().join("run.toml"), toml).unwrap();
    let from_file = last_event(&succeed(folder.path(), "train --config run.toml"));
    assert_eq!(from_file["steps"], 3);
    let both = last_event(&succeed(folder.path(), "train --config run.toml --steps 4"));
    assert_eq!(both["steps"], 4);
    let flags = "train --model mlp --steps 3 --seed 9 --replicas 2 --output json";
    assert_eq!(hash(folder.path(), flags), from_file["weights_sha256"]);
}

#[test]
fn a_loss_that_is_not_finite_is_a_failure_and_is_not_saved() {
    let folder = tempfile::tempdir().unwrap();
    let train = "train --model mlp --optimizer sgd --learning-rate 1e30 --epochs 3 --replicas 2 \
                 --checkpoint-dir saved --output json";
    let finished = run(folder.path(), train);
    assert_eq!(finished.code, Some(43), "{}", finished.stderr);
    assert!(
        finished.stderr.contains("not finite"),
        "{}",
        finished.stderr
    );
    let said = common::apart_from_cores(&finished.stderr);
    assert_eq!(said.lines().count(), 1, "{said}");
    assert_eq!(
        distribute_core::checkpoint::list(folder.path().join("saved")).unwrap(),
        []
    );
}

#[test]
fn doctor_answers_in_json_and_in_text() {
    let folder = tempfile::tempdir().unwrap();
    let report = last_event(&succeed(folder.path(), "doctor --output json"));
    assert_eq!(report["devices"][0], "cpu:0");
    let names: Vec<&str> = report["libraries"]
        .as_array()
        .unwrap()
        .iter()
        .map(|library| library["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["CUDA driver", "NCCL", "MPI", "PJRT plugin"]);
    let text = succeed(folder.path(), "doctor");
    for line in ["machine", "memory", "devices", "NCCL", "cluster"] {
        assert!(text.lines().any(|found| found.starts_with(line)), "{text}");
    }
}

/// A case that holds, as a file of golden outputs has it.
const REDUCED: &str = r#"{"cases": [{"name": "three", "strategy": {"kind": "mirrored", "replicas": 2},
    "inputs": {"op": "reduce", "reduce_op": "SUM", "axis": null, "values": [
        {"dtype": "float32", "shape": [], "data": [1.0]},
        {"dtype": "float32", "shape": [], "data": [2.0]}]},
    "expect": {"dtype": "float32", "shape": [], "data": [3.0]}}]}"#;

/// Two cases that do not apply to this library.
const SKIPPED: &str = r#"{"cases": [
    {"name": "a", "strategy": {"kind": "mirrored", "replicas": 2},
        "inputs": {"op": "batch_norm_attributes"}, "expect": {}},
    {"name": "b", "strategy": {"kind": "mirrored", "replicas": 2},
        "inputs": {"op": "batch_norm_attributes"}, "expect": {}}]}"#;

#[test]
fn conformance_counts_what_it_does_not_run_and_says_nothing_else_of_it() {
    let folder = tempfile::tempdir().unwrap();
    let two = r#"{"cases": [{"name": "a"}, {"name": "b"}]}"#;
    let command = "conformance --golden . --strategy mirrored";
    for (name, text) in [("reduce", REDUCED), ("normalization", SKIPPED)] {
        std::fs::write(folder.path().join(format!("{name}.json")), text).unwrap();
    }
    let skipped = common::succeed(folder.path(), command);
    assert_eq!(
        skipped.lines().last(),
        Some("1 passed, 0 failed, 2 skipped")
    );
    std::fs::write(folder.path().join("mystery.json"), two).unwrap();
    let unknown = common::run(folder.path(), command);
    assert_eq!(unknown.code, Some(1));
    let last = unknown.stdout.lines().last();
    assert_eq!(last, Some("1 passed, 2 failed, 2 skipped"));
    insta::assert_snapshot!(unknown.stderr, @"error: 2 cases were not run, because their files are not named after a family; the report says which and how");
    let wrong = REDUCED.replace("[3.0]", "[4.0]");
    std::fs::write(folder.path().join("reduce.json"), wrong).unwrap();
    let both = common::run(folder.path(), command);
    insta::assert_snapshot!(both.stderr, @"error: 1 cases differ from TensorFlow and 2 cases were not run, because their files are not named after a family; the report says which and how");
}

#[test]
fn conformance_reports_every_case_and_fails_on_a_wrong_expectation() {
    let folder = tempfile::tempdir().unwrap();
    let report = common::succeed(
        folder.path(),
        "conformance --family loss --strategy mirrored",
    );
    let last = report.lines().last().unwrap();
    assert!(last.contains(" passed, 0 failed, "), "{report}");

    let wrong = r#"{"cases": [{"name": "wrong", "strategy": {"kind": "mirrored", "replicas": 2},
        "inputs": {"op": "reduce", "reduce_op": "SUM", "axis": null, "values": [
            {"dtype": "float32", "shape": [], "data": [1.0]},
            {"dtype": "float32", "shape": [], "data": [2.0]}]},
        "expect": {"dtype": "float32", "shape": [], "data": [4.0]}}]}"#;
    std::fs::write(folder.path().join("reduce.json"), wrong).unwrap();
    let finished = common::run(folder.path(), "conformance --golden .");
    assert_eq!(finished.code, Some(1));
    let text = finished.stdout;
    assert!(
        text.contains("expected f32[] [4]\n  got      f32[] [3]"),
        "{text}"
    );
    assert!(text.ends_with("0 passed, 1 failed, 0 skipped\n"), "{text}");
}

#[test]
fn bench_train_measures_the_machines_ceiling_beside_the_strategies() {
    let folder = tempfile::tempdir().unwrap();
    let bench = "bench train --batch-size 2 --rounds 2 --seconds 0.01 --replicas 1,2,3";
    let out = succeed(folder.path(), &format!("{bench} --output json"));
    let lines: Vec<serde_json::Value> = out
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let names: Vec<String> = lines
        .iter()
        .map(|line| format!("{} {} {}", line["round"], line["impl"], line["replicas"]))
        .collect();
    let expected: Vec<String> = (0..2)
        .flat_map(|round| {
            let all = "hand-written 1, burn-kernels 1, one-device 1, hand-written 2, \
                       hand-written 3, mirrored 1, mirrored 2, mirrored 3, multi-worker 1, multi-worker 2, multi-worker 3, \
                       central-storage 1, central-storage 2, central-storage 3";
            all.split(", ").map(move |one| {
                let (name, replicas) = one.split_once(' ').unwrap();
                format!("{round} \"{name}\" {replicas}")
            })
        })
        .collect();
    assert_eq!(names, expected);
    for line in &lines {
        assert_eq!(line["bench"], "train");
        assert!(line["images_per_s"].as_f64().unwrap() > 0.0, "{line}");
        assert!(line["steps"].as_u64().unwrap() > 0, "{line}");
    }
    let table = succeed(folder.path(), bench);
    assert_eq!(table.lines().count(), 15, "{table}");
    assert!(table.starts_with("impl "), "{table}");
    assert!(table.contains("to independent"), "{table}");
}
