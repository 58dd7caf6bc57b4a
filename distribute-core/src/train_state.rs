//! A model together with its optimizer: what one training step changes.

mod remote;
mod traced;
mod update;
mod waiting;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{Device, Tensor, TensorData};
use distribute_collectives::ReduceOp;
use update::Update;

use crate::checkpoint::{TensorSpec, check_slots, saved_kinds};
use crate::optim::Optimizer;
use crate::remote::RemoteStore;
use crate::trace::StateVisitor;
use crate::{
    Error, Gradients, ReplicaContext, Replicate, Result, VariablePlacement, WorkerGroup,
    module_tensors,
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
/// assert_eq!(state.primary().parameter_names(), ["weight", "bias"]);
/// # Ok::<(), distribute_core::Error>(())
/// ```
#[derive(Clone)]
pub struct TrainState<M> {
    /// The model.
    pub model: M,
    optimizer: Arc<dyn Optimizer>,
    names: Arc<[String]>,
    slots: Vec<Vec<Tensor<1>>>,
    step: u64,
    learning_rate: f64,
    clip_norm: Option<f64>,
    accumulation_steps: usize,
    accumulated: Option<(usize, Gradients)>,
    /// An update failed half-way: slots may be ahead of the model.
    half_updated: bool,
    /// The path of a layer with running statistics, which burn shares between replicas.
    batch_norm: Option<String>,
    /// The capture that this state is part of.
    capture: Option<traced::Captured>,
    /// Which gradients of micro-batches are on the device, by parameter.
    on_device: Vec<bool>,
    /// Where tensors and slots live, if not here.
    remote: Option<remote::Remote>,
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
}

impl<M: Module + 'static> TrainState<M> {
    /// A state at step 0, with all slots zero.
    pub fn new(model: M, optimizer: impl Optimizer + 'static) -> Self {
        Self::with_optimizer(model, Arc::new(optimizer))
    }

    /// [`new`](Self::new) for an optimizer that is chosen at run time.
    pub fn with_optimizer(model: M, optimizer: Arc<dyn Optimizer>) -> Self {
        let mut names = Names::default();
        model.visit(&mut names);
        let slots = names.found.iter().map(|_| Vec::new()).collect();
        Self {
            model,
            learning_rate: optimizer.learning_rate(),
            optimizer,
            names: names.found.into(),
            slots,
            step: 0,
            clip_norm: None,
            accumulation_steps: 1,
            accumulated: None,
            half_updated: false,
            batch_norm: names.batch_norm,
            capture: None,
            on_device: Vec::new(),
            remote: None,
        }
    }

    /// Clips the summed gradients to this global norm before every update. A norm that is not
    /// finite makes all gradients NaN, see [`Gradients::clip_by_global_norm`].
    pub fn clip_by_global_norm(mut self, clip_norm: f64) -> Self {
        self.clip_norm = Some(clip_norm);
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
        self
    }

    /// Reduces the gradients over all replicas (SUM) and updates the model
    /// (Keras: `Optimizer.apply_gradients`).
    ///
    /// Every replica must call it equally often. Blocks until all replicas have called it.
    /// Parameters without a gradient on any replica are left alone; one with a gradient on some
    /// replicas only counts as zero on the others.
    ///
    /// Under several workers with `bytes_per_pack` the gradients travel in packs, those of the last
    /// layers first, and the parameters of one pack are updated while the next one travels. Not
    /// when gradients are clipped: their norm is known when all have arrived.
    ///
    /// With parameter servers the gradients are sent to them, and the model here changes with the
    /// next run, or with [`refresh`](Self::refresh).
    ///
    /// # Errors
    /// Another replica's failure, gradients of another model, and what the optimizer reports.
    pub fn apply_gradients(
        &mut self,
        ctx: &ReplicaContext,
        gradients: Gradients,
    ) -> Result<Applied> {
        if gradients.len() != self.names.len() {
            return Err(Error::invalid(format!(
                "apply_gradients: {} gradients for a model of {} trainable parameters; compute \
                 them with `ctx.gradient(&loss, &state.model)`",
                gradients.len(),
                self.names.len()
            )));
        }
        gradients.check()?;
        self.check_running_statistics(ctx)?;
        if !self.is_remote() {
            gradients.refuse_rows("`apply_gradients` of a state that is not on servers")?;
        }
        let Some(mut gradients) = self.collect(gradients)? else {
            return Ok(Applied::Accumulated);
        };
        if self.is_remote() {
            return self.push(gradients);
        }
        if let (Some(_), Some(trace)) = (&gradients.captured, ctx.trace()) {
            return self.apply_captured(trace, gradients);
        }
        match ctx.variable_placement() {
            VariablePlacement::Mirrored => self.reduce_and_update(ctx, gradients)?,
            VariablePlacement::Central => {
                gradients.reduce_to_host(ctx, ReduceOp::Sum)?;
                self.update_centrally(ctx, gradients)?;
            }
        }
        Ok(Applied::Updated)
    }

    fn check_running_statistics(&self, ctx: &ReplicaContext) -> Result<()> {
        refuse_batch_norm(self.batch_norm.as_deref(), ctx.num_replicas_in_sync())
    }

    /// Adds micro-batches up; gives the sum out when there are enough.
    fn collect(&mut self, gradients: Gradients) -> Result<Option<Gradients>> {
        if self.accumulation_steps == 1 {
            return Ok(Some(gradients));
        }
        let (count, sum) = match self.accumulated.take() {
            None => (1, gradients),
            Some((count, mut sum)) => {
                sum.accumulate(gradients)?;
                (count + 1, sum)
            }
        };
        if count == self.accumulation_steps {
            return Ok(Some(sum));
        }
        self.accumulated = Some((count, sum));
        Ok(None)
    }

    /// Reduces the gradients over the replicas and updates the model.
    fn reduce_and_update(&mut self, ctx: &ReplicaContext, mut gradients: Gradients) -> Result<()> {
        // A norm is known when all gradients are.
        if self.clip_norm.is_some() || !ctx.has_packs() || ctx.reduces_on_device() {
            gradients.all_reduce(ctx, ReduceOp::Sum)?;
            return self.update(gradients);
        }
        self.update_with(|update| {
            gradients.all_reduce_in_packs(ctx, |range, gradients| update.apply(range, gradients))
        })
    }

    /// Applies one update with gradients that are already reduced.
    pub(crate) fn update(&mut self, mut gradients: Gradients) -> Result<()> {
        if let Some(clip_norm) = self.clip_norm {
            gradients.clip_by_global_norm(clip_norm)?;
        }
        self.update_with(|update| update.apply(0..update.len(), &mut gradients))
    }

    fn update_with(&mut self, apply: impl FnOnce(&mut Update<'_>) -> Result<()>) -> Result<()> {
        let optimizer = Arc::clone(&self.optimizer);
        let coefficients = optimizer.coefficients(self.learning_rate, self.step + 1);
        let mut update = Update::new(&self.model, &*optimizer, &coefficients, &mut self.slots);
        if let Err(error) = apply(&mut update) {
            self.half_updated = true;
            return Err(error);
        }
        self.model = update.put_into(self.model.clone());
        self.step += 1;
        Ok(())
    }

    /// One update for all replicas: replica 0 applies it to the only copy, the others take the
    /// new tensors' handles.
    fn update_centrally(&mut self, ctx: &ReplicaContext, gradients: Gradients) -> Result<()> {
        let is_host = ctx.local_id() == 0;
        if is_host {
            self.update(gradients)?;
        }
        let mine = is_host.then(|| Central {
            model: self.model.clone(),
            slots: self.slots.clone(),
            step: self.step,
        });
        let count = ctx.num_local();
        let central = ctx.exchange("apply_gradients", 0, mine, |mut all| {
            Ok(vec![all.swap_remove(0); count])
        })?;
        let missing = || Error::invalid("apply_gradients: replica 0 made no update");
        let central = central.ok_or_else(missing)?;
        if !is_host {
            self.model = central.model.fork(ctx.device());
            self.slots = central.slots;
            self.step = central.step;
        }
        Ok(())
    }
}

/// What the host hands to the replicas under central storage: handles, not copies.
#[derive(Clone)]
struct Central<M> {
    model: M,
    slots: Vec<Vec<Tensor<1>>>,
    step: u64,
}

impl<M> TrainState<M> {
    /// The number of updates so far; of a state on parameter servers, as far as was heard last.
    ///
    /// In a step that is compiled this is the number at the time of the capture; use it for nothing
    /// but [`ReplicaContext::rng`] there.
    pub fn step(&self) -> u64 {
        if let Some(capture) = &self.capture {
            capture.trace.read_step();
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
        if let Some(remote) = &mut self.remote {
            remote.set_learning_rate(learning_rate);
        }
        if let Some(capture) = &mut self.capture {
            capture.learning_rate = Some(learning_rate);
        }
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

impl<M: Module> Replicate for TrainState<M> {
    fn replicate(&self, device: &Device) -> Self {
        let mut copy = self.clone();
        copy.model = copy.model.fork(device);
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

    /// A state that was just built: the model is all that the workers may differ in.
    fn attach_remote(&mut self, store: &dyn RemoteStore, path: &str) -> Result<()> {
        self.attach(store, path)
    }

    fn refresh_remote(&mut self) -> Result<()> {
        self.refresh()
    }

    fn take_from_chief(&mut self, workers: &WorkerGroup) -> Result<()> {
        workers.take_state(&mut self.model, self.step)
    }

    fn visit_state(&mut self, visitor: &mut dyn StateVisitor) -> Result<()> {
        self.visit_captured(visitor)
    }

    fn check_replicas(&self, replicas: usize) -> Result<()> {
        refuse_batch_norm(self.batch_norm.as_deref(), replicas)
    }

    /// Counts updates and the micro-batches since the last one.
    fn version(&self) -> Option<u64> {
        let waiting = self
            .accumulated
            .as_ref()
            .map_or(0, |(count, _)| *count as u64);
        (!self.half_updated).then_some((self.step << 16) | waiting)
    }
}

fn refuse_batch_norm(path: Option<&str>, replicas: usize) -> Result<()> {
    match path {
        Some(path) if replicas > 1 => Err(Error::invalid(format!(
            "the layer `{path}` is a batch normalization: burn 0.22.1 shares its running \
             statistics between replica threads, so the result would depend on their timing; \
             use a layer or group normalization, or one replica (to evaluate only, build the \
             model without a training state)"
        ))),
        _ => Ok(()),
    }
}

/// Refuses a model whose replicas would share running statistics.
pub(crate) fn check_running_statistics(model: &impl Module, replicas: usize) -> Result<()> {
    let mut names = Names::default();
    model.visit(&mut names);
    refuse_batch_norm(names.batch_norm.as_deref(), replicas)
}

/// Collects the paths of the trainable parameters.
#[derive(Default)]
struct Names {
    path: Vec<String>,
    found: Vec<String>,
    batch_norm: Option<String>,
}

impl ModuleVisitor for Names {
    fn enter_module(&mut self, name: &str, container: &str) {
        self.path.push(name.to_string());
        if container.contains("BatchNorm") && self.batch_norm.is_none() {
            // The container is what the entered field belongs to.
            self.batch_norm = Some(self.path[..self.path.len() - 1].join("."));
        }
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if param.val().is_require_grad() {
            self.found.push(self.path.join("."));
        }
    }
}

impl<M: Module> TrainState<M> {
    /// All tensors of the state by name, for a checkpoint: `model/<path>` for every parameter
    /// (also those that are not trained, and integers and bools) and `optimizer/<slot>/<path>` for
    /// every slot.
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
        if let Some(saved) = self.saved_remotely() {
            return saved;
        }
        Ok((self.step, self.local_tensors()?))
    }

    /// Looks whether the parameters were computed at all: a kernel that fails on a GPU is told to
    /// nobody who does not read its result. Reads one element of each that is on a GPU, and waits
    /// for it.
    ///
    /// # Errors
    /// That of the kernel.
    pub fn check_weights(&self) -> Result<()> {
        crate::gradients::check_weights(&self.model)
    }

    fn local_tensors(&self) -> Result<BTreeMap<String, TensorData>> {
        if self.batch_norm.is_some() {
            // Making the validation copy brings the running statistics up to date.
            drop(self.model.valid());
        }
        let mut tensors = self.model_tensors()?;
        for (name, slots) in self.names.iter().zip(&self.slots) {
            for (slot, tensor) in self.optimizer.slots().iter().zip(slots) {
                let data = tensor.clone().try_into_data().map_err(Error::step)?;
                tensors.insert(format!("optimizer/{slot}/{name}"), data);
            }
        }
        Ok(tensors)
    }

    /// The model's tensors, of every kind, by their names in checkpoints.
    fn model_tensors(&self) -> Result<BTreeMap<String, TensorData>> {
        let tensors = module_tensors::take(&self.model)?.into_iter();
        let named = tensors.map(|tensor| (format!("model/{}", tensor.path), tensor.value));
        Ok(named.collect())
    }

    /// Puts a checkpoint's tensors back, in place.
    ///
    /// Without any slots the optimizer's start at zero. Checkpoints that hold none of the model's
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
        if self.is_remote() {
            let mut all = tensors.clone();
            let paths = model.into_iter();
            all.extend(paths.map(|(path, value)| (format!("model/{path}"), value)));
            return self.load_remotely(&all, step);
        }
        let values = model.into_iter().map(|(_, value)| Some(value));
        let model = module_tensors::put(self.model.clone(), values)?;
        let device = self.model.devices().into_iter().next();
        let device = device.map(|device| device.without_autodiff());
        let mut slots = Vec::with_capacity(self.names.len());
        for name in self.names.iter() {
            let stored = self.optimizer.slots().iter().map_while(|slot| {
                let data = tensors.get(&format!("optimizer/{slot}/{name}"))?.clone();
                let dtype = data.dtype();
                Some(Tensor::<1>::from_data(data, (device.as_ref()?, dtype)))
            });
            slots.push(stored.collect());
        }
        self.model = model;
        self.slots = slots;
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
        let own = module_tensors::take(&self.model)?;
        let named = |path: &str| format!("model/{path}");
        let specs = own
            .iter()
            .map(|tensor| TensorSpec::of(named(&tensor.path), &tensor.value));
        let saved: BTreeSet<String> = saved_kinds(specs, tensors).map(|spec| spec.name).collect();
        let values = own.into_iter().map(|tensor| {
            let name = named(&tensor.path);
            match saved.contains(&name) {
                true => Ok((tensor.path, fitting(tensors, &name, &tensor.value)?.clone())),
                false => Ok((tensor.path, tensor.value)),
            }
        });
        values.collect()
    }

    /// Whether the checkpoint's slots are those of this optimizer, or there are none.
    fn check_slots(&self, tensors: &BTreeMap<String, TensorData>) -> Result<()> {
        let of_parameter = |path: &str| self.names.iter().any(|name| name == path);
        let own = self.optimizer.checkpoint_slots();
        check_slots(own, None, tensors, of_parameter)?;
        let mut sizes = Sizes::default();
        self.model.visit(&mut sizes);
        for (name, count) in self.names.iter().zip(sizes.0) {
            let slots = self.optimizer.slots().iter();
            let slots: Vec<String> = slots
                .map(|slot| format!("optimizer/{slot}/{name}"))
                .collect();
            let found: Vec<_> = slots.iter().filter_map(|slot| tensors.get(slot)).collect();
            if let (false, Some(missing)) = (
                found.is_empty(),
                slots.iter().find(|slot| !tensors.contains_key(*slot)),
            ) {
                return Err(Error::invalid(format!(
                    "the checkpoint has no `{missing}`, only other slots of that parameter: it \
                     is not whole"
                )));
            }
            for (slot, data) in slots.iter().zip(found) {
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

/// The numbers of elements of the trainable parameters.
#[derive(Default)]
struct Sizes(Vec<usize>);

impl ModuleVisitor for Sizes {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let value = param.val();
        if value.is_require_grad() {
            self.0.push(value.shape().num_elements());
        }
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
