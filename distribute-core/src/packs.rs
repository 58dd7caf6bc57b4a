//! Gradients that travel between workers in packs: the exchange of one overlaps what the replicas
//! do with those before.
//!
//! The replicas of a worker add their gradients up first, all at once. Then replica 0's *exchange
//! thread* reduces pack after pack between the workers, in TensorFlow's order
//! ([`reversed_packs`](distribute_collectives::pack::reversed_packs)), and replica 0 passes each on
//! to the other replicas. The thread lives for one step, because the packs do: starting it takes
//! tens of microseconds, an exchange between processes at least hundreds.

use std::ops::Range;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

use burn::tensor::TensorData;
use distribute_collectives::ReduceOp;

use crate::replica_context::Link;
use crate::{Error, Result, WorkerGroup};

/// What is done with a run of buffers that is reduced.
pub(crate) type Ready<'a> = &'a mut dyn FnMut(Range<usize>, Vec<TensorData>) -> Result<()>;

/// A run of buffers and their places in the whole list.
type Pack = (Range<usize>, Vec<TensorData>);

/// The sum over all replicas of all workers. Called by all of them with equal shapes.
///
/// # Errors
/// Of the exchange, or the first of `ready`; the packs before have been handed over then.
pub(crate) fn all_reduce(
    link: &mut Link,
    mut tensors: Vec<TensorData>,
    ready: Ready<'_>,
) -> Result<()> {
    let Some(workers) = link.workers.clone() else {
        link.all_reduce(ReduceOp::Sum, &mut tensors)?;
        return ready(0..tensors.len(), tensors);
    };
    if link.communicator.world_size() > 1 {
        link.by_type(&mut tensors, |local, buffers| {
            Ok(local.all_reduce(ReduceOp::Sum, buffers)?)
        })?;
    }
    let packs = split(&workers, tensors);
    if link.communicator.rank() == 0 {
        return lead(link, &workers, packs, ready);
    }
    packs
        .into_iter()
        .try_for_each(|pack| pass_on(link, pack, ready))
}

/// Cuts the list into packs, in the order in which they are reduced.
fn split(workers: &WorkerGroup, mut tensors: Vec<TensorData>) -> Vec<Pack> {
    let sizes_bytes: Vec<usize> = tensors.iter().map(|data| data.as_bytes().len()).collect();
    let ranges = workers.packs(&sizes_bytes).into_iter();
    // The first pack is the end of the list.
    let packs = ranges.map(|range| (range.clone(), tensors.split_off(range.start)));
    packs.collect()
}

/// Replica 0's part: its exchange thread reduces the packs, this one hands them on.
fn lead(link: &mut Link, workers: &WorkerGroup, packs: Vec<Pack>, ready: Ready<'_>) -> Result<()> {
    // Room for all packs of the step: a slow update must not make other workers wait.
    let (reduced, arrivals) = sync_channel(packs.len());
    thread::scope(|scope| {
        let exchange = thread::Builder::new()
            .name("gradient-exchange".to_string())
            .spawn_scoped(scope, move || exchange(workers, packs, &reduced))
            .map_err(Error::step)?;
        // Its end of the channel must be gone before the scope waits for the thread.
        let handed_on = hand_on(link, arrivals, ready);
        let exchanged = exchange
            .join()
            .map_err(|_| Error::invalid("the thread that exchanges gradients panicked"))?;
        handed_on.and(exchanged)
    })
}

fn hand_on(link: &mut Link, arrivals: Receiver<Pack>, ready: Ready<'_>) -> Result<()> {
    arrivals
        .into_iter()
        .try_for_each(|pack| pass_on(link, pack, ready))
}

/// Ends early when nobody takes the packs any more.
fn exchange(workers: &WorkerGroup, packs: Vec<Pack>, reduced: &SyncSender<Pack>) -> Result<()> {
    for (range, mut tensors) in packs {
        workers.all_reduce_pack(&mut tensors)?;
        if reduced.send((range, tensors)).is_err() {
            break;
        }
    }
    Ok(())
}

/// Gives the other replicas of the process what replica 0 has, and goes on with it.
fn pass_on(link: &mut Link, (range, mut tensors): Pack, ready: Ready<'_>) -> Result<()> {
    if link.communicator.world_size() > 1 {
        link.by_type(&mut tensors, |local, buffers| {
            Ok(local.broadcast(0, buffers)?)
        })?;
    }
    ready(range, tensors)
}
