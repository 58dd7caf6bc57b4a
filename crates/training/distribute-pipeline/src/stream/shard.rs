//! Every n-th element.

use super::Stream;
use crate::checks::check_shard;
use crate::{Cardinality, Result};

const STAGE: &str = "shard";

/// [`Stream::shard`]. It reads all elements and drops the others': a source is sharded without.
#[derive(Debug, Clone)]
#[must_use]
pub struct Shard<S> {
    input: S,
    shards: u64,
    index: u64,
    /// The elements read, modulo `shards`.
    place: u64,
}

impl<S> Shard<S> {
    pub(super) fn new(input: S, shards: u64, index: u64) -> Self {
        Self {
            input,
            shards,
            index,
            place: 0,
        }
    }
}

impl<S: Stream> Stream for Shard<S> {
    type Item = S::Item;

    fn next(&mut self) -> Result<Option<S::Item>> {
        check_shard(self.shards, self.index)?;
        while let Some(item) = self.input.next()? {
            let place = self.place;
            self.place = (place + 1) % self.shards;
            if place == self.index {
                return Ok(Some(item));
            }
        }
        Ok(None)
    }

    fn cardinality(&self) -> Cardinality {
        let (index, shards) = (self.index, self.shards.max(1));
        let own = |count: u64| count.saturating_sub(index).div_ceil(shards);
        self.input.cardinality().map(own)
    }

    fn check(&self) -> Result<()> {
        check_shard(self.shards, self.index)?;
        self.input.check()
    }

    super::as_input!(
        number(STAGE, place, |it: &Self| it.shards.saturating_sub(1)),
        file
    );
}

#[cfg(test)]
mod tests {
    use crate::{Source, State, Stream, contract, range};

    #[test]
    fn keeps_the_contract_and_refuses_wrong_shards() {
        for index in 0..3 {
            contract::check_stream(|| range(0..10).stream().shard(3, index)).unwrap();
        }
        for (shards, index) in [(0, 0), (2, 2)] {
            let mut shard = range(0..10).stream().shard(shards, index);
            assert!(shard.check().is_err() && shard.next().is_err());
        }
        let mut shard = range(0..10).stream().shard(3, 1);
        let input = range(0..10).stream().state().unwrap();
        let beyond = State::new("shard").number(3).inner(input);
        assert!(shard.restore(&beyond).is_err());
    }
}
