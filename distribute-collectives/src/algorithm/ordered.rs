//! Canonical order with the bytes of a ring: every rank reduces its own chunk in rank order.
//!
//! In a ring the order of the sum depends on the chunk. Here every rank sends its part of chunk
//! `c` straight to rank `c`, which combines the parts in rank order 0, 1, 2, ... and rounds once.
//! The second phase is the ring's all-gather.
//!
//! The loop runs over the segments of a chunk: send segment `s` of all other chunks, then receive
//! segment `s` of the own chunk from all ranks. A rank that is in round `s + 1` has segment `s` of
//! all others, so it is at most one round ahead: two segments per pair of ranks are in flight at
//! most, and no send waits for a rank that waits for this one.
//!
//! - Steps: `2(P - 1)`. Bytes sent per rank: `2S(P - 1)/P`.
//! - Order: canonical. Half types are combined in `f32` and rounded once.

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
            exchange.combine_in_order::<T>(own)?;
        }
    }
    Ok(())
}
