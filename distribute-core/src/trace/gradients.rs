//! Gradients, reductions and updates as operations of a captured graph.

use std::fmt;

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::tensor::{DType, Tensor};
use burn_autodiff::checkpoint::base::Checkpointer;
use burn_autodiff::checkpoint::strategy::NoCheckpointing;
use burn_autodiff::grads::Gradients as TapeGradients;
use burn_autodiff::ops::{Backward, Ops, OpsKind};
use burn_backend::AutodiffBackend;
use burn_capture::CaptureBackend;
use distribute_collectives::ReduceOp;
use std::sync::Arc;

use super::tensor::tracked;
use super::{CapturedTensor, TensorSpec, Trace, TraceError, Tracked, TrackedGradients, captured};
use crate::optim::{Coefficient, Optimizer};
use crate::{Error, Nest, Result, host_reduce, scope};

/// The gradients of a captured step, in the order of the model's trainable parameters.
#[derive(Debug, Clone)]
pub(crate) struct CapturedGradients {
    pub(crate) tensors: Vec<Option<CapturedTensor>>,
}

impl CapturedGradients {
    /// Those of a loss that was computed from captured tensors; `None` for any other loss.
    pub(crate) fn compute<M: Module>(loss: &Tensor<1>, model: &M) -> Option<Result<Self>> {
        captured(loss)?;
        let Some(root) = tracked(loss) else {
            let untracked = || {
                Error::invalid(
                    "gradient: the loss does not depend on a parameter that autodiff tracks",
                )
            };
            return Some(Err(untracked()));
        };
        let mut take = Take {
            gradients: Tracked::backward(root),
            tensors: Vec::new(),
        };
        model.visit(&mut take);
        let tensors = take.tensors;
        Some(Ok(Self { tensors }))
    }

    /// Reduces all gradients over the replicas, as one operation, together with what the workers
    /// wish.
    pub(crate) fn all_reduce(&mut self, trace: &Trace, op: ReduceOp) -> Result<()> {
        let strategy = scope::current_strategy();
        let workers = strategy.workers();
        let mut present: Vec<_> = self.tensors.iter().flatten().cloned().collect();
        present.extend(workers.map(|workers| workers.captured_signals(trace)));
        let mut reduced = trace.all_reduce(op, present)?.into_iter();
        let slots = self.tensors.iter_mut().flatten();
        slots
            .zip(&mut reduced)
            .for_each(|(slot, tensor)| *slot = tensor);
        if let (Some(workers), Some(signals)) = (workers, reduced.next()) {
            workers.hear_signals(trace, signals);
        }
        Ok(())
    }

    /// Adds those of another micro-batch.
    pub(crate) fn accumulate(&mut self, other: Self) {
        for (mine, theirs) in self.tensors.iter_mut().zip(other.tensors) {
            *mine = match (mine.take(), theirs) {
                (Some(mine), Some(theirs)) => {
                    let sum = CaptureBackend::float_add(mine.0, theirs.0);
                    Some(CapturedTensor(sum))
                }
                (mine, theirs) => mine.or(theirs),
            };
        }
    }

    /// The global norm, of shape `[1]`, in `f32`, or in `f64` if all gradients are. What is larger
    /// than 1 is squared as a part of the largest, so that no square is infinite before the norm
    /// is.
    fn norm(&self) -> Option<Tensor<1>> {
        let present = || self.tensors.iter().flatten();
        let dtype = match present().all(|gradient| gradient.spec().dtype == DType::F64) {
            true => DType::F64,
            false => DType::F32,
        };
        let flat = || present().map(|gradient| of_type(flat(gradient.clone()), dtype));
        let largest = flat().map(|gradient| gradient.abs().max());
        let largest = largest.reduce(|a, b| a.max_pair(b))?.clamp_min(1.0);
        let squares = flat().map(|gradient| {
            let part = gradient / largest.clone();
            (part.clone() * part).sum()
        });
        let sum = squares.reduce(|sum, square| sum + square)?;
        Some(sum.sqrt() * largest)
    }

