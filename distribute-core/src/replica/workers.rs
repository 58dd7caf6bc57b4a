//! The replicas of several workers: replica 0 of each process speaks for it with the others.
//!
//! Order of a reduction: the canonical one, that of the [`tree`](distribute_collectives::tree) over
//! all replicas, however they lie in workers. The replicas of a worker combine what they can, which
//! are the subtrees of its replicas ([`WorkerGroup::parts`]); replica 0 gets the results of all of
//! them and hands them in. Where a ring was asked for, the replicas of a worker are added up in
//! this order, and then the workers' sums in that of the group ([`WorkerGroup::describe`]). MEAN is
//! the SUM divided by the number of replicas. Half types are rounded at every node, and gradients
//! that travel as a wire type ([`CommunicationOptions::wire`](crate::CommunicationOptions::wire))
//! are of this type from the replicas to the result, so that their bits do not depend either on how
//! the replicas lie in workers.
//!
//! Gradients can travel between workers in packs: the exchange of one overlaps what the replicas do
//! with those before. The replicas of a worker add their gradients up first, all at once. Then
//! replica 0's *exchange thread* reduces pack after pack between the workers, in TensorFlow's order
//! ([`reversed_packs`](crate::communication::pack::reversed_packs)), and replica 0 passes each on
//! to the other replicas. The thread lives for one step, because the packs do: starting it takes
//! tens of microseconds, an exchange between processes at least hundreds.

use std::ops::Range;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

use burn::tensor::TensorData;
use distribute_collectives::{
    CollectiveError, Communicator, CommunicatorExt, InProcessCommunicator, ReduceOp,
};

use super::link::{Link, OnPack};
use super::threads::Threads;
use crate::communication::Narrowed;
use crate::cross_device::{as_buffers, by_type, divide_for, sum_for};
use crate::sync::lock;
use crate::workers::encoding;
use crate::{Error, Result, WorkerGroup};

/// One replica's connection to the replicas of its process and of other workers.
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
        let local = &mut **local;
        let mut others = reduce_parts(local, &self.workers, sum_for(op), buffers)?;
        if local.rank() == 0 {
            let others = others.iter_mut().map(Vec::as_mut_slice);
            let mut lists: Vec<_> = std::iter::once(&mut *buffers).chain(others).collect();
            self.workers.all_reduce_in_packs(sum_for(op), &mut lists)?;
        }
        broadcast(local, buffers)?;
        divide_for(op, self.workers.num_replicas(), &mut as_buffers(buffers)?);
        Ok(())
    }

    fn all_reduce_gradients(&self, op: ReduceOp, buffers: &mut [TensorData]) -> Result<()> {
        let narrowed = Narrowed::of(self.workers.options().wire, buffers)?;
        self.all_reduce(sum_for(op), buffers)?;
        narrowed.restore(0..buffers.len(), buffers)?;
        divide_for(op, self.workers.num_replicas(), &mut as_buffers(buffers)?);
        Ok(())
    }

    fn sum_in_packs(&self, mut buffers: Vec<TensorData>, on_pack: OnPack<'_>) -> Result<()> {
        if self.workers.options().bytes_per_pack == 0 {
            self.all_reduce_gradients(ReduceOp::Sum, &mut buffers)?;
            return on_pack(0..buffers.len(), buffers);
        }
        let narrowed = Narrowed::of(self.workers.options().wire, &mut buffers)?;
        let on_pack: OnPack<'_> = &mut |range: Range<usize>, mut buffers: Vec<TensorData>| {
            narrowed.restore(range.clone(), &mut buffers)?;
            on_pack(range, buffers)
        };
        let mut local = lock(&self.local.communicator);
        let local = &mut **local;
        let others = reduce_parts(local, &self.workers, ReduceOp::Sum, &mut buffers)?;
        let packs = split(&self.workers, buffers, others);
        if local.rank() == 0 {
            return reduce_packs(local, &self.workers, packs, on_pack);
        }
        let mut packs = packs.into_iter();
        packs.try_for_each(|(range, buffers, _)| broadcast_pack(local, (range, buffers), on_pack))
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

