//! Several passes, one after the other.

use super::Stream;
use crate::random::inner_epoch;
use crate::{Cardinality, Count, Result, State};

const STAGE: &str = "repeat";

/// [`Stream::repeat`].
#[derive(Debug, Clone)]
#[must_use]
pub struct Repeat<S> {
    input: S,
    times: Count,
    epoch: u64,
    /// The running pass.
    pass: u64,
    /// Whether the running pass had an element.
    had_any: bool,
}

impl<S> Repeat<S> {
    pub(super) fn new(input: S, times: Count) -> Self {
        Self {
            input,
            times,
            epoch: 0,
            pass: 0,
            had_any: false,
        }
    }

    fn times(&self) -> Option<u64> {
        match self.times {
            Count::Exactly(times) => Some(times),
            Count::All => None,
        }
    }
}

impl<S: Stream> Stream for Repeat<S> {
    type Item = S::Item;

    fn next(&mut self) -> Result<Option<S::Item>> {
        while self.times().is_none_or(|times| self.pass < times) {
            if let Some(item) = self.input.next()? {
                self.had_any = true;
                return Ok(Some(item));
            }
            // Nothing, without end, would never end.
            if self.times().is_none() && !self.had_any {
                break;
            }
            let next = self.pass + 1;
            if self.times().is_none_or(|times| next < times) {
                self.input
                    .start(inner_epoch(self.epoch, self.times(), next))?;
            }
            (self.pass, self.had_any) = (next, false);
        }
        Ok(None)
    }

    fn start(&mut self, epoch: u64) -> Result<()> {
        (self.epoch, self.pass, self.had_any) = (epoch, 0, false);
        self.input.start(inner_epoch(epoch, self.times(), 0))
    }

    fn state(&self) -> Result<State> {
        let state = State::new(STAGE).number(self.epoch).number(self.pass);
        let state = state.number(self.had_any.into());
        Ok(state.inner(self.input.state()?))
    }

    fn restore(&mut self, state: &State) -> Result<()> {
        let mut state = state.read(STAGE)?;
        self.epoch = state.number()?;
        self.pass = state.number_to(self.times.of(u64::MAX))?;
        self.had_any = state.number_to(1)? == 1;
        self.input.restore(state.inner()?)?;
        state.finish()
    }

    fn cardinality(&self) -> Cardinality {
        self.input.cardinality().repeated(self.times)
    }

    super::as_input!(check, file);
}

#[cfg(test)]
mod tests {
    use crate::{Cardinality, Source, Stream, contract, range};

    #[test]
    fn keeps_the_contract_and_shuffles_each_pass() {
        for times in [-1, 0, 1, 3] {
            for n in [0, 1, 5] {
                contract::check_stream(|| range(0..n).shuffle(1).stream().repeat(times)).unwrap();
            }
        }
        let mut thrice = range(0..20).stream().shuffle(20, 1).repeat(3);
        let all: Vec<_> = thrice.elements().map(Result::unwrap).collect();
        assert!(all[..20] != all[20..40] && all[20..40] != all[40..]);
    }

    #[test]
    fn nothing_without_end_ends() {
        let mut nothing = range(0..3).stream().filter(|_| false).repeat(-1);
        assert_eq!(nothing.next().unwrap(), None);
        assert_eq!(nothing.cardinality(), Cardinality::Infinite);
    }

    #[test]
    fn is_a_source_that_is_repeated() {
        let mut stream = range(0..7).shuffle(3).stream().repeat(3);
        let source = range(0..7).shuffle(3).repeat(3);
        for epoch in 0..3 {
            stream.start(epoch).unwrap();
            for index in 0..21 {
                let expected = source.get_in_epoch(epoch, index).unwrap();
                assert_eq!(stream.next().unwrap(), Some(expected));
            }
        }
    }
}
