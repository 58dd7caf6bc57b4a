//! Elements that are read once.

use std::fmt;
use std::path::PathBuf;
use std::sync::OnceLock;

use super::{Source, in_range};
use crate::{PipelineError, Result};

/// [`Source::cache`]: the elements of epoch 0, in memory.
#[must_use]
pub struct Cache<S: Source> {
    input: S,
    /// The most elements that are kept.
    limit: u64,
    /// One place for each element that is kept; made when the first one is read.
    kept: OnceLock<Vec<OnceLock<S::Item>>>,
}

impl<S: Source> Cache<S> {
    pub(super) fn new(input: S) -> Self {
        Self {
            input,
            limit: u64::MAX,
            kept: OnceLock::new(),
        }
    }

    /// Keeps the first `elements` only; the others are read each time.
    pub fn limit(mut self, elements: u64) -> Self {
        self.limit = elements;
        self
    }

    fn place(&self, index: u64) -> Result<Option<&OnceLock<S::Item>>> {
        let kept = match self.kept.get() {
            Some(kept) => kept,
            None => {
                let made = places(self.input.len().min(self.limit))?;
                self.kept.get_or_init(|| made)
            }
        };
        let index = usize::try_from(index).ok();
        Ok(index.and_then(|index| kept.get(index)))
    }
}

/// Room for this number of elements, if there is.
fn places<T>(count: u64) -> Result<Vec<OnceLock<T>>> {
    let mut places = Vec::new();
    let reserved = usize::try_from(count)
        .ok()
        .and_then(|count| places.try_reserve_exact(count).ok());
    if reserved.is_none() {
        let what = format!("{count} elements do not fit in memory; pass `.limit(elements)`");
        return Err(PipelineError::argument("cache", what));
    }
    for _ in 0..count {
        places.push(OnceLock::new());
    }
    Ok(places)
}

impl<S: Source<Item: Clone + Sync>> Source for Cache<S> {
    type Item = S::Item;

    fn len(&self) -> u64 {
        self.input.len()
    }

    fn get(&self, index: u64) -> Result<S::Item> {
        in_range("cache", index, self.len())?;
        let Some(place) = self.place(index)? else {
            return self.input.get(index);
        };
        if let Some(item) = place.get() {
            return Ok(item.clone());
        }
        // Two threads may read the same element at the same time: they read the same.
        let item = self.input.get(index)?;
        Ok(place.get_or_init(|| item).clone())
    }

    fn check(&self) -> Result<()> {
        self.input.check()
    }

    fn file(&self, _epoch: u64, index: u64) -> Option<PathBuf> {
        self.input.file(0, index)
    }
}

impl<S: Source + fmt::Debug> fmt::Debug for Cache<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cache")
            .field("input", &self.input)
            .field("limit", &self.limit)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;
    use crate::{contract, from_fn, range};

    #[test]
    fn reads_every_element_once() {
        let reads = AtomicU64::new(0);
        let counted = from_fn(10, |index| {
            reads.fetch_add(1, Ordering::Relaxed);
            Ok::<_, String>(index)
        });
        let cached = counted.cache();
        for epoch in 0..3 {
            for index in (0..10).rev() {
                assert_eq!(cached.get_in_epoch(epoch, index).unwrap(), index);
            }
        }
        assert_eq!(reads.load(Ordering::Relaxed), 10);
    }

    #[test]
    fn keeps_the_contract_with_and_without_a_limit() {
        contract::check_source(&range(0..9).cache()).unwrap();
        contract::check_source(&range(0..9).cache().limit(4)).unwrap();
        let endless = range(0..9).repeat(-1);
        assert!((&endless).cache().get(0).is_err());
        assert_eq!(endless.cache().limit(100).get(1_000).unwrap(), 1);
    }
}
