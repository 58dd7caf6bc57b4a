//! Broadcast: the root's vector travels from neighbour to neighbour, around a ring.
//!
//! - Steps: `P - 1`, pipelined over the segments. Bytes sent: `S` by each rank but the last one.

use crate::algorithm::exchange::Exchange;
use crate::buffer::Element;
use crate::error::Result;

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
