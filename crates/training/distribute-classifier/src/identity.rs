//! Which data a run has: digests of its examples, each of which is read once for them.

use distribute_readers::{Examples, ReadError, TrainTest};
use sha2::{Digest, Sha256};

use crate::rows::row_ranges;

/// Hexadecimal digits of a digest that people read.
const DIGITS: usize = 16;
/// Longer lists are shown by their beginning and told apart by a digest.
const LIST_MAX: usize = 120;

/// A digest of each example of a data set: of its features or its text, and of its label.
#[derive(Debug)]
pub struct RowDigests(Vec<[u8; 32]>);

/// What identifies the examples of a run: who has the same is trained on, and tested with, the
/// same examples in the same order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// The examples of both sets, whatever their order.
    pub content: String,
    /// Their order, and where the training examples end.
    pub order: String,
}

impl RowDigests {
    /// Of all examples; reads them.
    pub fn of(examples: &Examples) -> Result<Self, ReadError> {
        Self::of_first(examples, examples.len())
    }

    /// Of the first `count` examples; reads them.
    pub fn of_first(examples: &Examples, count: usize) -> Result<Self, ReadError> {
        let values: usize = examples.feature_shape().iter().product();
        let mut digests = Vec::with_capacity(count);
        for range in row_ranges(examples, count) {
            let rows: Vec<usize> = range.collect();
            let labels = labels(examples, &rows)?;
            if examples.is_text() {
                let texts = examples.texts(&rows)?.into_iter();
                digests.extend(texts.zip(labels).map(|(text, label)| {
                    let length = (text.len() as u64).to_le_bytes();
                    digest([&length, text.as_bytes()], &label)
                }));
                continue;
            }
            let features = examples.features_f32(&rows)?;
            let features = features.chunks_exact(values).zip(labels);
            digests.extend(features.map(|(values, label)| {
                let bytes = values.iter().flat_map(|value| value.to_le_bytes());
                digest([&bytes.collect::<Vec<u8>>()], &label)
            }));
        }
        Ok(Self(digests))
    }

    /// A digest of all of them in their order, as hexadecimal digits.
    pub fn in_order(&self, shape: &[usize]) -> String {
        let mut hash = Sha256::new();
        for extent in shape {
            hash.update((*extent as u64).to_le_bytes());
        }
        for digest in &self.0 {
            hash.update(digest);
        }
        hex::encode(hash.finalize())
    }

    /// The identity of a run that was given these rows for training and for testing.
    pub fn identity(&self, train: &[usize], test: &[usize]) -> Identity {
        let of = |rows: &[usize]| rows.iter().map(|row| self.0[*row]).collect();
        Identity::of(&[Self(of(train)), Self(of(test))])
    }
}

/// The bytes of each label: of a class, or of the values.
fn labels(examples: &Examples, rows: &[usize]) -> Result<Vec<Vec<u8>>, ReadError> {
    if examples.classes().is_some() {
        let classes = examples.labels_i64(rows)?.into_iter();
        return Ok(classes.map(|class| class.to_le_bytes().to_vec()).collect());
    }
    let values = examples.labels_f32(rows)?;
    let width = (values.len() / rows.len().max(1)).max(1);
    let bytes = |values: &[f32]| {
        values
            .iter()
            .flat_map(|value| value.to_le_bytes())
            .collect()
    };
    Ok(values.chunks_exact(width).map(bytes).collect())
}

fn digest<const N: usize>(parts: [&[u8]; N], label: &[u8]) -> [u8; 32] {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update(part);
    }
    hash.update(label);
    hash.finalize().into()
}

impl Identity {
    /// That of two sets; reads them.
    pub fn read(data: &TrainTest) -> Result<Self, ReadError> {
        let sets = [RowDigests::of(&data.train)?, RowDigests::of(&data.test)?];
        Ok(Self::of(&sets))
    }

    fn of(sets: &[RowDigests; 2]) -> Self {
        // A sum does not depend on the order of what is added.
        let mut sum = [0_u64; 4];
        let mut order = Sha256::new();
        for set in sets {
            order.update((set.0.len() as u64).to_le_bytes());
            for digest in &set.0 {
                for (lane, part) in sum.iter_mut().zip(digest.chunks_exact(8)) {
                    let part = part.try_into().map_or(0, u64::from_le_bytes);
                    *lane = lane.wrapping_add(part);
                }
                order.update(digest);
            }
        }
        let content: Vec<u8> = sum.iter().flat_map(|lane| lane.to_le_bytes()).collect();
        Self {
            content: short_hex(&Sha256::digest(content)),
            order: short_hex(&order.finalize()),
        }
    }
}

