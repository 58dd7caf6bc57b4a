//! Which pairs of ranks are looked at, and in which rounds they are measured.
//!
//! Up to [`ALL_PAIRS_MAX`] ranks every pair is looked at; of more, the pairs of ranks at a distance
//! of 1, 2, 4, .. (about `log2 N` for each rank, as in the canonical tree). In a round no host is
//! part of two pairs, so that no measurement shares a network interface with another one: a
//! tournament of the hosts. With one rank on each of `N` hosts it has `N - 1` rounds (`N` if that
//! is odd).

use std::collections::{BTreeMap, BTreeSet};

/// The most ranks of which all pairs are looked at.
pub(crate) const ALL_PAIRS_MAX: usize = 16;
/// The most rounds; pairs that do not fit into them are left out, first the pairs of hosts between
/// which another pair is measured.
pub(crate) const ROUNDS_MAX: usize = 120;

/// A pair of ranks, the lower one first.
pub(crate) type Pair = (usize, usize);

/// The rounds of measurements.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Plan {
    pub(crate) rounds: Vec<Vec<Pair>>,
    /// Pairs that did not fit.
    pub(crate) left_out: usize,
}

/// The pairs that are looked at, in the order of a tournament.
pub(crate) fn pairs(ranks: usize) -> Vec<Pair> {
    match ranks {
        0 | 1 => Vec::new(),
        2..=ALL_PAIRS_MAX => tournament(ranks),
        _ => at_powers_of_two(ranks),
    }
}

/// How the pairs were chosen, in words.
pub(crate) fn choice(ranks: usize) -> &'static str {
    if ranks <= ALL_PAIRS_MAX {
        "all pairs"
    } else {
        "pairs at a distance of 1, 2, 4, .. ranks"
    }
}

/// The circle method: one rank stays, the others move on by one place after each round, and those
/// that face each other meet.
fn tournament(ranks: usize) -> Vec<Pair> {
    let places = ranks.next_multiple_of(2);
    let moving = places - 1;
    let mut all = Vec::with_capacity(ranks * (ranks - 1) / 2);
    for round in 0..moving {
        let staying = std::iter::once((moving, round));
        let facing = (1..places / 2)
            .map(|place| ((round + place) % moving, (round + moving - place) % moving));
        // With an odd number, who meets the empty place rests.
        let real = staying
            .chain(facing)
            .filter(|(a, b)| *a.max(b) < ranks)
            .map(|(a, b)| (a.min(b), a.max(b)));
        all.extend(real);
    }
    all
}

/// Blocks of `distance` ranks meet the next block: the even ones first, then the odd ones.
fn at_powers_of_two(ranks: usize) -> Vec<Pair> {
    let mut all = Vec::new();
    let mut distance = 1;
    while distance < ranks {
        for parity in [0, 1] {
            let lower = (0..ranks - distance).filter(|rank| rank / distance % 2 == parity);
            all.extend(lower.map(|rank| (rank, rank + distance)));
        }
        distance *= 2;
    }
    all
}

