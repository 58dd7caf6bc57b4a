//! Training states as a checkpoint, with what each replica has as its own on its way between
//! workers.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use burn::tensor::TensorData;
use distribute_core::checkpoint::{Checkpoint, Metadata, Section, TensorSpec, model_signature};
use distribute_core::optim::Optimizer;
use distribute_core::trace::HostState;
use distribute_core::{Error, NestPath, Replicate, Result, StateWalk, WorkerGroup};
use serde::de::DeserializeOwned;
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
    /// How many of them wait for the rest.
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

/// Everything of a training state, `snapshot(state.primary()?)`: parameters, slots, step and
/// optimizer. What it does not know (epoch, position, seed, the model's name) is left empty. Waits
/// for the device.
///
/// Of a struct of several models and training states (`#[derive(Replicate)]`) it is one checkpoint
/// with a part for each, by the path of the field ([`Checkpoint::part`]). What is neither a model
/// nor a training state, such as a number, is not saved.
///
/// # Errors
/// If the device cannot be read, and [`Error::InvalidArgument`] for a type that says nothing of
/// what it is made of.
pub fn snapshot<T: Replicate>(value: &T) -> Result<Checkpoint> {
    let mut parts = Vec::new();
    value.handles().walk(&NestPath::ROOT, &mut |path, part| {
        let mut tensors = BTreeMap::new();
        let walked = part.walk_leaves(StateWalk::Saved, &mut |leaf| {
            if let Some(name) = leaf.name() {
                tensors.insert(name, leaf.read()?);
            }
            Ok(())
        });
        walked.map_err(|error| at(path, error))?;
        let host = part.host();
        if !tensors.is_empty() || host.is_some() {
            let optimizer = host.as_ref().map(HostState::optimizer);
            let step = host.as_ref().map_or(0, HostState::updates);
            parts.push((path.to_string(), snapshot_of(optimizer, step, tensors)));
        }
        Ok(())
    })?;
    Ok(Checkpoint::of_parts(parts))
}

/// [`snapshot`] of these tensors, after this number of updates.
pub(super) fn snapshot_of(
    optimizer: Option<&dyn Optimizer>,
    step: u64,
    tensors: BTreeMap<String, TensorData>,
) -> Checkpoint {
    let mut metadata = Metadata::new(step);
    if let Some(optimizer) = optimizer {
        metadata.optimizer.name = optimizer.name().to_string();
        metadata.optimizer.hyper_parameters = optimizer.config();
    }
    let mut checkpoint = Checkpoint::new(metadata);
    checkpoint.tensors = tensors;
    checkpoint.metadata.model.signature = model_signature(model_specs(&checkpoint.tensors));
    checkpoint
}

/// The error of a part of a value.
pub(super) fn at(path: &NestPath<'_>, error: Error) -> Error {
    if path.is_root() {
        return error;
    }
    Error::Leaf {
        path: path.to_string(),
        source: Arc::new(error),
    }
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
        let (callback, parameter) = Section::Callback.parts_of(name)?;
        let is_best = callback.starts_with(EARLY_STOPPING) && Section::Model.has(parameter);
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
        let name = Section::Model.name(path);
        let Some(average) = tensors.get(&Section::Optimizer.name_in("average", path)) else {
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
    named.filter_map(|(name, data)| Some((Section::Model.path_of(name)?, data)))
}

fn model_specs(tensors: &BTreeMap<String, TensorData>) -> impl Iterator<Item = TensorSpec> {
    parameters(tensors).map(|(path, data)| TensorSpec::of(Section::Model.name(path), data))
}

/// The tensors of one replica, or of all, by their names in a checkpoint.
pub(super) type Own = BTreeMap<String, TensorData>;

/// What a worker says, with what its replicas have as their own.
pub(super) struct Sent<T> {
    pub(super) said: T,
    pub(super) own: Vec<Own>,
}

/// What travels before the tensors.
#[derive(Serialize, Deserialize)]
struct Head<T> {
    said: T,
    /// The names of each replica's tensors.
    names: Vec<Vec<String>>,
}

impl<T: Serialize + DeserializeOwned> Sent<T> {
    /// What all workers send, in one exchange; of a process alone what it says.
    pub(super) fn gather(self, call: &str, workers: Option<&WorkerGroup>) -> Result<Vec<Self>> {
        match workers {
            None => Ok(vec![self]),
            Some(workers) => Self::decode(workers.gather(call, &self.encode()?)?),
        }
    }

    /// What the worker this far back has sent.
    pub(super) fn shift(
        self,
        call: &str,
        workers: &WorkerGroup,
        distance: usize,
    ) -> Result<Vec<Self>> {
        Self::decode(workers.shift(call, distance, &self.encode()?)?)
    }

    fn encode(self) -> Result<Vec<Vec<TensorData>>> {
        let (mut names, mut lists) = (Vec::new(), vec![Vec::new()]);
        for own in self.own {
            let (of_replica, values) = own.into_iter().unzip();
            names.push(of_replica);
            lists.push(values);
        }
        let said = self.said;
        let head = serde_json::to_vec(&Head { said, names }).map_err(Error::internal)?;
        let length = head.len();
        lists[0].push(TensorData::new(head, [length]));
        Ok(lists)
    }

    fn decode(lists: Vec<Vec<TensorData>>) -> Result<Vec<Self>> {
        let unreadable = || {
            Error::invalid(
                "another worker sent a state that cannot be read: run the same program on all \
                 workers",
            )
        };
        let (mut lists, mut all) = (lists.into_iter(), Vec::new());
        while let Some(head) = lists.next() {
            let head = head
                .first()
                .map(|head| serde_json::from_slice(head.as_bytes()));
            let Some(Ok(Head { said, names })) = head else {
                return Err(unreadable());
            };
            let named = names.into_iter().map(|names: Vec<String>| {
                let values = lists.next().filter(|values| values.len() == names.len());
                Ok(names
                    .into_iter()
                    .zip(values.ok_or_else(unreadable)?)
                    .collect())
            });
            let own = named.collect::<Result<_>>()?;
            all.push(Self { said, own });
        }
        Ok(all)
    }
}

/// What a checkpoint has of all replicas: without the running statistics that all have alike, which
/// are their own mean.
pub(super) fn of_all(replicas: Vec<Own>) -> Own {
    let name = |(replica, path): (usize, &str)| Section::Statistics.name_in(replica, path);
    let is_alike = |path: &&str| {
        let mut all = replicas.iter().enumerate();
        let mut all = all.by_ref().map(|(id, own)| own.get(&name((id, path))));
        let first = all.next().flatten();
        all.all(|other| other == first)
    };
    let names = replicas.iter().take(1).flat_map(BTreeMap::keys);
    let paths = names.filter_map(|name| Section::Statistics.parts_of(name));
    let alike: BTreeSet<String> = paths
        .map(|(_, path)| path)
        .filter(is_alike)
        .map(str::to_string)
        .collect();
    let all = replicas.into_iter().flatten();
    let kept = all.filter(|(name, _)| {
        let statistic = Section::Statistics.parts_of(name);
        statistic.is_none_or(|(_, path)| !alike.contains(path))
    });
    kept.collect()
}
