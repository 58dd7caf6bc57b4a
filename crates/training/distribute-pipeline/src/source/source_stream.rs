//! A source, read in the order of its indices.

use std::path::PathBuf;

use super::{ENDLESS, Source};
use crate::stream::Stream;
use crate::{Cardinality, Result, State};

const STAGE: &str = "source";

/// [`Source::stream`]. Its state is an epoch and an index.
#[derive(Debug, Clone)]
#[must_use]
pub struct SourceStream<S> {
    source: S,
    epoch: u64,
    /// The index of the next element.
    next: u64,
}

impl<S> SourceStream<S> {
    pub(crate) fn new(source: S) -> Self {
        Self {
            source,
            epoch: 0,
            next: 0,
        }
    }

    pub(super) fn into_source(self) -> S {
        self.source
    }
}

impl<S: Source> Stream for SourceStream<S> {
    type Item = S::Item;

    fn next(&mut self) -> Result<Option<S::Item>> {
        if self.next >= self.source.len() {
            return Ok(None);
        }
        let index = self.next;
        self.next += 1;
        self.source.get_in_epoch(self.epoch, index).map(Some)
    }

    fn start(&mut self, epoch: u64) -> Result<()> {
        (self.epoch, self.next) = (epoch, 0);
        Ok(())
    }

    fn state(&self) -> Result<State> {
        Ok(State::new(STAGE).number(self.epoch).number(self.next))
    }

    fn restore(&mut self, state: &State) -> Result<()> {
        let mut state = state.read(STAGE)?;
        self.epoch = state.number()?;
        self.next = state.number_to(self.source.len())?;
        state.finish()
    }

    fn cardinality(&self) -> Cardinality {
        match self.source.len() {
            ENDLESS => Cardinality::Infinite,
            len => Cardinality::Known(len),
        }
    }

    fn check(&self) -> Result<()> {
        self.source.check()
    }

    fn file(&self) -> Option<PathBuf> {
        self.source.file(self.epoch, self.next.checked_sub(1)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{contract, range};

    #[test]
    fn keeps_the_contract() {
        contract::check_stream(|| range(0..7).shuffle(3).stream()).unwrap();
        contract::check_stream(|| range(0..0).stream()).unwrap();
        contract::check_stream(|| range(0..3).repeat(-1).stream()).unwrap();
    }

    #[test]
    fn a_place_behind_the_end_is_refused() {
        let state = range(0..7).stream().state().unwrap();
        let behind = State::new(STAGE).number(0).number(8);
        let mut stream = range(0..7).stream();
        stream.restore(&state).unwrap();
        assert!(stream.restore(&behind).is_err());
    }
}
