//! With which other ranks a rank exchanges segments: what a group needs connections for.
//!
//! | algorithm | partners of a rank |
//! |---|---|
//! | `halving_doubling` | `log2 P`, and at most 2 in the blocks beside |
//! | `ring` in its own order, `broadcast`, `all_gather` | 2 |
//! | `hierarchical` in its own order | its host, and 2 for a leader |
//! | `direct_exchange`, `ordered` | all others |
//! | `dissemination`, which compares headers | at most `2 log2 P`, rounded up |
//!
//! The partners in the dissemination are the ranks at distances of powers of two, so they are most
//! of those in halving_doubling and both neighbours in a ring, too.

use std::collections::BTreeSet;

use crate::algorithm::{dissemination, halving_doubling};
use crate::link_cost::ALL_TO_ALL_MAX;
use crate::options::{Algorithm, Order};

/// The ranks with which a rank exchanges segments in all-reduces, broadcasts, all-gathers and
/// barriers of a group with these options. (A reduce_scatter and a reduce exchange chunks between
/// all ranks, and a point-to-point call is made with any.)
pub(crate) fn of(
    algorithm: Algorithm,
    order: Order,
    rank: usize,
    world_size: usize,
) -> BTreeSet<usize> {
    let mut ranks = BTreeSet::new();
    for (to, from) in dissemination::rounds(rank, world_size) {
        ranks.extend([to, from]);
    }
    match (algorithm, order) {
        (Algorithm::Auto, _) if world_size > ALL_TO_ALL_MAX => {
            ranks.extend(halving_doubling::partners(rank, world_size));
        }
        (Algorithm::HalvingDoubling, _) => {
            ranks.extend(halving_doubling::partners(rank, world_size));
        }
        // Both neighbours are among them already.
        (Algorithm::Ring, Order::Fast) => {}
        (Algorithm::Hierarchical { ranks_per_host }, Order::Fast) if ranks_per_host > 0 => {
            ranks.extend(in_hosts(rank, world_size, ranks_per_host));
        }
        _ => ranks.extend(0..world_size),
    }
    ranks.remove(&rank);
    ranks
}

/// The partners of a rank in the hierarchical algorithm.
fn in_hosts(rank: usize, world_size: usize, ranks_per_host: usize) -> Vec<usize> {
    let (host, hosts) = (rank / ranks_per_host, world_size.div_ceil(ranks_per_host));
    let leader = host * ranks_per_host;
    if rank != leader {
        return vec![leader];
    }
    let neighbours = [(host + 1) % hosts, (host + hosts - 1) % hosts];
    let members = leader + 1..world_size.min(leader + ranks_per_host);
    let leaders = neighbours.into_iter().map(|host| host * ranks_per_host);
    members.chain(leaders).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_of_a_big_group_has_few_partners() {
        for size in (2..130_usize)
            .chain((130..1100).step_by(37))
            .chain([1024, 4096])
        {
            let rounds = size.next_power_of_two().ilog2() as usize;
            for rank in (0..size).step_by(size.div_ceil(97)) {
                for algorithm in [Algorithm::HalvingDoubling, Algorithm::Auto] {
                    let partners = of(algorithm, Order::Canonical, rank, size);
                    let is_mesh = algorithm == Algorithm::Auto && size <= ALL_TO_ALL_MAX;
                    let most = if is_mesh { size - 1 } else { 2 * rounds + 2 };
                    assert!(partners.len() <= most, "{algorithm}, {rank} of {size}");
                    assert!(!partners.contains(&rank) && partners.iter().all(|it| *it < size));
                }
                let ring = of(Algorithm::Ring, Order::Fast, rank, size);
                assert!(ring.len() <= 2 * rounds, "{rank} of {size}");
                let all = of(Algorithm::Ring, Order::Canonical, rank, size);
                assert_eq!(all.len(), size - 1);
            }
        }
    }

    #[test]
    fn partners_are_partners_of_each_other() {
        let algorithms = [
            Algorithm::Auto,
            Algorithm::Ring,
            Algorithm::HalvingDoubling,
            Algorithm::DirectExchange,
            Algorithm::Hierarchical { ranks_per_host: 3 },
        ];
        for size in (1..40_usize).chain([70, 100]) {
            for algorithm in algorithms {
                for order in [Order::Fast, Order::Canonical] {
                    let all: Vec<_> = (0..size)
                        .map(|rank| of(algorithm, order, rank, size))
                        .collect();
                    for (rank, partners) in all.iter().enumerate() {
                        let mutual = partners.iter().all(|other| all[*other].contains(&rank));
                        assert!(mutual, "{algorithm} {order}, {rank} of {size}");
                    }
                }
            }
        }
    }
}
