//! A training state as a checkpoint, and back.

use std::collections::{BTreeMap, BTreeSet};

use burn::module::Module;
use burn::tensor::TensorData;
use distribute_core::checkpoint::{
    Checkpoint, Metadata, TensorSpec, check_slots, model_signature, saved_kinds,
};
use distribute_core::{Error, Mirrored, Result, TrainState};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::FitError;
use super::exact::{self, Exact};
use super::objective::Sums;

/// Where [`Metadata::extra`] keeps what only [`Fit`](super::Fit) needs.
const EXTRA_KEY: &str = "fit";

/// What the parameters that it keeps stand behind.
pub(super) const EARLY_STOPPING: &str = "early_stopping";

/// What the loop needs beyond the training state.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct RunMetadata {
    #[serde(with = "exact")]
    pub(super) learning_rate: f64,
    /// That of the last update; `None` in checkpoints that do not say.
    #[serde(default)]
    pub(super) last_learning_rate: Option<Exact>,
    /// How many micro-batches make an update; 0 in checkpoints that do not say.
    #[serde(default)]
    pub(super) micro_batches: usize,
    /// How many of them wait for the rest, see [`waiting`](super::waiting).
    #[serde(default)]
    pub(super) waiting: usize,
    pub(super) global_batch_size: Option<usize>,
    /// Replicas in sync of the run; 0 in checkpoints that do not say.
    #[serde(default)]
    pub(super) replicas: usize,
    /// These, and how many it had each time that it was continued; empty in checkpoints that do
    /// not say.
    #[serde(default)]
    pub(super) all_replicas: BTreeSet<usize>,
    pub(super) sums: Sums,
    pub(super) callbacks: BTreeMap<String, Value>,
}

impl RunMetadata {
    pub(super) fn store(&self, checkpoint: &mut Checkpoint) -> Result<()> {
        let value = serde_json::to_value(self).map_err(Error::internal)?;
        let extra = &mut checkpoint.metadata.extra;
        extra.insert(EXTRA_KEY.to_string(), value);
        Ok(())
    }

    pub(super) fn load(checkpoint: &Checkpoint) -> Result<Self> {
        let missing = || refuse("it was not written during `fit`; use `restore` for its weights");
        let value = checkpoint.metadata.extra.get(EXTRA_KEY);
        Self::deserialize(value.ok_or_else(missing)?)
            .map_err(|error| refuse(format!("its `extra.{EXTRA_KEY}` is not readable ({error})")))
    }

    /// How many replicas the run has had, as far as the checkpoint says.
    pub(super) fn all_replicas(&self) -> BTreeSet<usize> {
        let last = (self.replicas > 0).then_some(self.replicas);
        self.all_replicas.iter().copied().chain(last).collect()
    }
}

/// What a run that continues from a checkpoint wants to know before it starts.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RunInfo {
    /// The examples of a global batch, if it had a fixed size. A run that continues must have the
    /// same, with however many replicas.
    pub global_batch_size: Option<usize>,
    /// The replicas, over all workers; `None` if the checkpoint does not say.
    pub replicas: Option<usize>,
    /// With how many replicas the run began, and with how many it has gone on since: a batch size
    /// for each replica that gave the global one with any of them is the run's own.
    pub all_replicas: BTreeSet<usize>,
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
            all_replicas: run.all_replicas(),
        })
    }
}

/// The state of a callback in a checkpoint is not what the callback has written.
pub(super) fn unreadable_state(error: serde_json::Error) -> Error {
    refuse(format!("the state of a callback is not readable ({error})"))
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

/// Puts a checkpoint's parameters, slots and step into a training state, on all replicas. To
/// continue an interrupted run use [`Fit::resume_from`](super::Fit::resume_from).
///
/// # Errors
/// [`Error::Checkpoint`] with [`WrongModel`] if the parameters are not those of this model, and
/// with [`WrongOptimizer`] if the checkpoint is of another optimizer (use [`restore_weights`]); the
/// state is unchanged then.
///
/// [`WrongModel`]: distribute_core::checkpoint::CheckpointError::WrongModel
/// [`WrongOptimizer`]: distribute_core::checkpoint::CheckpointError::WrongOptimizer
pub fn restore<M: Module + 'static>(
    state: &mut Mirrored<TrainState<M>>,
    checkpoint: &Checkpoint,
) -> Result<()> {
    expect_model(state, checkpoint)?;
    let saved_by = Some(checkpoint.metadata.optimizer.name.as_str());
    let names = state.host_metadata().parameter_names();
    let is_own = |path: &str| names.iter().any(|name| name == path);
    let own = state.host_metadata().optimizer().checkpoint_slots();
    check_slots(own, saved_by, &checkpoint.tensors, is_own)?;
    check_sizes_of_slots(&checkpoint.tensors)?;
    let step = checkpoint.metadata.step;
    state.update(|state| state.load_tensors(&checkpoint.tensors, step))
}

