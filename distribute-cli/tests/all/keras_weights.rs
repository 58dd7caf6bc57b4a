//! Weights from files of Keras and to them: `--weights`, `--skip-mismatch`, `--freeze`, `export`.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use distribute_readers::{Values, read_npz_arrays};
use rstest::rstest;

use crate::common::{self, run, succeed};

/// A training whose only step changes nothing.
const UNCHANGED: &str = "--steps 1 --optimizer sgd --learning-rate 1e-30";
const DIGITS: &str = "train --replicas 1 --batch-size 8";

fn trained(folder: &Path, flags: &str) {
    succeed(folder, &format!("{DIGITS} {flags}"));
}

/// The weights in an `.npz`, by number.
fn arrays(path: &Path) -> BTreeMap<String, Vec<f32>> {
    let arrays = read_npz_arrays(path).unwrap().into_iter();
    let arrays = arrays.map(|(name, array)| match array.into_parts().1 {
        Values::F32(values) => (name, values),
        other => panic!("{other:?}"),
    });
    arrays.collect()
}

#[rstest]
fn what_was_exported_is_what_a_training_starts_with(
    #[values("w.weights.h5", "w.npz", "w.safetensors")] file: &str,
) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    trained(path, "--steps 3 --checkpoint-dir one");
    let line = succeed(path, &format!("export one --to {file}"));
    assert!(line.starts_with(&format!("{file}: 8 weights, ")), "{line}");
    assert!(line.contains("of digits-cnn after step 3"), "{line}");
    trained(
        path,
        &format!("{UNCHANGED} --weights {file} --checkpoint-dir two"),
    );
    succeed(path, &format!("export two --to again-{file}"));
    let read = |name: &str| fs::read(path.join(name)).unwrap();
    assert!(read(file) == read(&format!("again-{file}")));
    // Without the file it starts elsewhere.
    trained(path, &format!("{UNCHANGED} --checkpoint-dir three"));
    succeed(path, &format!("export three --to other-{file}"));
    assert!(read(file) != read(&format!("other-{file}")));
}

#[test]
fn frozen_layers_and_another_head_are_said_and_kept() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    trained(path, "--steps 3 --checkpoint-dir one");
    succeed(path, "export one --to w.npz");
    let flags = "--steps 3 --weights w.npz --freeze conv*,dense --checkpoint-dir two";
    let finished = run(path, &format!("{DIGITS} {flags}"));
    assert_eq!(finished.code, Some(0), "{}", finished.stderr);
    let told = finished.told();
    for part in [
        "weights: of w.npz",
        "frozen layers: conv2d, conv2d_1, dense",
    ] {
        assert!(told.contains(part), "{told}");
    }
    succeed(path, "export two --to second.npz");
    let (first, second) = (
        arrays(&path.join("w.npz")),
        arrays(&path.join("second.npz")),
    );
    for (name, values) in &first {
        let head = ["arr_6", "arr_7"].contains(&&**name);
        assert_eq!(*values == second[name], !head, "{name}");
    }
    // Seven classes in place of ten.
    common::table(path, "t.csv", 0..200);
    trained(path, "--model mlp --steps 2 --checkpoint-dir three");
    succeed(path, "export three --to mlp.weights.h5");
    let head = "train --model mlp --replicas 1 --steps 1 --dataset csv:t.csv";
    let strict = run(path, &format!("{head} --weights mlp.weights.h5"));
    assert_eq!(strict.code, Some(2));
    let told = strict.told();
    assert!(
        told.contains("dense_2/kernel has the shape (64, 10) in the file"),
        "{told}"
    );
    let fitting = run(
        path,
        &format!("{head} --weights mlp.weights.h5 --skip-mismatch"),
    );
    assert_eq!(fitting.code, Some(0), "{}", fitting.stderr);
    let told = fitting.told();
    for layer in ["dense", "dense_2"] {
        let part = format!("the layer {layer} starts with new weights: {layer}/kernel has");
        assert!(told.contains(&part), "{told}");
    }
    assert!(!told.contains("the layer dense_1 starts"), "{told}");
}

#[test]
fn a_keras_file_trains_from_its_weights_and_comes_out_as_one() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let stored = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../crates/training/distribute-keras/tests/keras/weights/digits.keras");
    fs::copy(stored, path.join("digits.keras")).unwrap();
    let read = |name: &str| fs::read(path.join(name)).unwrap();
    trained(
        path,
        &format!("{UNCHANGED} --model digits.keras --checkpoint-dir one"),
    );
    succeed(path, "export one --to out.keras");
    trained(
        path,
        &format!("{UNCHANGED} --model out.keras --checkpoint-dir again"),
    );
    succeed(path, "export again --to again.keras");
    assert!(read("again.keras") == read("out.keras"));
    // The file of Keras itself fits, too.
    trained(
        path,
        &format!("{UNCHANGED} --model digits.keras --weights out.keras --checkpoint-dir third"),
    );
    succeed(path, "export third --to third.keras");
    assert!(read("third.keras") == read("out.keras"));
    trained(
        path,
        &format!("{UNCHANGED} --model digits.keras --weights none --checkpoint-dir two"),
    );
    succeed(path, "export two --to new.keras");
    assert!(read("new.keras") != read("out.keras"));
}
