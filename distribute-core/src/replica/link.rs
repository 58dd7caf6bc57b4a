//! How the buffers of one replica get to the others: [`Link`].

use std::ops::Range;

use burn::tensor::TensorData;
use distribute_collectives::{CollectiveError, ReduceOp};

use crate::{Result, WorkerGroup};

/// What is done with a run of buffers that is reduced.
pub(crate) type OnPack<'a> = &'a mut dyn FnMut(Range<usize>, Vec<TensorData>) -> Result<()>;

/// How the host buffers of one replica get to the others.
pub(crate) trait Link: Send + Sync {
    /// Reduces buffers over all replicas, in place, as one operation per element type.
    fn all_reduce(&self, op: ReduceOp, buffers: &mut [TensorData]) -> Result<()>;

    /// The same for gradients, which may be rounded on their way between workers.
    fn all_reduce_gradients(&self, op: ReduceOp, buffers: &mut [TensorData]) -> Result<()> {
        self.all_reduce(op, buffers)
    }

    /// The sum of gradients over all replicas; `on_pack` is called for each run of buffers that is
    /// complete, while others may be under way.
    fn sum_in_packs(&self, buffers: Vec<TensorData>, on_pack: OnPack<'_>) -> Result<()>;

    /// Sums gradients onto replica 0, in place; the other replicas' gradients are consumed.
    fn reduce(&self, buffers: &mut [TensorData]) -> Result<()> {
        self.all_reduce_gradients(ReduceOp::Sum, buffers)
    }

    /// The lists of all replicas, in replica order.
    fn all_gather(&self, mine: &[i64]) -> Result<Vec<Vec<i64>>>;

    /// The group of workers, if there are several.
    fn workers(&self) -> Option<&WorkerGroup> {
        None
    }

    /// Returns when the replicas of this process have called it.
    fn barrier(&self) -> Result<(), CollectiveError>;

    /// Ends the calls of all others with an error.
    fn abort(&self, reason: &str);
}
