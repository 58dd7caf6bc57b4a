//! Every element through a function, on several threads.

use std::fmt;

use super::ahead::Ahead;
use super::room::{Room, check_threads};
use super::{SavedItem, Stream};
use crate::{BoxError, Cardinality, Result, State};

const STAGE: &str = "parallel_map";

/// [`Map::num_parallel_calls`](super::Map::num_parallel_calls). Its threads start with the first
/// element and end with the value.
#[must_use]
pub struct ParallelMap<S: Stream, U> {
    ahead: Ahead<S, U>,
    threads: i64,
}

impl<S, U> ParallelMap<S, U>
where
    S: Stream<Item: 'static> + 'static,
    U: SavedItem + 'static,
{
    pub(super) fn new<F>(input: S, name: &'static str, function: F, threads: i64) -> Self
    where
        F: Fn(S::Item) -> Result<U, BoxError> + Send + Sync + 'static,
    {
        let room = Room::of_threads(threads);
        let name = format!("map ({name})");
        Self {
            ahead: Ahead::new(input, STAGE, name, Box::new(function), room),
            threads,
        }
    }

    /// Whether elements come in the order of the input, as by default. Otherwise each comes when it
    /// is made, and the order differs from run to run (TensorFlow: `deterministic`).
    pub fn ordered(mut self, ordered: bool) -> Self {
        self.ahead.set_ordered(ordered);
        self
    }

    /// How many bytes the elements may take that are made and not yet taken, as they would be
    /// saved; by default 64 MiB under [`AUTOTUNE`](crate::AUTOTUNE), else without a limit.
    pub fn max_bytes(mut self, bytes: usize) -> Self {
        self.ahead.change_room(|room| room.limit_bytes(bytes));
        self
    }

    fn check_threads(&self) -> Result<()> {
        check_threads("map", "num_parallel_calls", self.threads)
    }
}

impl<S, U> Stream for ParallelMap<S, U>
where
    S: Stream<Item: 'static> + 'static,
    U: SavedItem + 'static,
{
    type Item = U;

    fn next(&mut self) -> Result<Option<U>> {
        self.check_threads()?;
        self.ahead.next()
    }

    fn start(&mut self, epoch: u64) -> Result<()> {
        self.ahead.start(epoch)
    }

    fn state(&self) -> Result<State> {
        self.ahead.state()
    }

    fn restore(&mut self, state: &State) -> Result<()> {
        self.ahead.restore(state)
    }

    fn cardinality(&self) -> Cardinality {
        self.ahead.with_input(Stream::cardinality)
    }

    fn check(&self) -> Result<()> {
        self.check_threads()?;
        self.ahead.with_input(Stream::check)
    }
}

impl<S: Stream, U> fmt::Debug for ParallelMap<S, U> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ParallelMap")
            .field("threads", &self.threads)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use crate::{AUTOTUNE, Source, Stream, contract, range};

    fn slow(x: i64) -> i64 {
        // The later elements are made first.
        std::thread::sleep(Duration::from_micros(200 * (x % 3 == 0) as u64));
        x * x
    }

    #[test]
    fn keeps_the_contract_with_any_number_of_threads() {
        for threads in [1, 2, 4, AUTOTUNE] {
            let make = || range(0..17).stream().map(slow).num_parallel_calls(threads);
            contract::check_stream(make).unwrap();
        }
        let mut wrong = range(0..3).stream().map(slow).num_parallel_calls(0);
        assert!(wrong.check().is_err() && wrong.next().is_err());
        let mut many = range(0..3).stream().map(slow).num_parallel_calls(i64::MAX);
        assert!(many.check().is_err() && many.next().is_err());
    }

    #[test]
    fn without_order_all_elements_come() {
        let squares = range(0..50).stream().map(slow).num_parallel_calls(4);
        let mut squares = squares.ordered(false);
        let mut all: Vec<_> = squares.elements().take(20).map(Result::unwrap).collect();
        let state = squares.state().unwrap();
        let mut rest = range(0..50)
            .stream()
            .map(slow)
            .num_parallel_calls(3)
            .ordered(false);
        rest.restore(&state).unwrap();
        all.extend(rest.elements().map(Result::unwrap));
        all.sort_unstable();
        assert!(all.into_iter().eq((0..50).map(|x| x * x)));
    }

    #[test]
    fn the_first_error_is_that_of_one_thread() {
        for threads in [1, 4] {
            let even = |x: i64| (x % 7 != 5).then_some(x).ok_or("a five");
            let mut stream = range(0..30)
                .stream()
                .try_map(even)
                .num_parallel_calls(threads);
            let error = stream.elements().find_map(Result::err).unwrap().to_string();
            assert!(
                error.starts_with("map (") && error.contains("element 5: a five"),
                "{error}"
            );
        }
    }
}
