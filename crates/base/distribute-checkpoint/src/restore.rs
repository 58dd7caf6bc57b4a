//! Comparing a checkpoint with the model and the optimizer that are to be restored, and the hashes
//! that identify models and weights.

use std::collections::{BTreeMap, BTreeSet};

use burn::tensor::{DType, TensorData};
use sha2::{Digest, Sha256};

use super::Checkpoint;
use super::error::{CheckpointError, Result};
use super::section::Section;
use super::tensor_file::little_endian;

/// Name, shape and dtype of a tensor that a model (or an optimizer) has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorSpec {
    /// The full name, as in [`Checkpoint::tensors`].
    pub name: String,
    /// Elements per dimension; empty for a scalar.
    pub shape: Vec<usize>,
    /// The element type.
    pub dtype: DType,
}

impl TensorSpec {
    /// The spec of an existing tensor.
    pub fn of(name: impl Into<String>, tensor: &TensorData) -> Self {
        Self {
            name: name.into(),
            shape: tensor.shape().to_vec(),
            dtype: tensor.dtype(),
        }
    }

    fn describe(&self) -> String {
        format!("shape {:?} and dtype {}", self.shape, self.dtype.name())
    }
}

fn by_name(specs: impl IntoIterator<Item = TensorSpec>) -> BTreeMap<String, TensorSpec> {
    let named = specs.into_iter().map(|spec| (spec.name.clone(), spec));
    named.collect()
}

impl Checkpoint {
    /// Checks that the tensors whose name starts with `prefix` are exactly the expected ones:
    /// same names, shapes and dtypes. An empty prefix compares everything.
    ///
    /// # Errors
    ///
    /// [`CheckpointError::WrongModel`] names the first difference in the order of names (a wrong
    /// shape or dtype goes before a missing or unexpected tensor, since it says more) and counts
    /// missing and unexpected tensors, like TensorFlow's `restore` and `assert_consumed`.
    pub fn expect(
        &self,
        prefix: &str,
        expected: impl IntoIterator<Item = TensorSpec>,
    ) -> Result<()> {
        let expected = by_name(expected);
        let tensors = self.tensors.iter();
        let concerned = |name: &str| name.starts_with(prefix) || expected.contains_key(name);
        let found = tensors.filter(|(name, _)| concerned(name));
        let found = by_name(found.map(|(name, tensor)| TensorSpec::of(name, tensor)));
        let missing = expected.keys().filter(|name| !found.contains_key(*name));
        let extra = found.keys().filter(|name| !expected.contains_key(*name));
        let mut paired = expected.keys().filter(|name| found.contains_key(*name));
        let different = paired.find(|name| expected.get(*name) != found.get(*name));
        let first = different.or_else(|| missing.clone().chain(extra.clone()).min());
        let Some(name) = first else {
            return Ok(());
        };
        let describe = |specs: &BTreeMap<String, TensorSpec>| {
            let spec = specs.get(name);
            spec.map_or_else(|| "nothing".to_string(), TensorSpec::describe)
        };
        Err(CheckpointError::WrongModel {
            parameter: name.clone(),
            expected: describe(&expected),
            found: describe(&found),
            missing: missing.count(),
            extra: extra.count(),
        })
    }

    /// Replaces the value of every target by the stored tensor of the same name, after
    /// [`expect`](Self::expect) has found the tensors below `prefix` to be exactly the targets.
    /// Either all targets are replaced or none is.
    ///
    /// # Errors
    ///
    /// As [`expect`](Self::expect).
    pub fn restore_into(
        &self,
        prefix: &str,
        targets: &mut BTreeMap<String, TensorData>,
    ) -> Result<()> {
        let specs = targets.iter();
        self.expect(
            prefix,
            specs.map(|(name, tensor)| TensorSpec::of(name, tensor)),
        )?;
        for (name, target) in targets {
            if let Some(tensor) = self.tensors.get(name) {
                *target = tensor.clone();
            }
        }
        Ok(())
    }
}

