//! Weights from the files that NumPy and safetensors write, and files of another model's.

use std::collections::BTreeMap;
use std::io::{Cursor, Write};
use std::path::Path;

use distribute_keras::{ModelError, Plan, Weight, read_weights};
use rstest::rstest;
use safetensors::tensor::{Dtype, TensorView, serialize};
use zip::write::{SimpleFileOptions, ZipWriter};

use crate::graphs::{plan, weights};

/// A weight as `.npy`.
fn npy(weight: &Weight) -> Vec<u8> {
    let extents: Vec<String> = weight
        .shape
        .iter()
        .map(|extent| format!("{extent},"))
        .collect();
    let shape = extents.concat();
    let mut text = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({shape}), }}");
    while !(10 + text.len() + 1).is_multiple_of(64) {
        text.push(' ');
    }
    text.push('\n');
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend((text.len() as u16).to_le_bytes());
    bytes.extend(text.as_bytes());
    bytes.extend(weight.values.iter().flat_map(|x| x.to_le_bytes()));
    bytes
}

fn write_npz(path: &Path, weights: &[(String, &Weight)]) {
    let mut writer = ZipWriter::new(Cursor::new(Vec::new()));
    let options = SimpleFileOptions::default().compression_method(zip::CompressionMethod::Stored);
    for (name, weight) in weights {
        writer.start_file(format!("{name}.npy"), options).unwrap();
        writer.write_all(&npy(weight)).unwrap();
    }
    std::fs::write(path, writer.finish().unwrap().into_inner()).unwrap();
}

fn write_safetensors(path: &Path, weights: &[(String, &Weight)]) {
    let bytes = |weight: &Weight| weight.values.iter().flat_map(|x| x.to_le_bytes()).collect();
    let bytes: Vec<Vec<u8>> = weights.iter().map(|(_, weight)| bytes(weight)).collect();
    let views = weights.iter().zip(&bytes).map(|((name, weight), bytes)| {
        let view = TensorView::new(Dtype::F32, weight.shape.clone(), bytes).unwrap();
        (name.clone(), view)
    });
    let views: BTreeMap<_, _> = views.collect();
    std::fs::write(path, serialize(views, None).unwrap()).unwrap();
}

fn write(path: &Path, weights: &[(String, &Weight)]) {
    match path.extension().unwrap().to_str().unwrap() {
        "npz" => write_npz(path, weights),
        _ => write_safetensors(path, weights),
    }
}

/// What Keras 3 calls the weights; Keras 2 has a `:0` behind it.
fn named<'a>(plan: &Plan, weights: &'a [Weight], suffix: &str) -> Vec<(String, &'a Weight)> {
    let names = plan.weights().map(|(layer, weight)| {
        // A functional model inside of a model is not part of a path.
        let layer = layer.name.strip_prefix("fork/").unwrap_or(&layer.name);
        if suffix.is_empty() && layer == "normalization" {
            // Keras 3 builds these weights late, without the layer's name.
            weight.name.to_string()
        } else {
            format!("{layer}/{}{suffix}", weight.name)
        }
    });
    names.zip(weights).collect()
}

#[rstest]
fn weights_are_read_by_number_and_by_name(
    #[values("blocks", "shared", "attention", "MobileNetV2", "EfficientNetB0")] name: &str,
    #[values("w.npz", "w.safetensors")] file: &str,
) {
    let plan = plan(name, "keras3");
    let weights = weights(&plan);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(file);
    let numbered = weights.iter().enumerate();
    let mut numbered: Vec<_> = numbered
        .map(|(n, weight)| (format!("arr_{n}"), weight))
        .collect();
    // The order of the file does not matter: `arr_10` is behind `arr_9`.
    numbered.sort_by(|one, other| one.0.cmp(&other.0));
    write(&path, &numbered);
    assert!(read_weights(&path, &plan).unwrap() == weights);
    for suffix in ["", ":0"] {
        let mut by_name = named(&plan, &weights, suffix);
        by_name.reverse();
        write(&path, &by_name);
        assert!(read_weights(&path, &plan).unwrap() == weights);
    }
}

#[test]
fn weights_of_another_model_are_named() {
    let plan = plan("shared", "keras3");
    let mut weights = weights(&plan);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("w.safetensors");
    let mut missing = named(&plan, &weights, "");
    let (_, last) = missing.pop().unwrap();
    write(&path, &missing);
    let error = read_weights(&path, &plan).unwrap_err();
    insta::assert_snapshot!(error, @"shared: the file has no weight dense_1/bias; use the weights of the same model (`model.get_weights()`)");
    missing.push(("dense_9/bias".to_string(), last));
    write(&path, &missing);
    insta::assert_snapshot!(read_weights(&path, &plan).unwrap_err(), @"shared: the file has no weight dense_1/bias; use the weights of the same model (`model.get_weights()`)");
    let mut more = named(&plan, &weights, "");
    more.push(("dense_9/bias".to_string(), last));
    write(&path, &more);
    insta::assert_snapshot!(read_weights(&path, &plan).unwrap_err(), @"shared: the file has a weight dense_9/bias, which the model has not; use the weights of the same model (`model.get_weights()`)");
    // The moving variance of the batch normalization.
    for value in [f32::NAN, -0.5] {
        weights[7].values[2] = value;
        write(&path, &named(&plan, &weights, ""));
        let error = read_weights(&path, &plan).unwrap_err();
        let expected = format!("base/batch_normalization/moving_variance has the value {value}");
        assert!(error.to_string().contains(&expected), "{error}");
    }
}

#[test]
fn files_of_another_kind_are_refused() {
    let plan = plan("shared", "keras3");
    let folder = tempfile::tempdir().unwrap();
    for (name, bytes) in [
        ("w.npz", &b"PK\x03\x04"[..]),
        ("w.safetensors", b"\x08\0\0\0\0\0\0\0{\"a\": 1}"),
        ("w.safetensors", b""),
        ("w.h5", b"\x89HDF"),
    ] {
        let path = folder.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        let error = read_weights(&path, &plan).unwrap_err();
        let kinds = matches!(error, ModelError::WeightFile { .. } | ModelError::Npz(_));
        assert!(kinds && error.to_string().contains(name), "{error}");
    }
    let error = read_weights(folder.path().join("none.safetensors"), &plan).unwrap_err();
    assert!(matches!(error, ModelError::Io { .. }), "{error}");
}
