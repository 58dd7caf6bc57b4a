//! A source several times.

use std::path::PathBuf;

use super::{ENDLESS, Source, in_range};
use crate::random::inner_epoch;
use crate::{Count, Result};

/// [`Source::repeat`].
#[derive(Debug, Clone)]
#[must_use]
pub struct Repeat<S> {
    input: S,
    times: Count,
}

impl<S> Repeat<S> {
    pub(super) fn new(input: S, times: Count) -> Self {
        Self { input, times }
    }
}

impl<S: Source> Repeat<S> {
    /// Epoch and index in the input.
    fn place(&self, epoch: u64, index: u64) -> (u64, u64) {
        let len = self.input.len().max(1);
        let times = match self.times {
            Count::Exactly(times) => Some(times),
            Count::All => None,
        };
        (inner_epoch(epoch, times, index / len), index % len)
    }
}

impl<S: Source> Source for Repeat<S> {
    type Item = S::Item;

    fn len(&self) -> u64 {
        match (self.input.len(), self.times) {
            (0, _) => 0,
            (len, Count::Exactly(times)) => len.saturating_mul(times),
            (_, Count::All) => ENDLESS,
        }
    }

    fn get(&self, index: u64) -> Result<S::Item> {
        self.get_in_epoch(0, index)
    }

    fn get_in_epoch(&self, epoch: u64, index: u64) -> Result<S::Item> {
        in_range("repeat", index, self.len())?;
        let (epoch, index) = self.place(epoch, index);
        self.input.get_in_epoch(epoch, index)
    }

    fn check(&self) -> Result<()> {
        self.input.check()
    }

    fn file(&self, epoch: u64, index: u64) -> Option<PathBuf> {
        let (epoch, index) = self.place(epoch, index);
        self.input.file(epoch, index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{contract, range};

    #[test]
    fn keeps_the_contract_and_shuffles_each_pass() {
        let thrice = range(0..20).shuffle(1).repeat(3);
        contract::check_source(&thrice).unwrap();
        let pass = |epoch, pass: u64| -> Vec<i64> {
            let indices = pass * 20..(pass + 1) * 20;
            indices
                .map(|index| thrice.get_in_epoch(epoch, index).unwrap())
                .collect()
        };
        let passes = [pass(0, 0), pass(0, 1), pass(0, 2), pass(1, 0)];
        for (at, one) in passes.iter().enumerate() {
            assert!(passes[..at].iter().all(|other| other != one));
        }
        contract::check_source(&range(0..4).repeat(0)).unwrap();
        contract::check_source(&range(0..0).repeat(-1)).unwrap();
        assert_eq!(range(0..4).repeat(-1).get(1_000_001).unwrap(), 1);
    }
}
