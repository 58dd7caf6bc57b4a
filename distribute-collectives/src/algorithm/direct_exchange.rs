//! Direct exchange: every rank sends its whole vector to every other rank and combines all of them.
//!
//! One step is all there is: no rank waits for another rank's partial result, so the latency is
//! that of one message, however many ranks there are. Every rank sends each byte `P - 1` times,
//! which is why it is for small buffers.
//!
//! The loop runs over the segments of the vector: send segment `s` to all others, then combine
//! segment `s` of all ranks in canonical order. A rank that is in round `s + 1` has segment `s` of
//! all others, so they have sent segment `s + 1` at most and read up to `s - 1` at least: two
//! segments per pair of ranks are in flight at most, and no send waits for a rank that waits for
//! this one.
//!
//! - Steps: 1. Bytes sent per rank: `S(P - 1)`.
//! - Order: canonical, on every rank, so all ranks end with the same bits.
//! - Half types are combined in `f32` and rounded at every node of the [`tree`](crate::tree).

use crate::algorithm::exchange::Exchange;
use crate::buffer::Element;
use crate::error::Result;

/// All-reduce.
pub(crate) fn all_reduce<T: Element>(exchange: &mut Exchange<'_, '_>) -> Result<()> {
    let (rank, size, vector) = (exchange.rank(), exchange.size, 0..exchange.len);
    for range in exchange.segments(&vector) {
        for offset in 1..size {
            exchange.send::<T>((rank + offset) % size, range.clone())?;
        }
        exchange.combine_in_tree::<T>(range)?;
    }
    Ok(())
}
