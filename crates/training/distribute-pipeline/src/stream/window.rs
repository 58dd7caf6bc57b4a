//! Lists of elements that may overlap.

use std::collections::VecDeque;

use super::{SavedItem, Stream};
use crate::{Cardinality, PipelineError, Result, State};

const STAGE: &str = "window";

/// [`Stream::window`]: window `i` holds the elements `i * shift + j * stride` for `j` below the
/// size, as many as there are. The elements that windows share are part of the state.
#[derive(Debug, Clone)]
#[must_use]
pub struct Window<S: Stream> {
    input: S,
    size: u64,
    shift: Option<u64>,
    stride: u64,
    drop_remainder: bool,
    /// The elements from the start of the next window on.
    held: VecDeque<S::Item>,
    /// The elements to skip before it, of windows that lie apart.
    to_skip: u64,
}

impl<S: Stream> Window<S> {
    pub(super) fn new(input: S, size: u64) -> Self {
        Self {
            input,
            size,
            shift: None,
            stride: 1,
            drop_remainder: false,
            held: VecDeque::new(),
            to_skip: 0,
        }
    }

    /// How far a window starts behind the one before it; by default its size.
    pub fn shift(mut self, shift: u64) -> Self {
        self.shift = Some(shift);
        self
    }

    /// The distance of a window's elements, 1 by default.
    pub fn stride(mut self, stride: u64) -> Self {
        self.stride = stride;
        self
    }

    /// Whether windows with fewer elements, at the end, are left out; not by default.
    pub fn drop_remainder(mut self, drop: bool) -> Self {
        self.drop_remainder = drop;
        self
    }

    fn step(&self) -> u64 {
        self.shift.unwrap_or(self.size)
    }

    /// The elements between the first and the last of a full window, these included.
    fn span(&self) -> u64 {
        let between = self.size.saturating_sub(1).saturating_mul(self.stride);
        between.saturating_add(1)
    }

    fn check_sizes(&self) -> Result<()> {
        let sizes = [
            ("size", self.size),
            ("shift", self.step()),
            ("stride", self.stride),
        ];
        match sizes.iter().find(|(_, size)| *size == 0) {
            None => Ok(()),
            Some((name, _)) => Err(PipelineError::argument(
                STAGE,
                format!("the window {name} is 0; pass at least 1"),
            )),
        }
    }

    /// Reads until a full window is held, or to the end.
    fn fill(&mut self) -> Result<()> {
        while self.to_skip > 0 {
            if self.input.next()?.is_none() {
                return Ok(());
            }
            self.to_skip -= 1;
        }
        while (self.held.len() as u64) < self.span() {
            match self.input.next()? {
                Some(item) => self.held.push_back(item),
                None => break,
            }
        }
        Ok(())
    }
}

impl<S: Stream<Item: SavedItem + Clone>> Stream for Window<S> {
    type Item = Vec<S::Item>;

    fn next(&mut self) -> Result<Option<Self::Item>> {
        self.check_sizes()?;
        self.fill()?;
        let held = self.held.len() as u64;
        if held == 0 || (self.drop_remainder && held < self.span()) {
            return Ok(None);
        }
        let stride = usize::try_from(self.stride).unwrap_or(usize::MAX);
        let size = usize::try_from(self.size).unwrap_or(usize::MAX);
        let window = self.held.iter().step_by(stride).take(size).cloned();
        let window = window.collect();
        let dropped = self.step().min(held);
        self.to_skip = self.step() - dropped;
        // No more than are held.
        self.held.drain(..dropped as usize);
        Ok(Some(window))
    }

    fn start(&mut self, epoch: u64) -> Result<()> {
        self.held.clear();
        self.to_skip = 0;
        self.input.start(epoch)
    }

    fn state(&self) -> Result<State> {
        let state = State::new(STAGE).number(self.to_skip);
        let state = state.inner(self.input.state()?);
        self.held.iter().try_fold(state, State::item)
    }

    fn restore(&mut self, state: &State) -> Result<()> {
        let mut state = state.read(STAGE)?;
        self.to_skip = state.count()?;
        self.held = state.all_items()?.into();
        self.input.restore(state.inner()?)?;
        state.finish()
    }

    fn cardinality(&self) -> Cardinality {
        let (step, span) = (self.step().max(1), self.span());
        self.input.cardinality().map(|count| {
            if self.drop_remainder {
                return count.checked_sub(span).map_or(0, |more| more / step + 1);
            }
            count.div_ceil(step)
        })
    }

    fn check(&self) -> Result<()> {
        self.check_sizes()?;
        self.input.check()
    }

    super::as_input!(file);
}

#[cfg(test)]
mod tests {
    use crate::{Source, Stream, contract, range};

    #[test]
    fn keeps_the_contract_and_follows_its_formula() {
        for (n, size, shift, stride) in itertools() {
            for drop in [false, true] {
                let make = || {
                    let window = range(0..n as i64).stream().window(size);
                    window.shift(shift).stride(stride).drop_remainder(drop)
                };
                contract::check_stream(make).unwrap();
                let mut expected = Vec::new();
                for start in (0..n).step_by(shift as usize) {
                    let places = (0..size).map(|j| start + j * stride);
                    let window: Vec<_> = places.filter(|at| *at < n).map(|at| at as i64).collect();
                    if !drop || window.len() as u64 == size {
                        expected.push(window);
                    }
                }
                let found: Vec<_> = make().elements().map(Result::unwrap).collect();
                assert_eq!(found, expected, "{n} {size} {shift} {stride} {drop}");
            }
        }
    }

    fn itertools() -> Vec<(u64, u64, u64, u64)> {
        let mut cases = Vec::new();
        for n in [0, 1, 7, 10] {
            for (size, shift) in [(1, 1), (2, 5), (3, 1), (3, 3), (4, 2), (12, 4)] {
                cases.extend([1, 2, 3].map(|stride| (n, size, shift, stride)));
            }
        }
        cases
    }

    #[test]
    fn zeros_are_refused() {
        let window = || range(0..5).stream().window(2);
        let wrong = [
            window().shift(0),
            window().stride(0),
            range(0..5).stream().window(0),
        ];
        for mut wrong in wrong {
            assert!(wrong.check().is_err() && wrong.next().is_err());
        }
    }
}
