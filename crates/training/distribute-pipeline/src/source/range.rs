//! Numbers.

use super::{Source, in_range};
use crate::Result;

/// The numbers of a range (TensorFlow: `Dataset.range`).
///
/// ```
/// use distribute_pipeline::{Source, range};
/// assert_eq!(range(3..7).get(1)?, 4);
/// # Ok::<(), distribute_pipeline::PipelineError>(())
/// ```
pub fn range(numbers: std::ops::Range<i64>) -> Range {
    Range { numbers }
}

/// [`range`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub struct Range {
    numbers: std::ops::Range<i64>,
}

impl Source for Range {
    type Item = i64;

    fn len(&self) -> u64 {
        // A range that ends before it starts is empty.
        let end = self.numbers.end.max(self.numbers.start);
        end.abs_diff(self.numbers.start)
    }

    fn get(&self, index: u64) -> Result<i64> {
        in_range("range", index, self.len())?;
        Ok(self.numbers.start.wrapping_add_unsigned(index))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract;

    #[test]
    fn keeps_the_contract() {
        contract::check_source(&range(-3..4)).unwrap();
        contract::check_source(&range(0..0)).unwrap();
        let backwards = std::ops::Range { start: 4, end: 1 };
        assert_eq!(range(backwards).len(), 0);
        assert_eq!(
            range(i64::MIN..i64::MAX).get(u64::MAX - 1).unwrap(),
            i64::MAX - 1
        );
    }
}
