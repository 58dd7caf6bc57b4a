//! The elements behind the first ones.

use super::Stream;
use crate::{Cardinality, Count, Result};

const STAGE: &str = "skip";

/// [`Stream::skip`].
#[derive(Debug, Clone)]
#[must_use]
pub struct Skip<S> {
    input: S,
    count: Count,
    skipped: u64,
}

impl<S> Skip<S> {
    pub(super) fn new(input: S, count: Count) -> Self {
        Self {
            input,
            count,
            skipped: 0,
        }
    }
}

impl<S: Stream> Stream for Skip<S> {
    type Item = S::Item;

    fn next(&mut self) -> Result<Option<S::Item>> {
        // To skip all, nothing need be read.
        let Count::Exactly(count) = self.count else {
            return Ok(None);
        };
        while self.skipped < count {
            if self.input.next()?.is_none() {
                return Ok(None);
            }
            self.skipped += 1;
        }
        self.input.next()
    }

    fn cardinality(&self) -> Cardinality {
        self.input.cardinality().without_first(self.count)
    }

    super::as_input!(
        number(STAGE, skipped, |it: &Self| it.count.of(u64::MAX)),
        check,
        file
    );
}

#[cfg(test)]
mod tests {
    use crate::{Source, Stream, contract, range};

    #[test]
    fn keeps_the_contract_at_every_count() {
        for count in [-1, 0, 1, 5, 9, 12] {
            contract::check_stream(|| range(0..9).stream().skip(count)).unwrap();
        }
    }
}