/// Reduces over the replicas of each part of this process, in place, and gives replica 0 what the
/// parts after its own have become.
fn reduce_parts(
    local: &mut InProcessCommunicator,
    workers: &WorkerGroup,
    op: ReduceOp,
    buffers: &mut [TensorData],
) -> Result<Vec<Vec<TensorData>>> {
    let (rank, parts) = (local.rank(), workers.parts());
    if local.world_size() > 1 {
        // Not `reduce`: here the replicas share the work.
        by_type(&mut [buffers], |buffers| {
            Ok(local.all_reduce_parts(op, parts, buffers)?)
        })?;
    }
    let mut others = Vec::new();
    let mut first = 0;
    for part in &parts[..parts.len() - 1] {
        first += part;
        if rank == 0 {
            let room =
                |data: &TensorData| TensorData::full_dtype(data.shape().clone(), 0, data.dtype());
            let mut received: Vec<TensorData> = buffers.iter().map(room).collect();
            let mut views = as_buffers(&mut received)?.into_iter();
            views.try_for_each(|view| local.recv(first, view))?;
            others.push(received);
        } else if rank == first {
            let mut views = as_buffers(buffers)?.into_iter();
            views.try_for_each(|view| local.send(0, view))?;
        }
    }
    Ok(others)
}

/// A run of buffers and their places in the whole list.
type Reduced = (Range<usize>, Vec<TensorData>);

/// The same with what the other parts of the process have in its place.
type Pack = (Range<usize>, Vec<TensorData>, Vec<Vec<TensorData>>);

/// Cuts the lists into packs, in the order in which they are reduced.
fn split(
    workers: &WorkerGroup,
    mut buffers: Vec<TensorData>,
    mut others: Vec<Vec<TensorData>>,
) -> Vec<Pack> {
    let sizes_bytes: Vec<usize> = buffers.iter().map(|data| data.as_bytes().len()).collect();
    let ranges = workers.options().packs(&sizes_bytes).into_iter();
    // The first pack is the end of the list.
    let packs = ranges.map(|range| {
        let start = range.start;
        let others = others
            .iter_mut()
            .map(|list| list.split_off(start))
            .collect();
        (range, buffers.split_off(start), others)
    });
    packs.collect()
}

/// Replica 0's part: its exchange thread reduces the packs, this one hands them on.
fn reduce_packs(
    local: &mut InProcessCommunicator,
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
        let mut arriving = std::iter::from_fn(move || workers.held_up(|| next_pack(&arrivals)));
        let forwarded = arriving.try_for_each(|pack| broadcast_pack(local, pack, on_pack));
        drop(arriving);
        let exchanged = exchange
            .join()
            .map_err(|_| Error::invalid("the thread that exchanges gradients panicked"))?;
        forwarded.and(exchanged)
    })
}

/// Blocks until the exchange thread has reduced a pack; nothing after the last one.
fn next_pack(arrivals: &Receiver<Reduced>) -> Option<Reduced> {
    let _phase = tracing::trace_span!(target: "distribute::phase", "wait").entered();
    arrivals.recv().ok()
}

/// Ends early when the receiver of the packs is gone.
fn exchange(workers: &WorkerGroup, packs: Vec<Pack>, reduced: &SyncSender<Reduced>) -> Result<()> {
    for (range, mut buffers, mut others) in packs {
        let others = others.iter_mut().map(Vec::as_mut_slice);
        let mut lists: Vec<_> = std::iter::once(&mut buffers[..]).chain(others).collect();
        let beside = workers.communicator_beside();
        workers.all_reduce_on(beside, ReduceOp::Sum, &mut lists)?;
        if reduced.send((range, buffers)).is_err() {
            break;
        }
    }
    Ok(())
}

/// Gives the other replicas of the process what replica 0 has, and goes on with it.
fn broadcast_pack(
    local: &mut InProcessCommunicator,
    (range, mut buffers): Reduced,
    on_pack: OnPack<'_>,
) -> Result<()> {
    broadcast(local, &mut buffers)?;
    on_pack(range, buffers)
}

/// Gives the other replicas of the process what replica 0 has.
fn broadcast(local: &mut InProcessCommunicator, buffers: &mut [TensorData]) -> Result<()> {
    if local.world_size() == 1 {
        return Ok(());
    }
    by_type(&mut [buffers], |buffers| Ok(local.broadcast(0, buffers)?))
}