    /// Scales all gradients so that their global norm is at most `clip_norm`; all become NaN if
    /// their norm is not finite.
    pub(crate) fn clip_by_global_norm(&mut self, clip_norm: f64) -> Result<()> {
        if !(clip_norm.is_finite() && clip_norm > 0.0) {
            return Err(Error::invalid(format!(
                "clip_by_global_norm: the norm must be a positive number, got {clip_norm}"
            )));
        }
        let Some(norm) = self.norm() else {
            return Ok(());
        };
        // 0, or NaN if the norm is not finite.
        let blemish = norm.clone() - norm.clone();
        let factor = norm.clamp_min(clip_norm).recip().mul_scalar(clip_norm) + blemish;
        for slot in self.tensors.iter_mut().flatten() {
            let TensorSpec { shape, dtype } = slot.spec();
            let scaled = flat(slot.clone()) * of_type(factor.clone(), dtype);
            if let Some(scaled) = captured(&scaled) {
                *slot = scaled.reshaped(&shape);
            }
        }
        Ok(())
    }
}

use burn_backend::ops::FloatTensorOps;

/// The tensor with elements of this type.
fn of_type(tensor: Tensor<1>, dtype: DType) -> Tensor<1> {
    match tensor.dtype() == dtype {
        true => tensor,
        false => tensor.cast(dtype),
    }
}

/// A captured tensor with one dimension.
fn flat(tensor: CapturedTensor) -> Tensor<1> {
    let count: usize = tensor.spec().shape.iter().product();
    tensor.reshaped(&[count]).float()
}

struct Take {
    gradients: TrackedGradients,
    tensors: Vec<Option<CapturedTensor>>,
}

impl ModuleVisitor for Take {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let value = param.val();
        if !value.is_require_grad() {
            return;
        }
        let gradient = tracked(&value)
            .and_then(|value| Tracked::grad_remove(&value, &mut self.gradients))
            .map(CapturedTensor);
        self.tensors.push(gradient);
    }
}

/// Updates every parameter of a model that has a gradient.
pub(crate) fn update<M: Module>(
    model: M,
    optimizer: &dyn Optimizer,
    coefficients: &[Tensor<1>],
    gradients: CapturedGradients,
    slots: &mut [Vec<Tensor<1>>],
) -> Result<M> {
    let mut update = Update {
        optimizer,
        coefficients,
        gradients: gradients.tensors.into_iter(),
        slots: slots.iter_mut(),
        error: None,
    };
    let model = model.map(&mut update);
    update.error.map_or(Ok(model), Err)
}

struct Update<'a> {
    optimizer: &'a dyn Optimizer,
    coefficients: &'a [Tensor<1>],
    gradients: std::vec::IntoIter<Option<CapturedTensor>>,
    slots: std::slice::IterMut<'a, Vec<Tensor<1>>>,
    error: Option<Error>,
}

impl Update<'_> {
    fn updated<const D: usize>(
        &mut self,
        tensor: &Tensor<D>,
        gradient: CapturedTensor,
        slots: &mut Vec<Tensor<1>>,
    ) -> Result<Tensor<D>> {
        let parameter = captured(tensor).ok_or_else(foreign)?;
        let shape = tensor.shape();
        let parameter = flat(parameter);
        let dtype = parameter.dtype();
        // Coefficients are f32; a parameter of another type needs them in its own.
        let coefficients: Vec<_> = self
            .coefficients
            .iter()
            .map(|value| Coefficient::Tensor(of_type(value.clone(), dtype)))
            .collect();
        let (parameter, new) = self.optimizer.update(
            &coefficients,
            parameter,
            flat(gradient),
            std::mem::take(slots),
        )?;
        *slots = new;
        let parameter: Tensor<D> = parameter.reshape(shape);
        let parameter = captured(&parameter).ok_or_else(foreign)?;
        Ok(parameter.tracked(true))
    }
}

fn foreign() -> Error {
    let instead = "update it with tensors of the step";
    TraceError::unsupported("a parameter that is not one of the captured state", instead).into()
}

