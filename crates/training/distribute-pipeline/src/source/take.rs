//! The first elements.

use std::path::PathBuf;

use super::{Source, in_range};
use crate::{Count, Result};

/// [`Source::take`].
#[derive(Debug, Clone)]
#[must_use]
pub struct Take<S> {
    input: S,
    count: Count,
}

impl<S> Take<S> {
    pub(super) fn new(input: S, count: Count) -> Self {
        Self { input, count }
    }
}

impl<S: Source> Source for Take<S> {
    type Item = S::Item;

    fn len(&self) -> u64 {
        self.count.of(self.input.len())
    }

    fn get(&self, index: u64) -> Result<S::Item> {
        self.get_in_epoch(0, index)
    }

    fn get_in_epoch(&self, epoch: u64, index: u64) -> Result<S::Item> {
        in_range("take", index, self.len())?;
        self.input.get_in_epoch(epoch, index)
    }

    fn check(&self) -> Result<()> {
        self.input.check()
    }

    fn file(&self, epoch: u64, index: u64) -> Option<PathBuf> {
        self.input.file(epoch, index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{contract, range};

    #[test]
    fn keeps_the_contract_at_every_count() {
        for (count, len) in [(0, 0), (3, 3), (9, 9), (12, 9), (-1, 9), (-5, 9)] {
            let taken = range(0..9).shuffle(1).take(count);
            contract::check_source(&taken).unwrap();
            assert_eq!(taken.len(), len);
        }
        assert_eq!(range(0..2).repeat(-1).take(5).len(), 5);
    }
}
