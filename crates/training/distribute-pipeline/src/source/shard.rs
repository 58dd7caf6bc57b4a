//! Every n-th element.

use std::path::PathBuf;

use super::{ENDLESS, Source, in_range};
use crate::Result;
use crate::checks::check_shard;

const STAGE: &str = "shard";

/// [`Source::shard`].
#[derive(Debug, Clone)]
#[must_use]
pub struct Shard<S> {
    input: S,
    shards: u64,
    index: u64,
}

impl<S> Shard<S> {
    pub(super) fn new(input: S, shards: u64, index: u64) -> Self {
        Self {
            input,
            shards,
            index,
        }
    }

    fn place(&self, index: u64) -> u64 {
        index.saturating_mul(self.shards).saturating_add(self.index)
    }
}

impl<S: Source> Source for Shard<S> {
    type Item = S::Item;

    fn len(&self) -> u64 {
        match (self.input.len(), check_shard(self.shards, self.index)) {
            (ENDLESS, _) => ENDLESS,
            // So that the error is found.
            (len, Err(_)) => len,
            (len, Ok(())) => len.saturating_sub(self.index).div_ceil(self.shards),
        }
    }

    fn get(&self, index: u64) -> Result<S::Item> {
        self.get_in_epoch(0, index)
    }

    fn get_in_epoch(&self, epoch: u64, index: u64) -> Result<S::Item> {
        check_shard(self.shards, self.index)?;
        in_range(STAGE, index, self.len())?;
        self.input.get_in_epoch(epoch, self.place(index))
    }

    fn check(&self) -> Result<()> {
        check_shard(self.shards, self.index)?;
        self.input.check()
    }

    fn file(&self, epoch: u64, index: u64) -> Option<PathBuf> {
        self.input.file(epoch, self.place(index))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{contract, range};

    #[test]
    fn keeps_the_contract_and_shares_everything_out() {
        for n in 0..12 {
            let mut all = Vec::new();
            for index in 0..4 {
                let shard = range(0..n).shard(4, index);
                contract::check_source(&shard).unwrap();
                all.extend((0..shard.len()).map(|at| shard.get(at).unwrap()));
            }
            all.sort_unstable();
            assert!(all.into_iter().eq(0..n));
        }
    }

    #[test]
    fn wrong_shards_are_refused() {
        for (shards, index) in [(0, 0), (2, 2), (2, 9)] {
            let shard = range(0..5).shard(shards, index);
            assert!(shard.check().is_err());
            assert!(shard.get(0).is_err());
        }
    }
}
