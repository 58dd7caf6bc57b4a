//! Weights and models in the files that Keras 2 and Keras 3 write, and what is written for Keras.
//! `keras/weights.py` wrote the files.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

use burn::tensor::{Device, Tensor, TensorData};
use distribute_keras::{
    Mode, Model, ModelError, Plan, Weight, WeightFormat, check_format, parse_keras_json,
    read_fitting_weights, read_keras_json, read_weights, written_weights,
};
use rstest::rstest;
use serde_json::Value;
use tempfile::TempDir;

fn stored() -> PathBuf {
    crate::folder().join("weights")
}

fn unzipped(name: &str) -> Vec<u8> {
    let file = std::fs::File::open(stored().join(format!("{name}.gz"))).unwrap();
    let mut bytes = Vec::new();
    let mut decoder = flate2::read::GzDecoder::new(file);
    decoder.read_to_end(&mut bytes).unwrap();
    bytes
}

/// A stored file in a folder of its own.
struct File {
    _folder: TempDir,
    path: PathBuf,
}

fn file(name: &str) -> File {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(name);
    std::fs::write(&path, unzipped(name)).unwrap();
    File {
        _folder: folder,
        path,
    }
}

fn expected(model: &str) -> Value {
    let text = std::fs::read_to_string(stored().join(format!("{model}.expected.json"))).unwrap();
    serde_json::from_str(&text).unwrap()
}

fn numbers(value: &Value) -> Vec<f32> {
    serde_json::from_value(value.clone()).unwrap()
}

/// The plan of a model in a file.
fn plan_of(path: &Path) -> Plan {
    let spec = read_keras_json(path).unwrap();
    let shape: Option<Vec<usize>> = spec.inputs[0].shape.clone().unwrap().into_iter().collect();
    spec.plan(&shape.unwrap()).unwrap()
}

fn outputs(plan: &Plan, weights: Vec<Weight>, expected: &Value) -> Vec<f32> {
    let device = Device::flex();
    let model = Model::new(plan, weights, &device).unwrap();
    let input = numbers(&expected["input"]);
    let input = TensorData::new(input.clone(), [3, input.len() / 3]);
    let input = Tensor::<2>::from_data(input, &device);
    let output = model.forward(input, &mut Mode::Inference).unwrap();
    output.into_data().try_into_vec().unwrap()
}

fn assert_close(found: &[f32], wanted: &[f32], what: &str) {
    assert_eq!(found.len(), wanted.len(), "{what}");
    for (found, wanted) in found.iter().zip(wanted) {
        assert!((found - wanted).abs() < 1e-5, "{what}: {found} {wanted}");
    }
}

#[rstest]
fn files_of_keras_3_and_keras_2_give_what_keras_computes(
    #[values("chain", "nested", "steps", "volumes", "wrapped")] model: &str,
    #[values(
        ("keras", "keras"),
        ("h5", "h5"),
        ("keras", "h5"),
        ("h5", "weights.h5"),
        ("old.keras", "old.keras"),
        ("old.h5", "old.h5"),
        ("old.keras", "only.h5"),
        ("old.h5", "old.weights.h5")
    )]
    layouts: (&str, &str),
) {
    let (of_model, of_weights) = layouts;
    let plan = plan_of(&file(&format!("{model}.{of_model}")).path);
    let weights = file(&format!("{model}.{of_weights}"));
    let weights = read_weights(&weights.path, &plan).unwrap();
    let expected = expected(model);
    let is_old = of_weights.starts_with("old") || of_weights == "only.h5";
    let wanted = numbers(&expected[if is_old { "keras2" } else { "keras3" }]);
    let found = outputs(&plan, weights.clone(), &expected);
    assert_close(&found, &wanted, of_weights);
    // And what goes in comes out.
    let built = Model::new(&plan, weights.clone(), &Device::flex()).unwrap();
    assert!(built.weights(&plan).unwrap() == weights);
}

#[test]
fn a_whole_model_says_what_it_was_compiled_with() {
    for layout in ["keras", "h5", "old.h5"] {
        let text = distribute_keras::model_text(unzipped(&format!("chain.{layout}")), "m").unwrap();
        let compiled = distribute_keras::compiled(&text).unwrap();
        assert_eq!(compiled.loss.as_deref(), Some("mean_squared_error"));
        assert_eq!(compiled.optimizer.as_deref(), Some("adam"), "{layout}");
        assert_eq!(compiled.optimizer_config["beta_2"], 0.999, "{layout}");
        assert_eq!(compiled.metrics, [("mae".to_string(), Vec::new())]);
        let model = parse_keras_json(&text, "m").unwrap();
        assert_eq!(model.layers.len(), 8);
    }
}

