//! Several streams in turn, one for each element.

use std::fmt;
use std::path::PathBuf;

use super::{SavedItem, Stream};
use crate::{BoxError, PipelineError, Result, State};

const STAGE: &str = "interleave";

/// [`Stream::interleave`] and [`Stream::flat_map`]. The elements whose streams are open are part
/// of the state, with the states of these streams.
#[must_use]
pub struct Interleave<S: Stream, T, F> {
    input: S,
    function: F,
    cycle_length: u64,
    block_length: u64,
    epoch: u64,
    /// The elements read of the input in this pass.
    read: u64,
    /// Up to `cycle_length` places; those at the end that were never filled are left out.
    open: Vec<Option<Open<S::Item, T>>>,
    cycle: usize,
    block: u64,
    /// The place of the stream that was read last; none if that was the input.
    last: Option<usize>,
}

/// An element and its stream.
struct Open<I, T> {
    of: I,
    stream: T,
}

impl<S: Stream, T, F> Interleave<S, T, F> {
    pub(super) fn new(input: S, function: F) -> Self {
        Self {
            input,
            function,
            cycle_length: 1,
            block_length: 1,
            epoch: 0,
            read: 0,
            open: Vec::new(),
            cycle: 0,
            block: 0,
            last: None,
        }
    }

    /// How many streams are open at the same time, 1 by default.
    pub fn cycle_length(mut self, streams: u64) -> Self {
        self.cycle_length = streams;
        self
    }

    /// How many elements of a stream come before the next stream's turn, 1 by default.
    pub fn block_length(mut self, elements: u64) -> Self {
        self.block_length = elements;
        self
    }

    fn check_lengths(&self) -> Result<()> {
        let lengths = [
            ("cycle_length", self.cycle_length),
            ("block_length", self.block_length),
        ];
        match lengths.iter().find(|(_, length)| *length == 0) {
            None => Ok(()),
            Some((name, _)) => {
                let what = format!("{name} must be greater than zero");
                Err(PipelineError::argument(STAGE, what))
            }
        }
    }

    /// The next place's turn. Behind the last place that was filled there is nothing, if the input
    /// has ended: `cycle_length` may be very large.
    fn turn(&mut self, input_has_ended: bool) {
        self.block = 0;
        self.cycle += 1;
        let is_behind = input_has_ended && self.cycle >= self.open.len();
        if is_behind || self.cycle as u64 >= self.cycle_length {
            self.cycle = 0;
        }
    }
}

impl<S, T, F> Interleave<S, T, F>
where
    S: Stream<Item: SavedItem + Clone>,
    T: Stream,
    F: Fn(S::Item) -> Result<T, BoxError> + Send,
{
    fn make(&self, of: S::Item) -> Result<Open<S::Item, T>> {
        let made = (self.function)(of.clone());
        let mut stream = made.map_err(|error| {
            let index = self.read.saturating_sub(1);
            PipelineError::element(STAGE, index, self.input.file(), error)
        })?;
        if self.epoch != 0 {
            stream.start(self.epoch)?;
        }
        Ok(Open { of, stream })
    }

    /// Opens the stream of the next element in this turn's place; whether there was one.
    fn open_next(&mut self) -> Result<bool> {
        self.last = None;
        let Some(of) = self.input.next()? else {
            return Ok(false);
        };
        self.read = self.read.saturating_add(1);
        let made = self.make(of)?;
        while self.open.len() <= self.cycle {
            self.open.push(None);
        }
        self.open[self.cycle] = Some(made);
        Ok(true)
    }
}

impl<S, T, F> Stream for Interleave<S, T, F>
where
    S: Stream<Item: SavedItem + Clone>,
    T: Stream,
    F: Fn(S::Item) -> Result<T, BoxError> + Send,
{
    type Item = T::Item;

    /// The steps of TensorFlow's `InterleaveDataset`: a stream that ends leaves its place empty,
    /// which is filled when its turn comes again.
    fn next(&mut self) -> Result<Option<T::Item>> {
        self.check_lengths()?;
        let mut input_has_ended = false;
        while !input_has_ended || self.open.iter().any(Option::is_some) {
            let place = self.open.get_mut(self.cycle);
            if let Some(open) = place.and_then(Option::as_mut) {
                self.last = Some(self.cycle);
                if let Some(item) = open.stream.next()? {
                    self.block += 1;
                    if self.block == self.block_length {
                        self.turn(input_has_ended);
                    }
                    return Ok(Some(item));
                }
                self.open[self.cycle] = None;
                self.turn(input_has_ended);
            } else if !self.open_next()? {
                input_has_ended = true;
                self.turn(input_has_ended);
            }
        }
        Ok(None)
    }

    fn start(&mut self, epoch: u64) -> Result<()> {
        (self.epoch, self.read, self.cycle, self.block) = (epoch, 0, 0, 0);
        self.last = None;
        self.open.clear();
        self.input.start(epoch)
    }

    fn state(&self) -> Result<State> {
        let numbers = [self.epoch, self.read, self.cycle as u64, self.block];
        let state = numbers.into_iter().fold(State::new(STAGE), State::number);
        let mut state = state.inner(self.input.state()?);
        let open = self.open.iter().enumerate();
        for (place, open) in open.filter_map(|(place, open)| Some((place, open.as_ref()?))) {
            let item = (place as u64, &open.of);
            state = state.item(&item)?.inner(open.stream.state()?);
        }
        Ok(state)
    }

    fn restore(&mut self, state: &State) -> Result<()> {
        let mut state = state.read(STAGE)?;
        self.epoch = state.number()?;
        self.read = state.count()?;
        // No place comes before an element for each one up to it was read.
        let last = self.cycle_length.saturating_sub(1).min(self.read);
        self.cycle = state.number_to(last.min(u64::from(u32::MAX)))? as usize;
        self.block = state.number_to(self.block_length.saturating_sub(1))?;
        self.last = None;
        self.input.restore(state.inner()?)?;
        self.open.clear();
        for (place, of) in state.all_items::<(u64, S::Item)>()? {
            let place = usize::try_from(place).unwrap_or(usize::MAX);
            let is_next = place >= self.open.len() && (place as u64) < self.cycle_length;
            // One element for each place up to it were needed, had the input not ended.
            if !is_next || place as u64 > self.read {
                return Err(state.fault(format!("there is no place {place} for a stream")));
            }
            let mut made = self.make(of)?;
            made.stream.restore(state.inner()?)?;
            self.open.resize_with(place, || None);
            self.open.push(Some(made));
        }
        state.finish()
    }

    fn check(&self) -> Result<()> {
        self.check_lengths()?;
        self.input.check()
    }

    fn file(&self) -> Option<PathBuf> {
        match self.last {
            Some(place) => self.open.get(place)?.as_ref()?.stream.file(),
            None => self.input.file(),
        }
    }
}