impl ModuleMapper for Update<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let (id, tensor, mapper) = param.consume();
        if !tensor.is_require_grad() || self.error.is_some() {
            return Param::from_mapped_value(id, tensor, mapper);
        }
        let (gradient, slots) = (self.gradients.next().flatten(), self.slots.next());
        let (Some(gradient), Some(slots)) = (gradient, slots) else {
            return Param::from_mapped_value(id, tensor, mapper);
        };
        match self.updated(&tensor, gradient, slots) {
            Ok(updated) => Param::from_mapped_value(id, updated, mapper),
            Err(error) => {
                self.error = Some(error);
                Param::from_mapped_value(id, tensor, mapper)
            }
        }
    }
}

/// Reduces all leaves of a value over the replicas: tensors by one operation of the graph, numbers,
/// which are the same on every replica, right away.
pub(crate) fn all_reduce<T: Nest>(trace: &Trace, op: ReduceOp, value: &mut T) -> Result<()> {
    let mut tensors = Vec::new();
    value.walk(&mut |leaf| {
        if let Some(tensor) = leaf.traced() {
            tensors.push(tensor.captured().ok_or_else(not_captured)?);
            return Ok(());
        }
        let number = leaf.take()?;
        leaf.put(host_reduce::reduce(op, vec![number; trace.num_replicas()])?)
    })?;
    let mut reduced = trace.all_reduce(op, tensors)?.into_iter();
    value.walk(&mut |leaf| {
        if let (Some(tensor), Some(reduced)) = (leaf.traced(), reduced.next()) {
            tensor.bind_result(reduced);
        }
        Ok(())
    })
}

pub(super) fn not_captured() -> Error {
    let instead = "compute it from the step's arguments, on `ctx.device()`";
    TraceError::unsupported("`all_reduce` of a tensor of the CPU", instead).into()
}

/// What the backward pass of a differentiable all-reduce needs.
#[derive(Clone)]
struct State {
    op: ReduceOp,
    trace: Arc<Trace>,
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "all_reduce {}", self.op)
    }
}

#[derive(Debug)]
struct AllReduceBackward;

impl Backward<CaptureBackend, 1> for AllReduceBackward {
    type State = State;

    fn backward(self, ops: Ops<State, 1>, grads: &mut TapeGradients, _: &mut Checkpointer) {
        let gradient = grads.consume::<CaptureBackend>(&ops.node);
        let [Some(parent)] = ops.parents else {
            return;
        };
        let State { op, trace } = &ops.state;
        // The operation and the type were accepted in the forward pass.
        let reduced = trace.all_reduce(*op, vec![CapturedTensor(gradient.clone())]);
        let reduced = reduced.ok().and_then(|mut tensors| tensors.pop());
        let reduced = reduced.map_or(gradient, |tensor| tensor.0);
        grads.register::<CaptureBackend>(parent.id, reduced);
    }
}

/// An all-reduce that gradients flow through.
pub(crate) fn all_reduce_tensor<const D: usize>(
    trace: &Arc<Trace>,
    op: ReduceOp,
    tensor: &Tensor<D>,
) -> Result<Tensor<D>> {
    if !matches!(op, ReduceOp::Sum | ReduceOp::Mean) {
        return Err(Error::invalid(format!(
            "all_reduce_tensor: SUM or MEAN, not {op}, have a gradient; use all_reduce"
        )));
    }
    let value = captured(tensor).ok_or_else(not_captured)?;
    let reduced = trace.all_reduce(op, vec![value])?.swap_remove(0);
    let Some(node) = tracked(tensor) else {
        return Ok(reduced.float());
    };
    let (_, node) = node.into_parts();
    let operation = AllReduceBackward.prepare::<NoCheckpointing>([node]);
    let output = match operation.compute_bound().stateful() {
        OpsKind::Tracked(prepared) => {
            let state = State {
                op,
                trace: Arc::clone(trace),
            };
            prepared.finish(state, reduced.0)
        }
        OpsKind::UnTracked(prepared) => prepared.finish(reduced.0),
    };
    Ok(Tensor::from_primitive::<Tracked>(output))
}
