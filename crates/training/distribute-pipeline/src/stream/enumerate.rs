//! Elements with their numbers.

use super::Stream;
use crate::{Cardinality, Result, State};

const STAGE: &str = "enumerate";

/// [`Stream::enumerate`].
#[derive(Debug, Clone)]
#[must_use]
pub struct Enumerate<S> {
    input: S,
    start: u64,
    index: u64,
}

impl<S> Enumerate<S> {
    pub(super) fn new(input: S, start: u64) -> Self {
        Self {
            input,
            start,
            index: 0,
        }
    }
}

impl<S: Stream> Stream for Enumerate<S> {
    type Item = (u64, S::Item);

    fn next(&mut self) -> Result<Option<Self::Item>> {
        let Some(item) = self.input.next()? else {
            return Ok(None);
        };
        let number = self.start.wrapping_add(self.index);
        self.index += 1;
        Ok(Some((number, item)))
    }

    fn cardinality(&self) -> Cardinality {
        self.input.cardinality()
    }

    super::as_input!(number(STAGE, index, |_: &Self| State::MOST), check, file);
}

#[cfg(test)]
mod tests {
    use crate::{Source, Stream, contract, range};

    #[test]
    fn keeps_the_contract() {
        contract::check_stream(|| range(3..9).stream().enumerate(7)).unwrap();
    }
}
