//! A training state in a step that is captured: its tensors are those of a graph, its numbers stay
//! on the host.

use std::collections::HashMap;
use std::sync::Arc;

use burn::module::Module;
use burn::tensor::{DType, Shape, Tensor, TensorData};
use distribute_collectives::ReduceOp;

use super::placement::{Captured, CapturedSlots, Placement};
use super::update::visit_named;
use super::{Applied, TrainState};
use crate::gradients::with_shape;
use crate::optim::Coefficient;
use crate::trace::{
    CapturedTensor, Coefficients, Fingerprint, HostState, Source, TensorSpec, Trace, captured,
    equals,
};
use crate::{Error, Gradients, Leaf, LeafVisitor, Mirrored, NestPath, ReplicaContext, Result};

/// A slot on its way to the device and back. On the host, in checkpoints and in the optimizer it is
/// flat; on the device it has the dimensions of its parameter: on a TPU a flat one has another
/// layout, and every update would move all its numbers.
struct ShapedSlot<'a> {
    slot: &'a mut Tensor<1>,
    shape: &'a [usize],
    arrived: Option<&'a mut CapturedSlots>,
}

impl Leaf for ShapedSlot<'_> {
    fn spec(&self) -> TensorSpec {
        TensorSpec::new(self.shape, self.slot.dtype())
    }

    fn data(&self) -> Result<TensorData> {
        let data = self.slot.data()?;
        with_shape(data, Shape::from(self.shape.to_vec()))
    }

    fn put(&mut self, data: TensorData) -> Result<()> {
        let count = data.num_elements();
        self.slot.set_data(with_shape(data, Shape::new([count]))?)
    }

    fn bind(&mut self, tensor: CapturedTensor, _: (bool, bool)) {
        let flat = tensor.reshaped(&[self.shape.iter().product()]);
        if let Some(arrived) = &mut self.arrived {
            arrived.insert(flat.id(), tensor);
        }
        *self.slot = flat.float();
    }

    /// A slot that no update has changed is the very input that it was.
    fn captured(&self) -> Option<CapturedTensor> {
        let flat = self.slot.captured()?;
        let arrived = self.arrived.as_ref();
        let unchanged = arrived.and_then(|arrived| arrived.get(&flat.id()));
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
        let coefficients = self.coefficients(state);
        if !state.loss_scale.is_dynamic() {
            return state.update(gradients, coefficients, None);
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
        let is_made = applies.and_then(|applies| equals(&applies, 1.0));
        state.update_with(coefficients, is_made, |update| {
            update.apply(0..update.len(), &mut gradients)
        })
    }

    fn boxed(&self) -> Box<dyn Placement<M>> {
        Box::new(self.clone())
    }

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
    /// A dynamic loss scale as an input of the program, of shape `[1]`.
    pub(super) fn loss_scale(&mut self) -> CapturedTensor {
        let new = || {
            let source = Source::LossScale(self.index);
            self.trace.input(source, &TensorSpec::vector(1, DType::F32))
        };
        self.loss_scale.get_or_insert_with(new).clone()
    }

    /// Those of the next update, as inputs of the program of shape `[1]`.
    fn coefficients<M: Module + 'static>(&self, state: &TrainState<M>) -> Vec<Coefficient> {
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
        (0..state.coefficients().len()).map(input).collect()
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
        if self.slots.iter().all(|slots| slots.len() == count) {
            return Ok(());
        }
        let mut slots = self.slots.iter_mut();
        visit_named(&self.model, &self.names, |tensor| {
            if let Some(slots) = slots.next().filter(|slots| slots.len() != count) {
                *slots = optimizer.new_slots(&tensor.flat());
            }
            Ok(())
        })
    }

    pub(super) fn walk_slots(&mut self, path: &NestPath<'_>, visit: LeafVisitor<'_>) -> Result<()> {
        let shapes = self.shapes()?;
        let captured = self.placement.captured_mut();
        let mut arrived = captured.map(|captured| &mut captured.slots);
        let slots = self.slots.iter_mut().zip(shapes);
        for (parameter, (slots, shape)) in self.names.iter().zip(slots) {
            for (name, slot) in self.optimizer.slots().iter().zip(slots) {
                let name = format!("{parameter} ({name})");
                let path = path.field(&name);
                if shape.len() == 1 {
                    visit(&path, slot)?;
                    continue;
                }
                let mut slot = ShapedSlot {
                    slot,
                    shape: &shape,
                    arrived: arrived.as_deref_mut(),
                };
                visit(&path, &mut slot)?;
            }
        }
        Ok(())
    }

    /// The gradients of micro-batches that wait for the rest of their update.
    pub(super) fn walk_accumulated(
        &mut self,
        path: &NestPath<'_>,
        visit: LeafVisitor<'_>,
    ) -> Result<()> {
        let path = path.field("a gradient of micro-batches");
        let gradients = self.accumulated.iter_mut();
        let mut leaves = gradients.flat_map(|(_, gradients)| gradients.leaves());
        leaves.try_for_each(|(_, mut leaf)| visit(&path, &mut leaf))
    }
}

