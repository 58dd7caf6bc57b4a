//! `tf.train.Example`: features by name.

use std::collections::BTreeMap;

use crate::MessageError;
use crate::wire::{Fields, Malformed, Value, put_bytes, put_varint};

/// `tf.train.Feature`: a list of values of one kind.
#[derive(Debug, Clone, PartialEq, Default)]
#[non_exhaustive]
pub enum Feature {
    /// No list at all, which readers take for a feature that is missing.
    #[default]
    Empty,
    /// `bytes_list`: texts, or encoded images.
    Bytes(Vec<Vec<u8>>),
    /// `float_list`
    Floats(Vec<f32>),
    /// `int64_list`
    Ints(Vec<i64>),
}

impl From<Vec<Vec<u8>>> for Feature {
    fn from(values: Vec<Vec<u8>>) -> Self {
        Self::Bytes(values)
    }
}

impl From<Vec<f32>> for Feature {
    fn from(values: Vec<f32>) -> Self {
        Self::Floats(values)
    }
}

impl From<Vec<i64>> for Feature {
    fn from(values: Vec<i64>) -> Self {
        Self::Ints(values)
    }
}

impl From<&str> for Feature {
    fn from(text: &str) -> Self {
        Self::Bytes(vec![text.as_bytes().to_vec()])
    }
}

/// `tf.train.Example`: one example as features by name.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Example {
    /// The features. They are written in the order of their names, so that equal examples have
    /// equal bytes.
    pub features: BTreeMap<String, Feature>,
}

impl<N: Into<String>, const COUNT: usize> From<[(N, Feature); COUNT]> for Example {
    fn from(features: [(N, Feature); COUNT]) -> Self {
        features.into_iter().collect()
    }
}

impl<N: Into<String>> FromIterator<(N, Feature)> for Example {
    fn from_iter<I: IntoIterator<Item = (N, Feature)>>(features: I) -> Self {
        let features = features.into_iter();
        Self {
            features: features
                .map(|(name, feature)| (name.into(), feature))
                .collect(),
        }
    }
}

impl Example {
    /// Reads a message, as `tf.train.Example.FromString`: unknown fields are skipped, lists may be
    /// packed or not, the last of two features of a name counts, and messages that were joined are
    /// one. A feature with an unknown field beside its name and value is dropped.
    ///
    /// # Errors
    ///
    /// [`MessageError`]
    pub fn parse(bytes: &[u8]) -> Result<Self, MessageError> {
        let mut example = Self::default();
        let mut fields = Fields(bytes);
        let read = &mut || -> Result<(), Bad> {
            while let Some((number, value)) = fields.next()? {
                if let (1, Value::Bytes(bytes)) = (number, value) {
                    features(bytes, &mut example.features)?;
                }
            }
            Ok(())
        };
        read().map_err(|bad| bad.of("Example"))?;
        Ok(example)
    }

    /// The message, with lists of numbers packed.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        put_bytes(&mut bytes, 1, &features_bytes(&self.features));
        bytes
    }
}

/// Why a message cannot be read, without its name.
pub(crate) enum Bad {
    Malformed,
    NotText,
}

impl From<Malformed> for Bad {
    fn from(_: Malformed) -> Self {
        Self::Malformed
    }
}

impl Bad {
    pub(crate) fn of(self, message: &'static str) -> MessageError {
        match self {
            Self::Malformed => MessageError::Malformed { message },
            Self::NotText => MessageError::NotText { message },
        }
    }
}

/// Adds what a `tf.train.Features` message has.
pub(crate) fn features(bytes: &[u8], to: &mut BTreeMap<String, Feature>) -> Result<(), Bad> {
    map(bytes, to, merge)
}

