//! Weights of Keras from files: `.npz` and safetensors.
//!
//! `numpy.savez(path, *model.get_weights())` writes them in the model's order. With names, as
//! `{w.path: w.numpy() for w in model.weights}` gives them, the order does not matter: Keras 3's
//! paths and Keras 2's names (`conv1/kernel`, `conv1/kernel:0`) are both understood.

use std::collections::BTreeMap;
use std::path::Path;

use burn::tensor::{DType, TensorData};
use distribute_readers::{Array, Values, read_npz_arrays};
use safetensors::{Dtype, SafeTensors};

use crate::{ModelError, Plan, PlannedLayer, PlannedWeight, Weight};

const SAVEZ: &str = "`numpy.savez(NAME, *model.get_weights())`";
const SAVE_FILE: &str =
    "`safetensors.numpy.save_file({w.path: w.numpy() for w in model.weights}, NAME)`";

/// Reads the weights of a model, in the order that [`Model::new`](crate::Model::new) wants.
///
/// The file's name ends with `.npz` or `.safetensors`. Weights of other types become 32-bit floats.
///
/// # Errors
/// [`ModelError::Io`] and [`ModelError::Npz`] for a file that cannot be read,
/// [`ModelError::WeightFile`] for one of another kind, [`ModelError::Weights`] for weights of
/// another model, and for numbers that are not finite or a variance below 0, which name the weight.
pub fn read_weights(path: impl AsRef<Path>, plan: &Plan) -> Result<Vec<Weight>, ModelError> {
    let path = path.as_ref();
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("npz") => {
            let arrays = read_npz_arrays(path)?.into_iter();
            in_order(
                plan,
                arrays.map(|(name, array)| (name, weight(array))).collect(),
            )
        }
        Some("safetensors") => {
            let bytes = std::fs::read(path).map_err(|source| ModelError::Io {
                path: path.to_path_buf(),
                source,
            })?;
            parse_safetensors_weights(&bytes, path, plan)
        }
        _ => Err(ModelError::WeightFile {
            path: path.to_path_buf(),
            what: "the name ends neither with .npz nor with .safetensors".to_string(),
            remedy: SAVEZ,
        }),
    }
}

/// Reads the weights of a model from the bytes of a safetensors file; `origin` names it in errors.
///
/// # Errors
/// As [`read_weights`].
pub fn parse_safetensors_weights(
    bytes: &[u8],
    origin: impl AsRef<Path>,
    plan: &Plan,
) -> Result<Vec<Weight>, ModelError> {
    let wrong = |what: String| ModelError::WeightFile {
        path: origin.as_ref().to_path_buf(),
        what,
        remedy: SAVE_FILE,
    };
    let file = SafeTensors::deserialize(bytes)
        .map_err(|error| wrong(format!("not a safetensors file ({error})")))?;
    let mut weights = Vec::with_capacity(file.len());
    for (name, view) in file.iter() {
        let dtype = match view.dtype() {
            Dtype::F64 => DType::F64,
            Dtype::F32 => DType::F32,
            Dtype::F16 => DType::F16,
            Dtype::BF16 => DType::BF16,
            Dtype::I64 => DType::I64,
            Dtype::I32 => DType::I32,
            other => {
                return Err(wrong(format!(
                    "{name} is of the type {other:?}, no weight is"
                )));
            }
        };
        // burn aligns the bytes, which stand anywhere in the file.
        let data = TensorData::try_from_bytes(
            burn::tensor::Bytes::from_bytes_vec(view.data().to_vec()),
            view.shape().to_vec(),
            dtype,
        );
        let values = data.map(|data| data.convert::<f32>().try_into_vec::<f32>());
        let Ok(Ok(values)) = values else {
            return Err(wrong(format!(
                "{name} has another length than its shape says"
            )));
        };
        let shape = view.shape().to_vec();
        weights.push((name.to_string(), Weight { shape, values }));
    }
    in_order(plan, weights)
}

