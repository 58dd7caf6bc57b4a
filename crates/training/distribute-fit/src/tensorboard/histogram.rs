//! TensorFlow's histogram (`lib/histogram/histogram.cc`).

use super::event::HistogramProto;

/// Counts `values` into TensorFlow's default buckets. Runs of empty buckets become one, as in
/// `Histogram::EncodeToProto`.
///
/// # Errors
///
/// How many values are NaN or infinite, if any is.
pub(super) fn histogram(values: impl IntoIterator<Item = f64>) -> Result<HistogramProto, usize> {
    let limits = bucket_limits();
    let mut counts = vec![0_u64; limits.len()];
    let (mut min, mut max) = (f64::MAX, f64::MIN);
    let (mut count, mut sum, mut sum_squares) = (0_u64, 0.0, 0.0);
    let mut not_finite = 0;
    for value in values {
        if !value.is_finite() {
            not_finite += 1;
            continue;
        }
        // The first bucket whose limit lies above the value; the largest double has none.
        let index = limits.partition_point(|limit| *limit <= value);
        counts[index.min(limits.len() - 1)] += 1;
        min = value.min(min);
        max = value.max(max);
        sum += value;
        sum_squares += value * value;
        count += 1;
    }
    if not_finite > 0 {
        return Err(not_finite);
    }
    let (bucket_limit, bucket) = collapse(&limits, &counts);
    Ok(HistogramProto {
        min,
        max,
        num: count as f64,
        sum,
        sum_squares,
        bucket_limit,
        bucket,
    })
}

/// `InitDefaultBucketsInner`: from 1e-12 to 1e20, each limit a tenth above the one before, the
/// same below zero, zero itself, and the largest doubles at the ends.
fn bucket_limits() -> Vec<f64> {
    let mut positive: Vec<f64> = std::iter::successors(Some(1.0e-12), |limit| Some(limit * 1.1))
        .take_while(|limit| *limit < 1.0e20)
        .collect();
    positive.push(f64::MAX);
    let negative = positive.iter().rev().map(|limit| -limit);
    negative
        .chain([0.0])
        .chain(positive.iter().copied())
        .collect()
}

fn collapse(limits: &[f64], counts: &[u64]) -> (Vec<f64>, Vec<f64>) {
    let mut collapsed: (Vec<f64>, Vec<f64>) = (Vec::new(), Vec::new());
    for (index, (limit, count)) in limits.iter().zip(counts).enumerate() {
        let run_goes_on = *count == 0 && counts.get(index + 1) == Some(&0);
        if !run_goes_on {
            collapsed.0.push(*limit);
            collapsed.1.push(*count as f64);
        }
    }
    collapsed
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn limits_are_those_of_tensorflow() {
        let limits = bucket_limits();
        // tf.compat.v1 summaries: 774 positive limits, the largest double, twice, and zero.
        assert_eq!(limits.len(), 2 * 775 + 1);
        assert!(limits.is_sorted());
        assert_eq!(limits[775], 0.0);
        assert_eq!(limits[776], 1.0e-12);
    }

    #[test]
    fn runs_of_empty_buckets_become_one() {
        let (limits, counts) = collapse(&[1.0, 2.0, 3.0, 4.0, 5.0], &[0, 0, 7, 0, 0]);
        assert_eq!(limits, [2.0, 3.0, 5.0]);
        assert_eq!(counts, [0.0, 7.0, 0.0]);
    }

    #[test]
    fn values_that_are_not_finite_are_counted() {
        let values = [1.0, f64::NAN, f64::INFINITY, f64::NEG_INFINITY];
        assert_eq!(histogram(values), Err(3));
    }

    proptest! {
        #[test]
        fn every_value_lands_in_its_bucket(values in prop::collection::vec(any::<f64>()
            .prop_filter("finite", |value| value.is_finite()), 1..50)) {
            let histogram = histogram(values.iter().copied()).unwrap();
            prop_assert_eq!(histogram.num, values.len() as f64);
            let mut lower = f64::NEG_INFINITY;
            for (limit, count) in histogram.bucket_limit.iter().zip(&histogram.bucket) {
                let upper = if *limit == f64::MAX { f64::INFINITY } else { *limit };
                let inside = values.iter().filter(|value| lower <= **value && **value < upper);
                prop_assert_eq!(*count, inside.count() as f64);
                lower = *limit;
            }
        }
    }
}
