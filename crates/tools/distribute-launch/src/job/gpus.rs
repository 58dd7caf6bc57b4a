//! Which GPUs of this host each process sees, by the variable that CUDA itself reads.

use crate::error::{LaunchError, Result};

/// The numbers or names of the GPUs that CUDA shows to a process, with commas in between.
pub const GPUS_VARIABLE: &str = "CUDA_VISIBLE_DEVICES";

/// More than any host has: assumed where the number of GPUs is unknown.
const GPUS_MAX: usize = 1024;

/// The GPUs that the launcher sees, shared out to the workers of this host in order.
#[derive(Debug, PartialEq, Eq)]
pub struct Gpus {
    per_worker: usize,
    visible: Vec<String>,
}

impl Gpus {
    /// Shares out the GPUs that this process sees. `None` if `per_worker` is 0: then every
    /// process sees what this process sees.
    pub fn of_this_process(per_worker: usize) -> Option<Gpus> {
        let visible = std::env::var(GPUS_VARIABLE).ok();
        (per_worker > 0).then(|| Gpus::new(per_worker, visible.as_deref()))
    }

    fn new(per_worker: usize, visible: Option<&str>) -> Gpus {
        // CUDA ends the list at the first invalid entry.
        let is_gpu = |entry: &&str| !entry.is_empty() && *entry != "-1";
        let entries = |list: &str| {
            let entries = list.split(',').map(str::trim).take_while(is_gpu);
            entries.map(str::to_owned).collect()
        };
        let all = || (0..GPUS_MAX).map(|gpu| gpu.to_string()).collect();
        Gpus {
            per_worker,
            visible: visible.map_or_else(all, entries),
        }
    }

    /// Fails if there are too few GPUs, as far as their number is known.
    pub fn check(&self, workers: usize) -> Result<()> {
        if self.visible.len() / self.per_worker >= workers {
            return Ok(());
        }
        Err(LaunchError::TooFewGpus {
            workers,
            per_worker: self.per_worker,
            visible: self.visible.len(),
        })
    }

    /// The value of the variable for a worker by its number on this host; empty for other
    /// processes.
    pub fn share(&self, worker: Option<usize>) -> String {
        let Some(worker) = worker else {
            return String::new();
        };
        let mut shares = self.visible.chunks(self.per_worker);
        shares.nth(worker).unwrap_or_default().join(",")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shares(gpus: &Gpus, workers: usize) -> Vec<String> {
        (0..workers)
            .map(|worker| gpus.share(Some(worker)))
            .collect()
    }

    #[test]
    fn every_worker_gets_its_own_and_the_others_none() {
        let all = Gpus::new(2, None);
        assert_eq!(shares(&all, 3), ["0,1", "2,3", "4,5"]);
        assert_eq!(all.share(None), "");
        let named = Gpus::new(1, Some("3, GPU-8f,MIG-1"));
        assert_eq!(shares(&named, 3), ["3", "GPU-8f", "MIG-1"]);
    }

    #[test]
    fn too_few_are_refused_where_the_number_is_known() {
        let check = |per_worker, visible, workers| Gpus::new(per_worker, visible).check(workers);
        assert!(check(4, None, 100).is_ok());
        assert!(check(usize::MAX, None, 1).is_err());
        assert!(check(1, None, usize::MAX).is_err());
        assert!(check(2, Some("0,1,2,3"), 2).is_ok());
        for (visible, found) in [("0,1,2", 3), ("", 0), ("0,-1,2,3", 1), ("0,1,,3,4", 2)] {
            let refused = check(2, Some(visible), 2);
            let Err(LaunchError::TooFewGpus { visible, .. }) = refused else {
                panic!("{refused:?}");
            };
            assert_eq!(visible, found);
        }
    }
}
