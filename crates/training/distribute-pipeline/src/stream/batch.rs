//! Lists of elements.

use super::Stream;
use crate::checks::check_size;
use crate::{Cardinality, Result};

const STAGE: &str = "batch";

/// [`Stream::batch`]: the elements of a batch are a `Vec`.
#[derive(Debug, Clone)]
#[must_use]
pub struct Batch<S> {
    input: S,
    size: u64,
    drop_remainder: bool,
}

impl<S> Batch<S> {
    pub(super) fn new(input: S, size: u64) -> Self {
        Self {
            input,
            size,
            drop_remainder: false,
        }
    }

    /// Whether a short last batch is left out (TensorFlow: `drop_remainder`); not by default.
    pub fn drop_remainder(mut self, drop: bool) -> Self {
        self.drop_remainder = drop;
        self
    }
}

impl<S: Stream> Stream for Batch<S> {
    type Item = Vec<S::Item>;

    fn next(&mut self) -> Result<Option<Self::Item>> {
        check_size(STAGE, self.size)?;
        let mut batch = Vec::new();
        while (batch.len() as u64) < self.size {
            match self.input.next()? {
                Some(item) => batch.push(item),
                None if self.drop_remainder || batch.is_empty() => return Ok(None),
                None => break,
            }
        }
        Ok(Some(batch))
    }

    fn cardinality(&self) -> Cardinality {
        let (size, drops) = (self.size.max(1), self.drop_remainder);
        self.input.cardinality().map(|count| {
            let short = u64::from(!drops && count % size > 0);
            count / size + short
        })
    }

    fn check(&self) -> Result<()> {
        check_size(STAGE, self.size)?;
        self.input.check()
    }

    super::as_input!(file, start, state(STAGE));
}

#[cfg(test)]
mod tests {
    use crate::{Source, Stream, contract, range};

    #[test]
    fn keeps_the_contract_and_is_the_batch_of_a_source() {
        for n in 0..7 {
            for size in 1..9 {
                for drop in [false, true] {
                    let source = range(0..n).batch(size).drop_remainder(drop);
                    let make = || range(0..n).stream().batch(size).drop_remainder(drop);
                    contract::check_stream(make).unwrap();
                    let mut source = source.stream();
                    let same = source.elements().map(Result::unwrap);
                    assert!(make().elements().map(Result::unwrap).eq(same));
                }
            }
        }
        let mut wrong = range(0..0).stream().batch(0);
        assert!(wrong.check().is_err() && wrong.next().is_err());
    }
}
