//! An all-reduce that gradients flow through, as an operation of burn's autodiff.
//!
//! TensorFlow registers the same gradient for its collective reduce: the all-reduce of the
//! upstream gradient with the same operation.

use std::fmt;
use std::sync::{Arc, Mutex};

use crate::burn_internals::autodiff::Autodiff;
use crate::burn_internals::autodiff::checkpoint::base::Checkpointer;
use crate::burn_internals::autodiff::checkpoint::strategy::NoCheckpointing;
use crate::burn_internals::autodiff::grads::Gradients;
use crate::burn_internals::autodiff::ops::{Backward, Ops, OpsKind};
use crate::burn_internals::backend::Backend;
use crate::burn_internals::backend::tensor::FloatTensor;
use crate::burn_internals::capture::CaptureBackend;
use burn::tensor::{GradientCheckpointingStrategy, Tensor};
use burn_flex::Flex;
use distribute_collectives::ReduceOp;

use super::calls;
use super::turns::Turning;
use crate::sync::lock;
use crate::trace::{self, CapturedTensor, Trace, Tracked};
use crate::{Error, Leaf, Result};

/// Replicas that are reached through host memory, also in a backward pass.
pub(crate) struct HostLink {
    pub(super) way: Turning,
    /// The first failure of a collective call in a backward pass, which cannot return it.
    pub(super) backward: Mutex<Option<Error>>,
}

impl HostLink {
    /// Reduces a tensor of the differentiable call of this number over all replicas.
    fn reduce<const D: usize>(
        &self,
        op: ReduceOp,
        call: u64,
        mut tensor: Tensor<D>,
    ) -> Result<Tensor<D>> {
        let mut tensors = [Leaf::take(&mut tensor)?];
        let link = self.way.waiting();
        calls::compare_shapes(&link, call, &tensors, |_, error| error)?;
        link.all_reduce(op, &mut tensors)?;
        drop(link);
        let [data] = tensors;
        tensor.put(data)?;
        Ok(tensor)
    }
}

/// A tensor of any rank that an all-reduce with a gradient can replace.
pub(crate) trait Differentiable {
    /// Through host memory, as the differentiable call of this number.
    fn all_reduce(&mut self, op: ReduceOp, call: u64, peers: &Arc<HostLink>) -> Result<()>;

    /// As an operation of a captured graph.
    fn all_reduce_captured(&mut self, op: ReduceOp, trace: &Arc<Trace>) -> Result<()>;
}

impl<const D: usize> Differentiable for Tensor<D> {
    /// The backward pass holds the group weakly: a graph that outlives its run must not keep the
    /// endpoint of a failed group alive, because the endpoint's drop tells the others.
    fn all_reduce(&mut self, op: ReduceOp, call: u64, peers: &Arc<HostLink>) -> Result<()> {
        check_gradient(op)?;
        let reduced = peers.reduce(op, call, self.clone())?;
        let Some(strategy) = self.gradient_checkpointing_strategy() else {
            *self = reduced;
            return Ok(());
        };
        let off_cpu = |_| Error::invalid("all_reduce_tensor: gradients need tensors on the CPU");
        let reduced = reduced.try_into_primitive::<Flex>().map_err(off_cpu)?;
        // The backward pass needs no activation, so it is the same under every strategy.
        let plain = GradientCheckpointingStrategy::Disabled;
        let tracked = self.clone().with_gradient_checkpointing_strategy(plain);
        let tracked = tracked.try_into_primitive::<Autodiff<Flex>>();
        let peers = Arc::downgrade(peers);
        let backward = move |gradient: FloatTensor<Flex>| {
            let local = Tensor::<D>::from_primitive::<Flex>(gradient.clone());
            let ended = || Error::invalid("all_reduce_tensor: backward after the end of the step");
            let reduced = peers.upgrade().ok_or_else(ended).and_then(|peers| {
                let unexpected = |_| Error::invalid("all_reduce_tensor: a gradient off the CPU");
                let reduced = peers.reduce(op, call, local)?;
                reduced.try_into_primitive::<Flex>().map_err(unexpected)
            });
            // After a failure the pass has to go on with some gradient; none of them is used,
            // because `gradient` and the end of the step return the failure.
            reduced.unwrap_or_else(|error| {
                if let Some(peers) = peers.upgrade() {
                    lock(&peers.backward).get_or_insert(error);
                }
                gradient
            })
        };
        let output = with_backward::<Flex>(tracked.map_err(off_cpu)?, reduced, backward);
        let output = Tensor::from_primitive::<Autodiff<Flex>>(output);
        *self = output.with_gradient_checkpointing_strategy(strategy);
        Ok(())
    }

    fn all_reduce_captured(&mut self, op: ReduceOp, trace: &Arc<Trace>) -> Result<()> {
        check_gradient(op)?;
        let value = trace::captured(self).ok_or_else(trace::not_captured)?;
        let reduced = trace.all_reduce_one(op, value)?;
        let Some(tracked) = trace::tracked(self) else {
            *self = reduced.float();
            return Ok(());
        };
        let trace = Arc::clone(trace);
        let backward = move |gradient: FloatTensor<CaptureBackend>| {
            // The operation and the type were accepted in the forward pass.
            let reduced = trace.all_reduce_one(op, CapturedTensor(gradient.clone()));
            reduced.map_or(gradient, |tensor| tensor.0)
        };
        let output = with_backward::<CaptureBackend>(tracked, reduced.0, backward);
        *self = Tensor::from_primitive::<Tracked>(output);
        Ok(())
    }
}

fn check_gradient(op: ReduceOp) -> Result<()> {
    if matches!(op, ReduceOp::Sum | ReduceOp::Mean) {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "all_reduce_tensor: SUM or MEAN, not {op}, have a gradient; use all_reduce"
    )))
}

/// What a tensor was reduced to, whose gradient `backward` makes that of the tensor.
fn with_backward<B: Backend>(
    tensor: FloatTensor<Autodiff<B>>,
    reduced: FloatTensor<B>,
    backward: impl Fn(FloatTensor<B>) -> FloatTensor<B> + Send + Sync + 'static,
) -> FloatTensor<Autodiff<B>> {
    let (_, node) = tensor.into_parts();
    let operation = Backward::<B, 1>::prepare::<NoCheckpointing>(AllReduceBackward, [node]);
    match operation.compute_bound().stateful() {
        OpsKind::Tracked(prepared) => prepared.finish(State(Arc::new(backward)), reduced),
        OpsKind::UnTracked(prepared) => prepared.finish(reduced),
    }
}

#[derive(Debug)]
struct AllReduceBackward;

/// What the backward pass does with a gradient.
#[derive(Clone)]
struct State<B: Backend>(Arc<dyn Fn(FloatTensor<B>) -> FloatTensor<B> + Send + Sync>);

impl<B: Backend> fmt::Debug for State<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("all_reduce")
    }
}

impl<B: Backend> Backward<B, 1> for AllReduceBackward {
    type State = State<B>;

    fn backward(self, ops: Ops<State<B>, 1>, grads: &mut Gradients, _: &mut Checkpointer) {
        let gradient = grads.consume::<B>(&ops.node);
        if let [Some(parent)] = ops.parents {
            grads.register::<B>(parent.id, (ops.state.0)(gradient));
        }
    }
}
