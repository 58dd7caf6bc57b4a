//! A model together with its optimizer: what one training step changes.

mod apply;
mod averages;
mod loss_scale;
mod placement;
mod records;
mod remote;
mod traced;
mod update;
mod waiting;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::sync::Arc;

use apply::{Central, Mirrored};
use burn::module::Module;
use burn::tensor::{Device, Tensor, TensorData};
use placement::Placement;

use crate::checkpoint::{TensorSpec, check_slots, saved_kinds};
use crate::gradients::Clip;
use crate::optim::{BurnRecord, Optimizer};
use crate::parameters;
use crate::remote::{RemoteStore, tensors_of};
use crate::replicate::{PartVisitor, StatePart, take_state};
use crate::trace::HostState;
use crate::{
    Error, Gradients, LeafVisitor, LossScale, NestPath, Replicate, Result, RunningStatistics,
    VariablePlacement, WorkerGroup, module_tensors,
};

/// A model, its optimizer's state and the step counter.
///
/// Build it in a strategy's scope and hand it to steps as `&mut Mirrored<TrainState<M>>`.
///
/// ```
/// use burn::nn::{Linear, LinearConfig};
/// use distribute_core::{Adam, DefaultStrategy, StrategyExt, TrainState};
///
/// let strategy = DefaultStrategy::new();
/// let state = strategy.scope(|device| {
///     TrainState::new(LinearConfig::new(4, 2).init(device), Adam::new(1e-3))
/// })?;
/// assert_eq!(state.primary()?.parameter_names(), ["weight", "bias"]);
/// # Ok::<(), distribute_core::Error>(())
/// ```
#[derive(Clone)]
#[must_use]
pub struct TrainState<M> {
    /// The model.
    pub model: M,
    optimizer: Arc<dyn Optimizer>,
    names: Arc<[String]>,
    slots: Vec<Vec<Tensor<1>>>,
    /// What an optimizer of burn keeps beside slots.
    records: Vec<Option<BurnRecord>>,
    step: u64,
    learning_rate: f64,
    clip: Option<Clip>,
    loss_scale: LossScale,
    /// The loss of the next gradients was multiplied by it.
    is_loss_scaled: bool,
    accumulation_steps: usize,
    /// What the sum of the micro-batches is multiplied by.
    accumulation_share: f64,
    accumulated: Option<(usize, Gradients)>,
    /// An update failed half-way: slots may be ahead of the model.
    half_updated: bool,
    /// What each replica has of its own in the model.
    statistics: RunningStatistics,
    /// Those that an update which is skipped goes back to: of the last one, or of before the run.
    /// None without a dynamic loss scale.
    statistics_before: Vec<Tensor<1>>,
    /// Where tensors and slots live.
    placement: Box<dyn Placement<M>>,
}

/// What [`TrainState::apply_gradients`] did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Applied {
    /// The gradients were reduced over the replicas and the model was updated.
    Updated,
    /// The gradients were added to those of earlier micro-batches; nothing was communicated.
    Accumulated,
    /// The parameter servers did not want the gradients: those of faster workers were enough for
    /// the version of the model that they were computed at. Nothing was changed.
    Dropped,
    /// The summed gradients were not finite, and the state has a dynamic
    /// [loss scale](crate::LossScale): nothing was changed but that, which was halved. A compiled
    /// step never says so: see [`TrainState::apply_gradients`].
    Skipped,
}

