//! Streams that another stream chooses from.

use super::Stream;
use crate::{PipelineError, Result, State};

const STAGE: &str = "choose_from";

/// The elements of several streams, in the order that `choices` says by their numbers
/// (TensorFlow: `Dataset.choose_from_datasets`). By default it ends where a stream that is chosen
/// has ended. Streams of different types are boxed: `Box<dyn Stream<Item = _>>`.
///
/// ```
/// use distribute_pipeline::{Source, Stream, items, range, stream::choose_from};
///
/// let streams = vec![range(0..9).stream(), range(100..109).stream()];
/// let mut chosen = choose_from(streams, items(vec![0, 1, 1, 0]).stream());
/// let all: Vec<_> = chosen.elements().collect::<Result<_, _>>()?;
/// assert_eq!(all, [0, 100, 101, 1]);
/// # Ok::<(), distribute_pipeline::PipelineError>(())
/// ```
pub fn choose_from<S, C>(streams: Vec<S>, choices: C) -> Choose<S, C>
where
    S: Stream,
    C: Stream<Item = u64>,
{
    Choose {
        has_ended: vec![false; streams.len()],
        streams,
        choices,
        stop_on_empty: true,
        is_over: false,
    }
}

/// [`choose_from`].
#[derive(Debug, Clone)]
#[must_use]
pub struct Choose<S, C> {
    streams: Vec<S>,
    has_ended: Vec<bool>,
    choices: C,
    stop_on_empty: bool,
    is_over: bool,
}

impl<S, C> Choose<S, C> {
    /// Whether it ends where a stream that is chosen has ended, as by default, or leaves such
    /// choices out (TensorFlow: `stop_on_empty_dataset`).
    pub fn stop_on_empty(mut self, stop: bool) -> Self {
        self.stop_on_empty = stop;
        self
    }
}

impl<S: Stream, C: Stream<Item = u64>> Choose<S, C> {
    fn chosen(&mut self) -> Result<Option<S::Item>> {
        while !self.has_ended.iter().all(|ended| *ended) {
            let Some(choice) = self.choices.next()? else {
                return Ok(None);
            };
            let chosen = usize::try_from(choice).unwrap_or(usize::MAX);
            let count = self.streams.len();
            let Some(stream) = self.streams.get_mut(chosen) else {
                let what =
                    format!("the choice {choice} is out of range: there are {count} streams");
                return Err(PipelineError::argument(STAGE, what));
            };
            if !self.has_ended[chosen] {
                if let Some(item) = stream.next()? {
                    return Ok(Some(item));
                }
                self.has_ended[chosen] = true;
            }
            if self.stop_on_empty {
                return Ok(None);
            }
        }
        Ok(None)
    }
}

impl<S: Stream, C: Stream<Item = u64>> Stream for Choose<S, C> {
    type Item = S::Item;

    fn next(&mut self) -> Result<Option<S::Item>> {
        if self.is_over {
            return Ok(None);
        }
        let item = self.chosen()?;
        self.is_over = item.is_none();
        Ok(item)
    }

    fn start(&mut self, epoch: u64) -> Result<()> {
        self.is_over = false;
        self.has_ended.fill(false);
        self.choices.start(epoch)?;
        self.streams
            .iter_mut()
            .try_for_each(|stream| stream.start(epoch))
    }

    fn state(&self) -> Result<State> {
        let state = State::new(STAGE).number(self.is_over.into());
        let ended = self.has_ended.iter().map(|ended| u64::from(*ended));
        let state = ended
            .fold(state, State::number)
            .inner(self.choices.state()?);
        let mut streams = self.streams.iter();
        streams.try_fold(state, |state, stream| Ok(state.inner(stream.state()?)))
    }

    fn restore(&mut self, state: &State) -> Result<()> {
        let mut state = state.read(STAGE)?;
        self.is_over = state.number_to(1)? == 1;
        for ended in &mut self.has_ended {
            *ended = state.number_to(1)? == 1;
        }
        self.choices.restore(state.inner()?)?;
        for stream in &mut self.streams {
            stream.restore(state.inner()?)?;
        }
        state.finish()
    }

    fn check(&self) -> Result<()> {
        if self.streams.is_empty() {
            return Err(PipelineError::argument(
                STAGE,
                "there are no streams; pass at least one",
            ));
        }
        self.choices.check()?;
        self.streams.iter().try_for_each(Stream::check)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Source, contract, items, range};

    #[test]
    fn keeps_the_contract_with_and_without_stopping() {
        for stop in [true, false] {
            let make = || {
                let streams = vec![range(0..3).stream(), range(10..18).stream()];
                let choices = items(vec![0, 1, 0, 0, 1, 0, 0, 1]).stream();
                choose_from(streams, choices).stop_on_empty(stop)
            };
            contract::check_stream(make).unwrap();
            let count = make().elements().count();
            assert_eq!(count, if stop { 5 } else { 6 });
        }
        let mut wrong = choose_from(vec![range(0..3).stream()], items(vec![1]).stream());
        assert!(wrong.next().is_err());
    }
}
