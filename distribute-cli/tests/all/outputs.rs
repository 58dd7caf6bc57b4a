//! A model with several inputs and outputs is trained, measured and asked by the program.

use std::fs;
use std::path::Path;

use distribute_readers::read_npz_arrays;
use serde_json::Value;

use crate::common::{last_event, run, succeed};

/// The model and the data that `distribute-classifier` compares with Keras.
fn files(folder: &Path) {
    let goldens = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../crates/training/distribute-classifier/tests/keras");
    for name in ["towers.keras", "towers.npz"] {
        fs::copy(goldens.join(name), folder.join(name)).unwrap();
    }
}

const TRAIN: &str = "train --model towers.keras --dataset npz:towers.npz --replicas 2 \
                     --batch-size 2 --checkpoint-dir c --output json";

#[test]
fn outputs_are_trained_measured_and_predicted_from_a_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    files(folder);
    let train = format!("{TRAIN} --epochs 2 --early-stopping 5 --monitor val_choice_loss");
    let done = last_event(&succeed(folder, &train));
    let evaluated = last_event(&succeed(
        folder,
        "evaluate --checkpoint-dir c --output json",
    ));
    for name in [
        "loss",
        "choice_loss",
        "choice_weighted_accuracy",
        "flag_auc",
        "pixels_accuracy",
    ] {
        let value = |event: &Value, name: &str| event[name].as_f64().unwrap();
        let (one, two) = (
            value(&done, &format!("val_{name}")),
            value(&evaluated, name),
        );
        assert!((one - two).abs() < 1e-5, "{name}: {one} {two}");
    }
    let again = "evaluate --checkpoint-dir c --metrics score=rmse --output json";
    let again = last_event(&succeed(folder, again));
    assert!(again["score_rmse"].is_number() && again["score_mae"].is_null());

    let csv = succeed(folder, "predict --checkpoint-dir c");
    let head = csv.lines().next().unwrap();
    let begins = "index,choice,choice_probability,flag,score_0,score_1,pixels_0,";
    assert!(head.starts_with(begins), "{head}");
    let lines = succeed(folder, "predict --checkpoint-dir c --output json");
    let first: Value = serde_json::from_str(lines.lines().next().unwrap()).unwrap();
    let pixels = &first["outputs"]["pixels"];
    assert_eq!(pixels["label"][3].as_array().unwrap().len(), 3);
    succeed(
        folder,
        "predict --checkpoint-dir c --output npz --predictions p.npz",
    );
    let arrays = read_npz_arrays(folder.join("p.npz")).unwrap();
    let shapes: Vec<(&str, &[usize])> = arrays
        .iter()
        .map(|(name, array)| (name.as_str(), array.shape()))
        .collect();
    let expected: [(&str, &[usize]); 5] = [
        ("index", &[5]),
        ("choice", &[5, 3]),
        ("flag", &[5, 1]),
        ("score", &[5, 2]),
        ("pixels", &[5, 4, 3, 3]),
    ];
    assert_eq!(shapes, expected);
}

#[test]
fn a_resumed_run_keeps_losses_factors_and_metrics_of_outputs() {
    let flags = "--loss score=mse --loss-weights choice=1,score=0.5 --metrics score=mae \
                 --weighted-metrics score=mse";
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    files(folder);
    let whole = format!("{TRAIN} --epochs 3 {flags}").replace("-dir c", "-dir whole");
    let whole = last_event(&succeed(folder, &whole));
    succeed(folder, &format!("{TRAIN} --epochs 1 {flags}"));
    let resumed = format!("{TRAIN} --epochs 3 --resume");
    let resumed = last_event(&succeed(folder, &resumed));
    assert_eq!(resumed, whole);
    assert!(resumed["val_score_mae"].is_number() && resumed["val_choice_accuracy"].is_null());
}

#[test]
fn a_flag_of_no_output_is_refused_with_the_outputs() {
    let folder = tempfile::tempdir().unwrap();
    files(folder.path());
    let finished = run(folder.path(), &format!("{TRAIN} --loss chioce=mse"));
    assert_eq!(finished.code, Some(2));
    assert!(
        finished
            .stderr
            .contains("no output chioce, but choice, flag, score, pixels"),
        "{}",
        finished.stderr
    );
}

#[test]
fn a_resumed_run_with_one_output_keeps_the_factor_of_its_loss() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let model = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../crates/training/distribute-keras/tests/keras/texts.weighted.keras.gz");
    let mut model = flate2::read::GzDecoder::new(fs::File::open(model).unwrap());
    let mut unpacked = fs::File::create(folder.join("texts.keras")).unwrap();
    std::io::copy(&mut model, &mut unpacked).unwrap();
    let lines = [
        "the cat sat,0",
        "dog ran,1",
        "\"a cat, a hat\",0",
        "the dog,1",
    ];
    let lines = lines.map(|line| format!("{line}\n")).concat().repeat(5);
    fs::write(folder.join("t.csv"), format!("text,label\n{lines}")).unwrap();
    let train = "train --model texts.keras --dataset csv:t.csv --batch-size 4 --output json";
    let weight = "--loss-weights dense_1=0.5";
    let whole = format!("{train} --epochs 3 --checkpoint-dir whole {weight}");
    let whole = last_event(&succeed(folder, &whole));
    succeed(
        folder,
        &format!("{train} --epochs 1 --checkpoint-dir c {weight}"),
    );
    let resumed = format!("{train} --epochs 3 --checkpoint-dir c --resume");
    assert_eq!(last_event(&succeed(folder, &resumed)), whole);
    let evaluated = "evaluate --checkpoint-dir c --output json";
    let evaluated = last_event(&succeed(folder, evaluated));
    let loss = |event: &Value, name: &str| event[name].as_f64().unwrap();
    let (one, two) = (loss(&whole, "val_loss"), loss(&evaluated, "loss"));
    assert!((one - two).abs() < 1e-5, "{one} {two}");
    fs::write(folder.join("new.txt"), "the cat\na dog ran\n").unwrap();
    let rows = succeed(folder, "predict --checkpoint-dir c --dataset text:new.txt");
    assert_eq!(rows.lines().count(), 3, "{rows}");
}
