//! Which ranks share a host, as they found out by sharing memory.

/// The hosts of a group: the ranks of each, in rank order; hosts in the order of their first rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Hosts(Vec<Vec<usize>>);

impl Hosts {
    /// `leaders[i]` is the lowest rank that shares memory with rank `i` (itself when there is no
    /// lower one).
    pub(crate) fn from_leaders(leaders: &[usize]) -> Hosts {
        let mut hosts: Vec<Vec<usize>> = Vec::new();
        for (rank, leader) in leaders.iter().enumerate() {
            match hosts.iter_mut().find(|host| host[0] == *leader) {
                Some(host) => host.push(rank),
                None => hosts.push(vec![rank]),
            }
        }
        Hosts(hosts)
    }

    pub(crate) fn count(&self) -> usize {
        self.0.len()
    }

    /// Whether any host has several ranks.
    pub(crate) fn share_memory(&self) -> bool {
        self.0.iter().any(|host| host.len() > 1)
    }

    /// The ranks of the host that has the most.
    pub(crate) fn most_ranks(&self) -> usize {
        self.0.iter().map(Vec::len).max().unwrap_or(0)
    }

    /// The ranks that share the host of `rank`, itself among them.
    pub(crate) fn members(&self, rank: usize) -> &[usize] {
        let host = self.0.iter().find(|host| host.contains(&rank));
        host.map_or(&[], Vec::as_slice)
    }

    /// The number of ranks per host, when host `h` has the ranks from `h` times that number on
    /// (the last host may have fewer): what the hierarchical algorithm needs.
    pub(crate) fn ranks_per_host(&self) -> Option<usize> {
        let per_host = self.0.first()?.len();
        let ranks: Vec<usize> = (0..self.0.concat().len()).collect();
        let regular = self.0.iter().eq(ranks.chunks(per_host));
        regular.then_some(per_host)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_groups_of_ranks_with_one_leader() {
        let hosts = Hosts::from_leaders(&[0, 0, 2, 2, 4]);
        assert_eq!(hosts.count(), 3);
        assert_eq!(hosts.members(3), [2, 3]);
        let separate = Hosts::from_leaders(&[0, 1, 2]);
        assert!(hosts.share_memory() && !separate.share_memory());
        assert_eq!(hosts.ranks_per_host(), Some(2));
        assert_eq!((hosts.most_ranks(), separate.most_ranks()), (2, 1));
        assert_eq!(Hosts::from_leaders(&[0, 1, 0, 1]).ranks_per_host(), None);
        assert_eq!(Hosts::from_leaders(&[0, 1, 1]).ranks_per_host(), None);
        assert_eq!(separate.ranks_per_host(), Some(1));
    }
}
