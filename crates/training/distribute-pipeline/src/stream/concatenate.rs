//! One stream after the other.

use std::path::PathBuf;

use super::Stream;
use crate::{Cardinality, Result, State};

const STAGE: &str = "concatenate";

/// [`Stream::concatenate`].
#[derive(Debug, Clone)]
#[must_use]
pub struct Concatenate<A, B> {
    one: A,
    other: B,
    in_other: bool,
}

impl<A, B> Concatenate<A, B> {
    pub(super) fn new(one: A, other: B) -> Self {
        Self {
            one,
            other,
            in_other: false,
        }
    }
}

impl<A, B> Stream for Concatenate<A, B>
where
    A: Stream,
    B: Stream<Item = A::Item>,
{
    type Item = A::Item;

    fn next(&mut self) -> Result<Option<A::Item>> {
        if !self.in_other {
            if let Some(item) = self.one.next()? {
                return Ok(Some(item));
            }
            self.in_other = true;
        }
        self.other.next()
    }

    fn start(&mut self, epoch: u64) -> Result<()> {
        self.in_other = false;
        self.one.start(epoch)?;
        self.other.start(epoch)
    }

    fn state(&self) -> Result<State> {
        let state = State::new(STAGE).number(self.in_other.into());
        Ok(state.inner(self.one.state()?).inner(self.other.state()?))
    }

    fn restore(&mut self, state: &State) -> Result<()> {
        let mut state = state.read(STAGE)?;
        self.in_other = state.number_to(1)? == 1;
        self.one.restore(state.inner()?)?;
        self.other.restore(state.inner()?)?;
        state.finish()
    }

    fn cardinality(&self) -> Cardinality {
        self.one.cardinality().followed_by(self.other.cardinality())
    }

    fn check(&self) -> Result<()> {
        self.one.check()?;
        self.other.check()
    }

    fn file(&self) -> Option<PathBuf> {
        if self.in_other {
            return self.other.file();
        }
        self.one.file()
    }
}

#[cfg(test)]
mod tests {
    use crate::{Source, Stream, contract, range};

    #[test]
    fn keeps_the_contract() {
        for n in 0..3 {
            let make = || range(0..n).stream().concatenate(range(9..12).stream());
            contract::check_stream(make).unwrap();
        }
    }
}
