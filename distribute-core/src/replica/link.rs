//! How the buffers of one replica get to the others: [`Link`].

use std::fmt;
use std::ops::Range;

use burn::tensor::TensorData;
use distribute_collectives::{CollectiveError, ReduceOp};

use crate::Result;

/// What is done with a run of buffers that is reduced.
pub(crate) type OnPack<'a> = &'a mut dyn FnMut(Range<usize>, Vec<TensorData>) -> Result<()>;

/// How the host buffers of one replica get to the others.
pub(crate) trait Link: Send + Sync + fmt::Debug {
    /// Reduces buffers over all replicas, in place, as one operation per element type.
    fn all_reduce(&self, op: ReduceOp, buffers: &mut [TensorData]) -> Result<()>;

    /// The sum of buffers over all replicas; `on_pack` is called for each run of buffers that is
    /// complete, while others may be under way.
    fn sum_in_packs(&self, buffers: Vec<TensorData>, on_pack: OnPack<'_>) -> Result<()>;

    /// Sums buffers onto replica 0, in place; those of the others are used up.
    fn reduce(&self, buffers: &mut [TensorData]) -> Result<()>;

    /// The lists of all replicas, in replica order.
    fn all_gather(&self, mine: &[i64]) -> Result<Vec<Vec<i64>>>;

    /// The values of all replicas, from those of this process; called by one of its replicas.
    fn gather(&self, call: &str, local: Vec<Vec<TensorData>>) -> Result<Vec<Vec<TensorData>>> {
        let _ = call;
        Ok(local)
    }

    /// What this process says to all with its gradients; replica 0 speaks for it.
    fn signals(&self) -> Vec<f32> {
        Vec::new()
    }

    /// What all say together.
    fn receive(&self, signals: &[f32]) {
        let _ = signals;
    }

    /// Takes over the chief's value of a variable.
    fn take_initial_value(&self, initial: &mut TensorData) -> Result<()> {
        let _ = initial;
        Ok(())
    }

    /// Returns when the replicas of this process have called it.
    fn barrier(&self) -> Result<(), CollectiveError>;

    /// Ends the calls of all others with an error.
    fn abort(&self, reason: &str);
}
