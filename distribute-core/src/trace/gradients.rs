//! Gradients and reductions as operations of a captured graph.

use std::fmt;

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
use super::{CapturedTensor, Trace, Tracked, TrackedGradients, captured};
use crate::{Error, Nest, Result, host_reduce};

/// The backward pass of a captured loss.
pub(crate) struct CapturedTape(TrackedGradients);

impl CapturedTape {
    /// Moves the gradient of a parameter out.
    pub(crate) fn remove<const D: usize>(&mut self, value: &Tensor<D>) -> Option<CapturedTensor> {
        let gradient = Tracked::grad_remove(&tracked(value)?, &mut self.0);
        gradient.map(CapturedTensor)
    }
}

/// The backward pass of a loss that was computed from captured tensors; `None` for any other loss.
pub(crate) fn backward(loss: &Tensor<1>) -> Option<Result<CapturedTape>> {
    captured(loss)?;
    let untracked =
        || Error::invalid("gradient: the loss does not depend on a parameter that autodiff tracks");
    let root = tracked(loss).ok_or_else(untracked);
    Some(root.map(|root| CapturedTape(Tracked::backward(root))))
}

/// The tensor with elements of this type.
pub(crate) fn of_type(tensor: Tensor<1>, dtype: DType) -> Tensor<1> {
    match tensor.dtype() == dtype {
        true => tensor,
        false => tensor.cast(dtype),
    }
}

/// Reduces all leaves of a value over the replicas: tensors by one operation of the graph, numbers,
/// which are the same on every replica, right away.
pub(crate) fn all_reduce(trace: &Trace, op: ReduceOp, value: &mut dyn Nest) -> Result<()> {
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

pub(crate) fn not_captured() -> Error {
    let instead = "compute it from the step's arguments, on `ctx.device()`";
    Error::not_compilable("`all_reduce` of a tensor of the CPU", instead)
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