/// The first digits of a digest, for people.
pub fn short_hex(bytes: &[u8]) -> String {
    hex::encode(&bytes[..bytes.len().min(DIGITS / 2)])
}

/// A text for a list of names that is short, and another one for each list.
pub fn listed<T: AsRef<str>>(names: &[T]) -> String {
    let mut hash = Sha256::new();
    for name in names.iter().map(AsRef::as_ref) {
        hash.update((name.len() as u64).to_le_bytes());
        hash.update(name.as_bytes());
    }
    let mut shown = String::new();
    for (index, name) in names.iter().map(AsRef::as_ref).enumerate() {
        if shown.len() + name.len() > LIST_MAX {
            let digest = short_hex(&hash.finalize());
            return format!("{shown}... ({} in all, {digest})", names.len());
        }
        shown += if index == 0 { "" } else { ", " };
        shown += name;
    }
    shown
}

#[cfg(test)]
mod tests {
    use distribute_readers::{Array, Features, Labels, Values};

    use super::*;

    fn examples(values: &[f32], labels: &[i64]) -> Examples {
        let array = Array::new(vec![labels.len(), 1], Values::F32(values.to_vec())).unwrap();
        let features = Features::Numbers(array);
        Examples::new("test", features, Labels::Classes(labels.to_vec())).unwrap()
    }

    fn read(train: (&[f32], &[i64]), test: (&[f32], &[i64])) -> Identity {
        let (train, test) = (examples(train.0, train.1), examples(test.0, test.1));
        Identity::read(&TrainTest { train, test }).unwrap()
    }

    #[test]
    fn digests_tell_content_order_and_split_apart() {
        let one = read((&[1., 2., 3.], &[0, 1, 0]), (&[4.], &[1]));
        assert_eq!(one, read((&[1., 2., 3.], &[0, 1, 0]), (&[4.], &[1])));
        for (what, other) in [
            ("order", read((&[2., 1., 3.], &[1, 0, 0]), (&[4.], &[1]))),
            ("split", read((&[1., 2.], &[0, 1]), (&[3., 4.], &[0, 1]))),
        ] {
            assert_eq!(one.content, other.content, "{what}");
            assert_ne!(one.order, other.order, "{what}");
        }
        for (what, other) in [
            ("a value", read((&[1., 2., 5.], &[0, 1, 0]), (&[4.], &[1]))),
            ("a label", read((&[1., 2., 3.], &[0, 1, 1]), (&[4.], &[1]))),
            (
                "labels that change places",
                read((&[1., 2., 3.], &[1, 0, 0]), (&[4.], &[1])),
            ),
        ] {
            assert_ne!(one.content, other.content, "{what}");
        }
    }

    #[test]
    fn a_split_that_was_read_before_has_the_same_identity() {
        let all = examples(&[1., 2., 3., 4.], &[0, 1, 0, 1]);
        let digests = RowDigests::of(&all).unwrap();
        let split = read((&[4., 1., 2.], &[1, 0, 1]), (&[3.], &[0]));
        assert_eq!(digests.identity(&[3, 0, 1], &[2]), split);
        let first = RowDigests::of_first(&all, 2).unwrap().in_order(&[1]);
        let other = RowDigests::of(&examples(&[1., 2.], &[0, 1])).unwrap();
        assert_eq!(first, other.in_order(&[1]));
        assert_ne!(first, digests.in_order(&[1]));
    }

    #[test]
    fn long_lists_are_cut_and_told_apart() {
        assert_eq!(listed(&["cat", "dog"]), "cat, dog");
        let names: Vec<String> = (0..1000).map(|index| format!("class {index}")).collect();
        let mut other = names.clone();
        other[999] = "another".to_string();
        let (one, other) = (listed(&names), listed(&other));
        assert_ne!(one, other);
        assert!(
            one.contains("1000 in all") && one.len() < 2 * LIST_MAX,
            "{one}"
        );
    }
}
