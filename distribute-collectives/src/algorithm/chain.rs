//! Chain: partial results travel from rank 0 to the last rank, the result travels back.
//!
//! Rank 0 sends segment `s`; every next rank combines the incoming partial result with its own
//! elements and passes it on; the last rank finishes it and sends it back the same way.
//!
//! Both directions run at once. Segment `s` returns to rank `r` at the earliest after it has
//! reached the end, `P - 1 - r` ranks away, so rank `r` takes segment `s - lag` from behind in
//! round `s`, with `lag = P - 1 - r`, and needs `segments + lag` rounds. The neighbour's lag is one
//! less, so neighbours are never more than two segments apart: no send waits for ever.
//!
//! - Steps: `2(P - 1)`, pipelined over the segments. Bytes sent: `S` by the first and the last
//!   rank, `2S` by the others; half types send partial results as `f32`, so `2S` forward.
//! - With a wire type, partial results are rounded to it on every hop: `P` roundings in all.
//! - Order: rank 0, then rank 1, then rank 2 and so on, from left to right, which is the canonical
//!   one for at most 3 ranks. Half types are combined in `f32` and rounded once, by the last rank.

use crate::algorithm::exchange::{Exchange, segment_of};
use crate::buffer::Element;
use crate::error::Result;

/// All-reduce.
pub(crate) fn all_reduce<T: Element>(exchange: &mut Exchange<'_, '_>) -> Result<()> {
    let (rank, size, vector) = (exchange.rank(), exchange.size, 0..exchange.len);
    let segments = exchange.segments(&vector).len();
    let lag = size - 1 - rank;
    for round in 0..segments + lag {
        if round < segments {
            forward::<T>(exchange, round)?;
        }
        if round >= lag {
            let range = segment_of(&vector, exchange.segment, round - lag);
            if lag > 0 {
                exchange.receive::<T>(rank + 1, range.clone())?;
            }
            if rank > 0 {
                exchange.send::<T>(rank - 1, range)?;
            }
        }
    }
    Ok(())
}

/// Combines one segment with the partial result from the rank before and passes it on.
fn forward<T: Element>(exchange: &mut Exchange<'_, '_>, index: usize) -> Result<()> {
    let range = segment_of(&(0..exchange.len), exchange.segment, index);
    let (rank, len) = (exchange.rank(), range.len());
    if rank == 0 {
        exchange.load::<T>(range.clone());
    } else {
        exchange.receive_partial::<T>(rank - 1, len)?;
        exchange.add_own::<T>(range.clone());
    }
    if rank + 1 < exchange.size {
        exchange.send_partial::<T>(rank + 1, len)
    } else {
        exchange.store::<T>(range);
        Ok(())
    }
}

/// Copies the root's vector to all ranks, from neighbour to neighbour.
pub(crate) fn broadcast<T: Element>(exchange: &mut Exchange<'_, '_>, root: usize) -> Result<()> {
    let (rank, size, vector) = (exchange.rank(), exchange.size, 0..exchange.len);
    let (next, previous) = ((rank + 1) % size, (rank + size - 1) % size);
    for range in exchange.segments(&vector) {
        if rank != root {
            exchange.receive::<T>(previous, range.clone())?;
        }
        if next != root {
            exchange.send::<T>(next, range)?;
        }
    }
    Ok(())
}
