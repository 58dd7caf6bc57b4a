//! Rows of a data set, some at a time.

use std::ops::Range;

use distribute_readers::Examples;

/// About how many numbers are read at once.
const VALUES: usize = 1 << 20;

/// The first `count` rows, in ranges that hold about a million numbers.
pub(crate) fn row_ranges(examples: &Examples, count: usize) -> impl Iterator<Item = Range<usize>> {
    let values: usize = examples.feature_shape().iter().product();
    let rows = (VALUES / values.max(1)).max(1);
    let starts = (0..count).step_by(rows);
    starts.map(move |first| first..count.min(first + rows))
}
