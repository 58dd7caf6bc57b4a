//! Elements that are read once, in memory.

use super::{SavedItem, Stream};
use crate::{Cardinality, PipelineError, Result, State};

const STAGE: &str = "cache";

/// [`Stream::cache`]: the elements of epoch 0, which every epoch gives. Memory is lost with the
/// process: a stream that is restored while it is read from memory reads its input again.
/// [`Stream::cache_file`] keeps the elements.
#[derive(Debug, Clone)]
#[must_use]
pub struct Cache<S: Stream> {
    input: S,
    /// The elements read so far in one go from the first one on.
    kept: Vec<S::Item>,
    /// Whether these are all.
    is_whole: bool,
    /// Whether the running pass reads its input from the first element on.
    fills: bool,
    limit: u64,
    next: u64,
}

impl<S: Stream> Cache<S> {
    pub(super) fn new(input: S) -> Self {
        Self {
            input,
            kept: Vec::new(),
            is_whole: false,
            fills: true,
            limit: u64::MAX,
            next: 0,
        }
    }

    /// The most elements that may be kept: one more is an error.
    pub fn limit(mut self, elements: u64) -> Self {
        self.limit = elements;
        self
    }
}

impl<S: Stream<Item: SavedItem + Clone>> Cache<S> {
    fn read_input(&mut self) -> Result<Option<S::Item>> {
        // A pass that had an error is not whole.
        let item = self.input.next().inspect_err(|_| self.fills = false)?;
        let Some(item) = item else {
            self.is_whole = self.is_whole || self.fills;
            return Ok(None);
        };
        if self.fills && !self.is_whole {
            if self.kept.len() as u64 >= self.limit {
                let what = format!(
                    "there are more than the {} elements that may be kept; raise the limit, or \
                     cache in a file",
                    self.limit
                );
                self.fills = false;
                self.kept.clear();
                return Err(PipelineError::argument(STAGE, what));
            }
            self.kept.push(item.clone());
        }
        Ok(Some(item))
    }
}

impl<S: Stream<Item: SavedItem + Clone>> Stream for Cache<S> {
    type Item = S::Item;

    fn next(&mut self) -> Result<Option<S::Item>> {
        let item = if self.is_whole {
            let place = usize::try_from(self.next).ok();
            place.and_then(|place| self.kept.get(place)).cloned()
        } else {
            self.read_input()?
        };
        self.next += u64::from(item.is_some());
        Ok(item)
    }

    fn start(&mut self, _epoch: u64) -> Result<()> {
        self.next = 0;
        if self.is_whole {
            return Ok(());
        }
        self.kept.clear();
        self.fills = true;
        self.input.start(0)
    }

    fn state(&self) -> Result<State> {
        let state = State::new(STAGE).number(self.next);
        // From memory, the place says all.
        if self.is_whole {
            return Ok(state);
        }
        Ok(state.inner(self.input.state()?))
    }

    fn restore(&mut self, state: &State) -> Result<()> {
        let mut state = state.read(STAGE)?;
        let next = state.number()?;
        if self.is_whole {
            let kept = self.kept.len() as u64;
            if next > kept {
                return Err(state.fault(format!("it says {next}, of {kept} elements")));
            }
            self.next = next;
            return Ok(());
        }
        if state.inner_left() > 0 {
            self.input.restore(state.inner()?)?;
            self.kept.clear();
            self.fills = next == 0;
        } else {
            self.start(0)?;
            while self.read_input()?.is_some() {}
            if next > self.kept.len() as u64 {
                return Err(state.fault("the input has fewer elements than before"));
            }
        }
        self.next = next;
        state.finish()
    }

    fn cardinality(&self) -> Cardinality {
        self.input.cardinality()
    }

    super::as_input!(check);
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use crate::{Source, Stream, contract, from_fn, range};

    #[test]
    fn keeps_the_contract() {
        let make = || {
            range(0..9)
                .shuffle(2)
                .stream()
                .filter(|x| x % 4 > 0)
                .cache()
        };
        contract::check_stream(make).unwrap();
        contract::check_stream(|| make().repeat(3)).unwrap();
        contract::check_stream(|| range(0..0).stream().cache().repeat(2)).unwrap();
    }

    #[test]
    fn reads_once_and_no_more_than_its_limit() {
        let reads = AtomicU64::new(0);
        let counted = from_fn(10, |index| {
            reads.fetch_add(1, Ordering::Relaxed);
            Ok::<_, String>(index)
        });
        let mut stream = counted.stream().cache().repeat(3);
        assert_eq!(stream.elements().count(), 30);
        assert_eq!(reads.load(Ordering::Relaxed), 10);
        let mut few = range(0..9).stream().cache().limit(4);
        assert!(few.elements().nth(4).unwrap().is_err());
    }

    #[test]
    fn a_pass_with_errors_is_not_kept() {
        let fails = |x: i64| (x != 4).then_some(x).ok_or("four");
        let mut failing = range(0..9).stream().try_map(fails).cache();
        let mut few = range(0..9).stream().cache().limit(4);
        for epoch in 0..3 {
            failing.start(epoch).unwrap();
            few.start(epoch).unwrap();
            for items in [failing.elements().collect(), few.elements().collect()] {
                let items: Vec<crate::Result<i64>> = items;
                assert_eq!(items.len(), 9);
                assert!(items[4].is_err());
                assert_eq!(items.iter().filter(|item| item.is_ok()).count(), 8);
            }
        }
    }
}
