//! The first elements.

use super::Stream;
use crate::{Cardinality, Count, Result};

const STAGE: &str = "take";

/// [`Stream::take`].
#[derive(Debug, Clone)]
#[must_use]
pub struct Take<S> {
    input: S,
    count: Count,
    taken: u64,
}

impl<S> Take<S> {
    pub(super) fn new(input: S, count: Count) -> Self {
        Self {
            input,
            count,
            taken: 0,
        }
    }
}

impl<S: Stream> Stream for Take<S> {
    type Item = S::Item;

    fn next(&mut self) -> Result<Option<S::Item>> {
        if self.taken >= self.count.of(u64::MAX) {
            return Ok(None);
        }
        let item = self.input.next()?;
        self.taken += u64::from(item.is_some());
        Ok(item)
    }

    fn cardinality(&self) -> Cardinality {
        self.input.cardinality().first(self.count)
    }

    super::as_input!(
        number(STAGE, taken, |it: &Self| it.count.of(u64::MAX)),
        check,
        file
    );
}

#[cfg(test)]
mod tests {
    use crate::{Cardinality, Source, Stream, contract, range};

    #[test]
    fn keeps_the_contract_at_every_count() {
        for count in [-1, 0, 1, 5, 9, 12] {
            contract::check_stream(|| range(0..9).stream().take(count)).unwrap();
        }
        let endless = range(0..9).repeat(-1).stream();
        assert_eq!(endless.take(4).cardinality(), Cardinality::Known(4));
    }
}
