//! Writes the weights of a model as Keras does, so that Keras reads them.

use std::collections::BTreeMap;
use std::io::{Cursor, Write};
use std::path::Path;

use safetensors::tensor::{Dtype, TensorView, serialize};
use serde_json::{Value, json};
use zip::write::{SimpleFileOptions, ZipWriter};
use zip::{CompressionMethod, DateTime};

use super::VARS;
use super::arrays::keras_path;
use crate::hdf5::{Group, written};
use crate::keras_archive::{CONFIG, METADATA, WEIGHTS};
use crate::{LayerSpec, ModelError, Plan, Weight};

/// The kinds of files that weights are written to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum WeightFormat {
    /// `.weights.h5`, for `model.load_weights`.
    WeightsH5,
    /// `.keras`, for `keras.models.load_model`.
    Keras,
    /// `.safetensors`, with the weights by `w.path`.
    Safetensors,
    /// `.npz`, for `model.set_weights`: `arr_0`, `arr_1` and so on.
    Npz,
}

impl WeightFormat {
    /// The format that a file's name says.
    pub fn of(path: impl AsRef<Path>) -> Option<Self> {
        let name = path.as_ref().file_name()?.to_str()?;
        // Keras too goes by these endings.
        let endings = [
            (".weights.h5", Self::WeightsH5),
            (".keras", Self::Keras),
            (".safetensors", Self::Safetensors),
            (".npz", Self::Npz),
        ];
        let mut endings = endings.into_iter();
        endings.find_map(|(ending, format)| name.ends_with(ending).then_some(format))
    }
}

/// The bytes of a file with the weights of a model, in the order of [`Plan::weights`]. `text` is
/// the text of the model's file, which `.keras` contains; a built-in model needs none.
///
/// # Errors
/// [`ModelError::Weights`] for weights of another model, and for `.keras` without a text in the
/// form of Keras 3.
pub fn written_weights(
    format: WeightFormat,
    plan: &Plan,
    weights: &[Weight],
    text: Option<&str>,
) -> Result<Vec<u8>, ModelError> {
    let wrong = |what: &str| ModelError::Weights {
        model: plan.name.clone(),
        what: what.to_string(),
    };
    let shapes = plan.weights().map(|(_, planned)| &planned.shape);
    if !shapes.eq(weights.iter().map(|weight| &weight.shape)) {
        return Err(wrong("the weights are those of another model"));
    }
    match format {
        WeightFormat::WeightsH5 => Ok(hdf5(plan, weights)),
        WeightFormat::Keras => {
            let text = match text {
                Some(text) => Some(text.to_string()),
                None => plan.built_in_json(),
            };
            let text = text.ok_or_else(|| {
                wrong("only its file says which layers it has, which .keras contains; give it")
            })?;
            let root: Value = serde_json::from_str(&text).unwrap_or_default();
            if !root["module"].is_string() {
                return Err(wrong(
                    "the model's layers are in the form of Keras 2, which .keras cannot contain; \
                     write .weights.h5",
                ));
            }
            // Keras loads any version; the file's is not known here.
            let metadata = json!({"keras_version": "3.0.0", "date_saved": ""}).to_string();
            let members = [
                (METADATA, metadata.into_bytes()),
                (CONFIG, text.into_bytes()),
                (WEIGHTS, hdf5(plan, weights)),
            ];
            archive(&members).map_err(|error| wrong(&error.to_string()))
        }
        WeightFormat::Safetensors => {
            safetensors(plan, weights).map_err(|error| wrong(&error.to_string()))
        }
        WeightFormat::Npz => {
            let arrays = weights.iter().zip(0..);
            let members: Vec<_> = arrays
                .map(|(weight, number): (_, usize)| (format!("arr_{number}.npy"), npy(weight)))
                .collect();
            archive(&members).map_err(|error| wrong(&error.to_string()))
        }
    }
}

/// The layout of `.weights.h5`.
fn hdf5(plan: &Plan, weights: &[Weight]) -> Vec<u8> {
    let of_vocabularies = idf_weights(plan);
    let mut root = Group::default();
    // Keras reads this group in any case.
    root.group(VARS);
    for (group, weight) in &of_vocabularies {
        root.group(group).add("idf_weights", weight);
    }
    let mut left = weights.iter();
    for layer in &plan.layers {
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        let planned = layer.weights.iter().enumerate();
        for ((position, planned), weight) in planned.zip(&mut left) {
            let part = layer.spec.layer().sublayer(position, &planned.name);
            let number = counts.entry(part).or_default();
            let path = format!("{}/{part}/{VARS}", layer.saved_as);
            root.group(&path).add(number.to_string(), weight);
            *number += 1;
        }
    }
    written(&root)
}

/// The weights of vocabularies, each with its group. A `TextVectorization` has them twice: Keras
/// reads them for the layer, and for the lookup in it.
fn idf_weights(plan: &Plan) -> Vec<(String, Weight)> {
    let mut all = Vec::new();
    for layer in &plan.layers {
        let Some(values) = layer.spec.layer().idf_weights() else {
            continue;
        };
        let weight = Weight {
            shape: vec![values.len()],
            values: values.iter().map(|value| *value as f32).collect(),
        };
        let group = &layer.saved_as;
        if matches!(layer.spec, LayerSpec::TextVectorization(_)) {
            all.push((format!("{group}/_lookup_layer/{VARS}"), weight.clone()));
        }
        all.push((format!("{group}/{VARS}"), weight));
    }
    all
}

fn safetensors(plan: &Plan, weights: &[Weight]) -> Result<Vec<u8>, safetensors::SafeTensorError> {
    let bytes = weights.iter().map(|weight| bytes(&weight.values));
    let bytes: Vec<Vec<u8>> = bytes.collect();
    let mut tensors = BTreeMap::new();
    for (((layer, planned), weight), bytes) in plan.weights().zip(weights).zip(&bytes) {
        let tensor = TensorView::new(Dtype::F32, weight.shape.clone(), bytes)?;
        tensors.insert(keras_path(layer, planned), tensor);
    }
    serialize(tensors, None)
}

fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|x| x.to_le_bytes()).collect()
}

/// A weight as `.npy` of version 1.
fn npy(weight: &Weight) -> Vec<u8> {
    let extents = weight.shape.iter().map(|extent| format!("{extent},"));
    let shape: String = extents.collect();
    let mut text = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({shape}), }}");
    // The text ends with a line break at a multiple of 64.
    let length = (10 + text.len() + 1).next_multiple_of(64) - 11;
    text = format!("{text:length$}\n");
    let mut file = b"\x93NUMPY\x01\x00".to_vec();
    file.extend((text.len() as u16).to_le_bytes());
    file.extend(text.as_bytes());
    file.extend(bytes(&weight.values));
    file
}

/// An archive whose members are not compressed, as Keras and NumPy write them, with the same bytes
/// at any time.
fn archive(members: &[(impl AsRef<str>, Vec<u8>)]) -> zip::result::ZipResult<Vec<u8>> {
    let mut archive = ZipWriter::new(Cursor::new(Vec::new()));
    for (name, bytes) in members {
        let options = SimpleFileOptions::default()
            .compression_method(CompressionMethod::Stored)
            .last_modified_time(DateTime::default())
            .large_file(bytes.len() > u32::MAX as usize / 2);
        archive.start_file(name.as_ref(), options)?;
        archive.write_all(bytes)?;
    }
    Ok(archive.finish()?.into_inner())
}