impl<M: Module + 'static> TrainState<M> {
    /// A state at step 0, with all slots zero.
    pub fn new(model: M, optimizer: impl Optimizer + 'static) -> Self {
        Self::with_optimizer(model, Arc::new(optimizer))
    }

    /// [`new`](Self::new) for an optimizer that is chosen at run time.
    pub fn with_optimizer(model: M, optimizer: Arc<dyn Optimizer>) -> Self {
        let names = names(&model);
        let slots = names.iter().map(|_| Vec::new()).collect();
        Self {
            statistics: RunningStatistics::of(&model),
            statistics_before: Vec::new(),
            model,
            learning_rate: optimizer.learning_rate(),
            optimizer,
            records: vec![None; names.len()],
            names: names.into(),
            slots,
            step: 0,
            clip: None,
            loss_scale: LossScale::default(),
            is_loss_scaled: false,
            accumulation_steps: 1,
            accumulation_share: 1.0,
            accumulated: None,
            half_updated: false,
            placement: Box::new(Mirrored),
        }
    }

    /// Clips the summed gradients to this global norm before every update:
    /// [`clip`](Self::clip) with [`Clip::GlobalNorm`].
    pub fn clip_by_global_norm(self, clip_norm: f64) -> Self {
        self.clip(Clip::GlobalNorm(clip_norm))
    }

    /// Clips the gradients before every update, after they were summed over the replicas and
    /// micro-batches, as Keras 2 does (Keras 3 clips each replica's). A norm that is not finite
    /// makes the gradients NaN, see [`Gradients::clip_by_global_norm`].
    pub fn clip(mut self, clip: Clip) -> Self {
        self.clip = Some(clip);
        self
    }

    /// Updates the model on every `micro_batches`-th call of
    /// [`apply_gradients`](Self::apply_gradients) only, with the SUM of their gradients; the
    /// replicas communicate on that call alone.
    ///
    /// Because gradients are summed, the loss' denominator (`global_batch_size`) must count the
    /// examples of all replicas and all micro-batches of one update.
    pub fn accumulate(mut self, micro_batches: usize) -> Self {
        self.accumulation_steps = micro_batches.max(1);
        self.accumulation_share = 1.0;
        self
    }

    /// As [`accumulate`](Self::accumulate) with the MEAN of the gradients of the micro-batches
    /// (Keras: `gradient_accumulation_steps`), for losses whose denominator counts the examples of
    /// one micro-batch.
    pub fn accumulate_mean(self, micro_batches: usize) -> Self {
        let mut state = self.accumulate(micro_batches);
        state.accumulation_share = 1.0 / state.accumulation_steps as f64;
        state
    }
}

impl<M> TrainState<M> {
    /// The number of updates so far; of a state on parameter servers, as far as was heard last.
    ///
    /// In a step that is compiled this is the number at the time of the capture; use it for nothing
    /// but [`ReplicaContext::rng`](crate::ReplicaContext::rng) there.
    pub fn step(&self) -> u64 {
        if let Some(captured) = self.placement.captured() {
            captured.trace.read_step();
        }
        self.step
    }

    /// The learning rate of the next update.
    pub fn learning_rate(&self) -> f64 {
        self.learning_rate
    }

    /// Sets the learning rate of the next updates. On a mirrored state use
    /// [`Mirrored::set_learning_rate`](crate::Mirrored::set_learning_rate). Of a state on parameter
    /// servers it is the learning rate of all workers; servers that cannot be reached are told by
    /// the next call that needs them, whose error it is if they are gone.
    pub fn set_learning_rate(&mut self, learning_rate: f64) {
        self.learning_rate = learning_rate;
        self.placement.set_learning_rate(learning_rate);
    }

    /// How gradients are clipped before an update, if they are.
    pub fn clipping(&self) -> Option<Clip> {
        self.clip
    }

    /// Whether tensors and slots live elsewhere, and this is a copy.
    pub fn is_remote(&self) -> bool {
        self.placement.store().is_some()
    }

    /// Whether gradients of some micro-batches wait for the rest of their update.
    pub fn is_accumulating(&self) -> bool {
        self.accumulated.is_some()
    }

    /// The optimizer.
    pub fn optimizer(&self) -> &dyn Optimizer {
        &*self.optimizer
    }

    /// The paths of the trainable parameters in visit order, for example `conv1.weight`.
    pub fn parameter_names(&self) -> &[String] {
        &self.names
    }
}

impl<M> fmt::Debug for TrainState<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TrainState")
            .field("optimizer", &self.optimizer)
            .field("step", &self.step)
            .field("parameters", &self.names)
            .finish_non_exhaustive()
    }
}

impl<M: Module + 'static> Replicate for TrainState<M> {
    fn replicate(&self, device: &Device) -> Self {
        let mut copy = self.clone();
        copy.model = self.statistics.own_copy(&self.model).fork(device);
        copy.statistics_before.clear();
        copy
    }

    fn sync_from(&mut self, primary: &Self, device: &Device) {
        let mine = self.accumulated.take();
        *self = primary.replicate(device);
        let primary = self.accumulated.take();
        self.accumulated = match (mine, primary) {
            (Some((mine, sum)), Some((count, _))) if mine == count => Some((count, sum)),
            // A failed run left this replica behind: its part of the sum is lost.
            (_, Some((count, other))) => Some((count, other.without_values())),
            (_, None) => None,
        };
    }

    fn walk(&mut self, path: &NestPath<'_>, visit: PartVisitor<'_>) -> Result<()> {
        visit(path, self)
    }
}

