//! Lists of elements with the same key.

use std::collections::BTreeMap;
use std::fmt;

use super::{SavedItem, Stream};
use crate::{PipelineError, Result, State};

const STAGE: &str = "group_by_window";

/// [`Stream::group_by_window`]: a list and its key, as soon as enough elements have it; at
/// the end the lists that are not full, in the order of their keys. The elements that wait are
/// part of the state.
#[derive(Clone)]
#[must_use]
pub struct GroupByWindow<S: Stream, K, N> {
    input: S,
    key: K,
    size: N,
    groups: BTreeMap<i64, Vec<S::Item>>,
}

impl<S: Stream, K, N> GroupByWindow<S, K, N> {
    pub(super) fn new(input: S, key: K, size: N) -> Self {
        Self {
            input,
            key,
            size,
            groups: BTreeMap::new(),
        }
    }
}

impl<S, K, N> Stream for GroupByWindow<S, K, N>
where
    S: Stream<Item: SavedItem>,
    K: Fn(&S::Item) -> i64 + Send,
    N: Fn(i64) -> u64 + Send,
{
    type Item = (i64, Vec<S::Item>);

    fn next(&mut self) -> Result<Option<Self::Item>> {
        while let Some(item) = self.input.next()? {
            let key = (self.key)(&item);
            let size = (self.size)(key);
            if size == 0 {
                let what = format!("the window size of the key {key} is 0; give at least 1");
                return Err(PipelineError::argument(STAGE, what));
            }
            let group = self.groups.entry(key).or_default();
            group.push(item);
            if group.len() as u64 >= size {
                let full = self.groups.remove(&key);
                return Ok(full.map(|group| (key, group)));
            }
        }
        Ok(self.groups.pop_first())
    }

    fn start(&mut self, epoch: u64) -> Result<()> {
        self.groups.clear();
        self.input.start(epoch)
    }

    fn state(&self) -> Result<State> {
        let state = State::new(STAGE).inner(self.input.state()?);
        self.groups
            .iter()
            .try_fold(state, |state, group| state.item(&group))
    }

    fn restore(&mut self, state: &State) -> Result<()> {
        let mut state = state.read(STAGE)?;
        self.groups = state.all_items()?.into_iter().collect();
        self.input.restore(state.inner()?)?;
        state.finish()
    }

    super::as_input!(check, file);
}

impl<S: Stream + fmt::Debug, K, N> fmt::Debug for GroupByWindow<S, K, N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GroupByWindow")
            .field("input", &self.input)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use crate::{Source, Stream, contract, range};

    #[test]
    fn keeps_the_contract_and_ends_with_short_groups_by_key() {
        let make = || range(0..11).stream().group_by_window(|x| -(x % 3), |_| 2);
        contract::check_stream(make).unwrap();
        let all: Vec<_> = make().elements().map(Result::unwrap).collect();
        assert_eq!(all[0], (0, vec![0, 3]));
        assert_eq!(all.len(), 6);
        let short: Vec<_> = all.iter().filter(|(_, group)| group.len() < 2).collect();
        assert!(short.is_sorted());
    }

    #[test]
    fn a_size_of_0_is_an_error() {
        let mut stream = range(0..3).stream().group_by_window(|_| 7, |_| 0);
        let error = stream.next().unwrap_err().to_string();
        assert!(error.contains("key 7"), "{error}");
    }
}
