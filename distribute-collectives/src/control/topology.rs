//! Which rank is connected to which: a tree whose root is rank 0.
//!
//! The ranks of a host are a heap below the first one of them, its leader; the leaders are a heap
//! below rank 0, which leads its host. Both heaps have the same arity `k`: the parent of number `i`
//! is number `(i - 1) / k`. So a rank has at most `2k + 1` neighbours, and of `h` hosts with `r`
//! ranks each none is further from rank 0 than `log_k(h) + log_k(r)` and two more.
//!
//! Where all addresses are listed, the ranks take their places in rank order, and each computes its
//! own. Elsewhere rank 0 gives the places away, in the order in which the ranks come.

use std::collections::BTreeMap;

use distribute_net::address;

/// The children that a rank has on its host, and those that a leader has on other hosts.
pub(crate) const ARITY: usize = 8;

/// The tree.
#[derive(Debug, Clone)]
pub(super) struct Topology {
    arity: usize,
    /// The number of each host by its name.
    numbers: BTreeMap<String, usize>,
    /// By the number of a host: its ranks, the leader first.
    hosts: Vec<Vec<usize>>,
    /// The number of each rank's host, and its own number there.
    places: BTreeMap<usize, (usize, usize)>,
}

impl Topology {
    pub(super) fn new(arity: usize) -> Topology {
        Topology {
            arity,
            numbers: BTreeMap::new(),
            hosts: Vec::new(),
            places: BTreeMap::new(),
        }
    }

    /// The tree of ranks that listen at these addresses, as far as they are given.
    pub(super) fn of_addresses(arity: usize, addresses: &[Option<String>]) -> Topology {
        let mut topology = Topology::new(arity);
        for (rank, address) in addresses.iter().enumerate() {
            if let Some(address) = address {
                topology.add(rank, address);
            }
        }
        topology
    }

    /// Gives a rank that listens at this address the next place on its host. It keeps a place that
    /// it has.
    pub(super) fn add(&mut self, rank: usize, address: &str) {
        if self.places.contains_key(&rank) {
            return;
        }
        let next = self.hosts.len();
        let host = *self.numbers.entry(host(address)).or_insert(next);
        if host == next {
            self.hosts.push(Vec::new());
        }
        let ranks = &mut self.hosts[host];
        self.places.insert(rank, (host, ranks.len()));
        ranks.push(rank);
    }

    /// The parent of a rank; none for rank 0, and for a rank without a place.
    pub(super) fn parent(&self, rank: usize) -> Option<usize> {
        let (host, number) = *self.places.get(&rank)?;
        match (host, number) {
            (0, 0) => None,
            (_, 0) => Some(self.hosts[(host - 1) / self.arity][0]),
            _ => Some(self.hosts[host][(number - 1) / self.arity]),
        }
    }

    /// The parent of a rank, the parent of that, and so on up to rank 0.
    pub(super) fn ancestors(&self, rank: usize) -> Vec<usize> {
        std::iter::successors(self.parent(rank), |it| self.parent(*it)).collect()
    }
}

/// The ranks on other hosts than this one; where all ranks have the same, each one is a host.
pub(super) fn elsewhere<'a>(hosts: &[&'a str], own: usize) -> Vec<(usize, Option<&'a str>)> {
    let others = || (0..hosts.len()).filter(|rank| *rank != own);
    let away = others().filter(|rank| hosts[*rank] != hosts[own]);
    let away: Vec<_> = away.map(|rank| (rank, Some(hosts[rank]))).collect();
    if away.is_empty() {
        others().map(|rank| (rank, None)).collect()
    } else {
        away
    }
}

/// Most neighbours of a rank.
pub(crate) fn neighbours_max(arity: usize) -> usize {
    2 * arity + 1
}

/// The host in an address.
fn host(address: &str) -> String {
    let host = address::split(address).map(|(host, _)| host.to_string());
    host.unwrap_or_else(|_| address.to_string())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn of_hosts(arity: usize, hosts: &[usize]) -> Topology {
        let address = |(rank, host): (usize, &usize)| Some(format!("host-{host}:{rank}"));
        let addresses: Vec<_> = hosts.iter().enumerate().map(address).collect();
        Topology::of_addresses(arity, &addresses)
    }

    #[test]
    fn leaders_are_below_leaders_and_ranks_below_ranks_of_their_host() {
        let two = of_hosts(2, &[0, 0, 0, 0, 1, 1, 2, 3, 4]);
        let parents: Vec<_> = (0..9).map(|rank| two.parent(rank)).collect();
        let expected = [None, Some(0), Some(0), Some(1), Some(0), Some(4), Some(0)];
        assert_eq!(parents[..7], expected);
        assert_eq!(parents[7..], [Some(4), Some(4)], "leaders of hosts 3 and 4");
        assert_eq!(two.ancestors(3), [1, 0]);
        assert_eq!(two.parent(9), None);
    }

    #[test]
    fn a_small_group_on_one_host_is_a_star() {
        let star = of_hosts(ARITY, &[0; 9]);
        assert!((1..9).all(|rank| star.parent(rank) == Some(0)));
    }

    #[test]
    fn a_rank_that_comes_again_keeps_its_place() {
        let mut topology = Topology::new(2);
        for (rank, address) in [(0, "a:1"), (7, "b:1"), (3, "b:2"), (7, "c:9"), (5, "c:1")] {
            topology.add(rank, address);
        }
        assert_eq!(topology.parent(7), Some(0));
        assert_eq!(
            topology.parent(3),
            Some(7),
            "the first of its host leads it"
        );
        assert_eq!(topology.parent(5), Some(0), "the leader of the third host");
    }

    proptest! {
        #[test]
        fn all_ranks_are_below_rank_0_within_the_limits(
            arity in 1..9_usize,
            hosts in prop::collection::vec(0..40_usize, 1..300),
        ) {
            let topology = of_hosts(arity, &hosts);
            let mut children = vec![0; hosts.len()];
            for rank in 1..hosts.len() {
                let ancestors = topology.ancestors(rank);
                prop_assert_eq!(ancestors.last(), Some(&0));
                prop_assert!(arity == 1 || ancestors.len() <= 2 + 9 + 6);
                children[ancestors[0]] += 1;
                let is_leader = !hosts[..rank].contains(&hosts[rank]);
                prop_assert!(is_leader || hosts[ancestors[0]] == hosts[rank]);
            }
            let most = children.into_iter().max().unwrap_or(0);
            prop_assert!(most < neighbours_max(arity));
        }
    }
}
