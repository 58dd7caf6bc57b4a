//! A checkpoint back into training states.

use std::borrow::Cow;
use std::collections::BTreeSet;

use burn::tensor::TensorData;
use distribute_core::checkpoint::{
    Checkpoint, CheckpointError, OptimizerInfo, Section, TensorSpec, check_slot_names,
    name_in_part, saved_kinds,
};
use distribute_core::trace::HostState;
use distribute_core::{Mirrored, NestPath, Replicate, Result, SavedPart, StatePart, StateWalk};

use super::snapshot::{at, refuse};

/// Puts a checkpoint's parameters, slots and step into a training state, on all replicas. To
/// continue an interrupted run use [`Fit::resume_from`](super::Fit::resume_from).
///
/// Of a struct of several models and training states (`#[derive(Replicate)]`) every part is
/// restored, each from what the checkpoint has under the path of its field. Numbers and other
/// fields that are neither stay as they are.
///
/// # Errors
/// [`Error::Checkpoint`] with [`WrongModel`] if the parameters belong to another model, with
/// [`WrongOptimizer`] if the checkpoint is of another optimizer (use [`restore_weights`]), and with
/// [`WrongParts`] if it has other fields; of a struct the error says in which field. The state is
/// unchanged then.
///
/// [`Error::Checkpoint`]: distribute_core::Error::Checkpoint
/// [`WrongModel`]: distribute_core::checkpoint::CheckpointError::WrongModel
/// [`WrongOptimizer`]: distribute_core::checkpoint::CheckpointError::WrongOptimizer
/// [`WrongParts`]: distribute_core::checkpoint::CheckpointError::WrongParts
pub fn restore<T: Replicate>(state: &mut Mirrored<T>, checkpoint: &Checkpoint) -> Result<()> {
    put(state, checkpoint, true)
}

/// As [`restore`], without the optimizer's slots and loss scale: for evaluating a checkpoint, or
/// for going on with another optimizer. Both begin anew, with slots of zero and no updates (Keras:
/// `load_weights` into a model that was compiled anew), because Adam's correction of its first
/// averages counts the updates.
///
/// # Errors
/// As [`restore`] if the parameters or the fields belong to another model.
pub fn restore_weights<T: Replicate>(
    state: &mut Mirrored<T>,
    checkpoint: &Checkpoint,
) -> Result<()> {
    put(state, checkpoint, false)
}

/// All is compared, without reading a value, before anything is changed.
fn put<T: Replicate>(
    state: &mut Mirrored<T>,
    checkpoint: &Checkpoint,
    with_optimizers: bool,
) -> Result<()> {
    let mut own = BTreeSet::new();
    let mut outcome = Ok(());
    let mut value = state.host_metadata().handles();
    value.walk(&NestPath::ROOT, &mut |path, part| {
        let saved = Saved::of(checkpoint, path.to_string());
        if let (true, checked) = saved.check(part, with_optimizers) {
            own.insert(saved.path);
            let first = std::mem::replace(&mut outcome, Ok(()));
            outcome = first.and(checked.map_err(|error| at(path, error)));
        }
        Ok(())
    })?;
    check_parts(checkpoint, own)?;
    outcome?;
    state.update(|value| {
        value.walk(&NestPath::ROOT, &mut |path, part| {
            let saved = Saved::of(checkpoint, path.to_string());
            let Some(whole) = saved.alone() else {
                return Ok(());
            };
            let loaded = part.load(saved_part(&whole, with_optimizers));
            loaded.map_err(|error| at(path, error))
        })
    })
}

/// Refuses a checkpoint of other parts than the value has.
fn check_parts(checkpoint: &Checkpoint, own: BTreeSet<String>) -> Result<()> {
    let parts = &checkpoint.metadata.parts;
    let mut found: BTreeSet<String> = parts.keys().cloned().collect();
    if found.is_empty() {
        found.insert(String::new());
    }
    if own == found {
        return Ok(());
    }
    let only =
        |of: &BTreeSet<String>, not: &BTreeSet<String>| of.difference(not).cloned().collect();
    let error = CheckpointError::WrongParts {
        missing: only(&own, &found),
        other: only(&found, &own),
    };
    Err(error.into())
}

/// A checkpoint of one part, as the part takes it.
fn saved_part(whole: &Checkpoint, with_optimizer: bool) -> SavedPart<'_> {
    SavedPart {
        tensors: &whole.tensors,
        step: with_optimizer.then_some(whole.metadata.step),
    }
}