fn weight(array: Array) -> Weight {
    let (shape, values) = array.into_parts();
    let values = match values {
        Values::F32(values) => values,
        Values::F64(values) => values.into_iter().map(|x| x as f32).collect(),
        Values::U8(values) => values.into_iter().map(f32::from).collect(),
        Values::I8(values) => values.into_iter().map(f32::from).collect(),
        Values::I16(values) => values.into_iter().map(f32::from).collect(),
        Values::I32(values) => values.into_iter().map(|x| x as f32).collect(),
        Values::I64(values) => values.into_iter().map(|x| x as f32).collect(),
        // A type that a later version of the reader adds.
        _ => Vec::new(),
    };
    Weight { shape, values }
}

/// The weights in the model's order: by number if they are called `arr_0`, `arr_1` and so on, else
/// by name.
fn in_order(plan: &Plan, found: Vec<(String, Weight)>) -> Result<Vec<Weight>, ModelError> {
    let number = |name: &str| name.strip_prefix("arr_")?.parse::<usize>().ok();
    let numbered: Option<BTreeMap<usize, usize>> = found
        .iter()
        .enumerate()
        .map(|(at, (name, _))| Some((number(name)?, at)))
        .collect();
    let count = found.len();
    let chosen: Vec<usize> = match numbered {
        Some(numbers) if numbers.keys().copied().eq(0..count) => numbers.into_values().collect(),
        _ => by_name(plan, &found)?,
    };
    let mut found: Vec<Option<Weight>> =
        found.into_iter().map(|(_, weight)| Some(weight)).collect();
    let weights: Vec<Weight> = chosen
        .into_iter()
        .filter_map(|at| found.get_mut(at)?.take())
        .collect();
    for ((layer, planned), weight) in plan.weights().zip(&weights) {
        check_values(plan, layer, planned, weight)?;
    }
    Ok(weights)
}

/// The positions of the model's weights among the weights that were found.
fn by_name(plan: &Plan, found: &[(String, Weight)]) -> Result<Vec<usize>, ModelError> {
    let error = |what| ModelError::Weights {
        model: plan.name.clone(),
        what,
    };
    let positions = found.iter().enumerate();
    let mut names: BTreeMap<&str, usize> = positions
        .map(|(at, (name, _))| (name.strip_suffix(":0").unwrap_or(name), at))
        .collect();
    let mut chosen = Vec::with_capacity(found.len());
    for (layer, weight) in plan.weights() {
        let known = paths(layer, weight);
        let at = known.iter().find_map(|path| names.remove(path.as_str()));
        let Some(at) = at else {
            let what = format!("the file has no weight {}", known[0]);
            return Err(error(what));
        };
        chosen.push(at);
    }
    match names.keys().next() {
        None => Ok(chosen),
        Some(name) => Err(error(format!(
            "the file has a weight {name}, which the model has not"
        ))),
    }
}

/// What Keras calls a weight: below the models that it is in, or without them.
fn paths(layer: &PlannedLayer, weight: &PlannedWeight) -> Vec<String> {
    let name = weight.name.as_ref();
    let names = [Some(name), layer.spec.layer().old_name(name)];
    let inner = layer.name.rsplit('/').next().unwrap_or(&layer.name);
    let layers = [layer.name.as_str(), inner];
    let paths = layers.iter().flat_map(|layer| {
        let names = names.iter().flatten();
        names.map(move |name| format!("{layer}/{name}"))
    });
    let late = layer.spec.layer().builds_late();
    paths.chain(late.then(|| weight.name.to_string())).collect()
}

/// Refuses numbers that no training goes on from.
fn check_values(
    plan: &Plan,
    layer: &PlannedLayer,
    planned: &PlannedWeight,
    weight: &Weight,
) -> Result<(), ModelError> {
    let is_variance = matches!(planned.name.as_ref(), "variance" | "moving_variance");
    let wrong = |x: &f32| !x.is_finite() || (is_variance && *x < 0.0);
    let Some(at) = weight.values.iter().position(wrong) else {
        return Ok(());
    };
    Err(ModelError::Weights {
        model: plan.name.clone(),
        what: format!(
            "{}/{} has the value {} at position {at}: the training that wrote it had failed",
            layer.name, planned.name, weight.values[at]
        ),
    })
}
