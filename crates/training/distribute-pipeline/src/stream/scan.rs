//! A function with a memory.

use std::fmt;

use super::{SavedItem, Stream};
use crate::{Cardinality, Result, State};

const STAGE: &str = "scan";

/// [`Stream::scan`].
#[derive(Clone)]
#[must_use]
pub struct Scan<S, M, F> {
    input: S,
    initial: M,
    memory: M,
    function: F,
}

impl<S, M: Clone, F> Scan<S, M, F> {
    pub(super) fn new(input: S, initial: M, function: F) -> Self {
        Self {
            input,
            memory: initial.clone(),
            initial,
            function,
        }
    }
}

impl<S, M, U, F> Stream for Scan<S, M, F>
where
    S: Stream,
    M: SavedItem + Clone,
    U: Send,
    F: Fn(&mut M, S::Item) -> U + Send,
{
    type Item = U;

    fn next(&mut self) -> Result<Option<U>> {
        let item = self.input.next()?;
        Ok(item.map(|item| (self.function)(&mut self.memory, item)))
    }

    fn start(&mut self, epoch: u64) -> Result<()> {
        self.memory = self.initial.clone();
        self.input.start(epoch)
    }

    fn state(&self) -> Result<State> {
        State::new(STAGE)
            .inner(self.input.state()?)
            .item(&self.memory)
    }

    fn restore(&mut self, state: &State) -> Result<()> {
        let mut state = state.read(STAGE)?;
        self.memory = state.item()?;
        self.input.restore(state.inner()?)?;
        state.finish()
    }

    fn cardinality(&self) -> Cardinality {
        self.input.cardinality()
    }

    super::as_input!(check, file);
}

impl<S: fmt::Debug, M: fmt::Debug, F> fmt::Debug for Scan<S, M, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scan")
            .field("input", &self.input)
            .field("memory", &self.memory)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use crate::{Source, Stream, contract, range};

    #[test]
    fn keeps_the_contract() {
        contract::check_stream(|| {
            range(0..9).stream().scan(5, |sum: &mut i64, x| {
                *sum += x;
                *sum
            })
        })
        .unwrap();
    }
}
