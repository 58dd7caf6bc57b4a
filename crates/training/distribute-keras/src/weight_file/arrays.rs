//! Arrays with names or numbers: `.npz` and safetensors.

use std::collections::BTreeMap;
use std::path::Path;

use burn::tensor::{Bytes, DType, TensorData};
use distribute_readers::{Array, ReadError, Values, parse_npz_arrays};
use safetensors::{Dtype, SafeTensors};

use super::found::{Found, positions};
use crate::spec::SAVED_LAYERS;
use crate::{Plan, PlannedLayer, PlannedWeight, Weight};

type Named = Vec<(String, Weight)>;

pub(super) fn of_npz(bytes: &[u8], path: &Path) -> Result<Named, ReadError> {
    let arrays = parse_npz_arrays(bytes, path)?.into_iter();
    Ok(arrays.map(|(name, array)| (name, weight(array))).collect())
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

pub(super) fn of_safetensors(bytes: &[u8]) -> Result<Named, String> {
    let file = SafeTensors::deserialize(bytes)
        .map_err(|error| format!("not a safetensors file ({error})"))?;
    let mut weights = Vec::with_capacity(file.len());
    for (name, view) in file.iter() {
        let dtype = match view.dtype() {
            Dtype::F64 => DType::F64,
            Dtype::F32 => DType::F32,
            Dtype::F16 => DType::F16,
            Dtype::BF16 => DType::BF16,
            Dtype::I64 => DType::I64,
            Dtype::I32 => DType::I32,
            other => return Err(format!("{name} is of the type {other:?}, no weight is")),
        };
        // burn aligns the bytes, which stand anywhere in the file.
        let data = TensorData::try_from_bytes(
            Bytes::from_bytes_vec(view.data().to_vec()),
            view.shape().to_vec(),
            dtype,
        );
        let values = data.map(|data| data.convert::<f32>().try_into_vec::<f32>());
        let Ok(Ok(values)) = values else {
            return Err(format!("{name} has another length than its shape says"));
        };
        let shape = view.shape().to_vec();
        weights.push((name.to_string(), Weight { shape, values }));
    }
    Ok(weights)
}

/// The weights by number if they are called `arr_0`, `arr_1` and so on, else by name.
pub(super) fn named(plan: &Plan, arrays: Named) -> Found {
    let number = |name: &str| name.strip_prefix("arr_")?.parse::<usize>().ok();
    let numbered: Option<BTreeMap<usize, usize>> = arrays
        .iter()
        .enumerate()
        .map(|(at, (name, _))| Some((number(name)?, at)))
        .collect();
    let (count, wanted) = (arrays.len(), plan.weights().count());
    let mut found = Found::default();
    let chosen: Vec<Option<usize>> = match numbered {
        Some(numbers) if numbers.keys().copied().eq(0..count) => {
            if count != wanted {
                found.refused = Some(format!(
                    "{count} weights were given, the model has {wanted}"
                ));
            }
            numbers.into_values().map(Some).collect()
        }
        _ => by_name(plan, &arrays, &mut found),
    };
    let mut arrays: Vec<Option<Weight>> =
        arrays.into_iter().map(|(_, weight)| Some(weight)).collect();
    let chosen = chosen.into_iter();
    let weights = chosen.map(|at| at.and_then(|at| arrays.get_mut(at)?.take()));
    found.weights = weights.collect();
    found
}

/// The positions of the model's weights among the arrays.
fn by_name(plan: &Plan, arrays: &Named, found: &mut Found) -> Vec<Option<usize>> {
    let positions_of_arrays = arrays.iter().enumerate();
    let mut names: BTreeMap<&str, usize> = positions_of_arrays
        .map(|(at, (name, _))| (name.strip_suffix(":0").unwrap_or(name), at))
        .collect();
    let mut chosen = Vec::with_capacity(arrays.len());
    for (index, (layer, weight)) in positions(plan).zip(plan.weights()) {
        let known = paths(layer, weight);
        let at = known.iter().find_map(|path| names.remove(path.as_str()));
        if at.is_none() {
            let what = format!("the file has no weight {}", known[0]);
            found.missing.push((index, what));
        }
        chosen.push(at);
    }
    let unused = names.into_keys().map(|name| format!("a weight {name}"));
    found.unused = unused.collect();
    chosen
}

/// What Keras may call a weight: below the models that it is in, or without some of them.
fn paths(layer: &PlannedLayer, weight: &PlannedWeight) -> Vec<String> {
    let name = weight.name.as_ref();
    let names = [Some(name), layer.spec.layer().old_name(name)];
    let mut paths = Vec::new();
    for name in names.into_iter().flatten() {
        let mut rest = Some(layer.name.as_str());
        while let Some(path) = rest {
            paths.push(format!("{path}/{name}"));
            rest = path.split_once('/').map(|(_, inner)| inner);
        }
    }
    paths.push(keras_path(layer, weight));
    let late = layer.spec.layer().builds_late();
    paths.extend(late.then(|| weight.name.to_string()));
    paths
}

/// What Keras 3 calls a weight, `w.path`: a functional model inside is no part of it, nor is a
/// layer around a model.
pub(super) fn keras_path(layer: &PlannedLayer, planned: &PlannedWeight) -> String {
    let between = format!("/{SAVED_LAYERS}/");
    let mut names: Vec<&str> = Vec::new();
    let mut rest = layer.name.as_str();
    // Each part of the group is a model's, with the layers around it; the last one is the layer's.
    let groups: Vec<&str> = layer.saved_as.split(&between).collect();
    for group in groups.iter().take(groups.len().saturating_sub(1)) {
        let group = group.strip_prefix(SAVED_LAYERS).unwrap_or(group);
        let around = group.trim_start_matches('/').split('/').count();
        let mut model = "";
        for _ in 0..around {
            (model, rest) = rest.split_once('/').unwrap_or(("", rest));
        }
        let class = group.rsplit('/').next().unwrap_or(group);
        let is_number = |letter: char| letter.is_ascii_digit() || letter == '_';
        let class = class.trim_end_matches(is_number);
        if class != "functional" && !model.is_empty() {
            names.push(model);
        }
    }
    names.extend([rest, planned.name.as_ref()]);
    names.join("/")
}
