//! Reductions over all replicas of all workers.
//!
//! Order: the replicas of a worker in replica order, in the worker; then the workers' sums in the
//! order of the group ([`WorkerGroup::describe`]): that of the workers, unless a ring was asked
//! for. MEAN is the SUM divided by the number of replicas. Half types are rounded once per stage.

use std::ops::Range;

use burn::tensor::TensorData;
use distribute_collectives::{Buffer, Communicator, CommunicatorExt, ReduceOp, reduce};

use super::{WorkerGroup, encoding};
use crate::Result;
use crate::cross_device::as_buffers;
use crate::sync::lock;

impl WorkerGroup {
    /// Reduces one replica's buffers over all replicas, in place. `local` is the replica's
    /// endpoint of the group of its process, whose rank 0 speaks for the process.
    pub(crate) fn all_reduce(
        &self,
        local: &mut dyn Communicator,
        op: ReduceOp,
        buffers: &mut [Buffer<'_>],
    ) -> Result<()> {
        let step = match op {
            ReduceOp::Mean => ReduceOp::Sum,
            other => other,
        };
        let several = local.world_size() > 1;
        if several {
            // Not `reduce`: here the replicas share the work.
            local.all_reduce(step, buffers)?;
        }
        if local.rank() == 0 {
            let mut communicator = lock(&self.shared.communicator);
            let options = &self.shared.options;
            options.batch_all_reduce(communicator.as_mut(), step, buffers)?;
        }
        if several {
            local.broadcast(0, buffers)?;
        }
        if op == ReduceOp::Mean {
            for buffer in buffers {
                reduce::divide(buffer, self.num_replicas());
            }
        }
        Ok(())
    }

    /// Whether gradients travel in packs.
    pub(crate) fn has_packs(&self) -> bool {
        self.shared.options.bytes_per_pack > 0
    }

    /// The runs of buffers of these sizes that travel together, in the order of their travel.
    pub(crate) fn packs(&self, sizes_bytes: &[usize]) -> Vec<Range<usize>> {
        self.shared.options.packs(sizes_bytes)
    }

    /// The sum of one pack over the workers, in place.
    pub(crate) fn all_reduce_pack(&self, tensors: &mut [TensorData]) -> Result<()> {
        let mut buffers = as_buffers(tensors)?;
        let mut communicator = lock(&self.shared.communicator);
        Ok(communicator.all_reduce_by_type(ReduceOp::Sum, &mut buffers)?)
    }

    /// Gives every replica the lists of all replicas, in replica order.
    pub(crate) fn all_gather(
        &self,
        local: &mut dyn Communicator,
        mine: &[i64],
    ) -> Result<Vec<Vec<i64>>> {
        let lists = local.all_gather(mine)?;
        let mut everything = Vec::new();
        if local.rank() == 0 {
            let mut flat = Vec::new();
            for list in lists.iter() {
                flat.push(list.len() as i64);
                flat.extend_from_slice(list);
            }
            let gathered = lock(&self.shared.communicator).all_gather(&flat)?;
            everything = gathered.into_values();
        }
        // The others have nothing to add to what replica 0 knows by now.
        let everything = local.all_gather(&everything)?.into_values();
        let lists = encoding::lists(&everything).ok_or_else(encoding::unreadable)?;
        Ok(lists.into_iter().map(<[i64]>::to_vec).collect())
    }
}
