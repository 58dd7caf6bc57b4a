//! Which algorithm runs.

use crate::link_cost::{ALL_TO_ALL_MAX, LinkCost};
use crate::options::{Algorithm, Order};

/// A choice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Selection {
    /// The algorithm that runs; never [`Algorithm::Auto`].
    pub(crate) algorithm: Algorithm,
    /// The order in which it combines what the ranks contribute.
    pub(crate) order: Order,
}

/// What [`Algorithm::Auto`] decides from. The same on all ranks of a group.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct Topology {
    /// What the links between the ranks cost.
    pub(crate) cost: LinkCost,
    /// Whether the cost was measured; otherwise it is the default.
    pub(crate) is_measured: bool,
    /// Ranks per host, where ranks of one host reach each other faster than ranks of another and
    /// host `h` has the ranks from `h` times this number on. 0 says as little as `None`.
    pub(crate) ranks_per_host: Option<usize>,
}

/// Picks the algorithm of an all-reduce of `bytes` bytes over a transport that sends messages.
///
/// The order is kept by the algorithm that runs: direct_exchange and halving_doubling always sum in
/// canonical order, the others exchange chunks then, which each rank combines in that order.
///
/// What [`Algorithm::Auto`] decides from measured costs never shows in the bits of a result, so
/// that a rerun gives the same ones on a machine that is busier: it is the choice between
/// algorithms that sum in canonical order. Whether [`Order::Fast`] means an algorithm with another
/// order (hierarchical) follows from the numbers of ranks, hosts and bytes alone, with the costs of
/// [`LinkCost::default`].
pub(crate) fn select(
    wanted: Algorithm,
    order: Order,
    world_size: usize,
    bytes: usize,
    topology: &Topology,
) -> Selection {
    if wanted != Algorithm::Auto {
        return Selection {
            algorithm: wanted,
            order,
        };
    }
    let of_another_order = match order {
        Order::Fast => not_canonical(world_size, bytes, topology.ranks_per_host),
        Order::Canonical => None,
    };
    of_another_order.unwrap_or_else(|| Selection {
        algorithm: topology.cost.cheapest(world_size, bytes),
        order: Order::Canonical,
    })
}

/// The algorithm that sums in an order of its own, if it pays: `hierarchical`, which sends the
/// fewest bytes between hosts, for buffers whose time is mostly bandwidth.
fn not_canonical(
    world_size: usize,
    bytes: usize,
    ranks_per_host: Option<usize>,
) -> Option<Selection> {
    let ranks_per_host = ranks_per_host.filter(|ranks| *ranks > 0)?;
    let steps_matter = LinkCost::default().cheapest_of_all(world_size, bytes) != Algorithm::Ring;
    (!steps_matter).then_some(Selection {
        algorithm: Algorithm::Hierarchical { ranks_per_host },
        order: Order::Fast,
    })
}

/// What [`Algorithm::Auto`] does in a group, in words.
pub(crate) fn explain(order: Order, world_size: usize, topology: &Topology) -> String {
    // A choice may change at nothing and at powers of two.
    let sizes = std::iter::once(0).chain((3..32).map(|shift| 1_usize << shift));
    let chosen = sizes.map(|bytes| {
        let selection = select(Algorithm::Auto, order, world_size, bytes.max(1), topology);
        (bytes, selection.algorithm)
    });
    let mut steps: Vec<(usize, Algorithm)> = chosen.collect();
    steps.dedup_by_key(|(_, algorithm)| *algorithm);
    let words: Vec<String> = steps
        .iter()
        .map(|(bytes, algorithm)| match bytes {
            0 => algorithm.to_string(),
            bytes => format!("{algorithm} from {}", size(*bytes)),
        })
        .collect();
    let words = words.join(", ");
    if world_size > ALL_TO_ALL_MAX {
        return format!("{words} (few connections for each of {world_size} ranks)");
    }
    let source = if topology.is_measured {
        "measured"
    } else {
        "assumed"
    };
    format!("{words} ({source}: {})", topology.cost)
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

    use proptest::prelude::*;

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
            assert_eq!(pick(order, 64, 4096), Algorithm::HalvingDoubling);
        }
        let named = select(Algorithm::HalvingDoubling, Order::Fast, 2, 4, &topology);
        assert_eq!(named.algorithm, Algorithm::HalvingDoubling);
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
    fn a_slow_link_prefers_one_step_for_longer() {
        let pick = |bytes, latency| {
            let cost = LinkCost {
                latency,
                ..LinkCost::default()
            };
            let topology = Topology {
                cost,
                ..Topology::default()
            };
            select(Algorithm::Auto, Order::Canonical, 8, bytes, &topology).algorithm
        };
        let (near, far) = (Duration::from_micros(20), Duration::from_millis(10));
        assert_eq!(pick(4 << 20, near), Algorithm::Ring);
        assert_eq!(pick(1 << 20, near), Algorithm::HalvingDoubling);
        assert_eq!(pick(1 << 20, far), Algorithm::DirectExchange);
    }

    /// In which order a choice sums: all that the bits of a result depend on.
    fn order_of(selection: &Selection) -> Option<Algorithm> {
        let is_canonical = selection.order == Order::Canonical;
        (!is_canonical).then_some(selection.algorithm)
    }

    proptest! {
        #[test]
        fn the_order_does_not_depend_on_what_was_measured(
            world_size in 1..200_usize,
            bytes in 0..1_usize << 32,
            shift in 0..32_u32,
            ranks_per_host in prop::option::of(0..9_usize),
            measured in prop::array::uniform2((0..10_000_000_u64, 1e3..1e12_f64, 1e3..1e12_f64)),
            fast: bool,
        ) {
            let order = if fast { Order::Fast } else { Order::Canonical };
            let orders = measured.map(|(nanoseconds, ring, direct)| {
                let cost = LinkCost {
                    latency: Duration::from_nanos(nanoseconds),
                    ring_bytes_per_second: ring,
                    direct_exchange_bytes_per_second: direct,
                };
                let topology = Topology { cost, is_measured: true, ranks_per_host };
                let bytes = bytes >> shift;
                order_of(&select(Algorithm::Auto, order, world_size, bytes, &topology))
            });
            prop_assert_eq!(orders[0], orders[1]);
            prop_assert!(fast || orders[0].is_none());
        }
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
        assert_eq!(
            explain(Order::Fast, 1000, &topology),
            "halving_doubling (few connections for each of 1000 ranks)"
        );
    }
}
