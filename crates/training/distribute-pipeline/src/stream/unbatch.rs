//! The elements of elements.

use std::collections::VecDeque;

use super::{SavedItem, Stream};
use crate::{Result, State};

const STAGE: &str = "unbatch";

/// [`Stream::unbatch`]. What is left of a batch is part of the state.
#[derive(Debug, Clone)]
#[must_use]
pub struct Unbatch<S, T> {
    input: S,
    rest: VecDeque<T>,
}

impl<S, T> Unbatch<S, T> {
    pub(super) fn new(input: S) -> Self {
        Self {
            input,
            rest: VecDeque::new(),
        }
    }
}

impl<S, T> Stream for Unbatch<S, T>
where
    S: Stream<Item: IntoIterator<Item = T>>,
    T: SavedItem,
{
    type Item = T;

    fn next(&mut self) -> Result<Option<T>> {
        loop {
            if let Some(item) = self.rest.pop_front() {
                return Ok(Some(item));
            }
            match self.input.next()? {
                Some(batch) => self.rest.extend(batch),
                None => return Ok(None),
            }
        }
    }

    fn start(&mut self, epoch: u64) -> Result<()> {
        self.rest.clear();
        self.input.start(epoch)
    }

    fn state(&self) -> Result<State> {
        let state = State::new(STAGE).inner(self.input.state()?);
        self.rest.iter().try_fold(state, State::item)
    }

    fn restore(&mut self, state: &State) -> Result<()> {
        let mut state = state.read(STAGE)?;
        self.rest = state.all_items()?.into();
        self.input.restore(state.inner()?)?;
        state.finish()
    }

    super::as_input!(check, file);
}

#[cfg(test)]
mod tests {
    use crate::{Source, Stream, contract, range};

    #[test]
    fn keeps_the_contract_and_undoes_a_batch() {
        for size in 1..6 {
            let make = || range(0..11).stream().batch(size).unbatch();
            contract::check_stream(make).unwrap();
            assert!(make().elements().map(Result::unwrap).eq(0..11));
        }
        contract::check_stream(|| {
            let empty = range(0..5).stream().map(|_| Vec::<u8>::new());
            empty.unbatch()
        })
        .unwrap();
    }
}
