//! Where the variables of a training state are, and how an update gets there: [`Placement`], which
//! has what the optimizer keeps for the parameters: [`Slots`].

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::Arc;

use burn::module::Module;
use burn::optim::OptimizerRecord;
use burn::tensor::{Device, Tensor, TensorData};

use super::{Applied, TrainState};
use crate::burn_internals::capture::TensorId;
use crate::checkpoint::{CheckpointError, Section};
use crate::optim::{BurnRecord, Of, Optimizer, RecordLeaves};
use crate::parameters::{self, FloatTensor, Parameter};
use crate::remote::RemoteState;
use crate::state_leaf::{StateKind, StateLeaf, StateOwner, StateVisitor};
use crate::trace::{CapturedTensor, Trace};
use crate::{Error, Gradients, ReplicaContext, Result};

/// Where the variables of a training state are, and how an update gets there: in every replica
/// ([`Mirrored`](super::apply::Mirrored)), in one ([`Central`](super::apply::Central)), in a step
/// that is captured ([`Captured`]), or in a store ([`Remote`](super::remote::Remote)). What the
/// optimizer keeps for the parameters is the placement's.
pub(super) trait Placement<M>: Send + Sync {
    /// Reduces the gradients of all micro-batches over the replicas, and updates.
    fn apply(
        &mut self,
        state: &mut TrainState<M>,
        ctx: &ReplicaContext,
        gradients: Gradients,
    ) -> Result<Applied>;

    /// The same for a copy of the state.
    fn boxed(&self) -> Box<dyn Placement<M>>;

    /// What the optimizer keeps here for the parameters.
    fn slots(&self) -> &Slots;

    /// [`slots`](Self::slots), to be changed.
    fn slots_mut(&mut self) -> &mut Slots;

    /// Visits what the optimizer keeps here.
    fn walk_slots(&mut self, of: &SlotNames<'_>, visit: StateVisitor<'_>) -> Result<()> {
        let replicated = |_: &[usize]| StateOwner::Replicated;
        self.slots_mut().walk(of, replicated, visit)
    }

    /// Takes over what a checkpoint has of the optimizer; without anything it begins anew.
    fn load_slots(
        &mut self,
        of: &SlotNames<'_>,
        tensors: &BTreeMap<String, TensorData>,
        device: &Device,
    ) -> Result<()> {
        self.slots_mut().load(of, tensors, device)
    }

    /// The store that has tensors and slots, if they are elsewhere.
    fn store(&self) -> Option<&dyn RemoteState> {
        None
    }

    /// Takes over the newest values.
    fn refresh(&mut self, state: &mut TrainState<M>) -> Result<()> {
        let _ = state;
        Ok(())
    }

    /// The state's learning rate was set.
    fn set_learning_rate(&mut self, learning_rate: f64) {
        let _ = learning_rate;
    }

    /// Tells a store a learning rate that was set here.
    fn send_learning_rate(&mut self) -> Result<()> {
        Ok(())
    }

    /// What the capture of a step knows of the state.
    fn captured(&self) -> Option<&Captured> {
        None
    }

    /// [`captured`](Self::captured), to be changed.
    fn captured_mut(&mut self) -> Option<&mut Captured> {
        None
    }
}

/// The methods of a placement that is cloned, with the slots in `self.slots`.
macro_rules! has_slots {
    () => {
        fn boxed(&self) -> Box<dyn Placement<M>> {
            Box::new(self.clone())
        }

        fn slots(&self) -> &Slots {
            &self.slots
        }

        fn slots_mut(&mut self) -> &mut Slots {
            &mut self.slots
        }
    };
}

pub(super) use has_slots;

impl<M> Clone for Box<dyn Placement<M>> {
    fn clone(&self) -> Self {
        self.boxed()
    }
}

/// Slots as they came in, in the dimensions of their parameters, by their flat views.
pub(super) type CapturedSlots = HashMap<TensorId, CapturedTensor>;

/// What a state knows while it is captured.
#[derive(Clone)]
pub(super) struct Captured {
    pub(super) trace: Arc<Trace>,
    /// Of the training states of the arguments, in order.
    pub(super) index: usize,
    /// The number of updates before the step.
    pub(super) first_step: u64,
    /// The learning rate that the step itself has set.
    pub(super) learning_rate: Option<f64>,
    pub(super) slots: Slots,
    pub(super) arrived: CapturedSlots,
    /// A dynamic loss scale, once the step has used it.
    pub(super) loss_scale: Option<CapturedTensor>,
    /// Whether the program makes the update of the step, where it may leave it out.
    pub(super) applies: Option<CapturedTensor>,
}

