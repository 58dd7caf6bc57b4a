//! Every element through a function.

use std::fmt;
use std::path::PathBuf;

use super::Source;
use crate::{BoxError, PipelineError, Result};

/// [`Source::map`] and [`Source::try_map`].
#[derive(Clone)]
#[must_use]
pub struct Map<S, F> {
    input: S,
    /// The name of the user's function, for messages.
    name: &'static str,
    function: F,
}

impl<S, F> Map<S, F> {
    pub(super) fn new(input: S, name: &'static str, function: F) -> Self {
        Self {
            input,
            name,
            function,
        }
    }
}

impl<S, U, F> Source for Map<S, F>
where
    S: Source,
    U: Send,
    F: Fn(S::Item) -> Result<U, BoxError> + Send + Sync,
{
    type Item = U;

    fn len(&self) -> u64 {
        self.input.len()
    }

    fn get(&self, index: u64) -> Result<U> {
        self.get_in_epoch(0, index)
    }

    fn get_in_epoch(&self, epoch: u64, index: u64) -> Result<U> {
        let item = self.input.get_in_epoch(epoch, index)?;
        (self.function)(item).map_err(|error| {
            let file = self.input.file(epoch, index);
            PipelineError::element(format!("map ({})", self.name), index, file, error)
        })
    }

    fn check(&self) -> Result<()> {
        self.input.check()
    }

    fn file(&self, epoch: u64, index: u64) -> Option<PathBuf> {
        self.input.file(epoch, index)
    }
}

impl<S: fmt::Debug, F> fmt::Debug for Map<S, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Map")
            .field("input", &self.input)
            .field("function", &self.name)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{contract, range};

    fn no_fives(x: i64) -> Result<i64, String> {
        match x {
            5 => Err("five".into()),
            _ => Ok(x),
        }
    }

    #[test]
    fn keeps_the_contract_and_names_function_and_element() {
        contract::check_source(&range(0..7).map(|x| x * x)).unwrap();
        contract::check_source(&range(0..7).shuffle(3).map(|x| x * x)).unwrap();
        let error = range(2..9).try_map(no_fives).get(3).unwrap_err();
        let text = error.to_string();
        assert!(text.ends_with("no_fives): element 3: five"), "{text}");
    }
}
