//! A source made of a length and a closure.

use std::fmt;

use super::{Source, in_range};
use crate::{BoxError, PipelineError, Result};

/// A source of `len` elements that a function makes by index. Its error names the index.
///
/// ```
/// use distribute_pipeline::{Source, from_fn};
///
/// let texts = from_fn(3, |index| Ok::<_, String>(format!("text {index}")));
/// assert_eq!(texts.get(2)?, "text 2");
/// assert!(texts.get(3).is_err());
/// # Ok::<(), distribute_pipeline::PipelineError>(())
/// ```
pub fn from_fn<T, E, F>(len: u64, function: F) -> FromFn<F>
where
    T: Send,
    E: Into<BoxError>,
    F: Fn(u64) -> Result<T, E> + Send + Sync,
{
    FromFn { len, function }
}

/// [`from_fn`].
#[derive(Clone)]
#[must_use]
pub struct FromFn<F> {
    len: u64,
    function: F,
}

impl<T, E, F> Source for FromFn<F>
where
    T: Send,
    E: Into<BoxError>,
    F: Fn(u64) -> Result<T, E> + Send + Sync,
{
    type Item = T;

    fn len(&self) -> u64 {
        self.len
    }

    fn get(&self, index: u64) -> Result<T> {
        in_range("from_fn", index, self.len)?;
        let item = (self.function)(index);
        item.map_err(|error| PipelineError::element("from_fn", index, None, error))
    }
}

impl<F> fmt::Debug for FromFn<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FromFn")
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract;

    #[test]
    fn keeps_the_contract_and_names_the_element_that_failed() {
        contract::check_source(&from_fn(5, |index| Ok::<_, String>(index * 2))).unwrap();
        let failing = from_fn(5, |index| match index {
            3 => Err("no such row"),
            _ => Ok(index),
        });
        let error = failing.get(3).unwrap_err().to_string();
        assert_eq!(error, "from_fn: element 3: no such row");
    }
}
