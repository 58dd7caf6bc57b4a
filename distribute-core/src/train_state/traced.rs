//! A training state in a step that is captured: its tensors belong to a graph, its numbers stay
//! on the host.

use std::collections::HashMap;
use std::iter;
use std::sync::Arc;

use burn::module::Module;
use burn::tensor::{DType, Shape, TensorData};
use distribute_collectives::ReduceOp;

use super::placement::{Captured, CapturedSlots, Placement, Slots, has_slots, visit_named};
use super::update::Numbers;
use super::{Applied, TrainState};
use crate::gradients::with_shape;
use crate::nest::{LeafTensor, Tracking};
use crate::optim::Coefficient;
use crate::state_leaf::{StateKind, StateLeaf, StateVisitor, StateWalk};
use crate::trace::{
    CapturedTensor, Coefficients, Counters, HostState, Source, TensorSpec, Trace, Waiting,
    captured, equals,
};
use crate::{Error, Gradients, Leaf, Mirrored, ReplicaContext, Result};

/// A slot on its way to the device and back. On the host, in checkpoints and in the optimizer it is
/// flat; on the device it has the dimensions of its parameter: on a TPU a flat one has another
/// layout, and every update would move all its numbers.
struct ShapedSlot<'a> {
    slot: &'a mut dyn LeafTensor,
    shape: &'a [usize],
    arrived: &'a mut CapturedSlots,
}

impl Leaf for ShapedSlot<'_> {
    fn spec(&self) -> TensorSpec {
        TensorSpec::new(self.shape, self.slot.spec().dtype)
    }

    fn data(&self) -> Result<TensorData> {
        let data = self.slot.data()?;
        with_shape(data, Shape::from(self.shape.to_vec()))
    }

    fn put(&mut self, data: TensorData) -> Result<()> {
        let count = data.num_elements();
        self.slot.set_data(with_shape(data, Shape::new([count]))?)
    }

    fn tensor(&mut self) -> Option<&mut dyn LeafTensor> {
        Some(self)
    }
}

impl LeafTensor for ShapedSlot<'_> {
    fn clear(&mut self) {
        self.slot.clear();
    }

    fn bind(&mut self, tensor: CapturedTensor, tracking: Tracking) {
        let flat = tensor.reshaped(&[self.shape.iter().product()]);
        self.arrived.insert(flat.id(), tensor);
        self.slot.bind(flat, tracking);
    }

    /// A slot that no update has changed is the very input that it was.
    fn captured(&self) -> Option<CapturedTensor> {
        let flat = self.slot.captured()?;
        let unchanged = self.arrived.get(&flat.id());
        Some(unchanged.map_or_else(|| flat.reshaped(self.shape), Clone::clone))
    }
}

impl<M: Module + 'static> Placement<M> for Captured {
    /// Reduces captured gradients and records the update.
    ///
    /// # Errors
    /// With a dynamic loss scale for the second update of a step: what its scale and its number are
    /// depends on the first.
    fn apply(
        &mut self,
        state: &mut TrainState<M>,
        ctx: &ReplicaContext,
        mut gradients: Gradients,
    ) -> Result<Applied> {
        let peers = ctx.peers();
        peers.all_reduce_gradients(ReduceOp::Sum, &mut gradients)?;
        let mut numbers = self.numbers(state);
        if !state.loss_scale.is_dynamic() {
            return state.update(gradients, numbers, &mut self.slots, None);
        }
        if state.step != self.first_step {
            return Err(Error::not_compilable(
                "a second update of a state with a dynamic loss scale in one step",
                "call `run` once for each update, or take `LossScale::fixed(..)`",
            ));
        }
        let applies = gradients.unscale_captured(self.loss_scale().float())?;
        if let Some(clip) = state.clip {
            gradients.apply_clip(clip)?;
        }
        self.applies = applies.as_ref().and_then(captured);
        numbers.only_if = applies.and_then(|applies| equals(&applies, 1.0));
        state.update_with(numbers, &mut self.slots, |update| {
            update.apply(0..update.len(), &mut gradients)
        })
    }

    has_slots!();

    fn set_learning_rate(&mut self, learning_rate: f64) {
        self.learning_rate = Some(learning_rate);
    }

    fn captured(&self) -> Option<&Captured> {
        Some(self)
    }

    fn captured_mut(&mut self) -> Option<&mut Captured> {
        Some(self)
    }
}

impl Captured {
    pub(super) fn new(trace: Arc<Trace>, index: usize, first_step: u64, slots: Slots) -> Self {
        Self {
            trace,
            index,
            first_step,
            learning_rate: None,
            slots,
            arrived: HashMap::new(),
            loss_scale: None,
            applies: None,
        }
    }

    /// A dynamic loss scale as an input of the program, of shape `[1]`.
    pub(super) fn loss_scale(&mut self) -> CapturedTensor {
        let new = || {
            let source = Source::LossScale(self.index);
            self.trace.input(source, &TensorSpec::vector(1, DType::F32))
        };
        self.loss_scale.get_or_insert_with(new).clone()
    }

