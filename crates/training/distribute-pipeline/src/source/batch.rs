//! Lists of elements.

use std::path::PathBuf;

use super::{ENDLESS, Source, in_range};
use crate::Result;
use crate::checks::check_size;

const STAGE: &str = "batch";

/// [`Source::batch`]: the elements of a batch are a `Vec`.
#[derive(Debug, Clone)]
#[must_use]
pub struct Batch<S> {
    input: S,
    size: u64,
    drop_remainder: bool,
}

impl<S> Batch<S> {
    pub(super) fn new(input: S, size: u64) -> Self {
        Self {
            input,
            size,
            drop_remainder: false,
        }
    }

    /// Whether a short last batch is left out (TensorFlow: `drop_remainder`); not by default.
    pub fn drop_remainder(mut self, drop: bool) -> Self {
        self.drop_remainder = drop;
        self
    }
}

impl<S: Source> Source for Batch<S> {
    type Item = Vec<S::Item>;

    fn len(&self) -> u64 {
        match (self.input.len(), self.size) {
            (ENDLESS, _) => ENDLESS,
            // So that the error is found.
            (len, 0) => len,
            (len, size) if self.drop_remainder => len / size,
            (len, size) => len.div_ceil(size),
        }
    }

    fn get(&self, index: u64) -> Result<Self::Item> {
        self.get_in_epoch(0, index)
    }

    fn get_in_epoch(&self, epoch: u64, index: u64) -> Result<Self::Item> {
        check_size(STAGE, self.size)?;
        in_range(STAGE, index, self.len())?;
        let start = index.saturating_mul(self.size);
        let end = start.saturating_add(self.size).min(self.input.len());
        (start..end)
            .map(|index| self.input.get_in_epoch(epoch, index))
            .collect()
    }

    fn check(&self) -> Result<()> {
        check_size(STAGE, self.size)?;
        self.input.check()
    }

    fn file(&self, epoch: u64, index: u64) -> Option<PathBuf> {
        self.input.file(epoch, index.saturating_mul(self.size))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{contract, range};

    #[test]
    fn keeps_the_contract_at_every_size() {
        for n in 0..8 {
            for size in 1..9 {
                let batches = range(0..n).shuffle(1).batch(size);
                contract::check_source(&batches).unwrap();
                let full = batches.drop_remainder(true);
                contract::check_source(&full).unwrap();
                assert_eq!(full.len(), n as u64 / size);
            }
        }
        assert_eq!(range(0..3).repeat(-1).batch(2).get(1).unwrap(), [2, 0]);
    }

    #[test]
    fn a_size_of_0_is_an_error_and_not_the_end() {
        let batches = range(0..3).batch(0);
        assert!(batches.check().is_err());
        assert!(!batches.is_empty() && batches.get(0).is_err());
    }
}