/// What an optimizer keeps for each parameter, in visit order: the slots, flat, and the record of
/// an optimizer of burn. Without slots it begins anew.
#[derive(Clone, Default)]
pub(super) struct Slots {
    pub(super) tensors: Vec<Vec<Tensor<1>>>,
    pub(super) records: Vec<Option<BurnRecord>>,
    /// Of the parameters that are frozen now and were trained before, by their paths.
    resting: BTreeMap<String, Resting>,
}

/// What an optimizer has kept for a parameter that is frozen now.
#[derive(Clone)]
struct Resting {
    tensors: Vec<Tensor<1>>,
    record: Option<BurnRecord>,
}

/// Whose slots they are: an optimizer, the paths and shapes of the trained parameters, and those
/// of the others.
pub(super) struct SlotNames<'a> {
    pub(super) optimizer: &'a dyn Optimizer,
    pub(super) names: &'a [String],
    pub(super) shapes: Vec<Vec<usize>>,
    /// Parameters that are frozen, and running statistics.
    pub(super) frozen: BTreeMap<String, Vec<usize>>,
}

impl Slots {
    /// Empty slots for this number of parameters.
    pub(super) fn new(parameters: usize) -> Self {
        Self {
            tensors: vec![Vec::new(); parameters],
            records: vec![None; parameters],
            resting: BTreeMap::new(),
        }
    }

    /// Follows a model of which other parameters are trained now than `before`: those that are
    /// frozen keep what they have until they are trained again, and new ones begin anew.
    pub(super) fn follow(&mut self, before: &[String], now: &[String]) {
        let mut known = std::mem::take(&mut self.resting);
        let slots = std::mem::take(&mut self.tensors).into_iter();
        let kept = slots.zip(std::mem::take(&mut self.records));
        for (path, (tensors, record)) in before.iter().zip(kept) {
            if !tensors.is_empty() || record.is_some() {
                known.insert(path.clone(), Resting { tensors, record });
            }
        }
        for path in now {
            let found = known.remove(path);
            let (tensors, record) =
                found.map_or_else(Default::default, |it| (it.tensors, it.record));
            self.tensors.push(tensors);
            self.records.push(record);
        }
        self.resting = known;
    }

    /// What a parameter has, taken out.
    pub(super) fn take(&mut self, index: usize) -> Vec<Tensor<1>> {
        std::mem::take(&mut self.tensors[index])
    }

    /// Takes over what another one has of some parameters.
    pub(super) fn set(&mut self, range: Range<usize>, from: Self) {
        self.tensors.splice(range.clone(), from.tensors);
        self.records.splice(range, from.records);
    }

    /// Handles of what some parameters have.
    pub(super) fn part(&self, range: Range<usize>) -> Self {
        Self {
            tensors: self.tensors[range.clone()].to_vec(),
            records: self.records[range].to_vec(),
            resting: BTreeMap::new(),
        }
    }

    /// Visits the slots that there are, whose owner follows from the parameter's shape, and the
    /// parts of the records, which can be read only.
    pub(super) fn walk(
        &mut self,
        of: &SlotNames<'_>,
        owner: impl Fn(&[usize]) -> StateOwner,
        visit: StateVisitor<'_>,
    ) -> Result<()> {
        let parameters = of.names.iter().zip(&of.shapes);
        for ((path, shape), slots) in parameters.zip(&mut self.tensors) {
            for (slot, value) in of.optimizer.slots().iter().zip(slots) {
                let leaf = StateLeaf::shared(StateKind::Slot, slot, path, value);
                let owner = owner(shape);
                visit(StateLeaf { owner, ..leaf })?;
            }
        }
        for ((path, record), shape) in of.names.iter().zip(&self.records).zip(&of.shapes) {
            of.walk_record(Of { path, shape }, record.as_ref(), visit)?;
        }
        Ok(())
    }

