//! A model together with its optimizer: what one training step changes.

mod apply;
mod averages;
mod leaves;
mod loss_scale;
mod placement;
mod remote;
#[cfg(test)]
mod sharded_tests;
mod shared_loss;
mod traced;
mod trained;
mod update;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use apply::{Central, Mirrored};
use burn::module::Module;
use burn::tensor::{Device, Tensor};
pub use leaves::OwnTensors;
use placement::{Captured, Placement, Slots};
pub use shared_loss::TrainStates;
use trained::names;

use crate::gradients::Clip;
use crate::optim::Optimizer;
use crate::random::{RandomStream, draws_at_random};
use crate::remote::RemoteStore;
use crate::replicate::{PartVisitor, StatePart, evaluated, take_state};
use crate::saved_part::SavedPart;
use crate::state_leaf::{StateVisitor, StateWalk, walk_model};
use crate::trace::{Counters, HostState, Trace};
use crate::{
    Error, Gradients, LeafVisitor, LossScale, Nest, NestPath, Replicate, Result, RunningStatistics,
    VariablePlacement, WorkerGroup,
};

/// A model, its optimizer's state and the step counter.
///
/// Build it in a strategy's scope and hand it to steps as `&mut Mirrored<TrainState<M>>`.
///
/// It trains the parameters that require gradients, and follows a model of which a layer is frozen
/// or unfrozen (burn: `freeze_group`, `unfreeze_group`) in
/// [`Mirrored::update`](crate::Mirrored::update), or by every replica in a step that is not
/// compiled: parameters that are trained as before keep what the optimizer has of them, new ones
/// begin with new slots, and frozen ones have theirs back when they are trained again. Checkpoints
/// hold the slots of frozen parameters, too.
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
    step: u64,
    learning_rate: f64,
    clip: Option<Clip>,
    loss_scale: LossScale,
    /// What the loss of the next gradients was multiplied by: the state's own, or what it shares
    /// with other states from this update on.
    loss_scaled_by: Option<LossScale>,
    accumulation_steps: usize,
    /// What the sum of the micro-batches is multiplied by.
    accumulation_share: f64,
    accumulated: Option<(usize, Gradients)>,
    /// An update failed half-way: slots may be ahead of the model.
    half_updated: bool,
    /// What burn's generator is seeded with in steps, and whether the user has chosen it.
    random_seed: (u64, bool),
    /// The model has layers that draw from that generator.
    draws: bool,
    /// What each replica has of its own in the model.
    statistics: RunningStatistics,
    /// Those that an update which is skipped goes back to: of the last one, or of before the run.
    /// None without a dynamic loss scale.
    statistics_before: Vec<Tensor<1>>,
    /// Where tensors and slots live; it has the slots.
    placement: Box<dyn Placement<M>>,
}

/// What [`TrainState::apply_gradients`] did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Applied {
    /// The gradients were reduced over the replicas and the model was updated.
    Updated,
    /// The gradients were added to the gradients of earlier micro-batches; nothing was
    /// communicated.
    Accumulated,
    /// The parameter servers did not want the gradients: gradients of faster workers were enough
    /// for the version of the model that they were computed at. Nothing was changed.
    Dropped,
    /// The summed gradients were not finite, and the state has a dynamic
    /// [loss scale](crate::LossScale): nothing was changed but that, which was halved. A compiled
    /// step never says so: see [`TrainState::apply_gradients`].
    Skipped,
}

/// It has no leaves: a step may end with [`TrainState::minimize`] or
/// [`TrainState::apply_gradients`].
impl Nest for Applied {
    fn walk(&mut self, _: &NestPath<'_>, _: LeafVisitor<'_>) -> Result<()> {
        Ok(())
    }

    fn skeleton(&self) -> Option<Self> {
        Some(*self)
    }
}

