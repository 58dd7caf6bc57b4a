//! A random order of a source, by a buffer of indices.

use std::path::PathBuf;

use super::{ENDLESS, FromFn, Source, SourceStream, from_fn};
use crate::stream::{Shuffle, Stream};
use crate::{Cardinality, Result, State};

const STAGE: &str = "shuffled_source";

type Index = fn(u64) -> Result<u64>;

/// [`SourceStream::shuffle`]: the order of [`Stream::shuffle`](crate::Stream::shuffle), where the
/// buffer holds indices. An element is read when it is drawn, and need not be serialized.
#[derive(Debug, Clone)]
#[must_use]
pub struct ShuffledSource<S> {
    source: S,
    epoch: u64,
    order: Shuffle<SourceStream<FromFn<Index>>>,
    last: Option<u64>,
}

impl<S: Source> SourceStream<S> {
    /// Another order, drawn from a buffer of the next `buffer` indices (TensorFlow: `shuffle`): the
    /// elements themselves are read when they are drawn, and none is part of the state.
    /// [`Source::shuffle`] needs no buffer, and shuffles over the whole source.
    pub fn shuffle(self, buffer: u64, seed: u64) -> ShuffledSource<S> {
        ShuffledSource::new(self.into_source(), buffer, seed)
    }
}

impl<S: Source> ShuffledSource<S> {
    pub(super) fn new(source: S, size: u64, seed: u64) -> Self {
        let indices = from_fn(source.len(), Ok as Index).stream();
        Self {
            source,
            epoch: 0,
            order: Shuffle::new(indices, size, seed),
            last: None,
        }
    }

    /// Whether each epoch has another order, as by default (TensorFlow:
    /// `reshuffle_each_iteration`).
    pub fn reshuffle_each_iteration(mut self, reshuffle: bool) -> Self {
        self.order = self.order.reshuffle_each_iteration(reshuffle);
        self
    }
}

impl<S: Source> Stream for ShuffledSource<S> {
    type Item = S::Item;

    fn next(&mut self) -> Result<Option<S::Item>> {
        let Some(index) = self.order.next()? else {
            return Ok(None);
        };
        self.last = Some(index);
        self.source.get_in_epoch(self.epoch, index).map(Some)
    }

    fn start(&mut self, epoch: u64) -> Result<()> {
        self.epoch = epoch;
        self.last = None;
        self.order.start(epoch)
    }

    fn state(&self) -> Result<State> {
        Ok(State::new(STAGE)
            .number(self.epoch)
            .inner(self.order.state()?))
    }

    fn restore(&mut self, state: &State) -> Result<()> {
        let mut state = state.read(STAGE)?;
        self.epoch = state.number()?;
        self.last = None;
        self.order.restore(state.inner()?)?;
        state.finish()
    }

    fn cardinality(&self) -> Cardinality {
        match self.source.len() {
            ENDLESS => Cardinality::Infinite,
            len => Cardinality::Known(len),
        }
    }

    fn check(&self) -> Result<()> {
        self.order.check()?;
        self.source.check()
    }

    fn file(&self) -> Option<PathBuf> {
        self.source.file(self.epoch, self.last?)
    }
}

#[cfg(test)]
mod tests {
    use crate::{Source, Stream, contract, range};

    #[test]
    fn has_the_order_of_a_shuffled_stream() {
        for buffer in [1, 4, 50] {
            let make = || range(100..130).shuffle(1).stream().shuffle(buffer, 5);
            contract::check_stream(make).unwrap();
            let mut indices = make();
            let mut elements = range(100..130)
                .shuffle(1)
                .stream()
                .map(|x| x)
                .shuffle(buffer, 5);
            for epoch in [0, 2] {
                indices.start(epoch).unwrap();
                elements.start(epoch).unwrap();
                let elements = elements.elements().map(Result::unwrap);
                assert!(indices.elements().map(Result::unwrap).eq(elements));
            }
        }
        let mut wrong = range(0..3).stream().shuffle(0, 1);
        assert!(wrong.check().is_err() && wrong.next().is_err());
    }
}
