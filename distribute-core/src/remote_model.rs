//! A model's tensors on their way into a store and back.

use std::collections::BTreeMap;

use burn::module::Module;
use burn::tensor::TensorData;

use crate::checkpoint::Section;
use crate::remote::{RemoteSpec, RemoteStore, RemoteTensor, RemoteVersion};
use crate::running_statistics::RunningStatistics;
use crate::state_leaf::{StateWalk, read_model, walk_model};
use crate::{Error, Result};

/// The tensors of a model in visit order.
pub(crate) fn tensors_of<M: Module>(
    model: &M,
    statistics: &RunningStatistics,
) -> Result<Vec<RemoteTensor>> {
    let mut tensors = Vec::new();
    read_model(model, statistics, &mut |mut leaf| {
        tensors.push(RemoteTensor {
            name: Section::Model.name(leaf.path),
            value: leaf.read()?,
            is_trained: leaf.is_trained(),
        });
        Ok(())
    })?;
    Ok(tensors)
}

/// Puts values in the place of some of a model's tensors, by their index in visit order.
pub(crate) fn put_values<M: Module>(
    model: &mut M,
    statistics: &RunningStatistics,
    values: impl IntoIterator<Item = (usize, TensorData)>,
) -> Result<()> {
    let mut values: BTreeMap<usize, TensorData> = values.into_iter().collect();
    let mut index = 0..;
    walk_model(
        model,
        Some(statistics),
        StateWalk::Model,
        &mut |mut leaf| {
            let value = index.next().and_then(|index| values.remove(&index));
            value.map_or(Ok(()), |value| leaf.write(value))
        },
    )?;
    if values.is_empty() {
        Ok(())
    } else {
        Err(Error::invalid(
            "pull: the store has more tensors than the model",
        ))
    }
}

/// A model that is not trained, with the values that the store has of it.
pub(crate) fn shared<M: Module>(mut model: M, store: &dyn RemoteStore, path: &str) -> Result<M> {
    let statistics = RunningStatistics::of(&model);
    let tensors = tensors_of(&model, &statistics)?;
    let known = vec![RemoteVersion::new(); tensors.len()];
    let state = store.state(RemoteSpec {
        path,
        tensors,
        optimizer: None,
    })?;
    let changed = state.pull(&known)?.changed.into_iter();
    let changed = changed.map(|(index, _, value)| (index, value));
    put_values(&mut model, &statistics, changed)?;
    Ok(model)
}
