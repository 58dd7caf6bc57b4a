//! The leaves of a training state, and what saves and restores them.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Range;

use burn::module::Module;
use burn::tensor::{DType, Shape, Tensor, TensorData};

use super::TrainState;
use super::placement::SlotNames;
use crate::checkpoint::{Section, TensorSpec, check_slots, name_in_part};
use crate::computed::check_computed;
use crate::gradients::with_shape;
use crate::replicate::ReplicateExt;
use crate::saved_part::{check_model, write_model};
use crate::state_leaf::{
    StateKind, StateLeaf, StateOwner, StateVisitor, StateWalk, model_specs, read_model, walk_model,
};
use crate::{Error, Gradients, Leaf, LossScale, Mirrored, Replicate, Result, Strategy};

impl<M: Module + 'static> TrainState<M> {
    /// Visits all tensors and numbers of the state, to be read: the model's, what the optimizer
    /// keeps, a dynamic loss scale, and the gradients of micro-batches that wait for the rest of
    /// their update. Values are copied to the host only where they are
    /// [read](StateLeaf::read). Waits for the parameter servers, if the state lives there.
    ///
    /// ```
    /// use burn::nn::LinearConfig;
    /// use distribute_core::{DefaultStrategy, Sgd, StrategyExt, TrainState};
    ///
    /// let strategy = DefaultStrategy::new();
    /// let state = strategy.scope(|device| {
    ///     TrainState::new(LinearConfig::new(4, 2).init(device), Sgd::new(0.1))
    /// })?;
    /// let mut elements = 0;
    /// state.primary()?.read_leaves(&mut |leaf| {
    ///     elements += leaf.spec().shape.iter().product::<usize>();
    ///     Ok(())
    /// })?;
    /// assert_eq!(elements, 4 * 2 + 2);
    /// # Ok::<(), distribute_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of the visitor and of the parameter servers.
    pub fn read_leaves(&self, visit: StateVisitor<'_>) -> Result<()> {
        self.read_at(visit).map(drop)
    }

    /// [`read_leaves`](Self::read_leaves); the number of updates that they are the result of.
    pub(super) fn read_at(&self, visit: StateVisitor<'_>) -> Result<u64> {
        if let Some(store) = self.placement.store() {
            let (step, tensors) = store.save()?;
            let mut tensors = tensors.into_iter();
            tensors.try_for_each(|(name, mut data)| visit(StateLeaf::stored(&name, &mut data)))?;
            return Ok(step);
        }
        if !self.names_are_current() {
            let mut current = self.clone();
            current.follow_model()?;
            return current.read_at(visit);
        }
        read_model(&self.model, &self.statistics, visit)?;
        // Handles, not copies.
        let (mut placement, of) = (self.placement.clone(), self.slot_names()?);
        placement.walk_slots(&of, visit)?;
        placement.slots_mut().walk_resting(&of, visit)?;
        for (name, mut number) in self.loss_scale.numbers() {
            visit(StateLeaf::shared(
                StateKind::LossScale,
                "",
                name,
                &mut number,
            ))?;
        }
        self.read_accumulated(visit)?;
        Ok(self.step)
    }

    /// Visits what a replica has as its own, and the rest of the model's tensors with it.
    pub(super) fn read_own(&self, visit: StateVisitor<'_>) -> Result<()> {
        read_model(&self.model, &self.statistics, visit)?;
        self.read_accumulated(visit)
    }

    fn read_accumulated(&self, visit: StateVisitor<'_>) -> Result<()> {
        let gradients = self.accumulated.iter();
        let mut leaves = gradients.flat_map(|(_, gradients)| gradients.leaves_to_read());
        leaves.try_for_each(|(index, mut leaf)| visit(self.accumulated_leaf(index, &mut leaf)))
    }

    /// Visits the tensors of the state, with all slots, to be changed: what a step that is captured
    /// computes with.
    pub(super) fn walk_tensors(
        &mut self,
        walk: StateWalk<'_>,
        visit: StateVisitor<'_>,
    ) -> Result<()> {
        self.follow_model()?;
        self.fill_slots()?;
        walk_model(&mut self.model, None, walk, visit)?;
        let of = SlotNames::of(&*self.optimizer, &self.names, &self.model)?;
        self.placement.walk_slots(&of, visit)?;
        let mut accumulated = self.accumulated.take();
        let gradients = accumulated.iter_mut();
        let mut leaves = gradients.flat_map(|(_, gradients)| gradients.leaves());
        let walked =
            leaves.try_for_each(|(index, mut leaf)| visit(self.accumulated_leaf(index, &mut leaf)));
        drop(leaves);
        self.accumulated = accumulated;
        walked
    }

    fn accumulated_leaf<'a>(&'a self, index: usize, value: &'a mut dyn Leaf) -> StateLeaf<'a> {
        StateLeaf {
            kind: StateKind::Accumulated,
            owner: StateOwner::PerReplica,
            part: "",
            path: self.names.get(index).map_or("", String::as_str),
            value,
        }
    }

    pub(super) fn slot_names(&self) -> Result<SlotNames<'_>> {
        SlotNames::of(&*self.optimizer, &self.names, &self.model)
    }

    /// All tensors of the state by name, for a checkpoint: `model/<path>` for every parameter
    /// (also those that are not trained, and integers and bools), `optimizer/<slot>/<path>` for
    /// every slot, `optimizer_record/<leaf>/<path>` for what an optimizer of burn keeps
    /// ([`BurnOptimizer`](crate::BurnOptimizer)), and the numbers of a dynamic loss scale, which
    /// Keras calls `loss_scale/dynamic_scale` and `loss_scale/step_counter`.
    ///
    /// Waits for the device, or for the parameter servers if the state lives there.
    pub fn to_tensors(&self) -> Result<BTreeMap<String, TensorData>> {
        self.save().map(|(_, tensors)| tensors)
    }

    /// [`to_tensors`](Self::to_tensors), and the number of updates that they are the result of.
    ///
    /// # Errors
    /// If the device or the parameter servers cannot be read.
    pub fn save(&self) -> Result<(u64, BTreeMap<String, TensorData>)> {
        let mut tensors = BTreeMap::new();
        let step = self.read_at(&mut |leaf| {
            if let Some(name) = leaf.name() {
                tensors.insert(name, leaf.read()?);
            }
            Ok(())
        })?;
        Ok((step, tensors))
    }

    /// Checks that the parameters were computed: the failure of a kernel on a GPU surfaces only
    /// when its result is read. Reads one element of each parameter on a GPU, and waits for it.
    ///
    /// # Errors
    /// That of the kernel.
    pub fn check_weights(&self) -> Result<()> {
        check_computed(&self.model)
    }

    /// Puts a checkpoint's tensors back, in place.
    ///
    /// Without any slots the optimizer's start at zero, and without the numbers of a loss scale a
    /// dynamic one starts anew. Checkpoints that hold none of the model's
    /// integers and bools were written when those were not saved; they stay as they are then.
    ///
    /// # Errors
    /// If a parameter is missing or has another shape or kind, or the slots belong to another
    /// optimizer
    /// ([`CheckpointError::WrongOptimizer`](crate::checkpoint::CheckpointError::WrongOptimizer));
    /// the state is unchanged then. Tensors do not say which optimizer they are of but by the names
    /// of its slots; `fit::restore` also compares the optimizer's name.
    pub fn load_tensors(
        &mut self,
        tensors: &BTreeMap<String, TensorData>,
        step: u64,
    ) -> Result<()> {
        self.load(tensors, tensors, step)
    }

    /// Puts a checkpoint's model back, in place; the optimizer's slots and a loss scale start anew,
    /// after no updates.
    ///
    /// # Errors
    /// As [`load_tensors`](Self::load_tensors).
    pub fn load_weights(&mut self, tensors: &BTreeMap<String, TensorData>) -> Result<()> {
        self.load(tensors, &BTreeMap::new(), 0)
    }

    /// Puts tensors of a model and what an optimizer has kept for them back.
    fn load(
        &mut self,
        tensors: &BTreeMap<String, TensorData>,
        kept: &BTreeMap<String, TensorData>,
        step: u64,
    ) -> Result<()> {
        self.follow_model()?;
        let loss_scale = self.check_load(tensors, kept)?;
        if let Some(store) = self.placement.store() {
            let mut all = Cow::Borrowed(tensors);
            if kept.is_empty() {
                let is_kept = |name: &String| KEPT.iter().any(|section| section.has(name));
                all.to_mut().retain(|name, _| !is_kept(name));
            }
            read_model(&self.model, &self.statistics, &mut |leaf| {
                let name = Section::Model.name(leaf.path);
                if !tensors.contains_key(&name) {
                    all.to_mut().insert(name, leaf.read()?);
                }
                Ok(())
            })?;
            store.restore(&all, step)?;
            self.accumulated = None;
            self.refresh()?;
            self.step = step;
            return Ok(());
        }
        let device = self.model.devices().into_iter().next().unwrap_or_default();
        let of = SlotNames::of(&*self.optimizer, &self.names, &self.model)?;
        let device = device.without_autodiff();
        self.placement.load_slots(&of, kept, &device)?;
        write_model(&mut self.model, &self.statistics, tensors)?;
        self.loss_scale = loss_scale;
        self.step = step;
        self.accumulated = None;
        self.half_updated = false;
        Ok(())
    }

    /// Checks tensors of a model and what an optimizer has kept for them; the loss scale of them.
    pub(super) fn check_load(
        &self,
        tensors: &BTreeMap<String, TensorData>,
        kept: &BTreeMap<String, TensorData>,
    ) -> Result<LossScale> {
        check_model(self.model_specs()?, tensors)?;
        self.check_slots(kept)?;
        self.loss_scale.of_tensors(kept)
    }

    /// Names, shapes and types of the model's tensors as checkpoints have them. Reads no values.
    ///
    /// # Errors
    /// If the model cannot be walked.
    pub fn model_specs(&self) -> Result<Vec<TensorSpec>> {
        model_specs(&self.model, &self.statistics)
    }

    /// Checks that the checkpoint has the slots of this optimizer, or none.
    fn check_slots(&self, tensors: &BTreeMap<String, TensorData>) -> Result<()> {
        let of = self.slot_names()?;
        let own = self.optimizer.checkpoint_slots();
        let is_own = |path: &str| of.all().any(|(own, _)| own == path);
        check_slots(own, None, tensors, is_own)?;
        for (name, shape) in of.all() {
            let count: usize = shape.iter().product();
            let slots = self.optimizer.slots().iter();
            let (found, missing): (Vec<_>, Vec<_>) = slots
                .map(|slot| Section::Optimizer.name_in(slot, name))
                .partition(|slot| tensors.contains_key(slot));
            if let (Some(_), Some(missing)) = (found.first(), missing.first()) {
                return Err(Error::invalid(format!(
                    "the checkpoint has no `{missing}`, only other slots of that parameter: it \
                     is not whole"
                )));
            }
            for slot in found {
                let data = &tensors[&slot];
                if data.num_elements() != count || !data.dtype().is_float() {
                    return Err(Error::invalid(format!(
                        "`{slot}` has shape {:?} and type {} in the checkpoint, and the parameter \
                         `model/{name}` has {count} elements: it is from another model",
                        data.shape().to_vec(),
                        data.dtype().name(),
                    )));
                }
            }
        }
        Ok(())
    }
}

