//! Elements of two streams together.

use std::path::PathBuf;

use super::Stream;
use crate::{Cardinality, Result, State};

const STAGE: &str = "zip";

/// [`Stream::zip`].
#[derive(Debug, Clone)]
#[must_use]
pub struct Zip<A, B> {
    one: A,
    other: B,
    has_ended: bool,
}

impl<A, B> Zip<A, B> {
    pub(super) fn new(one: A, other: B) -> Self {
        Self {
            one,
            other,
            has_ended: false,
        }
    }
}

impl<A: Stream, B: Stream> Stream for Zip<A, B> {
    type Item = (A::Item, B::Item);

    fn next(&mut self) -> Result<Option<Self::Item>> {
        if self.has_ended {
            return Ok(None);
        }
        let one = self.one.next()?;
        let other = match &one {
            Some(_) => self.other.next()?,
            None => None,
        };
        let pair = one.zip(other);
        self.has_ended = pair.is_none();
        Ok(pair)
    }

    fn start(&mut self, epoch: u64) -> Result<()> {
        self.has_ended = false;
        self.one.start(epoch)?;
        self.other.start(epoch)
    }

    fn state(&self) -> Result<State> {
        let state = State::new(STAGE).number(self.has_ended.into());
        Ok(state.inner(self.one.state()?).inner(self.other.state()?))
    }

    fn restore(&mut self, state: &State) -> Result<()> {
        let mut state = state.read(STAGE)?;
        self.has_ended = state.number_to(1)? == 1;
        self.one.restore(state.inner()?)?;
        self.other.restore(state.inner()?)?;
        state.finish()
    }

    fn cardinality(&self) -> Cardinality {
        self.one
            .cardinality()
            .together_with(self.other.cardinality())
    }

    fn check(&self) -> Result<()> {
        self.one.check()?;
        self.other.check()
    }

    fn file(&self) -> Option<PathBuf> {
        self.one.file().or_else(|| self.other.file())
    }
}

#[cfg(test)]
mod tests {
    use crate::{Source, Stream, contract, range};

    #[test]
    fn keeps_the_contract_and_ends_with_the_shorter() {
        contract::check_stream(|| range(0..5).stream().zip(range(3..6).stream())).unwrap();
        contract::check_stream(|| range(0..2).stream().zip(range(3..6).stream())).unwrap();
    }
}
