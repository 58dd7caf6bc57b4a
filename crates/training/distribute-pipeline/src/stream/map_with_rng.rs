//! Every element through a function with random numbers.

use std::fmt;

use super::Stream;
use crate::{Cardinality, ElementRng, Result, State, element_rng};

const STAGE: &str = "map_with_rng";

/// [`Stream::map_with_rng`].
#[derive(Clone)]
#[must_use]
pub struct MapWithRng<S, F> {
    input: S,
    seed: u64,
    function: F,
    epoch: u64,
    index: u64,
}

impl<S, F> MapWithRng<S, F> {
    pub(super) fn new(input: S, seed: u64, function: F) -> Self {
        Self {
            input,
            seed,
            function,
            epoch: 0,
            index: 0,
        }
    }
}

impl<S, U, F> Stream for MapWithRng<S, F>
where
    S: Stream,
    U: Send,
    F: Fn(S::Item, &mut ElementRng) -> U + Send,
{
    type Item = U;

    fn next(&mut self) -> Result<Option<U>> {
        let Some(item) = self.input.next()? else {
            return Ok(None);
        };
        let mut rng = element_rng(self.seed, self.epoch, self.index);
        self.index += 1;
        Ok(Some((self.function)(item, &mut rng)))
    }

    fn start(&mut self, epoch: u64) -> Result<()> {
        (self.epoch, self.index) = (epoch, 0);
        self.input.start(epoch)
    }

    fn state(&self) -> Result<State> {
        let state = State::new(STAGE).number(self.epoch).number(self.index);
        Ok(state.inner(self.input.state()?))
    }

    fn restore(&mut self, state: &State) -> Result<()> {
        let mut state = state.read(STAGE)?;
        self.epoch = state.number()?;
        self.index = state.count()?;
        self.input.restore(state.inner()?)?;
        state.finish()
    }

    fn cardinality(&self) -> Cardinality {
        self.input.cardinality()
    }

    super::as_input!(check, file);
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

    use crate::{Source, Stream, contract, range};

    #[test]
    fn has_the_numbers_of_a_source_and_other_ones_in_each_epoch() {
        let noise = |x: i64, rng: &mut crate::ElementRng| (x, rng.next_u64());
        contract::check_stream(|| range(0..9).stream().map_with_rng(5, noise)).unwrap();
        let source = range(0..9).map_with_rng(5, noise);
        let mut stream = range(0..9).stream().map_with_rng(5, noise);
        for epoch in [0, 3] {
            stream.start(epoch).unwrap();
            for index in 0..9 {
                let expected = source.get_in_epoch(epoch, index).unwrap();
                assert_eq!(stream.next().unwrap(), Some(expected));
            }
        }
        assert_ne!(
            source.get_in_epoch(0, 1).unwrap(),
            source.get_in_epoch(3, 1).unwrap()
        );
    }
}