    /// The coefficients of the next update are inputs of the program, of shape `[1]`.
    fn numbers<M: Module + 'static>(&self, state: &TrainState<M>) -> Numbers {
        let spec = TensorSpec::vector(1, DType::F32);
        let input = |index| {
            let source = Source::Coefficient {
                training_state: self.index,
                update: state.step - self.first_step,
                index,
                learning_rate: self.learning_rate,
            };
            Coefficient::Tensor(self.trace.input(source, &spec).float())
        };
        let count = state.numbers().coefficients.len();
        Numbers {
            coefficients: (0..count).map(input).collect(),
            is_captured: true,
            only_if: None,
        }
    }
}

impl<M: Module + 'static> Mirrored<TrainState<M>> {
    /// Sets the learning rate of the next updates on all replicas. Tensors stay where they are,
    /// on the host or on the devices.
    pub fn set_learning_rate(&mut self, learning_rate: f64) {
        self.for_each_host_metadata(|state| state.set_learning_rate(learning_rate));
    }
}

impl<M: Module + 'static> TrainState<M> {
    /// Makes the slots of the start, which all steps of a compiled program share.
    pub(super) fn fill_slots(&mut self) -> Result<()> {
        let (optimizer, count) = (&*self.optimizer, self.optimizer.slots().len());
        let slots = &mut self.placement.slots_mut().tensors;
        if slots.iter().all(|slots| slots.len() == count) {
            return Ok(());
        }
        let mut slots = slots.iter_mut();
        visit_named(&self.model, &self.names, |tensor| {
            if let Some(slots) = slots.next().filter(|slots| slots.len() != count) {
                *slots = optimizer.new_slots(&tensor.flat());
            }
            Ok(())
        })
    }

    /// Visits the tensors of the state, slots in the dimensions of their parameters.
    pub(super) fn walk_shaped(
        &mut self,
        walk: StateWalk<'_>,
        visit: StateVisitor<'_>,
    ) -> Result<()> {
        let shapes = self.slot_names()?.shapes;
        let captured = self.placement.captured_mut();
        let mut arrived = captured.map_or_else(HashMap::new, |it| std::mem::take(&mut it.arrived));
        let per_parameter = self.optimizer.slots().len();
        let mut of_slots = shapes
            .iter()
            .flat_map(|shape| iter::repeat_n(shape, per_parameter));
        let walked = self.walk_tensors(walk, &mut |leaf| {
            let is_slot = leaf.kind == StateKind::Slot;
            let shape = is_slot.then(|| of_slots.next()).flatten();
            let Some(shape) = shape.filter(|shape| shape.len() != 1) else {
                return visit(leaf);
            };
            let StateLeaf { part, path, .. } = leaf;
            match leaf.value.tensor() {
                None => Ok(()),
                Some(slot) => visit(StateLeaf {
                    value: &mut ShapedSlot {
                        slot,
                        shape,
                        arrived: &mut arrived,
                    },
                    kind: leaf.kind,
                    owner: leaf.owner,
                    part,
                    path,
                }),
            }
        });
        if let Some(captured) = self.placement.captured_mut() {
            captured.arrived = arrived;
        }
        walked
    }
}

impl<M: Module + 'static> TrainState<M> {
    pub(super) fn host_state(&self) -> HostState {
        let (waiting, of) = self.accumulation();
        let captured = self.placement.captured();
        HostState {
            program: format!(
                "{} {} clip {:?} loss scale {:?} accumulate {waiting}/{of} times {} trains {}",
                self.optimizer.name(),
                self.optimizer.config(),
                self.clip,
                // A dynamic one is an input.
                (!self.loss_scale.is_dynamic()).then(|| self.loss_scale.scale()),
                self.accumulation_share,
                self.trained_parts(),
            ),
            coefficients: Coefficients {
                optimizer: Arc::clone(&self.optimizer),
                learning_rate: self.learning_rate,
                step: self.step,
                loss_scale: self.loss_scale.scale(),
                position: self.position(),
            },
            counters: Counters {
                updates: self.step,
                learning_rate: self.learning_rate,
                sets_learning_rate: captured.is_some_and(|it| it.learning_rate.is_some()),
                waiting: self.accumulated.as_ref().map(|(count, gradients)| Waiting {
                    micro_batches: *count,
                    has_gradient: gradients.compiled().collect(),
                }),
            },
            applies: captured.and_then(|captured| captured.applies.clone()),
        }
    }

    /// Counts as a captured step has between these numbers.
    pub(super) fn count(
        &mut self,
        before: &Counters,
        after: &Counters,
        is_skipped: bool,
    ) -> Result<()> {
        let updates = after.updates.saturating_sub(before.updates);
        if is_skipped {
            self.loss_scale.count_skipped();
        } else {
            self.step += updates;
            (0..updates).for_each(|_| self.loss_scale.count_update());
        }
        if after.sets_learning_rate {
            self.learning_rate = after.learning_rate;
        }
        let waiting = after.waiting.as_ref().map(|waiting| {
            let none = Gradients::none(&self.model)?;
            let compiled = waiting.has_gradient.iter().copied();
            Ok::<_, Error>((waiting.micro_batches, none.on_compiled_devices(compiled)))
        });
        self.accumulated = waiting.transpose()?;
        Ok(())
    }
}