    /// Visits what rests of frozen parameters, to be read: checkpoints have it, and steps do not.
    pub(super) fn walk_resting(
        &mut self,
        of: &SlotNames<'_>,
        visit: StateVisitor<'_>,
    ) -> Result<()> {
        for (path, resting) in &mut self.resting {
            for (slot, value) in of.optimizer.slots().iter().zip(&mut resting.tensors) {
                visit(StateLeaf::shared(StateKind::Slot, slot, path, value))?;
            }
            if let Some(shape) = of.frozen.get(path) {
                of.walk_record(Of { path, shape }, resting.record.as_ref(), visit)?;
            }
        }
        Ok(())
    }

    /// Takes over the slots and records of a checkpoint, one after the other.
    ///
    /// # Errors
    /// If the record of a parameter is not whole, or there is one and the optimizer is none of
    /// burn's; nothing is changed then.
    pub(super) fn load(
        &mut self,
        of: &SlotNames<'_>,
        tensors: &BTreeMap<String, TensorData>,
        device: &Device,
    ) -> Result<()> {
        let mut records = of.records(tensors, device)?;
        let of_names = of.names.iter().map(|path| records.remove(path));
        self.records = of_names.collect();
        for (path, slots) in of.names.iter().zip(&mut self.tensors) {
            *slots = of.slots(path, tensors, device);
        }
        let frozen = of.frozen.keys().filter_map(|path| {
            let tensors = of.slots(path, tensors, device);
            let record = records.remove(path);
            let is_kept = !tensors.is_empty() || record.is_some();
            is_kept.then(|| (path.clone(), Resting { tensors, record }))
        });
        self.resting = frozen.collect();
        Ok(())
    }
}

impl<M: Module + 'static> TrainState<M> {
    /// Goes on where a loop of burn has stopped: with what its optimizer has kept, as
    /// `ModuleOptimizer::to_record` or `OptimizerRecord::load` give it. The model must have that
    /// loop's weights, and the optimizer be a [`BurnOptimizer`](crate::BurnOptimizer) of the same
    /// configuration.
    ///
    /// ```
    /// use burn::nn::{Linear, LinearConfig};
    /// use burn::optim::{AdamConfig, GradientsParams};
    /// use distribute_core::BurnOptimizer;
    /// use distribute_core::prelude::*;
    ///
    /// let device = Device::flex().autodiff();
    /// let adam = AdamConfig::new();
    /// let mut model: Linear = LinearConfig::new(2, 1).init(&device);
    /// let mut optimizer = adam.init();
    /// let loss = model.forward(Tensor::<2>::ones([1, 2], &device)).sum();
    /// let gradients = GradientsParams::from_grads(loss.backward(), &model);
    /// model = optimizer.step(1e-2, model, gradients);
    ///
    /// let strategy = MirroredStrategy::builder().replicas(2).build()?;
    /// let state = strategy.try_scope(|_| {
    ///     let state = TrainState::new(model, BurnOptimizer::new(adam, 1e-2));
    ///     state.with_burn_record(optimizer.to_record())
    /// })?;
    /// # Ok::<(), distribute_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the optimizer is none of burn's, or the record is of another
    /// optimizer or model.
    pub fn with_burn_record(mut self, record: OptimizerRecord) -> Result<Self> {
        self.follow_model()?;
        let of = SlotNames::of(&*self.optimizer, &self.names, &self.model)?;
        let Some(burn) = of.optimizer.burn() else {
            return Err(Error::invalid(format!(
                "a record of burn is for an optimizer of burn, and the state has {}: use a \
                 `BurnOptimizer` of the same configuration",
                of.optimizer.name()
            )));
        };
        let records = burn.of_record(of.names, &of.shapes, record)?;
        self.placement.slots_mut().records = records;
        Ok(self)
    }
}

