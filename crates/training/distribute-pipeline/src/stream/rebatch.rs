//! Batches of another size.

use super::{Batch, SavedItem, Stream, Unbatch};
use crate::{Result, State};

/// [`Stream::rebatch`].
#[derive(Debug, Clone)]
#[must_use]
pub struct Rebatch<S, T> {
    input: Batch<Unbatch<S, T>>,
}

impl<S, T> Rebatch<S, T> {
    pub(super) fn new(input: S, size: u64) -> Self {
        Self {
            input: Batch::new(Unbatch::new(input), size),
        }
    }

    /// Whether a short last batch is left out (TensorFlow: `drop_remainder`); not by default.
    pub fn drop_remainder(mut self, drop: bool) -> Self {
        self.input = self.input.drop_remainder(drop);
        self
    }
}

impl<S, T> Stream for Rebatch<S, T>
where
    S: Stream<Item: IntoIterator<Item = T>>,
    T: SavedItem,
{
    type Item = Vec<T>;

    fn next(&mut self) -> Result<Option<Vec<T>>> {
        self.input.next()
    }

    fn state(&self) -> Result<State> {
        self.input.state()
    }

    fn restore(&mut self, state: &State) -> Result<()> {
        self.input.restore(state)
    }

    super::as_input!(check, file, start);
}

#[cfg(test)]
mod tests {
    use crate::{Source, Stream, contract, range};

    #[test]
    fn keeps_the_contract_at_every_size() {
        for size in 1..8 {
            for drop in [false, true] {
                let batches = || range(0..11).stream().batch(3);
                let make = || batches().rebatch(size).drop_remainder(drop);
                contract::check_stream(make).unwrap();
                let mut plain = range(0..11).stream().batch(size).drop_remainder(drop);
                let plain = plain.elements().map(Result::unwrap);
                assert!(make().elements().map(Result::unwrap).eq(plain));
            }
        }
    }
}
