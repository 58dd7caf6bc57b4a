//! All elements, in an order that is computed.

use std::path::PathBuf;

use super::{ENDLESS, Source, in_range};
use crate::{Permutation, PipelineError, Result};

const STAGE: &str = "shuffle";

/// [`Source::shuffle`].
#[derive(Debug, Clone)]
#[must_use]
pub struct Shuffle<S> {
    input: S,
    seed: u64,
    reshuffle: bool,
}

impl<S> Shuffle<S> {
    pub(super) fn new(input: S, seed: u64) -> Self {
        Self {
            input,
            seed,
            reshuffle: true,
        }
    }

    /// Whether each epoch has another order, as by default (TensorFlow:
    /// `reshuffle_each_iteration`).
    pub fn reshuffle_each_iteration(mut self, reshuffle: bool) -> Self {
        self.reshuffle = reshuffle;
        self
    }
}

impl<S: Source> Shuffle<S> {
    /// The index in the input.
    fn index(&self, epoch: u64, place: u64) -> Result<u64> {
        let len = self.input.len();
        if len == ENDLESS {
            return Err(endless());
        }
        in_range(STAGE, place, len)?;
        let epoch = if self.reshuffle { epoch } else { 0 };
        let index = Permutation::new(len, self.seed, epoch).at(place);
        Ok(index.unwrap_or(place))
    }
}

impl<S: Source> Source for Shuffle<S> {
    type Item = S::Item;

    fn len(&self) -> u64 {
        self.input.len()
    }

    fn get(&self, index: u64) -> Result<S::Item> {
        self.get_in_epoch(0, index)
    }

    fn get_in_epoch(&self, epoch: u64, index: u64) -> Result<S::Item> {
        self.input.get_in_epoch(epoch, self.index(epoch, index)?)
    }

    fn check(&self) -> Result<()> {
        match self.input.len() {
            ENDLESS => Err(endless()),
            _ => self.input.check(),
        }
    }

    fn file(&self, epoch: u64, index: u64) -> Option<PathBuf> {
        self.input.file(epoch, self.index(epoch, index).ok()?)
    }
}

fn endless() -> PipelineError {
    let what = "a source without end has no order of all its elements; shuffle before `repeat`";
    PipelineError::argument(STAGE, what)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{contract, range};

    fn order(source: impl Source<Item = i64>, epoch: u64) -> Vec<i64> {
        let indices = 0..source.len();
        indices
            .map(|index| source.get_in_epoch(epoch, index).unwrap())
            .collect()
    }

    #[test]
    fn epochs_differ_and_hold_all_elements() {
        let shuffled = range(0..50).shuffle(7);
        contract::check_source(&shuffled).unwrap();
        let (one, other) = (order(&shuffled, 0), order(&shuffled, 1));
        assert_ne!(one, other);
        let mut sorted = other;
        sorted.sort_unstable();
        assert!(sorted.into_iter().eq(0..50));
        let fixed = range(0..50).shuffle(7).reshuffle_each_iteration(false);
        assert_eq!(order(&fixed, 3), one);
    }

    #[test]
    fn a_source_without_end_is_refused() {
        let shuffled = range(0..5).repeat(-1).shuffle(1);
        assert!(shuffled.check().is_err());
        assert!(shuffled.get(0).is_err());
    }
}