/// What a checkpoint has of an optimizer.
const KEPT: [Section; 3] = [
    Section::Optimizer,
    Section::OptimizerRecord,
    Section::LossScale,
];

/// What all replicas of a run had as their own, by the names in a checkpoint.
#[derive(Debug, Clone, Copy)]
pub struct OwnTensors<'a> {
    /// The tensors, among others.
    pub tensors: &'a BTreeMap<String, TensorData>,
    /// How many replicas the run had.
    pub replicas: usize,
    /// How many micro-batches waited for the rest of their update.
    pub waiting: usize,
}

impl OwnTensors<'_> {
    /// A replica's sums of the gradients; none where no loss depended on the parameter.
    fn sums<M: Module + 'static>(
        &self,
        state: &TrainState<M>,
        replica: usize,
    ) -> Result<Gradients> {
        let names = state.names.iter();
        let names = names.map(|path| Section::Accumulated.name_in(replica, path));
        let sums = names.map(|name| self.tensors.get(&name).cloned());
        Gradients::of_values(&state.model, sums.collect())
    }

    /// The sums of all replicas, added up.
    fn all_sums<M: Module + 'static>(&self, state: &TrainState<M>) -> Result<Gradients> {
        let mut sum = self.sums(state, 0)?;
        (1..self.replicas).try_for_each(|replica| sum.accumulate(self.sums(state, replica)?))?;
        Ok(sum)
    }
}