impl<M: Module + 'static> StatePart for TrainState<M> {
    /// A state that was just built: the model is all that the workers may differ in.
    fn attach_remote(&mut self, store: &dyn RemoteStore, path: &str) -> Result<()> {
        self.attach(store, path)
    }

    fn refresh_remote(&mut self) -> Result<()> {
        self.refresh()
    }

    fn take_from_chief(&mut self, workers: &WorkerGroup) -> Result<()> {
        take_state(workers, &mut self.model, self.step)
    }

    fn walk_leaves(
        &mut self,
        path: &NestPath<'_>,
        capture: Option<&Device>,
        visit: LeafVisitor<'_>,
    ) -> Result<()> {
        self.fill_slots()?;
        self.model.walk_leaves(path, capture, visit)?;
        self.walk_slots(path, visit)?;
        self.walk_accumulated(path, visit)
    }

    fn host(&mut self) -> Option<&mut dyn HostState> {
        Some(self)
    }

    fn place(&mut self, placement: VariablePlacement) {
        self.placement = match placement {
            VariablePlacement::Mirrored => Box::new(Mirrored),
            VariablePlacement::Central => Box::new(Central),
        };
    }

    fn running_statistics(&self) -> Vec<(String, Tensor<1>)> {
        self.statistics.named(&self.model)
    }

    fn set_running_statistics(&mut self, values: &mut VecDeque<Tensor<1>>) -> Result<()> {
        self.statistics.take(&self.model, values)
    }

    fn begin_run(&mut self) {
        self.statistics_before = match self.loss_scale.is_dynamic() {
            true => self.statistics.read(&self.model),
            false => Vec::new(),
        };
    }

    fn check_capture(&self) -> Result<()> {
        if self.optimizer.burn().is_some() {
            return Err(Error::not_compilable(
                "an optimizer of burn, which counts the updates itself",
                "use an optimizer of `distribute_core::optim`",
            ));
        }
        self.statistics.check_capture()
    }

    /// Counts updates, also skipped ones, and the micro-batches since the last one.
    fn version(&self) -> Option<u64> {
        (!self.half_updated).then(|| self.position())
    }
}

/// The paths of the trainable parameters.
fn names(model: &impl Module) -> Vec<String> {
    let mut names = Vec::new();
    let outcome = parameters::visit_trained(model, |_, path, _| {
        names.push(path.to_string());
        Ok(())
    });
    debug_assert!(outcome.is_ok(), "nothing here fails");
    names
}

