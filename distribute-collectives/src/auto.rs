//! Which algorithm runs, and why.

use std::fmt;

use crate::link_cost::LinkCost;
use crate::options::{Algorithm, Order};

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

/// What [`Algorithm::Auto`] decides from. The same on all ranks of a group.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Topology {
    /// What the links between the ranks cost.
    pub cost: LinkCost,
    /// Whether the cost was measured; otherwise it is the default.
    pub is_measured: bool,
    /// Ranks per host, where ranks of one host reach each other faster than those of another and
    /// host `h` has the ranks from `h` times this number on. 0 says as little as `None`.
    pub ranks_per_host: Option<usize>,
}

/// Picks the algorithm of an all-reduce of `bytes` bytes over a transport that sends messages.
///
/// The order is kept by the algorithm that runs: in canonical order, ring and halving_doubling
/// exchange chunks in rank order instead, and hierarchical runs the chain, which crosses each
/// border between hosts once in each direction.
pub fn select(
    wanted: Algorithm,
    order: Order,
    world_size: usize,
    bytes: usize,
    topology: &Topology,
) -> Selection {
    if wanted != Algorithm::Auto {
        return Selection {
            algorithm: wanted,
            reason: "asked for by name",
        };
    }
    let cheapest = match topology.cost.cheapest(world_size, bytes) {
        // In canonical order both exchange chunks in rank order; the ring says so.
        Algorithm::HalvingDoubling if order == Order::Canonical => Algorithm::Ring,
        algorithm => algorithm,
    };
    let ranks_per_host = topology.ranks_per_host.filter(|ranks| *ranks > 0);
    let (algorithm, reason) = match (cheapest, ranks_per_host) {
        (Algorithm::DirectExchange, _) => (
            Algorithm::DirectExchange,
            "one step matters most for so few bytes",
        ),
        (Algorithm::HalvingDoubling, _) => (
            Algorithm::HalvingDoubling,
            "few steps matter most for so few bytes",
        ),
        (_, Some(ranks_per_host)) if order == Order::Fast => (
            Algorithm::Hierarchical { ranks_per_host },
            "the fewest bytes between hosts",
        ),
        _ => (Algorithm::Ring, "the fewest bytes per rank"),
    };
    Selection { algorithm, reason }
}

/// What [`Algorithm::Auto`] does in a group, in words.
pub(crate) fn explain(order: Order, world_size: usize, topology: &Topology) -> String {
    let mut steps: Vec<(usize, Algorithm)> = Vec::new();
    for (bytes, _) in topology.cost.crossovers(world_size) {
        let selection = select(Algorithm::Auto, order, world_size, bytes, topology);
        if steps
            .last()
            .is_none_or(|(_, last)| *last != selection.algorithm)
        {
            steps.push((bytes, selection.algorithm));
        }
    }
    let words: Vec<String> = steps
        .iter()
        .map(|(bytes, algorithm)| match bytes {
            0 => algorithm.to_string(),
            bytes => format!("{algorithm} from {}", size(*bytes)),
        })
        .collect();
    let source = if topology.is_measured {
        "measured"
    } else {
        "assumed"
    };
    format!("{} ({source}: {})", words.join(", "), topology.cost)
}

fn size(bytes: usize) -> String {
    match bytes {
        ..1024 => format!("{bytes} B"),
        1024..1_048_576 => format!("{} KiB", bytes >> 10),
        _ => format!("{} MiB", bytes >> 20),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn small_buffers_take_one_step_and_big_ones_the_fewest_bytes() {
        let topology = Topology::default();
        let pick = |order, world_size, bytes| {
            select(Algorithm::Auto, order, world_size, bytes, &topology).algorithm
        };
        for order in [Order::Fast, Order::Canonical] {
            assert_eq!(pick(order, 2, 4096), Algorithm::DirectExchange);
            assert_eq!(pick(order, 3, 100 << 20), Algorithm::Ring);
            assert_eq!(pick(order, 64, 1 << 30), Algorithm::Ring);
        }
        assert_eq!(pick(Order::Fast, 64, 4096), Algorithm::HalvingDoubling);
        assert_eq!(pick(Order::Canonical, 64, 4096), Algorithm::Ring);
        let named = select(Algorithm::Chain, Order::Fast, 2, 4, &topology);
        assert_eq!(named.to_string(), "chain: asked for by name");
    }

    #[test]
    fn hosts_with_several_ranks_are_crossed_once() {
        let topology = Topology {
            ranks_per_host: Some(2),
            ..Topology::default()
        };
        let pick = |order, bytes| select(Algorithm::Auto, order, 4, bytes, &topology).algorithm;
        let hierarchical = Algorithm::Hierarchical { ranks_per_host: 2 };
        assert_eq!(pick(Order::Fast, 100 << 20), hierarchical);
        assert_eq!(pick(Order::Canonical, 100 << 20), Algorithm::Ring);
        assert_eq!(pick(Order::Fast, 4), Algorithm::DirectExchange);
    }

    #[test]
    fn hosts_without_ranks_say_nothing() {
        let topology = Topology {
            ranks_per_host: Some(0),
            ..Topology::default()
        };
        let selection = select(Algorithm::Auto, Order::Fast, 4, 100 << 20, &topology);
        assert_eq!(selection.algorithm, Algorithm::Ring);
    }

    #[test]
    fn the_explanation_names_sizes_and_costs() {
        let topology = Topology {
            cost: LinkCost {
                latency: Duration::from_micros(25),
                ..LinkCost::default()
            },
            is_measured: true,
            ranks_per_host: None,
        };
        assert_eq!(
            explain(Order::Fast, 4, &topology),
            "direct_exchange, halving_doubling from 64 KiB, ring from 1 MiB \
             (measured: 25 us a step, 2.00 GB/s each way)"
        );
    }
}