impl<M> TrainState<M> {
    /// How many micro-batches wait, and how many make an update.
    pub fn accumulation(&self) -> (usize, usize) {
        let waiting = self.accumulated.as_ref().map_or(0, |(count, _)| *count);
        (waiting, self.accumulation_steps)
    }

    /// How far the training has come, in updates that were made or skipped, and micro-batches.
    pub(super) fn position(&self) -> u64 {
        (self.attempts() << 16) | self.accumulation().0 as u64
    }
}

impl<T: Replicate> Mirrored<T> {
    /// All tensors by name, as [`TrainState::to_tensors`] has them, and the number of updates that
    /// they are the result of. What each replica has a part of is put together.
    ///
    /// The value may be a struct of several models and training states (`#[derive(Replicate)]`):
    /// the path of the field stands before the names then (`encoder/model/weight`), and the number
    /// is that of the state with the most updates. What is neither, such as a number, is not saved.
    ///
    /// # Errors
    /// If a device or the parameter servers cannot be read, [`Error::InvalidArgument`] if
    /// replicas of other workers have some of the parts, or for a type that says nothing of what it
    /// is made of.
    pub fn save(&self) -> Result<(u64, BTreeMap<String, TensorData>)> {
        let (mut tensors, mut joined) = (BTreeMap::new(), BTreeMap::<String, Joined>::new());
        let mut step = 0;
        for (replica, value) in self.values()?.iter().enumerate() {
            if replica > 0 && joined.is_empty() {
                break;
            }
            value.handles().parts(|path, part| {
                let of = path.to_string();
                part.walk_leaves(StateWalk::Saved, &mut |leaf| {
                    let Some(name) = leaf.name() else {
                        return Ok(());
                    };
                    let name = name_in_part(&of, &name);
                    if let StateOwner::Sharded(range) = &leaf.owner {
                        let (range, data) = (range.clone(), leaf.read()?);
                        let parts = joined.entry(name).or_default();
                        return parts.add(&of, &leaf, range, &data);
                    }
                    if replica == 0 {
                        tensors.insert(name, leaf.read()?);
                    }
                    Ok(())
                })
                .map_err(|error| error.at(path))?;
                step = step.max(part.host().map_or(0, |host| host.updates()));
                Ok(())
            })?;
        }
        for (name, parts) in joined {
            let whole = parts.whole(&name, &tensors)?;
            tensors.insert(name, whole);
        }
        Ok((step, tensors))
    }
}