/// What a checkpoint has of one part.
struct Saved<'a> {
    checkpoint: &'a Checkpoint,
    path: String,
}

impl<'a> Saved<'a> {
    fn of(checkpoint: &'a Checkpoint, path: String) -> Self {
        Self { checkpoint, path }
    }

    /// The part as a checkpoint of its own; `None` if there is nothing of it.
    fn alone(&self) -> Option<Cow<'a, Checkpoint>> {
        if self.path.is_empty() {
            return Some(Cow::Borrowed(self.checkpoint));
        }
        self.checkpoint.part(&self.path).map(Cow::Owned)
    }

    fn optimizer(&self) -> Option<&'a OptimizerInfo> {
        if self.path.is_empty() {
            return Some(&self.checkpoint.metadata.optimizer);
        }
        let info = self.checkpoint.metadata.parts.get(&self.path);
        info.map(|info| &info.optimizer)
    }

    /// The names of the tensors of a section of the part, without the prefix of the section.
    fn names(&self, section: Section) -> impl Iterator<Item = (&'a str, &'a TensorData)> {
        let prefix = name_in_part(&self.path, section.prefix());
        let tensors = self.checkpoint.tensors.range(prefix.clone()..);
        tensors.map_while(move |(name, data)| Some((name.strip_prefix(prefix.as_str())?, data)))
    }

    /// Whether a checkpoint has something of the part, and whether it is of this model and
    /// optimizer.
    fn check(&self, part: &mut dyn StatePart, with_optimizer: bool) -> (bool, Result<()>) {
        let (mut own, mut trained) = (Vec::new(), BTreeSet::new());
        let walked = part.walk_leaves(StateWalk::Model, &mut |mut leaf| {
            let spec = leaf.spec();
            own.extend(leaf.name().map(|name| TensorSpec {
                name: name_in_part(&self.path, &name),
                shape: spec.shape,
                dtype: spec.dtype,
            }));
            if leaf.is_trained() {
                trained.insert(leaf.path.to_string());
            }
            Ok(())
        });
        let host = part.host();
        let is_saved = !own.is_empty() || host.is_some();
        let checked = walked.and_then(|()| {
            let expected = saved_kinds(own, &self.checkpoint.tensors);
            let prefix = name_in_part(&self.path, Section::Model.prefix());
            self.checkpoint.expect(&prefix, expected)?;
            if let Some(host) = host.filter(|_| with_optimizer) {
                self.check_slots(&host, &trained)?;
            }
            // What only `load` would find comes too late if another part was changed before.
            match self.alone().filter(|_| !self.path.is_empty()) {
                Some(whole) => part.check_saved(saved_part(&whole, with_optimizer)),
                None => Ok(()),
            }
        });
        (is_saved, checked)
    }

    fn check_slots(&self, host: &HostState, trained: &BTreeSet<String>) -> Result<()> {
        let slots = || {
            let names = self.names(Section::Optimizer);
            names.filter_map(|(name, data)| Some((name.split_once('/')?, data)))
        };
        let found = slots().filter(|((_, path), _)| trained.contains(*path));
        let saved_by = self.optimizer().map(|optimizer| optimizer.name.as_str());
        let own = host.optimizer().checkpoint_slots();
        check_slot_names(own, saved_by, found.map(|((slot, _), _)| slot))?;
        slots().try_for_each(|((slot, path), data)| self.check_size(slot, path, data))
    }

    /// A slot has one element per element of its parameter; anything else would fail in the middle
    /// of a step.
    fn check_size(&self, slot: &str, path: &str, data: &TensorData) -> Result<()> {
        let tensors = &self.checkpoint.tensors;
        let name = |name: &str| name_in_part(&self.path, name);
        let parameter = tensors.get(&name(&Section::Model.name(path)));
        // Tables on parameter servers are beside the model.
        let parameter = parameter.or_else(|| tensors.get(&name(path)));
        let fits = |of: &TensorData| {
            of.num_elements() == data.num_elements() && of.dtype() == data.dtype()
        };
        if parameter.is_some_and(fits) {
            return Ok(());
        }
        Err(refuse(format!(
            "`{}` does not belong to the parameter `{}`",
            name(&Section::Optimizer.name_in(slot, path)),
            name(&Section::Model.name(path))
        )))
    }
}
