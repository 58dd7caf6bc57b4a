//! The embedded digits and their fixed split are what they were when accuracies were published.

use distribute_readers::{digits, digits_split};
use sha2::{Digest, Sha256};

fn hex_sha256(bytes: &[u8]) -> String {
    hex::encode(Sha256::digest(bytes))
}

#[test]
fn the_content_is_that_of_the_source() {
    let digits = digits().unwrap();
    assert_eq!((digits.name(), digits.len()), ("digits", 1_797));
    assert_eq!(
        (digits.feature_shape(), digits.classes()),
        (&[8, 8][..], Some(10))
    );
    assert_eq!(
        digits.class_counts(),
        [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    );
    assert!(digits.files().is_empty() && digits.class_names().is_empty());

    let all: Vec<usize> = (0..digits.len()).collect();
    let features = digits.features_f32(&all).unwrap();
    let pixels: Vec<u8> = features.iter().map(|x| (x * 16.0) as u8).collect();
    let labels: Vec<u8> = digits
        .labels_i64(&all)
        .unwrap()
        .into_iter()
        .map(|label| label as u8)
        .collect();
    // The same hashes stand in src/data/digits-SOURCE.txt.
    let source = include_str!("../../src/data/digits-SOURCE.txt");
    for (bytes, hash) in [
        (
            &pixels,
            "8f26b2bd9d135c256808f68f14fdabddde6d9c7f869ae419704b051f0f14b3b3",
        ),
        (
            &labels,
            "8ba4f891220f5e4c9c819638d1602d74b83618f167043c6da52a2a247841ddf0",
        ),
    ] {
        assert_eq!(hex_sha256(bytes), hash);
        assert!(source.contains(hash));
    }
}

#[test]
fn pixels_are_sixteenths_from_zero_to_one() {
    let digits = digits().unwrap();
    let all: Vec<usize> = (0..digits.len()).collect();
    let features = digits.features_f32(&all).unwrap();
    assert!(
        features
            .iter()
            .all(|x| (0.0..=1.0).contains(x) && (x * 16.0).fract() == 0.0)
    );
    assert_eq!(
        features.iter().map(|&x| f64::from(x) * 16.0).sum::<f64>(),
        561_718.0
    );
    // The first row of the first image of the source: 0,0,5,13,9,1,0,0.
    let row = [0.0, 0.0, 5.0, 13.0, 9.0, 1.0, 0.0, 0.0].map(|x: f32| x / 16.0);
    assert_eq!(features[..8], row);
}

#[test]
fn the_held_out_fifth_never_changes() {
    let split = digits_split().unwrap();
    assert_eq!((split.train.len(), split.test.len()), (1_438, 359));
    assert_eq!(
        (split.train.classes(), split.test.classes()),
        (Some(10), Some(10))
    );
    let counts = split.test.class_counts();
    let all = digits().unwrap().class_counts();
    let both: Vec<usize> = split
        .train
        .class_counts()
        .iter()
        .zip(&counts)
        .map(|(a, b)| a + b)
        .collect();
    assert_eq!(both, all);
    assert_eq!(counts, TEST_COUNTS);

    let rows: Vec<usize> = (0..359).collect();
    let labels: Vec<u8> = split
        .test
        .labels_i64(&rows)
        .unwrap()
        .into_iter()
        .map(|label| label as u8)
        .collect();
    let pixels = split.test.features_f32(&rows).unwrap();
    let pixels: Vec<u8> = pixels.iter().map(|x| (x * 16.0) as u8).collect();
    assert_eq!(hex_sha256(&[pixels, labels].concat()), TEST_HASH);
}

/// Frozen: computed from the source by another program that follows the documented rule.
const TEST_COUNTS: [usize; 10] = [36, 36, 36, 27, 34, 36, 41, 36, 40, 37];
const TEST_HASH: &str = "867c3d93e04a3aee9d7a191c96121ec00949dd454770e2f60b58e020bfce34e9";