impl<M: Module + 'static> Mirrored<TrainState<M>> {
    /// What each local replica has as its own, by the names in a checkpoint: sums of the gradients
    /// of micro-batches, and running statistics, flat. `ids` are the replica ids. All else is
    /// the same on all replicas: [`TrainState::save`] has it. Waits for the devices.
    ///
    /// # Errors
    /// If a device cannot be read.
    pub fn own_tensors(&self, ids: &[usize]) -> Result<Vec<BTreeMap<String, TensorData>>> {
        let mut ids = ids.iter();
        self.copies.each_own(|state| {
            let (mut own, id) = (BTreeMap::new(), ids.next().copied().unwrap_or(0));
            state.read_own(&mut |leaf| {
                if let Some(name) = leaf.own_name(id) {
                    let mut data = leaf.read()?;
                    if leaf.kind == StateKind::Statistic {
                        let count = data.num_elements();
                        data = with_shape(data, Shape::new([count]))?;
                    }
                    own.insert(name, data);
                }
                Ok(())
            })?;
            Ok(own)
        })
    }

    /// Puts back what the replicas had as their own, after the rest of the state was restored. With
    /// another number of replicas replica 0 has the sum of all gradients, the others zeros, and all
    /// have the mean of the running statistics.
    ///
    /// # Errors
    /// Tensors of another model; the value is to be restored anew then.
    pub fn put_own_tensors(
        &mut self,
        own: OwnTensors<'_>,
        strategy: &(impl Strategy + ?Sized),
    ) -> Result<()> {
        let is_same = own.replicas == strategy.num_replicas_in_sync();
        let ids: Vec<usize> = strategy.replicas().iter().map(|it| it.id).collect();
        if own.waiting > 0 && own.replicas > 0 {
            self.put_sums(own, &ids, is_same)?;
        }
        if is_same && own.tensors.keys().any(|name| Section::Statistics.has(name)) {
            self.copies
                .put_own(strategy.workers().is_some(), |index, paths, means| {
                    let pairs = paths.iter().zip(means);
                    let own = pairs.map(|(path, mean)| {
                        let name = Section::Statistics.name_in(ids[index], path);
                        let Some(data) = own.tensors.get(&name) else {
                            return mean.clone();
                        };
                        let place = (&mean.device(), mean.dtype());
                        Tensor::<1>::from_data(data.clone(), place)
                    });
                    own.collect()
                })?;
        }
        Ok(())
    }

    fn put_sums(&mut self, own: OwnTensors<'_>, ids: &[usize], is_same: bool) -> Result<()> {
        let sum = if is_same {
            None
        } else {
            Some(own.all_sums(self.host_metadata())?)
        };
        for (state, id) in self.host_values_mut()?.iter_mut().zip(ids) {
            let gradients = match &sum {
                None => own.sums(state, *id)?,
                Some(sum) if *id == 0 => sum.clone(),
                Some(sum) => sum.zeros(),
            };
            state.accumulated = Some((own.waiting, gradients));
        }
        Ok(())
    }
}

