//! Streams that chance chooses from.

use super::Stream;
use crate::random::word;
use crate::{PipelineError, Result, State};

const STAGE: &str = "sample_from";

/// The elements of several streams, each drawn from one of them with the probability of its weight
/// (TensorFlow: `Dataset.sample_from_datasets`). By default it goes on with the others where one
/// has ended. The draws follow from seed, epoch and the number of the draw.
///
/// ```
/// use distribute_pipeline::{Source, Stream, range, stream::sample_from};
///
/// let streams = vec![(range(0..500).stream(), 0.9), (range(1000..1500).stream(), 0.1)];
/// let mut drawn = sample_from(streams, 42);
/// let first = drawn.elements().take(100).filter(|x| matches!(x, Ok(0..500))).count();
/// assert!((80..100).contains(&first));
/// ```
pub fn sample_from<S: Stream>(streams: Vec<(S, f64)>, seed: u64) -> Sample<S> {
    let (streams, weights): (Vec<S>, Vec<f64>) = streams.into_iter().unzip();
    Sample {
        has_ended: vec![false; streams.len()],
        streams,
        weights,
        seed,
        stop_on_empty: false,
        is_over: false,
        epoch: 0,
        drawn: 0,
    }
}

/// [`sample_from`].
#[derive(Debug, Clone)]
#[must_use]
pub struct Sample<S> {
    streams: Vec<S>,
    weights: Vec<f64>,
    has_ended: Vec<bool>,
    seed: u64,
    stop_on_empty: bool,
    is_over: bool,
    epoch: u64,
    drawn: u64,
}

impl<S> Sample<S> {
    /// Whether it ends where a stream that is drawn has ended (TensorFlow:
    /// `stop_on_empty_dataset`); not by default.
    pub fn stop_on_empty(mut self, stop: bool) -> Self {
        self.stop_on_empty = stop;
        self
    }

    fn check_weights(&self) -> Result<()> {
        let are_numbers = self
            .weights
            .iter()
            .all(|weight| *weight >= 0.0 && weight.is_finite());
        if are_numbers && self.weights.iter().sum::<f64>() > 0.0 {
            return Ok(());
        }
        let what = format!(
            "the weights {:?} cannot be: none may be negative, and one must be more than 0",
            self.weights
        );
        Err(PipelineError::argument(STAGE, what))
    }

    /// A stream that has not ended, by its weight; `None` if none is left.
    fn draw(&mut self) -> Option<usize> {
        let open = |at: &usize| !self.has_ended[*at] && self.weights[*at] > 0.0;
        let sum: f64 = (0..self.weights.len())
            .filter(open)
            .map(|at| self.weights[at])
            .sum();
        // 53 bits, as in the standard way to a number below 1.
        let chance = word(self.seed, self.epoch, self.drawn) >> 11;
        let mut place = chance as f64 / (1_u64 << 53) as f64 * sum;
        let mut drawn = None;
        for at in (0..self.weights.len()).filter(open) {
            drawn = Some(at);
            place -= self.weights[at];
            if place < 0.0 {
                break;
            }
        }
        self.drawn += 1;
        drawn
    }
}

impl<S: Stream> Stream for Sample<S> {
    type Item = S::Item;

    fn next(&mut self) -> Result<Option<S::Item>> {
        self.check_weights()?;
        while !self.is_over {
            let Some(at) = self.draw() else { break };
            if let Some(item) = self.streams[at].next()? {
                return Ok(Some(item));
            }
            self.has_ended[at] = true;
            self.is_over = self.stop_on_empty;
        }
        self.is_over = true;
        Ok(None)
    }

    fn start(&mut self, epoch: u64) -> Result<()> {
        (self.epoch, self.drawn, self.is_over) = (epoch, 0, false);
        self.has_ended.fill(false);
        self.streams
            .iter_mut()
            .try_for_each(|stream| stream.start(epoch))
    }

    fn state(&self) -> Result<State> {
        let numbers = [self.epoch, self.drawn, self.is_over.into()];
        let state = numbers.into_iter().fold(State::new(STAGE), State::number);
        let ended = self.has_ended.iter().map(|ended| u64::from(*ended));
        let state = ended.fold(state, State::number);
        let mut streams = self.streams.iter();
        streams.try_fold(state, |state, stream| Ok(state.inner(stream.state()?)))
    }

    fn restore(&mut self, state: &State) -> Result<()> {
        let mut state = state.read(STAGE)?;
        self.epoch = state.number()?;
        self.drawn = state.count()?;
        self.is_over = state.number_to(1)? == 1;
        for ended in &mut self.has_ended {
            *ended = state.number_to(1)? == 1;
        }
        for stream in &mut self.streams {
            stream.restore(state.inner()?)?;
        }
        state.finish()
    }

    fn check(&self) -> Result<()> {
        self.check_weights()?;
        self.streams.iter().try_for_each(Stream::check)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Source, contract, range};

    #[test]
    fn keeps_the_contract_and_loses_nothing() {
        for stop in [true, false] {
            let streams = || {
                let all = [(0..7, 0.5), (10..14, 0.25), (20..40, 1.0), (90..99, 0.0)];
                let all = all.map(|(numbers, weight)| (range(numbers).stream(), weight));
                Vec::from(all)
            };
            contract::check_stream(|| sample_from(streams(), 3).stop_on_empty(stop)).unwrap();
            let count = sample_from(streams(), 3)
                .stop_on_empty(stop)
                .elements()
                .count();
            assert!(if stop { count < 31 } else { count == 31 });
        }
        for weights in [-1.0, 0.0, f64::NAN, f64::INFINITY] {
            let mut wrong = sample_from(vec![(range(0..3).stream(), weights)], 1);
            assert!(wrong.check().is_err() && wrong.next().is_err());
        }
    }
}
