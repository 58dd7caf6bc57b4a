//! Every element through a function.

use std::fmt;
use std::path::PathBuf;

use super::{ParallelMap, SavedItem, Stream};
use crate::{BoxError, Cardinality, PipelineError, Result, State};

const STAGE: &str = "map";

/// [`Stream::map`] and [`Stream::try_map`].
#[derive(Clone)]
#[must_use]
pub struct Map<S, F> {
    input: S,
    /// The name of the user's function, for messages.
    name: &'static str,
    function: F,
    /// The number of the next element in its pass.
    index: u64,
}

impl<S, F> Map<S, F> {
    pub(super) fn new(input: S, name: &'static str, function: F) -> Self {
        Self {
            input,
            name,
            function,
            index: 0,
        }
    }

    /// Calls the function on `threads` threads at the same time, or on as many as waiting shows to
    /// be useful ([`AUTOTUNE`](crate::AUTOTUNE)) (TensorFlow: `num_parallel_calls`). The elements,
    /// their order and the errors stay the same. Elements that are made and not yet taken are part
    /// of the state.
    pub fn num_parallel_calls<U>(self, threads: i64) -> ParallelMap<S, U>
    where
        S: Stream + 'static,
        S::Item: 'static,
        U: SavedItem + 'static,
        F: Fn(S::Item) -> Result<U, BoxError> + Send + Sync + 'static,
    {
        ParallelMap::new(self.input, self.name, self.function, threads)
    }
}

/// An error of the user's function.
pub(super) fn failed(
    name: &str,
    index: u64,
    file: Option<PathBuf>,
    error: BoxError,
) -> PipelineError {
    PipelineError::element(format!("map ({name})"), index, file, error)
}

impl<S, U, F> Stream for Map<S, F>
where
    S: Stream,
    U: Send,
    F: Fn(S::Item) -> Result<U, BoxError> + Send,
{
    type Item = U;

    fn next(&mut self) -> Result<Option<U>> {
        let Some(item) = self.input.next()? else {
            return Ok(None);
        };
        let index = self.index;
        self.index += 1;
        let made = (self.function)(item);
        made.map(Some)
            .map_err(|error| failed(self.name, index, self.input.file(), error))
    }

    fn cardinality(&self) -> Cardinality {
        self.input.cardinality()
    }

    super::as_input!(number(STAGE, index, |_: &Self| State::MOST), check, file);
}

impl<S: fmt::Debug, F> fmt::Debug for Map<S, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Map")
            .field("input", &self.input)
            .field("function", &self.name)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use crate::{Source, Stream, contract, range};

    #[test]
    fn keeps_the_contract_and_names_the_element() {
        contract::check_stream(|| range(0..7).stream().map(|x| x * x)).unwrap();
        let odd = |x: i64| (x % 2 == 0).then_some(x).ok_or("odd");
        let mut stream = range(2..9).stream().try_map(odd);
        assert_eq!(stream.next().unwrap(), Some(2));
        let text = stream.next().unwrap_err().to_string();
        assert!(text.contains("element 1: odd"), "{text}");
        assert_eq!(stream.next().unwrap(), Some(4));
    }
}
