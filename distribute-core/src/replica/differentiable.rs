//! An all-reduce that gradients flow through, as an operation of burn's autodiff.
//!
//! TensorFlow registers the same gradient for its collective reduce: the all-reduce of the
//! upstream gradient with the same operation.

use std::fmt;
use std::sync::{Arc, Weak};

use burn::tensor::{Tensor, TensorData};
use burn_autodiff::Autodiff;
use burn_autodiff::checkpoint::base::Checkpointer;
use burn_autodiff::checkpoint::strategy::NoCheckpointing;
use burn_autodiff::grads::Gradients;
use burn_autodiff::ops::{Backward, Ops, OpsKind};
use burn_flex::Flex;
use distribute_collectives::ReduceOp;

use crate::trace::{self, Trace};
use crate::{Error, Leaf, Result};

/// Replicas that are reached through host memory, also in a backward pass.
pub(crate) trait TensorReduce: Send + Sync {
    /// Reduces a tensor of the differentiable call of this number over all replicas.
    fn reduce(&self, op: ReduceOp, call: u64, data: TensorData) -> Result<TensorData>;

    /// Keeps the failure of a backward pass, which cannot return it.
    fn fail(&self, error: Error);
}

/// A tensor of any rank that an all-reduce with a gradient can replace.
pub(crate) trait Differentiable {
    /// Through host memory, as the differentiable call of this number.
    fn all_reduce(&mut self, op: ReduceOp, call: u64, peers: &Arc<dyn TensorReduce>) -> Result<()>;

    /// As an operation of a captured graph.
    fn all_reduce_captured(&mut self, op: ReduceOp, trace: &Arc<Trace>) -> Result<()>;
}

/// What the backward pass needs. The group is held weakly: a graph that outlives its run must not
/// keep the endpoint of a failed group alive, because the endpoint's drop tells the others.
#[derive(Clone)]
struct State {
    op: ReduceOp,
    call: u64,
    peers: Weak<dyn TensorReduce>,
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "all_reduce {} of call {}", self.op, self.call)
    }
}

#[derive(Debug)]
struct AllReduceBackward<const D: usize>;

impl<const D: usize> Backward<Flex, 1> for AllReduceBackward<D> {
    type State = State;

    fn backward(self, ops: Ops<State, 1>, grads: &mut Gradients, _: &mut Checkpointer) {
        let gradient = grads.consume::<Flex>(&ops.node);
        let [Some(parent)] = ops.parents else {
            return;
        };
        let local = Tensor::<D>::from_primitive::<Flex>(gradient.clone());
        let reduced = ops.state.reduce(local).and_then(|tensor| {
            let unexpected = |_| Error::invalid("all_reduce_tensor: a gradient off the CPU");
            tensor.try_into_primitive::<Flex>().map_err(unexpected)
        });
        // After a failure the pass has to go on with some gradient; none of them is used, because
        // `gradient` and the end of the step return the failure.
        let reduced = reduced.unwrap_or_else(|error| {
            if let Some(peers) = ops.state.peers.upgrade() {
                peers.fail(error);
            }
            gradient
        });
        grads.register::<Flex>(parent.id, reduced);
    }
}

impl State {
    fn reduce<const D: usize>(&self, mut gradient: Tensor<D>) -> Result<Tensor<D>> {
        let ended = || Error::invalid("all_reduce_tensor: backward after the end of the step");
        let peers = self.peers.upgrade().ok_or_else(ended)?;
        let data = peers.reduce(self.op, self.call, Leaf::take(&mut gradient)?)?;
        gradient.put(data)?;
        Ok(gradient)
    }
}

impl<const D: usize> Differentiable for Tensor<D> {
    fn all_reduce(&mut self, op: ReduceOp, call: u64, peers: &Arc<dyn TensorReduce>) -> Result<()> {
        if !matches!(op, ReduceOp::Sum | ReduceOp::Mean) {
            return Err(Error::invalid(format!(
                "all_reduce_tensor: SUM or MEAN, not {op}, have a gradient; use all_reduce"
            )));
        }
        let mut reduced = self.clone();
        let data = peers.reduce(op, call, Leaf::take(&mut reduced)?)?;
        reduced.put(data)?;
        if !self.is_autodiff() {
            *self = reduced;
            return Ok(());
        }
        let off_cpu = |_| Error::invalid("all_reduce_tensor: gradients need tensors on the CPU");
        let reduced = reduced.try_into_primitive::<Flex>().map_err(off_cpu)?;
        let tracked = self.clone().try_into_primitive::<Autodiff<Flex>>();
        let (_, node) = tracked.map_err(off_cpu)?.into_parts();
        let operation = AllReduceBackward::<D>.prepare::<NoCheckpointing>([node]);
        let output = match operation.compute_bound().stateful() {
            OpsKind::Tracked(prepared) => {
                let peers = Arc::downgrade(peers);
                prepared.finish(State { op, call, peers }, reduced)
            }
            OpsKind::UnTracked(prepared) => prepared.finish(reduced),
        };
        *self = Tensor::from_primitive::<Autodiff<Flex>>(output);
        Ok(())
    }

    fn all_reduce_captured(&mut self, op: ReduceOp, trace: &Arc<Trace>) -> Result<()> {
        *self = trace::all_reduce_tensor(trace, op, self)?;
        Ok(())
    }
}