/// Adds the entries of a message whose field 1 is a map.
pub(crate) fn map<T: Default>(
    bytes: &[u8],
    to: &mut BTreeMap<String, T>,
    merge: fn(&mut T, &[u8]) -> Result<(), Bad>,
) -> Result<(), Bad> {
    let mut fields = Fields(bytes);
    while let Some((number, value)) = fields.next()? {
        if let (1, Value::Bytes(entry)) = (number, value) {
            let mut fields = Fields(entry);
            let (mut key, mut found, mut is_known) = (String::new(), T::default(), true);
            while let Some(field) = fields.next()? {
                match field {
                    (1, Value::Bytes(bytes)) => {
                        let text = std::str::from_utf8(bytes).map_err(|_| Bad::NotText)?;
                        key = text.to_string();
                    }
                    (2, Value::Bytes(bytes)) => merge(&mut found, bytes)?,
                    _ => is_known = false,
                }
            }
            if is_known {
                to.insert(key, found);
            }
        }
    }
    Ok(())
}

/// Adds what a `tf.train.Feature` message has: the list of the last kind, of all its parts.
pub(crate) fn merge(feature: &mut Feature, bytes: &[u8]) -> Result<(), Bad> {
    let mut fields = Fields(bytes);
    while let Some((number, value)) = fields.next()? {
        let Value::Bytes(list) = value else {
            continue;
        };
        match (number, &mut *feature) {
            (1, Feature::Bytes(_)) | (2, Feature::Floats(_)) | (3, Feature::Ints(_)) => {}
            (1, _) => *feature = Feature::Bytes(Vec::new()),
            (2, _) => *feature = Feature::Floats(Vec::new()),
            (3, _) => *feature = Feature::Ints(Vec::new()),
            _ => continue,
        }
        let mut values = Fields(list);
        while let Some((number, value)) = values.next()? {
            if number == 1 {
                add(feature, value)?;
            }
        }
    }
    Ok(())
}

/// Adds one value of a list, or a packed part of it.
fn add(feature: &mut Feature, value: Value<'_>) -> Result<(), Bad> {
    match (feature, value) {
        (Feature::Bytes(all), Value::Bytes(bytes)) => all.push(bytes.to_vec()),
        (Feature::Floats(all), Value::Fixed32(bytes)) => all.push(f32::from_le_bytes(bytes)),
        (Feature::Floats(all), Value::Bytes(packed)) => {
            let (values, rest) = packed.as_chunks();
            if !rest.is_empty() {
                return Err(Bad::Malformed);
            }
            all.extend(values.iter().map(|bytes| f32::from_le_bytes(*bytes)));
        }
        (Feature::Ints(all), Value::Varint(number)) => all.push(number.cast_signed()),
        (Feature::Ints(all), Value::Bytes(packed)) => {
            let mut packed = Fields(packed);
            while !packed.0.is_empty() {
                all.push(packed.varint()?.cast_signed());
            }
        }
        _ => {}
    }
    Ok(())
}

/// A `tf.train.Features` message.
pub(crate) fn features_bytes(features: &BTreeMap<String, Feature>) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (name, feature) in features {
        entry(&mut bytes, name, &feature_bytes(feature));
    }
    bytes
}

/// Adds an entry of a map.
pub(crate) fn entry(to: &mut Vec<u8>, name: &str, value: &[u8]) {
    let mut bytes = Vec::new();
    put_bytes(&mut bytes, 1, name.as_bytes());
    put_bytes(&mut bytes, 2, value);
    put_bytes(to, 1, &bytes);
}

/// A `tf.train.Feature` message.
pub(crate) fn feature_bytes(feature: &Feature) -> Vec<u8> {
    let mut list = Vec::new();
    let mut packed = Vec::new();
    let number = match feature {
        Feature::Empty => return list,
        Feature::Bytes(values) => {
            values
                .iter()
                .for_each(|value| put_bytes(&mut list, 1, value));
            1
        }
        Feature::Floats(values) => {
            packed.extend(values.iter().flat_map(|value| value.to_le_bytes()));
            2
        }
        Feature::Ints(values) => {
            let values = values.iter().map(|value| value.cast_unsigned());
            values.for_each(|value| put_varint(&mut packed, value));
            3
        }
    };
    if !packed.is_empty() {
        put_bytes(&mut list, 1, &packed);
    }
    let mut bytes = Vec::new();
    put_bytes(&mut bytes, number, &list);
    bytes
}
