//! Every element through a function with random numbers.

use std::fmt;
use std::path::PathBuf;

use super::Source;
use crate::{ElementRng, Result, element_rng};

/// [`Source::map_with_rng`].
#[derive(Clone)]
#[must_use]
pub struct MapWithRng<S, F> {
    input: S,
    seed: u64,
    function: F,
}

impl<S, F> MapWithRng<S, F> {
    pub(super) fn new(input: S, seed: u64, function: F) -> Self {
        Self {
            input,
            seed,
            function,
        }
    }
}

impl<S, U, F> Source for MapWithRng<S, F>
where
    S: Source,
    U: Send,
    F: Fn(S::Item, &mut ElementRng) -> U + Send + Sync,
{
    type Item = U;

    fn len(&self) -> u64 {
        self.input.len()
    }

    fn get(&self, index: u64) -> Result<U> {
        self.get_in_epoch(0, index)
    }

    fn get_in_epoch(&self, epoch: u64, index: u64) -> Result<U> {
        let item = self.input.get_in_epoch(epoch, index)?;
        Ok((self.function)(
            item,
            &mut element_rng(self.seed, epoch, index),
        ))
    }

    fn check(&self) -> Result<()> {
        self.input.check()
    }

    fn file(&self, epoch: u64, index: u64) -> Option<PathBuf> {
        self.input.file(epoch, index)
    }
}

impl<S: fmt::Debug, F> fmt::Debug for MapWithRng<S, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MapWithRng")
            .field("input", &self.input)
            .field("seed", &self.seed)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use rand_chacha::rand_core::Rng;

    use super::*;
    use crate::{contract, range};

    #[test]
    fn numbers_follow_from_seed_epoch_and_index() {
        let noisy = |seed| range(0..9).map_with_rng(seed, |x, rng| (x, rng.next_u64()));
        contract::check_source(&noisy(4)).unwrap();
        let at = |seed, epoch, index| noisy(seed).get_in_epoch(epoch, index).unwrap().1;
        assert_eq!(at(1, 2, 3), at(1, 2, 3));
        let others = [at(2, 2, 3), at(1, 3, 3), at(1, 2, 4)];
        assert!(others.iter().all(|other| *other != at(1, 2, 3)));
    }
}