impl<M: Module + 'static> HostState for TrainState<M> {
    fn fingerprint(&self, key: &mut dyn Fingerprint) {
        let (waiting, of) = self.accumulation();
        key.fixed(format_args!(
            "{} {} clip {:?} loss scale {:?} accumulate {waiting}/{of} times {}",
            self.optimizer.name(),
            self.optimizer.config(),
            self.clip,
            // A dynamic one is an input.
            (!self.loss_scale.is_dynamic()).then(|| self.loss_scale.scale()),
            self.accumulation_share,
        ));
    }

    fn coefficients(&self) -> Coefficients {
        Coefficients {
            optimizer: Arc::clone(&self.optimizer),
            learning_rate: self.learning_rate,
            step: self.step,
            loss_scale: self.loss_scale.scale(),
            position: self.position(),
        }
    }

    fn bind(&mut self, trace: Arc<Trace>, index: usize) {
        self.placement = Box::new(Captured {
            trace,
            index,
            first_step: self.step,
            learning_rate: None,
            slots: HashMap::new(),
            loss_scale: None,
            applies: None,
        });
    }

    fn applies(&self) -> Option<CapturedTensor> {
        self.placement.captured()?.applies.clone()
    }

    /// The number of updates, the learning rate and whether the step has set it, the micro-batches
    /// that wait, and which parameters have a gradient in them.
    fn record(&self) -> Vec<u64> {
        let captured = self.placement.captured();
        let sets_rate = captured.is_some_and(|captured| captured.learning_rate.is_some());
        let rate = self.learning_rate.to_bits();
        let mut record = vec![self.step, rate, u64::from(sets_rate)];
        if let Some((count, gradients)) = &self.accumulated {
            record.push(*count as u64);
            record.extend(gradients.compiled().map(u64::from));
        }
        record
    }

    fn replay(&mut self, before: &[u64], after: &[u64], is_skipped: bool) {
        let ([step, ..], [new_step, rate, sets_rate, rest @ ..]) = (before, after) else {
            return;
        };
        let updates = new_step.saturating_sub(*step);
        if is_skipped {
            self.loss_scale.count_skipped();
        } else {
            self.step += updates;
            (0..updates).for_each(|_| self.loss_scale.count_update());
        }
        if *sets_rate != 0 {
            self.learning_rate = f64::from_bits(*rate);
        }
        let waiting = rest.split_first().and_then(|(count, flags)| {
            let count = usize::try_from(*count).ok()?;
            let none = Gradients::none(&self.model).ok()?;
            let compiled = flags.iter().map(|flag| *flag != 0);
            Some((count, none.on_compiled_devices(compiled)))
        });
        self.accumulated = waiting;
    }
}