/// Puts each pair into the first round in which neither host is busy; `host(rank)` is the number of
/// a rank's host.
pub(crate) fn plan(pairs: &[Pair], host: impl Fn(usize) -> usize) -> Plan {
    let hosts = |pair: &Pair| {
        let (a, b) = (host(pair.0), host(pair.1));
        (a.min(b), a.max(b))
    };
    let (mut first, mut more, mut seen) = (Vec::new(), Vec::new(), BTreeSet::new());
    for pair in pairs {
        if seen.insert(hosts(pair)) {
            first.push(*pair);
        } else {
            more.push(*pair);
        }
    }
    let mut plan = Plan::default();
    let mut busy: Vec<BTreeSet<usize>> = Vec::new();
    // Per host the first round in which it may be free, to look at few of them.
    let mut free: BTreeMap<usize, usize> = BTreeMap::new();
    for pair in first.into_iter().chain(more) {
        let (a, b) = hosts(&pair);
        let from = |host: usize| free.get(&host).copied().unwrap_or(0);
        let mut round = from(a).max(from(b));
        while busy
            .get(round)
            .is_some_and(|busy| busy.contains(&a) || busy.contains(&b))
        {
            round += 1;
        }
        if round >= ROUNDS_MAX {
            plan.left_out += 1;
            continue;
        }
        busy.resize_with(busy.len().max(round + 1), BTreeSet::new);
        plan.rounds.resize_with(busy.len(), Vec::new);
        busy[round].extend([a, b]);
        plan.rounds[round].push(pair);
        for host in [a, b] {
            let mut next = free.get(&host).copied().unwrap_or(0);
            while busy.get(next).is_some_and(|busy| busy.contains(&host)) {
                next += 1;
            }
            free.insert(host, next);
        }
    }
    plan
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn one_rank_on_each_host_meets_each_other_one_in_the_fewest_rounds() {
        for ranks in 2..=ALL_PAIRS_MAX {
            let pairs = pairs(ranks);
            let different: BTreeSet<Pair> = pairs.iter().copied().collect();
            assert_eq!(different.len(), ranks * (ranks - 1) / 2, "{ranks}");
            let plan = plan(&pairs, |rank| rank);
            let fewest = if ranks % 2 == 0 { ranks - 1 } else { ranks };
            assert_eq!((plan.rounds.len(), plan.left_out), (fewest, 0), "{ranks}");
        }
    }

    #[test]
    fn the_ranks_of_one_host_are_measured_one_pair_after_the_other() {
        let plan = plan(&pairs(4), |_| 0);
        assert!(plan.rounds.iter().all(|round| round.len() == 1));
        assert_eq!((plan.rounds.len(), plan.left_out), (6, 0));
    }

    #[test]
    fn a_sample_has_a_logarithm_of_pairs_for_each_rank() {
        for ranks in [17, 64, 100, 1000] {
            let pairs = pairs(ranks);
            let of = |rank| {
                pairs
                    .iter()
                    .filter(|(a, b)| *a == rank || *b == rank)
                    .count()
            };
            let most = (0..ranks).map(of).max().unwrap();
            let steps = ranks.next_power_of_two().ilog2() as usize;
            assert!(most <= 2 * steps, "{ranks}: {most}");
            assert!((0..ranks).all(|rank| of(rank) >= steps / 2), "{ranks}");
            let plan = plan(&pairs, |rank| rank);
            assert!(
                plan.left_out == 0 && plan.rounds.len() <= 2 * steps + 2,
                "{ranks}"
            );
        }
    }

    proptest! {
        #[test]
        fn no_host_is_in_two_pairs_of_a_round_and_no_pair_is_lost(
            ranks in 0usize..70,
            hosts in 1usize..9,
        ) {
            let pairs = pairs(ranks);
            let plan = plan(&pairs, |rank| rank % hosts);
            let mut measured = BTreeSet::new();
            for round in &plan.rounds {
                prop_assert!(!round.is_empty());
                let mut busy = BTreeSet::new();
                for (a, b) in round {
                    prop_assert!(a < b && *b < ranks);
                    prop_assert!(measured.insert((*a, *b)));
                    let both = BTreeSet::from([a % hosts, b % hosts]);
                    prop_assert!(busy.is_disjoint(&both));
                    busy.extend(both);
                }
            }
            prop_assert!(plan.rounds.len() <= ROUNDS_MAX);
            prop_assert_eq!(measured.len() + plan.left_out, pairs.len());
            // Between any two hosts that have a pair at least one is measured, if any is left out.
            let of = |(a, b): &Pair| BTreeSet::from([a % hosts, b % hosts]);
            let between: BTreeSet<_> = measured.iter().map(of).collect();
            prop_assert!(pairs.iter().map(of).all(|hosts| between.contains(&hosts)));
        }
    }
}