/// The parts that the replicas have of a tensor, one behind the other.
#[derive(Default)]
struct Joined {
    /// The name of the parameter whose elements they belong to.
    parameter: String,
    bytes: Vec<u8>,
    elements: usize,
    dtype: Option<DType>,
}

impl Joined {
    /// The next part of a tensor of the state at the path `of`.
    fn add(
        &mut self,
        of: &str,
        leaf: &StateLeaf<'_>,
        range: Range<usize>,
        part: &TensorData,
    ) -> Result<()> {
        if range.start != self.elements || range.len() != part.num_elements() {
            return Err(not_whole(&format!("{leaf:?}")));
        }
        self.parameter = name_in_part(of, &Section::Model.name(leaf.path));
        self.bytes.extend_from_slice(part.as_bytes());
        self.elements = range.end;
        self.dtype = Some(part.dtype());
        Ok(())
    }

    fn whole(self, name: &str, tensors: &BTreeMap<String, TensorData>) -> Result<TensorData> {
        let parameter = tensors.get(&self.parameter);
        let is_whole = parameter.is_some_and(|it| it.num_elements() == self.elements);
        let dtype = self.dtype.filter(|_| is_whole);
        let dtype = dtype.ok_or_else(|| not_whole(name))?;
        Ok(TensorData::from_bytes_vec(
            self.bytes,
            [self.elements],
            dtype,
        ))
    }
}

fn not_whole(name: &str) -> Error {
    Error::invalid(format!(
        "save: the local replicas do not have all parts of `{name}`, in the order of the \
         replicas: the parts of other workers are needed, too"
    ))
}