#[test]
fn the_layers_that_do_not_fit_are_named() {
    let plan = plan_of(&file("nested.keras").path);
    for layout in ["keras", "weights.h5", "h5", "only.h5"] {
        let weights = file(&format!("chain.{layout}"));
        let error = read_weights(&weights.path, &plan).unwrap_err();
        assert!(matches!(error, ModelError::Weights { .. }), "{error}");
        insta::assert_snapshot!(format!("another_model_{layout}"), error);
    }
}

/// A model with the layers of `chain` but another head.
fn with_head(units: usize) -> Plan {
    let text = distribute_keras::model_text(unzipped("chain.keras"), "m").unwrap();
    let mut root: Value = serde_json::from_str(&text).unwrap();
    let layers = root["config"]["layers"].as_array_mut().unwrap();
    layers.last_mut().unwrap()["config"]["units"] = units.into();
    let model = parse_keras_json(&root.to_string(), "m").unwrap();
    model.plan(&[7, 6, 2]).unwrap()
}

#[rstest]
fn another_head_is_trained_on_the_weights_of_the_other_layers(
    #[values("chain.keras", "chain.h5", "chain.only.h5", "chain.old.weights.h5")] name: &str,
) {
    let plan = with_head(9);
    let file = file(name);
    let strict = read_weights(&file.path, &plan).unwrap_err().to_string();
    assert!(
        strict.contains("head/kernel has the shape (5, 3) in the file and (5, 9)"),
        "{strict}"
    );
    let found = read_fitting_weights(&file.path, &plan).unwrap();
    let names: Vec<_> = found.skipped.iter().map(|layer| &*layer.name).collect();
    assert_eq!(names, ["head"]);
    assert!(found.skipped[0].why.contains("head/bias has the shape (3)"));
    let all = read_weights(&file.path, &with_head(3)).unwrap();
    let weights = found.or_initial(&plan, 4);
    assert!(weights[..all.len() - 2] == all[..all.len() - 2]);
    assert_eq!(weights[all.len() - 2].shape, [5, 9]);
    assert!(Model::new(&plan, weights, &Device::flex()).is_ok());
    // Of another model nothing can be taken.
    let other = plan_of(&self::file("nested.keras").path);
    let one = read_fitting_weights(&file.path, &other);
    assert!(one.is_err() || !one.unwrap().skipped.is_empty());
}

#[rstest]
fn layers_around_others_are_found_by_their_names(
    #[values("keras", "weights.h5", "h5", "old.h5")] layout: &str,
) {
    let text = distribute_keras::model_text(unzipped("wrapped.keras"), "m").unwrap();
    let mut root: Value = serde_json::from_str(&text).unwrap();
    let layers = root["config"]["layers"].as_array_mut().unwrap();
    let at = |name: &str| {
        layers
            .iter()
            .position(|layer| layer["name"] == name)
            .unwrap()
    };
    let (right, other) = (at("right"), at("other"));
    layers.swap(right, other);
    let shape = [3, 4, 2];
    let swapped = parse_keras_json(&root.to_string(), "m").unwrap();
    let plans = [
        plan_of(&file("wrapped.keras").path),
        swapped.plan(&shape).unwrap(),
    ];
    let file = file(&format!("wrapped.{layout}"));
    let [named, swapped] = plans.map(|plan| {
        let weights = read_weights(&file.path, &plan).unwrap();
        let names = plan
            .weights()
            .map(|(layer, weight)| format!("{}/{}", layer.name, weight.name));
        let values = weights.into_iter().map(|weight| weight.values);
        names.zip(values).collect::<Vec<_>>()
    });
    assert!(named != swapped);
    let sorted = |weights: Vec<_>| weights.into_iter().collect::<BTreeMap<_, _>>();
    assert!(sorted(named) == sorted(swapped), "{layout}");
}

#[test]
fn the_weights_come_out_as_they_went_in() {
    for name in ["blocks", "shared", "attention", "padded"] {
        let plan = crate::graphs::plan(name, "keras3");
        let weights = crate::graphs::weights(&plan);
        let model = Model::new(&plan, weights.clone(), &Device::flex()).unwrap();
        assert!(model.weights(&plan).unwrap() == weights, "{name}");
    }
}

