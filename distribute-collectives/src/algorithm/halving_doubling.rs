//! Recursive halving and doubling (Rabenseifner), for any number of ranks.
//!
//! Let `Q` be the largest power of two that is not above `P`, and `E = P - Q`. The first `2E` ranks
//! form pairs: the even one gives its vector to the odd one and waits. The `Q` ranks that are left
//! are renumbered `v = 0..Q`.
//!
//! Halving: at distance `d = Q/2, Q/4, ..., 1` rank `v` and its partner `v XOR d` hold the same
//! window of the vector. Each keeps one half (the lower one when bit `d` of `v` is 0), gives the
//! other half away and combines the incoming half with its own. `log2 Q` steps later each rank
//! holds its own `1/Q` of the vector, fully reduced: every element is reduced on exactly one rank,
//! so all ranks end with the same bits. Doubling runs the same steps backwards and copies.
//!
//! - Steps: `2 log2 Q`, and 2 more when `P` is not a power of two.
//! - Bytes sent per rank: `2S(Q - 1)/Q`; ranks of a pair send up to `S` more.
//! - Order: a tree: pairs first, then partners at distance `Q/2`, then `Q/4`, and so on.
//! - Half types are rounded once per step: the wire carries the half type.

use crate::algorithm::exchange::Exchange;
use crate::buffer::Element;
use crate::error::Result;
use std::ops::Range;

/// All-reduce.
pub(crate) fn all_reduce<T: Element>(exchange: &mut Exchange<'_, '_>) -> Result<()> {
    let (rank, size, vector) = (exchange.rank(), exchange.size, 0..exchange.len);
    let power = 1 << size.ilog2();
    let extra = size - power;
    let paired = rank < 2 * extra;
    if paired && rank.is_multiple_of(2) {
        exchange.swap::<T>(rank + 1, vector.clone(), 0..0, Exchange::receive::<T>)?;
        return exchange.swap::<T>(rank + 1, 0..0, vector, Exchange::receive::<T>);
    }
    if paired {
        exchange.swap::<T>(rank - 1, 0..0, vector.clone(), |exchange, peer, range| {
            exchange.receive_reduce::<T>(peer, range, false)
        })?;
    }
    let number = if paired { rank / 2 } else { rank - extra };
    let rank_of = |number: usize| {
        if number < extra {
            2 * number + 1
        } else {
            number + extra
        }
    };
    halve_and_double::<T>(exchange, number, power, rank_of)?;
    if paired {
        exchange.swap::<T>(rank - 1, vector, 0..0, Exchange::receive::<T>)?;
    }
    Ok(())
}

/// The halves of the window of rank `number` at a distance: (kept, given).
fn halves(window: Range<usize>, number: usize, distance: usize) -> (Range<usize>, Range<usize>) {
    let middle = window.start + window.len() / 2;
    let (low, high) = (window.start..middle, middle..window.end);
    if number & distance == 0 {
        (low, high)
    } else {
        (high, low)
    }
}

fn halve_and_double<T: Element>(
    exchange: &mut Exchange<'_, '_>,
    number: usize,
    power: usize,
    rank_of: impl Fn(usize) -> usize,
) -> Result<()> {
    let levels = power.ilog2();
    let mut window = 0..exchange.len;
    for level in (0..levels).rev() {
        let distance = 1_usize << level;
        let (kept, given) = halves(window, number, distance);
        let peer = rank_of(number ^ distance);
        exchange.swap::<T>(peer, given, kept.clone(), |exchange, peer, range| {
            exchange.receive_reduce::<T>(peer, range, level == 0)
        })?;
        window = kept;
    }
    for level in 0..levels {
        let distance = 1_usize << level;
        // The window before the halving at this distance, found again from the start.
        let mut window = 0..exchange.len;
        for earlier in (level + 1..levels).rev() {
            window = halves(window, number, 1 << earlier).0;
        }
        let (kept, given) = halves(window, number, distance);
        let peer = rank_of(number ^ distance);
        exchange.swap::<T>(peer, kept, given, Exchange::receive::<T>)?;
    }
    Ok(())
}