/// The tensors of a model that a checkpoint must hold. Old checkpoints hold no integers and
/// bools, as these were not saved then.
pub fn saved_kinds(
    model: impl IntoIterator<Item = TensorSpec>,
    stored: &BTreeMap<String, TensorData>,
) -> impl Iterator<Item = TensorSpec> {
    let model: Vec<TensorSpec> = model.into_iter().collect();
    let mut others = model.iter().filter(|spec| !spec.dtype.is_float());
    let has_all_kinds = others.any(|spec| stored.contains_key(&spec.name));
    let saved = model.into_iter();
    saved.filter(move |spec| has_all_kinds || spec.dtype.is_float())
}

/// An optimizer as stored in a checkpoint: its name, and the names of its slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OptimizerSlots<'a> {
    /// The name in checkpoints, such as `adam`.
    pub optimizer: &'a str,
    /// The names of the state tensors that it keeps per parameter.
    pub slots: &'a [&'a str],
}

/// Checks that the slots in a checkpoint (`optimizer/<slot>/<path>`) match an optimizer, or that
/// there are none. `saved_by` is the optimizer that the checkpoint names, if it names one;
/// otherwise it is guessed from the names of the slots. Only paths for which `is_own` is true are
/// checked.
///
/// # Errors
/// [`CheckpointError::WrongOptimizer`], which names both.
pub fn check_slots(
    own: OptimizerSlots<'_>,
    saved_by: Option<&str>,
    tensors: &BTreeMap<String, TensorData>,
    is_own: impl Fn(&str) -> bool,
) -> Result<()> {
    let slots = tensors
        .range(Section::Optimizer.prefix().to_string()..)
        .map_while(|(name, _)| {
            let rest = Section::Optimizer.path_of(name)?;
            // A slot's name has no slash.
            Some(rest.split_once('/').unwrap_or((rest, "")))
        });
    let found = slots.filter(|(_, path)| is_own(path)).map(|(slot, _)| slot);
    check_slot_names(own, saved_by, found)
}

/// Like [`check_slots`], for the names of the slots that were found.
///
/// # Errors
/// [`CheckpointError::WrongOptimizer`], which names both.
pub fn check_slot_names<'a>(
    own: OptimizerSlots<'_>,
    saved_by: Option<&str>,
    found: impl IntoIterator<Item = &'a str>,
) -> Result<()> {
    let found: BTreeSet<&str> = found.into_iter().collect();
    let slots: BTreeSet<&str> = own.slots.iter().copied().collect();
    let saved_by = saved_by.filter(|name| !name.is_empty());
    let is_other = saved_by.is_some_and(|saved| saved != own.optimizer);
    if !is_other && (found.is_empty() || found == slots) {
        return Ok(());
    }
    let saved_by = saved_by.map_or_else(|| guess(&found), str::to_string);
    Err(CheckpointError::WrongOptimizer {
        saved_by,
        found: listed(&found),
        optimizer: own.optimizer.to_string(),
        expected: listed(&slots),
    })
}

/// The optimizer that these slots may belong to.
fn guess(slots: &BTreeSet<&str>) -> String {
    let names: Vec<&str> = slots.iter().copied().collect();
    match names[..] {
        ["momentum"] => "sgd with momentum".to_string(),
        ["momentum", "velocity"] => "adam or adamw".to_string(),
        _ => "another optimizer".to_string(),
    }
}

fn listed(slots: &BTreeSet<&str>) -> String {
    let names: Vec<&str> = slots.iter().copied().collect();
    match names[..] {
        [] => "no slots".to_string(),
        [slot] => format!("the slot {slot}"),
        _ => format!("the slots {}", names.join(" and ")),
    }
}

