//! Elements of two sources together.

use std::path::PathBuf;

use super::{Source, in_range};
use crate::Result;

/// [`Source::zip`].
#[derive(Debug, Clone)]
#[must_use]
pub struct Zip<A, B> {
    one: A,
    other: B,
}

impl<A, B> Zip<A, B> {
    pub(super) fn new(one: A, other: B) -> Self {
        Self { one, other }
    }
}

impl<A: Source, B: Source> Source for Zip<A, B> {
    type Item = (A::Item, B::Item);

    fn len(&self) -> u64 {
        self.one.len().min(self.other.len())
    }

    fn get(&self, index: u64) -> Result<Self::Item> {
        self.get_in_epoch(0, index)
    }

    fn get_in_epoch(&self, epoch: u64, index: u64) -> Result<Self::Item> {
        in_range("zip", index, self.len())?;
        let one = self.one.get_in_epoch(epoch, index)?;
        Ok((one, self.other.get_in_epoch(epoch, index)?))
    }

    fn check(&self) -> Result<()> {
        self.one.check()?;
        self.other.check()
    }

    fn file(&self, epoch: u64, index: u64) -> Option<PathBuf> {
        let one = self.one.file(epoch, index);
        one.or_else(|| self.other.file(epoch, index))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{contract, range};

    #[test]
    fn keeps_the_contract_and_ends_with_the_shorter() {
        let pairs = range(0..5).shuffle(1).zip(range(7..10));
        contract::check_source(&pairs).unwrap();
        assert_eq!(pairs.len(), 3);
        assert_eq!(pairs.get(2).unwrap().1, 9);
    }
}