impl<S: Stream + fmt::Debug, T, F> fmt::Debug for Interleave<S, T, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Interleave")
            .field("input", &self.input)
            .field("cycle_length", &self.cycle_length)
            .field("block_length", &self.block_length)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::sync::mpsc;
    use std::time::Duration;

    use crate::{Result, Source, State, Stream, contract, range};

    #[test]
    fn keeps_the_contract_at_every_length() {
        for cycle in 1..5 {
            for block in 1..4 {
                contract::check_stream(|| {
                    let inner = |x: i64| range(10 * x..11 * x).shuffle(1).stream();
                    let streams = range(0..6).stream().interleave(inner);
                    streams.cycle_length(cycle).block_length(block)
                })
                .unwrap();
            }
        }
    }

    #[test]
    fn places_are_filled_in_turn() {
        let inner = |x: i64| range(100 * x..101 * x).stream();
        let mut stream = range(0..4)
            .stream()
            .interleave(inner)
            .cycle_length(2)
            .block_length(2);
        let all: Vec<_> = stream.elements().map(Result::unwrap).collect();
        assert_eq!(all, [100, 200, 201, 300, 301, 302]);
    }

    #[test]
    fn a_cycle_may_be_longer_than_the_input() {
        let (send, receive) = mpsc::channel();
        // On a thread, so that a loop without end is found.
        std::thread::spawn(move || {
            let inner = |x: i64| range(10 * x..10 * x + 2).stream();
            let streams = || {
                range(0..3)
                    .stream()
                    .interleave(inner)
                    .cycle_length(u64::MAX)
            };
            contract::check_stream(streams).unwrap();
            let all: Vec<_> = streams().elements().map(Result::unwrap).collect();
            send.send(all).unwrap();
        });
        let all = receive.recv_timeout(Duration::from_secs(60)).unwrap();
        assert_eq!(all, [0, 10, 20, 1, 11, 21]);
    }

    /// Two elements of a file.
    struct InFile(i64, u8);

    impl Stream for InFile {
        type Item = i64;

        fn next(&mut self) -> Result<Option<i64>> {
            self.1 += 1;
            Ok((self.1 < 3).then_some(self.0))
        }

        fn start(&mut self, _: u64) -> Result<()> {
            self.1 = 0;
            Ok(())
        }

        fn state(&self) -> Result<State> {
            Ok(State::new("in_file").number(self.1.into()))
        }

        fn restore(&mut self, state: &State) -> Result<()> {
            let mut state = state.read("in_file")?;
            self.1 = state.number_to(2)? as u8;
            state.finish()
        }

        fn file(&self) -> Option<PathBuf> {
            Some(format!("{}.csv", self.0).into())
        }
    }

    #[test]
    fn the_file_is_the_last_elements() {
        for (cycle, block) in [(1, 1), (2, 1), (2, 2), (3, 1)] {
            let streams = range(0..3).stream().interleave(|x| InFile(x, 0));
            let mut stream = streams.cycle_length(cycle).block_length(block);
            while let Some(item) = stream.next().unwrap() {
                assert_eq!(stream.file(), Some(format!("{item}.csv").into()));
            }
        }
    }

    #[test]
    fn a_state_with_a_full_block_or_a_far_place_is_refused() {
        let inner = |x: i64| range(0..x).stream();
        let make = || range(1..4).stream().interleave(inner);
        let mut stream = make().cycle_length(u64::MAX).block_length(2);
        let input = stream.input.state().unwrap();
        for [read, cycle, block] in [[1, 0, 2], [1, 2, 0]] {
            let numbers = [0, read, cycle, block];
            let state = State::new("interleave");
            let state = numbers.into_iter().fold(state, State::number);
            assert!(stream.restore(&state.inner(input.clone())).is_err());
        }
    }

    #[test]
    fn zeros_and_failing_functions_are_errors() {
        let inner = |x: i64| range(0..x).stream();
        let mut wrong = range(0..4).stream().interleave(inner).cycle_length(0);
        assert!(wrong.check().is_err() && wrong.next().is_err());
        let open = |x: i64| match x {
            2 => Err("no such file"),
            _ => Ok(range(0..x).stream()),
        };
        let mut failing = range(1..4).stream().try_interleave(open);
        assert_eq!(failing.next().unwrap(), Some(0));
        let error = failing.next().unwrap_err().to_string();
        assert_eq!(error, "interleave: element 1: no such file");
    }
}
