//! Which algorithm runs, and why.

use std::fmt;

use crate::options::{Algorithm, Order};

/// Below this size the number of steps costs more than the bytes.
const SMALL_BYTES: usize = 64 * 1024;

/// With more ranks one step of sending to everybody costs more than a few steps.
const MOST_PEERS: usize = 16;

/// A choice that explains itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Selection {
    /// The algorithm that runs; never [`Algorithm::Auto`].
    pub algorithm: Algorithm,
    /// Why.
    pub reason: &'static str,
}

impl fmt::Display for Selection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.algorithm, self.reason)
    }
}

/// The most bytes for which [`Algorithm::DirectExchange`] is picked: what a rank sends to all
/// others together stays at most [`SMALL_BYTES`], and so do the messages of one round.
fn direct_exchange_bytes(world_size: usize) -> usize {
    if world_size > MOST_PEERS {
        0
    } else {
        SMALL_BYTES / world_size.saturating_sub(1).max(1)
    }
}

/// Picks the algorithm of an all-reduce of `bytes` bytes over a transport that sends messages.
///
/// The order is kept by the algorithm that runs: in canonical order, ring and halving_doubling
/// exchange chunks in rank order instead, and hierarchical runs the chain, which crosses each
/// border between hosts once in each direction.
pub fn select(wanted: Algorithm, order: Order, world_size: usize, bytes: usize) -> Selection {
    let (algorithm, reason) = match wanted {
        Algorithm::Auto if bytes <= direct_exchange_bytes(world_size) => (
            Algorithm::DirectExchange,
            "one step matters most while all that a rank sends is at most 64 KiB",
        ),
        Algorithm::Auto if order == Order::Canonical => (
            Algorithm::Ring,
            "canonical order with the fewest bytes per rank",
        ),
        Algorithm::Auto if bytes <= SMALL_BYTES && world_size > 2 => (
            Algorithm::HalvingDoubling,
            "few steps matter most for a buffer of at most 64 KiB",
        ),
        Algorithm::Auto => (Algorithm::Ring, "the fewest bytes per rank"),
        algorithm => (algorithm, "asked for by name"),
    };
    Selection { algorithm, reason }
}

/// What [`Algorithm::Auto`] does in a group, in words.
pub(crate) fn explain(order: Order, world_size: usize) -> String {
    let first = match direct_exchange_bytes(world_size) {
        0 => String::new(),
        bytes => format!("direct_exchange up to {} KiB, ", bytes / 1024),
    };
    match order {
        Order::Canonical => format!("{first}ring with chunks in rank order above"),
        Order::Fast if world_size > 2 => {
            format!("{first}halving_doubling up to 64 KiB, ring above")
        }
        Order::Fast => format!("{first}ring above"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_buffers_take_one_step_and_big_ones_the_fewest_bytes() {
        let pick =
            |order, world_size, bytes| select(Algorithm::Auto, order, world_size, bytes).algorithm;
        for order in [Order::Fast, Order::Canonical] {
            assert_eq!(pick(order, 2, 64 * 1024), Algorithm::DirectExchange);
            assert_eq!(pick(order, 2, 64 * 1024 + 4), Algorithm::Ring);
            assert_eq!(pick(order, 5, 16 * 1024), Algorithm::DirectExchange);
            assert_eq!(pick(order, 64, 1 << 20), Algorithm::Ring);
        }
        assert_eq!(pick(Order::Fast, 5, 20_000), Algorithm::HalvingDoubling);
        assert_eq!(pick(Order::Fast, 64, 4), Algorithm::HalvingDoubling);
        assert_eq!(pick(Order::Canonical, 64, 4), Algorithm::Ring);
        let named = select(Algorithm::Chain, Order::Fast, 2, 4);
        assert_eq!(named.to_string(), "chain: asked for by name");
    }
}
