//! Each element once.

use std::collections::BTreeSet;

use super::{SavedItem, Stream};
use crate::{Result, State};

const STAGE: &str = "unique";

/// [`Stream::unique`]. The elements that have come are part of the state.
#[derive(Debug, Clone)]
#[must_use]
pub struct Unique<S: Stream> {
    input: S,
    seen: BTreeSet<S::Item>,
}

impl<S: Stream<Item: Ord>> Unique<S> {
    pub(super) fn new(input: S) -> Self {
        Self {
            input,
            seen: BTreeSet::new(),
        }
    }
}

impl<S: Stream<Item: SavedItem + Ord + Clone>> Stream for Unique<S> {
    type Item = S::Item;

    fn next(&mut self) -> Result<Option<S::Item>> {
        while let Some(item) = self.input.next()? {
            if self.seen.insert(item.clone()) {
                return Ok(Some(item));
            }
        }
        Ok(None)
    }

    fn start(&mut self, epoch: u64) -> Result<()> {
        self.seen.clear();
        self.input.start(epoch)
    }

    fn state(&self) -> Result<State> {
        let state = State::new(STAGE).inner(self.input.state()?);
        self.seen.iter().try_fold(state, State::item)
    }

    fn restore(&mut self, state: &State) -> Result<()> {
        let mut state = state.read(STAGE)?;
        self.seen = state.all_items()?.into_iter().collect();
        self.input.restore(state.inner()?)?;
        state.finish()
    }

    super::as_input!(check, file);
}

#[cfg(test)]
mod tests {
    use crate::{Source, Stream, contract, range};

    #[test]
    fn keeps_the_contract() {
        let make = || range(0..20).map(|x| x * x % 7).stream().unique();
        contract::check_stream(make).unwrap();
        let all: Vec<_> = make().elements().map(Result::unwrap).collect();
        assert_eq!(all, [0, 1, 4, 2]);
    }
}
