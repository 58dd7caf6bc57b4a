//! Views, batches and splits of examples.

use std::sync::Arc;
use std::thread;

use distribute_readers::{
    Array, Examples, Features, Labels, ReadError, Values, digits, permutation,
};
use proptest::prelude::*;
use rstest::rstest;

/// `n` examples `[i, i + 0.5]` of the classes `i % 3`.
fn examples(n: usize) -> Examples {
    let values = (0..n).flat_map(|i| [i as f32, i as f32 + 0.5]).collect();
    let features = Array::new(vec![n, 2], Values::F32(values)).unwrap();
    let labels = (0..n as i64).map(|i| i % 3).collect();
    Examples::new(
        "points",
        Features::Numbers(features),
        Labels::Classes(labels),
    )
    .unwrap()
}

fn first_values(examples: &Examples) -> Vec<usize> {
    let all: Vec<usize> = (0..examples.len()).collect();
    let features = examples.features_f32(&all).unwrap();
    features.chunks(2).map(|row| row[0] as usize).collect()
}

#[test]
fn batches_follow_the_indices_and_buffers_are_used_again() {
    let set = examples(5);
    assert_eq!(
        set.features_f32(&[4, 0, 4]).unwrap(),
        [4.0, 4.5, 0.0, 0.5, 4.0, 4.5]
    );
    assert_eq!(set.labels_i64(&[4, 0, 4]).unwrap(), [1, 0, 1]);
    assert_eq!(set.labels_f32(&[2, 4]).unwrap(), [2.0, 1.0]);
    assert!(set.features_f32(&[]).unwrap().is_empty());
    let mut buffer = Vec::new();
    set.extend_features_f32(&[1], &mut buffer).unwrap();
    set.extend_features_f32(&[2], &mut buffer).unwrap();
    assert_eq!(buffer, [1.0, 1.5, 2.0, 2.5]);
}

#[test]
fn every_integer_type_is_read_as_float_and_label() {
    for values in [
        Values::I8(vec![-3, 7]),
        Values::I16(vec![-3, 7]),
        Values::I32(vec![-3, 7]),
        Values::I64(vec![-3, 7]),
    ] {
        let features = Features::Numbers(Array::new(vec![2], values.clone()).unwrap());
        let labels = Labels::Numbers(Array::new(vec![2], values).unwrap());
        let set = Examples::new("numbers", features, labels).unwrap();
        assert_eq!(set.features_f32(&[0, 1]).unwrap(), [-3.0, 7.0]);
        assert_eq!(set.labels_i64(&[1, 0]).unwrap(), [7, -3]);
        assert_eq!(set.labels_f32(&[1, 0]).unwrap(), [7.0, -3.0]);
    }
}

#[test]
fn a_view_of_a_view_shares_the_data_with_other_threads() {
    let view = examples(10)
        .subset(&[8, 6, 4, 2])
        .unwrap()
        .subset(&[3, 0])
        .unwrap();
    assert_eq!(first_values(&view), [2, 8]);
    assert_eq!(
        (view.len(), view.classes(), view.class_counts()),
        (2, Some(3), vec![0, 0, 2])
    );
    let view = Arc::new(view);
    let other = Arc::clone(&view);
    let labels = thread::spawn(move || other.labels_i64(&[0, 1]).unwrap())
        .join()
        .unwrap();
    assert_eq!(labels, [2, 2]);
}

#[test]
fn what_is_not_there_is_an_error() {
    let set = examples(3).subset(&[0, 1]).unwrap();
    for result in [
        set.features_f32(&[0, 2]).err(),
        set.labels_i64(&[2]).err(),
        set.labels_f32(&[usize::MAX]).err(),
        set.subset(&[2]).err(),
    ] {
        assert!(matches!(
            result,
            Some(ReadError::IndexOutOfRange { examples: 2, .. })
        ));
    }
    assert!(matches!(set.subset(&[]), Err(ReadError::Empty { .. })));
    assert!(matches!(set.texts(&[0]), Err(ReadError::WrongKind { .. })));
    let shape = set.clone().with_feature_shape(&[3]).unwrap_err();
    assert_eq!(
        shape.to_string(),
        "shape [3] does not hold 2 values; pass the shape of the data"
    );

    let texts = Features::Text(vec!["a".into()]);
    let values = Array::new(vec![1], Values::F64(vec![0.5])).unwrap();
    let texts = Examples::new("texts", texts, Labels::Numbers(values)).unwrap();
    for error in [
        texts.features_f32(&[0]).unwrap_err(),
        texts.labels_i64(&[0]).unwrap_err(),
        texts.clone().with_classes(2).unwrap_err(),
        texts.clone().with_feature_shape(&[1]).unwrap_err(),
    ] {
        assert!(matches!(error, ReadError::WrongKind { .. }), "{error}");
    }
    assert_eq!(texts.labels_f32(&[0]).unwrap(), [0.5]);
}

