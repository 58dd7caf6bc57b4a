//! How many workers a job has at least and at most.

use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};

/// The least and the greatest number of workers of a job, on all its hosts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerRange {
    pub least: usize,
    pub most: usize,
}

impl WorkerRange {
    /// Whether the job goes on with fewer workers, and takes more in.
    pub fn is_elastic(self) -> bool {
        self.least < self.most
    }

    /// How many of the workers a host brings: as even as possible, the first hosts more.
    pub fn share(self, hosts: usize, host: usize) -> usize {
        let larger = self.most.checked_rem(hosts).unwrap_or(0);
        self.most.checked_div(hosts).unwrap_or(0) + usize::from(host < larger)
    }
}

impl From<RangeInclusive<usize>> for WorkerRange {
    fn from(range: RangeInclusive<usize>) -> WorkerRange {
        let (least, most) = range.into_inner();
        WorkerRange { least, most }
    }
}

#[cfg(test)]
mod tests {
    use super::WorkerRange;

    #[test]
    fn hosts_bring_all_workers_and_none_much_more_than_another() {
        for (most, hosts) in [(8, 3), (8, 8), (1, 1), (7, 2), (3, 5)] {
            let range = WorkerRange { least: 1, most };
            let shares: Vec<usize> = (0..hosts).map(|host| range.share(hosts, host)).collect();
            assert_eq!(shares.iter().sum::<usize>(), most);
            assert!(shares.is_sorted_by(|first, next| first >= next));
            assert!(shares[0] - shares[hosts - 1] <= 1);
        }
    }
}