/// As [`restore`], without the optimizer's slots and loss scale: for evaluating a checkpoint, or
/// for going on with another optimizer. Both begin anew, with slots of zero and no updates (Keras:
/// `load_weights` into a model that was compiled anew), because Adam's correction of its first
/// averages counts the updates.
///
/// # Errors
/// As [`restore`] if the parameters are not those of this model.
pub fn restore_weights<M: Module + 'static>(
    state: &mut Mirrored<TrainState<M>>,
    checkpoint: &Checkpoint,
) -> Result<()> {
    expect_model(state, checkpoint)?;
    let kept = checkpoint.tensors.iter();
    let of_optimizer = |name: &str| {
        ["optimizer/", "optimizer_record/", "loss_scale/"]
            .iter()
            .any(|prefix| name.starts_with(prefix))
    };
    let kept = kept.filter(|(name, _)| !of_optimizer(name));
    let tensors = kept.map(|(name, data)| (name.clone(), data.clone()));
    let tensors: BTreeMap<String, TensorData> = tensors.collect();
    state.update(|state| state.load_tensors(&tensors, 0))
}

/// The checkpoint with the moving averages of the weights in their place, if its optimizer kept
/// any: for evaluating it.
///
/// # Errors
/// If an average is not of its weight.
pub fn averaged_weights(mut checkpoint: Checkpoint) -> Result<Checkpoint> {
    let averages = averaged(&checkpoint.tensors)?;
    checkpoint.tensors.extend(averages);
    Ok(checkpoint)
}

/// The checkpoint with the parameters of the best epoch in their place, if an
/// [`EarlyStopping`](super::callbacks::EarlyStopping) of its run restores them: for evaluating what
/// training ends with.
pub fn best_weights(mut checkpoint: Checkpoint) -> Checkpoint {
    let best = checkpoint.tensors.iter().filter_map(|(name, data)| {
        let (callback, parameter) = name.strip_prefix("callback/")?.split_once('/')?;
        let is_best = callback.starts_with(EARLY_STOPPING) && parameter.starts_with("model/");
        is_best.then(|| (parameter.to_string(), data.clone()))
    });
    let best: Vec<_> = best.collect();
    checkpoint.tensors.extend(best);
    checkpoint
}

/// The model's tensors, each with its moving average in its place if there is one.
pub(super) fn averaged(
    tensors: &BTreeMap<String, TensorData>,
) -> Result<BTreeMap<String, TensorData>> {
    let averaged = parameters(tensors).map(|(path, value)| {
        let name = format!("model/{path}");
        let Some(average) = tensors.get(&format!("optimizer/average/{path}")) else {
            return Ok((name, value.clone()));
        };
        let bytes = average.clone().into_bytes();
        let shape = value.shape().clone();
        let average = TensorData::try_from_bytes(bytes, shape, average.dtype());
        let wrong = |error| refuse(format!("the average of `{path}` is not of it: {error}"));
        Ok((name, average.map_err(wrong)?))
    });
    averaged.collect()
}

/// The parameters among the tensors of a training state, by their paths.
pub(super) fn parameters(
    tensors: &BTreeMap<String, TensorData>,
) -> impl Iterator<Item = (&str, &TensorData)> {
    let named = tensors.iter();
    named.filter_map(|(name, data)| Some((name.strip_prefix("model/")?, data)))
}

fn expect_model<M: Module + 'static>(
    state: &Mirrored<TrainState<M>>,
    checkpoint: &Checkpoint,
) -> Result<()> {
    let tensors = state.primary()?.to_tensors()?;
    let expected = saved_kinds(model_specs(&tensors), &checkpoint.tensors);
    Ok(checkpoint.expect("model/", expected)?)
}

fn model_specs(tensors: &BTreeMap<String, TensorData>) -> impl Iterator<Item = TensorSpec> {
    parameters(tensors).map(|(path, data)| TensorSpec::of(format!("model/{path}"), data))
}

/// A slot has one element per element of its parameter; anything else would fail in the middle of
/// a step.
fn check_sizes_of_slots(tensors: &BTreeMap<String, TensorData>) -> Result<()> {
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
