//! Replicas that share a device compute one after the other: the way to the other replicas of one
//! that gives up its turn while it waits for them.

use std::ops::Range;

use burn::tensor::TensorData;
pub(crate) use distribute_collectives::turns::{Turn, Turns};
use distribute_collectives::{CollectiveError, ReduceOp};

use super::link::{Link, OnPack};
use crate::{Result, WorkerGroup};

/// A replica's [`Link`] that gives up the turn of its device while it waits.
pub(crate) struct Turning {
    pub(crate) link: Box<dyn Link>,
    pub(crate) turn: Turn,
}

impl Link for Turning {
    fn all_reduce(&self, op: ReduceOp, buffers: &mut [TensorData]) -> Result<()> {
        let _paused = self.turn.pause();
        self.link.all_reduce(op, buffers)
    }

    fn all_reduce_gradients(&self, op: ReduceOp, buffers: &mut [TensorData]) -> Result<()> {
        let _paused = self.turn.pause();
        self.link.all_reduce_gradients(op, buffers)
    }

    fn sum_in_packs(&self, buffers: Vec<TensorData>, on_pack: OnPack<'_>) -> Result<()> {
        let _paused = self.turn.pause();
        let mut on_pack = |range: Range<usize>, pack| {
            let _held = self.turn.hold();
            on_pack(range, pack)
        };
        self.link.sum_in_packs(buffers, &mut on_pack)
    }

    fn reduce(&self, buffers: &mut [TensorData]) -> Result<()> {
        let _paused = self.turn.pause();
        self.link.reduce(buffers)
    }

    fn all_gather(&self, mine: &[i64]) -> Result<Vec<Vec<i64>>> {
        let _paused = self.turn.pause();
        self.link.all_gather(mine)
    }

    fn workers(&self) -> Option<&WorkerGroup> {
        self.link.workers()
    }

    fn barrier(&self) -> Result<(), CollectiveError> {
        let _paused = self.turn.pause();
        self.link.barrier()
    }

    fn abort(&self, reason: &str) {
        self.link.abort(reason);
    }
}

#[cfg(test)]
mod tests;
