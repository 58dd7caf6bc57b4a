//! Batches of elements of about the same length.

use std::fmt;

use super::{GroupByWindow, SavedItem, Stream};
use crate::{Array, PipelineError, Result, State};

const STAGE: &str = "bucket_by_sequence_length";

/// What [`Stream::bucket_by_sequence_length`] sorts by: bucket `i` has the lengths from boundary
/// `i - 1` on, below boundary `i`.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub struct Buckets {
    boundaries: Vec<usize>,
    batch_sizes: Vec<u64>,
    pad_to_boundary: bool,
    drop_remainder: bool,
}

impl Buckets {
    /// The boundaries, in ascending order, and the size of a batch of each bucket: one more than
    /// boundaries.
    pub fn new(boundaries: impl Into<Vec<usize>>, batch_sizes: impl Into<Vec<u64>>) -> Self {
        Self {
            boundaries: boundaries.into(),
            batch_sizes: batch_sizes.into(),
            pad_to_boundary: false,
            drop_remainder: false,
        }
    }

    /// Whether the elements of a bucket are padded to the boundary above them, less one, and not
    /// to the longest of their batch (TensorFlow: `pad_to_bucket_boundary`). Elements as long as
    /// the last boundary are errors then.
    pub fn pad_to_boundary(mut self, pad: bool) -> Self {
        self.pad_to_boundary = pad;
        self
    }

    /// Whether short batches at the end are left out (TensorFlow: `drop_remainder`).
    pub fn drop_remainder(mut self, drop: bool) -> Self {
        self.drop_remainder = drop;
        self
    }

    fn of(&self, length: usize) -> usize {
        self.boundaries
            .partition_point(|boundary| *boundary <= length)
    }

    fn check(&self) -> Result<()> {
        let (boundaries, sizes) = (self.boundaries.len(), self.batch_sizes.len());
        let what = match () {
            () if sizes != boundaries + 1 => format!(
                "there must be one batch size more than boundaries, and there are {sizes} sizes \
                 for {boundaries} boundaries"
            ),
            () if self.batch_sizes.contains(&0) => {
                "a batch size is 0; pass at least 1 element".into()
            }
            () if !self.boundaries.is_sorted_by(|one, other| one < other) => {
                format!("the boundaries {:?} must ascend", self.boundaries)
            }
            () => return Ok(()),
        };
        Err(PipelineError::argument(STAGE, what))
    }
}

type Key<T> = Box<dyn Fn(&Array<T>) -> i64 + Send>;
type Size = Box<dyn Fn(i64) -> u64 + Send>;
type Arrays<S, T> = super::Map<S, fn(<S as Stream>::Item) -> Result<Array<T>, crate::BoxError>>;

/// [`Stream::bucket_by_sequence_length`]: one [`Array`] for each batch.
#[must_use]
pub struct Bucket<S: Stream, T: Send> {
    input: GroupByWindow<Arrays<S, T>, Key<T>, Size>,
    buckets: Buckets,
    padding: T,
}

impl<S, T> Bucket<S, T>
where
    S: Stream<Item: Into<Array<T>>>,
    T: SavedItem + Clone + 'static,
{
    pub(super) fn new(input: S, buckets: Buckets, padding: T) -> Self {
        let into: fn(S::Item) -> Result<Array<T>, crate::BoxError> = |item| Ok(item.into());
        let arrays = super::Map::new(input, "bucket_by_sequence_length", into);
        let (of, sizes) = (buckets.clone(), buckets.batch_sizes.clone());
        let key: Key<T> = Box::new(move |array| of.of(array.length()) as i64);
        let size: Size = Box::new(move |key| {
            let bucket = usize::try_from(key).ok();
            bucket
                .and_then(|bucket| sizes.get(bucket))
                .copied()
                .unwrap_or(1)
        });
        Self {
            input: GroupByWindow::new(arrays, key, size),
            buckets,
            padding,
        }
    }

    /// A batch of a bucket.
    fn padded(&self, bucket: usize, group: Vec<Array<T>>) -> Result<Array<T>> {
        if !self.buckets.pad_to_boundary {
            return Array::padded(group, None, &self.padding);
        }
        let Some(boundary) = self.buckets.boundaries.get(bucket) else {
            let what = "with pad_to_boundary the elements must be shorter than the last boundary; \
                        add a boundary, or filter them out";
            return Err(PipelineError::argument(STAGE, what));
        };
        let first = group.first().map(Array::shape).unwrap_or_default();
        let mut shape = first.to_vec();
        if let Some(length) = shape.first_mut() {
            *length = boundary.saturating_sub(1);
        }
        Array::padded(group, Some(&shape), &self.padding)
    }
}

impl<S, T> Stream for Bucket<S, T>
where
    S: Stream<Item: Into<Array<T>>>,
    T: SavedItem + Clone + 'static,
{
    type Item = Array<T>;

    fn next(&mut self) -> Result<Option<Array<T>>> {
        self.buckets.check()?;
        while let Some((bucket, group)) = self.input.next()? {
            let bucket = usize::try_from(bucket).unwrap_or(0);
            let full = self.buckets.batch_sizes.get(bucket).copied().unwrap_or(0);
            if !self.buckets.drop_remainder || group.len() as u64 == full {
                return self.padded(bucket, group).map(Some);
            }
        }
        Ok(None)
    }

    fn state(&self) -> Result<State> {
        self.input.state()
    }

    fn restore(&mut self, state: &State) -> Result<()> {
        self.input.restore(state)
    }

    fn check(&self) -> Result<()> {
        self.buckets.check()?;
        self.input.check()
    }

    super::as_input!(file, start);
}

impl<S: Stream, T: Send> fmt::Debug for Bucket<S, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bucket")
            .field("buckets", &self.buckets)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Source, contract, range};

    fn lists() -> impl Stream<Item = Vec<i64>> {
        range(0..17).stream().map(|x| vec![x; (x * 7 % 9) as usize])
    }

    #[test]
    fn keeps_the_contract_and_loses_nothing() {
        for drop in [false, true] {
            let buckets = || Buckets::new([3, 6], [2, 3, 4]).drop_remainder(drop);
            contract::check_stream(|| lists().bucket_by_sequence_length(buckets(), -1)).unwrap();
        }
        let buckets = Buckets::new([3, 6], [2, 3, 4]);
        let mut stream = lists().bucket_by_sequence_length(buckets, -1);
        let rows: usize = stream
            .elements()
            .map(|batch| batch.unwrap().shape()[0])
            .sum();
        assert_eq!(rows, 17);
    }

    #[test]
    fn pads_to_boundaries_and_refuses_what_is_longer() {
        let short = || lists().filter(|list| list.len() < 6);
        let buckets = || Buckets::new([3, 6], [2, 2, 2]).pad_to_boundary(true);
        let mut stream = short().bucket_by_sequence_length(buckets(), 0);
        for batch in stream.elements() {
            assert!([2, 5].contains(&batch.unwrap().shape()[1]));
        }
        let mut long = lists().bucket_by_sequence_length(buckets(), 0);
        assert!(long.elements().any(|batch| batch.is_err()));
        for wrong in [
            Buckets::new([3, 6], [2, 2]),
            Buckets::new([6, 3], [1, 1, 1]),
        ] {
            assert!(lists().bucket_by_sequence_length(wrong, 0).check().is_err());
        }
    }
}
