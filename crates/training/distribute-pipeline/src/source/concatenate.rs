//! One source after the other.

use std::path::PathBuf;

use super::{Source, in_range};
use crate::Result;

/// [`Source::concatenate`].
#[derive(Debug, Clone)]
#[must_use]
pub struct Concatenate<A, B> {
    one: A,
    other: B,
}

impl<A, B> Concatenate<A, B> {
    pub(super) fn new(one: A, other: B) -> Self {
        Self { one, other }
    }
}

impl<A, B> Source for Concatenate<A, B>
where
    A: Source,
    B: Source<Item = A::Item>,
{
    type Item = A::Item;

    fn len(&self) -> u64 {
        self.one.len().saturating_add(self.other.len())
    }

    fn get(&self, index: u64) -> Result<A::Item> {
        self.get_in_epoch(0, index)
    }

    fn get_in_epoch(&self, epoch: u64, index: u64) -> Result<A::Item> {
        in_range("concatenate", index, self.len())?;
        match index.checked_sub(self.one.len()) {
            None => self.one.get_in_epoch(epoch, index),
            Some(index) => self.other.get_in_epoch(epoch, index),
        }
    }

    fn check(&self) -> Result<()> {
        self.one.check()?;
        self.other.check()
    }

    fn file(&self, epoch: u64, index: u64) -> Option<PathBuf> {
        match index.checked_sub(self.one.len()) {
            None => self.one.file(epoch, index),
            Some(index) => self.other.file(epoch, index),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{contract, range};

    #[test]
    fn keeps_the_contract() {
        let both = range(0..3).shuffle(1).concatenate(range(10..12).shuffle(2));
        contract::check_source(&both).unwrap();
        assert_eq!(both.len(), 5);
        assert!((10..12).contains(&both.get(4).unwrap()));
        contract::check_source(&range(0..0).concatenate(range(1..2))).unwrap();
    }
}
