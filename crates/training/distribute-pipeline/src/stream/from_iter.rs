//! An iterator as a stream.

use std::fmt;
use std::iter::Fuse;

use super::Stream;
use crate::{Result, State};

const STAGE: &str = "from_iter";

/// The elements of an iterator that a function makes for each epoch (TensorFlow:
/// `Dataset.from_generator`). Its length is unknown. An iterator cannot be asked where it is: a
/// restored one is made anew and its first elements are dropped. Use a [`Source`](crate::Source),
/// or write a [`Stream`], where that takes long.
///
/// ```
/// use distribute_pipeline::{Stream, stream::from_iter};
///
/// let mut lines = from_iter(|_epoch| "a b c".split(' '));
/// assert_eq!(lines.next()?, Some("a"));
/// # Ok::<(), distribute_pipeline::PipelineError>(())
/// ```
pub fn from_iter<I, F>(make: F) -> FromIter<I::IntoIter, F>
where
    I: IntoIterator<IntoIter: Send>,
    F: Fn(u64) -> I + Send,
{
    FromIter {
        items: make(0).into_iter().fuse(),
        make,
        epoch: 0,
        read: 0,
    }
}

/// [`from_iter`].
#[must_use]
pub struct FromIter<I, F> {
    make: F,
    items: Fuse<I>,
    epoch: u64,
    read: u64,
}

impl<I, J, F> Stream for FromIter<I, F>
where
    I: Iterator<Item: Send> + Send,
    J: IntoIterator<IntoIter = I, Item = I::Item>,
    F: Fn(u64) -> J + Send,
{
    type Item = I::Item;

    fn next(&mut self) -> Result<Option<I::Item>> {
        let item = self.items.next();
        self.read += u64::from(item.is_some());
        Ok(item)
    }

    fn start(&mut self, epoch: u64) -> Result<()> {
        (self.epoch, self.read) = (epoch, 0);
        self.items = (self.make)(epoch).into_iter().fuse();
        Ok(())
    }

    fn state(&self) -> Result<State> {
        Ok(State::new(STAGE).number(self.epoch).number(self.read))
    }

    fn restore(&mut self, state: &State) -> Result<()> {
        let mut state = state.read(STAGE)?;
        let (epoch, read) = (state.number()?, state.count()?);
        self.start(epoch)?;
        while self.read < read {
            if self.next()?.is_none() {
                return Err(state.fault("the iterator has fewer elements than were read"));
            }
        }
        state.finish()
    }
}

impl<I, F> fmt::Debug for FromIter<I, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FromIter")
            .field("epoch", &self.epoch)
            .field("read", &self.read)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract;

    #[test]
    fn keeps_the_contract() {
        contract::check_stream(|| from_iter(|epoch| epoch..epoch + 5)).unwrap();
        contract::check_stream(|| from_iter(|_| Vec::<u8>::new())).unwrap();
    }

    #[test]
    fn an_iterator_that_goes_on_behind_its_end_does_not() {
        let mut count = 0;
        let with_gap = move |_| {
            std::iter::from_fn(move || {
                count += 1;
                (count != 3).then_some(count)
            })
        };
        let mut stream = from_iter(with_gap);
        assert_eq!(stream.elements().count(), 2);
        assert_eq!(stream.next().unwrap(), None);
    }
}