#[test]
fn labels_are_checked_against_the_classes() {
    let error = examples(5).with_classes(2).unwrap_err();
    assert_eq!(
        error.to_string(),
        "points: label 2 at example 2 (counted from 0) is out of range: allowed is 0 to 1; \
         correct the label or the number of classes"
    );
    // A view is only held against its own examples.
    assert_eq!(
        examples(5)
            .subset(&[0, 4])
            .unwrap()
            .with_classes(2)
            .unwrap()
            .classes(),
        Some(2)
    );
    for label in [-1, 1 << 20, i64::MAX, i64::MIN] {
        let one = Features::Text(vec![String::new(); 2]);
        let error = Examples::new("x", one, Labels::Classes(vec![0, label])).unwrap_err();
        assert!(
            matches!(error, ReadError::LabelOutOfRange { .. }),
            "{label}"
        );
    }
}

#[test]
fn empty_and_unequal_sets_are_refused() {
    let array = |shape: &[usize]| {
        let count = shape.iter().product();
        Features::Numbers(Array::new(shape.to_vec(), Values::F32(vec![0.0; count])).unwrap())
    };
    for shape in [&[0usize][..], &[0, 4], &[3, 0]] {
        let labels = Labels::Classes(vec![0; shape[0]]);
        let error = Examples::new("x", array(shape), labels).unwrap_err();
        assert!(matches!(error, ReadError::Empty { .. }), "{shape:?}");
    }
    let error = Examples::new("x", array(&[3, 2]), Labels::Classes(vec![0, 1])).unwrap_err();
    assert!(matches!(
        error,
        ReadError::CountMismatch {
            examples: 3,
            labels: 2,
            ..
        }
    ));
}

#[rstest]
#[case(&[0.5, 0.6], "the fractions add up to 1.1; pass at most 1 in all")]
#[case(&[0.5, 0.0], "the fraction 0 is not positive")]
#[case(&[f64::NAN], "the fraction NaN is not positive")]
#[case(&[0.9, 0.01], "the fraction 0.01 gives none; pass a larger one")]
fn splits_that_cannot_be(#[case] fractions: &[f64], #[case] why: &str) {
    let error = examples(10).split(fractions, 0).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!("points: cannot split 10 examples: {why}")
    );
}

proptest! {
    /// The parts are disjoint, keep the order of the file, and together are everything.
    #[test]
    fn a_split_loses_and_doubles_nothing(n in 10usize..200, seed: u64) {
        let parts = examples(n).split(&[0.6, 0.2, 0.2], seed).unwrap();
        let rows: Vec<Vec<usize>> = parts.iter().map(first_values).collect();
        prop_assert!(rows.iter().all(|part| part.is_sorted()));
        let mut all = rows.concat();
        all.sort_unstable();
        prop_assert_eq!(all, (0..n).collect::<Vec<_>>());
        for (part, fraction) in rows.iter().zip([0.6, 0.2, 0.2]) {
            prop_assert!((part.len() as f64 - n as f64 * fraction).abs() <= 1.0);
        }
        let again = examples(n).split(&[0.6, 0.2, 0.2], seed).unwrap();
        prop_assert_eq!(first_values(&again[1]), rows[1].clone());
    }
}

#[test]
fn a_split_follows_the_published_permutation() {
    let order = permutation(20, 7);
    let split = examples(20).train_test(0.25, 7).unwrap();
    let mut expected = order[15..].to_vec();
    expected.sort_unstable();
    assert_eq!(first_values(&split.test), expected);
    assert_eq!(split.train.len(), 15);
    // Written down: another order would be another test set for everybody.
    assert_eq!(permutation(8, 1), PERMUTATION_OF_8);
}

const PERMUTATION_OF_8: [usize; 8] = [0, 3, 7, 1, 2, 6, 5, 4];

#[test]
fn the_documented_types_can_cross_threads() {
    fn crosses<T: Send + Sync>() {}
    crosses::<Examples>();
    crosses::<ReadError>();
    assert!(digits().is_ok());
}
