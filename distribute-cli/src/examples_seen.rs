//! The number of examples on which a run has trained.

use distribute_fit::Position;

/// Counts examples from the position of a run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ExamplesSeen {
    /// Examples in a global batch.
    pub(crate) global_batch: usize,
    pub(crate) per_epoch: usize,
}

impl ExamplesSeen {
    /// The examples of all epochs up to here.
    pub(crate) fn until(&self, position: Position) -> u64 {
        let of_epoch = position.batches.saturating_mul(self.global_batch);
        let whole = position.epoch.saturating_mul(self.per_epoch);
        // The last batch of an epoch may be short.
        whole.saturating_add(of_epoch.min(self.per_epoch)) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_batch_counts_by_its_examples() {
        let seen = ExamplesSeen {
            global_batch: 64,
            per_epoch: 100,
        };
        let until = |epoch, batches| seen.until(Position { epoch, batches });
        let all = [until(0, 0), until(0, 1), until(0, 2), until(3, 1)];
        assert_eq!(all, [0, 64, 100, 364]);
    }
}
