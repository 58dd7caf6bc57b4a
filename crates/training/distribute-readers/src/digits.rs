//! The embedded handwritten digits, so that a first run needs no download.

use std::path::Path;

use crate::error::ReadError;
use crate::examples::{Examples, Features, TrainTest};
use crate::idx::parse_idx;
use crate::mnist::class_labels;

// Source and licence: src/data/digits-SOURCE.txt.
const IMAGES: &[u8] = include_bytes!("data/digits-images-idx3-ubyte.gz");
const LABELS: &[u8] = include_bytes!("data/digits-labels-idx1-ubyte.gz");

/// Grey values of the digits go from 0 to this.
const WHITE: f32 = 16.0;
const CLASSES: usize = 10;
/// Held out by [`digits_split`].
const TEST_FRACTION: f64 = 0.2;
/// The seed of [`digits_split`]; another one is another split, and other accuracies.
const SPLIT_SEED: u64 = 1998;

/// 1,797 handwritten digits of 8 x 8 pixels, built into the library.
///
/// Feature shape `[8, 8]`, values `x / 16` in `[0, 1]`, 10 classes of 174 to 183 examples.
/// Source: UCI Machine Learning Repository, *Optical Recognition of Handwritten Digits*,
/// E. Alpaydin and C. Kaynak, 1998 (<https://doi.org/10.24432/C50P49>), licence CC BY 4.0.
///
/// # Errors
/// None with the embedded bytes intact, which a test checks.
pub fn digits() -> Result<Examples, ReadError> {
    let (images, labels) = (
        Path::new("digits (embedded)"),
        Path::new("digits labels (embedded)"),
    );
    let features = Features::Numbers(parse_idx(IMAGES, images)?);
    let classes = class_labels(parse_idx(LABELS, labels)?, labels)?;
    let digits = Examples::from_files("digits", features, images, classes, labels, &[])?;
    Ok(digits
        .with_divisor(WHITE)
        .with_classes(CLASSES)?
        .with_files(&[]))
}

/// [`digits`] with a fixed 20 % held out: 1,438 examples to train, 359 to test.
///
/// The split is [`Examples::split`] of `[0.8, 0.2]` with the seed 1998, and does not change.
///
/// # Errors
/// As [`digits`].
pub fn digits_split() -> Result<TrainTest, ReadError> {
    digits()?.train_test(TEST_FRACTION, SPLIT_SEED)
}
