//! A random order, by a buffer.

use super::{SavedItem, Stream};
use crate::random::below;
use crate::{Cardinality, PipelineError, Result, State};

const STAGE: &str = "shuffle";

/// [`Stream::shuffle`]: TensorFlow's rule. A buffer is filled, and each element is drawn from it
/// and replaced by the next one: no element comes more than the buffer's size less one places
/// before its own. The draws follow from seed, epoch and the number of the draw. The elements in
/// the buffer are part of the state.
#[derive(Debug, Clone)]
#[must_use]
pub struct Shuffle<S: Stream> {
    input: S,
    size: u64,
    seed: u64,
    reshuffle: bool,
    epoch: u64,
    drawn: u64,
    buffer: Vec<S::Item>,
}

impl<S: Stream> Shuffle<S> {
    pub(crate) fn new(input: S, size: u64, seed: u64) -> Self {
        Self {
            input,
            size,
            seed,
            reshuffle: true,
            epoch: 0,
            drawn: 0,
            buffer: Vec::new(),
        }
    }

    /// Whether each epoch has another order, as by default (TensorFlow:
    /// `reshuffle_each_iteration`).
    pub fn reshuffle_each_iteration(mut self, reshuffle: bool) -> Self {
        self.reshuffle = reshuffle;
        self
    }

    fn check_size(&self) -> Result<()> {
        match self.size {
            0 => Err(PipelineError::argument(
                STAGE,
                "the buffer size is 0; pass at least 1 element",
            )),
            _ => Ok(()),
        }
    }
}

impl<S: Stream<Item: SavedItem>> Stream for Shuffle<S> {
    type Item = S::Item;

    fn next(&mut self) -> Result<Option<S::Item>> {
        self.check_size()?;
        while (self.buffer.len() as u64) < self.size {
            match self.input.next()? {
                Some(item) => self.buffer.push(item),
                None => break,
            }
        }
        if self.buffer.is_empty() {
            return Ok(None);
        }
        let epoch = if self.reshuffle { self.epoch } else { 0 };
        let drawn = below(self.buffer.len() as u64, self.seed, epoch, self.drawn);
        self.drawn += 1;
        // Below the length of the buffer.
        Ok(Some(self.buffer.swap_remove(drawn as usize)))
    }

    fn start(&mut self, epoch: u64) -> Result<()> {
        (self.epoch, self.drawn) = (epoch, 0);
        self.buffer.clear();
        self.input.start(epoch)
    }

    fn state(&self) -> Result<State> {
        let state = State::new(STAGE).number(self.epoch).number(self.drawn);
        let state = state.inner(self.input.state()?);
        self.buffer.iter().try_fold(state, State::item)
    }

    fn restore(&mut self, state: &State) -> Result<()> {
        let mut state = state.read(STAGE)?;
        self.epoch = state.number()?;
        self.drawn = state.count()?;
        self.buffer = state.all_items()?;
        self.input.restore(state.inner()?)?;
        state.finish()
    }

    fn cardinality(&self) -> Cardinality {
        self.input.cardinality()
    }

    fn check(&self) -> Result<()> {
        self.check_size()?;
        self.input.check()
    }
}

#[cfg(test)]
mod tests {
    use crate::{Source, Stream, contract, range};

    #[test]
    fn keeps_the_contract_and_the_distance() {
        for buffer in [1, 2, 7, 40, 100] {
            let make = || {
                range(0..40)
                    .map(|x| x)
                    .stream()
                    .map(|x| x)
                    .shuffle(buffer, 9)
            };
            contract::check_stream(make).unwrap();
            for epoch in 0..4 {
                let mut stream = make();
                stream.start(epoch).unwrap();
                let order: Vec<_> = stream.elements().map(Result::unwrap).collect();
                for (place, element) in (0..).zip(&order) {
                    assert!(element - place < buffer as i64);
                }
                let mut sorted = order;
                sorted.sort_unstable();
                assert!(sorted.into_iter().eq(0..40));
            }
        }
    }

    #[test]
    fn every_order_of_a_full_buffer_comes_as_often() {
        let mut seen = std::collections::BTreeMap::new();
        for seed in 0..6_000 {
            let mut stream = range(0..3).stream().map(|x| x).shuffle(3, seed);
            let order: Vec<_> = stream.elements().map(Result::unwrap).collect();
            *seen.entry(order).or_insert(0) += 1;
        }
        assert_eq!(seen.len(), 6);
        assert!(
            seen.values().all(|count| (880..1_120).contains(count)),
            "{seen:?}"
        );
    }

    #[test]
    fn epochs_are_alike_without_reshuffling() {
        let make = || range(0..30).stream().map(|x| x).shuffle(9, 1);
        let mut fixed = make().reshuffle_each_iteration(false);
        let first: Vec<_> = fixed.elements().map(Result::unwrap).collect();
        fixed.start(4).unwrap();
        assert!(fixed.elements().map(Result::unwrap).eq(first.clone()));
        let mut other = make();
        other.start(4).unwrap();
        assert!(!other.elements().map(Result::unwrap).eq(first));
        assert!(
            range(0..3)
                .stream()
                .map(|x| x)
                .shuffle(0, 1)
                .check()
                .is_err()
        );
    }
}