impl<M: Module + 'static> TrainState<M> {
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
        match self.placement.store() {
            Some(store) => store.save(),
            None => Ok((self.step, self.local_tensors()?)),
        }
    }

    /// Looks whether the parameters were computed at all: a kernel that fails on a GPU is told to
    /// nobody who does not read its result. Reads one element of each that is on a GPU, and waits
    /// for it.
    ///
    /// # Errors
    /// That of the kernel.
    pub fn check_weights(&self) -> Result<()> {
        module_tensors::check_computed(&self.model)
    }

    fn local_tensors(&self) -> Result<BTreeMap<String, TensorData>> {
        self.statistics.settle(&self.model);
        let tensors = tensors_of(&self.model)?.into_iter();
        let mut tensors: BTreeMap<_, _> = tensors.map(|own| (own.name, own.value)).collect();
        for (name, slots) in self.names.iter().zip(&self.slots) {
            for (slot, tensor) in self.optimizer.slots().iter().zip(slots) {
                let data = tensor.clone().try_into_data().map_err(Error::internal)?;
                tensors.insert(format!("optimizer/{slot}/{name}"), data);
            }
        }
        tensors.extend(self.records_to_tensors()?);
        tensors.extend(self.loss_scale.to_tensors());
        Ok(tensors)
    }

    /// Puts a checkpoint's tensors back, in place.
    ///
    /// Without any slots the optimizer's start at zero, and without the numbers of a loss scale a
    /// dynamic one starts anew. Checkpoints that hold none of the model's
    /// integers and bools were written when those were not saved; they stay as they are then.
    ///
    /// # Errors
    /// If a parameter is missing or has another shape or kind, or the slots are those of another
    /// optimizer
    /// ([`CheckpointError::WrongOptimizer`](crate::checkpoint::CheckpointError::WrongOptimizer));
    /// the state is unchanged then. Tensors do not say which optimizer they are of but by the names
    /// of its slots; `fit::restore` also compares the optimizer's name.
    pub fn load_tensors(
        &mut self,
        tensors: &BTreeMap<String, TensorData>,
        step: u64,
    ) -> Result<()> {
        let model = self.fitting_tensors(tensors)?;
        self.check_slots(tensors)?;
        let loss_scale = self.loss_scale.of_tensors(tensors)?;
        if let Some(store) = self.placement.store() {
            let mut all = tensors.clone();
            all.extend(model);
            store.restore(&all, step)?;
            self.accumulated = None;
            self.refresh()?;
            self.step = step;
            return Ok(());
        }
        let records = self.records_of_tensors(tensors)?;
        let values = model.into_iter().map(|(_, value)| Some(value));
        self.statistics.settle(&self.model);
        let model = module_tensors::put(self.model.clone(), values)?;
        let device = self.model.devices().into_iter().next();
        let device = device.map(|device| device.without_autodiff());
        let slots = self.names.iter().map(|name| {
            let stored = self.optimizer.slots().iter().map_while(|slot| {
                let data = tensors.get(&format!("optimizer/{slot}/{name}"))?.clone();
                let dtype = data.dtype();
                Some(Tensor::<1>::from_data(data, (device.as_ref()?, dtype)))
            });
            stored.collect()
        });
        self.slots = slots.collect();
        self.model = model;
        self.records = records;
        self.loss_scale = loss_scale;
        self.step = step;
        self.accumulated = None;
        self.half_updated = false;
        Ok(())
    }

    /// The values of the model's tensors, by path and in visit order: the checkpoint's, or the own
    /// ones of kinds that it does not know. Looked at before any is changed, because a running
    /// statistic is changed in place.
    fn fitting_tensors(
        &self,
        tensors: &BTreeMap<String, TensorData>,
    ) -> Result<Vec<(String, TensorData)>> {
        let own = tensors_of(&self.model)?;
        let specs = own
            .iter()
            .map(|tensor| TensorSpec::of(tensor.name.clone(), &tensor.value));
        let saved: BTreeSet<String> = saved_kinds(specs, tensors).map(|spec| spec.name).collect();
        let values = own.into_iter().map(|tensor| {
            let value = match saved.contains(&tensor.name) {
                true => fitting(tensors, &tensor.name, &tensor.value)?.clone(),
                false => tensor.value,
            };
            Ok((tensor.name, value))
        });
        values.collect()
    }

    /// Whether the checkpoint's slots are those of this optimizer, or there are none.
    fn check_slots(&self, tensors: &BTreeMap<String, TensorData>) -> Result<()> {
        let of_parameter = |path: &str| self.names.iter().any(|name| name == path);
        let own = self.optimizer.checkpoint_slots();
        check_slots(own, None, tensors, of_parameter)?;
        parameters::visit_trained(&self.model, |_, name, tensor| {
            let count: usize = tensor.spec().shape.iter().product();
            let slots = self.optimizer.slots().iter();
            let (found, missing): (Vec<_>, Vec<_>) = slots
                .map(|slot| format!("optimizer/{slot}/{name}"))
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
            Ok(())
        })
    }
}

/// The stored tensor of this name, if it has the shape and the kind of elements of `like`.
fn fitting<'a>(
    tensors: &'a BTreeMap<String, TensorData>,
    name: &str,
    like: &TensorData,
) -> Result<&'a TensorData> {
    match tensors.get(name) {
        None => Err(Error::invalid(format!(
            "the checkpoint has no parameter `{name}`"
        ))),
        Some(data) if data.shape() != like.shape() => Err(Error::invalid(format!(
            "parameter `{name}` has shape {:?} in the checkpoint and {:?} in the model: it is \
             from another model",
            data.shape().to_vec(),
            like.shape().to_vec()
        ))),
        Some(data) if !module_tensors::is_same_kind(like.dtype(), data.dtype()) => {
            Err(Error::invalid(format!(
                "parameter `{name}` has elements of type {} in the checkpoint and {} in the \
                 model: it is from another model",
                data.dtype().name(),
                like.dtype().name()
            )))
        }
        Some(data) => Ok(data),
    }
}
