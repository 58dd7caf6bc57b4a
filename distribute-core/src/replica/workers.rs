//! The replicas of several workers: replica 0 of each process speaks for it with the others.
//!
//! Order of a reduction: the replicas of a worker in replica order, in the worker; then the
//! workers' sums in the order of the group ([`WorkerGroup::describe`]): that of the workers, unless
//! a ring was asked for. MEAN is the SUM divided by the number of replicas. Half types are rounded
//! once per stage.
//!
//! Gradients can travel between workers in packs: the exchange of one overlaps what the replicas do
//! with those before. The replicas of a worker add their gradients up first, all at once. Then
//! replica 0's *exchange thread* reduces pack after pack between the workers, in TensorFlow's order
//! ([`reversed_packs`](crate::communication::pack::reversed_packs)), and replica 0 passes each on
//! to the other replicas. The thread lives for one step, because the packs do: starting it takes
//! tens of microseconds, an exchange between processes at least hundreds.

use std::ops::Range;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread;

use burn::tensor::TensorData;
use distribute_collectives::{
    Buffer, CollectiveError, Communicator, CommunicatorExt, ReduceOp, reduce,
};

use super::link::{Link, OnPack};
use super::threads::Threads;
use crate::cross_device::{as_buffers, by_type};
use crate::sync::lock;
use crate::workers::encoding;
use crate::{Error, Result, WorkerGroup};

/// One replica's way to those of its process and of other workers.
pub(crate) struct Workers {
    local: Threads,
    workers: WorkerGroup,
}

impl Workers {
    pub(crate) fn new(local: Threads, workers: WorkerGroup) -> Self {
        Self { local, workers }
    }
}

impl Link for Workers {
    fn all_reduce(&self, op: ReduceOp, buffers: &mut [TensorData]) -> Result<()> {
        let mut local = lock(&self.local.communicator);
        by_type(buffers, |buffers| {
            all_reduce(local.as_mut(), &self.workers, op, buffers)
        })
    }

    fn sum_in_packs(&self, mut buffers: Vec<TensorData>, on_pack: OnPack<'_>) -> Result<()> {
        if self.workers.options().bytes_per_pack == 0 {
            self.all_reduce(ReduceOp::Sum, &mut buffers)?;
            return on_pack(0..buffers.len(), buffers);
        }
        let mut local = lock(&self.local.communicator);
        let local = local.as_mut();
        if local.world_size() > 1 {
            by_type(&mut buffers, |buffers| {
                Ok(local.all_reduce(ReduceOp::Sum, buffers)?)
            })?;
        }
        let packs = split(&self.workers, buffers);
        if local.rank() == 0 {
            return reduce_packs(local, &self.workers, packs, on_pack);
        }
        packs
            .into_iter()
            .try_for_each(|pack| broadcast_pack(local, pack, on_pack))
    }

    fn all_gather(&self, mine: &[i64]) -> Result<Vec<Vec<i64>>> {
        let mut local = lock(&self.local.communicator);
        let lists = local.all_gather(mine)?;
        let mut everything = Vec::new();
        if local.rank() == 0 {
            let mut flat = Vec::new();
            for list in lists.iter() {
                flat.push(list.len() as i64);
                flat.extend_from_slice(list);
            }
            everything = self.workers.communicator().all_gather(&flat)?.into_values();
        }
        // The others have nothing to add to what replica 0 knows by now.
        let everything = local.all_gather(&everything)?.into_values();
        let lists = encoding::lists(&everything).ok_or_else(encoding::unreadable)?;
        Ok(lists.into_iter().map(<[i64]>::to_vec).collect())
    }

    fn workers(&self) -> Option<&WorkerGroup> {
        Some(&self.workers)
    }

    fn barrier(&self) -> Result<(), CollectiveError> {
        self.local.barrier()
    }

    fn abort(&self, reason: &str) {
        self.local.abort(reason);
        self.workers.abort(reason);
    }
}

/// Reduces one replica's buffers over all replicas, in place. `local` is the replica's endpoint of
/// the group of its process, whose rank 0 speaks for the process.
fn all_reduce(
    local: &mut dyn Communicator,
    workers: &WorkerGroup,
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
        let mut communicator = workers.communicator();
        let options = workers.options();
        options.batch_all_reduce(communicator.as_mut(), step, buffers)?;
    }
    if several {
        local.broadcast(0, buffers)?;
    }
    if op == ReduceOp::Mean {
        for buffer in buffers {
            reduce::divide(buffer, workers.num_replicas());
        }
    }
    Ok(())
}

/// A run of buffers and their places in the whole list.
type Pack = (Range<usize>, Vec<TensorData>);

/// Cuts the list into packs, in the order in which they are reduced.
fn split(workers: &WorkerGroup, mut buffers: Vec<TensorData>) -> Vec<Pack> {
    let sizes_bytes: Vec<usize> = buffers.iter().map(|data| data.as_bytes().len()).collect();
    let ranges = workers.options().packs(&sizes_bytes).into_iter();
    // The first pack is the end of the list.
    let packs = ranges.map(|range| (range.clone(), buffers.split_off(range.start)));
    packs.collect()
}

/// Replica 0's part: its exchange thread reduces the packs, this one hands them on.
fn reduce_packs(
    local: &mut dyn Communicator,
    workers: &WorkerGroup,
    packs: Vec<Pack>,
    on_pack: OnPack<'_>,
) -> Result<()> {
    // Room for all packs of the step: a slow update must not make other workers wait.
    let (reduced, arrivals) = sync_channel(packs.len());
    thread::scope(|scope| {
        let exchange = thread::Builder::new()
            .name("gradient-exchange".to_string())
            .spawn_scoped(scope, move || exchange(workers, packs, &reduced))
            .map_err(Error::internal)?;
        // Its end of the channel must be gone before the scope waits for the thread.
        let forwarded =
            (arrivals.into_iter()).try_for_each(|pack| broadcast_pack(local, pack, on_pack));
        let exchanged = exchange
            .join()
            .map_err(|_| Error::invalid("the thread that exchanges gradients panicked"))?;
        forwarded.and(exchanged)
    })
}

/// Ends early when nobody takes the packs any more.
fn exchange(workers: &WorkerGroup, packs: Vec<Pack>, reduced: &SyncSender<Pack>) -> Result<()> {
    for (range, mut buffers) in packs {
        let mut communicator = workers.communicator();
        communicator.all_reduce_by_type(ReduceOp::Sum, &mut as_buffers(&mut buffers)?)?;
        drop(communicator);
        if reduced.send((range, buffers)).is_err() {
            break;
        }
    }
    Ok(())
}

/// Gives the other replicas of the process what replica 0 has, and goes on with it.
fn broadcast_pack(
    local: &mut dyn Communicator,
    (range, mut buffers): Pack,
    on_pack: OnPack<'_>,
) -> Result<()> {
    if local.world_size() > 1 {
        by_type(&mut buffers, |buffers| Ok(local.broadcast(0, buffers)?))?;
    }
    on_pack(range, buffers)
}
