//! What a step's replica talks to: [`Peers`].

use std::ops::Range;
use std::sync::Arc;

use burn::tensor::TensorData;
use distribute_collectives::ReduceOp;

use super::differentiable::Differentiable;
use super::local_exchange::LocalExchange;
use super::log::Log;
use super::turns::Turn;
use crate::trace::Trace;
use crate::{Error, Gradients, Nest, Result};

/// What is done with a range of parameters whose gradients are complete.
pub(crate) type OnReduced<'a> = &'a mut dyn FnMut(Range<usize>, &mut Gradients) -> Result<()>;

/// The other replicas of a step, as one of them reaches them. There is one implementation for each
/// way a step runs: alone, on threads of a process or with other workers ([`HostPeers`] over one of
/// two links), with gradients in the memory of devices, and captured.
///
/// All replicas make the same calls in the same order; each blocks until all have made it.
///
/// [`HostPeers`]: super::host::HostPeers
pub(crate) trait Peers: Send + Sync {
    /// Reduces a value over all replicas, in place.
    fn all_reduce(&self, op: ReduceOp, value: &mut dyn Nest) -> Result<()>;

    /// Concatenates a value over all replicas along an axis, in place.
    fn all_gather(&self, value: &mut dyn Nest, axis: i64) -> Result<()>;

    /// Gives every replica the value of replica `root`, which there is.
    fn broadcast(&self, value: &mut dyn Nest, root: usize) -> Result<()>;

    /// [`all_reduce`](Self::all_reduce) of a tensor that gradients flow through.
    fn all_reduce_tensor(&self, op: ReduceOp, tensor: &mut dyn Differentiable) -> Result<()>;

    /// Reduces gradients (SUM or MEAN) over all replicas, in place.
    fn all_reduce_gradients(&self, op: ReduceOp, gradients: &mut Gradients) -> Result<()>;

    /// Sums gradients over all replicas; `on_reduced` is called for each range of parameters that
    /// is complete, while others may be under way.
    fn sum_gradients(&self, gradients: &mut Gradients, on_reduced: OnReduced<'_>) -> Result<()> {
        self.all_reduce_gradients(ReduceOp::Sum, gradients)?;
        on_reduced(0..gradients.len(), gradients)
    }

    /// Sums gradients over all replicas onto replica 0; the other replicas' gradients are consumed.
    fn reduce_gradients(&self, gradients: &mut Gradients) -> Result<()> {
        self.all_reduce_gradients(ReduceOp::Sum, gradients)
    }

    /// Whether gradients stay where burn has put them, also in host memory.
    fn keeps_gradients(&self) -> bool {
        false
    }

    /// Where the replicas of this process exchange whole values, or `None` for one replica. `op`
    /// and `detail` (a root, an axis, a variable's number) say which call it is; replicas that
    /// differ in them all get an error. A step that is captured has refused the call before.
    fn local_exchange(&self, op: &'static str, detail: i64) -> Result<Option<Arc<LocalExchange>>> {
        let _ = (op, detail);
        Ok(None)
    }

    /// The lists of all replicas, in replica order.
    fn gather_numbers(&self, mine: &[i64]) -> Result<Vec<Vec<i64>>>;

    /// Takes over the chief's value of a variable that a step makes.
    fn take_initial_value(&self, _initial: &mut TensorData) -> Result<()> {
        Ok(())
    }

    /// The capture that the step is part of.
    fn capture(&self) -> Option<&Arc<Trace>> {
        None
    }

    /// The turn of the device that the replica shares with others, if it does.
    fn turn(&self) -> Option<&Turn> {
        None
    }

    /// Returns the failure of a backward pass, which could not return it, once.
    fn check_backward(&self) -> Result<()> {
        Ok(())
    }

    /// From now on what calls give this replica is noted, but for gradients.
    fn begin_log(&self) {}

    /// What was noted, which ends.
    fn take_log(&self) -> Log {
        Log::new()
    }

    /// Whether the step of another replica is computed again here.
    fn is_again(&self) -> bool {
        false
    }

    /// Called once before the replicas of a run start.
    fn begin_run(&self) {}

    /// Called when this replica's step has ended well.
    fn finish_run(&self, _id: usize) -> Result<()> {
        Ok(())
    }

    /// Called when this replica's step has failed.
    fn stop_others(&self, _cause: &Error) {}
}
