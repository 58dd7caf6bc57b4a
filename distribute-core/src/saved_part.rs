//! What a checkpoint has of a part of a value, on its way back into the part.

use std::collections::BTreeMap;

use burn::module::Module;
use burn::tensor::TensorData;

use crate::checkpoint::{Section, TensorSpec, saved_kinds};
use crate::running_statistics::RunningStatistics;
use crate::state_leaf::{StateWalk, is_same_kind, walk_model};
use crate::{Error, Result};

/// What a checkpoint has of one part of a value.
#[derive(Debug, Clone, Copy)]
pub struct SavedPart<'a> {
    /// Its tensors, by their names in a checkpoint of the part alone (`model/conv1.weight`).
    pub tensors: &'a BTreeMap<String, TensorData>,
    /// The number of updates that they are the result of; `None` to take the models alone, whose
    /// optimizers begin anew.
    pub step: Option<u64>,
}

/// Refuses a checkpoint that lacks tensors of a model, but for kinds that it does not know, or has
/// others. Looked at before any is changed, because a running statistic is changed in place.
pub(crate) fn check_model(
    own: Vec<TensorSpec>,
    tensors: &BTreeMap<String, TensorData>,
) -> Result<()> {
    saved_kinds(own, tensors).try_for_each(|own| check_fits(tensors, &own))
}

/// Puts the tensors of a model back that are there.
pub(crate) fn write_model(
    model: &mut impl Module,
    statistics: &RunningStatistics,
    tensors: &BTreeMap<String, TensorData>,
) -> Result<()> {
    walk_model(
        model,
        Some(statistics),
        StateWalk::Model,
        &mut |mut leaf| {
            let value = tensors.get(&Section::Model.name(leaf.path));
            value.map_or(Ok(()), |value| leaf.write(value.clone()))
        },
    )
}

/// Refuses a stored tensor of another shape or kind of elements than the model's.
fn check_fits(tensors: &BTreeMap<String, TensorData>, own: &TensorSpec) -> Result<()> {
    let name = &own.name;
    match tensors.get(name) {
        None => Err(Error::invalid(format!(
            "the checkpoint has no parameter `{name}`"
        ))),
        Some(data) if data.shape().to_vec() != own.shape => Err(Error::invalid(format!(
            "parameter `{name}` has shape {:?} in the checkpoint and {:?} in the model: it is \
             from another model",
            data.shape().to_vec(),
            own.shape
        ))),
        Some(data) if !is_same_kind(own.dtype, data.dtype()) => Err(Error::invalid(format!(
            "parameter `{name}` has elements of type {} in the checkpoint and {} in the model: it \
             is from another model",
            data.dtype().name(),
            own.dtype.name()
        ))),
        Some(_) => Ok(()),
    }
}
