//! Elements with their numbers.

use std::path::PathBuf;

use super::Source;
use crate::Result;

/// [`Source::enumerate`].
#[derive(Debug, Clone)]
#[must_use]
pub struct Enumerate<S> {
    input: S,
    start: u64,
}

impl<S> Enumerate<S> {
    pub(super) fn new(input: S, start: u64) -> Self {
        Self { input, start }
    }
}

impl<S: Source> Source for Enumerate<S> {
    type Item = (u64, S::Item);

    fn len(&self) -> u64 {
        self.input.len()
    }

    fn get(&self, index: u64) -> Result<Self::Item> {
        self.get_in_epoch(0, index)
    }

    fn get_in_epoch(&self, epoch: u64, index: u64) -> Result<Self::Item> {
        let item = self.input.get_in_epoch(epoch, index)?;
        Ok((self.start.wrapping_add(index), item))
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
    fn keeps_the_contract() {
        let numbered = range(5..9).enumerate(10);
        contract::check_source(&numbered).unwrap();
        assert_eq!(numbered.get(2).unwrap(), (12, 7));
    }
}
