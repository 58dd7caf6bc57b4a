//! Batches of arrays of different lengths.

use super::Stream;
use crate::checks::check_size;
use crate::{Array, Cardinality, Result};

const STAGE: &str = "padded_batch";

/// [`Stream::padded_batch`]: one [`Array`] for each batch.
#[derive(Debug, Clone)]
#[must_use]
pub struct PaddedBatch<S, T> {
    input: S,
    size: u64,
    padding: T,
    shape: Option<Vec<usize>>,
    drop_remainder: bool,
}

impl<S, T> PaddedBatch<S, T> {
    pub(super) fn new(input: S, size: u64, padding: T) -> Self {
        Self {
            input,
            size,
            padding,
            shape: None,
            drop_remainder: false,
        }
    }

    /// The shape of every element of a batch (TensorFlow: `padded_shapes`); by default the largest
    /// of the batch on each axis.
    pub fn to_shape(mut self, shape: impl Into<Vec<usize>>) -> Self {
        self.shape = Some(shape.into());
        self
    }

    /// Whether a short last batch is left out (TensorFlow: `drop_remainder`); not by default.
    pub fn drop_remainder(mut self, drop: bool) -> Self {
        self.drop_remainder = drop;
        self
    }
}

impl<S, T> Stream for PaddedBatch<S, T>
where
    S: Stream<Item: Into<Array<T>>>,
    T: Clone + Send,
{
    type Item = Array<T>;

    fn next(&mut self) -> Result<Option<Array<T>>> {
        check_size(STAGE, self.size)?;
        let mut batch = Vec::new();
        while (batch.len() as u64) < self.size {
            match self.input.next()? {
                Some(item) => batch.push(item.into()),
                None if self.drop_remainder || batch.is_empty() => return Ok(None),
                None => break,
            }
        }
        Array::padded(batch, self.shape.as_deref(), &self.padding).map(Some)
    }

    fn cardinality(&self) -> Cardinality {
        let (size, drops) = (self.size.max(1), self.drop_remainder);
        self.input.cardinality().map(|count| {
            let short = u64::from(!drops && count % size > 0);
            count / size + short
        })
    }

    fn check(&self) -> Result<()> {
        check_size(STAGE, self.size)?;
        self.input.check()
    }

    super::as_input!(file, start, state(STAGE));
}

#[cfg(test)]
mod tests {
    use crate::{PipelineError, Source, Stream, contract, range};

    fn lists() -> impl Stream<Item = Vec<i64>> {
        range(0..7).stream().map(|x| vec![x; (x * x % 5) as usize])
    }

    #[test]
    fn keeps_the_contract_and_pads() {
        for size in 1..9 {
            contract::check_stream(|| lists().padded_batch(size, -1)).unwrap();
            contract::check_stream(|| lists().padded_batch(size, -1).drop_remainder(true)).unwrap();
        }
        let batch = lists().padded_batch(3, -1).next().unwrap().unwrap();
        assert_eq!(batch.shape(), [3, 4]);
        assert_eq!(batch.values(), [-1, -1, -1, -1, 1, -1, -1, -1, 2, 2, 2, 2]);
    }

    #[test]
    fn elements_longer_than_the_shape_are_errors() {
        let mut narrow = lists().padded_batch(3, 0).to_shape([3]);
        assert!(matches!(
            narrow.next(),
            Err(PipelineError::TooLong { element: 2, .. })
        ));
        let batch = lists()
            .padded_batch(2, 0)
            .to_shape([3])
            .next()
            .unwrap()
            .unwrap();
        assert_eq!(batch.shape(), [2, 3]);
    }
}
