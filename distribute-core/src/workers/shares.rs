//! Which replicas a worker holds of a number that does not depend on how many workers there are.

use std::ops::Range;

use crate::{Error, Result};

/// The ids of the replicas that `worker` of `workers` holds of `total_replicas`: contiguous ranges
/// in the order of the workers, as even as possible, the first ones larger.
///
/// # Errors
/// [`Error::TooFewReplicas`] for more workers than replicas, whichever worker asks;
/// [`Error::InvalidArgument`] for a worker that is none of them.
///
/// ```
/// use distribute_core::replica_range;
///
/// assert_eq!(replica_range(8, 3, 0)?, 0..3);
/// assert_eq!(replica_range(8, 3, 1)?, 3..6);
/// assert_eq!(replica_range(8, 3, 2)?, 6..8);
/// assert!(replica_range(2, 3, 0).is_err());
/// # Ok::<(), distribute_core::Error>(())
/// ```
pub fn replica_range(total_replicas: usize, workers: usize, worker: usize) -> Result<Range<usize>> {
    if worker >= workers {
        return Err(Error::invalid(format!(
            "there is no worker {worker} of {workers}: count workers from 0"
        )));
    }
    if total_replicas < workers {
        return Err(Error::TooFewReplicas {
            replicas: total_replicas,
            workers,
        });
    }
    let (share, larger) = (total_replicas / workers, total_replicas % workers);
    let first = |worker: usize| worker * share + worker.min(larger);
    Ok(first(worker)..first(worker + 1))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn every_replica_has_one_worker_and_no_worker_much_more_than_another(
            workers in 1_usize..40,
            more in 0_usize..200,
        ) {
            let total = workers + more;
            let ranges: Vec<Range<usize>> = (0..workers)
                .map(|worker| replica_range(total, workers, worker).unwrap())
                .collect();
            prop_assert_eq!(ranges[0].start, 0);
            prop_assert_eq!(ranges[workers - 1].end, total);
            for pair in ranges.windows(2) {
                prop_assert_eq!(pair[0].end, pair[1].start);
                prop_assert!(pair[0].len() == pair[1].len() || pair[0].len() == pair[1].len() + 1);
            }
            prop_assert!(ranges[0].len() <= ranges[workers - 1].len() + 1);
        }
    }

    #[test]
    fn a_worker_without_a_replica_is_refused_on_all_with_both_numbers() {
        for worker in 0..3 {
            let error = replica_range(2, 3, worker).unwrap_err();
            assert!(matches!(
                error,
                Error::TooFewReplicas {
                    replicas: 2,
                    workers: 3
                }
            ));
            assert!(
                error.to_string().contains("2 replicas for 3 workers"),
                "{error}"
            );
        }
        assert!(replica_range(3, 2, 2).is_err());
        assert!(replica_range(0, 0, 0).is_err());
    }
}