/// The identity of a model's structure: SHA-256, in hexadecimal, over the names, dtypes and shapes
/// of its tensors, in any order. Two models with the same signature can exchange weights.
pub fn model_signature(specs: impl IntoIterator<Item = TensorSpec>) -> String {
    let sorted = by_name(specs);
    let mut hasher = Sha256::new();
    // Every part is preceded by its length, so that no two different models read the same.
    let mut part = |bytes: &[u8]| {
        hasher.update((bytes.len() as u64).to_le_bytes());
        hasher.update(bytes);
    };
    for spec in sorted.values() {
        part(spec.name.as_bytes());
        part(spec.dtype.name().as_bytes());
        let shape = spec
            .shape
            .iter()
            .flat_map(|dimension| (*dimension as u64).to_le_bytes());
        part(&shape.collect::<Vec<u8>>());
    }
    hex::encode(hasher.finalize())
}

/// The identity of a model's weights: SHA-256, in hexadecimal, over the values of all parameters
/// as little-endian f32, in the (bytewise) order of their paths. Other dtypes are converted to f32
/// first.
///
/// ```
/// use burn::tensor::TensorData;
/// use distribute_checkpoint::weights_sha256;
///
/// let (kernel, bias) = (TensorData::from([1.0_f32, 2.0]), TensorData::from([0.5_f32]));
/// let hash = weights_sha256([("fc/kernel", &kernel), ("fc/bias", &bias)])?;
/// assert_eq!(hash, weights_sha256([("fc/bias", &bias), ("fc/kernel", &kernel)])?);
/// # Ok::<(), distribute_checkpoint::CheckpointError>(())
/// ```
///
/// # Errors
///
/// [`CheckpointError::Unsupported`] for a quantized tensor.
pub fn weights_sha256<'a, N: AsRef<str>>(
    parameters: impl IntoIterator<Item = (N, &'a TensorData)>,
) -> Result<String> {
    let mut sorted: Vec<(N, &TensorData)> = parameters.into_iter().collect();
    sorted.sort_by(|left, right| left.0.as_ref().cmp(right.0.as_ref()));
    let mut hasher = Sha256::new();
    for (name, tensor) in sorted {
        let unsupported = |what: &str| CheckpointError::unsupported(name.as_ref(), what);
        match tensor.dtype() {
            DType::F32 | DType::Flex32 => hasher.update(little_endian(tensor.as_bytes(), 4)),
            DType::QFloat(_) => return Err(unsupported("dequantize it before hashing")),
            _ => {
                let values = tensor
                    .try_to_vec_as::<f32>()
                    .map_err(|error| unsupported(&error.to_string()))?;
                for value in values {
                    hasher.update(value.to_le_bytes());
                }
            }
        }
    }
    Ok(hex::encode(hasher.finalize()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Metadata;
    use burn::tensor::f16;

    fn checkpoint() -> Checkpoint {
        let mut checkpoint = Checkpoint::new(Metadata::new(1));
        for (name, values) in [
            ("model/a", vec![1.0_f32, 2.0, 3.0]),
            ("model/b", vec![4.0]),
            ("optimizer/m/a", vec![0.0; 3]),
        ] {
            let shape = [values.len()];
            let tensor = TensorData::new(values, shape);
            checkpoint.tensors.insert(name.to_string(), tensor);
        }
        checkpoint
    }

    fn targets() -> BTreeMap<String, TensorData> {
        BTreeMap::from([
            ("model/a".to_string(), TensorData::from([0.0_f32; 3])),
            ("model/b".to_string(), TensorData::from([0.0_f32; 1])),
        ])
    }

    #[test]
    fn restores_what_matches() {
        let mut model = targets();
        checkpoint().restore_into("model/", &mut model).unwrap();
        assert_eq!(model["model/a"], TensorData::from([1.0_f32, 2.0, 3.0]));
        assert_eq!(model["model/b"], TensorData::from([4.0_f32]));
    }

    #[test]
    fn a_wrong_shape_is_named_before_missing_tensors_and_changes_nothing() {
        let mut model = targets();
        model.insert("model/b".into(), TensorData::from([0.0_f32; 2]));
        model.insert("model/0".into(), TensorData::from([9.0_f32]));
        let before = model.clone();
        let error = checkpoint().restore_into("model/", &mut model).unwrap_err();
        insta::assert_snapshot!(error, @"received incompatible tensor shape [1] and dtype f32 when attempting to restore model/b with shape [2] and dtype f32; 1 missing and 0 unexpected tensors in the checkpoint: build the model (and optimizer) that was saved");
        assert_eq!(model, before);
    }

    #[test]
    fn a_wrong_dtype_is_a_difference() {
        let mut model = targets();
        model.insert("model/b".into(), TensorData::from([0.0_f64]));
        let error = checkpoint().restore_into("model/", &mut model).unwrap_err();
        assert!(
            error.to_string().contains("shape [1] and dtype f64"),
            "{error}"
        );
    }

    #[test]
    fn missing_and_unexpected_tensors_are_counted() {
        let mut model = targets();
        model.remove("model/a");
        model.insert("model/c".into(), TensorData::from([0.0_f32]));
        model.insert("model/d".into(), TensorData::from([0.0_f32]));
        let error = checkpoint().restore_into("model/", &mut model).unwrap_err();
        let CheckpointError::WrongModel {
            parameter,
            expected,
            missing,
            extra,
            ..
        } = error
        else {
            panic!("{error}")
        };
        assert_eq!(
            (parameter.as_str(), expected.as_str()),
            ("model/a", "nothing")
        );
        assert_eq!((missing, extra), (2, 1));
    }

    #[test]
    fn weights_hash_is_the_plain_sha256_of_the_f32_bytes_in_path_order() {
        let (a, b) = (
            TensorData::from([1.0_f32, -2.5]),
            TensorData::from([3.0_f32]),
        );
        let bytes: Vec<u8> = [1.0_f32, -2.5, 3.0]
            .iter()
            .flat_map(|value| value.to_le_bytes())
            .collect();
        let expected = hex::encode(Sha256::digest(bytes));
        assert_eq!(
            weights_sha256([("x/b", &b), ("x/a", &a)]).unwrap(),
            expected
        );
        let narrow = TensorData::from([f16::from_f32(1.0), f16::from_f32(-2.5)]);
        assert_eq!(
            weights_sha256([("x/a", &narrow), ("x/b", &b)]).unwrap(),
            expected
        );
        let kinds = [
            TensorData::from([1_i64, -2]),
            TensorData::from([true, false]),
        ];
        let floats = [[1.0_f32, -2.0], [1.0, 0.0]].map(TensorData::from);
        let hash = |pair: &[TensorData; 2]| weights_sha256([("a", &pair[0]), ("b", &pair[1])]);
        assert_eq!(hash(&kinds).unwrap(), hash(&floats).unwrap());
        let other = TensorData::from([1.0_f32, -2.25]);
        assert_ne!(
            weights_sha256([("x/b", &b), ("x/a", &other)]).unwrap(),
            expected
        );
    }

    #[test]
    fn the_signature_sees_names_shapes_and_dtypes_but_not_values_or_order() {
        let spec = |name: &str, tensor: &TensorData| TensorSpec::of(name, tensor);
        let two = TensorData::from([1.0_f32, 2.0]);
        let reference = model_signature([spec("a", &two), spec("b", &two)]);
        let other_values = TensorData::from([5.0_f32, 6.0]);
        assert_eq!(
            model_signature([spec("b", &other_values), spec("a", &two)]),
            reference
        );
        let matrix = TensorData::from([[1.0_f32, 2.0]]);
        let double = TensorData::from([1.0_f64, 2.0]);
        for changed in [spec("c", &two), spec("b", &matrix), spec("b", &double)] {
            assert_ne!(model_signature([spec("a", &two), changed]), reference);
        }
    }
}