impl<'a> SlotNames<'a> {
    /// The names in a model.
    pub(super) fn of(
        optimizer: &'a dyn Optimizer,
        names: &'a [String],
        model: &impl Module,
    ) -> Result<Self> {
        let mut shapes = Vec::with_capacity(names.len());
        visit_named(model, names, |tensor| {
            shapes.push(tensor.spec().shape);
            Ok(())
        })?;
        let mut frozen = BTreeMap::new();
        parameters::visit(model, |parameter: Parameter<'_>| {
            if parameter.tensor.trained().is_none()
                && let Some(tensor) = parameter.tensor.float()
            {
                frozen.insert(parameter.path.to_string(), tensor.spec().shape);
            }
            Ok(())
        })?;
        Ok(Self {
            optimizer,
            names,
            shapes,
            frozen,
        })
    }

    /// All parameters that an optimizer may have kept something for: paths and shapes.
    pub(super) fn all(&self) -> impl Iterator<Item = (&str, &[usize])> {
        let trained = self.names.iter().zip(&self.shapes);
        let all = trained.chain(&self.frozen);
        all.map(|(path, shape)| (path.as_str(), shape.as_slice()))
    }

    /// The slots of a parameter that a checkpoint has.
    fn slots(
        &self,
        path: &str,
        tensors: &BTreeMap<String, TensorData>,
        device: &Device,
    ) -> Vec<Tensor<1>> {
        let slots = self.optimizer.slots().iter().map_while(|slot| {
            let data = tensors.get(&Section::Optimizer.name_in(slot, path))?;
            Some(Tensor::from_data(data.clone(), (device, data.dtype())))
        });
        slots.collect()
    }

    /// Visits the parts of what an optimizer of burn has kept for a parameter.
    fn walk_record(
        &self,
        of: Of<'_>,
        record: Option<&BurnRecord>,
        visit: StateVisitor<'_>,
    ) -> Result<()> {
        let (Some(burn), Some(record)) = (self.optimizer.burn(), record) else {
            return Ok(());
        };
        for (part, mut data) in burn.save(of, record)? {
            visit(StateLeaf::shared(
                StateKind::Record,
                &part,
                of.path,
                &mut data,
            ))?;
        }
        Ok(())
    }

    /// What a checkpoint has of an optimizer of burn, by the paths of the parameters.
    ///
    /// # Errors
    /// If one is not whole, or there is one and the optimizer is none of burn's.
    pub(super) fn records(
        &self,
        tensors: &BTreeMap<String, TensorData>,
        device: &Device,
    ) -> Result<BTreeMap<String, BurnRecord>> {
        let mut leaves: BTreeMap<&str, RecordLeaves> = BTreeMap::new();
        for (name, data) in tensors {
            if let Some((leaf, path)) = Section::OptimizerRecord.parts_of(name) {
                let of_path = leaves.entry(path).or_default();
                of_path.insert(leaf.to_string(), data.clone());
            }
        }
        let Some(burn) = self.optimizer.burn() else {
            let mut all = self.all();
            let Some((name, _)) = all.find(|(path, _)| leaves.contains_key(path)) else {
                return Ok(BTreeMap::new());
            };
            let error = CheckpointError::WrongOptimizer {
                saved_by: "one of burn's optimizers".to_string(),
                found: Section::OptimizerRecord.name_in("..", name),
                optimizer: self.optimizer.name().to_string(),
                expected: self.optimizer.slots().join(", "),
            };
            return Err(error.into());
        };
        let known = self.all().filter_map(|(path, shape)| {
            let leaves = leaves.remove(path)?;
            Some((Of { path, shape }, leaves))
        });
        let each = known.map(|(of, leaves)| {
            let record = burn.load(of, leaves, device)?.ok_or_else(|| {
                Error::invalid(format!(
                    "what the checkpoint has of the optimizer {} for the parameter `{}` is not \
                     whole, or of another optimizer",
                    self.optimizer.name(),
                    of.path
                ))
            })?;
            Ok((of.path.to_string(), record))
        });
        each.collect()
    }
}

/// Visits the parameters that are trained, in visit order. They have these names, whose slots are
/// in that order: see [`TrainState::follow_model`].
///
/// # Errors
/// [`Error::InvalidArgument`] for a model of which others are trained, with the first parameter.
pub(super) fn visit_named(
    model: &impl Module,
    names: &[String],
    mut each: impl FnMut(&mut dyn FloatTensor) -> Result<()>,
) -> Result<()> {
    let mut known = names.iter();
    let other = |name: &str, now: &str, before: &str| {
        Err(Error::invalid(format!(
            "the parameter `{name}` is {now}, and was {before} in the training state; freeze and \
             unfreeze layers before `TrainState::new` or in `Mirrored::update`"
        )))
    };
    let frozen = |name: &str| other(name, "frozen", "trained");
    parameters::visit_trained(model, |_, path, tensor| match known.next() {
        Some(name) if name == path => each(tensor),
        Some(name) if names.iter().any(|name| name == path) => frozen(name),
        _ => other(path, "trained", "frozen"),
    })?;
    known.next().map_or(Ok(()), |name| frozen(name))
}
