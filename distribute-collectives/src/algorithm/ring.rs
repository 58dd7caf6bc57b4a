//! Ring: reduce-scatter, then all-gather, each chunk travelling once around the ring per phase.
//!
//! Rank `r` sends to `r + 1` and receives from `r - 1`. The vector has `P` chunks. In step `k` of
//! the first phase rank `r` sends chunk `r - k - 1` and combines the incoming chunk `r - k - 2`
//! with its own (all modulo `P`), so after `P - 1` steps it holds chunk `r` fully reduced. In step
//! `k` of the second phase it sends chunk `r - k` and stores chunk `r - k - 1`.
//!
//! Each chunk has `segments` segments, and the loop runs over items (step, segment). What an item
//! sends was received `segments` items before. The loop sends item `i` before it receives item
//! `i - ahead`, so that segments travel while another one is reduced; items up to
//! `i - ahead - 1` have been received by then, so `ahead` is below the number of segments (0 for
//! chunks so short that they are one segment). `ahead + 1` segments are in flight: as many as the
//! transport holds. There are `steps * segments` items and `ahead` more rounds to receive the last
//! ones. (After gloo, `allreduce.cc`, where `ahead` is 1.) Segments have the size that suits the
//! transport, the last one of a chunk what is left.
//!
//! - Steps: `2(P - 1)`. Bytes sent per rank: `2S(P - 1)/P`.
//! - Order: chunk `c` is reduced in the order `c + 1, c + 2, ..., c` (modulo `P`).
//! - Half types are rounded once per step: the wire carries the half type.

use std::ops::Range;

use crate::algorithm::exchange::{Exchange, segment_of};
use crate::buffer::Element;
use crate::communicator::chunk_range;
use crate::error::Result;

/// All-reduce.
pub(crate) fn all_reduce<T: Element>(exchange: &mut Exchange<'_, '_>) -> Result<()> {
    let (len, size) = (exchange.len, exchange.size);
    run::<T>(exchange, size - 1, &|chunk| chunk_range(len, size, chunk))
}

/// Gives every rank all chunks; rank `r` has chunk `r`, at `chunk(r)` of the vector.
pub(crate) fn all_gather<T: Element>(
    exchange: &mut Exchange<'_, '_>,
    chunk: &dyn Fn(usize) -> Range<usize>,
) -> Result<()> {
    run::<T>(exchange, 0, chunk)
}

/// `reducing` is the number of steps of the first phase, if there is one.
fn run<T: Element>(
    exchange: &mut Exchange<'_, '_>,
    reducing: usize,
    chunk: &dyn Fn(usize) -> Range<usize>,
) -> Result<()> {
    let (rank, size) = (exchange.rank(), exchange.size);
    let longest = (0..size).map(|index| chunk(index).len()).max().unwrap_or(0);
    if size < 2 || longest == 0 {
        return Ok(());
    }
    // A short chunk is not worth a second message.
    let fewest = if longest <= exchange.segment / 4 {
        1
    } else {
        2
    };
    let segments = longest.div_ceil(exchange.segment).max(fewest);
    // Whole segments and a rest: a segment has the size that fills packets.
    let segment = exchange.segment.min(longest.div_ceil(fewest));
    let (next, previous) = ((rank + 1) % size, (rank + size - 1) % size);
    // `back` steps before this rank, modulo the number of chunks; no step goes back further than
    // twice `size`. Every step is one chunk further back than the one before, the first of the
    // second phase too. Without a first phase this rank's chunk is where it begins.
    let before = |back: usize| (rank + 2 * size - back) % size;
    let first = usize::from(reducing > 0);
    let items = (reducing + size - 1) * segments;
    let in_flight = exchange.transport.segments_in_flight();
    let ahead = in_flight.min(segments).saturating_sub(1);
    for item in 0..items + ahead {
        if item < items {
            let (step, index) = (item / segments, item % segments);
            let sent = chunk(before(first + step));
            exchange.send::<T>(next, segment_of(&sent, segment, index))?;
        }
        if item >= ahead {
            let (step, index) = ((item - ahead) / segments, (item - ahead) % segments);
            let received = chunk(before(first + step + 1));
            let range = segment_of(&received, segment, index);
            if step < reducing {
                exchange.receive_reduce::<T>(previous, range, step + 1 == reducing)?;
            } else {
                exchange.receive::<T>(previous, range)?;
            }
        }
    }
    Ok(())
}
