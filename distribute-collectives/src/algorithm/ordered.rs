//! Canonical order with the bytes of a ring: every rank reduces its own chunk.
//!
//! In a ring the order of the sum depends on the chunk. Here every rank sends its part of chunk
//! `c` straight to rank `c`, which takes the parts of ranks 0, 1, 2, ... in turn and combines what
//! belongs to one node of the [`tree`](crate::tree). The second phase is the ring's all-gather, or
//! the chunks go to one rank.
//!
//! The loop runs over the segments of a chunk: send segment `s` of all other chunks, then receive
//! segment `s` of the own chunk from all ranks. A rank that is in round `s + 1` has segment `s` of
//! all others, so it is at most one round ahead: two segments per pair of ranks are in flight at
//! most, and no send waits for a rank that waits for this one.
//!
//! - Steps: `2(P - 1)`; to one rank `P`. Bytes sent per rank: `2S(P - 1)/P`; to one rank `S`.
//! - Order: canonical. Half types are combined in `f32` and rounded at every node.
//! - Memory: at most a segment for each level of the tree; none between two ranks.

use crate::algorithm::exchange::{Exchange, segment_of};
use crate::algorithm::ring;
use crate::buffer::Element;
use crate::communicator::chunk_range;
use crate::error::Result;

/// All-reduce.
pub(crate) fn all_reduce<T: Element>(exchange: &mut Exchange<'_, '_>) -> Result<()> {
    let (len, size) = (exchange.len, exchange.size);
    reduce_scatter::<T>(exchange)?;
    ring::all_gather::<T>(exchange, &|chunk| chunk_range(len, size, chunk))
}

/// Reduce to one rank: the others send it their chunks.
///
/// They do once they have sent everything that others wait for, so it may take one after the other.
pub(crate) fn reduce<T: Element>(exchange: &mut Exchange<'_, '_>, root: usize) -> Result<()> {
    let (rank, len, size) = (exchange.rank(), exchange.len, exchange.size);
    reduce_scatter::<T>(exchange)?;
    for owner in (0..size).filter(|owner| *owner != root) {
        for range in exchange.segments(&chunk_range(len, size, owner)) {
            if rank == root {
                exchange.receive::<T>(owner, range)?;
            } else if rank == owner {
                exchange.send::<T>(root, range)?;
            }
        }
    }
    Ok(())
}

/// Leaves every rank with its own chunk reduced.
pub(crate) fn reduce_scatter<T: Element>(exchange: &mut Exchange<'_, '_>) -> Result<()> {
    let (rank, size, segment) = (exchange.rank(), exchange.size, exchange.segment);
    let len = exchange.len;
    let chunk = |index: usize| chunk_range(len, size, index);
    // The first chunk is never shorter than another one.
    for index in 0..exchange.segments(&chunk(0)).len() {
        for offset in 1..size {
            let to = (rank + offset) % size;
            exchange.send::<T>(to, segment_of(&chunk(to), segment, index))?;
        }
        let own = segment_of(&chunk(rank), segment, index);
        if !own.is_empty() {
            exchange.combine_in_tree::<T>(own)?;
        }
    }
    Ok(())
}
