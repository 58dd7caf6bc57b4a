//! The elements before the first one that a function refuses.

use std::fmt;

use super::Stream;
use crate::{Result, State};

const STAGE: &str = "take_while";

/// [`Stream::take_while`].
#[derive(Clone)]
#[must_use]
pub struct TakeWhile<S, F> {
    input: S,
    keeps: F,
    has_ended: bool,
}

impl<S, F> TakeWhile<S, F> {
    pub(super) fn new(input: S, keeps: F) -> Self {
        Self {
            input,
            keeps,
            has_ended: false,
        }
    }
}

impl<S, F> Stream for TakeWhile<S, F>
where
    S: Stream,
    F: Fn(&S::Item) -> bool + Send,
{
    type Item = S::Item;

    fn next(&mut self) -> Result<Option<S::Item>> {
        if self.has_ended {
            return Ok(None);
        }
        let item = self.input.next()?.filter(|item| (self.keeps)(item));
        self.has_ended = item.is_none();
        Ok(item)
    }

    fn start(&mut self, epoch: u64) -> Result<()> {
        self.has_ended = false;
        self.input.start(epoch)
    }

    fn state(&self) -> Result<State> {
        let state = State::new(STAGE).number(self.has_ended.into());
        Ok(state.inner(self.input.state()?))
    }

    fn restore(&mut self, state: &State) -> Result<()> {
        let mut state = state.read(STAGE)?;
        self.has_ended = state.number_to(1)? == 1;
        self.input.restore(state.inner()?)?;
        state.finish()
    }

    super::as_input!(check, file);
}

impl<S: fmt::Debug, F> fmt::Debug for TakeWhile<S, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TakeWhile")
            .field("input", &self.input)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use crate::{Source, Stream, contract, range};

    #[test]
    fn keeps_the_contract_and_stays_ended() {
        let make = || range(0..9).repeat(2).stream().take_while(|x| *x < 4);
        contract::check_stream(make).unwrap();
        assert_eq!(make().elements().count(), 4);
    }
}