impl<M: Module + 'static> TrainState<M> {
    /// A state at step 0, with all slots zero.
    pub fn new(model: M, optimizer: impl Optimizer + 'static) -> Self {
        Self::with_optimizer(model, Arc::new(optimizer))
    }

    /// [`new`](Self::new) for an optimizer that is chosen at run time.
    pub fn with_optimizer(model: M, optimizer: Arc<dyn Optimizer>) -> Self {
        let names = names(&model);
        Self {
            random_seed: (0, false),
            draws: draws_at_random(&model),
            statistics: RunningStatistics::of(&model),
            statistics_before: Vec::new(),
            model,
            learning_rate: optimizer.learning_rate(),
            optimizer,
            step: 0,
            clip: None,
            loss_scale: LossScale::default(),
            loss_scaled_by: None,
            accumulation_steps: 1,
            accumulation_share: 1.0,
            accumulated: None,
            half_updated: false,
            placement: Box::new(Mirrored {
                slots: Slots::new(names.len()),
            }),
            names: names.into(),
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

    /// What the random numbers of burn's layers follow from in steps that may change this state:
    /// from this seed, the number of updates and micro-batches so far, and the replica's id. So
    /// they are the same in every run, after a resume, and however the replicas lie in processes,
    /// and different on every replica.
    ///
    /// With several replicas, steps of a model with burn's `Dropout` or `GaussianNoise` have such a
    /// stream without it, with the seed 0. Call it for another seed, for a model that draws in its
    /// own `forward`, or for a single replica, whose numbers are burn's own otherwise
    /// (`Device::seed`). The replicas of a process run forward passes that draw one at a time: see
    /// [`ReplicaContext::seed`](crate::ReplicaContext::seed). Of several states of a step the
    /// first that has a stream counts.
    pub fn random_seed(mut self, seed: u64) -> Self {
        self.random_seed = (seed, true);
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

    fn handles(&self) -> Self {
        self.clone()
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

    fn walk_leaves(&mut self, walk: StateWalk<'_>, visit: StateVisitor<'_>) -> Result<()> {
        match walk {
            StateWalk::Model => walk_model(&mut self.model, Some(&self.statistics), walk, visit),
            StateWalk::Saved => {
                self.step = self.read_at(visit)?;
                Ok(())
            }
            _ => self.walk_shaped(walk, visit),
        }
    }

    fn check_saved(&self, saved: SavedPart<'_>) -> Result<()> {
        let nothing = BTreeMap::new();
        let kept = saved.step.map_or(&nothing, |_| saved.tensors);
        drop(self.check_load(saved.tensors, kept)?);
        let of = self.slot_names()?;
        of.records(kept, &Device::default()).map(drop)
    }

    fn load(&mut self, saved: SavedPart<'_>) -> Result<()> {
        match saved.step {
            Some(step) => self.load_tensors(saved.tensors, step),
            None => self.load_weights(saved.tensors),
        }
    }

    fn host(&self) -> Option<HostState> {
        Some(self.host_state())
    }

    fn random_stream(&self) -> Option<RandomStream> {
        let (seed, is_chosen) = self.random_seed;
        let waiting = self.accumulated.as_ref().map_or(0, |(count, _)| *count);
        (is_chosen || self.draws).then(|| RandomStream {
            seed,
            step: self.step,
            micro_batch: u32::try_from(waiting).unwrap_or(u32::MAX),
            is_chosen,
        })
    }

    fn enter_capture(&mut self, trace: Arc<Trace>, index: usize) {
        let slots = std::mem::take(self.placement.slots_mut());
        self.placement = Box::new(Captured::new(trace, index, self.step, slots));
    }

    fn replay(&mut self, before: &Counters, after: &Counters, is_skipped: bool) -> Result<()> {
        self.count(before, after, is_skipped)
    }

    fn follow_structure(&mut self) -> Result<()> {
        self.follow_model()
    }

    fn place(&mut self, placement: VariablePlacement) {
        let slots = std::mem::take(self.placement.slots_mut());
        self.placement = match placement {
            VariablePlacement::Mirrored => Box::new(Mirrored { slots }),
            VariablePlacement::Central => Box::new(Central { slots }),
        };
    }

    fn evaluate(&mut self, is_captured: bool) -> Result<()> {
        self.model = evaluated(&self.model, is_captured)?;
        Ok(())
    }

    fn begin_run(&mut self) {
        self.statistics_before = if self.loss_scale.is_dynamic() {
            self.statistics.read(&self.model)
        } else {
            Vec::new()
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
