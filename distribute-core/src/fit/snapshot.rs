//! A training state as a checkpoint, and back.

use std::collections::BTreeMap;
use std::sync::Arc;

use burn::module::Module;
use burn::tensor::TensorData;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::FitError;
use super::meter::Sums;
use crate::checkpoint::{Checkpoint, Metadata, TensorSpec, model_signature};
use crate::{Error, Mirrored, Result, TrainState};

/// Where [`Metadata::extra`] keeps what only [`Fit`](super::Fit) needs.
const EXTRA_KEY: &str = "fit";

/// What the loop needs beyond the training state.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct RunMetadata {
    pub(super) learning_rate: f64,
    pub(super) global_batch_size: Option<usize>,
    /// Replicas in sync of the run; 0 in checkpoints that do not say.
    #[serde(default)]
    pub(super) replicas: usize,
    pub(super) sums: Sums,
    pub(super) callbacks: BTreeMap<String, Value>,
}

impl RunMetadata {
    pub(super) fn store(&self, checkpoint: &mut Checkpoint) -> Result<()> {
        let value = serde_json::to_value(self).map_err(Error::step)?;
        checkpoint
            .metadata
            .extra
            .insert(EXTRA_KEY.to_string(), value);
        Ok(())
    }

    pub(super) fn load(checkpoint: &Checkpoint) -> Result<Self> {
        let missing = || refuse("it was not written during `fit`; use `restore` for its weights");
        let value = checkpoint
            .metadata
            .extra
            .get(EXTRA_KEY)
            .ok_or_else(missing)?;
        serde_json::from_value(value.clone())
            .map_err(|error| refuse(format!("its `extra.{EXTRA_KEY}` is not readable ({error})")))
    }
}

/// What a run that continues from a checkpoint wants to know before it starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct RunInfo {
    /// The examples of a global batch, if it had a fixed size. A run that continues must have the
    /// same, with however many replicas.
    pub global_batch_size: Option<usize>,
    /// The replicas, over all workers; `None` if the checkpoint does not say.
    pub replicas: Option<usize>,
}

impl RunInfo {
    /// Of the run that wrote the checkpoint.
    ///
    /// # Errors
    /// [`FitError::Resume`] if it was not written during [`Fit`](super::Fit).
    pub fn of(checkpoint: &Checkpoint) -> Result<Self> {
        let run = RunMetadata::load(checkpoint)?;
        Ok(Self {
            global_batch_size: run.global_batch_size,
            replicas: (run.replicas > 0).then_some(run.replicas),
        })
    }
}

pub(super) fn refuse(what: impl Into<String>) -> Error {
    FitError::Resume { what: what.into() }.into()
}

/// Everything of a training state: parameters, slots, step, optimizer and learning rate. What it
/// does not know (epoch, position, seed, the model's name) is left empty. Waits for the device.
///
/// # Errors
/// If the device cannot be read.
pub fn snapshot<M: Module + 'static>(state: &TrainState<M>) -> Result<Checkpoint> {
    let (step, tensors) = state.save()?;
    let mut metadata = Metadata::new(step);
    metadata.optimizer.name = state.optimizer().name().to_string();
    metadata.optimizer.hyper_parameters = state.optimizer().config();
    let mut checkpoint = Checkpoint::new(metadata);
    checkpoint.tensors = tensors;
    checkpoint.metadata.model.signature = model_signature(model_specs(&checkpoint.tensors));
    Ok(checkpoint)
}

/// Puts a checkpoint's parameters, slots and step into a training state, on all replicas. Slots of
/// another optimizer are left out and start at zero. To continue an interrupted run use
/// [`Fit::resume_from`](super::Fit::resume_from).
///
/// # Errors
/// [`Error::Checkpoint`] with
/// [`CheckpointError::WrongModel`](crate::checkpoint::CheckpointError::WrongModel) if the
/// parameters are not those of this model; the state is unchanged then.
pub fn restore<M: Module + 'static>(
    state: &mut Mirrored<TrainState<M>>,
    checkpoint: &Checkpoint,
) -> Result<()> {
    let tensors = state.try_primary()?.to_tensors()?;
    let expected = model_specs(&tensors);
    checkpoint
        .expect("model/", expected)
        .map_err(|error| Error::Checkpoint(Arc::new(error)))?;
    check_slots(&checkpoint.tensors)?;
    let step = checkpoint.metadata.step;
    state.update(|state| state.load_tensors(&checkpoint.tensors, step))
}

fn model_specs(tensors: &BTreeMap<String, TensorData>) -> Vec<TensorSpec> {
    let model = tensors
        .iter()
        .filter(|(name, _)| name.starts_with("model/"));
    model
        .map(|(name, data)| TensorSpec::of(name, data))
        .collect()
}

/// A slot has one element per element of its parameter; anything else would fail in the middle of
/// a step.
fn check_slots(tensors: &BTreeMap<String, TensorData>) -> Result<()> {
    for (name, slot) in tensors {
        let parts = name
            .strip_prefix("optimizer/")
            .and_then(|rest| rest.split_once('/'));
        let Some((_, path)) = parts else { continue };
        let parameter = tensors.get(&format!("model/{path}"));
        // Tables on parameter servers are beside the model.
        let parameter = parameter.or_else(|| tensors.get(path));
        let fits = |data: &TensorData| {
            data.num_elements() == slot.num_elements() && data.dtype() == slot.dtype()
        };
        if !parameter.is_some_and(fits) {
            return Err(refuse(format!(
                "`{name}` does not belong to the parameter `model/{path}`"
            )));
        }
    }
    Ok(())
}