#[rstest]
fn what_is_written_is_what_keras_has_read(
    #[values("chain", "nested", "steps", "volumes", "wrapped")] model: &str,
    #[values("weights.h5", "keras", "npz", "safetensors")] layout: &str,
) {
    let source = file(&format!("{model}.keras"));
    let plan = plan_of(&source.path);
    let weights = read_weights(&source.path, &plan).unwrap();
    let text = distribute_keras::model_text(unzipped(&format!("{model}.keras")), "m").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(format!("written.{model}.{layout}"));
    let format = WeightFormat::of(&path).unwrap();
    let bytes = written_weights(format, &plan, &weights, Some(&text)).unwrap();
    std::fs::write(&path, &bytes).unwrap();
    assert!(read_weights(&path, &plan).unwrap() == weights);
    let golden = stored().join(format!("written.{model}.{layout}.gz"));
    if std::env::var_os("DISTRIBUTE_WRITE_GOLDEN").is_some() {
        let file = std::fs::File::create(&golden).unwrap();
        let mut encoder = flate2::write::GzEncoder::new(file, flate2::Compression::best());
        encoder.write_all(&bytes).unwrap();
        encoder.finish().unwrap();
    }
    // `weights.py --check` has loaded the stored file with Keras.
    assert!(
        unzipped(&format!("written.{model}.{layout}")) == bytes,
        "{layout} differs"
    );
}

#[test]
fn keras_reads_what_is_written() {
    let Some(python) = std::env::var_os("DISTRIBUTE_KERAS_PYTHON") else {
        println!("SKIPPED: no DISTRIBUTE_KERAS_PYTHON: a Python that has Keras 3 and tf_keras");
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    for model in ["chain", "nested", "steps", "volumes", "wrapped"] {
        let source = file(&format!("{model}.keras"));
        let plan = plan_of(&source.path);
        let weights = read_weights(&source.path, &plan).unwrap();
        let text = distribute_keras::model_text(unzipped(&format!("{model}.keras")), "m").unwrap();
        for layout in ["weights.h5", "keras", "npz", "safetensors"] {
            let path = folder.path().join(format!("written.{model}.{layout}"));
            let format = WeightFormat::of(&path).unwrap();
            let bytes = written_weights(format, &plan, &weights, Some(&text)).unwrap();
            std::fs::write(&path, &bytes).unwrap();
        }
    }
    let checked = Command::new(python)
        .arg(crate::folder().join("weights.py"))
        .arg("--check")
        .arg(folder.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&checked.stderr);
    assert!(checked.status.success(), "{said}");
    assert_eq!(String::from_utf8_lossy(&checked.stdout).lines().count(), 20);
}

#[test]
fn what_cannot_be_a_keras_file_is_refused() {
    let source = file("chain.keras");
    let plan = plan_of(&source.path);
    let weights = read_weights(&source.path, &plan).unwrap();
    let text = distribute_keras::model_text(unzipped("chain.old.h5"), "m").unwrap();
    for (text, part) in [(None, "only its file says"), (Some(&*text), "Keras 2")] {
        let error = written_weights(WeightFormat::Keras, &plan, &weights, text).unwrap_err();
        assert!(error.to_string().contains(part), "{error}");
    }
    let other = written_weights(WeightFormat::Npz, &plan, &weights[1..], None).unwrap_err();
    assert!(other.to_string().contains("another model"), "{other}");
    let formats = BTreeMap::from([
        ("a.weights.h5", true),
        ("a.h5", false),
        ("a.keras", true),
        ("a.bin", false),
    ]);
    for (name, known) in formats {
        assert_eq!(WeightFormat::of(name).is_some(), known, "{name}");
    }
}

#[test]
fn formats_of_tensorflow_are_refused_with_the_line_that_converts_them() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    std::fs::create_dir(path("saved")).unwrap();
    std::fs::write(path("saved/saved_model.pb"), b"pb").unwrap();
    std::fs::create_dir(path("old")).unwrap();
    std::fs::write(path("old/saved_model.pb"), b"pb").unwrap();
    std::fs::write(path("old/keras_metadata.pb"), b"pb").unwrap();
    std::fs::create_dir(path("checkpoints")).unwrap();
    std::fs::write(path("checkpoints/checkpoint"), b"text").unwrap();
    std::fs::write(path("checkpoints/ckpt-1.index"), b"i").unwrap();
    for (name, part) in [
        ("old", "tf_keras.models.load_model("),
        ("saved", "tf.saved_model.load("),
        ("checkpoints", "tf.train.latest_checkpoint("),
        ("checkpoints/ckpt-1", "model.load_weights("),
        ("checkpoints/ckpt-1.index", "ckpt-1'); model.save_weights("),
        (
            "checkpoints/ckpt-1.data-00000-of-00001",
            "ckpt-1'); model.save_weights(",
        ),
    ] {
        let error = check_format(path(name)).unwrap_err();
        assert!(matches!(error, ModelError::Convert { .. }) && error.is_permanent());
        assert!(error.to_string().contains(part), "{name}: {error}");
        let read = read_keras_json(path(name)).unwrap_err().to_string();
        assert!(read.contains(part), "{name}: {read}");
    }
    assert!(check_format(path("none.json")).is_ok());
}
