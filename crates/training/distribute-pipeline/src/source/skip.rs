//! The elements behind the first ones.

use std::path::PathBuf;

use super::{ENDLESS, Source, in_range};
use crate::{Count, Result};

/// [`Source::skip`].
#[derive(Debug, Clone)]
#[must_use]
pub struct Skip<S> {
    input: S,
    count: Count,
}

impl<S> Skip<S> {
    pub(super) fn new(input: S, count: Count) -> Self {
        Self { input, count }
    }
}

impl<S: Source> Skip<S> {
    fn skipped(&self) -> u64 {
        self.count.of(self.input.len())
    }
}

impl<S: Source> Source for Skip<S> {
    type Item = S::Item;

    fn len(&self) -> u64 {
        match (self.input.len(), self.count) {
            (ENDLESS, Count::Exactly(_)) => ENDLESS,
            (len, _) => len - self.skipped(),
        }
    }

    fn get(&self, index: u64) -> Result<S::Item> {
        self.get_in_epoch(0, index)
    }

    fn get_in_epoch(&self, epoch: u64, index: u64) -> Result<S::Item> {
        in_range("skip", index, self.len())?;
        let index = index.saturating_add(self.skipped());
        self.input.get_in_epoch(epoch, index)
    }

    fn check(&self) -> Result<()> {
        self.input.check()
    }

    fn file(&self, epoch: u64, index: u64) -> Option<PathBuf> {
        let index = index.saturating_add(self.skipped());
        self.input.file(epoch, index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{contract, range};

    #[test]
    fn keeps_the_contract_at_every_count() {
        for (count, len) in [(0, 9), (3, 6), (9, 0), (12, 0), (-1, 0)] {
            let rest = range(0..9).skip(count);
            contract::check_source(&rest).unwrap();
            assert_eq!(rest.len(), len);
        }
        assert_eq!(range(0..3).repeat(-1).skip(4).get(0).unwrap(), 1);
    }
}
