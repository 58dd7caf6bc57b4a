//! The elements that a function keeps.

use std::fmt;

use super::Stream;
use crate::Result;

const STAGE: &str = "filter";

/// [`Stream::filter`].
#[derive(Clone)]
#[must_use]
pub struct Filter<S, F> {
    input: S,
    keeps: F,
}

impl<S, F> Filter<S, F> {
    pub(super) fn new(input: S, keeps: F) -> Self {
        Self { input, keeps }
    }
}

impl<S, F> Stream for Filter<S, F>
where
    S: Stream,
    F: Fn(&S::Item) -> bool + Send,
{
    type Item = S::Item;

    fn next(&mut self) -> Result<Option<S::Item>> {
        while let Some(item) = self.input.next()? {
            if (self.keeps)(&item) {
                return Ok(Some(item));
            }
        }
        Ok(None)
    }

    super::as_input!(check, file, start, state(STAGE));
}

impl<S: fmt::Debug, F> fmt::Debug for Filter<S, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Filter")
            .field("input", &self.input)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use crate::{Source, Stream, contract, range};

    #[test]
    fn keeps_the_contract() {
        for divisor in 1..5 {
            let make = || {
                range(0..20)
                    .shuffle(1)
                    .stream()
                    .filter(move |x| x % divisor == 0)
            };
            contract::check_stream(make).unwrap();
        }
        contract::check_stream(|| range(0..20).stream().filter(|_| false)).unwrap();
    }
}
